"""Determinism: two identical calls agree in every bit."""

from dsa_verify.checks.bits import differing_outputs
from dsa_verify.evidence import Evidence, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Compare the base run with the same call made again.

    What it demands: bit equality of all outputs.
    Why it matters: replicas that select differently attend differently, and no failure can be repeated.
    How it could be fooled: by order that depends on load; a device run repeats under other conditions than a test.
    """
    base, again = evidence.base.outputs, evidence.runs["again"].outputs
    if base is None or again is None:
        if base is again:
            return Verdict.rejected("the kernel failed twice; see the races check for its message")
        return Verdict.rejected("of two identical calls one failed; see the races check for its message")
    for name, rows in differing_outputs(base, again):
        return Verdict.rejected(f"{name} differs between two identical calls in {len(rows)} rows, first {rows[0]}")
    return Verdict.accepted()
