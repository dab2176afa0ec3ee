"""The rejections of a run, each once a case, with since when the history knows of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsa_verify.evidence import Heatmap, Result
from dsa_verify.report import history as histories
from dsa_verify.report import trend


@dataclass(frozen=True)
class Rejection:
    """A rejected case: checks that reject it in the same words, since when, and where it lies if it can be shown."""

    provider: str
    surface: str
    scenario: str
    checks: str
    reason: str
    reproduce: str
    since: str
    heatmap: Heatmap | None = None


def falls_of(history: Path | None) -> dict[histories.CheckPlace, trend.Fall]:
    """What the history says of each check that its last run rejected; nothing without a history."""
    if history is None:
        return {}
    return {line[0]: one for line in histories.lines(history) if (one := trend.fall(line))}


def rejections(results: Sequence[Result], falls: dict[histories.CheckPlace, trend.Fall]) -> Iterable[Rejection]:
    """Each once a case: checks that reject with the same words and since the same run stand together."""
    grouped: dict[tuple[str, ...], list[Result]] = {}
    for one in results:
        if one.verdict.status == "rejected":
            fall = falls.get(histories.CheckPlace(one.provider, one.surface, one.scenario, one.check))
            key = (one.provider, one.surface, one.scenario, one.verdict.reason, _since_when(fall))
            grouped.setdefault(key, []).append(one)
    for (provider, surface, scenario, reason, since_when), some in grouped.items():
        checks = ", ".join(one.check for one in some)
        heatmap = next((one.verdict.heatmap for one in some if one.verdict.heatmap is not None), None)
        yield Rejection(provider, surface, scenario, checks, reason, some[0].reproduce, since_when, heatmap)


def _since_when(fall: trend.Fall | None) -> str:
    if fall is None:
        return "new: the last run of the history does not reject it"
    good = f"last accepted in {fall.last_good}" if fall.last_good else "never accepted in the history"
    return f"rejected since {fall.first_bad}; {good}"
