"""Sparse MLA prefill, one program a query: write the chunk's latent, then attend each query's own pages.

What moves: the chunk's rows once into the cache, 16 at a time (`cache_write`), then for EVERY query each of its
selected pages (`query_attention`): tokens * k pages in all. `sparse_mla_prefill_qblock` gives the same answer
and fetches a page once for a whole block of queries; this one is the right choice where neighbouring queries
select different pages, and the plainer statement of what both compute.
"""

import jax
import jax.numpy as jnp

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import latent_rows
from dsa_verify.kernels.pallas.query_attention import query_attention


@implements("sparse_mla_prefill")
def sparse_mla_prefill(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_pages: jax.Array,
    positions: jax.Array,
    out_cache_loc: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
    pages_per_step: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Write the new rows, then attend the causal tokens of the pages each query selected.

    Args:
      ql_nope: [tokens, heads, kv_lora_rank]; q_pe: [tokens, heads, qk_rope_head_dim].
      new_c_kv, new_k_pe: [tokens, ...], the chunk's latents and rotated keys.
      cache_kv: [pages, page_size, latent_width], updated in place when donated.
      topk_pages: i32[tokens, k], sequence-local pages, -1 fills the tail; none at all gives zeros.
      positions, out_cache_loc: i32[tokens]; -1 for padding, which writes and attends nothing.
      cu_q_lens: i32[seqs + 1]; page_table: i32[seqs, pages_per_seq].
      sm_scale: softmax scale of the product before absorption.

    Returns: ([tokens, heads, kv_lora_rank], cache). Raises `ContractError` on a call outside the contract.
    """
    cache = write_rows(latent_rows(new_c_kv, new_k_pe).astype(cache_kv.dtype), cache_kv, out_cache_loc)
    token = jnp.arange(positions.shape[0], dtype=jnp.int32)
    seq = jnp.searchsorted(cu_q_lens[1:], token, side="right")
    # Tokens behind the last sequence read the last row, and select nothing.
    physical = jnp.where(topk_pages >= 0, jnp.take_along_axis(page_table[seq], topk_pages, axis=1), -1)
    out = query_attention(
        latent_rows(ql_nope, q_pe),
        cache,
        physical,
        topk_pages,
        positions,
        rank=ql_nope.shape[-1],
        sm_scale=sm_scale,
        pages_per_step=pages_per_step,
    )
    return out, cache
