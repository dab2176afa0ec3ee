"""The demands, one file each; a check looks at evidence and returns a verdict."""

from collections.abc import Callable
from dataclasses import dataclass

from dsa_verify.checks import cache, determinism, isolation, parity, races, selection
from dsa_verify.evidence import Evidence, Verdict


@dataclass(frozen=True)
class Check:
    """A demand: how it judges, and which runs of the kernel it looks at beside the base run."""

    judge: Callable[[Evidence], Verdict]
    runs: tuple[str, ...] = ()


CHECKS: dict[str, Check] = {
    "races": Check(races.judge, ("eager",)),
    "parity": Check(parity.judge),
    "selection": Check(selection.judge),
    "cache": Check(cache.judge),
    "isolation": Check(isolation.judge, ("dirty",)),
    "determinism": Check(determinism.judge, ("again",)),
}


def checks_for(*, attends: bool, selects: bool, writes: bool) -> tuple[str, ...]:
    """Names of the checks that apply to a surface with these traits."""
    applies = {"parity": attends, "selection": selects, "cache": writes}
    return tuple(name for name in CHECKS if applies.get(name, True))
