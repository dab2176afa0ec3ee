"""Poison: what stands in memory that nobody owns, and variants of a batch that may change nothing."""

import numpy as np
from numpy.typing import DTypeLike

from dsa_verify.batch.batch import BY_TOKEN, Batch
from dsa_verify.batch.requests import page_count
from dsa_verify.batch.values import POISON, stream

HUGE = 3.0e4
"""Finite poison: far outside the signal, inside every dtype. For kernels that demand finite memory."""


def poison_rows(count: int, width: int, dtype: DTypeLike, finite: bool, seed: int) -> np.ndarray:
    """Rows of poison [count, width]: NaN, or finite values of about 3e4 with random signs."""
    if not finite:
        return np.full((count, width), np.nan, dtype)
    signs = stream(seed, POISON).choice([-1.0, 1.0], (count, width))
    return (HUGE * signs).astype(dtype)


def poison_table(table: np.ndarray, kv_lens: np.ndarray, page_size: int, pages: list[int], seed: int) -> np.ndarray:
    """Fill unused page table entries with pages nobody owns and with ids outside the pool."""
    table = table.copy()
    rng = stream(seed, POISON, 1)
    for seq, kv_len in enumerate(kv_lens):
        unused = table[seq, page_count(int(kv_len), page_size) :]
        unused[:] = rng.choice(pages, len(unused))
    return table


def free_pages(batch: Batch) -> list[int]:
    """Pages that no sequence maps, page 0 among them."""
    owned = batch.owned.reshape(-1, batch.page_size).any(axis=1)
    return np.flatnonzero(~owned).tolist()


def repoisoned(batch: Batch, *, finite: bool, seed: int = 1) -> Batch:
    """The same step in other dirty memory: no result may differ.

    Every slot that nobody owns and every slot that this step will write gets fresh poison (NaN, or finite
    when asked), padding tokens too, and unused page table entries point elsewhere.
    """

    def fill(array: np.ndarray, dirty: np.ndarray, salt: int) -> np.ndarray:
        flat = array.reshape(len(dirty), -1).copy()
        flat[dirty] = poison_rows(int(dirty.sum()), flat.shape[1], array.dtype, finite, seed + salt)
        return flat.reshape(array.shape)

    unwritten = ~batch.owned
    unwritten[batch.out_cache_loc[batch.real]] = True
    padding = ~batch.real
    pool = batch.cache_kv.shape[0]
    return batch.replace(
        cache_kv=fill(batch.cache_kv, unwritten, 0),
        index_cache=fill(batch.index_cache, ~batch.owned, 1),
        page_table=poison_table(
            batch.page_table, batch.kv_lens, batch.page_size, [*free_pages(batch), pool + seed], seed
        ),
        **{name: fill(getattr(batch, name), padding, 2 + i) for i, name in enumerate(BY_TOKEN)},
    )


def neighbours_changed(batch: Batch, keep: np.ndarray) -> Batch:
    """The same step with other data in every sequence not in `keep` (bool[seqs]).

    Only pages that no kept sequence maps are changed, so that the results of kept sequences must stay
    bit for bit.
    """
    kept_slots = np.zeros_like(batch.owned)
    for seq in np.flatnonzero(keep):
        kept_slots[batch.slots(int(seq))] = True
    change = batch.owned & ~kept_slots
    change_tokens = batch.real & ~keep[np.maximum(batch.seq_of_token, 0)]

    def negate(array: np.ndarray, where: np.ndarray) -> np.ndarray:
        flat = array.reshape(len(where), -1).copy()
        flat[where] = -flat[where][:, ::-1]
        return flat.reshape(array.shape)

    width = batch.ql_nope.shape[-1]
    cache = batch.cache_kv.copy()
    cache[..., :width] = negate(batch.cache_kv[..., :width], change)
    tokens = ("ql_nope", "new_c_kv", "index_q", "hidden", "q_lora")
    return batch.replace(
        cache_kv=cache,
        index_cache=negate(batch.index_cache, change),
        **{name: negate(getattr(batch, name), change_tokens) for name in tokens},
    )
