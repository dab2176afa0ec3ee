"""docs/cli.md is what `--help` says today, of every command that there is."""

import os
import subprocess
import sys

import click
import pytest

from dsa_verify.cli import main
from tests.repo.cli_docs import PAGE, commands


@pytest.mark.parametrize("columns", ["40", "300"])
def test_the_page_is_what_help_says_whatever_the_terminal(columns):
    # In a process of its own: click keeps what another test has asked a command for.
    code = "from tests.repo.cli_docs import page; print(page(), end='')"
    environment = {**os.environ, "COLUMNS": columns, "PYTHONIOENCODING": "utf-8"}
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=PAGE.parents[1], env=environment, capture_output=True, check=True
    ).stdout.decode()
    assert PAGE.read_text("utf-8") == made, "docs/cli.md is stale; refresh it with: python -m tests.repo.cli_docs"


def test_no_command_is_left_out():
    names = {name for name, _ in commands()}
    assert {f"dsa-verify {name}" for name in main.commands} <= names
    assert {"dsa-verify report merge", "dsa-verify golden check"} <= names


def test_every_command_says_what_it_does_and_every_option_too():
    silent = []
    for name, command in _all(main, "dsa-verify"):
        silent += [] if command.help else [name]
        silent += [
            f"{name} {option.opts[0]}"
            for option in command.params
            if isinstance(option, click.Option) and not (option.help or option.show_default or option.hidden)
        ]
    assert silent == []


def _all(command: click.Command, name: str):
    yield name, command
    for below, member in getattr(command, "commands", {}).items():
        yield from _all(member, f"{name} {below}")
