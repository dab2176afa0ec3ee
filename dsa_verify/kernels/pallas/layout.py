"""How kernels lay out a ragged step: latent rows, query blocks aligned to tokens, and the sequences in each block.

Query blocks are aligned to the token axis, not to sequences: block b is tokens [b * n, (b + 1) * n). A block
may therefore span several sequences, which the kernels mask; in return queries and outputs move through
ordinary pipelined BlockSpecs and every output row, padding included, is written.
"""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from dsa_verify.shapes import LANES, align

Ref = jax.Ref
"""Memory that a kernel is given: read and written by index, `ref.at[...]` is an address for a copy."""

Operand = jax.Array | Ref
"""What a `pallas_call` is given and its kernel gets: an array outside, the memory that holds it inside."""

Scalar = int | jax.Array
"""A whole number inside a kernel: known when the kernel is traced, or only when it runs."""


class Copy(Protocol):
    """A DMA, as `pltpu.make_async_copy` describes it.

    Its semaphore counts the bytes that have arrived. `wait` blocks until those of this copy are there and takes them
    off the count, so every copy that was started must be waited for once, and no other.
    """

    def start(self) -> None: ...

    def wait(self) -> None: ...


NOBODY = -1
"""Sequence and slot of a padding token."""


class TokenPlacement(NamedTuple):
    """Sequence of every token, i32[tokens], -1 for padding, which has no meaningful position; and its position."""

    seq: jax.Array
    position: jax.Array


def place(kv_lens: jax.Array, cu_q_lens: jax.Array, tokens: int) -> TokenPlacement:
    """Find each token's sequence and position from i32[seqs] and i32[seqs + 1] metadata."""
    token = jnp.arange(tokens, dtype=jnp.int32)
    seq = jnp.searchsorted(cu_q_lens[1:], token, side="right").astype(jnp.int32)
    position = kv_lens[seq] - cu_q_lens[seq + 1] + token  # of the last sequence, for tokens behind it
    real = (token < cu_q_lens[-1]) & (position >= 0)
    return TokenPlacement(jnp.where(real, seq, NOBODY), position)


def block_span(cu_q_lens: jax.Array, blocks: int, block: int) -> tuple[jax.Array, jax.Array]:
    """First and one past the last sequence with tokens in each query block, both i32[blocks]."""
    start = jnp.arange(blocks, dtype=jnp.int32) * block
    first = jnp.searchsorted(cu_q_lens[1:], start, side="right")
    last = jnp.searchsorted(cu_q_lens[:-1], start + block, side="left")
    return first.astype(jnp.int32), last.astype(jnp.int32)


def pad_to(x: jax.Array, length: int, axis: int = 0, value: float = 0) -> jax.Array:
    """Pad one axis at its end."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, length - x.shape[axis])
    return jnp.pad(x, widths, constant_values=value)


def latent_rows(nope: jax.Array, pe: jax.Array) -> jax.Array:
    """`[nope | 0 | pe | 0]` on the last axis, each part padded to 128 lanes.

    Queries and cached rows share this layout, so one contraction over it is the whole logit.
    """
    nope = pad_to(nope, align(nope.shape[-1], LANES), axis=-1)
    pe = pad_to(pe, align(pe.shape[-1], LANES), axis=-1)
    return jnp.concatenate([nope, pe], axis=-1)


def slots(page_table: jax.Array, placement: TokenPlacement, page_size: int) -> jax.Array:
    """Physical slot of every token's own position, i32[tokens]; -1 for padding."""
    seq, position = placement
    slot = page_table[seq, position // page_size] * page_size + position % page_size
    return jnp.where(seq >= 0, slot, NOBODY)
