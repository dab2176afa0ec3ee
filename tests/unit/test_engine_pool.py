"""The page pool hands out each page once, and refuses what would break that."""

from collections import Counter

import numpy as np
import pytest

from dsa_verify.engine.pool import PagePool
from dsa_verify.errors import EngineError


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_a_multiset(seed):
    rng = np.random.default_rng(seed)
    pool, held = PagePool(9, seed), Counter()
    for _ in range(300):
        pages = rng.permutation(list(held))[: rng.integers(0, 4)].tolist()
        match rng.integers(3):
            case 0:
                new = pool.allocate(rng.integers(0, pool.free + 1))
                assert not set(new) & set(held)
                held.update(new)
            case 1:
                pool.share(pages)
                held.update(pages)
            case 2:
                pool.release(pages)
                held -= Counter(pages)
        assert pool.free == 8 - len(held)
        assert all(pool.references(page) == held[page] for page in range(1, 9))
        assert not list(pool.problems())


def test_last_page_is_handed_out_and_page_0_is_not():
    assert sorted(PagePool(5, seed=3).allocate(4)) == [1, 2, 3, 4]


def test_order_is_a_range_only_without_a_seed():
    assert PagePool(40).allocate(39) == list(range(1, 40))
    assert PagePool(40, 1).allocate(39) == PagePool(40, 1).allocate(39) != PagePool(40, 2).allocate(39)


def test_page_freed_last_comes_first():
    pool = PagePool(5)
    pages = pool.allocate(3)
    pool.release(pages[:1])
    assert pool.allocate(1) == pages[:1]


@pytest.mark.parametrize("wrong", ["release", "share"])
@pytest.mark.parametrize("page", [0, 5, -1])
def test_foreign_page_is_refused(wrong, page):
    with pytest.raises(EngineError, match="not of this pool"):
        getattr(PagePool(5), wrong)([page])


@pytest.mark.parametrize("wrong", ["release", "share"])
def test_page_is_refused_once_it_is_free(wrong):
    pool = PagePool(5)
    pages = pool.allocate(2)
    pool.release(pages)
    with pytest.raises(EngineError, match="free already"):
        getattr(pool, wrong)(pages[:1])


def test_more_than_is_free_is_refused_whole():
    pool = PagePool(5)
    with pytest.raises(EngineError, match="5 pages asked for, 4 of 4 are free"):
        pool.allocate(5)
    assert pool.free == 4
