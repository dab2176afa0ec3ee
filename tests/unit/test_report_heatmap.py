"""Heatmaps of rejections: the cells are what a kernel did, no larger than a report can hold, and drawn in few nodes."""

import dataclasses
import json
import re
import warnings

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS, heatmap
from dsa_verify.checks.tolerance import score_band
from dsa_verify.contract import Kernel, Promise, Provider, surface_named
from dsa_verify.evidence import Evidence, Expected, Heatmap, HeatmapRow, Result, Run, ScoredCandidates
from dsa_verify.report import heatmap as drawing
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.page import DRAWN, page
from dsa_verify.run.verify import batch_of, verify

EXTEND = "single-extend-p16-f32"
CASES = [(EXTEND, True), (EXTEND, False), ("ties-plateau-p16-f32", False), ("long-context-p128-bf16", False)]


def selected(scenario, pages, change, **promise):
    """The evidence of a kernel whose choices are the best, changed by `change(chosen, exact)`."""
    batch = batch_of(SCENARIOS[scenario])
    exact = oracle.selection(batch, pages=pages)
    chosen = exact.best.copy()
    change(chosen, exact)
    run = Run({"topk_pages" if pages else "topk_indices": chosen})
    return Evidence(batch, Expected(selection=exact), {"base": run}, Promise(**promise))


def shown(evidence, check="selection") -> Heatmap:
    verdict = CHECKS[check].verdict(evidence)
    assert verdict.status == "rejected"
    assert verdict.heatmap is not None, verdict.reason
    return verdict.heatmap


def swap_worst(chosen, exact):
    """The best choice of each row that leaves some gives way to the worst candidate left."""
    for row, best in enumerate(exact.best):
        left = np.setdiff1d(np.flatnonzero(exact.value[row] > -np.inf), best)
        if len(left):
            chosen[row, 0] = left[exact.value[row, left].argmin()]


@pytest.mark.parametrize(("scenario", "pages"), CASES)
def test_a_right_selection_has_no_heatmap_and_a_wrong_one_has(scenario, pages):
    right = selected(scenario, pages, lambda chosen, exact: None)
    assert CHECKS["selection"].verdict(right).heatmap is None
    assert heatmap.of_selection(right) is None
    found = shown(selected(scenario, pages, swap_worst))
    assert found.column == ("page" if pages else "position")
    assert all("1 expected and missing, 1 kept and not expected" in row.note for row in found.rows)


def test_cells_tell_what_was_expected_and_what_came():
    evidence = selected(EXTEND, True, swap_worst)
    exact, chosen = evidence.expected.selection, evidence.base.outputs["topk_pages"]
    found = shown(evidence)
    rows = [row for row in range(len(chosen)) if set(chosen[row]) != set(exact.best[row])]
    assert found.width == 1
    assert found.faulty == len(found.rows) == len(rows)
    for row, drawn in zip(rows, found.rows, strict=True):
        cells = dict(enumerate(drawn.cells))
        assert {at for at, cell in cells.items() if cell in "=-"} == set(exact.best[row]) - {-1}
        assert {at for at, cell in cells.items() if cell in "=+"} == set(chosen[row]) - {-1}
        assert (drawn.request, drawn.position) == (0, evidence.batch.positions[row])


def test_a_near_tie_beside_an_error_is_no_error():
    batch = batch_of(SCENARIOS[EXTEND])
    exact = oracle.selection(batch, pages=False)
    near, far = 3, 5
    value = exact.value.copy()
    kept, left = exact.best[near, -1], np.setdiff1d(np.flatnonzero(value[near] > -np.inf), exact.best[near])[0]
    value[near, left] = value[near, kept] = np.sort(value[near, exact.best[near]])[0]
    value[near, left] -= score_band(exact, Promise())[near, left] / 2
    exact = dataclasses.replace(exact, value=value)
    chosen = exact.best.copy()
    chosen[near, -1] = left
    chosen[far, 0] = np.setdiff1d(np.flatnonzero(value[far] > -np.inf), exact.best[far])[-1]
    evidence = Evidence(batch, Expected(selection=exact), {"base": Run({"topk_indices": chosen})})
    assert [row.position for row in shown(evidence).rows] == [batch.positions[far]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda chosen, exact: chosen.__setitem__((2, 1), chosen[2, 0]), "1 named twice or out of range"),
        (lambda chosen, exact: chosen.__setitem__((2, 1), 10_000), "1 expected and missing"),
        (lambda chosen, exact: chosen.__setitem__((2, 1), -7), "1 named twice or out of range"),
        (lambda chosen, exact: chosen.__setitem__((2, 1), -1), "1 expected and missing, 0 kept and not expected"),
        (lambda chosen, exact: chosen.__setitem__((2, 1), exact.value.shape[1] - 1), "1 of them no candidate"),
    ],
)
def test_a_malformed_row_is_shown_and_only_that_one(change, said):
    found = shown(selected(EXTEND, True, change))
    assert len(found.rows) == 1
    assert said in found.rows[0].note


