"""Cache: addressed slots hold the new rows bit for bit, and every other bit of the pool is as it was."""

import numpy as np

from dsa_verify.checks import describe
from dsa_verify.checks.bits import differing_lanes, differing_rows
from dsa_verify.evidence import Evidence, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Compare the whole pool after the step with the oracle's.

    What it demands: bit equality of every slot, pads included. Where the provider promises words of several rows,
    slots that nobody owns may change inside a word that holds an addressed slot.
    Why it matters: a slot lost or overwritten shows up steps later, in another request.
    How it could be fooled: by a pool that holds zeros where zeros are written; it is filled with poison.
    """
    outputs, wanted, batch = evidence.base.outputs, evidence.expected.cache_kv, evidence.batch
    if outputs is None:
        return Verdict.rejected("the kernel failed and returned nothing; see the races check for its message")
    assert wanted is not None
    got = outputs["cache_kv"]
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return Verdict.rejected(f"cache_kv is {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}")
    width = wanted.shape[-1]
    wrong = differing_rows(got.reshape(-1, width), wanted.reshape(-1, width))
    addressed = np.zeros_like(wrong)
    addressed[batch.out_cache_loc[batch.real]] = True
    words = addressed.reshape(-1, evidence.promise.write_rows).any(axis=1)
    wrong &= ~(np.repeat(words, evidence.promise.write_rows) & ~batch.owned)
    if not wrong.any():
        return Verdict.accepted()
    missed, overwritten = np.flatnonzero(wrong & addressed), np.flatnonzero(wrong & ~addressed)
    if len(missed):
        lanes = differing_lanes(got.reshape(-1, width)[missed[0]], wanted.reshape(-1, width)[missed[0]])
        return Verdict.rejected(
            f"{len(missed)} of {int(addressed.sum())} new rows are not as given; first "
            f"{describe.slot(batch, missed[0])}, lanes {lanes[0]} to {lanes[-1]}"
        )
    return Verdict.rejected(
        f"{len(overwritten)} slots changed that no new token addresses; first {describe.slot(batch, overwritten[0])}"
    )
