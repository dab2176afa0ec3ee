"""The prefix cache agrees with a dictionary of prefixes, shares what is cached, and evicts nothing that is mapped."""

from dataclasses import dataclass, field

import numpy as np
import pytest

from dsa_verify.engine.pool import PagePool
from dsa_verify.engine.radix import RadixCache

SIZE = 2


@dataclass
class Naive:
    """Every cached prefix of whole pages, spelled out: its page, and when it or a longer one was last used."""

    pages: dict[tuple[int, ...], int] = field(default_factory=dict)
    used: dict[tuple[int, ...], int] = field(default_factory=dict)
    clock: int = 0

    def prefixes(self, tokens):
        return [tuple(tokens[:end]) for end in range(SIZE, len(tokens) + 1, SIZE)]

    def touch(self, prefixes):
        self.clock += 1
        self.used.update(dict.fromkeys(prefixes, self.clock))

    def match(self, tokens):
        found = [prefix for prefix in self.prefixes(tokens) if prefix in self.pages and len(prefix) < len(tokens)]
        self.touch(found)
        return [self.pages[prefix] for prefix in found]

    def insert(self, tokens, pages):
        for prefix, page in zip(self.prefixes(tokens), pages, strict=False):
            self.pages.setdefault(prefix, page)
        self.touch(self.prefixes(tokens))
        whole = [self.pages[prefix] for prefix in self.prefixes(tokens)]
        return whole + pages[len(whole) :]

    def evict(self, count, mapped):
        for _ in range(count):
            inner = {prefix[:-SIZE] for prefix in self.pages}
            leaves = [p for p in self.pages if p not in inner and self.pages[p] not in mapped]
            if not leaves:
                return
            del self.pages[min(leaves, key=self.used.__getitem__)]


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_dictionary_of_prefixes(seed):
    rng = np.random.default_rng(seed)
    pool, naive = PagePool(40, seed), Naive()
    cache = RadixCache(pool, SIZE)
    mapped: list[list[int]] = []
    for _ in range(200):
        tokens = rng.integers(0, 2, rng.integers(1, 10)).tolist()
        match rng.integers(3):
            case 0:
                hit = cache.match(tokens)
                assert hit == naive.match(tokens)
                pool.share(hit)
                rest = -(-len(tokens) // SIZE) - len(hit)
                if rest <= pool.free:
                    own = hit + pool.allocate(rest)
                    kept = cache.insert(tokens, own)
                    assert kept == naive.insert(tokens, own)
                    mapped.append(kept)
                else:
                    pool.release(hit)
            case 1 if mapped:
                pool.release(mapped.pop(rng.integers(len(mapped))))
            case 2:
                locked = {page for pages in mapped for page in pages}
                before, free, evictable = len(naive.pages), pool.free, cache.evictable
                naive.evict(count := int(rng.integers(0, 6)), locked)
                assert cache.evict(count) == before - len(naive.pages) == pool.free - free == min(count, evictable)
        assert sorted(cache.pages()) == sorted(naive.pages.values())
    for pages in mapped:
        pool.release(pages)
    cache.evict(40)
    assert pool.free == 39


def cached(tokens):
    pool = PagePool(10)
    cache = RadixCache(pool, SIZE)
    pages = cache.insert(tokens, pool.allocate(-(-len(tokens) // SIZE)))
    return pool, cache, pages


def test_one_token_is_always_left_to_compute():
    _, cache, pages = cached([1, 2, 3, 4])
    assert cache.match([1, 2, 3, 4]) == pages[:1]
    assert cache.match([1, 2, 3, 4, 5]) == pages


def test_partly_filled_page_is_not_cached():
    _, cache, pages = cached([1, 2, 3])
    assert cache.pages() == pages[:1]
    assert cache.match([1, 2, 3, 4]) == pages[:1]


def test_page_of_the_same_prefix_takes_the_place_of_a_duplicate():
    pool, cache, pages = cached([1, 2, 3, 4])
    own = pool.allocate(2)
    assert cache.insert([1, 2, 3, 5], own) == [pages[0], own[1]]
    assert [pool.references(page) for page in (pages[0], own[0], own[1])] == [3, 0, 2]


def test_mapped_pages_are_not_evicted():
    pool, cache, pages = cached([1, 2, 3, 4])
    assert cache.evictable == cache.evict(10) == 0
    pool.release(pages[1:])
    assert cache.evictable == cache.evict(10) == 1
    assert cache.match([1, 2, 3, 4, 5]) == pages[:1]


def test_least_recently_used_goes_first():
    pool, cache, _ = cached([1, 2])
    cache.insert([3, 4], pool.allocate(1))
    for page in cache.pages():
        pool.release([page])
    cache.match([1, 2, 0])
    assert cache.evict(1) == 1
    assert cache.match([1, 2, 0]) and not cache.match([3, 4, 0])
