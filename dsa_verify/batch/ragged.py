"""The ragged step: the fields that every form of it has, its mode, and the rules for slots and writers that all keep.

`Batch` is a step with caches and values, `engine.Step` one with tokens, `model.Metadata` the same arrays on a device.
Each states beside these rules what it demands alone: unused entries of the page table, for one, are poison in a batch,
which a kernel must not follow, and zeros in an engine's step.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from dsa_verify.batch.requests import page_count

PADDING = -1
"""Position and cache location of a padding token; neither may be used as an index."""


class RaggedStep(Protocol):
    """Several sequences of unequal length in one step; a padding sequence has `kv_len` 0.

    page_size: tokens of a page. kv_lens: i32[seqs], with this step's tokens. cu_q_lens: i32[seqs + 1], where each
    sequence's new tokens begin. page_table: i32[seqs, pages_per_seq]. positions: i32[tokens]. out_cache_loc:
    i32[tokens], the slot `page * page_size + offset` of each new token.
    """

    @property
    def page_size(self) -> int: ...
    @property
    def kv_lens(self) -> np.ndarray: ...
    @property
    def cu_q_lens(self) -> np.ndarray: ...
    @property
    def page_table(self) -> np.ndarray: ...
    @property
    def positions(self) -> np.ndarray: ...
    @property
    def out_cache_loc(self) -> np.ndarray: ...


def mode_of(tokens: int, q_lens: np.ndarray, kv_lens: np.ndarray) -> str:
    """`decode` when every sequence slot carries exactly one token, `extend` or `mixed` otherwise."""
    if tokens == len(q_lens) and (q_lens == 1).all():
        return "decode"
    real = q_lens[kv_lens > 0]
    return "mixed" if (real == 1).any() and (real > 1).any() else "extend"


def slots_of(pages: np.ndarray, kv_len: int, page_size: int) -> np.ndarray:
    """Physical slot of every position of a sequence that maps these pages."""
    position = np.arange(kv_len)
    return pages[position // page_size] * page_size + position % page_size


def due_places(step: RaggedStep) -> tuple[np.ndarray, np.ndarray]:
    """The positions and slots that the lengths and the page table demand of every token; `PADDING` for padding."""
    positions = np.full(len(step.positions), PADDING)
    slots = positions.copy()
    for seq in np.flatnonzero(step.kv_lens):
        rows, kv_len = slice(*step.cu_q_lens[seq : seq + 2].tolist()), int(step.kv_lens[seq])
        first = kv_len - (rows.stop - rows.start)
        positions[rows] = np.arange(first, kv_len)
        slots[rows] = slots_of(step.page_table[seq], kv_len, step.page_size)[first:]
    return positions, slots


def written_by_another(step: RaggedStep) -> Iterator[str]:
    """Pages that one sequence maps and another writes in this step: whoever shares a page may not write it."""
    writer: dict[int, int] = {}
    mapped: list[list[int]] = []
    for seq, kv_len in enumerate(step.kv_lens.tolist()):
        used = step.page_table[seq, : page_count(kv_len, step.page_size)].tolist()
        q_len = int(step.cu_q_lens[seq + 1] - step.cu_q_lens[seq])
        if kv_len and q_len:
            writer.update(dict.fromkeys(used[(kv_len - q_len) // step.page_size :], seq))
        mapped.append(used)
    for seq, used in enumerate(mapped):
        for page in used:
            if writer.get(page, seq) != seq:
                yield f"sequence {seq} maps page {page}, which sequence {writer[page]} writes in this step"
