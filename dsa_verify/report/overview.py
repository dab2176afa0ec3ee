"""Numbers and words of a run that terminal, page and Markdown share: counts, shares, reasons, known failures."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import ERROR_BUDGET, share_of
from dsa_verify.errors import ConfigError, Exit
from dsa_verify.evidence import KnownFailure, Result
from dsa_verify.report.outcome import STATUSES, Outcome

VERDICTS = {
    Exit.ACCEPTED: "accepted",
    Exit.REJECTED: "rejected",
    Exit.BROKE: "the suite broke",
    Exit.NOTHING_VERIFIED: "nothing was verified",
}
"""The verdict on a run, by its exit code."""


@dataclass(frozen=True)
class Cell:
    """Some checks together: the worst of their verdicts, how many of each, and the largest share of an error budget."""

    status: str
    counts: str
    share: float | None


@dataclass(frozen=True)
class WorstShare:
    """The largest share that a check used on a surface, and where. of: what it is a share of."""

    provider: str
    surface: str
    check: str
    scenario: str
    share: float
    of: str


@dataclass(frozen=True)
class UnverifiedReason:
    """Why checks were not verified, how many, and on which surfaces of which providers."""

    reason: str
    count: int
    places: str


@dataclass(frozen=True)
class KnownFailureKind:
    """What is wrong with a provider, for one reason: the rejections that each entry with this reason accounts for."""

    provider: str
    surfaces: tuple[str, ...]
    reason: str
    entries: tuple[tuple[KnownFailure, tuple[Result, ...]], ...]

    @property
    def count(self) -> int:
        return sum(len(results) for _, results in self.entries)

    @property
    def smallest(self) -> tuple[str, ...]:
        """The smallest inputs that show it, each once."""
        return tuple(dict.fromkeys(entry.smallest for entry, _ in self.entries))

    @property
    def links(self) -> tuple[str, ...]:
        """Where it was reported, if it was."""
        return tuple(dict.fromkeys(entry.link for entry, _ in self.entries if entry.link))


def family(scenario: str) -> str:
    """Of a name of the table, or of a soak; of another version's scenarios, their first word."""
    try:
        return SCENARIOS[scenario].family
    except (KeyError, ConfigError):
        return scenario.partition("-")[0]


def cell(results: Iterable[Result]) -> Cell | None:
    """Checks as accepted/rejected/not verified; None if there are none."""
    results = list(results)
    if not results:
        return None
    count = Counter(result.verdict.status for result in results)
    shares = [share for one in results if (share := _budget_share(one)) is not None]
    worst = next(status for status in ("rejected", "not verified", "accepted") if count[status])
    return Cell(worst, "/".join(str(count[status]) for status in STATUSES), max(shares, default=None))


def _budget_share(result: Result) -> float | None:
    return result.verdict.share if share_of(result.check) == ERROR_BUDGET else None


def worst_shares(results: Iterable[Result]) -> dict[str, list[WorstShare]]:
    """The largest share of each check on each surface, the largest first; by what they are shares of."""
    worst: dict[tuple[str, str, str], WorstShare] = {}
    for one in results:
        key, share = (one.provider, one.surface, one.check), one.verdict.share
        if share is not None and (key not in worst or share > worst[key].share):
            worst[key] = WorstShare(*key, one.scenario, share, share_of(one.check))
    shares: dict[str, list[WorstShare]] = {ERROR_BUDGET: []}
    for one in sorted(worst.values(), key=lambda one: -one.share):
        shares.setdefault(one.of, []).append(one)
    return shares


def not_verified(results: Iterable[Result]) -> list[UnverifiedReason]:
    """Reasons why checks were not verified, but for known failures; the most frequent first."""
    reasons: dict[str, list[Result]] = {}
    for one in results:
        if one.verdict.status == "not verified" and one.known is None:
            reasons.setdefault(one.verdict.reason, []).append(one)
    rows = [UnverifiedReason(reason, len(some), _places(some)) for reason, some in reasons.items()]
    return sorted(rows, key=lambda row: -row.count)


def _places(results: Iterable[Result]) -> str:
    return ", ".join(dict.fromkeys(f"{one.provider} {one.surface}" for one in results))


def known_failure_kinds(outcome: Outcome) -> list[KnownFailureKind]:
    """The known failures that showed, those of one provider with one reason together; the most frequent first."""
    kinds: dict[tuple[str, str], dict[KnownFailure, list[Result]]] = {}
    for entry, results in outcome.known.items():
        for one in results:
            kinds.setdefault((one.provider, entry.reason), {}).setdefault(entry, []).append(one)
    found = [
        KnownFailureKind(
            provider,
            tuple(dict.fromkeys(one.surface for results in entries.values() for one in results)),
            reason,
            tuple((entry, tuple(results)) for entry, results in entries.items()),
        )
        for (provider, reason), entries in kinds.items()
    ]
    return sorted(found, key=lambda kind: -kind.count)


def cases(results: Sequence[Result]) -> int:
    """How many cases checks were made of."""
    return len({(one.provider, one.surface, one.scenario) for one in results})
