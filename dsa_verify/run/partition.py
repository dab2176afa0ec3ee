"""A plan in shards: its cases dealt out to several machines, groups whole where they fit, all about as long."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from dsa_verify.errors import ConfigError
from dsa_verify.evidence import KnownFailure, Result, Verdict
from dsa_verify.run import suite
from dsa_verify.run.suite import Case

LEAST = 1e-6
"""Seconds that a case weighs at least, so that an empty shard is always the lightest."""


SHARDING = "sharding"
"""The check that every process makes on every case, each on its own part of the devices."""

_WORST = ("rejected", "not verified", "accepted")


@dataclass(frozen=True)
class Shard:
    """Which part of a plan a run was. index: from 1. plan: a digest of how all of the plan's cases were dealt out."""

    index: int
    of: int
    plan: str


def parse(text: str) -> tuple[int, int]:
    """`2/4` as (2, 4). Raises `ConfigError`."""
    index, slash, of = text.partition("/")
    if slash and index.isdecimal() and of.isdecimal() and 1 <= int(index) <= int(of):
        return int(index), int(of)
    raise ConfigError(f"--shard expects i/n with 1 <= i <= n, as in 2/4, found {text!r}")


def take(
    cases: Sequence[Case], index: int, of: int, seconds: Mapping[str, float] | None = None
) -> tuple[Shard, tuple[Case, ...], tuple[Case, ...]]:
    """One shard of a plan: what it is, its cases in plan order, and all other cases. seconds: as for `divide`.

    Raises `ConfigError`.
    """
    dealt = divide(cases, of, seconds)
    names = "\n\n".join("\n".join(case.name for case in one) for one in dealt)
    mine = set(dealt[index - 1])
    shard = Shard(index, of, hashlib.sha256(names.encode()).hexdigest()[:16])
    return shard, dealt[index - 1], tuple(case for case in cases if case not in mine)


def divide(cases: Sequence[Case], of: int, seconds: Mapping[str, float] | None = None) -> list[tuple[Case, ...]]:
    """Every shard of a plan; the same cases, number and durations give the same shards, none of them empty.

    Pieces, heaviest first, go to the shard that has least. A group that shares compilations is one piece unless it is
    heavier than half of a fair share. So no shard exceeds the fair share by more than half, unless a single case does.

    seconds: what cases took in an earlier run, by name. Raises `ConfigError` for more shards than cases, and durations
    of other cases only.
    """
    if of > len(cases):
        raise ConfigError(f"{of} shards are more than the plan's {len(cases)} cases; ask for at most {len(cases)}")
    weight = _weights(cases, seconds)
    most = sum(weight.values()) / of / 2
    groups = suite.groups_of(cases)
    pieces = [piece for group in groups for piece in _pieces(group, weight, most)]
    if len(pieces) < of:
        pieces = [[case] for group in groups for case in group]
    loads, dealt = [0.0] * of, [[] for _ in range(of)]
    for piece in sorted(pieces, key=lambda piece: -_load(piece, weight)):
        lightest = loads.index(min(loads))
        loads[lightest] += _load(piece, weight)
        dealt[lightest] += piece
    order = {case: place for place, case in enumerate(cases)}
    return [tuple(sorted(shard, key=order.__getitem__)) for shard in dealt]


def _load(piece: Sequence[Case], weight: Mapping[Case, float]) -> float:
    return sum(weight[case] for case in piece)


def _pieces(group: Sequence[Case], weight: Mapping[Case, float], most: float) -> Iterator[list[Case]]:
    piece: list[Case] = []
    for case in group:
        if piece and _load(piece, weight) + weight[case] > most:
            yield piece
            piece = []
        piece.append(case)
    yield piece


def _weights(cases: Sequence[Case], seconds: Mapping[str, float] | None) -> dict[Case, float]:
    """Seconds; where there are none, half the weight is the case itself and half the size of its bucket."""
    if seconds is None:
        mean = sum(map(suite.cost_of, cases)) / len(cases)
        return {case: 1 + suite.cost_of(case) / mean for case in cases}
    known = sorted(seconds[case.name] for case in cases if case.name in seconds)
    if not known:
        raise ConfigError("--durations holds none of the cases to run; give the --json document of a run of this plan")
    median = known[len(known) // 2]
    return {case: max(seconds.get(case.name, median), LEAST) for case in cases}


def durations(results: Sequence[Result]) -> dict[str, float]:
    """Seconds that each case of an earlier run took, by the case's name."""
    found: dict[str, float] = {}
    for result in results:
        name = Case(result.provider, result.surface, result.scenario, "").name
        found[name] = found.get(name, 0.0) + result.seconds
    return found


def may_show(entry: KnownFailure, cases: Sequence[Case]) -> bool:
    """Whether a known failure is about any of these cases."""
    check = entry.id.rsplit("/", 1)[1]
    return any(
        entry.matches(Result(case.provider, case.surface, case.scenario, check, Verdict.accepted())) for case in cases
    )


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict on what was judged in parts: the worst of them, with the largest share of any."""
    found = min(verdicts, key=lambda verdict: _WORST.index(verdict.status))
    return replace(found, share=max((one.share for one in verdicts if one.share is not None), default=None))


def joined(results: Iterable[Result]) -> list[Result]:
    """The results with those of the check `sharding` joined, which every process has for every case; they come last.

    The reasons of all processes that rejected stay, `seconds` are those of the slowest.
    """
    whole: list[Result] = []
    parts: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        if result.check == SHARDING:
            parts.setdefault((result.provider, result.surface, result.scenario), []).append(result)
        else:
            whole.append(result)
    return whole + [_join(found) for found in parts.values()]


def _join(parts: Sequence[Result]) -> Result:
    verdict = worst([part.verdict for part in parts])
    blamed = [part for part in parts if part.verdict.status == verdict.status]
    reasons = dict.fromkeys(part.verdict.reason for part in blamed)
    broke = next((part.broke for part in blamed if part.broke), "")
    verdict = replace(verdict, reason="; ".join(reasons))
    return replace(blamed[0], verdict=verdict, seconds=max(part.seconds for part in parts), broke=broke)
