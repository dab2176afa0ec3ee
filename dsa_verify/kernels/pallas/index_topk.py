"""Token top-k of the indexer: score every causal position in one pass over the paged keys, then choose.

What moves: a query block and its weights enter VMEM once. The index keys of its sequences stream through two
buffers, once per block: `tokens / query_block` passes over the keys in all, fetched page by page where the page
table says, so that neither a gather of the cache nor a copy of it exists. Scores leave VMEM once, one window of
`step_tokens` columns after the other, through the pipelined output block; `jax.lax.top_k` reads them back.

Why scores may be in HBM here: the k best of n positions cannot be known before all n are scored, and 2,048 winners a
query do not fit registers, so a fused selection would sort in VMEM, which Mosaic has no instruction for. The
price is 4 bytes a (token, position): 32 MiB for 64 decodes at 128K, 256 MiB for a chunk of 2,048 tokens at 32K. An
engine bounds it by the length of its chunks. Where pages are chosen, it is avoidable and avoided:
`index_page_topk`.

Why the columns are a grid axis: the output block then moves by itself, and every column of every row is written,
-inf where a block ends earlier than the longest sequence.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.kernels.pallas import indexing
from dsa_verify.kernels.pallas.indexing import Item, KeyStream, Tiling, Work


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
      query_block: queries that share one pass over the keys.
      pages_per_step: pages scored at once; by default as many as make 512 keys.

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
    call = indexing.prepare("index_topk", arrays, index_topk, query_block, pages_per_step)
    return indexing.best(_scores(call, index_cache), index_topk)


def _scores(call: indexing.Call, index_cache: jax.Array) -> jax.Array:
    """Scores of all positions, f32[tokens, positions]; -inf where not causal."""
    tiling, tokens = call.tiling, call.weights.shape[0]
    steps = pl.cdiv(call.work.page_table.shape[1], tiling.pages_per_step)
    return pl.pallas_call(
        lambda *refs: _kernel(Work(*refs[: len(Work._fields)]), *refs[len(Work._fields) :], tiling=tiling),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(Work._fields),
            grid=(pl.cdiv(tokens, tiling.query_block), steps),
            in_specs=[*call.query_specs, pl.BlockSpec(memory_space=pl.ANY)],
            out_specs=pl.BlockSpec((tiling.query_block, tiling.step_tokens), lambda block, step, *_: (block, step)),
            scratch_shapes=indexing.scratch_shapes(index_cache, tiling),
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, steps * tiling.step_tokens), jnp.float32),
        # Blocks share nothing; the steps of a block share its key buffers.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        name="dsa_index_topk",
    )(*call.work, call.queries, call.weights, index_cache)


def _kernel(work: Work, queries, weights, cache, out, keys, sems, *, tiling: Tiling):
    block, step = pl.program_id(0), pl.program_id(1)
    out[...] = jnp.full_like(out, -jnp.inf)

    def score(item: Item, keys):
        def merge(rows, scores):
            # The sequences of a block write one window; a row is above -inf in its own sequence only.
            out[rows, :] = jnp.maximum(out[rows, :], scores)

        indexing.for_each_tile(item, queries, weights, keys, tiling, merge)

    @pl.when(step < work.steps[block])
    def _():
        begin = step * work.seqs[block]
        KeyStream(work, cache, keys, sems, tiling).run(block, begin, begin + work.seqs[block], score)
