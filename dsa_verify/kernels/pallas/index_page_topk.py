"""Page top-k of the indexer: score causal positions, keep the maximum of each page in VMEM, then choose pages.

What moves: a query block and its weights enter VMEM once, and the index keys of its sequences stream through two
buffers, once per block, page by page where the page table says. A step's scores live in registers and VMEM only:
they are reduced to one maximum a page and dropped. What leaves is f32[tokens, pages], 64 or 128 times smaller than
the scores; a [tokens, positions] matrix (4 GiB for a chunk of 8,192 tokens at 128K) exists nowhere. `jax.lax.top_k`
over a few thousand pages is all that is left for XLA.

Why the step is a loop here and not a grid axis: the output block stays in VMEM from the first step to the last, and
the loop ends at the block's own causal limit; half of a grid's steps over a long prefill would find nothing to do.

Why maxima are merged by column select: `pages_per_step` divides 128, so the maxima of a step lie in one tile of 128
lanes, whose start is aligned; a store to a single column at a dynamic lane does not exist.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.kernels.pallas import indexing
from dsa_verify.kernels.pallas.indexing import Item, KeyStream, Tiling, Work
from dsa_verify.shapes import LANES, align


def index_page_topk(
    index_q: jax.Array,
    index_weights: jax.Array,
    index_cache: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    index_topk: int,
    query_block: int = indexing.QUERY_BLOCK,
    pages_per_step: int | None = None,
) -> jax.Array:
    """Choose the `ceil(index_topk / page_size)` best sequence-local pages for every token.

    A page scores its best causal token. Args as in `index_topk`.

    Returns: i32[tokens, ceil(index_topk / page_size)], best first, lowest page first among equals; -1 fills the
      tail and the rows of padding. Raises `ContractError` on bad shapes, dtypes, page size or tiling.
    """
    arrays = dict(
        index_q=index_q,
        index_weights=index_weights,
        index_cache=index_cache,
        kv_lens=kv_lens,
        cu_q_lens=cu_q_lens,
        page_table=page_table,
    )
    call = indexing.prepare("index_page_topk", arrays, index_topk, query_block, pages_per_step)
    return indexing.best(_page_scores(call, index_cache), pl.cdiv(index_topk, call.tiling.page_size))


def _page_scores(call: indexing.Call, index_cache: jax.Array) -> jax.Array:
    """Best causal score of every page, f32[tokens, pages padded to 128]; -inf where no token is causal."""
    tiling, tokens = call.tiling, call.weights.shape[0]
    columns = align(call.work.page_table.shape[1], LANES)
    return pl.pallas_call(
        lambda *refs: _kernel(Work(*refs[: len(Work._fields)]), *refs[len(Work._fields) :], tiling=tiling),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Work._fields),
            grid=(pl.cdiv(tokens, tiling.query_block),),
            in_specs=[*call.query_specs, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((tiling.query_block, columns), lambda block, *_: (block, 0)),
            scratch_shapes=indexing.scratch_shapes(index_cache, tiling),
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, columns), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        name="dsa_index_page_topk",
    )(*call.work, call.queries, call.weights, index_cache)


def _kernel(work: Work, queries, weights, cache, out, keys, sems, *, tiling: Tiling):
    block = pl.program_id(0)
    out[...] = jnp.full_like(out, -jnp.inf)

    def score(item: Item, keys):
        lane = lax.rem(item.first_page, LANES)
        columns = pl.ds(pl.multiple_of(item.first_page - lane, LANES), LANES)

        def merge(rows, scores):
            out[rows, columns] = _with_maxima(out[rows, columns], scores, lane, tiling)

        indexing.for_each_tile(item, queries, weights, keys, tiling, merge)

    KeyStream(work, cache, keys, sems, tiling).run(block, 0, work.steps[block] * work.seqs[block], score)


def _with_maxima(tile: jax.Array, scores: jax.Array, lane: jax.Array, tiling: Tiling) -> jax.Array:
    """Raise lanes [lane, lane + pages_per_step) of a tile [rows, 128] to the maxima of the step's pages."""
    column = lax.broadcasted_iota(jnp.int32, tile.shape, 1)
    for page in range(tiling.pages_per_step):
        keys = scores[:, page * tiling.page_size : (page + 1) * tiling.page_size]
        # A maximum, not a plain store: the rows of other sequences hold theirs already, and come as -inf here.
        best = jnp.maximum(tile, jnp.max(keys, axis=1, keepdims=True))
        tile = jnp.where(column == lane + page, best, tile)
    return tile
