"""docs/cli.md, made from `--help` of every command; run as a module to refresh it."""

from collections.abc import Iterator
from pathlib import Path

import click

from dsa_verify.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
HEAD = """# Command line

Made from the help texts by `python -m tests.repo.cli_docs`; do not edit. stdout is the result, stderr the rest;
`--json` prints one document with a schema number.
"""
WIDTH = 100


def commands(command: click.Command = main, above: tuple[str, ...] = ("dsa-verify",)) -> Iterator[tuple[str, str]]:
    """Name and help text of a command and of all below it, groups before their members."""
    # Whatever the terminal that it is made in, the page is the same.
    context = click.Context(command, info_name=" ".join(above), terminal_width=WIDTH, **main.context_settings)
    yield " ".join(above), command.get_help(context)
    if isinstance(command, click.Group):
        for name, member in sorted(command.commands.items()):
            yield from commands(member, (*above, name))


def page() -> str:
    """The whole page."""
    return HEAD + "".join(f"\n## {name}\n\n```\n{text.rstrip()}\n```\n" for name, text in commands())


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
