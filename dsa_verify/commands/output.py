"""What commands share: common options, exit codes in words, a JSON document's head, a stdout for the result alone."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import click

from dsa_verify import SCHEMA

EXITS = """\b
Exit codes: 0 accepted, 1 rejected, 2 usage, 3 the suite broke, 4 nothing verified."""
GATE_EXITS = """\b
Exit codes: 0 PASS, 1 FAIL, 2 usage, 3 INVALID, 4 INCONCLUSIVE."""

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
NEW_FILE = click.Path(dir_okay=False, path_type=Path)
NEW_FOLDER = click.Path(file_okay=False, path_type=Path)
COUNT = click.IntRange(min=1)

as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
jobs = click.option("--jobs", type=COUNT, metavar="N", help="Worker processes.  [default: one a core]")
slowest = click.option("--slowest", default=5, type=click.IntRange(min=0), metavar="N", help="Slowest cases to print.")
verbose = click.option("-v", "--verbose", is_flag=True, help="Print where each known failure shows, and its input.")
provider_path = click.option("--provider-path", type=FOLDER, help="A source checkout to import providers from.")


def command_line() -> str:
    """This command as it was typed, quoted for a shell."""
    return shlex.join(["dsa-verify", *sys.argv[1:]])


def head(seconds: float, provenance: Mapping[str, object]) -> dict[str, Any]:
    """What every JSON document begins with."""
    return {
        "schema": SCHEMA,
        "command": command_line(),
        "seconds": round(seconds, 3),
        "provenance": dict(provenance),
    }


def print_json(document: Mapping[str, object]) -> None:
    """Print one document; a value that is no JSON (NaN, infinity) is a fault."""
    click.echo(json.dumps(document, allow_nan=False, indent=1))


def note(text: str) -> None:
    """Say something beside the result, on stderr."""
    click.echo(f"dsa-verify: {text}", err=True)


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send what Python code, native code and child processes print to stderr."""
    sys.stdout.flush()
    kept = None
    with suppress(OSError):
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)