def test_equal_scores_in_the_wrong_order_are_shown():
    def highest(chosen, exact):
        for row in range(len(chosen)):
            count = (chosen[row] >= 0).sum()
            order = np.lexsort((-np.arange(exact.value.shape[1]), -exact.value[row]))
            chosen[row, :count] = order[:count]

    assert shown(selected("ties-plateau-p16-f32", False, highest)).faulty > 0


@pytest.mark.parametrize("output", [np.zeros((3, 2), np.int32), np.zeros((16, 4), np.float32)])
def test_what_is_no_selection_at_all_has_a_reason_and_no_heatmap(output):
    evidence = dataclasses.replace(
        selected(EXTEND, True, lambda chosen, exact: None), runs={"base": Run({"topk_pages": output})}
    )
    verdict = CHECKS["selection"].verdict(evidence)
    assert (verdict.status, verdict.heatmap) == ("rejected", None)
    failed = dataclasses.replace(evidence, runs={"base": Run(None)})
    assert CHECKS["selection"].verdict(failed).heatmap is None


def test_the_largest_heatmap_is_below_8_kb():
    """A production context and budget, and every choice of every query left to chance."""
    batch, rng = batch_of(SCENARIOS[EXTEND]), np.random.default_rng(0)
    value = rng.normal(size=(len(batch.positions), 131072))
    best = np.argsort(-value, axis=1)[:, :2048].astype(np.int32)
    exact = ScoredCandidates(value, np.abs(value), best, terms=128)
    chosen = rng.permuted(np.tile(np.arange(131072, dtype=np.int32), (len(value), 1)), axis=1)[:, :2048]
    found = shown(Evidence(batch, Expected(selection=exact), {"base": Run({"topk_indices": chosen})}))
    assert (len(found.rows), found.width) == (heatmap.ROWS, 1024)
    assert {len(row.cells) for row in found.rows} == {128}
    assert len(json.dumps(dataclasses.asdict(found))) < 8192 * 128 / heatmap.COLUMNS


def test_of_many_faulty_queries_the_first_and_the_last_are_shown():
    assert heatmap._some(np.arange(3, 1000)).tolist()[::15] == [3, 999]
    assert len(heatmap._some(np.arange(1000))) == heatmap.ROWS
    assert heatmap._some(np.array([7])).tolist() == [7]


@pytest.mark.parametrize("columns", [1, 192, 193, 384, 385, 131072])
def test_cells_are_few_and_none_is_lost(columns):
    width = heatmap._width(columns)
    grid = np.arange(2 * columns).reshape(2, columns)
    cells = heatmap._cells(grid, width)
    assert cells.shape[1] <= heatmap.COLUMNS
    assert (cells.reshape(2, -1)[:, :columns] == grid).all()


def attended(change):
    batch = batch_of(SCENARIOS[EXTEND])
    exact = oracle.expected("dense_mla", batch)
    out = exact.attention.out.astype(np.float32)
    change(out)
    return Evidence(batch, exact, {"base": Run({"out": out})})


def test_shares_of_heads_tell_how_far_off_each_is():
    def change(out):
        out[2, 1] *= 1.01
        out[4, 3, 7] = np.nan
        out[5, 0, 7] = np.inf

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = shown(attended(change), "parity")
    assert (found.kind, found.column) == ("share", "head")
    first, second, third = found.rows
    assert first.cells[1] in "123" and first.cells.replace(first.cells[1], ".", 1) == "...."
    assert (second.cells, third.cells) == ("...!", "!...")
    assert "head 3 above budget, up to inf times" in second.note


def test_a_right_output_has_no_heatmap():
    evidence = attended(lambda out: None)
    assert CHECKS["parity"].verdict(evidence).status == "accepted"
    assert heatmap.of_shares(evidence) is None


