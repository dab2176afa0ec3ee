"""Cache: addressed slots hold the new rows, and every other bit of the pool is as it was."""

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.checks import describe
from dsa_verify.checks.bits import differing_lanes, differing_rows
from dsa_verify.checks.tolerance import key_budget
from dsa_verify.evidence import Evidence, Keys, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Compare the whole pool after the step with the oracle's.

    What it demands: bit equality of every slot, pads included; of index keys that the surface computes itself, those
    of the addressed slots within the budget of their rounding. Where the provider promises words of several rows,
    slots that nobody owns may change inside a word that holds an addressed slot.
    Why it matters: a slot lost or overwritten shows up steps later, in another request.
    How it could be fooled: by a pool that holds zeros where zeros are written; it is filled with poison.
    """
    outputs, batch = evidence.base.outputs, evidence.batch
    if outputs is None:
        return Verdict.rejected("the kernel failed and returned nothing; see the races check for its message")
    keys = evidence.expected.keys
    name = "cache_kv" if keys is None else "index_cache"
    wanted = evidence.expected.cache_kv if keys is None else batch.operand(name, writes=True)
    assert wanted is not None
    got = outputs[name]
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return Verdict.rejected(f"{name} is {got.dtype}{got.shape}, expected {wanted.dtype}{wanted.shape}")
    width = wanted.shape[-1]
    wrong = differing_rows(got.reshape(-1, width), wanted.reshape(-1, width))
    addressed = np.zeros_like(wrong)
    addressed[batch.out_cache_loc[batch.real]] = True
    verdict = Verdict.accepted()
    if keys is not None:
        verdict, wrong = _judge_keys(batch, got.reshape(-1, width), keys), wrong & ~addressed
    words = addressed.reshape(-1, evidence.promise.write_rows).any(axis=1)
    wrong &= ~(np.repeat(words, evidence.promise.write_rows) & ~batch.owned)
    if not wrong.any() or verdict.status == "rejected":
        return verdict
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


def _judge_keys(batch: Batch, pool: np.ndarray, keys: Keys) -> Verdict:
    """The computed keys of the new tokens, element by element."""
    share = key_shares(batch, pool, keys)
    worst = float(share.max(initial=0.0))
    if worst <= 1.0:
        return Verdict.accepted(worst)
    token, lane = np.unravel_index(int(share.argmax()), share.shape)
    got = float(pool[batch.out_cache_loc[token], lane])
    return Verdict.rejected(
        f"index key of {describe.token(batch, int(token))}, lane {lane}, is {got:.6g}, oracle "
        f"{keys.value[token, lane]:.6g}: {worst:.3g} times its budget; "
        f"{describe.spread(batch, np.flatnonzero((share > 1.0).any(axis=1)))}",
        worst,
    )


def key_shares(batch: Batch, pool: np.ndarray, keys: Keys) -> np.ndarray:
    """Error over budget of every element of the new tokens' keys, f64[tokens, index_head_dim]; zero for padding.

    pool: the index cache after the step, [slots, index_head_dim].
    """
    got = pool[np.maximum(batch.out_cache_loc, 0)].astype(np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(got - keys.value)
        share = np.where(error == 0.0, 0.0, error / key_budget(keys, batch.index_cache.dtype))
    share[np.isnan(share)] = np.inf
    share[~batch.real] = 0.0
    return share
