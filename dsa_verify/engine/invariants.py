"""What must hold between two steps of an engine: every page is free, cached or mapped, exactly as its count says."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dsa_verify.batch.requests import page_count
from dsa_verify.engine.request import Sequence
from dsa_verify.engine.scheduler import Scheduler


def problems(scheduler: Scheduler) -> Iterator[str]:
    """Every contradiction between sequences, prefix cache and pool."""
    yield from scheduler.pool.problems()
    yield from _count_problems(scheduler)
    yield from _order_problems(scheduler)
    for seq in scheduler.running:
        yield from _sequence_problems(scheduler, seq)


def _count_problems(scheduler: Scheduler):
    pool = scheduler.pool
    mapped = Counter(page for seq in scheduler.running for page in seq.pages)
    cached = Counter(scheduler.cache.pages())
    for page in range(1, pool.size + 1):
        if pool.references(page) != mapped[page] + cached[page] or cached[page] > 1:
            yield (
                f"page {page} has {pool.references(page)} references, but {mapped[page]} sequences map it "
                f"and it is cached {cached[page]} times"
            )


def _order_problems(scheduler: Scheduler):
    everyone = [*scheduler.running, *scheduler.waiting]
    for older, younger in pairwise(everyone):
        if older.age >= younger.age:
            yield f"request {older.number} comes before request {younger.number}, which is older"
    if len(scheduler.running) > scheduler.config.max_running:
        yield f"{len(scheduler.running)} requests run, at most {scheduler.config.max_running} may"
    for seq in scheduler.waiting:
        if seq.pages or seq.computed:
            yield f"request {seq.number} waits with pages {seq.pages} and {seq.computed} computed tokens"


def _sequence_problems(scheduler: Scheduler, seq: Sequence):
    size = scheduler.page_size
    if seq.pending < 1 or not page_count(seq.computed, size) <= len(seq.pages) <= page_count(len(seq.tokens), size):
        yield (
            f"request {seq.number} has {len(seq.pages)} pages for {seq.computed} computed of {len(seq.tokens)} tokens"
        )
    for page in seq.pages[seq.computed // size :]:
        if scheduler.pool.references(page) != 1:
            yield f"request {seq.number} will write page {page}, which is shared"
