"""A parity run as one HTML page: no script, no other file, no colour needed; the words and numbers of the terminal."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from dsa_verify.batch.table import FAMILIES
from dsa_verify.contract import SURFACES
from dsa_verify.evidence import Result
from dsa_verify.report import heatmap, overview, summary, templates
from dsa_verify.report import history as histories
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.parts import PARTS, PageSection
from dsa_verify.report.rejections import Rejection, falls_of, rejections
from dsa_verify.run.known_failures import stale_message

MOST = 300
"""Rejections that are spelled out; a browser on a phone still scrolls them, and the JSON document has all."""
DRAWN = 60
"""Of these, how many are drawn: the largest heatmap is some 100 KB of paths, and the first ones show the pattern."""


def page(outcome: Outcome, history: Path | None = None, parts: Sequence[PageSection] = ()) -> str:
    """The page. history: a file of `dsa_verify.report.history`, for since when; parts: what other commands found.

    Raises `ConfigError`.
    """
    rejected = list(rejections(outcome.results, falls_of(history)))
    broken = summary.broken(rejected, outcome.results)
    return templates.render(
        "dsa_verify.report",
        "page.html.j2",
        verdict=overview.VERDICTS[outcome.exit_code],
        counts=outcome.counts,
        cases=overview.cases(outcome.results),
        broken=broken[: summary.MOST],
        more_broken=max(0, len(broken) - summary.MOST),
        matrices=[_matrix(outcome, provider) for provider in dict.fromkeys(r.provider for r in outcome.results)],
        shares=overview.worst_shares(outcome.results),
        rejections=[(one, _drawing(one, at)) for at, one in enumerate(rejected[:MOST])],
        more=max(0, len(rejected) - MOST),
        stale=[stale_message(entry) for entry in outcome.stale],
        not_verified=overview.not_verified(outcome.results),
        known=overview.known_failure_kinds(outcome),
        history=history is not None,
        parts=parts,
        absent=[name for name in PARTS if name not in {part.name for part in parts}],
        provenance=histories.flat(outcome.provenance),
        command=outcome.command,
        seconds=outcome.seconds,
    )


def _drawing(one: Rejection, at: int) -> heatmap.Drawing | None:
    return None if one.heatmap is None or at >= DRAWN else heatmap.draw(one.heatmap)


def _matrix(outcome: Outcome, provider: str) -> dict[str, object]:
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in outcome.results:
        if result.provider == provider:
            by_place.setdefault((result.surface, overview.family(result.scenario)), []).append(result)
    surfaces = _known_first(SURFACES, (surface for surface, _ in by_place))
    families = _known_first(FAMILIES, (name for _, name in by_place))
    rows = [
        (surface, [overview.cell(by_place.get((surface, name), ())) for name in families],
         overview.cell(r for name in families for r in by_place.get((surface, name), ())))
        for surface in surfaces
    ]  # fmt: skip
    return {"provider": provider, "families": families, "rows": rows}


def _known_first(order: Iterable[str], names: Iterable[str]) -> list[str]:
    there = dict.fromkeys(names)
    return [*(name for name in order if name in there), *(name for name in there if name not in set(order))]
