"""Error budgets derived from dtypes, the number of summed terms, and the conditioning of each element.

Notation: u(t) = 2^-p for a dtype with p significant bits (float32: 2^-24, bfloat16: 2^-8), the largest
relative error of one rounding to nearest. A kernel that keeps the contract computes, for each query and head,

    s_j = fl32(sm_scale * q . k_j)        logits, float32 accumulation over W products
    p_j = fl_p(exp(s_j - m) / l)          weights, rounded to the dtype that enters the value product
    o   = fl_out(sum_j p_j v_j)           float32 accumulation over n tokens, rounded on output

1. Rounding of p_j: relative errors e_j, |e_j| <= u_p, independent. Their effect on an output element is
   sum_j e_j p_j v_j: at most u_p * sum_j |p_j v_j| (`weight`), and, as each e_j is uniform with standard
   deviation u_p / sqrt(3), beyond 4 u_p * sqrt(sum_j (p_j v_j)^2) (`spread`) only at 7 standard deviations.
   The budget takes the smaller of the two.
2. Error of the logits. A float32 dot product of W terms rounds every partial sum S_i, an independent error of
   standard deviation u32 |S_i| / sqrt(3). Partial sums of terms with random signs grow like sqrt(i / W) |q o k|_2,
   those of terms that agree like (i / W) |s|; either way four standard deviations are below
   d = 2 sqrt(W) u32 (|s| + sm_scale |q o k_j|_2). (The same sqrt(W) as in Higham and Mary, SIAM J. Sci. Comput. 41(5),
   2019, on the smaller sum that their assumption allows.) Plus u(logit dtype) |s| where a provider rounds logits. First
   order: do = sum_j p_j ds_j (v_j - o), at most d * (weight + |o|).
3. Accumulation of l and of o: sqrt(n) * u32 * weight by the same argument, and 4 u32 for exp, the running maximum's
   rescaling and the division.
4. Output rounding: u_out * |o|.

Elements are judged one by one against MARGIN times the sum: steps 1 to 4 are first order, and step 4 is attained by a
kernel that does nothing wrong. With the margin such a kernel uses at most two thirds of its budget.

A small systematic error in every element (a factor of 1.02) can hide below that, so rows, and the batch as a whole,
are judged by their gain, <got - o, o> / <o, o>, over which independent errors average out. Of step 1 a row keeps u_p
* min(4 * gain, 1), where `gain` is sqrt(sum_j (p_j <v_j, o>)^2) / |o|^2; of step 4, 4 u_out * sqrt(sum o^4) / sum
o^2, and u_out * gain, since a row that one key dominates is nearly that key's own row, which is exact in the output
dtype, and rounding pulls all its elements back to it alike. Over the batch, rows of energy E = |o|^2 are independent,
which leaves 4 * sqrt(sum (E * u_p * gain)^2) / sum E and the same of step 4; errors of steps 2 and 3 may agree in
sign everywhere and are averaged, not reduced. Where single keys dominate many rows, rounding pulls all of them the same
way; how far is no matter of chance but what rounding the exact outputs does, which is added.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dsa_verify.contract import Promise
from dsa_verify.evidence import Attention, Keys, ScoredCandidates, unit_roundoff

U32 = 2.0**-24
MARGIN = 1.5
"""Room above first-order worst cases; see the derivation. vLLM's derived ROCm tolerances use the same factor."""


@dataclass(frozen=True)
class AttentionBudget:
    """How far a correct kernel may be from the oracle: per element, row and lse, and over the batch."""

    element: np.ndarray  # f64[tokens, heads, kv_lora_rank]
    gain: np.ndarray  # f64[tokens, heads]
    lse: np.ndarray  # f64[tokens, heads]
    batch_gain: float


def attention_budget(exact: Attention, dtype: npt.DTypeLike, width: int, promise: Promise) -> AttentionBudget:
    """Budget of attention outputs; see the derivation at the top of this file.

    Args:
      dtype: of queries, cache and outputs. width: products summed into one logit.
    """
    u_out = unit_roundoff(dtype)
    u_p = unit_roundoff(promise.probability_dtype or dtype)
    size = np.abs(exact.out)
    logits = 2 * np.sqrt(width) * U32 * exact.logit
    if promise.logit_dtype is not None:
        logits = logits + unit_roundoff(promise.logit_dtype) * exact.logit
    sums = np.broadcast_to((np.sqrt(exact.terms[:, None]) + 4) * U32, logits.shape)
    element = (
        u_p * np.minimum(4 * exact.spread, exact.weight)
        + logits[..., None] * (exact.weight + size)
        + sums[..., None] * exact.weight
        + u_out * size
    )
    energy = np.sum(size**2, axis=-1)
    outputs = u_out * np.sqrt(np.sum(size**4, axis=-1)) / np.where(energy > 0, energy, 1.0)
    steady = 2 * logits + sums
    gain = u_p * np.minimum(4 * exact.gain, 1.0) + 4 * outputs + u_out * exact.gain + steady
    total = max(float(energy.sum()), np.finfo(float).tiny)
    random = np.hypot(u_p * exact.gain, outputs) * energy
    pull = np.abs(np.sum((exact.out.astype(np.dtype(dtype)).astype(np.float64) - exact.out) * exact.out))
    batch_gain = (4 * np.sqrt(np.sum(random**2)) + np.sum(steady * energy) + pull) / total
    lse = logits + sums + U32 * np.abs(np.where(np.isfinite(exact.lse), exact.lse, 0.0))
    return AttentionBudget(MARGIN * element, gain, MARGIN * lse, float(batch_gain))


def score_band(scores: ScoredCandidates, promise: Promise) -> np.ndarray:
    """How far a computed index score may be from the exact one, f64[tokens, candidates].

    sqrt(terms) * u32 * sum |w_h q_hd k_d| for float32 accumulation (step 2 above); plus u(score dtype) of the same sum
    where a provider rounds its scores; plus what the errors of computed queries, keys and weights make of it.
    """
    u = np.sqrt(scores.terms) * U32
    if promise.score_dtype is not None:
        u += unit_roundoff(promise.score_dtype)
    return u * scores.magnitude + MARGIN * scores.error


def key_budget(keys: Keys, dtype: object) -> np.ndarray:
    """How far a written index key may be from the exact one, f64[tokens, index_head_dim]; see `oracle/indexer.py`."""
    return MARGIN * (unit_roundoff(dtype) * keys.rounding + U32 * keys.arithmetic)
