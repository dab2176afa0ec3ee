"""What both indexer kernels share: query blocks, the stream of index keys out of the paged pool, and the score.

A query block is `query_block` consecutive tokens; sequences may begin and end inside it. Its work is a list of
items, one per (step, sequence): step j of a sequence is its pages [j * pages_per_step, (j + 1) * pages_per_step).
All sequences of a block take step j before any takes step j + 1, so a block finishes one window of columns at a
time. Items run through two key buffers: while one is scored, the pages of the next are on their way.

Only pages with a causal token of the block are fetched. That is more than thrift: entries of the page table
beyond a sequence's last page are not page ids at all, and a DMA through one reads out of the pool.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.errors import ContractError
from dsa_verify.kernels.contract import SURFACES, check_call
from dsa_verify.kernels.pallas.layout import pad_to
from dsa_verify.shapes import LANES, align

QUERY_BLOCK = 128
"""Queries that share one pass over the keys: the keys of a sequence cross HBM tokens / QUERY_BLOCK times."""
STEP_TOKENS = 512
"""Keys scored at once, at most: long enough to hide a DMA's latency, and four vector registers wide."""
STEP_PAGES = (8, 4, 2, 1)
"""Pages fetched at once, the first that fits: each adds a maximum to the code of a page selection."""
TILE_ROWS = 256
"""Rows (query x head) of one matrix product. Larger ones unroll into more vector code for the same rate, and a
decode, which fills one row of heads in a tile, wastes more of them."""
SUBLANES = 8
SLOTS = 2


@dataclass(frozen=True)
class Tiling:
    """The static sizes of one call; a tile is the `tile` queries that are scored together."""

    query_block: int
    tile: int
    heads: int
    page_size: int
    pages_per_step: int
    precision: lax.Precision

    @property
    def step_tokens(self) -> int:
        return self.pages_per_step * self.page_size


class Work(NamedTuple):
    """Scalars in SMEM. The last three, i32[blocks], say which sequences a block holds and how long the longest is."""

    page_table: Any
    kv_lens: Any
    cu_q_lens: Any
    first_seq: Any
    seqs: Any
    steps: Any


class Call(NamedTuple):
    """A call made ready for `pallas_call`: scalars, array operands, sizes."""

    work: Work
    queries: jax.Array  # [tokens * heads, index_head_dim]
    weights: jax.Array  # f32[tokens, heads]
    tiling: Tiling

    @property
    def query_specs(self) -> list[pl.BlockSpec]:
        """Queries and weights of one block; the grid's first axis counts blocks, the last block may overhang."""
        block, heads, dim = self.tiling.query_block, self.tiling.heads, self.queries.shape[1]
        return [
            pl.BlockSpec((block * heads, dim), lambda block, *_: (block, 0)),
            pl.BlockSpec((block, heads), lambda block, *_: (block, 0)),
        ]


