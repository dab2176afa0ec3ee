"""A parity run for a reader: summary table, rejections in full, what was not verified and why, known failures, time."""

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dsa_verify.batch.table import FAMILIES
from dsa_verify.contract import SURFACES
from dsa_verify.errors import Exit
from dsa_verify.evidence import Result
from dsa_verify.report import overview
from dsa_verify.report.outcome import Outcome
from dsa_verify.run.known_failures import stale_message
from dsa_verify.run.suite import Case

PIPE_WIDTH = 120
"""Columns where stdout is not a terminal and COLUMNS says nothing."""

_EDGES, _GAP = 3, 2
"""Columns of the screen that a table takes beside its first column, and beside each other one."""
_STYLES = {"accepted": "green", "rejected": "bold red", "not verified": "yellow"}


def stdout() -> Console:
    """A console on what stdout is now."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(file=sys.stdout, width=wide, highlight=False)


@contextmanager
def progress(total: int) -> Iterator[Callable[[Case, tuple[Result, ...]], None]]:
    """A live bar on stderr, if it is a terminal; yields what to call with each case that is done."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rejected = 0
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("parity", total=total)

        def done(case: Case, results: tuple[Result, ...]) -> None:
            nonlocal rejected
            rejected += any(result.verdict.status == "rejected" for result in results)
            described = f"{case.provider} {case.surface}" + (f", {rejected} cases rejected" if rejected else "")
            bar.update(task, advance=1, description=described)

        yield done


def print_outcome(outcome: Outcome, slowest: int, *, verbose: bool = False) -> None:
    """Print a run to stdout; every reproduction command stands alone on its line, unwrapped.

    verbose: each known failure with its smallest input, not only each kind of them.
    """
    console = stdout()
    for provider in dict.fromkeys(result.provider for result in outcome.results):
        console.print(Text(f"provider {provider}", style="bold"), soft_wrap=True)
        for table in _tables([r for r in outcome.results if r.provider == provider], console.width):
            console.print(table)
    console.print(
        "cells: accepted/rejected/not verified checks, then the worst share of an error budget used\n", soft_wrap=True
    )
    for lines in (_rejections(outcome), _not_verified(outcome), _known(outcome, verbose), _slowest(outcome, slowest)):
        for line in lines:
            console.print(line, soft_wrap=True)
    console.print(_last_line(outcome), soft_wrap=True)


def _tables(results: Sequence[Result], width: int) -> Iterator[Table]:
    """Families by surfaces; as many tables as it takes to break no word and no number on a screen of this width."""
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_place.setdefault((overview.family(result.scenario), result.surface), []).append(result)
    families = list(dict.fromkeys((*FAMILIES, *(family for family, _ in by_place))))
    families = [name for name in families if any(family == name for family, _ in by_place)]
    columns = {
        surface: [
            *(_cell(by_place.get((family, surface), [])) for family in families),
            _cell([result for result in results if result.surface == surface]),
        ]
        for surface in SURFACES
        if any(result.surface == surface for result in results)
    }
    for surfaces in _fitting(columns, width - max(map(len, ("family", *families))) - _EDGES):
        yield _table(families, {surface: columns[surface] for surface in surfaces})


def _fitting(columns: Mapping[str, Sequence[Text]], room: int) -> Iterator[list[str]]:
    """The columns in groups that fit into this many characters."""
    group: list[str] = []
    used = 0
    for name, cells in columns.items():
        width = max(*map(len, name.split("_")), *(len(cell) for cell in cells)) + _GAP
        if group and used + width > room:
            yield group
            group, used = [], 0
        group.append(name)
        used += width
    if group:
        yield group


def _table(families: Sequence[str], columns: Mapping[str, Sequence[Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("family", no_wrap=True, vertical="bottom")
    for surface in columns:
        table.add_column(surface.replace("_", "\n"), no_wrap=True, vertical="bottom")
    for family, *cells in zip(families, *columns.values(), strict=False):
        table.add_row(family, *cells)
    table.add_section()
    table.add_row("all", *(cells[-1] for cells in columns.values()))
    return table


def _cell(results: Sequence[Result]) -> Text:
    found = overview.cell(results)
    if found is None:
        return Text("")
    share = "" if found.share is None else f" {found.share:.2f}"
    return Text(f"{found.counts}{share}", style=_STYLES[found.status])


def _rejections(outcome: Outcome) -> Iterator[Text]:
    """Each rejection once a case: checks that reject with the same words share a paragraph."""
    grouped: dict[tuple[str, str, str, str], list[Result]] = {}
    for result in outcome.results:
        if result.verdict.status == "rejected":
            place = (result.provider, result.surface, result.scenario, result.verdict.reason)
            grouped.setdefault(place, []).append(result)
    for (provider, surface, scenario, reason), results in grouped.items():
        checks = ", ".join(result.check for result in results)
        yield Text(f"REJECTED {provider} {surface} {scenario}: {checks}", style=_STYLES["rejected"])
        yield Text(f"  {reason}")
        yield Text("  reproduce with")
        yield Text(f"{results[0].reproduce}\n")
    for entry in outcome.stale:
        yield Text(f"REJECTED {stale_message(entry)}\n", style=_STYLES["rejected"])


def _not_verified(outcome: Outcome) -> Iterator[Text]:
    if reasons := overview.not_verified(outcome.results):
        yield Text("not verified, and why", style="bold")
        yield from (Text(f"{one.count:6}  {one.reason} ({one.places})") for one in reasons)
        yield Text("")


def _known(outcome: Outcome, verbose: bool) -> Iterator[Text]:
    kinds = overview.known_failure_kinds(outcome)
    if not kinds:
        return
    more = "" if verbose else ", -v says where each shows"
    yield Text(f"known failures (--no-known-failures judges them as rejections{more})", style="bold")
    for kind in kinds:
        yield Text(f"{kind.count:6}  {kind.reason} ({kind.provider} {', '.join(kind.surfaces)})")
        if verbose:
            yield from _details(kind)
    yield Text("")


def _details(kind: overview.KnownFailureKind) -> Iterator[Text]:
    for smallest in kind.smallest:
        yield Text(f"        smallest input: {smallest}")
    for link in kind.links:
        yield Text(f"        {link}")
    for entry, results in kind.entries:
        yield Text(f"{len(results):12}  {entry.id}")
        yield Text(f"              found: {results[0].found}")


def _slowest(outcome: Outcome, count: int) -> Iterator[Text]:
    if not count:
        return
    seconds: dict[tuple[str, str, str], float] = defaultdict(float)
    for result in outcome.results:
        seconds[result.provider, result.surface, result.scenario] += result.seconds
    yield Text("slowest cases (the first of a shape compiles)", style="bold")
    for place, spent in sorted(seconds.items(), key=lambda item: -item[1])[:count]:
        yield Text(f"{spent:7.1f} s  {' '.join(place)}")
    yield Text("")


def _last_line(outcome: Outcome) -> Text:
    counts = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
    known = sum(map(len, outcome.known.values()))
    forgiven = f" ({known} known failure{'s' * (known != 1)})" if known else ""
    cases = overview.cases(outcome.results)
    code = outcome.exit_code
    style = _STYLES["accepted" if code is Exit.ACCEPTED else "rejected"]
    return Text(
        f"{overview.VERDICTS[code]}: {counts}{forgiven} checks of {cases} case{'s' * (cases != 1)} in "
        f"{outcome.seconds:.1f} s",
        style=style,
    )
