"""Random weights of one layer's indexer, and the hidden states that it projects, for the surface `indexer`."""

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import DTypeLike

from dsa_verify.batch.values import HIDDEN, LAYER, LOUDNESS, Q_LORA, stream
from dsa_verify.shapes import ModelShape

QUIETEST, LOUDEST = -3.0, 0.5
"""Decimal exponents between which the size of a token's hidden state lies. The quietest keys have a variance of about
1e-6, the epsilon of their norm, so that another epsilon or another norm is another key."""


@dataclass(frozen=True, eq=False)
class IndexerWeights:
    """Projections and key norm of an indexer, in the model's dtype; matrices are [out, in], as in checkpoints."""

    wq_b: np.ndarray  # [index_n_heads * index_head_dim, q_lora_rank]
    wk: np.ndarray  # [index_head_dim, hidden_size]
    k_norm: np.ndarray  # [index_head_dim]
    k_norm_bias: np.ndarray  # [index_head_dim]
    weights_proj: np.ndarray  # [index_n_heads, hidden_size]

    def __post_init__(self) -> None:
        for field in fields(self):
            getattr(self, field.name).flags.writeable = False


def indexer_weights(shape: ModelShape, dtype: DTypeLike, seed: int) -> IndexerWeights:
    """Random weights of unit gain. Keys have a mean beside their variance: a norm that leaves it in gives others."""
    heads, dim, hidden, rank = shape.index_n_heads, shape.index_head_dim, shape.hidden_size, shape.q_lora_rank
    dims = [(heads * dim, rank), (dim, hidden), (dim,), (dim,), (heads, hidden)]
    wq_b, wk, norm, bias, proj = (
        stream(seed, LAYER, at).standard_normal(size) / size[-1] ** (0.5 * (len(size) == 2))
        for at, size in enumerate(dims)
    )
    wk = wk + 0.5 * stream(seed, LAYER, len(dims)).standard_normal(hidden) / hidden**0.5
    cast = [x.astype(dtype) for x in (wq_b, wk, 1 + 0.25 * norm, 0.25 * bias, proj)]
    return IndexerWeights(*cast)


def hidden_states(shape: ModelShape, seed: int, seq: int, positions: np.ndarray) -> dict[str, np.ndarray]:
    """`hidden` f64[q_len, hidden_size] and `q_lora` f64[q_len, q_lora_rank] of the new tokens of one sequence."""
    n = len(positions)
    loudness = 10.0 ** stream(seed, LOUDNESS, seq).uniform(QUIETEST, LOUDEST, (n, 1))
    return {
        "hidden": loudness * stream(seed, HIDDEN, seq).standard_normal((n, shape.hidden_size)),
        "q_lora": stream(seed, Q_LORA, seq).standard_normal((n, shape.q_lora_rank)),
    }
