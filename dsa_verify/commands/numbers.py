"""An option type of the command line: several whole numbers, separated by commas."""

import click


class Numbers(click.ParamType):
    """Whole numbers, separated by commas, none below `least` and none twice."""

    name = "numbers"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(
        self, value: str | tuple[int, ...], param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdigit() and int(part) >= self.least for part in parts):
            self.fail(f"{value!r} is no list of whole numbers from {self.least} up, as in 16,32", param, ctx)
        return tuple(sorted({int(part) for part in parts}))
