"""Sparse MLA prefill by query blocks: a block of queries fetches the union of its selected pages once.

What moves: the chunk's rows once into the cache (`cache_write`); then, for every block of `query_block`
consecutive tokens, each page that at least one of them selected, exactly once, through a ring of `RING` steps
of pages. Neighbouring queries select nearly the same pages (sinks, the local window), so this is up to
query_block times less than one fetch a query. Pages are told apart by their entry in the page table
(sequence * pages_per_seq + page), so a block may hold tokens of several sequences.

Whether a query may see a page of the union is decided on chip: the entries that each query selected lie in
VMEM, one lane a query and head; a page compares its own entry with all of them. No mask is made in HBM.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import implements
from dsa_verify.kernels.pallas.block_attention import KEYS_PER_STEP, Accumulator, flat_queries, per_lane
from dsa_verify.kernels.pallas.cache_write import write_rows
from dsa_verify.kernels.pallas.layout import latent_rows, pad_to
from dsa_verify.shapes import align

QUERY_BLOCK = 128
RING = 3
"""Steps of pages in VMEM: one being used, two on their way."""

NO_ENTRY = jnp.iinfo(jnp.int32).max
"""Fills lists of entries; sorts behind every real one."""


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


def _attend(q, cache, union, physical, entries, positions, *, rank, sm_scale, pages_per_seq, step):
    blocks, k, lanes = entries.shape
    _, page_size, width = cache.shape
    most = align(union.shape[1], step)
    count = jnp.sum(union != NO_ENTRY, axis=1, dtype=jnp.int32)
    lists = jnp.concatenate([pad_to(union, most, 1), pad_to(physical, most, 1), count[:, None]], 1)[:, None]
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
    lists, entries, positions, q_ref, cache_hbm, out_ref, lse_ref, ring, sems, *accumulator,
    sm_scale: float, pages_per_seq: int, step: int, most: int,
):  # fmt: skip
    page_size, width = ring.shape[2:]
    count = lists[0, 0, 2 * most]
    softmax = Accumulator(*accumulator)
    softmax.clear()

    def for_each_copy(at, action):
        slot = lax.rem(at, RING)
        for i in range(step):

            @pl.when(at * step + i < count)
            def _(i=i):
                page = lists[0, 0, most + at * step + i]
                action(pltpu.make_async_copy(cache_hbm.at[page], ring.at[slot, i], sems.at[slot]))

    def start(at):
        for_each_copy(at, lambda copy: copy.start())

    def last_seen(at, i):
        """The last row of page i of a step that each lane sees; -1 where it did not select the page."""
        entry = lists[0, 0, at * step + i]
        selected = jnp.max((entries[0] == entry).astype(jnp.int32), axis=0, keepdims=True)
        first = lax.rem(entry, pages_per_seq) * page_size
        listed = (selected > 0) & (at * step + i < count)
        return jnp.where(listed, positions[0] - first, -1)

    for ahead in range(RING - 1):
        start(ahead)

    @pl.loop(0, pl.cdiv(count, step))
    def _(at):
        start(at + RING - 1)
        for_each_copy(at, lambda copy: copy.wait())
        keys = ring[lax.rem(at, RING)].reshape(step * page_size, width)
        softmax.add(q_ref[...], keys, [last_seen(at, i) for i in range(step)], sm_scale)

    out_ref[...] = softmax.output().astype(out_ref.dtype)
    lse_ref[0] = softmax.lse()
