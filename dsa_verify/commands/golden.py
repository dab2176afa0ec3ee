"""`dsa-verify golden`: check the records, accept a change on purpose, print one, or print what would change."""

import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

import click

from dsa_verify.commands import output
from dsa_verify.errors import Exit

if TYPE_CHECKING:  # `--help` imports neither NumPy nor the suite
    from dsa_verify.golden.review import Review, Reviewed

_FOLDER = click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path("golden"),
    show_default=True,
    help="Where the records are.",
)

_LISTED = 20
"""Failing records that `check` spells out; a change that moves all of them would fill screens with one message."""


class Choice(TypedDict):
    """What `_chosen` adds to a command's arguments."""

    folder: Path
    surface: Sequence[str]
    scenario: Sequence[str]
    provider: Sequence[str]
    jobs: int | None


def _chosen(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which records, and whose kernels to run beside the oracle."""
    for option in (
        click.option("--jobs", type=click.IntRange(min=1), help="Worker processes for kernels; one a core by default."),
        click.option("--provider", multiple=True, metavar="NAME", help="Run this provider's kernels too. Repeatable."),
        click.option("--scenario", multiple=True, metavar="GLOB", help="A name, or a glob over the quick tier's."),
        click.option("--surface", multiple=True, metavar="NAME", help="Repeatable; all by default."),
        _FOLDER,
    ):
        command = option(command)
    return command


@click.group()
def golden() -> None:
    """Reviewed records of what every quick scenario asks, means, and costs a provider."""


@golden.command()
@_chosen
@output.as_json
def check(as_json: bool, **chosen: Unpack[Choice]) -> None:
    """Compare the records with what is computed now; seconds without --provider."""
    start = time.perf_counter()
    outcome = _review(trusting=True, **chosen)
    code = _exit_code(outcome, chosen["provider"])
    if as_json:
        output.print_json(_document(outcome, time.perf_counter() - start, int(code)))
    else:
        failing = len(outcome.failing)
        for one in outcome.failing[:_LISTED]:
            _print(one, only_failing=True)
        if failing > _LISTED:
            click.echo(f"... and {failing - _LISTED} more; accept all of them with\n{_accept_all()}\n")
        _print_rejections(outcome)
        for provider in outcome.unrecorded:
            click.echo(
                f"not verified: no metrics of {provider} are recorded; golden update --provider {provider} does so"
            )
        click.echo(f"golden: {len(outcome.records)} records, {failing} failing, {time.perf_counter() - start:.1f} s")
    sys.exit(code)


@golden.command()
@_chosen
def diff(**chosen: Unpack[Choice]) -> None:
    """Print what update would change; exits 1 if that is anything."""
    outcome = _review(trusting=False, **chosen)
    for one in outcome.updates:
        _print(one, only_failing=False)
    _print_rejections(outcome)
    click.echo(f"golden: update would change {len(outcome.updates)} of {len(outcome.records)} records")
    differs = bool(outcome.updates or outcome.rejections)
    sys.exit(Exit.BROKE if _broke(outcome) else Exit.REJECTED if differs else Exit.ACCEPTED)


@golden.command()
@_chosen
def update(**chosen: Unpack[Choice]) -> None:
    """Write the records that differ. Refused in CI, over uncommitted records, and when a kernel is rejected."""
    from dsa_verify.errors import ConfigError, GoldenError
    from dsa_verify.golden import review, store

    if find_spec("syrupy") is None:
        raise ConfigError("golden update needs the package syrupy; pip install 'dsa-verify[pytest]'")
    try:
        store.guard(store.folder_at(chosen["folder"]))
    except GoldenError as error:
        raise click.UsageError(str(error)) from error
    outcome = _review(trusting=False, **chosen)
    if outcome.rejections:
        _print_rejections(outcome)
        click.echo("golden: nothing was recorded, as kernels were rejected")
        sys.exit(Exit.BROKE if _broke(outcome) else Exit.REJECTED)
    touched = review.update(chosen["folder"], outcome)
    for path in touched:
        click.echo(path)
    click.echo(f"golden: {len(touched)} of {len(outcome.records)} records changed", err=True)


@golden.command()
@_FOLDER
@click.argument("name", metavar="SURFACE/SCENARIO")
def show(folder: Path, name: str) -> None:
    """Print a record for a reader, selections as ranges."""
    from dsa_verify.errors import ConfigError
    from dsa_verify.golden import show as text
    from dsa_verify.golden import store

    surface, slash, scenario = name.partition("/")
    record = store.read(store.folder_at(folder), (surface, scenario)) if slash else None
    if record is None:
        raise ConfigError(
            f"there is no record {name!r} in {folder}; the form is SURFACE/SCENARIO, as in its file's path"
        )
    click.echo("\n".join(text.lines(record)))


def _review(*, trusting: bool, **chosen: Unpack[Choice]) -> "Review":
    """Compute and compare; kernels print to stderr and run only once every record was read."""
    from dsa_verify.golden import review, store
    from dsa_verify.report import terminal

    folder, providers = store.folder_at(chosen["folder"]), chosen["provider"]
    names = review.wanted(chosen["surface"], chosen["scenario"])
    review.stored(folder, names, trusting=trusting)
    whole = not (chosen["surface"] or chosen["scenario"])
    with output.stdout_to_stderr(), terminal.progress(len(names) * len(providers)) as done:
        measured = review.run_kernels(names, providers, chosen["jobs"], done)
        return review.review(folder, names, measured, whole=whole, trusting=trusting)


def _accept_all() -> str:
    from dsa_verify.golden.review import accept

    return accept()


def _broke(outcome: "Review") -> bool:
    return any(result.broke for result in outcome.results)


def _exit_code(outcome: "Review", providers: Sequence[str]) -> Exit:
    if _broke(outcome):
        return Exit.BROKE
    if outcome.failing or outcome.rejections:
        return Exit.REJECTED
    accepted = {result.provider for result in outcome.results if result.verdict.status == "accepted"}
    return Exit.NOTHING_VERIFIED if set(providers) - accepted or outcome.unrecorded else Exit.ACCEPTED


def _print(one: "Reviewed", *, only_failing: bool) -> None:
    listed = [d for d in one.differences if not only_failing or d.kind in ("drift", "unmeasured")]
    if not listed:
        return
    click.echo(f"{one.status.upper()} {one.name}")
    for difference in listed:
        click.echo(f"  {difference}")
    if one.accept:
        click.echo(f"  accept with\n{one.accept}\n")


def _print_rejections(outcome: "Review") -> None:
    for result in outcome.rejections:
        click.echo(f"REJECTED {result.provider} {result.surface} {result.scenario}: {result.check}")
        click.echo(f"  {result.verdict.reason}\n  reproduce with\n{result.reproduce}\n")


def _document(outcome: "Review", seconds: float, code: int) -> dict[str, object]:
    from dsa_verify.golden.review import oracle_provenance

    records = [
        {
            "name": one.name,
            "status": one.status,
            "fails": one.fails,
            "differences": [vars(difference) for difference in one.differences],
            "accept": one.accept,
        }
        for one in outcome.records
    ]
    return {
        **output.head(seconds, {"oracle": oracle_provenance()}),
        "exit_code": code,
        "counts": {"records": len(records), "failing": len(outcome.failing), "rejected": len(outcome.rejections)},
        "records": records,
    }
