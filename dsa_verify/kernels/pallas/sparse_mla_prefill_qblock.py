"""Sparse MLA prefill by query blocks: a block of queries fetches the union of its selected pages once.

What moves: the chunk's rows once into the cache (`cache_write`); then, for every block of `query_block`
consecutive tokens, each page that at least one of them selected, exactly once, through a ring of `RING` steps
of pages. Neighbouring queries select nearly the same pages (sinks, the local window), so this is up to
query_block times less than one fetch a query. Pages are told apart by their entry in the page table
(sequence * pages_per_seq + page), so a block may hold tokens of several sequences.

Whether a query may see a page of the union is decided on chip: the entries that each query selected lie in
VMEM, one lane a query and head; a page compares its own entry with all of them. No mask is made in HBM.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.block_attention import KEYS_PER_STEP, Accumulator, flat_queries, per_lane
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import Copy, Ref, Scalar, latent_rows, pad_to
from dsa_verify.shapes import align

QUERY_BLOCK = 128
RING = 3
"""Steps of pages in VMEM: one being used, two on their way."""

NO_ENTRY = jnp.iinfo(jnp.int32).max
"""Fills lists of entries; sorts behind every real one."""


@dataclass(frozen=True)
class PageUnion:
    """The union of the pages of one block, one row of scalars in SMEM, i32[1, 1, 2 * most + 1]:

        | entry in the page table, `most` of them | page in the pool, `most` of them | count |

    The first `count` entries are distinct and ascend; what stands behind them means nothing, and is never fetched.
    """

    row: Ref
    most: int
    step: int  # pages a step

    @staticmethod
    def pack(union: jax.Array, physical: jax.Array, most: int) -> jax.Array:
        """The rows of all blocks, i32[blocks, 1, 2 * most + 1]; entries end where `NO_ENTRY` begins."""
        count = jnp.sum(union != NO_ENTRY, axis=1, dtype=jnp.int32)
        return jnp.concatenate([pad_to(union, most, 1), pad_to(physical, most, 1), count[:, None]], 1)[:, None]

    def entry(self, at: Scalar, i: int) -> jax.Array:
        """Entry i of step `at`."""
        return self.row[0, 0, at * self.step + i]

    def page(self, at: Scalar, i: int) -> jax.Array:
        """The page of that entry."""
        return self.row[0, 0, self.most + at * self.step + i]

    def count(self) -> jax.Array:
        return self.row[0, 0, 2 * self.most]


@dataclass(frozen=True)
class PageRing:
    """`RING` buffers that the steps of a block take in turn: one is attended while the others fill.

    `sems` holds one DMA semaphore a buffer, which counts the bytes of that buffer's pages that have arrived.
    """

    union: PageUnion
    count: jax.Array  # of the union, read once
    cache: Ref  # HBM [pages, page_size, latent_width]
    buffers: Ref  # VMEM [RING, pages_per_step, page_size, latent_width]
    sems: Ref

    def start(self, at: Scalar) -> None:
        """Start to fetch the pages of step `at`, of which there are none behind the last."""
        self._for_each_copy(at, lambda copy: copy.start())

    def wait(self, at: Scalar) -> None:
        """Wait for all of them."""
        self._for_each_copy(at, lambda copy: copy.wait())

    def _for_each_copy(self, at: Scalar, action: Callable[[Copy], None]) -> None:
        # Start and wait come by here both, so that they agree on where the union ends: a wait for a copy that nobody
        # started never ends. Places behind the end keep older pages, or what memory held at first, NaN included.
        slot, step = lax.rem(at, RING), self.union.step
        for i in range(step):

            @pl.when(at * step + i < self.count)
            def _(i: int = i) -> None:
                page = self.cache.at[self.union.page(at, i)]
                action(pltpu.make_async_copy(page, self.buffers.at[slot, i], self.sems.at[slot]))


@implements("sparse_mla_prefill_qblock")
def sparse_mla_prefill_qblock(
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
    query_block: int = QUERY_BLOCK,
    pages_per_step: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Write the new rows, then attend the causal tokens of the pages each query selected.

    Args: as `sparse_mla_prefill`. `query_block` tokens share one union of pages; times heads it should be a
      multiple of 128.

    Returns: ([tokens, heads, kv_lora_rank], f32[tokens, heads] natural-log lse, cache). A query with nothing
      selected gets zeros and lse -inf. Raises `ContractError` on a call outside the contract.
    """
    cache = write_rows(latent_rows(new_c_kv, new_k_pe).astype(cache_kv.dtype), cache_kv, out_cache_loc)
    tokens, heads, _ = ql_nope.shape
    blocks = -(-tokens // query_block)
    entries = _entries(topk_pages, cu_q_lens, page_table.shape[1])
    union = _union(pad_to(entries, blocks * query_block, value=NO_ENTRY), blocks, page_table.size)
    out, lse = _attend(
        flat_queries(ql_nope, q_pe, blocks * query_block),
        cache,
        union,
        page_table.reshape(-1)[union],  # any page for `NO_ENTRY`, which is not fetched
        per_lane(entries, blocks, query_block, heads),
        per_lane(positions, blocks, query_block, heads),
        rank=ql_nope.shape[2],
        sm_scale=sm_scale,
        pages_per_seq=page_table.shape[1],
        step=pages_per_step or max(1, KEYS_PER_STEP // cache.shape[1]),
    )
    return out.reshape(-1, heads, ql_nope.shape[2])[:tokens], lse.reshape(-1, heads)[:tokens], cache


def _entries(topk_pages: jax.Array, cu_q_lens: jax.Array, pages_per_seq: int) -> jax.Array:
    """Page table entry of every selected page, i32[tokens, k]; `NO_ENTRY` where nothing is selected."""
    token = jnp.arange(topk_pages.shape[0], dtype=jnp.int32)
    seq = jnp.searchsorted(cu_q_lens[1:], token, side="right").astype(jnp.int32)
    return jnp.where(topk_pages >= 0, seq[:, None] * pages_per_seq + topk_pages, NO_ENTRY)


def _union(entries: jax.Array, blocks: int, table_size: int) -> jax.Array:
    """Distinct entries of each block in ascending order, i32[blocks, most]; `NO_ENTRY` fills the tail."""
    ordered = jnp.sort(entries.reshape(blocks, -1), axis=1)
    repeated = jnp.pad(ordered[:, 1:] == ordered[:, :-1], ((0, 0), (1, 0)))
    return jnp.sort(jnp.where(repeated, NO_ENTRY, ordered), axis=1)[:, :table_size]


def _attend(
    q: jax.Array, cache: jax.Array, union: jax.Array, physical: jax.Array, entries: jax.Array, positions: jax.Array, *,
    rank: int, sm_scale: float, pages_per_seq: int, step: int,
) -> list[jax.Array]:  # fmt: skip
    blocks, k, lanes = entries.shape
    _, page_size, width = cache.shape
    most = align(union.shape[1], step)
    lists = PageUnion.pack(union, physical, most)
    return pl.pallas_call(
        lambda *refs: _kernel(*refs, sm_scale=sm_scale, pages_per_seq=pages_per_seq, step=step, most=most),
        grid=(blocks,),
        in_specs=[
            pl.BlockSpec((1, 1, lists.shape[2]), lambda b: (b, 0, 0), memory_space=pltpu.SMEM),
            pl.BlockSpec((1, k, lanes), lambda b: (b, 0, 0)),
            pl.BlockSpec((1, 1, lanes), lambda b: (b, 0, 0)),
            pl.BlockSpec((lanes, width), lambda b: (b, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=[pl.BlockSpec((lanes, rank), lambda b: (b, 0)), pl.BlockSpec((1, 1, lanes), lambda b: (b, 0, 0))],
        out_shape=[
            jax.ShapeDtypeStruct((blocks * lanes, rank), q.dtype),
            jax.ShapeDtypeStruct((blocks, 1, lanes), jnp.float32),
        ],
        scratch_shapes=[
            pltpu.VMEM((RING, step, page_size, width), cache.dtype),
            pltpu.SemaphoreType.DMA((RING,)),
            *Accumulator.scratch(rank, lanes),
        ],
        name="dsa_sparse_mla_prefill_qblock",
    )(lists, entries, positions, q, cache)


def _kernel(
    row: Ref, entries: Ref, positions: Ref, q_ref: Ref, cache_hbm: Ref, out_ref: Ref, lse_ref: Ref,
    ring: Ref, sems: Ref, *accumulator: Ref, sm_scale: float, pages_per_seq: int, step: int, most: int,
) -> None:  # fmt: skip
    page_size, width = ring.shape[2:]
    union = PageUnion(row, most, step)
    count = union.count()
    pages = PageRing(union, count, cache_hbm, ring, sems)
    softmax = Accumulator(*accumulator)
    softmax.clear()  # it still holds the block before

    def last_seen(at: jax.Array, i: int) -> jax.Array:
        """The last row of page i of a step that each lane sees; -1 where it did not select the page."""
        entry = union.entry(at, i)
        # As int32, because Pallas lowers no maximum of a vector of bits.
        selected = jnp.max((entries[0] == entry).astype(jnp.int32), axis=0, keepdims=True)
        first = lax.rem(entry, pages_per_seq) * page_size
        # Behind the count, `entry` is padding, which lanes hold too, or is of the row's next list.
        listed = (selected > 0) & (at * step + i < count)
        return jnp.where(listed, positions[0] - first, -1)

    for ahead in range(RING - 1):
        pages.start(ahead)

    @pl.loop(0, pl.cdiv(count, step))
    def _(at: jax.Array) -> None:
        # Into the buffer of step `at - 1`, which the last turn has read.
        pages.start(at + RING - 1)
        pages.wait(at)
        keys = ring[lax.rem(at, RING)].reshape(step * page_size, width)
        softmax.add(q_ref[...], keys, [last_seen(at, i) for i in range(step)], sm_scale)

    # No copy is left on its way: those of the steps behind the last, which the loop started too, are none.
    out_ref[...] = softmax.output().astype(out_ref.dtype)
    lse_ref[0] = softmax.lse()
