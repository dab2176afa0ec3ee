"""The checks: each looks at the evidence of one case and returns a verdict; beside them lies what they share."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.variants import Variant
from dsa_verify.checks import cache, determinism, heatmap, isolation, parity, races, selection, traffic
from dsa_verify.checks.invariance import INVARIANCES, invariances_for
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, Heatmap, Verdict

__all__ = ["CHECKS", "ERROR_BUDGET", "INVARIANCES", "Check", "checks_for", "invariances_for", "share_of"]

ERROR_BUDGET = "the error budget"
"""What the share of most checks is a share of: a distance that rounding allows, of outputs, computed keys or scores."""


@dataclass(frozen=True)
class Check:
    """A demand: how it judges, and what it looks at beside the base run: named runs, or a variant of the batch.

    A variant that a batch does not have (a single request has no other order) is None; the check is not made then, nor
    where a kernel has not `promised` what it demands. `shown` says where a rejection lies, where that can be drawn.
    `share_of` is what the share of its verdicts is a share of; only those of one thing can be compared.
    """

    judge: Callable[[Evidence], Verdict]
    runs: tuple[str, ...] = ()
    variant: Callable[[Batch], Variant | None] | None = None
    promised: Callable[[Promise], bool] = lambda promise: True
    shown: Callable[[Evidence], Heatmap | None] | None = None
    share_of: str = ERROR_BUDGET

    def verdict(self, evidence: Evidence) -> Verdict:
        """Judge, and show where a rejection lies."""
        verdict = self.judge(evidence)
        if verdict.status == "rejected" and self.shown is not None:
            return replace(verdict, heatmap=self.shown(evidence))
        return verdict


CHECKS: dict[str, Check] = {
    "races": Check(races.judge, ("eager",)),
    "parity": Check(parity.judge, shown=heatmap.of_shares),
    "selection": Check(selection.judge, shown=heatmap.of_selection),
    "cache": Check(cache.judge),
    "isolation": Check(isolation.judge, ("dirty",)),
    "determinism": Check(determinism.judge, ("again",)),
    # A kernel that fetches each page once uses all of its bytes: 1.00 is good there.
    "traffic": Check(traffic.judge, promised=lambda promise: promise.query_block > 0, share_of="the bytes needed"),
    **{name: Check(way.judge, variant=way.variant) for name, way in INVARIANCES.items()},
}


def checks_for(*, attends: bool, selects: bool, writes: bool) -> tuple[str, ...]:
    """Names of the checks that apply to a surface with these traits; `invariances_for` names the invariances."""
    applies = {"parity": attends, "selection": selects, "cache": writes}
    return tuple(name for name in CHECKS if name not in INVARIANCES and applies.get(name, True))


def share_of(name: str) -> str:
    """What the share of a check is a share of. Where `CHECKS` has no such name, it is the error budget: the check over
    a mesh takes the worst of checks that have one."""
    return CHECKS[name].share_of if name in CHECKS else ERROR_BUDGET
