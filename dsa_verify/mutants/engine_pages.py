"""Engines broken on purpose: scheduler, page pool and prefix cache, one small replacement each.

Each is tried on the toy's random workloads with the engine's own guards (a step that refuses to exist, a pool that
refuses a page, invariants after every step), and without them, when only answers, leaks and stuck requests can tell.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from dsa_verify.batch.requests import page_count
from dsa_verify.engine import Engine, Step
from dsa_verify.engine import engine as engine_module
from dsa_verify.engine.packing import Row, pack
from dsa_verify.engine.pool import PagePool
from dsa_verify.engine.radix import RadixCache
from dsa_verify.engine.request import Sequence
from dsa_verify.engine.scheduler import Scheduler
from dsa_verify.mutants.system import MethodReplacement, Patcher, SystemMutant

ENGINE_MUTANTS: list[SystemMutant] = []
"""All of them, those of `engine_table` too, in the order of source."""

Install = Callable[[Patcher], None]


def engine_mutant(
    kind: str = "engine", unguarded: str | None = "answered", check: str = "answers"
) -> Callable[[Install], Install]:
    """Registers a function that breaks the engine; see `MethodReplacement`."""

    def register(install: Install) -> Install:
        name = install.__name__.replace("_", "-")
        change = MethodReplacement(install, unguarded)
        ENGINE_MUTANTS.append(SystemMutant(name, kind, "engine", change, TOYS, check))
        return install

    return register


TOYS = ("toy", "toy-unguarded")
"""Both are run at every workload."""


@engine_mutant("45")
def prefix_hit_restores_one_page_too_many(patch: Patcher) -> None:
    right = RadixCache.match

    def match(cache: RadixCache, tokens: list[int]) -> list[int]:
        pages = right(cache, tokens)
        node = cache._root
        for key in cache._keys(tokens)[: len(pages)]:
            node = node.children[key]
        room = (len(tokens) - 1) // cache.page_size - len(pages)
        return pages + [child.page for child in node.children.values()][: min(room, 1)]

    patch.setattr(RadixCache, "match", match)


@engine_mutant(unguarded="stuck")
def prefix_hit_leaves_no_token_to_compute(patch: Patcher) -> None:
    right = RadixCache.match
    patch.setattr(RadixCache, "match", lambda cache, tokens: right(cache, [*tokens, 0]))


@engine_mutant("14")
def chunk_starts_without_its_history(patch: Patcher) -> None:
    right = Sequence.row
    patch.setattr(Sequence, "row", lambda seq, n: replace(right(seq, n), start=0) if n > 1 else right(seq, n))


@engine_mutant()
def chunk_starts_one_late(patch: Patcher) -> None:
    right = Engine._advance

    def advance(engine: Engine, seq: Sequence, n: int, logits: np.ndarray) -> None:
        right(engine, seq, n + (seq.pending > n + 1), logits)

    patch.setattr(Engine, "_advance", advance)


@engine_mutant("12")
def chunk_starts_where_the_one_before_it_in_the_batch_does(patch: Patcher) -> None:
    def packed(rows: list[Row], shape: tuple[int, int], page_size: int, width: int) -> Step:
        return pack(
            [replace(row, start=rows[max(n - 1, 0)].start) for n, row in enumerate(rows)], shape, page_size, width
        )

    patch.setattr(engine_module, "pack", packed)


@engine_mutant("47")
def freed_page_is_reused_while_referenced(patch: Patcher) -> None:
    def release(pool: PagePool, pages: Iterable[int]) -> None:
        for page in pages:
            pool._references[page] -= 1
            if page not in pool._free:
                pool._free.append(page)

    patch.setattr(PagePool, "release", release)


@engine_mutant("47")
def eviction_ignores_locks(patch: Patcher) -> None:
    right = RadixCache.evict

    def evict(cache: RadixCache, n: int) -> int:
        before = cache.pages()
        right(cache, n)
        gone = set(before) - set(cache.pages())
        for page in gone:
            cache.pool.release([page] * cache.pool.references(page))
        return len(gone)

    patch.setattr(RadixCache, "_unlocked", lambda cache, node: True)
    patch.setattr(RadixCache, "evict", evict)


@engine_mutant("47")
def prefix_hit_is_not_locked_before_eviction(patch: Patcher) -> None:
    def map_pages(scheduler: Scheduler, seq: Sequence) -> bool:
        hit = scheduler.cache.match(seq.tokens)
        wanted = page_count(len(seq.tokens), scheduler.page_size) - len(hit)
        if not scheduler._make_room(wanted):
            return False
        seq.pages = hit + scheduler.pool.allocate(wanted)
        scheduler.pool.share(hit)
        seq.computed = len(hit) * scheduler.page_size
        return True

    patch.setattr(Scheduler, "_map", map_pages)


@engine_mutant("47")
def duplicate_page_is_freed_while_the_table_maps_it(patch: Patcher) -> None:
    right = RadixCache.insert

    def insert(cache: RadixCache, tokens: list[int], pages: list[int]) -> list[int]:
        right(cache, tokens, pages)
        return pages

    patch.setattr(RadixCache, "insert", insert)


@engine_mutant("47", unguarded="leaked")
def tail_page_is_shared_before_it_is_full(patch: Patcher) -> None:
    def publish(scheduler: Scheduler, seq: Sequence) -> None:
        seq.pages = scheduler.cache.insert(seq.tokens[: len(seq.pages) * scheduler.page_size], seq.pages)

    patch.setattr(Scheduler, "publish", publish)
    patch.setattr(
        RadixCache,
        "_keys",
        lambda cache, tokens: [
            tuple(tokens[at : at + cache.page_size]) for at in range(0, len(tokens), cache.page_size)
        ],
    )


@engine_mutant("47", check="guards")
def pages_are_published_before_the_prefill_completes(patch: Patcher) -> None:
    right = Scheduler._map

    def map_pages(scheduler: Scheduler, seq: Sequence) -> bool:
        mapped = right(scheduler, seq)
        if mapped and scheduler.config.prefix_cache:
            seq.pages = scheduler.cache.insert(seq.tokens[: len(seq.tokens) - 1], seq.pages)
        return mapped

    patch.setattr(Scheduler, "_map", map_pages)


@engine_mutant("51", unguarded=None, check="guards")
def sequence_without_new_tokens_is_in_the_step(patch: Patcher) -> None:
    right = Scheduler._chunks

    def chunks(scheduler: Scheduler) -> list[tuple[Sequence, int]]:
        plan = right(scheduler)
        rest = [seq for seq in scheduler.running if plan and seq.pending > 1 and seq not in dict(plan)]
        return plan + [(seq, 0) for seq in rest]

    patch.setattr(Scheduler, "_chunks", chunks)


@engine_mutant(unguarded="streamed")
def preempted_request_loses_its_last_token(patch: Patcher) -> None:
    right = Sequence.restart

    def restart(seq: Sequence) -> None:
        right(seq)
        if seq.answer:
            del seq.tokens[-1]

    patch.setattr(Sequence, "restart", restart)


@engine_mutant(unguarded="streamed")
def preempted_request_repeats_its_last_token(patch: Patcher) -> None:
    right = Sequence.restart

    def restart(seq: Sequence) -> None:
        right(seq)
        seq.tokens.append(seq.tokens[-1])

    patch.setattr(Sequence, "restart", restart)


@engine_mutant("47")
def preempted_request_keeps_its_pages(patch: Patcher) -> None:
    def restart(seq: Sequence) -> None:
        seq.prefilling = True

    patch.setattr(Sequence, "restart", restart)
    patch.setattr(
        Scheduler, "_map", lambda scheduler, seq, right=Scheduler._map: bool(seq.pages) or right(scheduler, seq)
    )


@engine_mutant(unguarded="leaked")
def the_oldest_is_preempted(patch: Patcher) -> None:
    right = Scheduler._preempt
    patch.setattr(Scheduler, "_preempt", lambda scheduler, seq: right(scheduler, scheduler.running[0]))


@engine_mutant(unguarded="leaked")
def abort_leaks_pages(patch: Patcher) -> None:
    right = Engine.abort

    def abort(engine: Engine, number: int) -> bool:
        if seq := engine._sequences.get(number):
            seq.pages = []
        return right(engine, number)

    patch.setattr(Engine, "abort", abort)


@engine_mutant(unguarded="stuck")
def last_page_is_never_released(patch: Patcher) -> None:
    def drop(scheduler: Scheduler, seq: Sequence) -> None:
        (scheduler.running if seq in scheduler.running else scheduler.waiting).remove(seq)
        scheduler.pool.release(seq.pages[:-1])

    patch.setattr(Scheduler, "drop", drop)
