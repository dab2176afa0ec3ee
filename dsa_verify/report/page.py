"""A parity run as one HTML page: no script, no other file, no colour needed; the words and numbers of the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ConfigError, Exit
from dsa_verify.evidence import Result
from dsa_verify.report import heatmap, summary
from dsa_verify.report import history as histories
from dsa_verify.report.outcome import STATUSES, Outcome
from dsa_verify.report.parts import PARTS, PageSection
from dsa_verify.report.rejections import Rejection, rejections, since
from dsa_verify.run.known_failures import stale_message

MOST = 300
"""Rejections that are spelled out; a browser on a phone still scrolls them, and the JSON document has all."""
DRAWN = 60
"""Of these, how many are drawn: the largest heatmap is some 100 KB of paths, and the first ones show the pattern."""
SAID = {
    Exit.ACCEPTED: "accepted",
    Exit.REJECTED: "rejected",
    Exit.BROKE: "the suite broke",
    Exit.NOTHING_VERIFIED: "nothing was verified",
}


@dataclass(frozen=True)
class Cell:
    """Some checks together: the worst of their verdicts, how many of each, and the largest share of a budget."""

    status: str
    counts: str
    share: float | None


@dataclass(frozen=True)
class Share:
    """The largest share of the error budget that a check used on a surface, and where."""

    provider: str
    surface: str
    check: str
    scenario: str
    share: float


def require() -> None:
    """Raises `ConfigError` where the template engine is not installed."""
    if find_spec("jinja2") is None:
        raise ConfigError("a page needs the package jinja2; pip install 'dsa-verify[gate]'")


def page(outcome: Outcome, history: Path | None = None, parts: Sequence[PageSection] = ()) -> str:
    """The page. history: a file of `dsa_verify.report.history`, for since when; parts: what other commands found.

    Raises `ConfigError`.
    """
    require()
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("dsa_verify.report", ".")
    pages = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pages.filters["share"] = lambda share: f"{share:.2f}" if 0.005 <= share < 100 else f"{share:.1e}" if share else "0"
    rejected = list(rejections(outcome.results, since(history)))
    broken = summary.broken(rejected, outcome.results)
    return pages.get_template("page.html.j2").render(
        verdict=SAID[outcome.exit_code],
        counts=outcome.counts,
        cases=len({(result.provider, result.surface, result.scenario) for result in outcome.results}),
        broken=broken[: summary.MOST],
        more_broken=max(0, len(broken) - summary.MOST),
        matrices=[_matrix(outcome, provider) for provider in dict.fromkeys(r.provider for r in outcome.results)],
        shares=_shares(outcome.results),
        rejections=[(one, _drawing(one, at)) for at, one in enumerate(rejected[:MOST])],
        more=max(0, len(rejected) - MOST),
        stale=[stale_message(entry) for entry in outcome.stale],
        not_verified=not_verified(outcome.results),
        known=[(entry, results, results[0].found) for entry, results in outcome.known.items()],
        history=history is not None,
        parts=parts,
        absent=[name for name in PARTS if name not in {part.name for part in parts}],
        provenance=histories.flat(outcome.provenance),
        command=outcome.command,
        seconds=outcome.seconds,
    )


def _drawing(one: Rejection, at: int) -> heatmap.Drawing | None:
    return None if one.heatmap is None or at >= DRAWN else heatmap.draw(one.heatmap)


def family(scenario: str) -> str:
    """Of a name of the table, or of a soak; of another version's scenarios, their first word."""
    try:
        return SCENARIOS[scenario].family
    except (KeyError, ConfigError):
        return scenario.partition("-")[0]


def cell(results: Iterable[Result]) -> Cell | None:
    """Checks as accepted/rejected/not verified; None if there are none."""
    results = list(results)
    count = Counter(result.verdict.status for result in results)
    if not results:
        return None
    shares = [result.verdict.share for result in results if result.verdict.share is not None]
    worst = next(status for status in ("rejected", "not verified", "accepted") if count[status])
    return Cell(worst, "/".join(str(count[status]) for status in STATUSES), max(shares, default=None))


def _matrix(outcome: Outcome, provider: str) -> dict[str, object]:
    by_place: dict[tuple[str, str], list[Result]] = {}
    for result in outcome.results:
        if result.provider == provider:
            by_place.setdefault((result.surface, family(result.scenario)), []).append(result)
    surfaces = _known_first(SURFACES, (surface for surface, _ in by_place))
    families = _known_first(FAMILIES, (name for _, name in by_place))
    rows = [
        (surface, [cell(by_place.get((surface, name), ())) for name in families],
         cell(r for name in families for r in by_place.get((surface, name), ())))
        for surface in surfaces
    ]  # fmt: skip
    return {"provider": provider, "families": families, "rows": rows}


def _known_first(order: Iterable[str], found: Iterable[str]) -> list[str]:
    there = dict.fromkeys(found)
    return [*(name for name in order if name in there), *(name for name in there if name not in set(order))]


def _shares(results: Sequence[Result]) -> list[Share]:
    worst: dict[tuple[str, str, str], Share] = {}
    for result in results:
        key, share = (result.provider, result.surface, result.check), result.verdict.share
        if share is not None and (key not in worst or share > worst[key].share):
            worst[key] = Share(*key, result.scenario, share)
    return sorted(worst.values(), key=lambda one: -one.share)


def not_verified(results: Sequence[Result]) -> list[tuple[str, int, str]]:
    """Reason, how many checks, and where; the most frequent first."""
    reasons: dict[str, list[Result]] = {}
    for result in results:
        if result.verdict.status == "not verified" and result.known is None:
            reasons.setdefault(result.verdict.reason, []).append(result)
    places = {
        reason: ", ".join(dict.fromkeys(f"{one.provider} {one.surface}" for one in some))
        for reason, some in reasons.items()
    }
    return sorted(((reason, len(some), places[reason]) for reason, some in reasons.items()), key=lambda row: -row[1])
