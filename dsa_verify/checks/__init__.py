"""The demands, one file each; a check looks at evidence and returns a verdict."""

from collections.abc import Callable

from dsa_verify.checks import cache, determinism, isolation, parity, races, selection
from dsa_verify.evidence import Evidence, Verdict

CHECKS: dict[str, Callable[[Evidence], Verdict]] = {
    "races": races.judge,
    "parity": parity.judge,
    "selection": selection.judge,
    "cache": cache.judge,
    "isolation": isolation.judge,
    "determinism": determinism.judge,
}


def checks_for(*, attends: bool, selects: bool, writes: bool) -> tuple[str, ...]:
    """Names of the checks that apply to a surface with these traits."""
    applies = {"parity": attends, "selection": selects, "cache": writes}
    return tuple(name for name in CHECKS if applies.get(name, True))
