"""Radix prefix cache: pages that stay in the pool, found by the tokens that lead to them, whole pages only."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from dsa_verify.engine.pool import PagePool


@dataclass(eq=False)
class _Node:
    """One cached page: `key` are its tokens, the path to the root those before it."""

    key: tuple[int, ...]
    page: int
    parent: "_Node | None"
    used: int = 0
    children: dict[tuple[int, ...], "_Node"] = field(default_factory=dict)


class RadixCache:
    """A tree with one page a node. The cache holds one reference to each of its pages; who maps it holds another.

    That second reference is the lock: a page is evicted only while the cache alone refers to it.
    """

    def __init__(self, pool: PagePool, page_size: int) -> None:
        self.pool, self.page_size = pool, page_size
        self._root = _Node((), 0, None)
        self._clock = 0

    def pages(self) -> list[int]:
        """Every cached page."""
        return [node.page for node in self._nodes()]

    @property
    def evictable(self) -> int:
        """Pages that could be had: who maps a page maps those before it too, so none of these is held by a child."""
        return sum(self._unlocked(node) for node in self._nodes())

    def match(self, tokens: list[int]) -> list[int]:
        """Pages of the longest cached prefix; at least one token stays to be computed, for its logits are wanted."""
        pages = []
        node = self._root
        for key in self._keys(tokens[:-1]):
            if key not in node.children:
                break
            node = node.children[key]
            pages.append(node.page)
        self._touch(node)
        return pages

    def insert(self, tokens: list[int], pages: list[int]) -> list[int]:
        """Caches the whole pages of `tokens`, whose rows must be written; the pages to map from now on.

        Where a page of the same prefix is cached already, that one takes the place of the caller's, whose reference
        moves over to it.
        """
        mapped = list(pages)
        node = self._root
        for at, key in enumerate(self._keys(tokens)):
            if key not in node.children:
                self.pool.share([pages[at]])
                node.children[key] = _Node(key, pages[at], node)
            node = node.children[key]
            if node.page != pages[at]:
                self.pool.share([node.page])
                self.pool.release([pages[at]])
                mapped[at] = node.page
        self._touch(node)
        return mapped

    def evict(self, count: int) -> int:
        """Frees up to `count` pages, those least recently used first, leaves before what they hang on."""
        leaves = [(node.used, node.page, node) for node in self._nodes() if self._evictable(node)]
        heapify(leaves)
        evicted = 0
        while leaves and evicted < count:
            _, page, node = heappop(leaves)
            parent = node.parent
            assert parent is not None, "the root is no page"
            del parent.children[node.key]
            self.pool.release([page])
            evicted += 1
            if parent is not self._root and self._evictable(parent):
                heappush(leaves, (parent.used, parent.page, parent))
        return evicted

    def _evictable(self, node: _Node) -> bool:
        return not node.children and self._unlocked(node)

    def _unlocked(self, node: _Node) -> bool:
        return self.pool.references(node.page) == 1

    def _keys(self, tokens: list[int]) -> list[tuple[int, ...]]:
        size = self.page_size
        return [tuple(tokens[at : at + size]) for at in range(0, len(tokens) - size + 1, size)]

    def _touch(self, node: _Node | None) -> None:
        self._clock += 1
        while node is not None:
            node.used = self._clock
            node = node.parent

    def _nodes(self) -> list[_Node]:
        nodes = list(self._root.children.values())
        for node in nodes:
            nodes.extend(node.children.values())
        return nodes
