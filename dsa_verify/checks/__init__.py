"""The checks: each looks at the evidence of one case and returns a verdict; beside them lies what they share."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.variants import Variant
from dsa_verify.checks import cache, determinism, heatmap, isolation, parity, races, selection, traffic
from dsa_verify.checks.invariance import INVARIANCES, invariances_for
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, Heatmap, Verdict

__all__ = ["CHECKS", "INVARIANCES", "Check", "checks_for", "invariances_for"]


@dataclass(frozen=True)
class Check:
    """A demand: how it judges, and what it looks at beside the base run: named runs, or a variant of the batch.

    A variant that a batch does not have (a single request has no other order) is None; the check is not made then, nor
    where a kernel has not `promised` what it demands. `shown` says where a rejection lies, where that can be drawn.
    """

    judge: Callable[[Evidence], Verdict]
    runs: tuple[str, ...] = ()
    variant: Callable[[Batch], Variant | None] | None = None
    promised: Callable[[Promise], bool] = lambda promise: True
    shown: Callable[[Evidence], Heatmap | None] | None = None

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
    "traffic": Check(traffic.judge, promised=lambda promise: promise.query_block > 0),
    **{name: Check(way.judge, variant=way.variant) for name, way in INVARIANCES.items()},
}


def checks_for(*, attends: bool, selects: bool, writes: bool) -> tuple[str, ...]:
    """Names of the checks that apply to a surface with these traits; `invariances_for` names the invariances."""
    applies = {"parity": attends, "selection": selects, "cache": writes}
    return tuple(name for name in CHECKS if name not in INVARIANCES and applies.get(name, True))
