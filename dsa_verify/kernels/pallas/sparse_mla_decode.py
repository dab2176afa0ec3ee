"""Sparse MLA decode: one query a sequence over its selected pages and the page of its own token.

What moves: one 16-row tile in and out to write each new row (`cache_write`), then each listed page once
(`query_attention`). The own page is always attended, because the indexer scores complete pages of history
and the newest token must not depend on its own rank; where the selection names it already, it is not
fetched twice.
"""

import jax
import jax.numpy as jnp

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import TokenPlacement, latent_rows, slots
from dsa_verify.kernels.pallas.query_attention import query_attention


@implements("sparse_mla_decode")
def sparse_mla_decode(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_pages: jax.Array,
    kv_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
    pages_per_step: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Write each sequence's new row, then attend its selected pages and its own.

    Args:
      ql_nope: [seqs, heads, kv_lora_rank]; q_pe: [seqs, heads, qk_rope_head_dim].
      new_c_kv, new_k_pe: [seqs, ...], the new token of each sequence.
      cache_kv: [pages, page_size, latent_width], updated in place when donated.
      topk_pages: i32[seqs, k], sequence-local pages, -1 fills the tail.
      kv_lens: i32[seqs] with the new token; 0 is a padding slot, which writes and attends nothing.
      page_table: i32[seqs, pages_per_seq].
      sm_scale: softmax scale of the product before absorption.

    Returns: ([seqs, heads, kv_lora_rank], cache). Raises `ContractError` on a call outside the contract.
    """
    page_size = cache_kv.shape[1]
    seq = jnp.arange(kv_lens.shape[0], dtype=jnp.int32)
    here = TokenPlacement(jnp.where(kv_lens > 0, seq, -1), kv_lens - 1)
    rows = latent_rows(new_c_kv, new_k_pe).astype(cache_kv.dtype)
    cache = write_rows(rows, cache_kv, slots(page_table, here, page_size))

    own = here.position[:, None] // page_size  # rounds down, so that padding has page -1
    logical = jnp.concatenate([jnp.where(topk_pages == own, -1, topk_pages), own], axis=1)
    physical = jnp.where(logical >= 0, jnp.take_along_axis(page_table, logical, axis=1), -1)
    out = query_attention(
        latent_rows(ql_nope, q_pe),
        cache,
        physical,
        logical,
        here.position,
        rank=ql_nope.shape[-1],
        sm_scale=sm_scale,
        pages_per_step=pages_per_step,
    )
    return out, cache
