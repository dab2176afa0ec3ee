"""Dense absorbed MLA over a ragged paged cache: every causal token of every query.

What moves: the new rows once into the cache (`cache_write`); then, for every block of `query_block`
consecutive tokens, each causal page of each sequence with tokens in the block, once, through two buffers of
`pages_per_step` pages. A block walks its sequences one after another in a single flattened loop, so the first
pages of the next sequence are already on their way while the last ones of this one are used. Pages behind
the block's last token of a sequence are neither fetched nor scored, which is what halves a causal prefill.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.block_attention import KEYS_PER_STEP, Accumulator, flat_queries, per_lane
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import block_span, latent_rows, place, slots

LANES_PER_BLOCK = 256
"""Queries times heads of one block; 256 fills the MXU of v6e and later, two passes on v5e."""


@implements("dense_mla")
def dense_mla(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
    query_block: int | None = None,
    pages_per_step: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Write the new rows, then attend all causal tokens.

    Args:
      ql_nope: [tokens, heads, kv_lora_rank]; q_pe: [tokens, heads, qk_rope_head_dim].
      new_c_kv, new_k_pe: [tokens, ...], the step's latents and rotated keys.
      cache_kv: [pages, page_size, latent_width], updated in place when donated.
      kv_lens: i32[seqs], tokens in cache with the new ones, 0 for padding; cu_q_lens: i32[seqs + 1].
      page_table: i32[seqs, pages_per_seq]; entries behind a sequence's last page are never read.
      sm_scale: softmax scale of the product before absorption.

    Returns: ([tokens, heads, kv_lora_rank], cache). Raises `ContractError` on a call outside the contract.
    """
    tokens, heads, rank = ql_nope.shape
    placement = place(kv_lens, cu_q_lens, tokens)
    rows = latent_rows(new_c_kv, new_k_pe).astype(cache_kv.dtype)
    cache = write_rows(rows, cache_kv, slots(page_table, placement, cache_kv.shape[1]))

    block = query_block or max(1, LANES_PER_BLOCK // heads)
    blocks = -(-tokens // block)
    metadata = (*block_span(cu_q_lens, blocks, block), kv_lens, cu_q_lens, page_table)
    out = _attend(
        flat_queries(ql_nope, q_pe, blocks * block),
        cache,
        metadata,
        per_lane(jnp.stack(placement, axis=1), blocks, block, heads),
        block=block,
        rank=rank,
        sm_scale=sm_scale,
        step=pages_per_step or max(1, KEYS_PER_STEP // cache.shape[1]),
    )
    return out.reshape(-1, heads, rank)[:tokens], cache


def _attend(q, cache, metadata, places, *, block, rank, sm_scale, step):
    blocks, _, lanes = places.shape
    _, page_size, width = cache.shape
    return pl.pallas_call(
        lambda *refs: _kernel(*refs, block=block, sm_scale=sm_scale, step=step),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(metadata),
            grid=(blocks,),
            in_specs=[
                pl.BlockSpec((1, 2, lanes), lambda b, *_: (b, 0, 0)),
                pl.BlockSpec((lanes, width), lambda b, *_: (b, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((lanes, rank), lambda b, *_: (b, 0)),
            scratch_shapes=[
                pltpu.VMEM((2, step, page_size, width), cache.dtype),
                pltpu.SemaphoreType.DMA((2,)),
                *Accumulator.scratch(rank, lanes),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((blocks * lanes, rank), q.dtype),
        name="dsa_dense_mla",
    )(*metadata, places, q, cache)


def _kernel(
    first_seq, last_seq, kv_lens, cu_q_lens, page_table, places, q_ref, cache_hbm, out_ref, buffers, sems,
    *accumulator, block: int, sm_scale: float, step: int,
):  # fmt: skip
    page_size, width = buffers.shape[2:]
    this = pl.program_id(0)
    softmax = Accumulator(*accumulator)
    softmax.clear()

    def causal_pages(seq):
        """Pages of a sequence up to its last token in this block; none without a token, nor of padding."""
        last_row = jnp.minimum(cu_q_lens[seq + 1], (this + 1) * block) - 1
        visible = kv_lens[seq] - cu_q_lens[seq + 1] + last_row + 1
        return jnp.where(cu_q_lens[seq] < cu_q_lens[seq + 1], pl.cdiv(visible, page_size), 0)

    def for_each_copy(seq, at, slot, action):
        pages = causal_pages(seq)
        for i in range(step):
            page = at * step + i

            @pl.when(page < pages)
            def _(page=page, i=i):
                action(pltpu.make_async_copy(cache_hbm.at[page_table[seq, page]], buffers.at[slot, i], sems.at[slot]))

    def start(seq, at, slot):
        pl.when(seq < last_seq[this])(lambda: for_each_copy(seq, at, slot, lambda copy: copy.start()))

    def one_step(carry):
        seq, at, slot = carry
        done = (at + 1) * step >= causal_pages(seq)
        next_seq, next_at = jnp.where(done, seq + 1, seq), jnp.where(done, 0, at + 1)
        start(next_seq, next_at, 1 - slot)
        for_each_copy(seq, at, slot, lambda copy: copy.wait())
        keys = buffers[slot].reshape(step * page_size, width)
        lane_seq, position = places[0, 0:1], places[0, 1:2]
        last_seen = jnp.where(lane_seq == seq, position - at * step * page_size, -1)
        softmax.add(
            q_ref[...], keys, [last_seen], sm_scale
        )  # a sequence's pages of a step are one stretch of positions
        return next_seq, next_at, 1 - slot

    begin = (first_seq[this], jnp.int32(0), jnp.int32(0))
    start(*begin)
    lax.while_loop(lambda carry: carry[0] < last_seq[this], one_step, begin)
    out_ref[...] = softmax.output().astype(out_ref.dtype)
