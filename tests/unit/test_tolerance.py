"""Budgets cover what rounding does and little more: emulated kernels stay inside, perturbations do not."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import parity
from dsa_verify.checks.tolerance import attention_budget, score_band
from dsa_verify.contract import Promise
from dsa_verify.evidence import Evidence, Expected, Run, ScoredCandidates, unit_roundoff
from dsa_verify.oracle.attention import attend
from dsa_verify.oracle.scores import index_scores
from tests.unit.test_scenarios_have_teeth import built

RANK, ROPE, HEADS, KEYS = 128, 64, 4, 300
SM_SCALE = (128 + 64) ** -0.5


def problem(seed: int, spread: float, dtype):
    rng = np.random.default_rng(seed)
    draw = lambda *shape: rng.standard_normal(shape).astype(dtype)  # noqa: E731
    size = spread / (SM_SCALE * (RANK + ROPE) ** 0.5)
    q = (size * rng.standard_normal((6, HEADS, RANK + ROPE))).astype(dtype)
    return q[..., :RANK], q[..., RANK:], draw(KEYS, RANK), draw(KEYS, ROPE)


def emulate(ql, qp, c, k, dtype) -> np.ndarray:
    """A kernel that keeps the contract: float32 logits, weights rounded to the cache's dtype, output rounded."""
    q, keys = (np.concatenate(pair, -1).astype(np.float32) for pair in ((ql, qp), (c, k)))
    s = np.einsum("qhd,kd->qhk", q, keys) * np.float32(SM_SCALE)
    p = np.exp(s - s.max(-1, keepdims=True))
    o = p.astype(dtype).astype(np.float32) @ c.astype(np.float32)
    return (o / p.sum(-1, keepdims=True)).astype(dtype)


@pytest.mark.parametrize("spread", [0.5, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16], ids=["float32", "bfloat16"])
def test_emulated_kernel_uses_at_most_two_thirds_of_its_budget(dtype, spread):
    worst = 0.0
    for seed in range(8):
        parts = problem(seed, spread, dtype)
        exact = attend(*parts, np.ones((6, KEYS), bool), SM_SCALE)
        budget = attention_budget(exact, np.dtype(dtype), RANK + ROPE, Promise())
        error = np.abs(emulate(*parts, dtype).astype(np.float64) - exact.out)
        worst = max(worst, float((error / budget.element).max()))
    assert worst <= 0.67


def test_bfloat16_budget_is_a_small_multiple_of_the_error_itself():
    parts = problem(0, 2.0, ml_dtypes.bfloat16)
    exact = attend(*parts, np.ones((6, KEYS), bool), SM_SCALE)
    budget = attention_budget(exact, np.dtype(ml_dtypes.bfloat16), RANK + ROPE, Promise())
    error = np.abs(emulate(*parts, ml_dtypes.bfloat16).astype(np.float64) - exact.out)
    assert rms(budget.element) < 12 * rms(error)


def test_float32_budget_would_not_hide_one_rounding_to_bfloat16():
    """Sums in float32 are summed more cleverly than the budget assumes; it still tells float32 from less."""
    parts = problem(0, 2.0, np.float32)
    exact = attend(*parts, np.ones((6, KEYS), bool), SM_SCALE)
    budget = attention_budget(exact, np.dtype(np.float32), RANK + ROPE, Promise())
    rounded = exact.out.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert (np.abs(rounded - exact.out) / budget.element).max() > 10


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x**2)))


def test_rounding_that_a_provider_states_widens_its_budget():
    parts = problem(1, 2.0, np.float32)
    exact = attend(*parts, np.ones((6, KEYS), bool), SM_SCALE)
    plain, stated = (
        attention_budget(exact, np.dtype(np.float32), RANK + ROPE, promise).element.max()
        for promise in (Promise(), Promise(logit_dtype="bfloat16", probability_dtype="bfloat16"))
    )
    assert stated > 100 * plain


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_unit_roundoff_is_the_largest_relative_error_of_one_rounding(dtype):
    number = np.dtype(dtype if dtype == "float32" else ml_dtypes.bfloat16)
    x = np.linspace(1.0, 2.0, 200_001)
    error = np.abs(x.astype(number).astype(np.float64) - x) / x
    assert 0.9 * unit_roundoff(dtype) < error.max() <= unit_roundoff(dtype)


def test_score_band_covers_float32_scores():
    rng = np.random.default_rng(3)
    q, w, k = (rng.standard_normal(s).astype(np.float32) for s in ((5, 4, 128), (5, 4), (400, 128)))
    exact = index_scores(q, w, k, np.full(5, 399))
    got = np.einsum("qhk,qh->qk", np.maximum(np.einsum("qhd,kd->qhk", q, k), 0), w)
    band = score_band(ScoredCandidates(exact.value, exact.magnitude, np.zeros((5, 0), np.int32), 4 * 128), Promise())
    assert (np.abs(got - exact.value) <= band).all()
    assert np.median(band) < 1e-4 * np.abs(exact.value).max()


def test_nan_is_an_anomaly_before_it_is_an_error():
    batch = built(SCENARIOS["single-extend-p16-f32"])
    exact = oracle.expected("dense_mla", batch)
    out = exact.attention.out.astype(np.float32)
    out[3, 1, 7] = np.nan
    verdict = parity.judge(Evidence(batch, Expected(attention=exact.attention), {"base": Run({"out": out})}))
    assert verdict.status == "rejected"
    assert "out[3, 1, 7] is nan" in verdict.reason
    assert "request 0, position" in verdict.reason


def test_systematic_error_below_every_element_budget_is_rejected_over_the_batch():
    batch = built(SCENARIOS["single-extend-p64-bf16"])
    exact = oracle.expected("dense_mla", batch).attention
    out = {"out": (1.008 * exact.out).astype(batch.ql_nope.dtype)}
    verdict = parity.judge(Evidence(batch, Expected(attention=exact), {"base": Run(out)}))
    assert verdict.status == "rejected"
    assert "whole batch" in verdict.reason
    assert (
        parity.judge(
            Evidence(
                batch, Expected(attention=replace(exact)), {"base": Run({"out": exact.out.astype(out["out"].dtype)})}
            )
        ).status
        == "accepted"
    )
