"""The first screen of a page: what broke, where, since when, and how to repeat it, surface by surface."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dsa_verify.evidence import Result
from dsa_verify.report.rejections import Rejection

MOST = 3
"""Surfaces that the first screen has room for on a laptop; on a phone it has room for one."""
LENGTH = 160
"""Characters of a reason there: its coordinates come first. All of it stands with the case."""


@dataclass(frozen=True)
class Broken:
    """A surface of a provider, rejected since one run, by its first rejection: `example`, `at` that place among all.

    what: how many of its scenarios. where: the example's reason, shortened.
    """

    example: Rejection
    at: int
    what: str
    where: str


def broken(rejections: Sequence[Rejection], results: Iterable[Result]) -> list[Broken]:
    """Every rejected surface once for each since when; those with the most rejected scenarios first."""
    judged: dict[tuple[str, str], set[str]] = {}
    for one in results:
        judged.setdefault((one.provider, one.surface), set()).add(one.scenario)
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at, one in enumerate(rejections):
        groups.setdefault((one.provider, one.surface, one.since), []).append(at)
    found: list[tuple[int, Broken]] = []
    for (provider, surface, _), places in groups.items():
        count = len({rejections[at].scenario for at in places})
        what = f"{count} of {len(judged[provider, surface])} scenarios rejected"
        example = rejections[places[0]]
        found.append((count, Broken(example, places[0], what, _shortened(example.reason))))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def _shortened(reason: str) -> str:
    return reason if len(reason) <= LENGTH else f"{reason[:LENGTH].rsplit(' ', 1)[0]} ..."
