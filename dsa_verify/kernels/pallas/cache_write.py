"""Write new rows into a paged cache in place, by aligned tiles of 16 rows.

What moves: each tile that receives a row is read from HBM once, merged in VMEM and written back once; the
rest of the pool is never touched, because the pool is aliased to the output. Why tiles: the sublane tile of
bfloat16 is 16 rows, and a DMA may neither start nor end inside one, so a single row cannot be written
alone. Pages are multiples of 16 tokens, hence a tile belongs to one page and one sequence, and consecutive
tokens of a sequence fill it in order. A prefill of n tokens costs n / 16 tiles, a decode one a sequence.

The rows of a tile come from the token axis at any offset. An aligned window of 32 rows always contains them;
a sublane rotation (32-bit only, hence the cast, which is exact) brings them to their place.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import PAGE_MULTIPLE, implements
from dsa_verify.kernels.pallas.layout import latent_rows, pad_to
from dsa_verify.shapes import align

TILE = PAGE_MULTIPLE
WINDOW = 2 * TILE
IN_FLIGHT = 8
"""Tiles read, merged and written together: enough to hide the latency of one DMA behind seven others."""


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
    rows = pad_to(rows, align(tokens, TILE) + TILE)
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


def _runs(out_cache_loc: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Runs of consecutive tokens in one tile: first token, slot, length, each i32[tokens]; and their number [1]."""
    tokens = out_cache_loc.shape[0]
    tile = out_cache_loc // TILE  # rounds down, so that -1 stays -1
    opens = (tile >= 0) & (tile != jnp.concatenate([jnp.full((1,), -1, tile.dtype), tile[:-1]]))
    run = jnp.cumsum(opens) - 1
    (first,) = jnp.nonzero(opens, size=tokens, fill_value=0)
    length = jnp.zeros(tokens, jnp.int32).at[jnp.where(tile >= 0, run, tokens)].add(1, mode="drop")
    first = first.astype(jnp.int32)
    return first, out_cache_loc[first], length, jnp.sum(opens, dtype=jnp.int32)[None]


def _kernel(first, slot, length, count, rows_hbm, cache_hbm, out_hbm, windows, tiles, sems, *, page_size: int):
    del cache_hbm  # aliased to out_hbm

    def window_copy(run, lane):
        start = pl.multiple_of(first[run] // TILE * TILE, TILE)
        return pltpu.make_async_copy(rows_hbm.at[pl.ds(start, WINDOW)], windows.at[lane], sems.at[0, lane])

    def tile_at(run):
        offset = pl.multiple_of(slot[run] % page_size // TILE * TILE, TILE)
        return out_hbm.at[slot[run] // page_size, pl.ds(offset, TILE)]

    def start_reads(run, lane):
        window_copy(run, lane).start()
        pltpu.make_async_copy(tile_at(run), tiles.at[lane], sems.at[1, lane]).start()

    def merge_and_start_write(run, lane):
        window_copy(run, lane).wait()
        pltpu.make_async_copy(tile_at(run), tiles.at[lane], sems.at[1, lane]).wait()
        into = slot[run] % TILE
        rotation = into - first[run] % TILE
        window = windows[lane].astype(jnp.float32)
        placed = pltpu.roll(window, lax.rem(rotation + WINDOW, WINDOW), axis=0)[:TILE]
        row = lax.broadcasted_iota(jnp.int32, placed.shape, 0)
        new = (row >= into) & (row < into + length[run])
        tiles[lane] = jnp.where(new, placed, tiles[lane].astype(jnp.float32)).astype(tiles.dtype)
        pltpu.make_async_copy(tiles.at[lane], tile_at(run), sems.at[1, lane]).start()

    def wait_write(run, lane):
        pltpu.make_async_copy(tiles.at[lane], tile_at(run), sems.at[1, lane]).wait()

    @pl.loop(0, pl.cdiv(count[0], IN_FLIGHT))
    def _(group):
        first_run = group * IN_FLIGHT
        here = jnp.minimum(IN_FLIGHT, count[0] - first_run)
        for phase in (start_reads, merge_and_start_write, wait_write):
            pl.loop(0, here)(lambda lane, phase=phase: phase(first_run + lane, lane))
