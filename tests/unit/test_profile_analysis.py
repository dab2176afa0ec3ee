"""Analysis: planted sinks, windows and strides come back exactly, and a second implementation in sets agrees."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsa_verify.errors import ConfigError
from dsa_verify.profile import blocks, traffic
from dsa_verify.profile.analysis import AnalysisPlan, analyse, ranges
from dsa_verify.profile.heatmap import average
from dsa_verify.profile.structure import strides, structure
from dsa_verify.profile.trace import Selections, Trace
from dsa_verify.shapes import SHAPES
from tests.unit.planted_selections import (
    SEED_SINKS,
    SEED_WINDOW,
    like_the_experiment,
    planted,
    selections,
    source,
    trace,
)


@pytest.fixture(scope="module")
def experiment():
    rows = like_the_experiment()
    return analyse(trace(rows, 8192 - 256, 2048), AnalysisPlan())


# What the profiling experiment on DeepSeek-V3.2 found, planted


@pytest.mark.parametrize(("block_size", "common"), [(16, 867), (32, 851), (64, 819), (128, 755), (256, 627)])
def test_neighbours_share_as_many_positions_as_were_planted(experiment, block_size, common):
    row = next(row for row in experiment.to_json()["layers"] if row["block_size"] == block_size)
    assert row["mean_intersection"] == common == len(SEED_SINKS) + SEED_WINDOW - (block_size - 1)
    assert row["blocks"] == 256 // block_size
    assert row["sinks"] == 482


def test_128_neighbours_share_about_a_third_of_2048(experiment):
    pattern = experiment.to_json()["patterns"][0]
    assert pattern["mean_selected"] == 2048
    assert 755 / pattern["mean_selected"] == pytest.approx(0.37, abs=0.005)


def test_overlap_does_not_depend_on_the_block_position(experiment):
    by_size = {block.block_size: block for block in experiment.layers[0].blocks}
    assert by_size[16].intersection.tolist() == [867] * 16
    assert by_size[16].first.tolist() == list(range(7936, 8192, 16))


def test_planted_sinks_window_and_stride_come_back(experiment):
    found = experiment.layers[0].structure
    assert found.local_window == SEED_WINDOW
    assert found.sinks.tolist() == list(SEED_SINKS)
    (stride,) = found.strides
    assert (stride.period, stride.offset, stride.width) == (96, 48, 1)  # 400 + 32 = 4 * 96 + 48
    assert found.local_share == 400 / 2048
    assert found.sink_share == 482 / 2048


def test_the_share_of_a_stride_is_what_only_the_stride_explains():
    """Without scattered positions the share is exact: all selections that are neither sinks nor local."""
    rows = like_the_experiment()
    sinks = set(SEED_SINKS)
    distances = set(range(SEED_WINDOW + 32, 8192 - 256 - 64, 96))
    bare = [
        [p for p in row if p in sinks or q - p < SEED_WINDOW or q - p in distances] for q, row in enumerate(rows, 7936)
    ]
    strided = sum(p not in sinks and q - p >= SEED_WINDOW for q, row in enumerate(bare, 7936) for p in row)
    (stride,) = structure(selections(bare, 7936, 2048)).strides
    assert stride.period == 96
    assert stride.share == pytest.approx(strided / sum(map(len, bare)), rel=1e-12)


# Local window and sinks: each number has an off-by-one that would move it


@pytest.mark.parametrize("window", [0, 1, 2, 31])
def test_the_local_window_counts_the_query_itself(window):
    found = structure(selections(planted(100, 20, window=window, sinks=[3]), 100, 40))
    assert found.local_window == window
    assert found.sinks.tolist() == [3]


@pytest.mark.parametrize(("missing", "window"), [(1, 30), (2, 9)])
def test_nearly_every_query_is_19_of_20(missing, window):
    rows = planted(100, 20, window=30)
    for row in rows[:missing]:
        row.remove(row[-1] - 9)
    assert structure(selections(rows, 100, 40)).local_window == window


@pytest.mark.parametrize(("missing", "sinks"), [(1, [3, 7]), (2, [3])])
def test_a_sink_is_selected_by_19_of_20(missing, sinks):
    rows = planted(100, 20, window=10, sinks=[3, 7])
    for row in rows[:missing]:
        row.remove(7)
    assert structure(selections(rows, 100, 40)).sinks.tolist() == sinks


def test_a_sink_is_beyond_the_local_window_of_every_query():
    """With a window of 10, the query at 100 reaches back to 91: 90 can be a sink, 91 cannot."""
    found = structure(selections(planted(100, 20, window=10, sinks=[90, 91]), 100, 40))
    assert (found.local_window, found.sinks.tolist()) == (10, [90])


def test_a_prefix_that_is_selected_whole_is_all_local():
    found = structure(selections([list(range(q + 1)) for q in range(20, 40)], 20, 64))
    assert (found.local_window, found.local_share, len(found.sinks), found.strides) == (40, 1.0, 0, ())


def test_half_of_the_selections_are_within_the_median_distance():
    rows = [[q, q - 1, q - 7, q - 20] for q in range(50, 60)]
    assert structure(selections(rows, 50, 4)).median_distance == 1
    rows = [[q, q - 7, q - 20] for q in range(50, 60)]
    assert structure(selections(rows, 50, 4)).median_distance == 7


def test_rate_and_columns_are_shares_of_the_queries_that_could():
    found = structure(selections([[0, 2], [0], [4, 1]], 2, 2))
    np.testing.assert_array_equal(found.columns, np.array([2, 1, 1, 0, 1]) / 3)
    np.testing.assert_array_equal(found.rate, [2 / 3, 0, 1 / 3, 2 / 2, 0])  # 4 is a distance of the last query only


def test_the_rate_beyond_the_window_is_without_sinks():
    """Position 1 is a sink: the queries at 4, 5 and 6 have it at the distances 3, 4 and 5."""
    found = structure(selections([[4, 1], [5, 1, 0], [6, 1, 3]], 4, 3))
    assert (found.local_window, found.sinks.tolist()) == (1, [1])
    np.testing.assert_array_equal(found.rate, [1, 0, 0, 1 / 2, 0, 1 / 1, 0])


def test_nothing_selected_at_all_is_measured_too():
    found = analyse(trace([[]] * 16, 40, 8), AnalysisPlan((4,)))
    assert found.to_json()["layers"][0]["mean_union"] == 0
    assert found.layers[0].structure.strides == ()
    assert found.layers[0].pages[0].kept.tolist() == [0] * 16


# Strides, by themselves


def combed(*combs, length=4000, base=0.02, queries=2000, rng=None):
    """Selections by distance when each comb adds (period, offset, rate) to a rate of `base`."""
    distance, rate = np.arange(length), np.full(length, float(base))
    for period, offset, height in combs:
        rate[np.unique(np.round(np.arange(offset, length, period)).astype(int))] += height
    counts = (rng or np.random.default_rng(1)).binomial(queries, np.clip(rate, 0, 1))
    return counts, np.full(length, queries), distance


@pytest.mark.parametrize("period", [2, 3, 7, 64, 97, 128, 1000])
@pytest.mark.parametrize("offset", [0, 1])
def test_a_planted_period_is_found_and_not_a_multiple_of_it(period, offset):
    counts, pairs, _ = combed((period, offset, 0.6))
    (stride,) = strides(counts, pairs, int(counts.sum()))
    assert (stride.period, stride.offset, stride.width) == (period, offset, 1)
    teeth = counts[offset::period].sum() - 0.02 * 2000 * len(counts[offset::period])
    assert stride.share == pytest.approx(teeth / counts.sum(), abs=0.003)


def test_a_weak_period_is_found_and_not_a_multiple_of_it():
    """A hundredth above a rate of a twentieth: multiples that noise favours do not agree with themselves."""
    counts, pairs, _ = combed((31, 7, 0.01), length=3000, base=0.05, rng=np.random.default_rng(0))
    (stride,) = strides(counts, pairs, int(counts.sum()) // 3)
    assert (stride.period, stride.offset) == (31, 7)


def test_a_period_under_a_falling_rate_is_found():
    trend = 0.9 / (1 + np.arange(4000) / 300) + 0.04 * (np.arange(4000) % 97 == 5)
    counts = np.random.default_rng(6).binomial(2000, trend)
    (stride,) = strides(counts, np.full(4000, 2000), int(counts.sum()) // 10)
    assert (stride.period, stride.offset) == (97, 5)


def test_the_local_window_is_no_part_of_what_a_stride_rises_above():
    """Every distance beyond the window is selected by three tenths, those of the stride by all."""
    rng, rows = np.random.default_rng(7), []
    for query in range(600, 900):
        far = np.arange(query - 300 + 1)
        chosen = (rng.random(len(far)) < 0.3) | ((query - far) % 20 == 0)
        rows.append([*far[chosen].tolist(), *range(query - 300 + 1, query + 1)])
    found = structure(selections(rows, 600, 900))
    (stride,) = found.strides
    assert (found.local_window, stride.period, stride.offset) == (301, 20, 0)  # distance 300 is a tooth of the stride
    on_teeth = sum((q - p) % 20 == 0 and q - p > 300 for q, row in enumerate(rows, 600) for p in row)
    assert stride.share == pytest.approx(0.7 * on_teeth / sum(map(len, rows)), rel=0.02)


def test_two_periods_are_found_strongest_first():
    counts, pairs, _ = combed((96, 5, 0.9), (250, 0, 0.6), length=12000)
    assert [(s.period, s.offset) for s in strides(counts, pairs, int(counts.sum()))] == [(96, 5), (250, 0)]


def test_a_period_that_is_no_whole_number_is_a_fraction():
    """As rotary frequencies make them."""
    distance = np.arange(12000)
    counts = np.random.default_rng(2).binomial(2000, 0.05 + 0.03 * np.cos(2 * np.pi * distance / 37.7))
    (stride,) = strides(counts, np.full(12000, 2000), int(counts.sum()))
    assert (stride.period, stride.offset) == (37.7, 0)
    assert 15 <= stride.width <= 22  # a cosine is above half its height for half its period


@pytest.mark.parametrize(
    "rate",
    [
        np.full(6000, 0.05),
        0.9 / (1 + np.arange(6000) / 300),
        np.exp(-np.arange(6000) / 1000),
        0.02 + 0.5 * np.exp(-np.square((np.arange(6000) - 2000) / 150)),
        0.02 + 0.5 * np.isin(np.arange(6000), np.random.default_rng(3).choice(6000, 30)),
        np.clip(0.05 + 0.2 * np.convolve(np.random.default_rng(4).normal(size=6000), np.ones(30) / 30, "same"), 0, 1),
    ],
    ids=["flat", "power-law", "exponential", "one-bump", "random-diagonals", "wide-noise"],
)  # fmt: skip
def test_no_period_is_seen_where_there_is_none(rate):
    counts = np.random.default_rng(5).binomial(2000, rate)
    assert strides(counts, np.full(6000, 2000), int(counts.sum())) == ()


def test_a_period_must_repeat_four_times():
    for length, found in ((4 * 127 - 1, 0), (4 * 127, 1)):
        counts, pairs, _ = combed((127, 3, 0.9), length=length, base=0)
        assert len(strides(counts, pairs, int(counts.sum()))) == found


def test_a_stride_must_explain_a_hundredth():
    counts, pairs, _ = combed((100, 0, 1.0), base=0)
    assert len(strides(counts, pairs, 100 * int(counts.sum()))) == 1
    assert len(strides(counts, pairs, 102 * int(counts.sum()))) == 0


def test_distances_that_sinks_hide_are_no_part_of_a_period():
    """Sinks every 40 positions, under queries that move: nothing is periodic in the distance."""
    found = structure(selections(planted(2000, 400, sinks=range(0, 1900, 40), window=8, fill_to=80), 2000, 128))
    assert (len(found.sinks), found.strides) == (48, ())


# Pages


def test_pages_of_a_window_of_64():
    """Pages of 16: a query at position q reads the pages of q - 63 to q, 4 if it ends a page and 5 otherwise."""
    window = selections(planted(160, 32, window=64), 160, 64)
    fetched = traffic.pages(window, 16, 64).fetched
    assert fetched.tolist() == ([5] * 15 + [4]) * 2
    assert blocks.measure(window, 16, [16], 64).pages[16].tolist() == [5, 5]
    assert blocks.measure(window, 32, [16], 64).pages[16].tolist() == [6]


def test_page_edges_belong_to_the_page_that_starts_there():
    window = selections([[0, 15], [16], [15, 16]], 20, 2)
    assert traffic.pages(window, 16, 2).fetched.tolist() == [1, 1, 2]
    assert blocks.measure(window, 1, [16], 0).pages[16].tolist() == [1, 1, 2]


def test_page_rows_are_means_over_queries_and_blocks():
    """Budget 4 in pages of 16: one page keeps all, two of three, and two of four; 1, 2 and 2 pages are fetched."""
    rows = [[0, 1, 2, 3], [0, 1, 16], [0, 1, 16, 17], [0, 1, 16, 17]]
    found = analyse(trace(rows, 20, 4), AnalysisPlan((2,), page_size=16))
    assert [found.rows()[0][name] for name in ("pages_per_query", "pages_per_block")] == [7 / 4, 2]
    row = found.page_rows()[0]
    assert (row["page_size"], row["block_size"]) == (16, 2)
    assert (row["pages_per_query"], row["pages_per_block"]) == (7 / 4, 2)
    assert (row["mean_kept"], row["min_kept"]) == ((1 + 2 / 3 + 1 / 2 + 1 / 2) / 4, 1 / 2)


@pytest.mark.parametrize(("budget", "kept"), [(4, 4 / 7), (5, 6 / 7), (8, 6 / 7), (9, 1.0), (100, 1.0)])
def test_whole_pages_keep_what_the_fullest_pages_hold(budget, kept):
    """Four positions of one page of 4, two of another, one of a third; a budget of 5 is two pages."""
    window = selections([[4, 5, 6, 7, 12, 14, 20]], 40, 7)
    assert traffic.pages(window, 4, budget).kept.tolist() == [kept]


def test_recall_and_pages_do_not_depend_on_how_many_queries_are_counted_at_a_time():
    window = selections(planted(400, 600, window=20, fill_to=40), 400, 40)
    whole = traffic.pages(window, 16, 40)
    for start in (0, 255, 256, 599):
        one = Selections(window.positions[start : start + 1], window.topk[start : start + 1])
        part = traffic.pages(one, 16, 40)
        assert (part.fetched[0], part.kept[0]) == (whole.fetched[start], whole.kept[start])


# Bytes


def test_dense_and_sparse_cross_where_their_bytes_are_equal():
    window = selections(planted(4096, 64, window=64), 4096, 64)
    block = blocks.measure(window, 16, [16], 64)
    fetched = traffic.pages(window, 16, 64).fetched
    one = traffic.crossing(SHAPES["glm-5.2"], 16, fetched, block)
    assert (one.latent_bytes, one.index_bytes) == (2 * (512 + 128), 2 * 128)
    assert (one.pages_per_query, one.pages_per_block) == (4.9375, 5)
    assert one.crossings == {
        "qblock_shared": 80,  # 5 pages of 16
        "qblock_full": 100,  # 80 * 1280 / (1280 - 256)
        "per_query_shared": 1264,  # 16 * 4.9375 * 16
        "per_query_full": 1580,
    }
    for name, extra in (("shared", 0), ("full", 1)):
        for kernel in ("qblock", "per_query"):
            at = one.crossings[f"{kernel}_{name}"]
            for context, cheaper in ((at - 1, False), (at + 1, True)):
                sparse = getattr(one, kernel)(context) + extra * one.scoring(context)
                assert (sparse < one.dense(context)) == cheaper
    assert one.dense(1000) == 1_280_000
    assert one.qblock(1000) == 5 * 16 * 1280
    assert one.per_query(33) == 16 * 3 * 16 * 1280  # no more pages than there are
    assert one.coverage == pytest.approx(np.mean([5 / 257, 5 / 258, 5 / 259, 5 / 260]))
    assert not one.saturated


def test_a_union_of_nearly_all_pages_tells_no_crossing():
    rows = [list(range(0, q + 1, 2)) for q in range(320, 352)]
    found = analyse(trace(rows, 320, 256), AnalysisPlan((16,), page_size=16))
    assert found.to_json()["bytes"][0]["coverage"] == 1
    assert found.to_json()["bytes"][0]["saturated"] is True


def test_bytes_are_of_the_models_own_shape():
    one = trace(planted(100, 16, window=4), 100, 8)
    assert analyse(one, AnalysisPlan((8,))).to_json()["bytes"][0]["latent_bytes"] == 2 * (128 + 128)  # mini
    other = Trace(source(116, 8), one.layers)
    object.__setattr__(other.source, "model", "some-model")
    assert analyse(other, AnalysisPlan((8,))).shape == "glm-5.2"


# Windows and plans


def test_the_window_is_the_last_queries_and_whole_blocks_of_it():
    rows = planted(100, 50, window=4, sinks=[7])
    found = analyse(trace(rows, 100, 8), AnalysisPlan((8, 16, 32), queries=30)).layers[0]
    assert found.window.positions.tolist() == list(range(120, 150))
    assert [block.block_size for block in found.blocks] == [8, 16]
    assert [block.first.tolist() for block in found.blocks] == [[120, 128, 136], [120]]


def test_block_sizes_that_do_not_fit_are_said_and_none_that_fits_is_an_error():
    one = trace(planted(100, 30, window=4), 100, 8)
    assert analyse(one, AnalysisPlan((30, 31, 8, 8))).left_out == (31,)
    with pytest.raises(ConfigError, match="the window has 30 queries and the smallest block 31"):
        analyse(one, AnalysisPlan((31, 64)))


def test_queries_that_are_no_neighbours_are_refused():
    whole = selections(planted(100, 30, window=4), 100, 8)
    keep = [row for row in range(30) if row != 12]
    one = Trace(source(130, 8), {3: Selections(whole.positions[keep], whole.topk[keep])})
    with pytest.raises(ConfigError, match=r"layer 3: .* 111 is followed by 113; give --queries 17 at most"):
        analyse(one, AnalysisPlan((4,)))
    assert len(analyse(one, AnalysisPlan((4,), queries=17)).layers[0].window.positions) == 17


def test_a_page_size_of_ones_own_is_measured_beside_the_usual_ones():
    found = analyse(trace(planted(100, 16, window=40), 100, 40), AnalysisPlan((8,), page_size=32)).to_json()
    assert [row["page_size"] for row in found["pages"]] == [16, 32, 64, 128]
    assert found["layers"][0]["pages_per_block"] == found["pages"][1]["pages_per_block"]


def test_layers_are_measured_apart_and_in_order():
    first, second = planted(100, 16, window=4), planted(100, 16, window=9)
    layers = {9: selections(second, 100, 9), 2: selections(first, 100, 9)}
    found = analyse(Trace(source(116, 9), layers), AnalysisPlan((8,))).to_json()
    assert [(row["layer"], row["local_window"]) for row in found["layers"]] == [(2, 4), (9, 9)]


def test_ranges_of_positions():
    assert ranges(np.array([0, 1, 2, 7, 9, 10])) == [[0, 2], [7, 7], [9, 10]]
    assert ranges(np.array([], int)) == []


# The heatmap


def test_a_pixel_is_the_share_of_its_causal_pairs():
    window = selections([[0, 2], [3, 1], [4], [0, 5]], 2, 2)
    image, tall, wide = average(window, (2, 3))
    assert (tall, wide) == (2, 2)
    # queries 2 and 3 selected {0, 2} and {1, 3}; of positions 2 and 3, query 2 has one only
    np.testing.assert_array_equal(image, [[2 / 4, 2 / 3, np.nan], [1 / 4, 0, 2 / 3]])


def test_enough_pixels_show_every_pair():
    window = selections([[0], [1, 2]], 1, 2)
    image, tall, wide = average(window)
    assert (tall, wide) == (1, 1)
    np.testing.assert_array_equal(image, [[1, 0, np.nan], [0, 1, 1]])


# A second implementation, in sets


@st.composite
def windows(draw):
    """(first position, rows) of a few queries at consecutive positions."""
    first, queries, columns = draw(st.integers(0, 40)), draw(st.integers(1, 12)), draw(st.integers(1, 8))
    near = [range(query + 1) for query in range(first, first + queries)]
    rows = [draw(st.lists(st.sampled_from(can), max_size=min(columns, len(can)), unique=True)) for can in near]
    return first, rows, columns


@settings(max_examples=200, deadline=None)
@given(windows(), st.integers(1, 6), st.sampled_from([1, 2, 16]), st.integers(0, 5))
def test_blocks_agree_with_sets(window, block_size, page_size, local_window):
    first, rows, columns = window
    if block_size > len(rows):
        return
    found = blocks.measure(selections(rows, first, columns), block_size, [page_size], local_window)
    expected = []
    for start in range(0, len(rows) // block_size * block_size, block_size):
        block = [set(row) for row in rows[start : start + block_size]]
        times = Counter(p for row in block for p in row)
        sinks = [p for p, n in times.items() if 20 * n >= 19 * block_size and p <= first + start - local_window]
        union = set.union(*block)
        pages = {p // page_size for p in union}
        expected.append((first + start, len(set.intersection(*block)), len(union), len(sinks), len(pages)))
    parts = (found.first, found.intersection, found.union, found.sinks, found.pages[page_size])
    assert list(zip(*(part.tolist() for part in parts), strict=True)) == expected


@settings(max_examples=200, deadline=None)
@given(windows(), st.sampled_from([1, 2, 5, 16]), st.integers(1, 12))
def test_pages_agree_with_sets(window, page_size, index_topk):
    first, rows, columns = window
    found = traffic.pages(selections(rows, first, columns), page_size, index_topk)
    assert found.fetched.tolist() == [len({p // page_size for p in row}) for row in rows]
    for row, kept in zip(rows, found.kept, strict=True):
        best = Counter(p // page_size for p in row).most_common(-(-index_topk // page_size))
        assert kept == (sum(n for _, n in best) / len(row) if row else 0)


@settings(max_examples=200, deadline=None)
@given(windows())
def test_structure_agrees_with_sets(window):
    first, rows, columns = window
    found = structure(selections(rows, first, columns))
    queries = range(first, first + len(rows))
    local = 0
    while local <= queries[-1]:
        have = [q for q in queries if q >= local]
        if 20 * sum(q - local in rows[q - first] for q in have) < 19 * len(have):
            break
        local += 1
    assert found.local_window == local
    times = Counter(p for row in rows for p in row)
    sinks = sorted(p for p, n in times.items() if 20 * n >= 19 * len(rows) and p <= first - local)
    assert found.sinks.tolist() == sinks
    for distance in range(queries[-1] + 1):
        able = [q for q in queries if q >= distance and (distance < local or q - distance not in sinks)]
        selected = sum(q - distance in rows[q - first] for q in able)
        assert found.rate[distance] == (selected / len(able) if able else 0)
    total = max(1, sum(map(len, rows)))
    assert found.sink_share == sum(times[p] for p in sinks) / total
    assert found.local_share == sum(q - p < local for q, row in zip(queries, rows, strict=True) for p in row) / total


@settings(max_examples=100, deadline=None)
@given(windows(), st.randoms(use_true_random=False))
def test_what_must_hold_of_any_selection(window, random):
    first, rows, columns = window
    one = trace(rows, first, columns)
    layer = analyse(
        one, AnalysisPlan((1, 2, 4, 8), page_size=2) if len(rows) >= 8 else AnalysisPlan((1,), page_size=2)
    ).layers[0]
    lengths = np.array([len(row) for row in rows])
    single = layer.blocks[0]
    np.testing.assert_array_equal(single.intersection, lengths)
    np.testing.assert_array_equal(single.union, lengths)
    fetched = {pages.page_size: pages.fetched for pages in layer.pages}
    for smaller, larger in zip(layer.blocks, layer.blocks[1:], strict=False):
        halves = slice(0, 2 * len(larger.first))
        pairs = np.stack([smaller.intersection[halves], smaller.union[halves]]).reshape(2, -1, 2)
        assert (larger.intersection <= pairs[0].min(axis=1)).all()
        assert (larger.union >= pairs[1].max(axis=1)).all()
        assert (larger.union <= pairs[1].sum(axis=1)).all()
    for block in layer.blocks:
        queries = len(block.first) * block.block_size
        by_block = lengths[:queries].reshape(-1, block.block_size)
        assert (block.intersection <= by_block.min(axis=1)).all()
        assert (block.union >= by_block.max(axis=1)).all()
        for size, shared in block.pages.items():
            assert (shared <= fetched[size][:queries].reshape(-1, block.block_size).sum(axis=1)).all()
            assert (shared >= fetched[size][:queries].reshape(-1, block.block_size).max(axis=1)).all()
    shuffled = [random.sample(row, len(row)) for row in rows]
    assert (
        analyse(trace(shuffled, first, columns), AnalysisPlan((1,))).to_json()
        == analyse(one, AnalysisPlan((1,))).to_json()
    )
