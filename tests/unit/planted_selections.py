"""Selections with known sinks, local window and strides, for tests of `dsa_verify.profile` and its documentation."""

from collections.abc import Sequence

import numpy as np

from dsa_verify.profile.trace import FILL, Selections, Source, Trace

SEED_SINKS, SEED_WINDOW = range(5, 5 + 11 * 482, 11), 400
"""482 sinks and 400 local positions: 128 neighbours have 482 + 400 - 127 = 755 in common."""


def source(tokens: int, index_topk: int, page_size: int = 64, **more) -> Source:
    return Source("planted by construction", "mini", page_size, index_topk, tokens, synthetic=True, **more)


def selections(rows: Sequence[Sequence[int]], first: int, columns: int) -> Selections:
    """Rows of positions, the first by the query at position `first`."""
    topk = np.full((len(rows), columns), FILL, np.int32)
    for row, chosen in zip(topk, rows, strict=True):
        row[: len(chosen)] = chosen
    return Selections(np.arange(first, first + len(rows), dtype=np.int32), topk)


def trace(rows: Sequence[Sequence[int]], first: int, index_topk: int, page_size: int = 64) -> Trace:
    """A trace of one layer, 3."""
    tokens = first + len(rows)
    return Trace(source(tokens, index_topk, page_size), {3: selections(rows, first, index_topk)})


def planted(
    first: int,
    queries: int,
    *,
    sinks: Sequence[int] = (),
    window: int = 0,
    distances: Sequence[int] = (),
    fill_to: int = 0,
    rng: np.random.Generator | None = None,
) -> list[list[int]]:
    """What each query selects: the sinks, its last `window` positions and those at `distances`, and then others.

    The others are before every local window. Each position is for queries at even or at odd positions, by a coin, so
    that no two neighbours share one and yet no distance is preferred.
    """
    rng, rows = rng or np.random.default_rng(0), []
    coin = rng.integers(0, 2, first + 1 - window)
    for query in range(first, first + queries):
        chosen = {p for p in sinks if p <= query} | set(range(max(0, query + 1 - window), query + 1))
        chosen |= {query - distance for distance in distances if distance <= query}
        others = np.setdiff1d(np.flatnonzero(coin == query % 2), list(chosen))
        more = rng.choice(others, max(0, fill_to - len(chosen)), replace=False)
        rows.append(sorted(chosen | set(more.tolist())))
    return rows


def like_the_experiment(queries: int = 256, tokens: int = 8192) -> list[list[int]]:
    """The last queries of a long document: 755 positions common to 128 neighbours, strides every 96 tokens, and others
    up to 2,048."""
    first = tokens - queries
    distances = range(SEED_WINDOW + 32, first - 64, 96)
    return planted(first, queries, sinks=SEED_SINKS, window=SEED_WINDOW, distances=distances, fill_to=2048)


def of_the_documentation() -> Trace:
    """What the pictures in docs/images/profile are of: sinks at the beginning, strides every 1,024 tokens of 32k."""
    first = 32768 - 2048
    sinks, distances = range(0, 2 * len(SEED_SINKS), 2), range(1424, first, 1024)
    return trace(planted(first, 2048, sinks=sinks, window=SEED_WINDOW, distances=distances), first, 2048)