def first_candidates(index_q, index_topk, kv_lens, cu_q_lens, **_):
    """Choices without looking: the lowest positions."""
    import jax.numpy as jnp

    tokens = jnp.arange(index_q.shape[0])
    owner = jnp.searchsorted(cu_q_lens, tokens, side="right") - 1
    end = jnp.take(kv_lens, owner, mode="clip") - jnp.take(cu_q_lens, owner + 1, mode="clip") + tokens + 1
    columns = jnp.arange(index_topk)[None, :]
    real = (tokens < cu_q_lens[-1])[:, None]
    return (jnp.where(real & (columns < end[:, None]), columns, -1).astype(jnp.int32),)


def test_a_case_that_runs_carries_the_heatmap_of_what_it_rejects():
    provider = Provider("lazy", "0", {"index_topk": Kernel(first_candidates)})
    results = verify(surface_named("index_topk"), provider, SCENARIOS[EXTEND])
    drawn = {one.check: one.verdict.heatmap for one in results if one.verdict.heatmap is not None}
    assert set(drawn) == {"selection"}
    got = drawn["selection"].rows[0].cells
    assert set(got[:64]) == {"=", "+"} and set(got[64:]) == {"-", ".", " "}


MAP = Heatmap(
    "selection", "page", 1, 3, 14,
    (HeatmapRow(0, 141, "=-+.m x", "1 expected and missing"), HeatmapRow(-1, -1, "+      ", "1 kept and not expected")),
)  # fmt: skip


def test_panels_are_expected_got_and_difference():
    drawn = drawing.draw(MAP)
    expected, got, difference = drawn.panels
    size = drawing.PLOT / 7 if drawing.PLOT / 7 < 16 else 16
    left = [drawing.LEFT + size * at for at in range(8)]

    def begins(panel, height):
        return [float(x) for x, h in re.findall(r"M([\d.]+) [\d.]+h[\d.]+v([\d.]+)h", panel.bars) if float(h) == height]

    assert begins(expected, drawing.BAR) == [left[0], left[4], left[6]]  # cells 0 and 1 are one bar
    assert begins(got, drawing.BAR) == [left[0], left[2], left[4], left[6], left[0]]
    assert begins(difference, drawing.BAR / 2) == [left[1], left[4], left[6], left[2], left[6], left[0]]
    assert begins(difference, 1.9) == [left[0]]
    assert [text for _, _, text in expected.labels] == ["0:141", "padding", "pages 0 to 6"]


def test_the_characters_that_are_drawn_are_those_that_checks_write():
    bits = {cell: bit for bit, cell in enumerate(heatmap.SELECTION[:8])}
    due, kept = {cell for cell, bit in bits.items() if bit & 3}, {cell for cell, bit in bits.items() if bit & 5}
    ((expected, *_),), ((got, *_),) = drawing.SELECTION["expected"], drawing.SELECTION["got"]
    assert (set(expected), set(got)) == (due, kept)
    (missing, *_), (extra, *_), (same, *_) = drawing.SELECTION["difference"]
    assert set(missing) == {cell for cell, bit in bits.items() if bit & 2}
    assert set(extra) == {cell for cell, bit in bits.items() if bit & 4}
    assert set(same) == {cell for cell, bit in bits.items() if bit == 1}
    ((_, levels),) = drawing.SHARE.items()
    assert "." + "".join(cells for cells, *_ in levels) == heatmap.SHARE


def outcome(count, found):
    verdict = dataclasses.replace(CHECKS["selection"].verdict(selected(EXTEND, True, swap_worst)), heatmap=found)
    return Outcome("dsa-verify parity", 1.0, {}, tuple(
        Result("jnp", "index_page_topk", f"soak:0:{at}", "selection", verdict) for at in range(count)
    ))  # fmt: skip


def test_the_page_draws_it_in_few_nodes_and_says_the_same_in_words():
    text = page(outcome(1, MAP))
    assert text.count("<svg") == text.count('<svg role="img" aria-label=') == 3
    assert text.count("<path") == 6
    assert "3 faulty queries, 2 of them shown; query at position 141 of request 0: 1 expected and missing" in text
    assert "<li>padding token: 1 kept and not expected</li>" in text
    assert "upper half is expected and missing" in text
    assert len(page(outcome(1, None))) < len(text)


def test_a_page_draws_only_so_many():
    assert page(outcome(DRAWN + 5, MAP)).count("<figure>") == DRAWN


def test_the_largest_drawing_keeps_the_page_loadable():
    full = Heatmap("selection", "position", 1, 16, 16, tuple(
        HeatmapRow(0, at, "x." * (heatmap.COLUMNS // 2), "all wrong") for at in range(heatmap.ROWS)
    ))  # fmt: skip
    size = sum(len(panel.bars) + len(panel.base) for panel in drawing.draw(full).panels)
    assert size < 200_000
