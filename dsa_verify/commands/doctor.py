"""`dsa-verify doctor`: versions, the backend, which providers load, and what can be verified on this machine."""

import sys
from pathlib import Path

import click

from dsa_verify.commands import output
from dsa_verify.errors import Exit


@click.command()
@output.provider_path
def doctor(provider_path: Path | None) -> None:
    """Print versions, the backend, which providers load, and what runs where."""
    from dsa_verify.commands.machine import machine

    with output.stdout_to_stderr():
        lines, healthy = machine(provider_path)
    click.echo("\n".join(lines))
    sys.exit(Exit.ACCEPTED if healthy else Exit.BROKE)
