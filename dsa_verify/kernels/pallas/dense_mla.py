"""Dense absorbed MLA over a ragged paged cache: every causal token of every query.

What moves: the new rows once into the cache (`cache_write`); then, for every block of `query_block`
consecutive tokens, each causal page of each sequence with tokens in the block, once, through two buffers of
`pages_per_step` pages. A block walks its sequences one after another in a single flattened loop, so the first
pages of the next sequence are already on their way while the last ones of this one are used. Pages behind
the block's last token of a sequence are neither fetched nor scored, which is what halves a causal prefill.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.block_attention import KEYS_PER_STEP, Accumulator, flat_queries, per_lane
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import (
    Copy,
    Operand,
    Ref,
    Scalar,
    TokenPlacement,
    block_span,
    latent_rows,
    place,
    slots,
)

LANES_PER_BLOCK = 256
"""Queries times heads of one block; 256 fills the MXU of v6e and later, two passes on v5e."""


class StepScalars(NamedTuple):
    """Scalars in SMEM: which sequences have tokens in each block, both i32[blocks], and the metadata of the step."""

    first_seq: Operand
    last_seq: Operand  # one past the last
    kv_lens: Operand
    cu_q_lens: Operand
    page_table: Operand


class LanePlaces(NamedTuple):
    """Whose query each lane of a block holds and where that stands, two rows of i32[blocks, 2, lanes] in VMEM:

    row 0   sequence, -1 for padding
    row 1   position
    """

    seq: jax.Array  # i32[1, lanes]
    position: jax.Array

    @staticmethod
    def pack(placement: TokenPlacement, blocks: int, query_block: int, heads: int) -> jax.Array:
        return per_lane(jnp.stack([placement.seq, placement.position], axis=1), blocks, query_block, heads)

    @classmethod
    def read(cls, places: Ref) -> "LanePlaces":
        return cls(places[0, 0:1], places[0, 1:2])


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
    scalars = StepScalars(*block_span(cu_q_lens, blocks, block), kv_lens, cu_q_lens, page_table)
    out = _attend(
        flat_queries(ql_nope, q_pe, blocks * block),
        cache,
        scalars,
        LanePlaces.pack(placement, blocks, block, heads),
        block=block,
        rank=rank,
        sm_scale=sm_scale,
        step=pages_per_step or max(1, KEYS_PER_STEP // cache.shape[1]),
    )
    return out.reshape(-1, heads, rank)[:tokens], cache


def _attend(
    q: jax.Array, cache: jax.Array, scalars: StepScalars, places: jax.Array, *,
    block: int, rank: int, sm_scale: float, step: int,
) -> jax.Array:  # fmt: skip
    blocks, _, lanes = places.shape
    _, page_size, width = cache.shape
    return pl.pallas_call(
        lambda *refs: _kernel(*refs, block=block, sm_scale=sm_scale, step=step),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
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
    )(*scalars, places, q, cache)


@dataclass(frozen=True)
class CausalPages:
    """Brings the causal pages of a block's sequences into two buffers, `step` pages at a time, inside the kernel.

    `cache` [pages, page_size, width] is HBM, `buffers` [2, step, page_size, width] VMEM. `sems` holds one DMA semaphore
    a buffer, which counts the bytes of that buffer's pages that have arrived.
    """

    this: jax.Array  # the block
    scalars: StepScalars
    cache: Ref
    buffers: Ref
    sems: Ref
    block: int
    step: int

    def count(self, seq: Scalar) -> jax.Array:
        """Pages of a sequence up to its last token in this block; none without a token, nor of padding."""
        kv_lens, cu_q_lens = self.scalars.kv_lens, self.scalars.cu_q_lens
        last_row = jnp.minimum(cu_q_lens[seq + 1], (self.this + 1) * self.block) - 1
        visible = kv_lens[seq] - cu_q_lens[seq + 1] + last_row + 1
        return jnp.where(cu_q_lens[seq] < cu_q_lens[seq + 1], pl.cdiv(visible, self.buffers.shape[2]), 0)

    def start(self, seq: Scalar, at: Scalar, slot: Scalar) -> None:
        """Start to fetch step `at` of a sequence; behind the block's last sequence there is none."""
        here = seq < self.scalars.last_seq[self.this]
        pl.when(here)(lambda: self._for_each_copy(seq, at, slot, lambda copy: copy.start()))

    def wait(self, seq: Scalar, at: Scalar, slot: Scalar) -> None:
        """Wait for all of it."""
        self._for_each_copy(seq, at, slot, lambda copy: copy.wait())

    def _for_each_copy(self, seq: Scalar, at: Scalar, slot: Scalar, action: Callable[[Copy], None]) -> None:
        # Start and wait come by here both, so that they agree on the last page: a wait for a copy that nobody started
        # never ends. Places behind it keep older pages, or what memory held at first, NaN included.
        pages = self.count(seq)
        for i in range(self.step):
            page = at * self.step + i

            @pl.when(page < pages)
            def _(page: Scalar = page, i: int = i) -> None:
                source = self.cache.at[self.scalars.page_table[seq, page]]
                action(pltpu.make_async_copy(source, self.buffers.at[slot, i], self.sems.at[slot]))


def _kernel(*refs: Ref, block: int, sm_scale: float, step: int) -> None:
    fields = len(StepScalars._fields)
    scalars = StepScalars(*refs[:fields])
    places, q_ref, cache_hbm, out_ref, buffers, sems, *accumulator = refs[fields:]
    page_size, width = buffers.shape[2:]
    this = pl.program_id(0)
    pages = CausalPages(this, scalars, cache_hbm, buffers, sems, block, step)
    softmax = Accumulator(*accumulator)
    softmax.clear()  # it still holds the block before

    def one_step(carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
        seq, at, slot = carry
        done = (at + 1) * step >= pages.count(seq)
        next_seq, next_at = jnp.where(done, seq + 1, seq), jnp.where(done, 0, at + 1)
        # Into the buffer of the step before, which the last turn has read. The next step may be the first one of the
        # next sequence: the pipeline does not drain in between.
        pages.start(next_seq, next_at, 1 - slot)
        pages.wait(seq, at, slot)
        keys = buffers[slot].reshape(step * page_size, width)
        lane = LanePlaces.read(places)
        # A sequence's pages are in order of position, so the keys of a step are one stretch, of which a lane sees the
        # first rows. Lanes of other sequences see none, and with them stale rows are behind every lane's last.
        last_seen = jnp.where(lane.seq == seq, lane.position - at * step * page_size, -1)
        softmax.add(q_ref[...], keys, [last_seen], sm_scale)
        return next_seq, next_at, 1 - slot

    begin = (scalars.first_seq[this], jnp.int32(0), jnp.int32(0))
    pages.start(*begin)
    lax.while_loop(lambda carry: carry[0] < scalars.last_seq[this], one_step, begin)
    out_ref[...] = softmax.output().astype(out_ref.dtype)
