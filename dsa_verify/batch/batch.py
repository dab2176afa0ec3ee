"""Batch: one ragged paged step as NumPy arrays, refused with `BatchError` when its arrays contradict each other."""

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dsa_verify.batch.indexer import IndexerWeights
from dsa_verify.batch.ragged import due_places, mode_of, slots_of, written_by_another
from dsa_verify.batch.requests import RESERVED_PAGE, page_count
from dsa_verify.errors import BatchError
from dsa_verify.shapes import IndexerConvention

BY_TOKEN = ("ql_nope", "q_pe", "new_c_kv", "new_k_pe", "index_q", "index_weights", "hidden", "q_lora")
"""The float arrays of a batch that have a row for each token; those of padding tokens are poison."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One step of a serving engine: metadata, caches before the step, queries and new tokens.

    Axes: `tokens` counts query tokens with padding, `seqs` sequences with padding, `pages` the pool.
    Metadata is int32. Float arrays have the model's dtype; `index_weights` is float32.

    `cache_kv` rows are `[c_kv | pad | k_pe | pad]`, pads zero, as they stood BEFORE the step: slots of new
    tokens still hold poison. `index_cache` holds the keys of the new tokens already, as the indexer's
    kernels find it; `operand` gives what a surface finds that writes them. `topk_pages` is the selection handed
    to the sparse attention surfaces: sequence-local page ids in no order, -1 fills the tail.
    """

    page_size: int
    index_topk: int
    sm_scale: float
    kv_lens: np.ndarray  # i32[seqs]
    cu_q_lens: np.ndarray  # i32[seqs + 1]
    page_table: np.ndarray  # i32[seqs, pages_per_seq]; unused entries are poison
    positions: np.ndarray  # i32[tokens]; -1 for padding
    out_cache_loc: np.ndarray  # i32[tokens]; page * page_size + offset, -1 for padding
    topk_pages: np.ndarray  # i32[tokens, k_pages]
    ql_nope: np.ndarray  # [tokens, heads, kv_lora_rank]
    q_pe: np.ndarray  # [tokens, heads, qk_rope_head_dim]
    new_c_kv: np.ndarray  # [tokens, kv_lora_rank]
    new_k_pe: np.ndarray  # [tokens, qk_rope_head_dim]
    cache_kv: np.ndarray  # [pages, page_size, latent_width]
    index_q: np.ndarray  # [tokens, index_n_heads, index_head_dim]
    index_weights: np.ndarray  # f32[tokens, index_n_heads]
    index_cache: np.ndarray  # [pages, page_size, index_head_dim]
    hidden: np.ndarray  # [tokens, hidden_size], what enters the layer after its norm
    q_lora: np.ndarray  # [tokens, q_lora_rank], the query latent after its norm
    indexer: IndexerWeights
    convention: IndexerConvention
    exact_scores: bool = False
    """Index scores are small integers, which no dtype rounds; their ties are judged exactly."""

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise BatchError(f"inconsistent batch: {problem}")
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def operand(self, name: str, writes: bool = False) -> np.ndarray:
        """An input of a surface by its name in the contract; a pool that the surface `writes` as it was before.

        Slots of new tokens hold then what page 0 holds, which nobody owns: poison.
        """
        if name in vars(self.indexer):
            return getattr(self.indexer, name)
        value = getattr(self, name)
        if not (writes and name == "index_cache"):
            return value
        pool = value.copy()
        pool.reshape(-1, pool.shape[-1])[self.out_cache_loc[self.real]] = pool[RESERVED_PAGE, 0]
        return pool

    @property
    def tokens(self) -> int:
        return len(self.positions)

    @property
    def seqs(self) -> int:
        return len(self.kv_lens)

    @property
    def k_pages(self) -> int:
        """Pages that a query may keep: `ceil(index_topk / page_size)`."""
        return page_count(self.index_topk, self.page_size)

    @property
    def q_lens(self) -> np.ndarray:
        return np.diff(self.cu_q_lens)

    @property
    def mode(self) -> str:
        """`decode` when every sequence slot carries exactly one token, `extend` or `mixed` otherwise."""
        return mode_of(self.tokens, self.q_lens, self.kv_lens)

    @cached_property
    def seq_of_token(self) -> np.ndarray:
        """i32[tokens]: the sequence of each token, -1 for padding."""
        seq = np.repeat(np.arange(self.seqs, dtype=np.int32), self.q_lens)
        seq = np.concatenate([seq, np.full(self.tokens - len(seq), -1, np.int32)])
        return np.where(self.positions >= 0, seq, -1).astype(np.int32)

    @cached_property
    def real(self) -> np.ndarray:
        """bool[tokens]: tokens that are not padding."""
        return self.positions >= 0

    def rows(self, seq: int) -> slice:
        """Query tokens of a sequence; empty for a padding sequence."""
        start, stop = int(self.cu_q_lens[seq]), int(self.cu_q_lens[seq + 1])
        return slice(start, stop if self.kv_lens[seq] else start)

    def slots(self, seq: int) -> np.ndarray:
        """Physical slot (page * page_size + offset) of every position of a sequence."""
        return slots_of(self.page_table[seq], int(self.kv_lens[seq]), self.page_size)

    @cached_property
    def owned(self) -> np.ndarray:
        """bool[pages * page_size]: slots that hold or will hold a token of some sequence."""
        owned = np.zeros(self.cache_kv.shape[0] * self.page_size, bool)
        for seq in range(self.seqs):
            owned[self.slots(seq)] = True
        return owned

    def replace(self, **changes: Any) -> "Batch":
        return dataclasses.replace(self, **changes)


