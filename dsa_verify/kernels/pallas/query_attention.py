"""One program a query over a list of pages of its own: the kernel of sparse decode and per-query prefill.

What moves: for each query, each of its pages once from HBM to VMEM (page_size * latent_width elements), in
steps of `pages_per_step` pages through two buffers. The last step of a query already starts the first step
of the next one, so the pipeline never drains. Nothing is shared between queries; where neighbours select the
same pages, `block_attention` moves less.

Why the layout: a device holds few heads (4 to 16 under tensor parallelism) and a step holds hundreds of
keys, so keys fill the 128 lanes and heads the sublanes; logits are [heads, keys]. The latent is padded to
640 lanes as `[c_kv | pad | k_pe | pad]` in the cache and in the query alike: one contraction gives the whole
logit, and the value is the leading `kv_lora_rank` lanes of the very same rows, fetched once for both uses.

Rows that no DMA filled, and slots past the end of a sequence, may hold NaN. Masking a weight to zero is not
enough, since 0 * NaN is NaN; the value rows themselves are cleared.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.kernels.pallas.flash import contract, normalise, softmax_step
from dsa_verify.kernels.pallas.layout import pad_to
from dsa_verify.shapes import align

KEYS_PER_STEP = 512
"""Keys of one step: 655 KB in bfloat16, long enough to hide the DMA latency, twice in VMEM."""

SUBLANES = 16
UNREACHABLE = jnp.iinfo(jnp.int32).max
"""Position of keys that must not be seen: behind every query."""


def query_attention(
    q: jax.Array,
    cache: jax.Array,
    physical: jax.Array,
    logical: jax.Array,
    positions: jax.Array,
    *,
    rank: int,
    sm_scale: float,
    pages_per_step: int | None = None,
) -> jax.Array:
    """Attend, for each query, the causal tokens of its listed pages.

    Args:
      q: [tokens, heads, latent_width], padded like cached rows.
      cache: [pages, page_size, latent_width].
      physical, logical: i32[tokens, k], pool page and sequence-local page of each entry; physical -1 is skipped.
      positions: i32[tokens], position of the query; -1 attends nothing.
      rank: kv_lora_rank, the leading lanes that are the value.

    Returns: [tokens, heads, rank] in q's dtype; a query that attends nothing gets zeros.
    """
    tokens, heads, width = q.shape
    page_size = cache.shape[1]
    step = _pages_per_step(page_size, physical.shape[1], pages_per_step)
    steps = pl.cdiv(physical.shape[1], step)
    lists = jnp.concatenate(
        [pad_to(physical, steps * step, 1, -1), pad_to(logical, steps * step, 1), positions[:, None]], axis=1
    )[:, None]
    q = pad_to(q, align(heads, SUBLANES), axis=1)
    here = pl.BlockSpec((1, 1, lists.shape[2]), lambda t: (t, 0, 0), memory_space=pltpu.SMEM)
    after = pl.BlockSpec(
        (1, 1, lists.shape[2]), lambda t: (jnp.minimum(t + 1, tokens - 1), 0, 0), memory_space=pltpu.SMEM
    )
    out = pl.pallas_call(
        lambda *refs: _kernel(*refs, step=step, steps=steps, rank=rank, sm_scale=sm_scale),
        grid=(tokens,),
        in_specs=[
            here,
            after,
            pl.BlockSpec((1, *q.shape[1:]), lambda t: (t, 0, 0)),
            pl.BlockSpec(memory_space=pl.ANY),
        ],
        out_specs=pl.BlockSpec((1, q.shape[1], rank), lambda t: (t, 0, 0)),
        out_shape=jax.ShapeDtypeStruct((tokens, q.shape[1], rank), q.dtype),
        scratch_shapes=[
            pltpu.VMEM((2, step, page_size, width), cache.dtype),
            pltpu.SemaphoreType.DMA((2,)),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        name="dsa_query_attention",
    )(lists, lists, q, cache)
    return out[:, :heads]


def _pages_per_step(page_size: int, listed: int, given: int | None) -> int:
    return min(given or max(1, KEYS_PER_STEP // page_size), listed)


def _kernel(
    lists, next_lists, q_ref, cache_hbm, out_ref, pages, sems, *, step: int, steps: int, rank: int, sm_scale: float
):
    token, entries = pl.program_id(0), steps * step
    page_size, width = pages.shape[2:]
    position = lists[0, 0, 2 * entries]

    def for_each_copy(source, at, slot, action):
        """Start or wait for the pages of one step; entries of -1 are not fetched."""
        for i in range(step):
            page = source[0, 0, at * step + i]
            copy = pltpu.make_async_copy(cache_hbm.at[page], pages.at[slot, i], sems.at[slot])
            pl.when(page >= 0)(lambda copy=copy: action(copy))

    def start(source, at, slot):
        for_each_copy(source, at, slot, lambda copy: copy.start())

    pl.when(token == 0)(lambda: start(lists, 0, 0))

    def key_positions(at, shape, axis):
        """Position of every key of a step along one axis of `shape`; unreachable for skipped entries."""
        row = lax.broadcasted_iota(jnp.int32, shape, axis)
        found = jnp.full(shape, UNREACHABLE, jnp.int32)
        for i in range(step):
            entry = at * step + i
            mine = (row >= i * page_size) & (row < (i + 1) * page_size) & (lists[0, 0, entry] >= 0)
            first = lists[0, 0, entries + entry] * page_size
            found = jnp.where(mine, first + row - i * page_size, found)
        return found

    def attend(at, carry):
        state, accumulated = carry
        slot = lax.rem(token * steps + at, 2)
        pl.when(at + 1 < steps)(lambda: start(lists, at + 1, 1 - slot))
        last = (at + 1 == steps) & (token + 1 < pl.num_programs(0))
        pl.when(last)(lambda: start(next_lists, 0, 1 - slot))
        for_each_copy(lists, at, slot, lambda copy: copy.wait())

        keys = pages[slot].reshape(step * page_size, width)
        logits = contract(q_ref[0], keys, (1, 1)) * sm_scale
        visible = key_positions(at, (1, step * page_size), 1) <= position
        weights, shrink, state = softmax_step(jnp.where(visible, logits, -jnp.inf), state, key_axis=1)
        clean = key_positions(at, (step * page_size, 1), 0) <= position
        values = jnp.where(clean, keys[:, :rank], 0)
        return state, accumulated * shrink + contract(weights.astype(keys.dtype), values, (1, 0))

    heads = q_ref.shape[1]
    nothing = (jnp.full((heads, 1), -jnp.inf), jnp.zeros((heads, 1))), jnp.zeros((heads, rank))
    (_, total), accumulated = lax.fori_loop(0, steps, attend, nothing)
    out_ref[0] = normalise(accumulated, total).astype(out_ref.dtype)
