"""Traffic: pages that a selection lies in, what a choice of whole pages would keep of it, and bytes moved.

Bytes are those of cache rows read from HBM for one block of queries of one layer: latents of `latent_width` lanes, and,
in a layer that scores (`full`, not `shared`), one index key a position; both bfloat16. Queries, outputs and page tables
are small beside them and left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dsa_verify.profile.blocks import Blocks
from dsa_verify.profile.trace import Selections
from dsa_verify.shapes import ModelShape

BFLOAT16 = 2
"""Bytes of one element."""

SATURATED = 0.9

_ROWS = 256
"""Queries counted at a time, so that the table of queries by pages stays small."""


@dataclass(frozen=True, eq=False)
class Pages:
    """Pages of `page_size` tokens; one entry a query in every array.

    fetched: pages that the query's selection lies in. kept: share of its selection that it would keep if its budget
    went to whole pages, those with most of its selected positions: no choice of as many pages keeps more.
    """

    page_size: int
    fetched: np.ndarray
    kept: np.ndarray


def pages(window: Selections, page_size: int, index_topk: int) -> Pages:
    """Count the pages of each query of a window."""
    budget = -(-index_topk // page_size)
    fetched, kept = [], []
    for counts in _counts_by_page(window, page_size):
        fetched.append((counts > 0).sum(axis=1))
        best = np.partition(counts, -budget, axis=1)[:, -budget:] if budget < counts.shape[1] else counts
        kept.append(best.sum(axis=1) / np.maximum(1, counts.sum(axis=1)))
    return Pages(page_size, np.concatenate(fetched), np.concatenate(kept))


def _counts_by_page(window: Selections, page_size: int) -> Iterator[np.ndarray]:
    """How many positions of each page a query selected: `[queries, pages]`, some queries at a time."""
    count = int(window.positions[-1]) // page_size + 1
    for start in range(0, len(window.topk), _ROWS):
        topk = window.topk[start : start + _ROWS]
        place = np.arange(len(topk))[:, None] * count + topk // page_size
        yield np.bincount(place[topk >= 0], minlength=len(topk) * count).reshape(-1, count)


@dataclass(frozen=True)
class Crossing:
    """Bytes that dense and sparse attention move for one block of queries, as a function of the context's length.

    Dense reads every latent once a block. Sparse reads pages: those of each query by itself, or those of the block's
    union once. Both page counts are as measured at every length, which holds far beyond the budget. A layer that scores
    also reads every index key once a block. coverage: share of the measured context's pages that the union held.
    """

    block_size: int
    page_size: int
    pages_per_query: float
    pages_per_block: float
    coverage: float
    latent_bytes: int
    index_bytes: int

    def dense(self, context: np.ndarray) -> np.ndarray:
        return np.asarray(context) * float(self.latent_bytes)

    def per_query(self, context: np.ndarray) -> np.ndarray:
        """Every query of the block reads its own pages, at most all there are."""
        return self.block_size * self._pages(self.pages_per_query, context)

    def qblock(self, context: np.ndarray) -> np.ndarray:
        """The block reads its union once."""
        return self._pages(self.pages_per_block, context)

    def scoring(self, context: np.ndarray) -> np.ndarray:
        """What a full layer reads besides, to select; a shared layer reuses a selection."""
        return np.asarray(context) * float(self.index_bytes)

    def _pages(self, count: float, context: np.ndarray) -> np.ndarray:
        return np.minimum(count, np.ceil(np.asarray(context) / self.page_size)) * self.page_size * self.latent_bytes

    @property
    def saturated(self) -> bool:
        """Whether the union held nearly every page, so that it would grow with the context and no crossing is known."""
        return self.coverage > SATURATED

    @property
    def crossings(self) -> dict[str, int]:
        """Context in tokens beyond which sparse moves fewer bytes than dense, by kernel and kind of layer."""
        found = {}
        for kernel, count in (("per_query", self.block_size * self.pages_per_query), ("qblock", self.pages_per_block)):
            for kind, dense in (("shared", self.latent_bytes), ("full", self.latent_bytes - self.index_bytes)):
                found[f"{kernel}_{kind}"] = int(np.ceil(count * self.page_size * self.latent_bytes / dense))
        return found

    def to_json(self) -> dict[str, object]:
        return {**vars(self), "saturated": self.saturated, "crossings": self.crossings}


def crossing(shape: ModelShape, page_size: int, fetched: np.ndarray, block: Blocks) -> Crossing:
    """The crossing for a model's cache rows. fetched: pages of `page_size` of each query."""
    shared = block.pages[page_size]
    there = -(-(block.first + block.block_size) // page_size)
    return Crossing(
        block_size=block.block_size,
        page_size=page_size,
        pages_per_query=float(fetched.mean()),
        pages_per_block=float(shared.mean()),
        coverage=float((shared / there).mean()),
        latent_bytes=shape.latent_width * BFLOAT16,
        index_bytes=shape.index_head_dim * BFLOAT16,
    )
