"""`dsa-verify gate plan` and `gate operating`: what a gate can show before it runs, and what its rule does."""

from pathlib import Path
from typing import Any

import click

from dsa_verify.gates.statistics.rule import Rule

SD = 0.25
"""Of a document's paired difference: scores of 0 or 1 of which 6.25 % differ."""
_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_COUNT = click.IntRange(min=1)


@click.command("plan")
@click.option(
    "--documents", type=_COUNT, multiple=True, metavar="N", default=(25, 50, 100, 200, 500), show_default=True,
    help="A task; repeatable.",
)  # fmt: skip
@click.option("--sd", type=_SHARE, help=f"Of a document's paired difference.  [default: {SD:g}]")
@click.option("--between", type=_SHARE, help="Instead of --sd: SD of the true difference between documents.")
@click.option("--noise", type=_SHARE, help="With --between: SD of one arm's score from run to run.")
@click.option("--repeats", type=_COUNT, default=1, show_default=True, help="Of every document, with --noise.")
@click.option("--tasks", type=_COUNT, default=16, show_default=True, help="In the macro mean.")
@click.option("--group", type=_COUNT, default=3, show_default=True, help="Tasks in a group.")
@click.option("--task-margin", type=_SHARE, default=Rule.task_margin, show_default=True)
@click.option("--group-margin", type=_SHARE, default=Rule.group_margin, show_default=True)
@click.option("--macro-margin", type=_SHARE, default=Rule.macro_margin, show_default=True)
@click.option("--alpha", type=_SHARE, default=Rule.alpha, show_default=True, help="One-sided.")
@click.option("--power", type=_SHARE, default=Rule.power, show_default=True, help="At no true loss.")
def plan(documents: tuple[int, ...], tasks: int, group: int, alpha: float, power: float, **options: Any) -> None:
    """Margins that a number of documents can show, and documents that a margin needs."""
    from dsa_verify.gates.statistics.power import Study

    sd = _sd(*(options[name] for name in ("sd", "between", "noise", "repeats")))
    study = Study(tasks, group, alpha, power)
    click.echo(f"margins shown with power {power:g} at no true loss, one-sided {alpha:g}, SD {sd:.3g} a document")
    click.echo(f"{'documents':>9} {'task':>7} {f'group of {group}':>11} {f'macro of {tasks}':>12} {'every task':>11}")
    for number in documents:
        one, several, macro, each = (f"{margin:.3f}" for margin in study.row(sd, number))
        click.echo(f"{number:>9} {one:>7} {several:>11} {macro:>12} {each:>11}")
    click.echo("\ndocuments a task that show a margin")
    for name, size in (("task", 1), ("group", group), ("macro", tasks)):
        margin = options[f"{name}_margin"]
        click.echo(f"{name:>9} {margin:>7.3f} {study.documents(sd, margin, size):>11,}")


@click.command("operating")
@click.option("--simulations", type=_COUNT, default=2000, show_default=True, help="A row.")
@click.option("--seed", type=click.IntRange(min=0), default=Rule.seed, show_default=True)
@click.option("--markdown", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write it there too.")
def operating(simulations: int, seed: int, markdown: Path | None) -> None:
    """Simulate the whole rule under assumed truths; prints Markdown."""
    from dsa_verify.errors import ConfigError
    from dsa_verify.gates.statistics.operating import Simulations
    from dsa_verify.gates.statistics.operating_page import page

    text = page(Simulations(simulations, seed, lambda what: click.echo(f"gate operating: {what}", err=True)))
    click.echo(text, nl=False)
    if markdown:
        try:
            markdown.write_text(text, "utf-8")
        except OSError as error:
            raise ConfigError(f"cannot write {markdown}: {error}; give another file with --markdown") from error


def _sd(sd: float | None, between: float | None, noise: float | None, repeats: int) -> float:
    from dsa_verify.errors import ConfigError
    from dsa_verify.gates.statistics.power import paired_sd

    if between is None and noise is None:
        if repeats > 1:
            raise ConfigError("--repeats shrinks --noise alone; give --between and --noise instead of --sd")
        return SD if sd is None else sd
    if sd is not None or between is None or noise is None:
        raise ConfigError("give either --sd, or --between and --noise together")
    return paired_sd(between, noise, repeats)
