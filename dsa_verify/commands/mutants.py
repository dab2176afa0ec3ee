"""`dsa-verify mutants`: break kernels, and the system around them, on purpose and show which check notices."""

import random
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsa_verify.commands import output
from dsa_verify.errors import Exit

if TYPE_CHECKING:  # imported late, so that --help is fast
    from rich.table import Table

    from dsa_verify.mutants.campaign import MutantResult
    from dsa_verify.mutants.registry import AnyMutant
    from dsa_verify.mutants.score import Score

_KINDS = click.Choice(["handwritten", "systematic", "all"])


@dataclass(frozen=True)
class MutantsOptions:
    """What `dsa-verify mutants` was asked to run."""

    kind: str
    surface: tuple[str, ...]
    mutant: tuple[str, ...]
    tier: str
    jobs: int | None
    sample: int | None
    seed: int
    cache: Path | None


@click.command("mutants")
@click.option("--kind", type=_KINDS, default="handwritten", show_default=True, help="Which mutants to try.")
@click.option(
    "--surface", multiple=True, metavar="NAME", help="Only mutants that this surface, or part of the system, shows."
)
@click.option("--mutant", multiple=True, metavar="GLOB", help="Only mutants of this name.")
@click.option("--tier", default="quick", metavar="quick|full", help="Scenarios that may kill.  [default: quick]")
@output.jobs
@click.option("--sample", type=click.IntRange(min=1), metavar="N", help="Try N systematic mutants drawn at random.")
@click.option("--seed", default=0, metavar="S", help="Seed of --sample.  [default: 0]")
@click.option(
    "--cache",
    type=output.NEW_FOLDER,
    default=Path(".dsa-verify-cache/mutants"),
    show_default=True,
    help="Where results are kept.",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor keep results.")
@output.as_json
def mutants(as_json: bool, no_cache: bool, cache: Path, **given: Any) -> None:
    """Break kernels, and the system around them, on purpose; every broken one must be rejected.

    A survivor that mutants/equivalent.toml does not explain, and fewer than 95 % of the systematic ones killed, fail.
    A run that is interrupted goes on where it stopped.
    """

    start = time.perf_counter()
    with output.stdout_to_stderr():
        score, provenance = _campaign(MutantsOptions(cache=None if no_cache else cache, **given))
    seconds = time.perf_counter() - start
    if as_json:
        output.print_json({**output.head(seconds, provenance), **score.document()})
    else:
        _print(score, seconds)
    sys.exit(Exit.ACCEPTED if score.accepted else Exit.REJECTED)


def _campaign(options: MutantsOptions) -> "tuple[Score, dict[str, object]]":
    """Choose, run and score; the provenance beside it. Raises `DsaVerifyError`."""
    from dsa_verify.errors import ConfigError
    from dsa_verify.mutants import campaign, registry, score
    from dsa_verify.mutants.system import PROVIDER
    from dsa_verify.mutants.systematic import systematic_mutants
    from dsa_verify.run import suite

    handwritten = _chosen(registry.HANDWRITTEN.values(), options) if options.kind != "systematic" else []
    systematic = _chosen(systematic_mutants().values(), options) if options.kind != "handwritten" else []
    if options.sample is not None and options.sample < len(systematic):
        drawn = set(random.Random(options.seed).sample([mutant.name for mutant in systematic], options.sample))
        systematic = [mutant for mutant in systematic if mutant.name in drawn]
    chosen = [*handwritten, *systematic]
    if not chosen:
        raise ConfigError("no mutant matches; names stand in the tables of dsa_verify/mutants")
    explained = score.explanations()
    provenance = suite.provenance(sorted({mutant.provider for mutant in chosen} - {PROVIDER}))
    report = _Progress(len(chosen))
    results = campaign.run(chosen, options.tier, options.jobs, options.cache, report, explained)
    split = len(handwritten)
    return score.Score(results[:split], results[split:], explained, registry.all_mutants().keys()), provenance


def _chosen(mutants: "Iterable[AnyMutant]", options: MutantsOptions) -> "list[AnyMutant]":
    from fnmatch import fnmatchcase

    from dsa_verify.contract import surface_named
    from dsa_verify.mutants.system import SURFACES

    surfaces = {name if name in SURFACES else surface_named(name).name for name in options.surface}
    return [
        mutant
        for mutant in mutants
        if (not surfaces or surfaces & set(mutant.surfaces))
        and (not options.mutant or any(mutant.name == g or fnmatchcase(mutant.name, g) for g in options.mutant))
    ]


class _Progress:
    """Called with each result: one line on stderr for every survivor, and every 25 mutants."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.survived = total, 0, 0

    def __call__(self, result: "MutantResult") -> None:
        self.done += 1
        if not result.killed:
            self.survived += 1
            click.echo(f"survived: {result.name}", err=True)
        if self.done % 25 == 0 or self.done == self.total:
            click.echo(f"{self.done} of {self.total} mutants, {self.survived} survived", err=True)


def _print(score: "Score", seconds: float) -> None:
    from rich.text import Text

    from dsa_verify.report.terminal import stdout

    console = stdout()
    if score.handwritten:
        console.print(_handwritten_table(score.handwritten))
    if score.systematic:
        console.print(_systematic_table(score))
    for result in score.equivalent:
        console.print(Text(f"equivalent: {result.name}\n            {score.explained[result.name]}"), soft_wrap=True)
    for result in score.survivors:
        console.print(Text(f"survived: {result.name}", style="bold red"), soft_wrap=True)
    for line in score.stale:
        console.print(Text(f"stale explanation: {line}", style="bold red"), soft_wrap=True)
    console.print(Text(_last_line(score, seconds), style="green" if score.accepted else "bold red"), soft_wrap=True)


def _handwritten_table(results: "Sequence[MutantResult]") -> "Table":
    """Kind x mutant x what killed it."""
    from rich import box
    from rich.table import Table

    from dsa_verify.mutants.kinds import title

    table = Table("kind", box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("mutant", "killed by", "cheapest scenario"):
        table.add_column(heading, overflow="fold")  # names are there to be copied
    for result in sorted(results, key=lambda result: result.kind):
        place = f"{result.provider} {result.surface}\n{result.scenario or ''}"
        table.add_row(title(result.kind), result.name, ", ".join(result.killed_by) or "NOTHING", place)
    return table


def _systematic_table(score: "Score") -> "Table":
    """Operator x how many were killed, and by what."""
    from collections import Counter

    from rich import box
    from rich.table import Table

    table = Table("operator", "killed", "equivalent", "survived", "killed by", box=box.SIMPLE_HEAD, pad_edge=False)
    for kind in dict.fromkeys(result.kind for result in score.systematic):
        results = [result for result in score.systematic if result.kind == kind]
        killers = Counter(result.killed_by[0] for result in results if result.killed)
        by = ", ".join(f"{check} {count}" for check, count in killers.most_common())
        counts = [sum(killers.values())] + [sum(r in g for r in results) for g in (score.equivalent, score.survivors)]
        table.add_row(kind, *map(str, counts), by)
    return table


def _last_line(score: "Score", seconds: float) -> str:
    parts = []
    if score.handwritten:
        parts.append(f"handwritten {score.killed_handwritten} of {len(score.handwritten)} killed")
    if score.systematic:
        parts.append(
            f"systematic {score.killed_systematic} of {len(score.systematic)} killed ({score.share:.1%}), "
            f"{len(score.equivalent)} survivors explained, {len(score.survivors)} not"
        )
    return f"{'accepted' if score.accepted else 'rejected'}: {'; '.join(parts)} in {seconds:.0f} s"
