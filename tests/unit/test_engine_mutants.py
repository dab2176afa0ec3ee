"""Engines broken on purpose: the random workloads must notice each, most of them by the answers alone.

A mutant is run twice: with the engine's own guards (a step that refuses to exist, a pool that refuses a page, `check()`
after every step), and without them, when only answers, leaks and stuck requests can tell. `kind` is a number of
`dsa_verify.mutants.kinds`, where a bug of that kind is known.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import pytest

from dsa_verify.batch.requests import page_count
from dsa_verify.engine import Engine, Step, packing
from dsa_verify.engine import engine as engine_module
from dsa_verify.engine.packing import pack
from dsa_verify.engine.pool import PagePool
from dsa_verify.engine.radix import RadixCache
from dsa_verify.engine.request import Sequence
from dsa_verify.engine.sampling import pick
from dsa_verify.engine.scheduler import Scheduler
from dsa_verify.errors import EngineError
from dsa_verify.mutants.kinds import KINDS
from tests.unit.toy_runner import ToyRunner, Wrong, judge, play, workload


@dataclass(frozen=True)
class Mutant:
    kind: str | None
    install: Callable[[pytest.MonkeyPatch], None]
    alone: str | None
    """What tells without the guards: a word of the rejection; None where the toy's answers stay right."""


MUTANTS: dict[str, Mutant] = {}


def mutant(kind: str | None = None, alone: str | None = "answered"):
    def register(install):
        MUTANTS[install.__name__] = Mutant(kind, install, alone)
        return install

    return register


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


@mutant("47")
def pages_are_published_before_the_prefill_completes(patch):
    right = Scheduler._map

    def map_pages(scheduler, seq):
        mapped = right(scheduler, seq)
        if mapped and scheduler.config.prefix_cache:
            seq.pages = scheduler.cache.insert(seq.tokens[: len(seq.tokens) - 1], seq.pages)
        return mapped

    patch.setattr(Scheduler, "_map", map_pages)


@mutant("57")
def table_of_a_finished_request_is_reused(patch):
    tables: dict[int, tuple] = {}

    def packed(rows, *shape):
        stale = [tables.get(n, row.pages) for n, row in enumerate(rows)]
        tables.update({n: row.pages for n, row in enumerate(rows)})
        reused = [replace(r, pages=p) if len(p) == len(r.pages) else r for r, p in zip(rows, stale, strict=True)]
        return pack(reused, *shape)

    patch.setattr(engine_module, "pack", packed)


@mutant("41")
def padding_slot_wraps_to_the_last(patch):
    """In whatever writes the cache: a slot of -1 is an index like any other."""
    right = ToyRunner.write

    def write(runner, step):
        right(runner, step)
        runner.rows[step.out_cache_loc[step.out_cache_loc < 0]] = 0

    patch.setattr(ToyRunner, "write", write)


@mutant("41")
def padding_is_packed_into_the_last_slot(patch):
    right = ToyRunner.run

    def run(runner, step):
        last = runner.page_size * runner.pool_pages - 1
        location = step.out_cache_loc.copy()
        location[location < 0] = last
        return right(runner, replace(step, out_cache_loc=location))

    patch.setattr(ToyRunner, "run", run)


@mutant("42")
def decode_padding_has_the_length_of_a_live_sequence(patch):
    def packed(rows, shape, *rest):
        if shape[0] == shape[1] and len(rows) < shape[1] and all(len(row.tokens) == 1 for row in rows):
            rows = [*rows, replace(rows[0], tokens=(0,))]
        return pack(rows, shape, *rest)

    patch.setattr(engine_module, "pack", packed)


@mutant("48")
def cache_locations_are_a_range(patch):
    patch.setattr(packing, "slots_of", lambda pages, kv_len, size: int(pages[0]) * size + np.arange(kv_len))


@mutant("50")
def last_column_of_the_table_is_cut_off(patch):
    def packed(rows, shape, page_size, width):
        cut = [replace(row, pages=(*row.pages[: width - 1], 0)) if len(row.pages) == width else row for row in rows]
        return pack(cut, shape, page_size, width)

    patch.setattr(engine_module, "pack", packed)


@mutant("51", alone=None)
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


@mutant()
def sampling_depends_on_the_row_of_the_batch(patch):
    right = ToyRunner.run

    def run(runner, step):
        nonlocal rows
        rows = count()
        return right(runner, step)

    rows = count()

    def picked(logits, sampling, position):
        return pick(logits, replace(sampling, seed=sampling.seed + next(rows)), position)

    patch.setattr(ToyRunner, "run", run)
    patch.setattr(engine_module, "pick", picked)


@mutant()
def sampling_depends_on_what_was_drawn_before(patch):
    drawn = count()
    patch.setattr(engine_module, "pick", lambda logits, sampling, _: pick(logits, sampling, next(drawn)))


def first_rejection(checked: bool, workloads: int = 60) -> str | None:
    """What the first workload that goes wrong says."""
    for seed in range(workloads):
        work = workload(seed)
        try:
            judge(work, play(work, checked=checked))
        except (Wrong, EngineError) as error:
            return str(error)
    return None


@pytest.mark.parametrize("name", MUTANTS)
def test_guards_and_answers_reject(name, monkeypatch):
    MUTANTS[name].install(monkeypatch)
    assert first_rejection(checked=True)


@pytest.mark.parametrize("name", MUTANTS)
def test_answers_alone_reject(name, monkeypatch):
    MUTANTS[name].install(monkeypatch)
    monkeypatch.setattr(Step, "__post_init__", lambda step: None)
    monkeypatch.setattr(PagePool, "_demand_used", lambda pool, page, done: None)
    found, word = first_rejection(checked=False), MUTANTS[name].alone
    assert found is None if word is None else found and word in found


def test_nothing_is_rejected_without_a_mutant():
    assert first_rejection(checked=True) is None


def test_kinds_are_of_the_list():
    assert {each.kind for each in MUTANTS.values()} - {None} <= set(KINDS)
