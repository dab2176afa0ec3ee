"""What an inconclusive run still lacks: times as many documents, or repeats of each, that would show it."""

from collections.abc import Sequence
from dataclasses import dataclass

from dsa_verify.gates.statistics.bounds import LARGE
from dsa_verify.gates.statistics.estimates import Estimates
from dsa_verify.gates.statistics.power import Study, repeats_for
from dsa_verify.gates.statistics.rule import Levels, Rule


@dataclass(frozen=True)
class Needed:
    """Times as many documents that would show all that is not shown yet: were there no loss, and were the estimates
    true (inf if no number would). repeats: of every document, instead, were there no loss; None if unknown or vain."""

    without_loss: float
    as_estimated: float
    repeats: int | None


def still_needed(parts: Sequence[Estimates], same: Estimates | None, rule: Rule, at: Levels) -> Needed | None:
    """What PASS still lacks; None if no estimate is short of its limit.

    parts: all documents; then the active ones, of which tasks are not demanded. same: the A/A control, whose variance
    is that of run-to-run noise alone.
    """
    noise = {(one.kind, one.name): one.variance for one in same.all} if same else {}
    study = Study(alpha=at.pass_, power=rule.power)
    demanded = [*parts[0].all, *(one for part in parts[1:] for one in (part.macro, *part.groups))]
    short = [one for one in demanded if one.least < one.needed or one.suspect or not one.p_pass <= at.pass_]
    if not short:
        return None
    clean: list[float] = []
    seen: list[float] = []
    repeats: list[int | None] = []
    for one in short:
        least = max(1.0, one.needed / max(one.least, 1))
        if one.method == "betting":  # the power that is computed is that of the method for LARGE and more
            least = max(least, LARGE / max(one.n, 1))
        clean.append(max(least, study.growth(0.0, one.variance, one.limit)))
        seen.append(max(least, study.growth(one.difference, one.variance, one.limit)))
        repeats.append(repeats_for(one.variance, noise.get((one.kind, one.name), 0.0), clean[-1]))
    known = [number for number in repeats if number is not None]
    return Needed(max(clean), max(seen), max(known) if len(known) == len(short) else None)
