"""What both indexer kernels share: query blocks, the stream of index keys out of the paged pool, and the scores.

A query block is `query_block` consecutive tokens; sequences may begin and end inside it. Its work is a list of
items, one per (step, sequence): step j of a sequence is its pages [j * pages_per_step, (j + 1) * pages_per_step).
All sequences of a block take step j before any takes step j + 1, so a block finishes one window of columns at a
time. Items run through a ring of key buffers: while one is scored, the pages of the next ones are on their way.

Only pages with a causal token of the block are fetched. That is more than thrift: entries of the page table
beyond a sequence's last page are not page ids at all, and a DMA through one reads out of the pool.

Within an item, queries are scored a tile at a time: few enough that code and spills stay small whatever the query
block, and only tiles with a query that sees the step. A decode batch, whose block spans many sequences, thus costs
one tile a sequence, and a prefill skips the tiles above the diagonal.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import SURFACES, check_call
from dsa_verify.errors import ContractError
from dsa_verify.kernels.pallas.layout import Operand, Ref, Scalar, block_span, pad_to
from dsa_verify.shapes import LANES, align

QUERY_BLOCK = 128
"""Queries that share one pass over the keys: the keys of a sequence cross HBM tokens / QUERY_BLOCK times."""
STEP_TOKENS = 512
"""Keys scored at once, at most: four vector registers wide, so that one broadcast head weight serves four."""
STEP_PAGES = (8, 4, 2, 1)
"""Pages fetched at once, the first that fits: each adds a maximum to the code of a page selection."""
TILE = 8
"""Queries scored together: one sublane tile of scores. With 32 heads that is a matrix product of 256 rows; more would
unroll into more vector code for the same rate, and waste more where a tile holds a single decode."""
BUFFERS = 4
"""Key buffers in the ring. Two hide the fetch behind a prefill's 16 tiles; a decode scores one tile an item, less
time than a DMA takes to arrive, and needs several items in flight to use the bandwidth."""


@dataclass(frozen=True)
class Tiling:
    """The static sizes of one call."""

    query_block: int
    heads: int
    page_size: int
    pages_per_step: int

    @property
    def step_tokens(self) -> int:
        return self.pages_per_step * self.page_size


class Work(NamedTuple):
    """Scalars in SMEM. The last three, i32[blocks], say which sequences a block holds and the steps of the longest."""

    page_table: Operand
    kv_lens: Operand
    cu_q_lens: Operand
    first_seq: Operand
    seqs: Operand
    steps: Operand


class Call(NamedTuple):
    """A call made ready for `launch`."""

    work: Work
    queries: jax.Array  # [tokens * heads, index_head_dim]
    weights: jax.Array  # f32[tokens, heads]
    cache: jax.Array
    tiling: Tiling


def prepare(
    surface: str, arrays: dict[str, jax.Array], index_topk: int, query_block: int, pages_per_step: int | None
) -> Call:
    """Check a call and lay it out; raises `ContractError`.

    Heads are padded to whole sublane tiles with zero queries and zero weights, so that [tokens, heads, dim] and
    [tokens * heads, dim] are the same bytes and no kernel has to reshape a query. Real models need no padding.
    """
    axes = check_call(SURFACES[surface], arrays, {"index_topk": index_topk})
    queries, cache, tokens = arrays["index_q"], arrays["index_cache"], axes["tokens"]
    if queries.dtype != cache.dtype or cache.dtype not in (jnp.float32, jnp.bfloat16):
        raise ContractError(
            f"{surface}: index_q is {queries.dtype} and index_cache {cache.dtype}, expected both float32 or both "
            f"bfloat16; cast index_q, the cache is too large to copy."
        )
    heads = _whole_tiles(axes["index_n_heads"], cache.dtype)
    tiling = Tiling(
        query_block=_query_block(surface, tokens, query_block),
        heads=heads,
        page_size=axes["page_size"],
        pages_per_step=_pages_per_step(surface, axes["page_size"], pages_per_step),
    )
    return Call(
        _work(arrays["page_table"], arrays["kv_lens"], arrays["cu_q_lens"], tokens, tiling),
        pad_to(queries, heads, axis=1).reshape(tokens * heads, -1),
        pad_to(arrays["index_weights"].astype(jnp.float32), heads, axis=1),
        cache,
        tiling,
    )


def _whole_tiles(heads: int, dtype: jnp.dtype) -> int:
    return align(heads, 32 // dtype.itemsize)


def _query_block(surface: str, tokens: int, given: int) -> int:
    if given < 1:
        raise ContractError(f"{surface}: query_block is {given}, expected at least 1.")
    return min(align(given, TILE), align(tokens, TILE))


def _pages_per_step(surface: str, page_size: int, given: int | None) -> int:
    def whole(pages: int) -> bool:
        return pages > 0 and LANES % pages == 0 and pages * page_size % LANES == 0

    if given is None:
        fitting = (pages for pages in STEP_PAGES if pages * page_size <= STEP_TOKENS and whole(pages))
        return next(fitting, STEP_PAGES[0])  # eight pages make whole lane tiles whatever the page size
    if not whole(given):
        raise ContractError(
            f"{surface}: pages_per_step is {given}, expected a divisor of {LANES} that makes a multiple of {LANES} "
            f"keys with page size {page_size}, so that a step writes whole lane tiles."
        )
    return given


def _work(page_table: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, tokens: int, tiling: Tiling) -> Work:
    """Find the sequences of each block; those without queries or keys do not count at either end of the range."""
    blocks, seq = pl.cdiv(tokens, tiling.query_block), jnp.arange(kv_lens.shape[0], dtype=jnp.int32)
    first, last = (edge[:, None] for edge in block_span(cu_q_lens, blocks, tiling.query_block))
    present = (seq >= first) & (seq < last) & (kv_lens > 0)
    first_seq = jnp.min(jnp.where(present, seq, seq[-1]), axis=1)
    seqs = jnp.max(jnp.where(present, seq - first_seq[:, None] + 1, 0), axis=1)
    steps = jnp.max(jnp.where(present, pl.cdiv(kv_lens, tiling.step_tokens), 0), axis=1)
    return Work(page_table, kv_lens, cu_q_lens, first_seq, seqs, steps)


def launch(kernel: Callable[["Scorer", Ref], None], call: Call, width: int, windows: int, name: str) -> jax.Array:
    """Run `kernel(scorer, out)` for every query block and window of columns; f32[tokens, windows * width].

    `out` is the [query_block, width] block of the result. The last query block may overhang the tokens: Pallas
    drops what is written there, and no sequence has a row there.
    """
    tiling, (tokens, heads), scalars = call.tiling, call.weights.shape, len(Work._fields)
    rows, dim = tiling.query_block, call.queries.shape[1]

    def body(*refs: Ref) -> None:
        queries, weights, cache, out, keys, sems = refs[scalars:]
        kernel(Scorer(Work(*refs[:scalars]), queries, weights, cache, keys, sems, tiling), out)

    return pl.pallas_call(
        body,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=scalars,
            grid=(pl.cdiv(tokens, rows), windows),
            in_specs=[
                pl.BlockSpec((rows * heads, dim), lambda block, *_: (block, 0)),
                pl.BlockSpec((rows, heads), lambda block, *_: (block, 0)),
                pl.BlockSpec(memory_space=pl.ANY),
            ],
            out_specs=pl.BlockSpec((rows, width), lambda block, window, *_: (block, window)),
            scratch_shapes=[
                pltpu.VMEM((BUFFERS, tiling.pages_per_step, *call.cache.shape[1:]), call.cache.dtype),
                pltpu.SemaphoreType.DMA((BUFFERS,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, windows * width), jnp.float32),
        # Blocks share nothing and may run on two cores; the windows of a block share its ring of keys.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name=name,
    )(*call.work, call.queries, call.weights, call.cache)


class Block(NamedTuple):
    """The scalars of one query block, read once a program."""

    row: Scalar  # its first token
    first_seq: Scalar
    seqs: Scalar
    steps: Scalar


class Item(NamedTuple):
    """One step of one sequence for one query block."""

    seq: Scalar
    first_page: Scalar  # of the step
    pages: Scalar  # to fetch: those with a causal token of the block; 0 when there is nothing to do
    first_row: Scalar  # rows of the sequence, counted from the block's first
    end_row: Scalar
    shift: Scalar  # position of a row minus the row


Consume = Callable[[Scalar, slice | pl.Slice, jax.Array], None]
"""Takes a step's first page, rows of the block, and their scores at the step's positions, f32[rows, step_tokens]."""


@dataclass(frozen=True)
class Scorer:
    """Scores the items of one query block inside a kernel.

    `keys` [BUFFERS, pages_per_step, page_size, index_head_dim] is VMEM, `sems` one DMA semaphore a buffer. What no
    page filled is whatever the memory held before, NaN included: scores of it are masked, never multiplied.
    """

    work: Work
    queries: Ref
    weights: Ref
    cache: Ref
    keys: Ref
    sems: Ref
    tiling: Tiling

    def block(self) -> Block:
        index, work = pl.program_id(0), self.work
        return Block(index * self.tiling.query_block, work.first_seq[index], work.seqs[index], work.steps[index])

    def run(self, block: Block, begin: Scalar, end: Scalar, consume: Consume) -> None:
        """Score items [begin, end) of a block: `consume(first_page, rows, scores)` for every tile that they reach.

        `scores` f32[TILE, step_tokens] are those of `rows`, a slice of the block, at the step's positions; -inf
        where the row belongs to another sequence or the position is not causal. Successive calls share the ring: the
        first, with begin 0, fills it, and items after `end` are on their way when a call returns.
        """

        @pl.loop(0, jnp.where(begin == 0, BUFFERS - 1, 0))
        def _(index: jax.Array) -> None:
            self._start(self._item(block, index), index)

        @pl.loop(begin, end)
        def _(index: jax.Array) -> None:
            ahead = index + BUFFERS - 1
            # Into the buffer of item `index - 1`, which the last turn has scored.
            self._start(self._item(block, ahead), lax.rem(ahead, BUFFERS))
            item, buffer = self._item(block, index), lax.rem(index, BUFFERS)
            self._wait(item, buffer)
            self._tiles(item, buffer, consume)

    def _item(self, block: Block, index: Scalar) -> Item:
        """Item `index` of a block; an empty one beyond the last, so that fetching ahead needs no special case."""
        tiling, seqs = self.tiling, jnp.maximum(block.seqs, 1)
        step, seq = lax.div(index, seqs), block.first_seq + lax.rem(index, seqs)
        start, end, kv_len = self.work.cu_q_lens[seq], self.work.cu_q_lens[seq + 1], self.work.kv_lens[seq]
        first_row = jnp.maximum(start - block.row, 0)
        end_row = jnp.minimum(end - block.row, tiling.query_block)
        shift, first_page = block.row + kv_len - end, step * tiling.pages_per_step
        # None are left beyond the last step, and a padding sequence has none; one without rows here has, but no reader.
        causal = pl.cdiv(shift + end_row, tiling.page_size) - first_page
        pages = jnp.where(first_row < end_row, jnp.clip(causal, 0, tiling.pages_per_step), 0)
        return Item(seq, first_page, pages, first_row, end_row, shift)

    def _start(self, item: Item, buffer: Scalar) -> None:
        @pl.loop(0, item.pages)
        def _(n: jax.Array) -> None:
            page = self.work.page_table[item.seq, item.first_page + n]
            pltpu.make_async_copy(self.cache.at[page], self.keys.at[buffer, n], self.sems.at[buffer]).start()

    def _wait(self, item: Item, buffer: Scalar) -> None:
        @pl.loop(0, item.pages)
        def _(n: jax.Array) -> None:
            # A wait counts bytes: page 0 stands for the page that was fetched, whose id need not be read again.
            pltpu.make_async_copy(self.cache.at[0], self.keys.at[buffer, n], self.sems.at[buffer]).wait()

    def _tiles(self, item: Item, buffer: Scalar, consume: Consume) -> None:
        first_key = item.first_page * self.tiling.page_size
        first_row = jnp.maximum(item.first_row, first_key - item.shift)  # earlier ones see none of these keys

        @pl.loop(lax.div(first_row, TILE), pl.cdiv(item.end_row, TILE))
        def _(index: jax.Array) -> None:
            row = pl.multiple_of(index * TILE, TILE)
            scores = self._score(row, buffer)
            consume(item.first_page, pl.ds(row, TILE), masked(scores, row, item, first_key))

    def _score(self, row: jax.Array, buffer: Scalar) -> jax.Array:
        """`sum_h w_h * relu(q_h . k)` of a tile of queries and every key of a buffer, f32[TILE, step_tokens]."""
        heads, keys = self.tiling.heads, self.tiling.step_tokens
        first = pl.multiple_of(row * heads, TILE * heads)
        products = lax.dot_general(
            self.queries[pl.ds(first, TILE * heads), :],
            self.keys[buffer].reshape(keys, -1),
            (((1,), (1,)), ((), ())),
            # By default float32 is multiplied as bfloat16; products of two bfloat16 are exact in float32 anyway.
            precision=lax.Precision.HIGHEST if self.keys.dtype == jnp.float32 else lax.Precision.DEFAULT,
            preferred_element_type=jnp.float32,
        )
        weights = self.weights[pl.ds(row, TILE), :][:, :, None]
        return jnp.sum(jnp.maximum(products, 0.0).reshape(TILE, heads, keys) * weights, axis=1)


def masked(scores: jax.Array, first_row: Scalar, item: Item, first_key: Scalar) -> jax.Array:
    """Keep the scores of the item's own rows at positions they may see; -inf elsewhere."""
    row = first_row + lax.broadcasted_iota(jnp.int32, (scores.shape[0], 1), 0)
    mine = (row >= item.first_row) & (row < item.end_row)
    last_key = jnp.where(mine, row + item.shift, -1)
    key = first_key + lax.broadcasted_iota(jnp.int32, scores.shape, 1)
    # Weights below zero can sum to -0.0, which top_k puts behind 0.0; the contract calls them equal.
    scores = jnp.where(scores == 0.0, 0.0, scores)
    return jnp.where(key <= last_key, scores, -jnp.inf)


def best(scores: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """Scores and numbers of the k best columns of each row, f32 and i32[rows, k].

    Lowest column first among equals; -inf and -1 where nothing but -inf is left.
    """
    value, column = lax.top_k(scores, min(k, scores.shape[1]))
    chosen = jnp.where(value > -jnp.inf, column, -1)
    return pad_to(value, k, axis=1, value=-jnp.inf), pad_to(chosen, k, axis=1, value=-1)
