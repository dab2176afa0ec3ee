"""Engines broken on purpose: scheduler, page pool and prefix cache, one small replacement each.

Each is tried on the toy's random workloads with the engine's own guards (a step that refuses to exist, a pool that
refuses a page, invariants after every step), and without them, when only answers, leaks and stuck requests can tell.
"""

from collections.abc import Callable
from dataclasses import replace

from dsa_verify.batch.requests import page_count
from dsa_verify.engine import Engine
from dsa_verify.engine import engine as engine_module
from dsa_verify.engine.packing import pack
from dsa_verify.engine.pool import PagePool
from dsa_verify.engine.radix import RadixCache
from dsa_verify.engine.request import Sequence
from dsa_verify.engine.scheduler import Scheduler
from dsa_verify.mutants.system import Hook, Setter, SystemMutant

ENGINE_MUTANTS: dict[str, SystemMutant] = {}


def mutant(kind: str = "engine", alone: str | None = "answered", check: str = "answers") -> Callable:
    """Registers a function that breaks the engine. `alone`: a word of the rejection without the guards; None where
    the answers stay right."""

    def register(install: Callable[[Setter], None]) -> Callable[[Setter], None]:
        name = install.__name__.replace("_", "-")
        ENGINE_MUTANTS[name] = SystemMutant(name, kind, "engine", Hook(install, alone), TOYS, check)
        return install

    return register


TOYS = ("toy", "toy-unguarded")
"""Both are played at every workload."""


@mutant("45")
def prefix_hit_restores_one_page_too_many(patch):
    right = RadixCache.match

    def match(cache, tokens):
        pages = right(cache, tokens)
        node = cache._root
        for key in cache._keys(tokens)[: len(pages)]:
            node = node.children[key]
        room = (len(tokens) - 1) // cache.page_size - len(pages)
        return pages + [child.page for child in node.children.values()][: min(room, 1)]

    patch.setattr(RadixCache, "match", match)


@mutant(alone="stuck")
def prefix_hit_leaves_no_token_to_compute(patch):
    right = RadixCache.match
    patch.setattr(RadixCache, "match", lambda cache, tokens: right(cache, [*tokens, 0]))


@mutant("14")
def chunk_starts_without_its_history(patch):
    right = Sequence.row
    patch.setattr(Sequence, "row", lambda seq, n: replace(right(seq, n), start=0) if n > 1 else right(seq, n))


@mutant()
def chunk_starts_one_late(patch):
    right = Engine._advance

    def advance(engine, seq, n, logits):
        right(engine, seq, n + (seq.pending > n + 1), logits)

    patch.setattr(Engine, "_advance", advance)


@mutant("12")
def chunk_starts_where_the_one_before_it_in_the_batch_does(patch):
    def packed(rows, *shape):
        return pack([replace(row, start=rows[max(n - 1, 0)].start) for n, row in enumerate(rows)], *shape)

    patch.setattr(engine_module, "pack", packed)


@mutant("47")
def freed_page_is_reused_while_referenced(patch):
    def release(pool, pages):
        for page in pages:
            pool._references[page] -= 1
            if page not in pool._free:
                pool._free.append(page)

    patch.setattr(PagePool, "release", release)


@mutant("47")
def eviction_ignores_locks(patch):
    right = RadixCache.evict

    def evict(cache, n):
        before = cache.pages()
        right(cache, n)
        gone = set(before) - set(cache.pages())
        for page in gone:
            cache.pool.release([page] * cache.pool.references(page))
        return len(gone)

    patch.setattr(RadixCache, "_unlocked", lambda cache, node: True)
    patch.setattr(RadixCache, "evict", evict)


@mutant("47")
def prefix_hit_is_not_locked_before_eviction(patch):
    def map_pages(scheduler, seq):
        hit = scheduler.cache.match(seq.tokens)
        wanted = page_count(len(seq.tokens), scheduler.page_size) - len(hit)
        if not scheduler._make_room(wanted):
            return False
        seq.pages = hit + scheduler.pool.allocate(wanted)
        scheduler.pool.share(hit)
        seq.computed = len(hit) * scheduler.page_size
        return True

    patch.setattr(Scheduler, "_map", map_pages)


@mutant("47")
def duplicate_page_is_freed_while_the_table_maps_it(patch):
    right = RadixCache.insert

    def insert(cache, tokens, pages):
        right(cache, tokens, pages)
        return pages

    patch.setattr(RadixCache, "insert", insert)


@mutant("47", alone="leaked")
def tail_page_is_shared_before_it_is_full(patch):
    def publish(scheduler, seq):
        seq.pages = scheduler.cache.insert(seq.tokens[: len(seq.pages) * scheduler.page_size], seq.pages)

    patch.setattr(Scheduler, "publish", publish)
    patch.setattr(
        RadixCache,
        "_keys",
        lambda cache, tokens: [
            tuple(tokens[at : at + cache.page_size]) for at in range(0, len(tokens), cache.page_size)
        ],
    )


@mutant("47", check="guards")
def pages_are_published_before_the_prefill_completes(patch):
    right = Scheduler._map

    def map_pages(scheduler, seq):
        mapped = right(scheduler, seq)
        if mapped and scheduler.config.prefix_cache:
            seq.pages = scheduler.cache.insert(seq.tokens[: len(seq.tokens) - 1], seq.pages)
        return mapped

    patch.setattr(Scheduler, "_map", map_pages)


@mutant("51", alone=None, check="guards")
def sequence_without_new_tokens_is_in_the_step(patch):
    right = Scheduler._chunks

    def chunks(scheduler):
        plan = right(scheduler)
        rest = [seq for seq in scheduler.running if plan and seq.pending > 1 and seq not in dict(plan)]
        return plan + [(seq, 0) for seq in rest]

    patch.setattr(Scheduler, "_chunks", chunks)


@mutant(alone="streamed")
def preempted_request_loses_its_last_token(patch):
    right = Sequence.restart

    def restart(seq):
        right(seq)
        if seq.answer:
            del seq.tokens[-1]

    patch.setattr(Sequence, "restart", restart)


@mutant(alone="streamed")
def preempted_request_repeats_its_last_token(patch):
    right = Sequence.restart

    def restart(seq):
        right(seq)
        seq.tokens.append(seq.tokens[-1])

    patch.setattr(Sequence, "restart", restart)


@mutant("47")
def preempted_request_keeps_its_pages(patch):
    def restart(seq):
        seq.prefilling = True

    patch.setattr(Sequence, "restart", restart)
    patch.setattr(
        Scheduler, "_map", lambda scheduler, seq, right=Scheduler._map: bool(seq.pages) or right(scheduler, seq)
    )


@mutant(alone="leaked")
def the_oldest_is_preempted(patch):
    right = Scheduler._preempt
    patch.setattr(Scheduler, "_preempt", lambda scheduler, seq: right(scheduler, scheduler.running[0]))


@mutant(alone="leaked")
def abort_leaks_pages(patch):
    right = Engine.abort

    def abort(engine, number):
        if seq := engine._sequences.get(number):
            seq.pages = []
        return right(engine, number)

    patch.setattr(Engine, "abort", abort)


@mutant(alone="stuck")
def last_page_is_never_released(patch):
    def drop(scheduler, seq):
        (scheduler.running if seq in scheduler.running else scheduler.waiting).remove(seq)
        scheduler.pool.release(seq.pages[:-1])

    patch.setattr(Scheduler, "drop", drop)
