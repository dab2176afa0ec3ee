"""A batch refuses to exist when it contradicts itself, and the allocator keeps its promises."""

import numpy as np
import pytest

from dsa_verify.batch import Request, Scenario
from dsa_verify.batch.poison import neighbours_changed, repoisoned
from dsa_verify.batch.requests import allocate, page_order
from dsa_verify.batch.table import BUCKETS, SCENARIOS
from dsa_verify.errors import BatchError

BUCKET = BUCKETS["p16-f32"]


def scenario(*requests: Request, **changes) -> Scenario:
    return Scenario("made-here", "several", "nothing", requests, BUCKET, **changes)


@pytest.fixture(scope="module")
def batch():
    return SCENARIOS["several-unequal-p16-f32"].build()


def changed(array: np.ndarray, *at: int, to: float) -> np.ndarray:
    array = array.copy()
    array[at] = to
    return array


CONTRADICTIONS = {
    "kv_len below q_len": (lambda b: {"kv_lens": changed(b.kv_lens, 0, to=2)}, "kv_len 2 < q_len"),
    "kv_len beyond the table": (lambda b: {"kv_lens": changed(b.kv_lens, 0, to=9999)}, "width of page_table"),
    "more query tokens than tokens": (lambda b: {"cu_q_lens": b.cu_q_lens * 2}, "cu_q_lens"),
    "page outside the pool": (lambda b: {"page_table": changed(b.page_table, 0, 0, to=999)}, "expected a page of"),
    "reserved page": (lambda b: {"page_table": changed(b.page_table, 0, 0, to=0)}, "reserves"),
    "page mapped twice": (lambda b: {"page_table": changed(b.page_table, 0, 1, to=b.page_table[0, 0])}, "twice"),
    "position": (lambda b: {"positions": changed(b.positions, 0, to=1)}, r"positions\[0:4\]"),
    "slot of another request": (
        lambda b: {"out_cache_loc": changed(b.out_cache_loc, 0, to=b.out_cache_loc[5])},
        r"out_cache_loc\[0:4\]",
    ),
    "padding token with a slot": (lambda b: {"out_cache_loc": changed(b.out_cache_loc, -1, to=7)}, "must be -1"),
    "selection from the future": (lambda b: {"topk_pages": changed(b.topk_pages, 0, 0, to=13)}, "distinct pages"),
    "selection with a hole": (lambda b: {"topk_pages": changed(b.topk_pages, 0, 0, to=-1)}, "only at the tail"),
    "scale of zero": (lambda b: {"sm_scale": 0.0}, "sm_scale is 0.0"),
    "budget of zero": (lambda b: {"index_topk": 0}, "topk_pages has shape"),
    "page size": (lambda b: {"page_size": 32, "index_topk": 128}, "page_size says 32"),
    "int64 lengths": (lambda b: {"kv_lens": b.kv_lens.astype(np.int64)}, "expected int32"),
    "history that is not finite": (
        lambda b: {"cache_kv": changed(b.cache_kv, b.page_table[0, 0], 0, 0, to=np.nan)},
        "cache_kv holds a value",
    ),
    "missing head axis": (lambda b: {"q_pe": b.q_pe[:, :1]}, "q_pe has shape"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradiction_is_refused_with_both_sides_named(batch, name):
    change, message = CONTRADICTIONS[name]
    with pytest.raises(BatchError, match=message):
        batch.replace(**change(batch))


def test_page_written_by_one_request_cannot_be_mapped_by_another(batch):
    table = changed(batch.page_table, 1, 0, to=batch.page_table[0, 9])
    with pytest.raises(BatchError, match="writes in this step"):
        batch.replace(page_table=table)


def test_arrays_of_a_batch_cannot_be_written(batch):
    with pytest.raises(ValueError, match="read-only"):
        batch.kv_lens[0] = 1


@pytest.mark.parametrize("style", ["shuffled", "reversed", "high"])
def test_page_zero_is_never_handed_out_and_every_other_page_is(style):
    order = page_order(12, style, np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(1, 12))


def test_last_page_is_the_first_one_used_by_high_tables():
    assert page_order(12, "high", np.random.default_rng(0))[0] == 11


def test_shared_prefix_maps_whole_pages_and_copies_the_rest():
    requests = (Request(70, 5), Request(60, 5, shares=0, shared_tokens=40))
    first, second = allocate(requests, 16, np.arange(1, 20))
    assert second[:2].tolist() == first[:2].tolist()
    assert not set(second[2:].tolist()) & set(first.tolist())


def test_copied_prefix_tail_holds_the_same_rows():
    b = scenario(Request(70, 5), Request(60, 5, shares=0, shared_tokens=40)).build()
    latent = b.cache_kv.reshape(-1, b.cache_kv.shape[-1])
    assert (latent[b.slots(0)[:40]] == latent[b.slots(1)[:40]]).all()
    assert (latent[b.slots(0)[40:50]] != latent[b.slots(1)[40:50]]).any()


def test_sharing_new_tokens_is_refused():
    with pytest.raises(BatchError, match="new tokens of this step cannot be shared"):
        scenario(Request(70, 5), Request(70, 5, shares=0, shared_tokens=68)).build()


def test_sharing_with_a_later_request_is_refused():
    with pytest.raises(BatchError, match="expected an earlier request"):
        scenario(Request(70, 5, shares=1, shared_tokens=16), Request(70, 5)).build()


def test_pool_that_is_too_small_is_refused():
    with pytest.raises(BatchError, match="ran out of pages at request 1"):
        allocate((Request(40, 1), Request(40, 1)), 16, np.arange(1, 5))


def test_more_tokens_or_sequences_than_the_bucket_are_refused():
    with pytest.raises(BatchError, match="17 tokens"):
        scenario(Request(17, 17)).build()
    with pytest.raises(BatchError, match="sequence slots"):
        scenario(*[Request(3, 1)] * 6).build()


@pytest.mark.parametrize("name", [s.name for s in SCENARIOS.values() if s.tier == "quick"])
def test_memory_that_nobody_owns_is_poison(name):
    b = SCENARIOS[name].build()
    unwritten = ~b.owned
    unwritten[b.out_cache_loc[b.real]] = True
    assert np.isnan(b.cache_kv.reshape(-1, b.cache_kv.shape[-1])[unwritten].astype(np.float32)).all()
    assert np.isnan(b.index_cache.reshape(-1, b.index_cache.shape[-1])[~b.owned].astype(np.float32)).all()
    assert np.isnan(b.ql_nope[~b.real].astype(np.float32)).all()
    owned_pages = set((np.flatnonzero(b.owned) // b.page_size).tolist())
    for seq in range(b.seqs):
        unused = b.page_table[seq, -(-int(b.kv_lens[seq]) // b.page_size) :]
        assert not set(unused.tolist()) & owned_pages


@pytest.mark.parametrize("name", [s.name for s in SCENARIOS.values() if s.tier == "quick"])
def test_page_table_of_every_long_sequence_is_not_the_identity(name):
    b = SCENARIOS[name].build()
    for seq in np.flatnonzero(b.kv_lens > 3 * b.page_size):
        pages = b.page_table[seq, : b.kv_lens[seq] // b.page_size]
        assert (np.diff(pages) != 1).any()


def test_dirty_memory_differs_everywhere_and_data_stays(batch):
    other = repoisoned(batch, finite=True)
    flat, was = (x.cache_kv.reshape(-1, x.cache_kv.shape[-1]) for x in (other, batch))
    history = batch.owned.copy()
    history[batch.out_cache_loc[batch.real]] = False
    assert (flat[history] == was[history]).all()
    assert np.isfinite(flat[~history]).all()


def test_changed_neighbours_leave_the_kept_ones_as_they_were(batch):
    keep = np.arange(batch.seqs) % 2 == 0
    other = neighbours_changed(batch, keep)
    latent, was = (x.cache_kv.reshape(-1, x.cache_kv.shape[-1]) for x in (other, batch))
    for seq in range(batch.seqs):
        history = batch.slots(seq)[: batch.kv_lens[seq] - batch.q_lens[seq]]
        same = (latent[history] == was[history]).all()
        assert same == (bool(keep[seq]) or len(history) == 0)
