"""Page pool: hands out pages and counts who refers to each; a page is free again when nobody does."""

from collections.abc import Iterable, Iterator

import numpy as np

from dsa_verify.batch.requests import RESERVED_PAGE
from dsa_verify.errors import EngineError


class PagePool:
    """Pages 1 to `pages - 1`. The page freed last is handed out first, so that a stale reader meets new rows soon."""

    def __init__(self, pages: int, seed: int | None = None) -> None:
        order = np.arange(1, pages)[::-1]
        if seed is not None:
            order = np.random.default_rng(seed).permutation(order)
        self._free: list[int] = order.tolist()
        self._references = dict.fromkeys(range(1, pages), 0)

    @property
    def size(self) -> int:
        """Pages that can be handed out."""
        return len(self._references)

    @property
    def free(self) -> int:
        return len(self._free)

    def references(self, page: int) -> int:
        if page not in self._references:
            raise EngineError(f"page {page} is not of this pool (1 to {self.size}; page {RESERVED_PAGE} is reserved)")
        return self._references[page]

    def allocate(self, count: int) -> list[int]:
        """Free pages, each with one reference: the caller's."""
        if count > self.free:
            raise EngineError(f"{count} pages asked for, {self.free} of {self.size} are free")
        pages = [self._free.pop() for _ in range(count)]
        self._references.update(dict.fromkeys(pages, 1))
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each page."""
        for page in pages:
            self._demand_used(page, "shared")
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference to each page less; pages without any are free."""
        for page in pages:
            self._demand_used(page, "released")
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)

    def problems(self) -> Iterator[str]:
        """Contradictions between the counts and the free pages."""
        unused = [page for page, count in self._references.items() if count == 0]
        if sorted(self._free) != unused:
            yield f"pages {sorted(self._free)} are listed as free, pages {unused} have no reference"

    def _demand_used(self, page: int, done: str) -> None:
        if self.references(page) < 1:
            raise EngineError(f"page {page} is {done}, but it is free already")
