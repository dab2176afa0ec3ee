"""The built-in indexer kernels: what query blocks, the key ring and page maxima could get wrong, a small batch each."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest

from dsa_verify.batch import Bucket, Request, Scenario
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ContractError
from dsa_verify.kernels.pallas import index_page_topk, index_topk, indexing
from dsa_verify.oracle.expected import expected
from dsa_verify.runtime import run

KERNELS = {"index_topk": index_topk, "index_page_topk": index_page_topk}
MODES = ("on_wait", "eager")
F32 = Bucket("test-f32", 16, "float32", 20, 4, 24, 100, 40)
TILING = {"query_block": 8, "pages_per_step": 8}  # 20 tokens make three blocks, the last overhangs; steps of 128 keys

both = pytest.mark.parametrize("surface", KERNELS)


@functools.cache
def batch_of(*lens, bucket=F32):
    requests = tuple(Request(kv_len, q_len) for kv_len, q_len in lens)
    return Scenario("test", "test", "", requests, bucket).build()


def inputs(surface, batch):
    return {name: getattr(batch, name) for name in SURFACES[surface].arrays}


def chosen(surface, arrays, budget=40, dma="on_wait", tiling=TILING):
    seen = run(KERNELS[surface], arrays, {"index_topk": budget, **tiling}, dma=dma)
    assert seen.findings == ()
    return seen.outputs[0]


def check(surface, batch, **options):
    """The kernel's choice is the oracle's, in its order: these scores are farther apart than float32 rounds."""
    found = chosen(surface, inputs(surface, batch), batch.index_topk, **options)
    np.testing.assert_array_equal(found, expected(surface, batch).selection.best)


@both
@pytest.mark.parametrize("dma", MODES)
def test_blocks_that_cut_sequences_and_several_steps(surface, dma):
    batch = batch_of((300, 11), (150, 3), (290, 5))  # blocks of 8 tokens: 8 | 3 + 3 + 2 | 3; up to three steps
    check(surface, batch, dma=dma)


@both
def test_tilings_agree(surface):
    batch = batch_of((300, 11), (150, 3), (290, 5))
    by_default = chosen(surface, inputs(surface, batch), tiling={})
    np.testing.assert_array_equal(by_default, chosen(surface, inputs(surface, batch)))


@both
def test_more_steps_than_buffers_in_the_ring(surface):
    batch = batch_of((380, 1), (370, 2), (379, 2), (369, 3))
    assert 2 * indexing.BUFFERS < 4 * 3  # three steps of four sequences in one block
    check(surface, batch, dma="eager")


@both
def test_rows_of_one_block_do_not_see_each_others_keys(surface):
    alone, together = batch_of((300, 3)), batch_of((300, 3), (310, 4))
    np.testing.assert_array_equal(
        chosen(surface, inputs(surface, alone))[:3], chosen(surface, inputs(surface, together))[:3]
    )
    check(surface, together)


@both
def test_sequences_without_queries_or_keys_inside_a_block(surface):
    check(surface, batch_of((200, 4), (130, 0), (0, 0), (260, 6)))


@both
def test_a_block_of_nothing_but_padding(surface):
    batch = batch_of((200, 5))  # tokens 8..19 are two whole blocks of padding
    found = chosen(surface, inputs(surface, batch))
    assert (found[5:] == -1).all() and (found[:5] >= 0).any(axis=1).all()


@both
def test_a_step_with_no_sequence_at_all(surface):
    assert (chosen(surface, inputs(surface, batch_of())) == -1).all()


@both
def test_a_page_half_full_of_nan(surface):
    batch = batch_of((136, 9))  # the second step is half a page; its buffer holds NaN elsewhere
    tail = batch.index_cache[batch.page_table[0, 8]]
    assert np.isfinite(tail[:8]).all() and np.isnan(tail[8:]).all()
    check(surface, batch)


@both
def test_a_budget_above_the_candidates_is_padded(surface):
    budget = 1024  # tokens; the table holds 24 pages, 384 tokens
    found = chosen(surface, inputs(surface, batch_of((300, 11), (150, 3), (290, 5))), budget)
    width, candidates = (budget, 300) if surface == "index_topk" else (budget // 16, 19)
    assert found.shape == (20, width) and (found[:, candidates:] == -1).all()
    assert sorted(found[10, :candidates]) == list(range(candidates))  # the last query of the longest sequence


@both
def test_heads_that_do_not_fill_a_tile(surface):
    batch = batch_of((300, 11), (150, 3), (290, 5))
    check(surface, batch.replace(index_q=batch.index_q[:, :3], index_weights=batch.index_weights[:, :3]))


def test_zeros_of_either_sign_are_equal():
    """top_k alone puts -0.0 behind 0.0. A kernel's -0.0 depends on how a chip sums, so the step after it is called."""
    scores = jnp.array([[-0.0, 0.0, -1.0, 0.0, -0.0]])
    assert indexing.best(scores, 4)[1].tolist() == [[1, 3, 0, 4]]
    item = indexing.Item(seq=0, first_page=0, pages=1, first_row=0, end_row=1, shift=4)
    assert indexing.best(indexing.masked(scores, 0, item, 0), 4)[1].tolist() == [[0, 1, 3, 4]]


def test_wide_pages_and_bfloat16():
    bucket = Bucket("test-bf16", 128, "bfloat16", 20, 4, 3, 12, 200)
    batch = batch_of((300, 11), (150, 3), (290, 5), bucket=bucket)
    check("index_page_topk", batch, tiling={"query_block": 8, "pages_per_step": 1})


@both
def test_bad_calls_are_refused(surface):
    arrays = inputs(surface, batch_of((200, 5)))
    kernel = KERNELS[surface]
    with pytest.raises(ContractError, match="page size 24"):
        kernel(**arrays | {"index_cache": np.zeros((64, 24, 128), np.float32)}, index_topk=40)
    with pytest.raises(ContractError, match="needs index_topk"):
        kernel(**arrays, index_topk=None)
    with pytest.raises(ContractError, match="both float32 or both bfloat16"):
        kernel(**arrays | {"index_q": arrays["index_q"].astype(np.float16)}, index_topk=40)
    with pytest.raises(ContractError, match="pages_per_step is 4"):
        kernel(**arrays, index_topk=40, pages_per_step=4)
    with pytest.raises(ContractError, match="query_block is 0"):
        kernel(**arrays, index_topk=40, query_block=0)
