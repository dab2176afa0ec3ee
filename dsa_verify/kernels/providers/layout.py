"""Translates our 2-D page tables and 3-D caches into the layouts of other packages' kernels, and back; jit-able."""

import jax
import jax.numpy as jnp
import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.shapes import LANES, align

WORD_BYTES = 4


def fixed_stride(page_table: jax.Array) -> jax.Array:
    """Flat `page_indices` in which sequence i starts at `i * pages_per_seq`; unused entries stay what they are."""
    return page_table.reshape(-1)


def cu_kv_lens(kv_lens: jax.Array, page_size: int) -> jax.Array:
    """i32[seqs + 1]: prefix sum of the lengths, each rounded up to whole pages."""
    aligned = (kv_lens + page_size - 1) // page_size * page_size
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(aligned, dtype=jnp.int32)])


def packed(page_table: jax.Array, kv_lens: jax.Array, page_size: int) -> jax.Array:
    """Flat `page_indices` in which sequence i starts at `cu_kv_lens[i] // page_size`, right behind the one before.

    As long as the fixed-stride form, since lengths are not static; behind the last sequence come page 0s, with which
    SGLang-JAX pads it.
    """
    seqs, pages_per_seq = page_table.shape
    starts = cu_kv_lens(kv_lens, page_size) // page_size
    column = jnp.arange(pages_per_seq)
    at = jnp.where(column < jnp.diff(starts)[:, None], starts[:-1, None] + column, seqs * pages_per_seq)
    return jnp.zeros(seqs * pages_per_seq, jnp.int32).at[at].set(page_table, mode="drop")


def distribution(kv_lens: jax.Array, cu_q_lens: jax.Array, *, decodes_first: bool) -> jax.Array:
    """i32[3]: sequences before the first are decodes, before the second prefills of one length, before the third any.

    The third is the number of sequences up to the last that is not padding. With `decodes_first` the leading
    sequences of one token are decodes whatever follows them, as vLLM counts; without, a step is all decodes or has
    none, as in SGLang-JAX, to which a decode in a mixed step is an extend of one token.
    """
    one_token = (jnp.diff(cu_q_lens) == 1) & (kv_lens > 0)
    seqs = jnp.max(jnp.where(kv_lens > 0, jnp.arange(1, kv_lens.shape[0] + 1), 0))
    leading = jnp.cumprod(one_token, dtype=jnp.int32).sum()
    decodes = leading if decodes_first else jnp.where(leading == seqs, seqs, 0)
    return jnp.stack([decodes, decodes, seqs]).astype(jnp.int32)


def kv_lens_of(positions: jax.Array, cu_q_lens: jax.Array) -> jax.Array:
    """i32[seqs]: lengths as the new tokens tell them, one past the last position; 0 for a sequence without any."""
    last = positions[jnp.maximum(cu_q_lens[1:] - 1, 0)]
    return jnp.where(jnp.diff(cu_q_lens) > 0, last + 1, 0).astype(jnp.int32)


def packed_metadata(
    page_table: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, page_size: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """`page_indices`, `cu_q_lens`, `cu_kv_lens` and `distribution`, as SGLang-JAX's kernels take them in a row."""
    pages, aligned = packed(page_table, kv_lens, page_size), cu_kv_lens(kv_lens, page_size)
    return pages, cu_q_lens, aligned, distribution(kv_lens, cu_q_lens, decodes_first=False)


def rows_per_word(dtype: jnp.dtype) -> int:
    """Rows of a cache that share one 32-bit word: 1 for float32, 2 for bfloat16, 4 for bytes."""
    return WORD_BYTES // jnp.dtype(dtype).itemsize


def pack_cache(cache: jax.Array) -> jax.Array:
    """[pages, page_size, width] as [pages, page_size / pack, pack, width]: `pack` rows share 32-bit words."""
    pages, page_size, width = cache.shape
    pack = rows_per_word(cache.dtype)
    return cache.reshape(pages, page_size // pack, pack, width)


def unpack_cache(cache: jax.Array) -> jax.Array:
    """The inverse of `pack_cache`."""
    pages, words, pack, width = cache.shape
    return cache.reshape(pages, words * pack, width)


def latent_rows(c_kv: jax.Array, k_pe: jax.Array, dtype: jnp.dtype) -> jax.Array:
    """Cache rows `[c_kv | 0 | k_pe | 0]` [tokens, latent width], each part padded to 128 lanes."""
    parts = [jnp.pad(part, ((0, 0), (0, align(part.shape[1], LANES) - part.shape[1]))) for part in (c_kv, k_pe)]
    return jnp.concatenate(parts, axis=1).astype(dtype)


def padding_between(batch: Batch) -> str | None:
    """Why a batch cannot be told by a `distribution`: it counts sequences from the first, so padding must come last."""
    real = np.flatnonzero(batch.kv_lens > 0)
    if len(real) and len(real) <= real[-1]:
        return "padding sequences between real ones: their distribution counts real sequences from the first"
    return None
