"""Attention and cache surfaces in plain jax.numpy: write, gather, mask, softmax."""

from functools import partial

import jax
import jax.numpy as jnp

from dsa_verify.contract import implements
from dsa_verify.kernels.jnp.ragged import Placement, over_sequences, place, sequence_of, slots, write_rows
from dsa_verify.shapes import LANES, align


@implements("cache_write")
def cache_write(new_c_kv: jax.Array, new_k_pe: jax.Array, cache_kv: jax.Array, out_cache_loc: jax.Array) -> jax.Array:
    """Write rows `[c_kv | 0 | k_pe | 0]` at their slots and drop those with slot -1; returns the cache."""
    rank, rope = new_c_kv.shape[1], new_k_pe.shape[1]
    rows = jnp.zeros((new_c_kv.shape[0], cache_kv.shape[2]), cache_kv.dtype)
    rows = rows.at[:, :rank].set(new_c_kv.astype(cache_kv.dtype))
    rows = rows.at[:, align(rank, LANES) : align(rank, LANES) + rope].set(new_k_pe.astype(cache_kv.dtype))
    return write_rows(rows, cache_kv, out_cache_loc)


@implements("dense_mla")
def dense_mla(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    kv_lens: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Write the new rows, attend all causal tokens; shapes and errors are those of the surface's contract."""
    placement = place(kv_lens, cu_q_lens, ql_nope.shape[0])
    cache = cache_write(new_c_kv, new_k_pe, cache_kv, slots(page_table, placement, cache_kv.shape[1]))
    out, _ = _attend(ql_nope, q_pe, cache, page_table, placement, None, sm_scale)
    return out, cache


@implements("sparse_mla_decode")
def sparse_mla_decode(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_pages: jax.Array,
    kv_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Write each sequence's new row, attend its selected pages and its own; as the surface's contract."""
    placement = Placement(jnp.arange(kv_lens.shape[0], dtype=jnp.int32), kv_lens - 1)
    cache = cache_write(new_c_kv, new_k_pe, cache_kv, slots(page_table, placement, cache_kv.shape[1]))
    own = placement.position[:, None] // cache.shape[1]
    chosen = _in_pages(jnp.concatenate([topk_pages, own], axis=1), page_table.shape[1] * cache.shape[1], cache.shape[1])
    out, _ = _attend(ql_nope, q_pe, cache, page_table, placement, chosen, sm_scale)
    return out, cache


@implements("sparse_mla_prefill")
def sparse_mla_prefill(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_pages: jax.Array,
    positions: jax.Array,
    out_cache_loc: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Write the chunk's rows, attend each query's selected pages; as the surface's contract."""
    out, _, cache = sparse_mla_prefill_qblock(
        ql_nope, q_pe, new_c_kv, new_k_pe, cache_kv, topk_pages, positions, out_cache_loc, cu_q_lens, page_table,
        sm_scale=sm_scale,
    )  # fmt: skip
    return out, cache


@implements("sparse_mla_prefill_qblock")
def sparse_mla_prefill_qblock(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_pages: jax.Array,
    positions: jax.Array,
    out_cache_loc: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """As `sparse_mla_prefill`, with the natural-log lse; blocks of queries are a matter of speed only."""
    cache = cache_write(new_c_kv, new_k_pe, cache_kv, out_cache_loc)
    placement = Placement(sequence_of(cu_q_lens, positions.shape[0]), positions)
    chosen = _in_pages(topk_pages, page_table.shape[1] * cache.shape[1], cache.shape[1])
    out, lse = _attend(ql_nope, q_pe, cache, page_table, placement, chosen, sm_scale)
    return out, lse, cache


def sparse_mla_tokens(
    ql_nope: jax.Array,
    q_pe: jax.Array,
    new_c_kv: jax.Array,
    new_k_pe: jax.Array,
    cache_kv: jax.Array,
    topk_indices: jax.Array,
    positions: jax.Array,
    out_cache_loc: jax.Array,
    cu_q_lens: jax.Array,
    page_table: jax.Array,
    *,
    sm_scale: float,
) -> tuple[jax.Array, jax.Array]:
    """Write the chunk's rows, attend exactly the chosen positions, i32[tokens, k], -1 fills the tail.

    What DeepSeek's and Hugging Face's models compute; kernels attend whole pages. Otherwise as `sparse_mla_prefill`.
    """
    cache = cache_write(new_c_kv, new_k_pe, cache_kv, out_cache_loc)
    placement = Placement(sequence_of(cu_q_lens, positions.shape[0]), positions)
    row = jnp.arange(topk_indices.shape[0])[:, None]
    chosen = jnp.zeros((row.shape[0], page_table.shape[1] * cache.shape[1]), bool)
    chosen = chosen.at[row, topk_indices].set(True, mode="drop", wrap_negative_indices=False)
    out, _ = _attend(ql_nope, q_pe, cache, page_table, placement, chosen, sm_scale)
    return out, cache


def _in_pages(pages: jax.Array, kv: int, page_size: int) -> jax.Array:
    """bool[tokens, kv]: positions inside the listed sequence-local pages; -1 lists none."""
    of_position = jnp.arange(kv, dtype=jnp.int32) // page_size
    return jnp.any(pages[:, :, None] == of_position, axis=1)


def _attend(
    ql_nope: jax.Array, q_pe: jax.Array, cache: jax.Array, page_table: jax.Array, placement: Placement,
    chosen: jax.Array | None, sm_scale: float,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Softmax attention of each token over the `chosen` of its sequence's rows, bool[tokens, kv]; None for all."""
    visible = jnp.arange(page_table.shape[1] * cache.shape[1]) <= placement.position[:, None]
    if chosen is not None:
        visible &= chosen
    attend = partial(_attend_rows, sm_scale=sm_scale)
    out, lse = over_sequences(attend, cache, page_table, placement.seq, ql_nope, q_pe, visible)
    return out, lse


def _attend_rows(
    rows: jax.Array, own: jax.Array, ql_nope: jax.Array, q_pe: jax.Array, visible: jax.Array, *, sm_scale: float
) -> tuple[jax.Array, jax.Array]:
    """Attention of tokens over the cached rows [kv, width] of their sequence; `visible` is bool[tokens, kv].

    Computed in float32 from the inputs as they are; weights are not rounded.
    """
    rank, at = ql_nope.shape[-1], align(ql_nope.shape[-1], LANES)
    visible &= own[:, None]
    # Rows that nobody sees may hold NaN, and 0 * NaN is NaN, so they are cleared and not only masked.
    rows = jnp.where(visible.any(axis=0)[:, None], rows, 0).astype(jnp.float32)
    latent, rotary = rows[:, :rank], rows[:, at : at + q_pe.shape[-1]]
    dot = partial(jnp.einsum, precision=jax.lax.Precision.HIGHEST)
    nope, pe = ql_nope.astype(jnp.float32), q_pe.astype(jnp.float32)
    logits = dot("thr,kr->thk", nope, latent) + dot("thr,kr->thk", pe, rotary)
    logits = jnp.where(visible[:, None], logits * sm_scale, -jnp.inf)
    top = jnp.max(logits, axis=2, keepdims=True)
    weights = jnp.exp(logits - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=2, keepdims=True)
    out = dot("thk,kr->thr", weights / jnp.where(total == 0.0, 1.0, total), latent)
    return out.astype(ql_nope.dtype), (top + jnp.log(total))[..., 0]
