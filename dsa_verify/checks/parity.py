"""Parity: every output stays within the error budget derived for it from the float64 oracle."""

from collections.abc import Mapping

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.checks import describe
from dsa_verify.checks.tolerance import attention_budget
from dsa_verify.contract import Promise
from dsa_verify.evidence import Attention, Evidence, Outputs, Verdict


def judge(evidence: Evidence) -> Verdict:
    """Judge attention output and lse of real tokens.

    What it demands: no NaN or inf; each element, each row's gain and each lse within its budget.
    Why it matters: this is the number that the next layer sees.
    How it could be fooled: by inputs on which a fault changes nothing; the scenarios' teeth are tested for that.
    Source of the budgets: `dsa_verify.checks.tolerance`.
    """
    outputs, exact, batch = evidence.base.outputs, evidence.expected.attention, evidence.batch
    if outputs is None:
        return Verdict.rejected("the kernel failed and returned nothing; see the races check for its message")
    assert exact is not None
    anomaly = _anomaly(batch, outputs, exact)
    if anomaly:
        return Verdict.rejected(anomaly, share=float("inf"))
    if not batch.real.any():
        return Verdict.accepted(0.0)
    shares, stretch, whole = shares_of(batch, outputs, exact, evidence.promise)
    worst = max(whole, *(float(share.max()) for share in shares.values()))
    if worst <= 1.0:
        return Verdict.accepted(worst)
    if whole == worst:
        return Verdict.rejected(
            f"outputs of the whole batch are stretched by {stretch:+.2e}, "
            f"{whole:.3g} times what independent rounding leaves of it: a systematic error in every row",
            worst,
        )
    return Verdict.rejected(_explain(batch, shares, outputs, exact), worst)


def shares_of(
    batch: Batch, outputs: Outputs, exact: Attention, promise: Promise
) -> tuple[dict[str, np.ndarray], float, float]:
    """Error over budget of every element, row gain and lse, zero for padding; how far the batch as a whole is
    stretched, and that over its budget."""
    out = outputs["out"].astype(np.float64)
    width = batch.ql_nope.shape[-1] + batch.q_pe.shape[-1]
    budget = attention_budget(exact, outputs["out"].dtype, width, promise)
    shares = {
        "element": _share(np.abs(out - exact.out), budget.element),
        "gain": _share(np.abs(_gain(out, exact.out)), budget.gain),
    }
    if "lse" in outputs:
        shares["lse"] = _share(_lse_error(outputs["lse"], exact.lse), budget.lse)
    for share in shares.values():
        share[~batch.real] = 0.0
    stretch = float(_gain(out[batch.real].ravel(), exact.out[batch.real].ravel()))
    return shares, stretch, abs(stretch) / max(budget.batch_gain, np.finfo(float).tiny)


def _share(error: np.ndarray, budget: np.ndarray) -> np.ndarray:
    """Error over budget; zero over zero is zero, anything else over zero is infinite."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0.0, 0.0, error / budget)


def _gain(out: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """<out - exact, exact> / <exact, exact> over the last axis; 0 where there is nothing."""
    energy = np.sum(exact**2, axis=-1)
    return np.sum((out - exact) * exact, axis=-1) / np.where(energy > 0, energy, 1.0)


def _lse_error(lse: np.ndarray, exact: np.ndarray) -> np.ndarray:
    empty = np.isneginf(exact)
    finite = np.abs(lse.astype(np.float64) - np.where(empty, 0.0, exact))
    return np.where(empty, np.where(np.isneginf(lse), 0.0, np.inf), finite)


def _anomaly(batch: Batch, outputs: Outputs, exact: Attention) -> str | None:
    for name in ("out", "lse"):
        if name not in outputs:
            continue
        values = outputs[name].astype(np.float64)
        good = np.isfinite(values) | (np.isneginf(exact.lse) if name == "lse" else False)
        bad = ~good
        bad[~batch.real] = False
        if bad.any():
            place = np.argwhere(bad)[0]
            tokens = np.flatnonzero(bad.reshape(len(bad), -1).any(axis=1))
            return (
                f"{name}{place.tolist()} is {values[tuple(place)]}, expected a finite number: "
                f"{describe.token(batch, place[0])}, head {place[1]}, {describe.pages_attended(batch, place[0])}; "
                f"{describe.spread(batch, tokens)}"
            )
    return None


def _explain(batch: Batch, shares: Mapping[str, np.ndarray], outputs: Outputs, exact: Attention) -> str:
    name, share = max(shares.items(), key=lambda item: float(item[1].max()))
    place = np.unravel_index(int(np.argmax(share)), share.shape)
    over = np.flatnonzero((share.reshape(len(share), -1) > 1.0).any(axis=1))
    where = f"{describe.token(batch, int(place[0]))}, head {int(place[1])}"
    if name == "element":
        got, wanted = float(outputs["out"][place]), float(exact.out[place])
        what = f"out{[int(i) for i in place]} is {got:.6g}, oracle {wanted:.6g}, {abs(got - wanted):.2e} apart"
    elif name == "lse":
        what = f"lse{[int(i) for i in place]} is {float(outputs['lse'][place]):.6g}, oracle {exact.lse[place]:.6g}"
    else:
        what = "the row as a whole is stretched or shrunk beyond what rounding explains"
    return (
        f"{what}: {share[place]:.3g} times its budget; {where}, {describe.pages_attended(batch, int(place[0]))}; "
        f"{describe.spread(batch, over)}"
    )