def prepare(
    surface: str, arrays: dict[str, jax.Array], index_topk: int, query_block: int, pages_per_step: int | None
) -> Call:
    """Check a call and lay it out; raises `ContractError`.

    Heads are padded to whole sublane tiles with zero queries and zero weights, so that [tokens, heads, dim] and
    [tokens * heads, dim] are the same bytes and no kernel has to reshape a query. Real models need no padding.
    """
    axes = check_call(SURFACES[surface], arrays, {"index_topk": index_topk})
    queries, cache = arrays["index_q"], arrays["index_cache"]
    heads = align(axes["index_n_heads"], SUBLANES * 4 // queries.dtype.itemsize)
    tile = max(TILE_ROWS // heads // SUBLANES, 1) * SUBLANES
    tiling = Tiling(
        query_block=min(align(query_block, tile), align(axes["tokens"], tile)),
        tile=tile,
        heads=heads,
        page_size=axes["page_size"],
        pages_per_step=_pages_per_step(surface, axes["page_size"], pages_per_step),
        # The default multiplies float32 in one bfloat16 pass; bfloat16 products are exact in float32 anyway.
        precision=lax.Precision.HIGHEST if cache.dtype == jnp.float32 else lax.Precision.DEFAULT,
    )
    return Call(
        _work(arrays["page_table"], arrays["kv_lens"], arrays["cu_q_lens"], axes["tokens"], tiling),
        pad_to(queries, heads, axis=1).reshape(axes["tokens"] * heads, -1),
        pad_to(arrays["index_weights"].astype(jnp.float32), heads, axis=1),
        tiling,
    )


def _pages_per_step(surface: str, page_size: int, given: int | None) -> int:
    def whole(pages: int) -> bool:
        return pages > 0 and LANES % pages == 0 and pages * page_size % LANES == 0

    if given is None:
        fitting = (pages for pages in STEP_PAGES if pages * page_size <= STEP_TOKENS and whole(pages))
        return next(fitting, STEP_PAGES[0])  # eight pages are whole tiles whatever the page size
    if not whole(given):
        raise ContractError(
            f"{surface}: pages_per_step is {given}, expected a divisor of {LANES} that makes a multiple of {LANES} "
            f"keys with page size {page_size}, so that a step writes whole lane tiles."
        )
    return given


def _work(
    page_table: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, tokens: int, tiling: Tiling
) -> Work:
    """Find the sequences of each block; those without queries or keys do not count at either end of the range."""
    begin = jnp.arange(pl.cdiv(tokens, tiling.query_block), dtype=jnp.int32)[:, None] * tiling.query_block
    first, end = cu_q_lens[:-1], cu_q_lens[1:]
    last_row = jnp.minimum(begin + tiling.query_block, end)
    present = (jnp.maximum(begin, first) < last_row) & (kv_lens > 0)
    seq = jnp.arange(kv_lens.shape[0], dtype=jnp.int32)
    first_seq = jnp.min(jnp.where(present, seq, kv_lens.shape[0] - 1), axis=1)
    last_seq = jnp.max(jnp.where(present, seq, -1), axis=1)
    steps = jnp.max(jnp.where(present, pl.cdiv(last_row - end + kv_lens, tiling.step_tokens), 0), axis=1)
    return Work(page_table, kv_lens, cu_q_lens, first_seq, jnp.maximum(last_seq - first_seq + 1, 0), steps)


class Item(NamedTuple):
    """One step of one sequence for one query block."""

    seq: jax.Array
    first_page: jax.Array  # of the step
    pages: jax.Array  # to fetch: those with a causal token of the block; 0 when there is nothing to do
    rows: tuple[jax.Array, jax.Array]  # first and one past the last row of the sequence, counted from the block
    shift: jax.Array  # position of a row minus the row


def item_at(work: Work, block: jax.Array, index: jax.Array, tiling: Tiling) -> Item:
    """Item `index` of a block; beyond the last one an empty item, so that a prefetch needs no special case."""
    seqs = jnp.maximum(work.seqs[block], 1)
    step, place = lax.div(index, seqs), lax.rem(index, seqs)
    seq = work.first_seq[block] + place
    start, end, kv_len = work.cu_q_lens[seq], work.cu_q_lens[seq + 1], work.kv_lens[seq]
    row = block * tiling.query_block
    first, last = jnp.maximum(start - row, 0), jnp.minimum(end - row, tiling.query_block)
    shift = row + kv_len - end
    wanted = pl.cdiv(shift + last, tiling.page_size) - step * tiling.pages_per_step
    live = (step < work.steps[block]) & (first < last) & (kv_len > 0)
    pages = jnp.where(live, jnp.clip(wanted, 0, tiling.pages_per_step), 0)
    return Item(seq, step * tiling.pages_per_step, pages, (first, last), shift)


@dataclass(frozen=True)
class KeyStream:
    """The index keys of one block's items, double buffered.

    `keys` [2, pages_per_step, page_size, index_head_dim] is VMEM, `sems` one DMA semaphore a buffer. What no
    page filled is what the memory held before, NaN included: scores of it are masked, never multiplied.
    """

    work: Work
    cache: Any
    keys: Any
    sems: Any
    tiling: Tiling

    def run(self, block: jax.Array, begin: Any, end: Any, consume: Callable[[Item, jax.Array], None]) -> None:
        """Hand items [begin, end) of a block to `consume(item, keys)`.

        Several calls may share the items of a block, in order: the item after `end` is already being fetched.
        """
        first = item_at(self.work, block, begin, self.tiling)
        pl.when(begin == 0)(lambda: self._start(first, 0))

        def one(index: jax.Array, item: Item) -> Item:
            slot, after = lax.rem(index, SLOTS), item_at(self.work, block, index + 1, self.tiling)
            self._start(after, 1 - slot)
            self._wait(item, slot)
            keys = self.keys.at[slot]
            pl.when(item.pages > 0)(lambda: consume(item, keys))
            return after

        lax.fori_loop(begin, end, one, first)

    def _start(self, item: Item, slot: Any) -> None:
        @pl.loop(0, item.pages)
        def _(n):
            page = self.work.page_table[item.seq, item.first_page + n]
            pltpu.make_async_copy(self.cache.at[page], self.keys.at[slot, n], self.sems.at[slot]).start()

    def _wait(self, item: Item, slot: Any) -> None:
        @pl.loop(0, item.pages)
        def _(n):
            # A wait counts bytes; any page stands for the one that was fetched, without reading the table again.
            pltpu.make_async_copy(self.cache.at[0], self.keys.at[slot, n], self.sems.at[slot]).wait()


def scratch_shapes(cache: jax.Array, tiling: Tiling) -> list[Any]:
    """Key buffers and semaphores of a `KeyStream`."""
    return [
        pltpu.VMEM((SLOTS, tiling.pages_per_step, *cache.shape[1:]), cache.dtype),
        pltpu.SemaphoreType.DMA((SLOTS,)),
    ]


def for_each_tile(
    item: Item, queries: Any, weights: Any, keys: Any, tiling: Tiling, consume: Callable[[Any, jax.Array], None]
) -> None:
    """Score the tiles that an item reaches: `consume(rows, scores)`, f32[tile, step_tokens], -inf where not causal.

    Only tiles with a row of the item's sequence that sees the step's first key are scored. A decode batch, where
    a block spans many sequences, thus costs one tile a sequence, not the block.
    """
    dim = keys.shape[-1]
    rows_first, rows_last = item.rows
    first_key = item.first_page * tiling.page_size
    begin = lax.div(jnp.maximum(rows_first, first_key - item.shift), tiling.tile)
    flat = (tiling.tile * tiling.heads, tiling.step_tokens)

    @pl.loop(begin, pl.cdiv(rows_last, tiling.tile))
    def _(tile):
        row = pl.multiple_of(tile * tiling.tile, tiling.tile)
        products = lax.dot_general(
            queries[pl.ds(pl.multiple_of(row * tiling.heads, flat[0]), flat[0]), :],
            keys[...].reshape(tiling.step_tokens, dim),
            (((1,), (1,)), ((), ())),
            precision=tiling.precision,
            preferred_element_type=jnp.float32,
        )
        products = jnp.maximum(products, 0.0).reshape(tiling.tile, tiling.heads, tiling.step_tokens)
        scores = jnp.sum(products * weights[pl.ds(row, tiling.tile), :][:, :, None], axis=1)
        consume(pl.ds(row, tiling.tile), _causal(scores, row, item, first_key))


def _causal(scores: jax.Array, first_row: jax.Array, item: Item, first_key: jax.Array) -> jax.Array:
    """Keep the scores of the item's own rows at positions they may see; -inf elsewhere."""
    row = first_row + lax.broadcasted_iota(jnp.int32, (scores.shape[0], 1), 0)
    mine = (row >= item.rows[0]) & (row < item.rows[1])
    last_key = jnp.where(mine, row + item.shift, -1)
    key = first_key + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    # Heads of negative weight make -0.0, which top_k would put behind 0.0; the contract calls them equal.
    scores = jnp.where(scores == 0.0, 0.0, scores)
    return jnp.where(key <= last_key, scores, -jnp.inf)


def best(scores: jax.Array, k: int) -> jax.Array:
    """The k best columns of each row, i32[rows, k]: lowest column first among equals, -1 where only -inf is left."""
    value, column = lax.top_k(scores, min(k, scores.shape[1]))
    chosen = jnp.where(value > -jnp.inf, column, -1)
    return pad_to(chosen, k, axis=1, value=-1)
