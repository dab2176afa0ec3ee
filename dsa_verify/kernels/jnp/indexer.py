"""Indexer surfaces in plain jax.numpy: project, write the keys; gather each token's keys, score, keep the best."""

import jax
import jax.numpy as jnp

from dsa_verify.contract import implements
from dsa_verify.kernels.jnp.projections import project
from dsa_verify.kernels.jnp.ragged import over_sequences, place, write_rows
from dsa_verify.shapes import IndexerConvention


@implements("index_topk")
def index_topk(
    index_q: jax.Array,
    index_weights: jax.Array,
    index_cache: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    index_topk: int,
) -> jax.Array:
    """Best `index_topk` causal positions of each token, i32[tokens, index_topk], -1 at the tail.

    Shapes and errors are those of the surface's contract. Materialises [tokens, pages_per_seq * page_size] scores.
    """
    scores = _scores(index_q, index_weights, index_cache, kv_lens, cu_q_lens, page_table)
    return _best(scores, index_topk)[1]


@implements("index_page_topk")
def index_page_topk(
    index_q: jax.Array,
    index_weights: jax.Array,
    index_cache: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    index_topk: int,
) -> jax.Array:
    """Best `ceil(index_topk / page_size)` pages of each token, i32[tokens, k_pages], -1 at the tail.

    A page scores its best causal token. Shapes and errors are those of the surface's contract.
    """
    page_size = index_cache.shape[1]
    scores = _scores(index_q, index_weights, index_cache, kv_lens, cu_q_lens, page_table)
    by_page = scores.reshape(scores.shape[0], -1, page_size).max(axis=2)
    return _best(by_page, -(-index_topk // page_size))[1]


@implements("indexer")
def indexer(
    hidden: jax.Array,
    q_lora: jax.Array,
    wq_b: jax.Array,
    wk: jax.Array,
    k_norm: jax.Array,
    k_norm_bias: jax.Array,
    weights_proj: jax.Array,
    index_cache: jax.Array,
    positions: jax.Array,
    out_cache_loc: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    index_topk: int,
    convention: IndexerConvention,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write the new tokens' index keys, then choose positions by the scores over all keys.

    Shapes and errors are those of the surface's contract. Returns positions and scores, best first, and the cache.
    """
    query, keys, weights = project(hidden, q_lora, wq_b, wk, k_norm, k_norm_bias, weights_proj, positions, convention)
    written = write_rows(keys, index_cache, out_cache_loc)
    scores, chosen = _best(_scores(query, weights, written, kv_lens, cu_q_lens, page_table), index_topk)
    return chosen, scores, written


def _scores(
    index_q: jax.Array,
    index_weights: jax.Array,
    index_cache: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
) -> jax.Array:
    """f32[tokens, pages_per_seq * page_size]: sum_h w_h * relu(q_h . k), -inf where not causal."""
    placement = place(kv_lens, cu_q_lens, index_q.shape[0])
    (scores,) = over_sequences(_score_keys, index_cache, page_table, placement.seq, index_q, index_weights)
    causal = jnp.arange(scores.shape[1]) <= placement.position[:, None]
    return jnp.where(causal, scores, -jnp.inf)


def _score_keys(keys: jax.Array, own: jax.Array, index_q: jax.Array, index_weights: jax.Array) -> tuple[jax.Array]:
    del own  # every score stands alone
    dots = jnp.einsum(
        "thd,kd->thk", index_q, keys, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
    )
    return (jnp.sum(jnp.maximum(dots, 0.0) * index_weights[:, :, None], axis=1),)


def _best(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Scores and numbers of the k best columns; `top_k` keeps the lower column first among equals."""
    # `top_k` ranks 0.0 above -0.0, which negative head weights make of a key that no head likes.
    scores = jnp.where(scores == 0.0, 0.0, scores)
    scores = jnp.pad(scores, ((0, 0), (0, max(0, k - scores.shape[1]))), constant_values=-jnp.inf)
    values, columns = jax.lax.top_k(scores, k)
    return values, jnp.where(values == -jnp.inf, -1, columns).astype(jnp.int32)
