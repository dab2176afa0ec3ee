"""Ragged metadata in plain jax.numpy: whose token this is, and the cached rows of its sequence."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Placement(NamedTuple):
    """Sequence and position of every token, i32[tokens]; position -1 for padding."""

    seq: jax.Array
    position: jax.Array


def sequence_of(cu_q_lens: jax.Array, tokens: int) -> jax.Array:
    """i32[tokens]: the sequence each token belongs to; some sequence for tokens behind the last one."""
    seq = jnp.searchsorted(cu_q_lens[1:], jnp.arange(tokens), side="right")
    return jnp.minimum(seq, cu_q_lens.shape[0] - 2).astype(jnp.int32)


def place(kv_lens: jax.Array, cu_q_lens: jax.Array, tokens: int) -> Placement:
    """Place every token from the lengths alone; a sequence of length 0 and the batch's tail are padding."""
    seq = sequence_of(cu_q_lens, tokens)
    token = jnp.arange(tokens, dtype=jnp.int32)
    position = kv_lens[seq] - cu_q_lens[seq + 1] + token
    real = (token < cu_q_lens[-1]) & (position >= 0)
    return Placement(seq, jnp.where(real, position, -1))


def gather_rows(cache: jax.Array, page_table: jax.Array, seq: jax.Array) -> jax.Array:
    """Cached rows of each token's sequence in order of position, [tokens, pages_per_seq * page_size, width].

    Table entries that point nowhere gather some page; callers mask by position.
    """
    pages = cache[jnp.clip(page_table[seq], 0, cache.shape[0] - 1)]
    return pages.reshape(pages.shape[0], -1, cache.shape[-1])


def over_sequences(
    look: Callable[..., tuple[jax.Array, ...]],
    cache: jax.Array,
    page_table: jax.Array,
    seq: jax.Array,
    *by_token: jax.Array,
) -> tuple[jax.Array, ...]:
    """`look(rows, own, *by_token)` for each token with the cached rows of its own sequence, [kv, width].

    `look` takes any number of tokens and returns one row for each; what it returns for tokens of other sequences (where
    `own` is false) is dropped. The rows of a sequence are gathered once: where each
    sequence has its token (a decode), all are looked at together; otherwise one after the other, by all tokens, of
    which its own count.
    """
    seqs = page_table.shape[0]
    if seq.shape[0] == seqs:
        rows = gather_rows(cache, page_table, seq)
        own = jnp.ones((seqs, 1), bool)
        return tuple(x[:, 0] for x in jax.vmap(look)(rows, own, *(x[:, None] for x in by_token)))

    def one_sequence(results: tuple[jax.Array, ...], number: jax.Array) -> tuple[tuple[jax.Array, ...], None]:
        own = seq == number
        found = look(gather_rows(cache, page_table, number[None])[0], own, *by_token)
        chosen = [jnp.expand_dims(own, tuple(range(1, x.ndim))) for x in found]
        return tuple(map(jnp.where, chosen, found, results)), None

    rows = jax.ShapeDtypeStruct((page_table.shape[1] * cache.shape[1], cache.shape[2]), cache.dtype)
    shapes = jax.eval_shape(look, rows, seq == 0, *by_token)
    return jax.lax.scan(one_sequence, tuple(jnp.zeros(x.shape, x.dtype) for x in shapes), jnp.arange(seqs))[0]


def write_rows(rows: jax.Array, cache: jax.Array, out_cache_loc: jax.Array) -> jax.Array:
    """The cache [pages, page_size, width] with a row [tokens, width] at each slot; those with slot -1 are dropped."""
    flat = cache.reshape(-1, cache.shape[-1])
    # mode="drop" alone would let -1 wrap to the pool's last slot.
    return flat.at[out_cache_loc].set(rows, mode="drop", wrap_negative_indices=False).reshape(cache.shape)


def slots(page_table: jax.Array, placement: Placement, page_size: int) -> jax.Array:
    """Physical slot of every token's own position, i32[tokens]; -1 for padding."""
    position = jnp.maximum(placement.position, 0)
    page = page_table[placement.seq, position // page_size]
    return jnp.where(placement.position >= 0, page * page_size + position % page_size, -1)


def pages_of(tokens: jax.Array, page_size: int, most: int) -> jax.Array:
    """The distinct pages of chosen positions, i32[queries, most], ascending, -1 fills the tail."""
    nowhere = jnp.iinfo(jnp.int32).max
    pages = jnp.sort(jnp.where(tokens >= 0, tokens // page_size, nowhere), axis=1)
    repeated = jnp.pad(pages[:, 1:] == pages[:, :-1], ((0, 0), (1, 0)))
    pages = jnp.sort(jnp.where(repeated, nowhere, pages), axis=1)[:, :most]
    return jnp.where(pages == nowhere, -1, pages)


def fixed_stride(page_indices: jax.Array, cu_kv_lens: jax.Array, page_size: int) -> jax.Array:
    """A packed page table i32[seqs * pages_per_seq] with one row a sequence, i32[seqs, pages_per_seq].

    Packed, sequence i starts at `cu_kv_lens[i] // page_size`. Behind its own pages a row holds those of the next, which
    no kernel may look at.
    """
    width = page_indices.shape[0] // (cu_kv_lens.shape[0] - 1)
    at = cu_kv_lens[:-1, None] // page_size + jnp.arange(width)
    return page_indices[jnp.minimum(at, page_indices.shape[0] - 1)]
