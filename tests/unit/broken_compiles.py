"""Kernels that no TPU compiler may take, or whose programs no chip should run: for tests of `dsa-verify compile`."""

import os
import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.contract import Kernel, Provider
from dsa_verify.kernels.jnp.ragged import gather_rows, place

MIB = 2**20


def _written(cache_kv: jax.Array, body: Any, scratch: Any) -> jax.Array:
    """A cache_write that updates the cache in place, with a kernel body of the test's choice."""
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(cache_kv.shape, cache_kv.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[scratch, pltpu.SemaphoreType.DMA],
        input_output_aliases={1: 0},
    )(jnp.zeros(1, jnp.int32), cache_kv)


def _greedy(*, cache_kv: jax.Array, **_: jax.Array) -> jax.Array:
    """200 MiB of scratch; the first and the last word are used, so that none of it can be left out."""

    def body(start, _pool, pool, scratch, semaphore):
        copy = pltpu.make_async_copy(pool.at[start[0]], scratch.at[start[0]], semaphore)
        copy.start()
        copy.wait()

    page = cache_kv.shape[1:]
    return _written(cache_kv, body, pltpu.VMEM((200 * MIB // (page[0] * page[1] * 2), *page), cache_kv.dtype))


def _misaligned(*, cache_kv: jax.Array, **_: jax.Array) -> jax.Array:
    """Copies one bfloat16 row from a row that the compiler cannot know to begin a tile."""

    def body(start, _pool, pool, scratch, semaphore):
        copy = pltpu.make_async_copy(pool.at[0, pl.ds(start[0], 1)], scratch, semaphore)
        copy.start()
        copy.wait()

    return _written(cache_kv, body, pltpu.VMEM((1, cache_kv.shape[2]), cache_kv.dtype))


def _copying(*, cache_kv: jax.Array, **_: jax.Array) -> jax.Array:
    """Writes nothing, after a detour through the pool in another order, which is a copy of it."""

    def body(_start, _pool, pool, scratch, semaphore):
        copy = pltpu.make_async_copy(scratch, pool.at[0], semaphore)
        copy.start()
        copy.wait()

    turned = _written(cache_kv[::-1], body, pltpu.VMEM(cache_kv.shape[1:], cache_kv.dtype))
    return turned[::-1]


def _gathering(*, index_q, index_weights, index_cache, kv_lens, cu_q_lens, page_table, index_topk) -> jax.Array:
    """Index scores in plain jax.numpy that gather the keys of its sequence for every token anew."""
    seq = place(kv_lens, cu_q_lens, index_q.shape[0]).seq
    dots = jnp.einsum("thd,tkd->thk", index_q, gather_rows(index_cache, page_table, seq))
    return jnp.argmax(jnp.sum(jnp.maximum(dots, 0.0) * index_weights[:, :, None], axis=1), axis=1)[:, None]


def _crashing(**_: jax.Array) -> jax.Array:
    os.abort()


def _endless(**_: jax.Array) -> jax.Array:
    time.sleep(600)
    raise AssertionError("nobody ended it")


def _hungry(**_: jax.Array) -> jax.Array:
    held = bytearray(os.urandom(MIB) * 2**11)
    time.sleep(600)
    raise AssertionError(f"nobody ended it at {len(held)} bytes")


def _provider(name: str, fn: Any) -> Provider:
    surface = "index_topk" if fn is _gathering else "cache_write"
    return Provider(name, "0", {surface: Kernel(fn)}, {"dense_mla": "it has none"})


greedy = partial(_provider, "greedy", _greedy)
misaligned = partial(_provider, "misaligned", _misaligned)
copying = partial(_provider, "copying", _copying)
gathering = partial(_provider, "gathering", _gathering)
crashing = partial(_provider, "crashing", _crashing)
endless = partial(_provider, "endless", _endless)
hungry = partial(_provider, "hungry", _hungry)
