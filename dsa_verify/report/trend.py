"""What a history shows: since when a check is rejected, which verdicts flip by themselves, which shares moved."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from dsa_verify.report.history import CheckPlace, Point, RecordedRun

Line = tuple[CheckPlace, tuple[Point, ...]]


@dataclass(frozen=True)
class Fall:
    """A check that its last run rejects. last_good: the last run that accepted it, if any did; first_bad: the first
    that rejected it after that."""

    place: CheckPlace
    last_good: RecordedRun | None
    first_bad: RecordedRun
    reason: str


@dataclass(frozen=True)
class Flaky:
    """A check whose verdict went back and forth while every version was the same."""

    place: CheckPlace
    statuses: tuple[tuple[RecordedRun, str], ...]


@dataclass(frozen=True)
class Move:
    """The last time that a check's share of its error budget changed from one run to the next."""

    place: CheckPlace
    before: Point
    after: Point

    @property
    def size(self) -> float:
        assert self.before.share is not None and self.after.share is not None
        return self.after.share - self.before.share


@dataclass(frozen=True)
class Trend:
    """All of a history. changes: how many checks changed their verdict, by number of the run, from what and to what."""

    checks: int
    falls: tuple[Fall, ...]
    flaky: tuple[Flaky, ...]
    moves: tuple[Move, ...]
    changes: Counter[tuple[int, str, str]]


def trend(lines: Iterable[Line]) -> Trend:
    """What a history shows, in one pass; moves with the largest rise first."""
    checks, changes = 0, Counter()
    falls, flakies, moves = [], [], []
    for line in lines:
        checks += 1
        for found, of in ((falls, fall), (flakies, flaky), (moves, move)):
            if one := of(line):
                found.append(one)
        changes.update((b.run.id, a.status, b.status) for a, b in pairwise(line[1]) if a.status != b.status)
    return Trend(checks, tuple(falls), tuple(flakies), tuple(sorted(moves, key=lambda one: -one.size)), changes)


def fall(line: Line) -> Fall | None:
    """Since when a check is rejected; None if its last run does not reject it."""
    place, points = line
    if points[-1].status != "rejected":
        return None
    good = [at for at, point in enumerate(points) if point.status == "accepted"]
    after = points[good[-1] + 1 :] if good else points
    first = next(point for point in after if point.status == "rejected")
    return Fall(place, points[good[-1]].run if good else None, first.run, points[-1].reason)


def flaky(line: Line) -> Flaky | None:
    """A change and a change back under equal versions; one change alone may be an edit that changes no version."""
    place, points = line
    by_versions: dict[tuple, list[Point]] = {}
    for point in points:
        by_versions.setdefault(tuple(sorted(point.run.versions.items())), []).append(point)
    for some in reversed(by_versions.values()):
        if sum(a.status != b.status for a, b in pairwise(some)) >= 2:
            return Flaky(place, tuple((point.run, point.status) for point in some))
    return None


def move(line: Line) -> Move | None:
    """Equal kernels on equal inputs use the same share to the last bit, so any difference between runs is a move."""
    place, points = line
    shares = [point for point in points if point.share is not None]
    moves = [Move(place, a, b) for a, b in pairwise(shares) if a.share != b.share]
    return moves[-1] if moves else None


def by_interval(falls: Iterable[Fall]) -> list[tuple[RecordedRun | None, RecordedRun, list[Fall]]]:
    """Falls that happened between the same two runs, together; the latest first."""
    found: dict[tuple[int, int], list[Fall]] = {}
    for one in sorted(falls, key=lambda one: -one.first_bad.id):
        found.setdefault((one.last_good.id if one.last_good else 0, one.first_bad.id), []).append(one)
    return [(some[0].last_good, some[0].first_bad, some) for some in found.values()]


def version_changes(before: RecordedRun, after: RecordedRun) -> list[str]:
    """What of the provenance differs between two runs, as `jax 0.10.2 -> 0.10.3`."""
    names = dict.fromkeys([*before.versions, *after.versions])
    pairs = ((name, before.versions.get(name, "absent"), after.versions.get(name, "absent")) for name in names)
    return [f"{name} {old} -> {new}" for name, old, new in pairs if old != new]
