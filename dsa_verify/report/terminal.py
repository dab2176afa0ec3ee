"""A parity run for a reader: summary table, rejections in full, what was not verified and why, known failures, time."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import Exit
from dsa_verify.evidence import Result
from dsa_verify.report.outcome import STATUSES, Outcome
from dsa_verify.run.known_failures import stale_message
from dsa_verify.run.suite import Case

PIPE_WIDTH = 120
"""Columns where stdout is not a terminal and COLUMNS says nothing."""

_STYLES = {"accepted": "green", "rejected": "bold red", "not verified": "yellow"}
_VERDICTS = {
    Exit.ACCEPTED: "accepted",
    Exit.REJECTED: "rejected",
    Exit.BROKE: "the suite broke",
    Exit.NOTHING_VERIFIED: "nothing was verified",
}


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


def print_outcome(outcome: Outcome, slowest: int) -> None:
    """Print a run to stdout; every reproduction command stands alone on its line, unwrapped."""
    console = stdout()
    for provider in dict.fromkeys(result.provider for result in outcome.results):
        console.print(Text(f"provider {provider}", style="bold"), soft_wrap=True)
        console.print(_table([r for r in outcome.results if r.provider == provider]))
    console.print(
        "cells: accepted/rejected/not verified checks, then the worst share of the error budget used\n", soft_wrap=True
    )
    for lines in (_rejections(outcome), _not_verified(outcome), _known(outcome), _slowest(outcome, slowest)):
        for line in lines:
            console.print(line, soft_wrap=True)
    console.print(_last_line(outcome), soft_wrap=True)


def _table(results: Sequence[Result]) -> Table:
    surfaces = [name for name in SURFACES if any(result.surface == name for result in results)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("family")
    for surface in surfaces:
        table.add_column(surface.replace("_", "\n"), vertical="bottom")
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in results:
        by_place.setdefault((SCENARIOS[result.scenario].family, result.surface), []).append(result)
    for family in dict.fromkeys((*FAMILIES, *(family for family, _ in by_place))):
        cells = [by_place.get((family, surface), []) for surface in surfaces]
        if any(cells):
            table.add_row(family, *map(_cell, cells))
    table.add_section()
    table.add_row("all", *(_cell([r for r in results if r.surface == surface]) for surface in surfaces))
    return table


def _cell(results: Sequence[Result]) -> Text:
    if not results:
        return Text("")
    count = Counter(result.verdict.status for result in results)
    shares = [result.verdict.share for result in results if result.verdict.share is not None]
    worst = f" {max(shares):.2f}" if shares else ""
    status = next(status for status in ("rejected", "not verified", "accepted") if count[status])
    return Text("/".join(str(count[status]) for status in STATUSES) + worst, style=_STYLES[status])


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
    reasons: dict[str, list[Result]] = {}
    for result in outcome.results:
        if result.verdict.status == "not verified" and result.known is None:
            reasons.setdefault(result.verdict.reason, []).append(result)
    if reasons:
        yield Text("not verified, and why", style="bold")
    for reason, results in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield Text(f"{len(results):6}  {reason} ({_places(results)})")
    if reasons:
        yield Text("")


def _known(outcome: Outcome) -> Iterator[Text]:
    if outcome.known:
        yield Text("known failures (rejections; --no-known-failures judges them as such)", style="bold")
    for entry, results in outcome.known.items():
        yield Text(f"{len(results):6}  {entry.id}: {entry.reason} ({_places(results)})")
        yield Text(f"        smallest input: {entry.smallest}")
        yield Text(f"        found: {results[0].found}")
        if entry.link:
            yield Text(f"        {entry.link}")
    if outcome.known:
        yield Text("")


def _places(results: Iterable[Result]) -> str:
    return ", ".join(dict.fromkeys(f"{result.provider} {result.surface}" for result in results))


def _slowest(outcome: Outcome, count: int) -> Iterator[Text]:
    seconds: Counter[tuple[str, str, str]] = Counter()
    for result in outcome.results:
        seconds[result.provider, result.surface, result.scenario] += result.seconds  # pyright: ignore[reportArgumentType]
    yield Text("slowest cases (the first of a shape compiles)", style="bold")
    for place, spent in seconds.most_common(count):
        yield Text(f"{spent:7.1f} s  {' '.join(place)}")
    yield Text("")


def _last_line(outcome: Outcome) -> Text:
    counts = ", ".join(f"{count} {status}" for status, count in outcome.counts.items())
    cases = len({(result.provider, result.surface, result.scenario) for result in outcome.results})
    code = outcome.exit_code
    style = _STYLES["accepted" if code is Exit.ACCEPTED else "rejected"]
    return Text(
        f"{_VERDICTS[code]}: {counts} checks of {cases} case{'s' * (cases != 1)} in {outcome.seconds:.1f} s",
        style=style,
    )
