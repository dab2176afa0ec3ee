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

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.kernels.pallas.flash import Softmax, contract, normalise, softmax_step
from dsa_verify.kernels.pallas.layout import Copy, Ref, Scalar, pad_to
from dsa_verify.shapes import align

KEYS_PER_STEP = 512
"""Keys of one step: 655 KB in bfloat16, long enough to hide the DMA latency, twice in VMEM."""

SUBLANES = 16
UNREACHABLE = jnp.iinfo(jnp.int32).max
"""Position of keys that must not be seen: behind every query."""


@dataclass(frozen=True)
class QueryPages:
    """The pages of one query and its position, one row of scalars in SMEM, i32[1, 1, 2 * entries + 1]:

        | page in the pool, `entries` of them | page in the sequence, `entries` of them | position |

    A page of -1 in the pool is skipped: not selected, or there to fill whole steps.
    """

    row: Ref
    entries: int

    @staticmethod
    def pack(physical: jax.Array, logical: jax.Array, positions: jax.Array, entries: int) -> jax.Array:
        """The rows of all queries, i32[tokens, 1, 2 * entries + 1], of i32[tokens, k], the same and i32[tokens]."""
        columns = [pad_to(physical, entries, 1, -1), pad_to(logical, entries, 1), positions[:, None]]
        return jnp.concatenate(columns, axis=1)[:, None]

    def physical(self, entry: Scalar) -> jax.Array:
        return self.row[0, 0, entry]

    def logical(self, entry: Scalar) -> jax.Array:
        return self.row[0, 0, self.entries + entry]

    def position(self) -> jax.Array:
        return self.row[0, 0, 2 * self.entries]


@dataclass(frozen=True)
class PageBuffers:
    """Two buffers that the steps of all queries take in turn: one is attended while the other one fills.

    `sems` holds one DMA semaphore a buffer, which counts the bytes of that buffer's pages that have arrived.
    """

    cache: Ref  # HBM [pages, page_size, latent_width]
    pages: Ref  # VMEM [2, pages_per_step, page_size, latent_width]
    sems: Ref

    def start(self, listed: QueryPages, at: Scalar, slot: Scalar) -> None:
        """Start to fetch the pages of step `at` of a query."""
        self._for_each_copy(listed, at, slot, lambda copy: copy.start())

    def wait(self, listed: QueryPages, at: Scalar, slot: Scalar) -> None:
        """Wait for all of them."""
        self._for_each_copy(listed, at, slot, lambda copy: copy.wait())

    def _for_each_copy(self, listed: QueryPages, at: Scalar, slot: Scalar, action: Callable[[Copy], None]) -> None:
        # Start and wait come by here both, so that they agree on what is skipped: a wait for a copy that nobody started
        # never ends. The place of a skipped page keeps an older page, or what memory held at first, NaN included.
        step = self.pages.shape[1]
        for i in range(step):
            page = listed.physical(at * step + i)
            copy = pltpu.make_async_copy(self.cache.at[page], self.pages.at[slot, i], self.sems.at[slot])
            pl.when(page >= 0)(lambda copy=copy: action(copy))


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
    lists = QueryPages.pack(physical, logical, positions, steps * step)
    q = pad_to(q, align(heads, SUBLANES), axis=1)
    # A query's program also gets the row of the next query, whose first pages it starts to fetch.
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
        # In order and on one core: a query's first pages were started by the program before.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
        name="dsa_query_attention",
    )(lists, lists, q, cache)
    return out[:, :heads]


def _pages_per_step(page_size: int, listed: int, given: int | None) -> int:
    return min(given or max(1, KEYS_PER_STEP // page_size), listed)


def _kernel(
    row: Ref, next_row: Ref, q_ref: Ref, cache_hbm: Ref, out_ref: Ref, pages: Ref, sems: Ref, *,
    step: int, steps: int, rank: int, sm_scale: float,
) -> None:  # fmt: skip
    token, entries = pl.program_id(0), steps * step
    page_size, width = pages.shape[2:]
    listed, next_listed = QueryPages(row, entries), QueryPages(next_row, entries)
    position = listed.position()
    buffers = PageBuffers(cache_hbm, pages, sems)

    # Nobody came before the first query; every other one finds its first step under way.
    pl.when(token == 0)(lambda: buffers.start(listed, 0, 0))

    def attend(at: jax.Array, carry: tuple[Softmax, jax.Array]) -> tuple[Softmax, jax.Array]:
        state, accumulated = carry
        # Steps are counted through all queries, so the other buffer is the one of the step before, which the last turn
        # has read: it may be overwritten from here on, while this step is waited for and attended.
        slot = lax.rem(token * steps + at, 2)
        pl.when(at + 1 < steps)(lambda: buffers.start(listed, at + 1, 1 - slot))
        last = (at + 1 == steps) & (token + 1 < pl.num_programs(0))
        pl.when(last)(lambda: buffers.start(next_listed, 0, 1 - slot))
        buffers.wait(listed, at, slot)

        keys = pages[slot].reshape(step * page_size, width)
        logits = contract(q_ref[0], keys, (1, 1)) * sm_scale
        # Positions are made twice, along the lanes for the logits and along the sublanes for the values, since a vector
        # does not change from one to the other for free.
        visible = _key_positions(listed, at, (1, step * page_size), 1, step, page_size) <= position
        weights, shrink, state = softmax_step(jnp.where(visible, logits, -jnp.inf), state, key_axis=1)
        clean = _key_positions(listed, at, (step * page_size, 1), 0, step, page_size) <= position
        values = jnp.where(clean, keys[:, :rank], 0)
        return state, accumulated * shrink + contract(weights.astype(keys.dtype), values, (1, 0))

    heads = q_ref.shape[1]
    nothing = (jnp.full((heads, 1), -jnp.inf), jnp.zeros((heads, 1))), jnp.zeros((heads, rank))
    (_, total), accumulated = lax.fori_loop(0, steps, attend, nothing)
    out_ref[0] = normalise(accumulated, total).astype(out_ref.dtype)


def _key_positions(
    listed: QueryPages, at: Scalar, shape: tuple[int, int], axis: int, step: int, page_size: int
) -> jax.Array:
    """Position of every key of step `at` along one axis of `shape`; unreachable for skipped pages."""
    row = lax.broadcasted_iota(jnp.int32, shape, axis)
    found = jnp.full(shape, UNREACHABLE, jnp.int32)
    # Page by page, since each of them stands elsewhere in the sequence; their first positions are scalars in SMEM.
    for i in range(step):
        entry = at * step + i
        mine = (row >= i * page_size) & (row < (i + 1) * page_size) & (listed.physical(entry) >= 0)
        first = listed.logical(entry) * page_size
        found = jnp.where(mine, first + row - i * page_size, found)
    return found
