"""Engines broken on purpose: packing, padding and sampling; and all engine mutants."""

from dataclasses import replace
from itertools import count

import numpy as np

from dsa_verify.engine import Step, packing
from dsa_verify.engine import engine as engine_module
from dsa_verify.engine.packing import Row, pack
from dsa_verify.engine.sampling import Pick, Sampling, pick
from dsa_verify.mutants.engine_pages import ENGINE_MUTANTS, engine_mutant
from dsa_verify.mutants.system import Patcher
from dsa_verify.system.toy import ToyRunner

__all__ = ["ENGINE_MUTANTS"]


@engine_mutant("57")
def table_of_a_finished_request_is_reused(patch: Patcher) -> None:
    tables: dict[int, tuple[int, ...]] = {}

    def packed(rows: list[Row], shape: tuple[int, int], page_size: int, width: int) -> Step:
        stale = [tables.get(n) or row.pages for n, row in enumerate(rows)]
        tables.update({n: row.pages for n, row in enumerate(rows)})
        reused = [replace(r, pages=p) if len(p) == len(r.pages) else r for r, p in zip(rows, stale, strict=True)]
        return pack(reused, shape, page_size, width)

    patch.setattr(engine_module, "pack", packed)


@engine_mutant("41")
def padding_slot_wraps_to_the_last(patch: Patcher) -> None:
    """In whatever writes the cache: a slot of -1 is an index like any other."""
    right = ToyRunner.write

    def write(runner: ToyRunner, step: Step) -> None:
        right(runner, step)
        runner.rows[step.out_cache_loc[step.out_cache_loc < 0]] = 0

    patch.setattr(ToyRunner, "write", write)


@engine_mutant("41")
def padding_is_packed_into_the_last_slot(patch: Patcher) -> None:
    right = ToyRunner.run

    def run(runner: ToyRunner, step: Step) -> np.ndarray:
        last = runner.page_size * runner.pool_pages - 1
        location = step.out_cache_loc.copy()
        location[location < 0] = last
        return right(runner, replace(step, out_cache_loc=location))

    patch.setattr(ToyRunner, "run", run)


@engine_mutant("42")
def decode_padding_has_the_length_of_a_live_sequence(patch: Patcher) -> None:
    def packed(rows: list[Row], shape: tuple[int, int], page_size: int, width: int) -> Step:
        if shape[0] == shape[1] and len(rows) < shape[1] and all(len(row.tokens) == 1 for row in rows):
            rows = [*rows, replace(rows[0], tokens=(0,))]
        return pack(rows, shape, page_size, width)

    patch.setattr(engine_module, "pack", packed)


@engine_mutant("48")
def cache_locations_are_a_range(patch: Patcher) -> None:
    patch.setattr(packing, "slots_of", lambda pages, kv_len, size: int(pages[0]) * size + np.arange(kv_len))


@engine_mutant("50", check="guards")
def last_column_of_the_table_is_cut_off(patch: Patcher) -> None:
    def packed(rows: list[Row], shape: tuple[int, int], page_size: int, width: int) -> Step:
        cut = [replace(row, pages=(*row.pages[: width - 1], 0)) if len(row.pages) == width else row for row in rows]
        return pack(cut, shape, page_size, width)

    patch.setattr(engine_module, "pack", packed)


@engine_mutant()
def sampling_depends_on_the_row_of_the_batch(patch: Patcher) -> None:
    right = ToyRunner.run

    def run(runner: ToyRunner, step: Step) -> np.ndarray:
        nonlocal rows
        rows = count()
        return right(runner, step)

    rows = count()

    def picked(logits: np.ndarray, sampling: Sampling, position: int) -> Pick:
        return pick(logits, replace(sampling, seed=sampling.seed + next(rows)), position)

    patch.setattr(ToyRunner, "run", run)
    patch.setattr(engine_module, "pick", picked)


@engine_mutant()
def sampling_depends_on_what_was_drawn_before(patch: Patcher) -> None:
    drawn = count()
    patch.setattr(engine_module, "pick", lambda logits, sampling, _: pick(logits, sampling, next(drawn)))
