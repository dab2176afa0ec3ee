"""The options of a run in several processes (`--hosts` and others), read into a `Hosts` value."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from dsa_verify.run.distributed import PATIENCE, Hosts

_OPTIONS = (
    click.option("--hosts", is_flag=True, help="One of the processes of a TPU pod, which JAX finds by itself."),
    click.option("--coordinator", metavar="HOST:PORT", help="Where process 0 is to be met, in any other cluster."),
    click.option("--processes", type=click.IntRange(min=1), metavar="N", help="How many processes run this command."),
    click.option("--process", type=click.IntRange(min=0), metavar="I", help="Which of them this is, from 0."),
    click.option(
        "--patience", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS",
        help=f"How long to wait for the other processes.  [default: {PATIENCE:g}]",
    ),
)  # fmt: skip


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them as one `hosts`. Raises `ConfigError` for some without the others."""

    @wraps(command)
    def with_hosts(*, hosts: bool, coordinator, processes, process, patience, **options: Any) -> Any:
        some = hosts or any(value is not None for value in (coordinator, processes, process, patience))
        found = Hosts(coordinator, processes, process, patience or PATIENCE) if some else None
        return command(hosts=found, **options)

    for option in reversed(_OPTIONS):
        with_hosts = option(with_hosts)
    return with_hosts
