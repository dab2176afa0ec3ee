"""Write new rows into a paged cache in place, by aligned tiles of 16 rows.

What moves: each tile that receives a row is read from HBM once, merged in VMEM and written back once; the
rest of the pool is never touched, because the pool is aliased to the output. Why tiles: the sublane tile of
bfloat16 is 16 rows, and a DMA may neither start nor end inside one, so a single row cannot be written
alone. Pages are multiples of 16 tokens, hence a tile belongs to one page and one sequence, and consecutive
tokens of a sequence fill it in order. A prefill of n tokens costs n / 16 tiles, a decode one a sequence.

The rows of a tile come from the token axis at any offset. An aligned window of 32 rows always contains them;
a sublane rotation (32-bit only, hence the cast, which is exact) brings them to their place.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import PAGE_MULTIPLE, implements
from dsa_verify.kernels.pallas.layout import Copy, Operand, Ref, Scalar, latent_rows, pad_to
from dsa_verify.shapes import align

TILE = PAGE_MULTIPLE
WINDOW = 2 * TILE
IN_FLIGHT = 8
"""Tiles read, merged and written together: enough to hide the latency of one DMA behind seven others."""


class Runs(NamedTuple):
    """Runs of consecutive tokens that land in one tile, i32 scalars in SMEM; those behind `number[0]` are not read."""

    first: Operand  # [tokens], the run's first token
    slot: Operand  # [tokens], where that one goes
    length: Operand  # [tokens], tokens of the run
    number: Operand  # [1], of runs


@implements("cache_write")
def cache_write(new_c_kv: jax.Array, new_k_pe: jax.Array, cache_kv: jax.Array, out_cache_loc: jax.Array) -> jax.Array:
    """Write `[c_kv | 0 | k_pe | 0]` of every token at its slot; tokens with slot -1 are dropped.

    Args:
      new_c_kv: [tokens, kv_lora_rank]; new_k_pe: [tokens, qk_rope_head_dim]; the cache's dtype.
      cache_kv: [pages, page_size, latent_width], updated in place when donated.
      out_cache_loc: i32[tokens], page * page_size + offset. Consecutive tokens of one 16-slot tile must be
        in order of slot, and no tile may appear in two separate runs, as page-granular allocation ensures.

    Returns: the updated cache. Raises `ContractError` on bad shapes, dtypes or page size.
    """
    return write_rows(latent_rows(new_c_kv, new_k_pe).astype(cache_kv.dtype), cache_kv, out_cache_loc)


def write_rows(rows: jax.Array, cache: jax.Array, out_cache_loc: jax.Array) -> jax.Array:
    """`cache_write` for rows that have the cache's width [tokens, width] already."""
    tokens, width = rows.shape
    page_size = cache.shape[1]
    rows = pad_to(rows, align(tokens, TILE) + TILE)  # the window of the last token ends a tile behind its own
    runs = _runs(out_cache_loc)
    hbm = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        lambda *refs: _kernel(*refs, page_size=page_size),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(runs),
            grid=(1,),
            in_specs=[hbm, hbm],
            out_specs=hbm,
            scratch_shapes=[
                pltpu.VMEM((IN_FLIGHT, WINDOW, width), rows.dtype),
                pltpu.VMEM((IN_FLIGHT, TILE, width), cache.dtype),
                pltpu.SemaphoreType.DMA((2, IN_FLIGHT)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(cache.shape, cache.dtype),
        input_output_aliases={len(runs) + 1: 0},
        name="dsa_cache_write",
    )(*runs, rows, cache)


def _runs(out_cache_loc: jax.Array) -> Runs:
    """Find the runs of i32[tokens] slots; -1 belongs to none."""
    tokens = out_cache_loc.shape[0]
    tile = out_cache_loc // TILE  # rounds down, so that -1 stays -1
    opens = (tile >= 0) & (tile != jnp.concatenate([jnp.full((1,), -1, tile.dtype), tile[:-1]]))
    run = jnp.cumsum(opens) - 1
    (first,) = jnp.nonzero(opens, size=tokens, fill_value=0)
    length = jnp.zeros(tokens, jnp.int32).at[jnp.where(tile >= 0, run, tokens)].add(1, mode="drop")
    first = first.astype(jnp.int32)
    return Runs(first, out_cache_loc[first], length, jnp.sum(opens, dtype=jnp.int32)[None])


@dataclass(frozen=True)
class TileWriter:
    """Brings runs of rows into the pool inside the kernel, each by way of a buffer of its own, `IN_FLIGHT` at once.

    `windows` [IN_FLIGHT, WINDOW, width] and `tiles` [IN_FLIGHT, TILE, width] are VMEM, `rows` and `pool` HBM.
    `sems` [2, IN_FLIGHT] count bytes: row 0 those of a buffer's window; row 1 those of its tile, first on its way in,
    then on its way out, which never overlap.
    """

    runs: Runs
    rows: Ref
    pool: Ref
    windows: Ref
    tiles: Ref
    sems: Ref
    page_size: int

    def _window_copy(self, run: Scalar, buffer: Scalar) -> Copy:
        # From a multiple of a tile: a copy may not begin inside one. The run begins in the window's first half.
        start = pl.multiple_of(self.runs.first[run] // TILE * TILE, TILE)
        return pltpu.make_async_copy(
            self.rows.at[pl.ds(start, WINDOW)], self.windows.at[buffer], self.sems.at[0, buffer]
        )

    def _tile_at(self, run: Scalar) -> Ref:
        slot = self.runs.slot
        offset = pl.multiple_of(slot[run] % self.page_size // TILE * TILE, TILE)
        return self.pool.at[slot[run] // self.page_size, pl.ds(offset, TILE)]

    def start_reads(self, run: Scalar, buffer: Scalar) -> None:
        """Start to fetch the run's rows, and the tile that they go to for the rows that stay."""
        self._window_copy(run, buffer).start()
        pltpu.make_async_copy(self._tile_at(run), self.tiles.at[buffer], self.sems.at[1, buffer]).start()

    def merge_and_start_write(self, run: Scalar, buffer: Scalar) -> None:
        """Put the rows into the tile once both are there, and start to bring it back."""
        self._window_copy(run, buffer).wait()
        pltpu.make_async_copy(self._tile_at(run), self.tiles.at[buffer], self.sems.at[1, buffer]).wait()
        # The window holds the run from row `first % TILE` on, the tile takes it from row `into` on.
        into = self.runs.slot[run] % TILE
        rotation = into - self.runs.first[run] % TILE
        window = self.windows[buffer].astype(jnp.float32)
        # A rotation is not negative on the device; WINDOW more is the same one.
        placed = pltpu.roll(window, lax.rem(rotation + WINDOW, WINDOW), axis=0)[:TILE]
        row = lax.broadcasted_iota(jnp.int32, placed.shape, 0)
        new = (row >= into) & (row < into + self.runs.length[run])
        self.tiles[buffer] = jnp.where(new, placed, self.tiles[buffer].astype(jnp.float32)).astype(self.tiles.dtype)
        pltpu.make_async_copy(self.tiles.at[buffer], self._tile_at(run), self.sems.at[1, buffer]).start()

    def wait_write(self, run: Scalar, buffer: Scalar) -> None:
        """Wait until the tile is in the pool and its buffer free."""
        pltpu.make_async_copy(self.tiles.at[buffer], self._tile_at(run), self.sems.at[1, buffer]).wait()


def _kernel(*refs: Ref, page_size: int) -> None:
    scalars = len(Runs._fields)
    rows, _pool, pool, windows, tiles, sems = refs[scalars:]  # one pool, as input and output
    runs = Runs(*refs[:scalars])
    writer = TileWriter(runs, rows, pool, windows, tiles, sems, page_size)

    @pl.loop(0, pl.cdiv(runs.number[0], IN_FLIGHT))
    def _(group: jax.Array) -> None:
        first_run = group * IN_FLIGHT
        here = jnp.minimum(IN_FLIGHT, runs.number[0] - first_run)
        # All reads start before the first of them is waited for, and all writes likewise. They may pass each other,
        # since by contract no two runs share a tile. The last phase frees the buffers for the next group.
        for phase in (writer.start_reads, writer.merge_and_start_write, writer.wait_write):
            pl.loop(0, here)(lambda buffer, phase=phase: phase(first_run + buffer, buffer))