def _problems(b: Batch):
    """Every contradiction in a batch, most basic first; the first one is reported."""
    yield from _shape_problems(b)
    yield from _length_problems(b)
    yield from _table_problems(b)
    yield from _token_problems(b)
    yield from _selection_problems(b)
    yield from _value_problems(b)


def _shape_problems(b: Batch):
    tokens, seqs = b.tokens, b.seqs
    pages, page_size, _ = b.cache_kv.shape
    expected = {
        "cu_q_lens": (seqs + 1,),
        "page_table": (seqs, b.page_table.shape[-1]),
        "out_cache_loc": (tokens,),
        "topk_pages": (tokens, b.k_pages),
        "q_pe": (tokens, b.ql_nope.shape[1], b.q_pe.shape[-1]),
        "new_c_kv": (tokens, b.ql_nope.shape[-1]),
        "new_k_pe": (tokens, b.q_pe.shape[-1]),
        "index_weights": (tokens, b.index_q.shape[1]),
        "index_cache": (pages, page_size, b.index_q.shape[-1]),
        "hidden": (tokens, b.indexer.wk.shape[1]),
        "q_lora": (tokens, b.indexer.wq_b.shape[1]),
    }
    for name, shape in expected.items():
        found = getattr(b, name).shape
        if found != shape:
            yield f"{name} has shape {found}, expected {shape}"
    if page_size != b.page_size:
        yield f"cache_kv has pages of {page_size} tokens, page_size says {b.page_size}"
    for name in ("kv_lens", "cu_q_lens", "page_table", "positions", "out_cache_loc", "topk_pages"):
        if getattr(b, name).dtype != np.int32:
            yield f"{name} is {getattr(b, name).dtype}, expected int32"


def _length_problems(b: Batch):
    if b.cu_q_lens[0] != 0 or (b.q_lens < 0).any() or b.cu_q_lens[-1] > b.tokens:
        yield f"cu_q_lens {b.cu_q_lens.tolist()} must rise from 0 to at most {b.tokens} tokens"
    for seq in np.flatnonzero((b.kv_lens > 0) & (b.kv_lens < b.q_lens)):
        yield f"sequence {seq} has kv_len {b.kv_lens[seq]} < q_len {b.q_lens[seq]}"
    longest = b.page_table.shape[1] * b.page_size
    for seq in np.flatnonzero((b.kv_lens < 0) | (b.kv_lens > longest)):
        yield f"sequence {seq} has kv_len {b.kv_lens[seq]}, expected 0 to {longest} (the width of page_table)"
    if b.sm_scale is None or not b.sm_scale > 0:
        yield f"sm_scale is {b.sm_scale}, expected a positive number"
    if b.index_topk < 1:
        yield f"index_topk is {b.index_topk}, expected at least 1"


def _table_problems(b: Batch):
    pages = b.cache_kv.shape[0]
    for seq in range(b.seqs):
        used = b.page_table[seq, : page_count(int(b.kv_lens[seq]), b.page_size)]
        for at, page in enumerate(used.tolist()):
            if not 0 <= page < pages:
                yield f"page_table[{seq}, {at}] is {page}, expected a page of the pool (1 to {pages - 1})"
            if page == RESERVED_PAGE:
                yield f"page_table[{seq}, {at}] is page {RESERVED_PAGE}, which the allocator reserves"
        if len(set(used.tolist())) != len(used):
            yield f"sequence {seq} maps a page twice: {used.tolist()}"
    yield from written_by_another(b)


def _token_problems(b: Batch):
    due = dict(zip(("positions", "out_cache_loc"), due_places(b), strict=True))
    for seq in range(b.seqs):
        start, stop = int(b.cu_q_lens[seq]), int(b.cu_q_lens[seq + 1])
        for name, whole in due.items():
            if (getattr(b, name)[start:stop] != whole[start:stop]).any():
                yield f"{name}[{start}:{stop}] of sequence {seq} must be {whole[start:stop].tolist()}"
    tail = slice(int(b.cu_q_lens[-1]), None)
    if (b.positions[tail] != -1).any() or (b.out_cache_loc[tail] != -1).any():
        yield f"tokens from {tail.start} on are padding; their positions and out_cache_loc must be -1"


def _selection_problems(b: Batch):
    last_page = np.where(b.positions >= 0, b.positions // b.page_size, -1)
    for token in range(b.tokens):
        chosen = b.topk_pages[token]
        count = int((chosen >= 0).sum())
        valid = chosen[:count]
        if (valid < 0).any() or (valid > last_page[token]).any() or len(set(valid.tolist())) != count:
            yield (
                f"topk_pages[{token}] is {chosen.tolist()}, expected distinct pages from 0 to "
                f"{last_page[token]} with -1 only at the tail"
            )


def _value_problems(b: Batch):
    width = b.cache_kv.shape[-1]
    cached = b.owned.copy()
    cached[b.out_cache_loc[b.real]] = False
    if not np.isfinite(b.cache_kv.reshape(-1, width)[cached].astype(np.float32)).all():
        yield "cache_kv holds a value that is not finite in a slot that a sequence reads"
    keys = b.index_cache.reshape(-1, b.index_cache.shape[-1])[b.owned]
    if not np.isfinite(keys.astype(np.float32)).all():
        yield "index_cache holds a value that is not finite in a slot that a sequence reads"
