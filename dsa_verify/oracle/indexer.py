"""The indexer around its kernel in float64: projections, key norm, rotation, head weights, and their error bounds.

A key or query element may be off by `u * rounding + u32 * arithmetic`, where u is the unit roundoff of the model's
dtype and u32 that of float32. `rounding` counts what an implementation may round to the dtype: the projection, the
normalised key, the rotated result. `arithmetic` counts float32 sums (2 sqrt(W) u32 |x o w|_2 for W terms, as in
`checks/tolerance.py`), and the angle: the product of position and frequency is off by 3 u32 of itself in float32, which
at position 9,000 is more than all the sums together. All are first order.
"""

from dataclasses import dataclass

import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.evidence import Keys, unit_roundoff
from dsa_verify.shapes import IndexerConvention

U32 = 2.0**-24


@dataclass(frozen=True)
class Vectors:
    """Vectors and the scales of their errors, f64 of one shape."""

    value: np.ndarray
    rounding: np.ndarray
    arithmetic: np.ndarray

    def error(self, dtype: object) -> np.ndarray:
        """How far a computed vector may be off, to first order."""
        return unit_roundoff(dtype) * self.rounding + U32 * self.arithmetic


@dataclass(frozen=True)
class Projected:
    """What an indexer makes of tokens: queries [tokens, heads, dim], keys [tokens, dim], weights [tokens, heads]."""

    queries: Vectors
    keys: Vectors
    weights: Vectors


def project(batch: Batch) -> Projected:
    """Queries, keys and head weights of every token; those of padding are zeros.

    q = rotate(wq_b q_lora), k = rotate(LayerNorm(wk hidden)), w = weights_proj hidden / sqrt(heads * dim). No Hadamard
    rotation: on both sides it changes no score, and the cache holds plain keys.
    Source: DeepSeek-V3.2-Exp inference/model.py, Indexer.forward; transformers, modeling_glm_moe_dsa.py.
    """
    layer, here = batch.indexer, batch.real[:, None]
    hidden, q_lora = (np.where(here, x, 0).astype(np.float64) for x in (batch.hidden, batch.q_lora))
    heads, dim = batch.index_q.shape[1:]
    scale = (heads * dim) ** -0.5
    queries = _linear(q_lora, layer.wq_b)
    queries = Vectors(*(x.reshape(-1, heads, dim) for x in vars(queries).values()))
    positions = np.where(batch.real, batch.positions, 0)
    keys = _layer_norm(_linear(hidden, layer.wk), layer.k_norm, layer.k_norm_bias, batch.convention.norm_eps)
    keys = Vectors(*(x[:, None] for x in vars(keys).values()))
    turned = _rotate(keys, positions, batch.convention)
    weights = _linear(hidden, layer.weights_proj)
    return Projected(
        _rotate(queries, positions, batch.convention),
        Vectors(*(np.where(here, x[:, 0], 0.0) for x in vars(turned).values())),
        # Head weights stay float32: they are never rounded to the dtype.
        Vectors(
            scale * weights.value, np.zeros_like(weights.value), scale * (weights.arithmetic + 4 * abs(weights.value))
        ),
    )


def keys(projected: Projected) -> Keys:
    """The keys as evidence."""
    return Keys(**vars(projected.keys))


def score_error(projected: Projected, rows: slice, history: np.ndarray, own: np.ndarray, dtype: object) -> np.ndarray:
    """How far scores may be off because queries, keys and weights are, f64[queries, kv].

    Args:
      rows: tokens of one sequence. history: f64[kv, dim], its exact keys in order. own: i[kv], the token that made each
        key in this step, -1 for one that the cache held.

    Errors of the elements of a head's dot product are independent, so four times their quadratic sum stands for them
    (step 1 of `checks/tolerance.py`); heads, and the error of the weights, are added up.
    """
    q, w = projected.queries, projected.weights
    dq, dw = q.error(dtype)[rows], w.error(dtype)[rows]
    dk = np.where((own >= 0)[:, None], projected.keys.error(dtype)[own], 0.0)
    value, weight = q.value[rows], np.abs(w.value[rows])
    dots = np.sqrt(dq**2 @ (history**2).T + value**2 @ (dk**2).T)
    relu = np.maximum(value @ history.T, 0.0)
    return np.einsum("qhk,qh->qk", 4 * dots, weight) + np.einsum("qhk,qh->qk", relu, dw)


def _linear(x: np.ndarray, weight: np.ndarray) -> Vectors:
    """x [n, in] times weight [out, in] transposed, once rounded."""
    wide = weight.astype(np.float64)
    value = x @ wide.T
    return Vectors(value, np.abs(value), 2 * len(wide.T) ** 0.5 * np.sqrt(x**2 @ (wide**2).T))


def _layer_norm(x: Vectors, weight: np.ndarray, bias: np.ndarray, eps: float) -> Vectors:
    """LayerNorm with bias over the last axis. An error of one element moves all through the mean and the variance."""
    weight, bias = weight.astype(np.float64), bias.astype(np.float64)
    centred = x.value - x.value.mean(axis=-1, keepdims=True)
    size = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    unit = centred / size
    value = weight * unit + bias

    def spread(error: np.ndarray) -> np.ndarray:
        shared = np.sqrt((error**2).mean(axis=-1, keepdims=True))
        return np.abs(weight) / size * (error + (1 + np.abs(unit)) * shared)

    sums = x.arithmetic + 4 * np.abs(x.value)
    return Vectors(value, spread(x.rounding) + np.abs(value), spread(sums) + 4 * np.abs(value))


def _rotate(x: Vectors, positions: np.ndarray, convention: IndexerConvention) -> Vectors:
    """Turn the pairs of the first `rope_dim` lanes by position * frequency, theta^(-2i / rope_dim) unless given; the
    other lanes stay."""
    pairs = convention.rope_dim // 2
    given = convention.frequencies
    frequency = convention.rope_theta ** (-np.arange(pairs) / pairs) if given is None else np.array(given)
    angle = positions[:, None, None] * frequency
    lane = np.arange(pairs)
    a, b = (2 * lane, 2 * lane + 1) if convention.rope == "interleaved" else (lane, lane + pairs)
    value, rounding, arithmetic = (part.copy() for part in vars(x).values())
    turned = (x.value[..., a] + 1j * x.value[..., b]) * np.exp(1j * angle)
    value[..., a], value[..., b] = turned.real, turned.imag
    for scale, extra in ((rounding, 0.0), (arithmetic, (3 * angle + 4) * np.abs(turned))):
        both = np.hypot(scale[..., a], scale[..., b]) + extra
        scale[..., a], scale[..., b] = both, both
    return Vectors(value, rounding + np.abs(value), arithmetic)
