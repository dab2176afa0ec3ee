"""Index scores of one sequence in float64: how much each past token matters to each query."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Scores:
    """Index scores of one sequence.

    `value` f64[queries, kv] is `sum_h w_h * relu(q_h . k)`, -inf where the key is not causal. `magnitude`
    f64[queries, kv] is `sum_h |w_h| * sum_d |q_hd * k_d|`: the sum that rounding errors are relative to.
    """

    value: np.ndarray
    magnitude: np.ndarray


def index_scores(index_q: np.ndarray, index_weights: np.ndarray, index_k: np.ndarray, positions: np.ndarray) -> Scores:
    """Score every key of a sequence for every query.

    Args:
      index_q: [queries, index_n_heads, index_head_dim], rotated as the model does.
      index_weights: [queries, index_n_heads], any sign; the ReLU acts on q.k, before the weight.
      index_k: [kv, index_head_dim], keys in order of position.
      positions: i[queries], position of each query; keys behind it are causal.

    Source: DeepSeek-V3.2-Exp inference/model.py, Indexer.forward (fp8_index): relu, head weights, head sum.
    """
    q, w, k = (np.asarray(x, np.float64) for x in (index_q, index_weights, index_k))
    value = np.einsum("qhk,qh->qk", np.maximum(q @ k.T, 0.0), w, optimize=True)
    magnitude = np.einsum("qhk,qh->qk", np.abs(q) @ np.abs(k).T, np.abs(w), optimize=True)
    causal = np.arange(len(k)) <= np.asarray(positions)[:, None]
    return Scores(np.where(causal, value, -np.inf), magnitude)


def page_scores(scores: Scores, page_size: int) -> Scores:
    """Score of each sequence-local page, [queries, ceil(kv / page_size)]: its best causal token.

    The magnitude is the largest in the page, so that a rounding band of a page covers that of its tokens.
    """
    queries, kv = scores.value.shape
    pages = -(-kv // page_size)
    pad = ((0, 0), (0, pages * page_size - kv))
    value = np.pad(scores.value, pad, constant_values=-np.inf).reshape(queries, pages, page_size)
    magnitude = np.pad(scores.magnitude, pad).reshape(queries, pages, page_size)
    return Scores(value.max(axis=2, initial=-np.inf), magnitude.max(axis=2, initial=0.0))


def best(value: np.ndarray, k: int) -> np.ndarray:
    """The k best columns of each row, i32[rows, k]: highest score first, lowest column among equals.

    Columns at -inf are never chosen; -1 fills the tail.
    """
    order = np.argsort(-value, axis=1, kind="stable")[:, :k]
    chosen = np.where(np.take_along_axis(value, order, axis=1) > -np.inf, order, -1)
    return np.pad(chosen, ((0, 0), (0, k - chosen.shape[1])), constant_values=-1).astype(np.int32)
