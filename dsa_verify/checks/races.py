"""Races: no race, access out of bounds or unmatched wait was seen, and results do not depend on when copies happen."""

from dsa_verify.checks.bits import differing_outputs
from dsa_verify.evidence import Evidence, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Report what the runtime found in any run, and whether the result depends on when copies happen.

    What it demands: no finding in either DMA mode, and bit-equal outputs of both. Copies made as late as allowed turn
    a missing wait into NaN; copies made at once turn it into a race. Each finds what the other cannot.
    Why it matters: on a device such a kernel is right until timing changes.
    How it could be fooled: by synchronisation that the interpreter does not model; see the runtime's limits.
    """
    if "eager" not in evidence.runs:
        return Verdict.not_verified("a device shows no races; run the same scenario on a CPU in interpret mode")
    for name, run in evidence.runs.items():
        if run.findings:
            finding, more = run.findings[0], len(run.findings) - 1
            return Verdict.rejected(
                f"{finding.kind} in the {name} run: {finding.message}" + (f" (and {more} more)" if more else "")
            )
    base, eager = evidence.base.outputs, evidence.runs["eager"].outputs
    assert base is not None and eager is not None
    for name, rows in differing_outputs(base, eager):
        return Verdict.rejected(
            f"{name} depends on when copies happen: {len(rows)} rows differ between late and eager DMA, first "
            f"{rows[0]}; a wait is missing or comes too late"
        )
    return Verdict.accepted()
