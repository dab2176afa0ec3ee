"""Rows -> Step: the work chosen for one step, laid out in arrays of a static shape with padding at the end."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsa_verify.batch.ragged import PADDING, mode_of, slots_of
from dsa_verify.batch.requests import page_count
from dsa_verify.engine.step import Step


@dataclass(frozen=True)
class Row:
    """One sequence's share of a step: its next tokens, the position of the first, and the pages mapped so far."""

    tokens: tuple[int, ...]
    start: int
    pages: tuple[int, ...]

    @property
    def kv_len(self) -> int:
        return self.start + len(self.tokens)


def pack(rows: Sequence[Row], shape: tuple[int, int], page_size: int, pages_per_seq: int) -> Step:
    """A step of static `shape` (tokens, seqs) that does `rows` in their order; no rows make a step of padding."""
    size, seqs = shape
    kv_lens, q_lens = np.zeros(seqs, np.int32), np.zeros(seqs, np.int32)
    table = np.zeros((seqs, pages_per_seq), np.int32)
    tokens = np.zeros(size, np.int32)
    positions, locations = np.full(size, PADDING, np.int32), np.full(size, PADDING, np.int32)
    at = 0
    for seq, row in enumerate(rows):
        pages = row.pages[: page_count(row.kv_len, page_size)]
        table[seq, : len(pages)] = pages
        kv_lens[seq], q_lens[seq] = row.kv_len, len(row.tokens)
        new = slice(at, at := at + len(row.tokens))
        tokens[new] = row.tokens
        positions[new] = np.arange(row.start, row.kv_len)
        locations[new] = slots_of(table[seq], row.kv_len, page_size)[row.start :]
    if size == seqs and all(len(row.tokens) == 1 for row in rows):
        q_lens[len(rows) :] = 1
    return Step(
        page_size=page_size,
        tokens=tokens,
        kv_lens=kv_lens,
        cu_q_lens=np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32),
        page_table=table,
        positions=positions,
        out_cache_loc=locations,
        mode=mode_of(size, q_lens, kv_lens),
    )
