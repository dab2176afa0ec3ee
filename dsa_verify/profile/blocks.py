"""Blocks of queries: what neighbouring queries select in common, and the pages of their union."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from dsa_verify.profile.trace import Selections

NEARLY = (19, 20)
"""Nearly every query: 19 of 20. An indexer that always selects a column misses it now and then, in a near-tie."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """The whole blocks of `block_size` consecutive queries of a window; one entry a block in every array.

    first: position of a block's first query. intersection: positions that all of its queries selected. union: positions
    that any selected. sinks: positions beyond the local window of all of its queries that nearly every one selected.
    pages: by page size, how many pages the union lies in.
    """

    block_size: int
    first: np.ndarray
    intersection: np.ndarray
    union: np.ndarray
    sinks: np.ndarray
    pages: dict[int, np.ndarray]


def measure(window: Selections, block_size: int, page_sizes: Collection[int], local_window: int) -> Blocks:
    """Measure the whole blocks of a window, from its first query on; what is left over at its end is left out."""
    rows = []
    for block in _cut(window, block_size):
        counts = selected_by(block)
        pages = [int(pages_of(counts, size).sum()) for size in page_sizes]
        sinks = len(sink_columns(counts, block, local_window))
        rows.append([block.positions[0], (counts == block_size).sum(), (counts > 0).sum(), sinks, *pages])
    first, intersection, union, sinks, *pages = np.array(rows, np.int64).T
    return Blocks(block_size, first, intersection, union, sinks, dict(zip(page_sizes, pages, strict=True)))


def _cut(window: Selections, block_size: int) -> Iterator[Selections]:
    for start in range(0, len(window.positions) - block_size + 1, block_size):
        block = slice(start, start + block_size)
        yield Selections(window.positions[block], window.topk[block])


def selected_by(selections: Selections) -> np.ndarray:
    """How many of the queries selected each position, from 0 to that of the last query."""
    chosen = selections.topk[selections.topk >= 0]
    return np.bincount(chosen, minlength=int(selections.positions[-1]) + 1)


def sink_columns(counts: np.ndarray, selections: Selections, local_window: int) -> np.ndarray:
    """Positions that nearly every query selected though they are beyond the local window of each."""
    beyond = max(0, int(selections.positions[0]) - local_window + 1)
    return np.flatnonzero(nearly_all(counts[:beyond], len(selections.positions)))


def nearly_all(counts: np.ndarray, of: np.ndarray | int) -> np.ndarray:
    """Whether counts are nearly all of `of`."""
    part, whole = NEARLY
    return counts * whole >= np.multiply(of, part)


def pages_of(counts: np.ndarray, page_size: int) -> np.ndarray:
    """Whether each page holds a position with a count."""
    return np.logical_or.reduceat(counts > 0, np.arange(0, len(counts), page_size))
