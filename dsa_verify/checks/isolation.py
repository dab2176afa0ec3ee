"""Isolation: neither memory that nobody owns nor another request's data changes a result by a single bit."""

import numpy as np

from dsa_verify.checks import describe
from dsa_verify.checks.bits import differing_rows
from dsa_verify.evidence import Evidence, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Compare the base run with the `dirty` run, in which only what must not matter to even sequences differs.

    What it demands: bit-equal results of every even sequence; rows of padding tokens clean: zeros for attention (lse
    -inf), -1 for selections.
    Why it matters: a stray read is harmless until the page it hits belongs to somebody.
    How it could be fooled: by a stray read of memory that both runs share; the dirty run changes all of it.
    """
    base, dirty = evidence.base.outputs, evidence.runs["dirty"].outputs
    if base is None or dirty is None:
        return Verdict.rejected("the kernel failed in dirty memory; see the races check for its message")
    batch = evidence.batch
    for name, value in base.items():
        if name in ("cache_kv", "index_cache"):
            continue
        problem = _unclean_padding(name, value, ~batch.real)
        if problem is not None:
            return Verdict.rejected(f"{name} of {describe.token(batch, problem[0])} {problem[1]}")
        kept = batch.real & (batch.seq_of_token % 2 == 0)
        changed = differing_rows(value, dirty[name]) & kept
        if changed.any():
            rows = np.flatnonzero(changed)
            return Verdict.rejected(
                f"{name} of {describe.token(batch, int(rows[0]))} changed although only memory that nobody owns and "
                f"the data of other requests changed; {describe.spread(batch, rows)}"
            )
    return Verdict.accepted()


def _unclean_padding(name: str, value: np.ndarray, padding: np.ndarray) -> tuple[int, str] | None:
    clean = {"out": 0.0, "lse": -np.inf, "topk_scores": -np.inf}.get(name, -1)
    rows = value.reshape(len(value), -1)
    bad = padding & ~(rows == np.asarray(clean, rows.dtype)).all(axis=1)
    if not bad.any():
        return None
    row = int(np.flatnonzero(bad)[0])
    wrong = rows[row][rows[row] != np.asarray(clean, rows.dtype)][0]
    return row, f"holds {wrong}, expected {clean} everywhere"
