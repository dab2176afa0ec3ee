"""Page top-k of the indexer: score causal positions, keep the maximum of each page in VMEM, then choose pages.

What moves: a query block and its weights enter VMEM once, and the index keys of its sequences stream through a ring
of buffers once per block, page by page where the page table says. The scores of a step never leave VMEM: they are
reduced to one maximum a page and dropped. What leaves is f32[tokens, pages], 64 or 128 times smaller than the
scores; a [tokens, positions] matrix (4 GiB for a chunk of 8,192 tokens at 128K) exists nowhere. `jax.lax.top_k`
over a thousand or two of pages is all that is left for XLA.

Why steps are a loop here and not a grid axis, as in `index_topk`: the maxima of all pages fit VMEM, so the output
block stays there from the first step to the last, and the loop ends at the block's own causal limit; half of the
steps of a grid over a long prefill would find nothing to do.

Why maxima are merged by column select: a store to one column at a dynamic lane does not exist. `pages_per_step`
divides 128, so the maxima of a step lie in one tile of 128 lanes whose start is aligned.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from dsa_verify.kernels.pallas import indexing
from dsa_verify.kernels.pallas.indexing import Scorer
from dsa_verify.kernels.pallas.layout import Ref, Scalar
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

    A page scores its best causal token. Args as in `index_topk.index_topk`.

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
    scores = indexing.launch(_kernel, call, align(page_table.shape[1], LANES), 1, "dsa_index_page_topk")
    return indexing.best(scores, pl.cdiv(index_topk, call.tiling.page_size))[1]


def _kernel(scorer: Scorer, out: Ref) -> None:
    """Page maxima of one query block."""
    block, tiling = scorer.block(), scorer.tiling
    out[...] = jnp.full(out.shape, -jnp.inf, out.dtype)

    def merge(first_page: Scalar, rows: slice | pl.Slice, scores: jax.Array) -> None:
        lane = lax.rem(first_page, LANES)
        columns = pl.ds(pl.multiple_of(first_page - lane, LANES), LANES)
        out[rows, columns] = _raise(out[rows, columns], scores, lane, tiling.page_size)

    scorer.run(block, 0, block.steps * block.seqs, merge)


def _raise(tile: jax.Array, scores: jax.Array, lane: Scalar, page_size: int) -> jax.Array:
    """Raise the lanes of a tile [rows, 128], from `lane` on, to the maxima of the pages that `scores` holds."""
    column = lax.broadcasted_iota(jnp.int32, tile.shape, 1)
    for page in range(scores.shape[1] // page_size):
        of_page = scores[:, page * page_size : (page + 1) * page_size]
        # A maximum, not a plain store: the rows of other sequences hold theirs already, and come as -inf here.
        best = jnp.maximum(tile, jnp.max(of_page, axis=1, keepdims=True))
        tile = jnp.where(column == lane + page, best, tile)
    return tile
