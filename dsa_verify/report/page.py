"""A parity run as one HTML page: no script, no other file, no colour needed; the words and numbers of the terminal."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result
from dsa_verify.kernels.contract import SURFACES
from dsa_verify.known import stale_message
from dsa_verify.report import history as histories
from dsa_verify.report import trend
from dsa_verify.report.outcome import STATUSES, Exit, Outcome

MOST = 300
"""Rejections that are spelled out; a browser on a phone still scrolls them, and the JSON document has all."""
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


@dataclass(frozen=True)
class Rejection:
    """A rejected case: checks that said the same of it, and since when."""

    provider: str
    surface: str
    scenario: str
    checks: str
    reason: str
    reproduce: str
    since: str


def require() -> None:
    """Raises `ConfigError` where the template engine is not installed."""
    if find_spec("jinja2") is None:
        raise ConfigError("a page needs the package jinja2; pip install 'dsa-verify[gate]'")


def page(outcome: Outcome, history: Path | None = None) -> str:
    """The page. history: a file of `dsa_verify.report.history`, for since when. Raises `ConfigError`."""
    require()
    from jinja2 import Environment, StrictUndefined

    text = (resources.files("dsa_verify.report") / "page.html.j2").read_text("utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True).from_string(text)
    rejected = list(rejections(outcome.results, since(history)))
    return template.render(
        verdict=SAID[outcome.exit_code],
        counts=outcome.counts,
        cases=len({(result.provider, result.surface, result.scenario) for result in outcome.results}),
        matrices=[_matrix(outcome, provider) for provider in dict.fromkeys(r.provider for r in outcome.results)],
        shares=_shares(outcome.results),
        rejections=rejected[:MOST],
        more=max(0, len(rejected) - MOST),
        stale=[stale_message(entry) for entry in outcome.stale],
        not_verified=not_verified(outcome.results),
        known=[(entry, results, results[0].extra.get("found", "")) for entry, results in outcome.known.items()],
        history=history is not None,
        provenance=histories.flat(outcome.provenance),
        command=outcome.command,
        seconds=outcome.seconds,
    )


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


def since(history: Path | None) -> dict[histories.Place, trend.Fall]:
    """What the history says of each check that its last run rejected; nothing without a history."""
    if history is None:
        return {}
    return {line[0]: one for line in histories.lines(history) if (one := trend.fall(line))}


def rejections(results: Sequence[Result], falls: dict[histories.Place, trend.Fall]) -> Iterable[Rejection]:
    """Each once a case: checks that reject with the same words and since the same run stand together."""
    grouped: dict[tuple[str, ...], list[Result]] = {}
    for one in results:
        if one.verdict.status == "rejected":
            told = _words(falls.get(histories.Place(one.provider, one.surface, one.scenario, one.check)))
            key = (one.provider, one.surface, one.scenario, one.verdict.reason, told)
            grouped.setdefault(key, []).append(one)
    for (provider, surface, scenario, reason, told), some in grouped.items():
        checks = ", ".join(one.check for one in some)
        yield Rejection(provider, surface, scenario, checks, reason, some[0].reproduce, told)


def _words(fall: trend.Fall | None) -> str:
    if fall is None:
        return "new: the last run of the history does not reject it"
    good = f"last accepted in {fall.last_good}" if fall.last_good else "never accepted in the history"
    return f"rejected since {fall.first_bad}; {good}"


def not_verified(results: Sequence[Result]) -> list[tuple[str, int, str]]:
    """Reason, how many checks, and where; the most frequent first."""
    reasons: dict[str, list[Result]] = {}
    for result in results:
        if result.verdict.status == "not verified" and "known" not in result.extra:
            reasons.setdefault(result.verdict.reason, []).append(result)
    places = {
        reason: ", ".join(dict.fromkeys(f"{one.provider} {one.surface}" for one in some))
        for reason, some in reasons.items()
    }
    return sorted(((reason, len(some), places[reason]) for reason, some in reasons.items()), key=lambda row: -row[1])
