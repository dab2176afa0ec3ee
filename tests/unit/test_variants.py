"""Variants ask for the same: the oracle, which knows no steps, slots or pages, gives the same answers to them."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch import Batch, variants
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.run.verify import batch_of

QUICK = [s for s in SCENARIOS.values() if s.tier == "quick" and s.family != "long" and "long" not in s.name]
WAYS = ("split", "composition", "order", "padding", "pages", "prefix", "scaling")
SURFACES = ("index_topk", "index_page_topk", "dense_mla", "sparse_mla_prefill")
built = cache(batch_of)


def cases():
    for scenario in QUICK:
        for way in WAYS:
            if getattr(variants, way)(built(scenario)) is not None:
                yield pytest.param(scenario, way, id=f"{way}-{scenario.name}")


def shapes(batch: Batch) -> dict[str, object]:
    values = {field.name: getattr(batch, field.name) for field in dataclasses.fields(Batch)}
    return {name: (x.shape, x.dtype) if isinstance(x, np.ndarray) else x for name, x in values.items()}


@pytest.mark.parametrize(("scenario", "way"), list(cases()))
def test_oracle_gives_the_same_answer(scenario, way):
    batch = built(scenario)
    variant = getattr(variants, way)(batch)
    covered = np.concatenate([step.tokens[step.tokens >= 0] for step in variant.steps])
    assert sorted(covered) == np.flatnonzero(batch.real).tolist(), "every token is asked for once"
    for surface in SURFACES:
        before = oracle.expected(surface, batch)
        for step in variant.steps:
            assert shapes(step.batch) == shapes(batch), "another shape would be compiled anew"
            after, kept = oracle.expected(surface, step.batch), step.tokens >= 0
            base = step.tokens[kept]
            if before.selection is not None:
                ours, theirs = before.selection.best[base], after.selection.best[kept]
                np.testing.assert_array_equal(np.sort(theirs, axis=1), np.sort(ours, axis=1))
            if before.attention is not None:
                due = variant.scale * before.attention.out[base]
                # Two float64 runs of the oracle: 1e-9 is far above their rounding, far below any kernel's.
                np.testing.assert_allclose(after.attention.out[kept], due, rtol=1e-9, atol=1e-9)
        if before.cache_kv is not None:
            here = variant.slots >= 0
            left, due = (x.cache_kv.reshape(len(here), -1) for x in (after, before))
            np.testing.assert_array_equal(left[here], due[variant.slots[here]])


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_shift_moves_lse_and_nothing_else(scenario):
    batch = built(scenario)
    variant = variants.shift(batch)
    if variant is None:
        return
    (step,) = variant.steps
    before, after = (oracle.expected("dense_mla", b).attention for b in (variant.reference, step.batch))
    assert variant.shift < -104
    # As above: the oracle beside itself.
    np.testing.assert_allclose(after.out, before.out, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(after.lse[batch.real], before.lse[batch.real] + variant.shift, rtol=1e-9)


def test_chunk_is_cut_inside_a_page_and_on_a_page_boundary():
    batch = built(SCENARIOS["chunk-off-page-p16-f32"])
    starts = [int(step.batch.positions[0]) for step in variants.split(batch).steps]
    assert starts[0] == batch.positions[0]
    assert len(starts) == 3
    assert sorted(start % 16 == 0 for start in starts[1:]) == [False, True]


def test_later_index_keys_are_not_there_yet():
    batch = built(SCENARIOS["chunk-off-page-p16-f32"])
    first = variants.split(batch).steps[0].batch
    keys = first.index_cache.reshape(batch.owned.size, -1)
    later = batch.slots(0)[first.kv_lens[0] :]
    assert len(later) and np.isnan(keys[later]).all()


def test_pages_move_all_but_the_reserved_one_and_use_the_last_one():
    batch = built(SCENARIOS["single-extend-p16-f32"])
    variant = variants.pages(batch)
    moved = variant.steps[0].batch
    used = moved.page_table[0, : -(-int(batch.kv_lens[0]) // 16)]
    assert batch.cache_kv.shape[0] - 1 in used
    assert 0 not in used
    np.testing.assert_array_equal(moved.cache_kv[0], batch.cache_kv[0])


def test_no_page_is_shared_after_prefix():
    batch = built(SCENARIOS["prefix-three-sharers-p64-bf16"])
    (step,) = variants.prefix(batch).steps
    used = [page for seq in range(3) for page in step.batch.page_table[seq, : -(-int(batch.kv_lens[seq]) // 64)]]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("way", ["order", "composition", "prefix", "decode"])
def test_single_request_has_no_variant_of_several(way):
    assert getattr(variants, way)(built(SCENARIOS["single-extend-p16-f32"])) is None


def test_finite_poison_stays_finite():
    from dsa_verify.batch.poison import repoisoned

    batch = repoisoned(built(SCENARIOS["padding-sequences-between-p16-f32"]), finite=True, seed=0)
    for way in ("split", "composition", "order", "padding"):
        for step in getattr(variants, way)(batch).steps:
            for name in ("ql_nope", "new_c_kv", "index_q", "index_weights", "cache_kv", "index_cache"):
                assert np.isfinite(getattr(step.batch, name)).all(), (way, name)
