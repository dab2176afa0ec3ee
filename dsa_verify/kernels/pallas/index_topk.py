"""Token top-k of the indexer: score every causal position in one pass over the paged keys, then choose.

What moves: a query block and its weights enter VMEM once. The index keys of its sequences stream through a ring of
buffers once per block, so they cross HBM `tokens / query_block` times in all, page by page where the page table
says; neither a gather nor a copy of the cache exists. Scores leave VMEM once, a window of `step_tokens` columns at a
time, through the pipelined output block; `jax.lax.top_k` reads them back.

Why scores may be in HBM here: the k best of n positions are not known before all n are scored, and choosing 2,048
of them in VMEM is a sort, for which Mosaic has no instruction. The price is 4 bytes a (token, position): 32 MiB for
64 decodes at 128K, 256 MiB for a chunk of 2,048 tokens at 32K, bounded by the engine's chunk length. Where pages
are chosen it is avoidable, and avoided: `index_page_topk`.

Why windows are a grid axis: Pallas then moves the output, and every column of every row is written, -inf where a
block ends earlier than the longest sequence. With a window written by hand, the rest would have to be initialised
by a pass over all of HBM's scores first.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from dsa_verify.kernels.pallas import indexing
from dsa_verify.kernels.pallas.indexing import Scorer
from dsa_verify.kernels.pallas.layout import Ref, Scalar


def index_topk(
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
    """Choose the `index_topk` causal positions of best score for every token.

    Args:
      index_q: [tokens, index_n_heads, index_head_dim]; index_weights: f32[tokens, index_n_heads].
      index_cache: [pages, page_size, index_head_dim], the keys of this step's tokens included.
      kv_lens: i32[seqs]; cu_q_lens: i32[seqs + 1]; page_table: i32[seqs, pages_per_seq].
      query_block: queries that share one pass over the keys; rounded up to whole tiles.
      pages_per_step: pages fetched and scored at once; by default up to 8 pages and 512 keys.

    Returns: i32[tokens, index_topk], best first, lowest position first among equals; -1 fills the tail and the
      rows of padding. Raises `ContractError` on bad shapes, dtypes, page size or tiling.
    """
    arrays = dict(
        index_q=index_q,
        index_weights=index_weights,
        index_cache=index_cache,
        kv_lens=kv_lens,
        cu_q_lens=cu_q_lens,
        page_table=page_table,
    )
    return scored_topk(arrays, index_topk, query_block, pages_per_step)[1]


def scored_topk(
    arrays: dict[str, jax.Array], index_topk: int, query_block: int, pages_per_step: int | None
) -> tuple[jax.Array, jax.Array]:
    """`index_topk` of the same arrays by name, with the score of each choice: f32 and i32[tokens, index_topk]."""
    call = indexing.prepare("index_topk", arrays, index_topk, query_block, pages_per_step)
    windows = pl.cdiv(arrays["page_table"].shape[1], call.tiling.pages_per_step)
    scores = indexing.launch(_kernel, call, call.tiling.step_tokens, windows, "dsa_index_topk")
    return indexing.best(scores, index_topk)


def _kernel(scorer: Scorer, out: Ref) -> None:
    """Scores of one query block at the positions of one step."""
    block, step = scorer.block(), pl.program_id(1)
    out[...] = jnp.full(out.shape, -jnp.inf, out.dtype)

    def merge(first_page: Scalar, rows: slice | pl.Slice, scores: jax.Array) -> None:
        del first_page  # the window is the step's
        # The sequences of a block write one window; a row is above -inf in its own sequence only.
        out[rows, :] = jnp.maximum(out[rows, :], scores)

    @pl.when(step < block.steps)
    def _() -> None:
        scorer.run(block, step * block.seqs, (step + 1) * block.seqs, merge)
