"""Every scenario can tell a wrong answer from a right one: faults put into the oracle's own answer are rejected."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch import Batch
from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.checks import parity, selection
from dsa_verify.contract import SURFACES
from dsa_verify.evidence import Attention, Evidence, Expected, Run

QUICK = [scenario for scenario in SCENARIOS.values() if scenario.tier == "quick"]
ATTENDING = [surface.name for surface in SURFACES.values() if surface.attends]
STARK = 3.0
"""A catalogue fault must exceed the budget this many times; a correct kernel uses at most two thirds of it."""


@cache
def built(scenario) -> Batch:
    batch = scenario.build()
    if scenario.selection == "indexer":
        batch = batch.replace(topk_pages=oracle.selection(batch, pages=True).best)
    return batch


def cases():
    for scenario in QUICK:
        for surface in ATTENDING:
            if scenario.decode or not SURFACES[surface].decode_only:
                yield pytest.param(scenario, surface, id=f"{surface}-{scenario.name}")


def share(batch: Batch, exact: Attention, out: np.ndarray) -> float:
    """How much of its budget an answer uses, judged as a kernel's would be."""
    run = Run({"out": out.astype(batch.ql_nope.dtype)})
    verdict = parity.judge(Evidence(batch, Expected(attention=exact), {"base": run}))
    assert verdict.share is not None
    return verdict.share


def another_page(batch: Batch) -> Batch:
    """Every page of the pool holds what its neighbour of another request held."""
    owned = np.flatnonzero(batch.owned.reshape(-1, batch.page_size).all(axis=1))
    cache = batch.cache_kv.copy()
    cache[owned] = np.nan_to_num(np.roll(batch.cache_kv[owned], 1, axis=0).astype(np.float32)).astype(cache.dtype)
    return batch.replace(cache_kv=cache)


def shuffled(batch: Batch) -> Batch:
    real = np.flatnonzero(batch.real)
    q = batch.ql_nope.copy()
    q[real] = batch.ql_nope[np.roll(real, 1)]
    return batch.replace(ql_nope=q)


FAULTS = {
    "zero output": lambda batch, surface, exact: np.zeros_like(exact.out),
    "another query's latent": lambda batch, surface, exact: oracle.expected(surface, shuffled(batch)).attention.out,
    "rotary part dropped": lambda batch, surface, exact: (
        oracle.expected(surface, batch.replace(q_pe=np.zeros_like(batch.q_pe))).attention.out
    ),
    "selection ignored": lambda batch, surface, exact: oracle.expected("dense_mla", batch).attention.out,
    "another page": lambda batch, surface, exact: oracle.expected(surface, another_page(batch)).attention.out,
    "scale ten percent off": lambda batch, surface, exact: (
        oracle.expected(surface, batch.replace(sm_scale=1.1 * batch.sm_scale)).attention.out
    ),
    "output two percent too large": lambda batch, surface, exact: 1.02 * exact.out,
    "heads reversed": lambda batch, surface, exact: exact.out[:, ::-1],
}


def cannot_show(fault: str, batch: Batch, surface: str) -> bool:
    """What a batch cannot show by its nature: each condition is a property of its requests."""
    reachable = (batch.positions // batch.page_size + 1)[batch.real]
    if fault == "selection ignored":
        return surface == "dense_mla" or bool((reachable <= batch.k_pages).all())
    if fault == "another page":  # dense attention does not care for the order of pages that all requests map
        full = {tuple(batch.page_table[seq, : n // batch.page_size]) for seq, n in enumerate(batch.kv_lens) if n}
        cached = (batch.kv_lens > batch.q_lens).any()  # pages that this step does not fill itself
        return not cached or (surface == "dense_mla" and len(full) == 1)
    return fault == "another query's latent" and int(batch.real.sum()) == 1


@pytest.mark.parametrize(("scenario", "surface"), list(cases()))
def test_every_fault_exceeds_the_budget_starkly(scenario, surface):
    batch = built(scenario)
    exact = oracle.expected(surface, batch).attention
    if not batch.real.any():
        assert scenario.name.startswith("padding-everything"), "only this scenario may have nothing to show"
        return
    shown = {fault: make for fault, make in FAULTS.items() if not cannot_show(fault, batch, surface)}
    found = {fault: share(batch, exact, make(batch, surface, exact)) for fault, make in shown.items()}
    assert not {fault: used for fault, used in found.items() if used < STARK}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_shown_by_nearly_every_scenario(fault):
    blind = [s.name for s in QUICK if cannot_show(fault, s.build(), "sparse_mla_prefill")]
    assert len(blind) <= len(QUICK) // 8, blind


@pytest.mark.parametrize(("scenario", "surface"), list(cases()))
def test_oracles_own_answer_rounded_to_the_output_dtype_is_accepted(scenario, surface):
    batch = built(scenario)
    exact = oracle.expected(surface, batch).attention
    assert share(batch, exact, exact.out) <= 0.7


@pytest.mark.parametrize("scenario", QUICK, ids=lambda scenario: scenario.name)
def test_selection_by_another_query_is_rejected(scenario):
    batch = built(scenario)
    for pages in (False, True):
        exact = oracle.selection(batch, pages=pages)
        rows = (exact.value > -np.inf).sum(axis=1) > exact.best.shape[1]
        if rows.sum() < 2:
            continue
        wrong = oracle.selection(batch.replace(index_q=-batch.index_q), pages=pages)
        name = "topk_pages" if pages else "topk_indices"
        run = Run({name: wrong.best})
        evidence = Evidence(batch, Expected(selection=exact), {"base": run})
        assert selection.judge(evidence).status == "rejected"
        right = replace(evidence, runs={"base": Run({name: exact.best})})
        assert selection.judge(right).status == "accepted"


def test_most_scenarios_have_rows_beyond_twice_the_budget_and_the_table_has_rows_below():
    beyond, below = set(), set()
    for scenario in QUICK:
        batch = built(scenario)
        reachable = (batch.positions // batch.page_size + 1)[batch.real]
        beyond |= {scenario.family} if (reachable > 2 * batch.k_pages).any() else set()
        below |= {scenario.family} if (reachable < batch.k_pages).any() else set()
    assert beyond == set(FAMILIES)
    assert {"single", "several", "decode", "mixed", "budget", "padding"} <= below
