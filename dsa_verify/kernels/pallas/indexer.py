"""A layer's indexer around the kernels: project, norm and rotate, write the keys in place, score and choose.

What moves: the three weight matrices once, by XLA's matrix products; then each 16-row tile of the index cache that gets
a new key, in and out once (`cache_write`); then the keys as `index_topk` says. Norm and rotation are elementwise on
[tokens, heads * dim] and fuse into the products around them, so no kernel is written for them.

A rotation is `x * cos + partner(x) * sin`, where the partner is the neighbouring lane or the one half the rotary part
away. No pair is taken apart into strided lanes, which the vector unit could only do by shuffling all of them.
"""

import jax
import jax.numpy as jnp
from jax import lax

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas import indexing
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.flash import contract
from dsa_verify.kernels.pallas.index_topk import scored_topk
from dsa_verify.shapes import IndexerConvention


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
    query_block: int = indexing.QUERY_BLOCK,
    pages_per_step: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write the new tokens' index keys, then choose the `index_topk` best causal positions of every token.

    Args:
      hidden: [tokens, hidden_size], what enters the layer after its norm; q_lora: [tokens, q_lora_rank].
      wq_b: [index_n_heads * index_head_dim, q_lora_rank]; wk: [index_head_dim, hidden_size]; k_norm, k_norm_bias:
        [index_head_dim]; weights_proj: [index_n_heads, hidden_size].
      index_cache: [pages, page_size, index_head_dim], updated in place when donated.
      positions, out_cache_loc: i32[tokens]; -1 for padding. kv_lens, cu_q_lens, page_table, tiling: as `index_topk`.
      convention: rotary layout, base and width, and the epsilon of the key norm.

    Returns: i32 and f32[tokens, index_topk], positions and their scores, best first; -1 and -inf fill the tail. And the
      cache. Raises `ContractError` on a call outside the contract.
    Source: DeepSeek-V3.2-Exp inference/model.py, Indexer; without its Hadamard rotation, which changes no score.
    """
    heads, dim = weights_proj.shape[0], wk.shape[0]
    query = contract(q_lora, wq_b, (1, 1)).reshape(-1, heads, dim)
    key = _layer_norm(contract(hidden, wk, (1, 1)), k_norm, k_norm_bias, convention.norm_eps)
    weights = contract(hidden, weights_proj, (1, 1)) * (heads * dim) ** -0.5
    query, key = (rotate(x, positions, convention).astype(index_cache.dtype) for x in (query, key[:, None]))
    cache = write_rows(key[:, 0], index_cache, out_cache_loc)
    arrays = dict(
        index_q=query,
        index_weights=weights,
        index_cache=cache,
        kv_lens=kv_lens,
        cu_q_lens=cu_q_lens,
        page_table=page_table,
    )
    scores, chosen = scored_topk(arrays, index_topk, query_block, pages_per_step)
    return chosen, scores, cache


def _layer_norm(x: jax.Array, weight: jax.Array, bias: jax.Array, eps: float) -> jax.Array:
    """LayerNorm over the last axis of f32[tokens, dim]; the variance of what is centred, so that nothing cancels."""
    centred = x - jnp.mean(x, axis=-1, keepdims=True)
    variance = jnp.mean(centred * centred, axis=-1, keepdims=True)
    return centred * lax.rsqrt(variance + eps) * weight.astype(jnp.float32) + bias.astype(jnp.float32)


def rotate(x: jax.Array, positions: jax.Array, convention: IndexerConvention) -> jax.Array:
    """Turn the pairs of the first `rope_dim` lanes of f32[tokens, heads, dim] by their token's position."""
    frequency = jnp.asarray(convention.rotary, jnp.float32)
    dim, pairs, lane = convention.rope_dim, len(convention.rotary), jnp.arange(convention.rope_dim)
    if convention.rope == "interleaved":
        pair, first, partner = lane // 2, lane % 2 == 0, lane ^ 1
    else:
        pair, first, partner = lane % pairs, lane < pairs, (lane + pairs) % dim
    angle = positions.astype(jnp.float32)[:, None, None] * frequency[pair]
    rope = x[..., :dim]
    turned = rope * jnp.cos(angle) + rope[..., partner] * jnp.where(first, -jnp.sin(angle), jnp.sin(angle))
    return jnp.concatenate([turned, x[..., dim:]], axis=-1)
