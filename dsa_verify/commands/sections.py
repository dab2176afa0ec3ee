"""Help in sections: a command with many options shows them under titles, each section with an example to copy."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class HelpSection:
    """Options that belong together. example: a whole command line that uses some of them."""

    title: str
    example: str

    def __call__(self, *names: str, **settings: Any) -> Callable[[F], F]:
        """As `click.option`, for an option of this section."""
        return click.option(*names, cls=SectionOption, section=self, **settings)


class SectionOption(click.Option):
    """An option that knows its section."""

    def __init__(self, *arguments: Any, section: HelpSection, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.section = section


class SectionedGroup(click.Group):
    """A command, perhaps with commands below it, whose help shows options in sections, in the order of their first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows: dict[HelpSection | None, list[tuple[str, str]]] = {}
        for one in self.get_params(ctx):
            if (row := one.get_help_record(ctx)) is not None:
                rows.setdefault(one.section if isinstance(one, SectionOption) else None, []).append(row)
        for section, some in rows.items():
            with formatter.section(section.title if section else "Options"):
                formatter.write_dl(some)
                if section:  # never wrapped, so that it can be copied
                    formatter.write(f"{'':{formatter.current_indent}}$ {section.example}\n")
        self.format_commands(ctx, formatter)
