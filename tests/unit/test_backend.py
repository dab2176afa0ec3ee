"""The backend takes the path that its configuration says, and on every path gives what the oracle says of it."""

import dataclasses
import itertools
from contextlib import nullcontext

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch.batch import Batch
from dsa_verify.batch.requests import page_count
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.contract import Promise
from dsa_verify.errors import ConfigError, ContractError
from dsa_verify.evidence import Evidence, Run
from dsa_verify.model.backend import Caches, Inputs, Layer, LayerPath, Metadata, Selection, attend, path_of
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.runtime import interpreted

EXTENDS = ("several-unequal-p16-f32", "mixed-decode-and-chunk-p16-f32", "padding-sequences-between-p16-f32")
DECODES = ("decode-page-edges-d16-bf16", "padding-decode-between-d16-bf16")
JNP = BackendConfig(kernels="jnp")
SPARSE = dataclasses.replace(JNP, prefill_sparse=True)
FULL, SHARED = "full", "shared"


def layer_of(batch: Batch, kind: str = FULL, indexer: bool = True) -> Layer:
    return Layer(kind, batch.index_topk, batch.sm_scale, indexer)  # pyright: ignore[reportArgumentType]


def operands(batch: Batch, indexer: bool = True, packed: bool = False) -> tuple[Inputs, Caches, Metadata]:
    """A batch as the backend takes it: index keys of new tokens beside a pool that does not hold them yet."""
    keys = batch.index_cache.reshape(-1, batch.index_cache.shape[-1])[np.maximum(batch.out_cache_loc, 0)]
    index = (batch.index_q, keys, batch.index_weights) if indexer else (None, None, None)
    inputs = Inputs(batch.ql_nope, batch.q_pe, batch.new_c_kv, batch.new_k_pe, *index)
    pool = batch.operand("index_cache", writes=True) if indexer else None
    table, cu_kv_lens = batch.page_table, None
    if packed:
        table, cu_kv_lens = packed_table(batch)
    places = (batch.positions, batch.out_cache_loc, cu_kv_lens)
    return inputs, Caches(batch.cache_kv, pool), Metadata(batch.kv_lens, batch.cu_q_lens, table, *places)


def packed_table(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """One sequence's pages right behind the other's, and where each begins, in tokens."""
    pages = [page_count(int(n), batch.page_size) for n in batch.kv_lens]
    flat = np.full(batch.page_table.size, batch.cache_kv.shape[0] + 9, np.int32)
    used = np.concatenate([row[:n] for row, n in zip(batch.page_table, pages, strict=True)])
    flat[: len(used)] = used
    return flat, (np.cumsum([0, *pages]) * batch.page_size).astype(np.int32)


def run(batch: Batch, config: BackendConfig, layer: Layer, selection=None, packed: bool = False):
    import jax

    inputs, caches, metadata = operands(batch, layer.kind == FULL and layer.indexer, packed)
    path = path_of(layer, batch.mode, config, selected=selection is not None)
    jitted = jax.jit(attend, static_argnums=(0, 1, 2))
    return jitted(layer, path, config, inputs, caches, metadata, selection)


def judged(batch: Batch, surface: str, out, topk_pages: np.ndarray | None = None) -> dict[str, str]:
    """Verdicts about an output of the backend as the answer of the surface that it should have run."""
    if topk_pages is not None:
        width = batch.topk_pages.shape[1]
        batch = wider(batch, max(width, topk_pages.shape[1]))
        padded = np.pad(topk_pages, ((0, 0), (0, batch.k_pages - topk_pages.shape[1])), constant_values=-1)
        batch = batch.replace(topk_pages=padded)
    given = {"out": np.asarray(out.out), "cache_kv": np.asarray(out.caches.cache_kv)}
    promise = Promise(probability_dtype="float32")
    evidence = Evidence(batch, oracle.expected(surface, batch), {"base": Run(given)}, promise)
    return {name: CHECKS[name].judge(evidence).status for name in ("parity", "cache")}


def wider(batch: Batch, pages: int) -> Batch:
    """The batch with a budget of so many pages, so that it can hold any selection."""
    fill = np.full((batch.tokens, pages), -1, np.int32)
    return batch.replace(index_topk=pages * batch.page_size, topk_pages=fill)


def best_pages(batch: Batch, budget: int) -> np.ndarray:
    return oracle.selection(wider(batch, budget), pages=True).best


def same_sets(a, b) -> bool:
    return all({*x} == {*y} for x, y in zip(np.asarray(a).tolist(), np.asarray(b).tolist(), strict=True))


def written(batch: Batch, out) -> bool:
    """Whether the index cache holds the keys of the new tokens, and is untouched elsewhere."""
    due = batch.operand("index_cache", writes=True).copy().reshape(-1, batch.index_cache.shape[-1])
    slots = batch.out_cache_loc[batch.real]
    due[slots] = batch.index_cache.reshape(due.shape)[slots]
    return np.asarray(out.caches.index_cache).tobytes() == due.tobytes()


ACCEPTED = {"parity": "accepted", "cache": "accepted"}


@pytest.mark.parametrize("packed", [False, True], ids=["fixed stride", "packed"])
@pytest.mark.parametrize("name", EXTENDS)
@pytest.mark.parametrize("qblock", [False, True])
def test_sparse_prefill_attends_the_best_pages_of_every_query(name, qblock, packed):
    batch = SCENARIOS[name].build()
    config = dataclasses.replace(SPARSE, prefill_qblock=qblock)
    out = run(batch, config, layer_of(batch), packed=packed)
    due = best_pages(batch, batch.k_pages)
    assert same_sets(out.selection.pages, due)
    surface = path_of(layer_of(batch), batch.mode, config, False).attention
    assert surface == ("sparse_mla_prefill_qblock" if qblock else "sparse_mla_prefill")
    assert judged(batch, surface, out, due) == ACCEPTED
    assert written(batch, out)


@pytest.mark.parametrize("name", EXTENDS)
def test_dense_prefill_attends_everything_and_still_writes_index_keys(name):
    batch = SCENARIOS[name].build()
    out = run(batch, JNP, layer_of(batch))
    assert judged(batch, "dense_mla", out) == ACCEPTED
    assert written(batch, out) and out.selection is None


@pytest.mark.parametrize("kernel", [False, True])
@pytest.mark.parametrize("name", DECODES)
def test_decode_attends_the_pages_of_its_token_top_k(name, kernel):
    batch = SCENARIOS[name].build()
    config = dataclasses.replace(JNP, indexer_kernel=kernel)
    with interpreted() if kernel else nullcontext():
        out = run(batch, config, layer_of(batch))
    assert same_sets(out.selection.tokens, oracle.selection(batch).best)
    due = [sorted({int(t) // batch.page_size for t in row if t >= 0}) for row in oracle.selection(batch).best]
    assert [[p for p in row if p >= 0] for row in np.asarray(out.selection.pages).tolist()] == due
    pages = np.array(list(itertools.zip_longest(*due, fillvalue=-1)), np.int32).T
    assert judged(batch, "sparse_mla_decode", out, pages) == ACCEPTED
    assert written(batch, out)


@pytest.mark.parametrize("name", DECODES)
def test_decode_with_a_page_budget_attends_that_many_best_pages(name):
    batch = SCENARIOS[name].build()
    config = dataclasses.replace(JNP, page_topk=3, indexer_kernel=True)
    assert path_of(layer_of(batch), "decode", config, False).indexer == "jnp"  # the budget goes before the kernel
    out = run(batch, config, layer_of(batch))
    due = best_pages(batch, 3)
    assert same_sets(out.selection.pages, due) and out.selection.tokens is None
    assert judged(batch, "sparse_mla_decode", out, due) == ACCEPTED


@pytest.mark.parametrize("name", ["several-unequal-p16-f32", "decode-page-edges-d16-bf16"])
def test_full_layer_without_indexer_is_dense_in_every_mode(name):
    batch = SCENARIOS[name].build()
    out = run(batch, SPARSE, layer_of(batch, indexer=False))
    assert judged(batch, "dense_mla", out) == ACCEPTED
    assert out.selection is None and out.caches.index_cache is None


@pytest.mark.parametrize("name", ["several-unequal-p16-f32", "decode-page-edges-d16-bf16"])
def test_shared_layer_attends_what_the_last_full_layer_chose_and_hands_it_on(name):
    batch = SCENARIOS[name].build()
    chosen = Selection(batch.topk_pages)  # another layer's: not what this batch's own index scores would choose
    assert not same_sets(chosen.pages, best_pages(batch, batch.k_pages))
    out = run(batch, SPARSE, layer_of(batch, SHARED), chosen)
    surface = path_of(layer_of(batch, SHARED), batch.mode, SPARSE, True).attention
    assert judged(batch, surface, out) == ACCEPTED
    assert np.array_equal(out.selection.pages, chosen.pages)


def test_shared_layer_refuses_to_run_before_a_full_one_has_chosen():
    layer = Layer("shared", 64, 0.1)
    for mode, config in (("decode", JNP), ("extend", SPARSE), ("mixed", SPARSE)):
        with pytest.raises(ContractError, match="reuses the selection of the full layer"):
            path_of(layer, mode, config, selected=False)
    batch = SCENARIOS[EXTENDS[0]].build()
    inputs, caches, metadata = operands(batch, indexer=False)
    path = path_of(layer, "extend", SPARSE, selected=True)
    with pytest.raises(ContractError, match="reuses the selection of the full layer"):
        attend(layer, path, SPARSE, inputs, caches, metadata)
    assert path_of(layer, "extend", JNP, selected=False) == LayerPath("dense_mla", "none")


def test_prompt_within_the_budget_is_dense():
    batch = SCENARIOS["budget-covers-history-p16-f32"].build()
    out = run(batch, SPARSE, layer_of(batch))
    assert judged(batch, "dense_mla", out) == ACCEPTED


@pytest.mark.parametrize("config", [SPARSE, dataclasses.replace(SPARSE, prefill_qblock=False)])
def test_pallas_kernels_run_on_the_same_paths(config):
    config = dataclasses.replace(config, kernels="pallas", indexer_kernel_prefill=True)
    batch = SCENARIOS["several-unequal-p16-f32"].build()
    with interpreted() as watched:
        out = run(batch, config, layer_of(batch))
    surface = path_of(layer_of(batch), batch.mode, config, False).attention
    assert judged(batch, surface, out, best_pages(batch, batch.k_pages)) == ACCEPTED
    assert written(batch, out) and not watched.findings


def test_configuration_is_read_from_the_variables_of_the_engine():
    read = BackendConfig.from_environment
    assert read({}) == BackendConfig()
    asked = {"DSA_PAGE_TOPK": "32", "DSA_INDEXER_KERNEL": "1", "DSA_INDEXER_KERNEL_PREFILL": "1",
             "DSA_PREFILL_SPARSE": "1", "DSA_PREFILL_QBLOCK": "0", "DSA_PREFILL_QBLOCK_QB": "64"}  # fmt: skip
    assert read(asked) == BackendConfig(32, True, True, True, False, 64)
    with pytest.raises(ConfigError, match="DSA_PAGE_TOPK is 'many', expected a number"):
        read({"DSA_PAGE_TOPK": "many"})


def test_union_that_would_be_cut_is_refused():
    batch = SCENARIOS["decode-page-edges-d16-bf16"].build()
    wide = batch.replace(page_table=np.pad(batch.page_table, ((0, 0), (0, 600))))
    layer = dataclasses.replace(layer_of(batch), index_topk=2048)
    with pytest.raises(ContractError, match="may lie in 614 pages"):
        run(wide, JNP, layer)


def test_packed_table_without_its_offsets_is_refused():
    batch = SCENARIOS["several-unequal-p16-f32"].build()
    inputs, caches, metadata = operands(batch, packed=True)
    path = path_of(layer_of(batch), "extend", SPARSE, selected=False)
    with pytest.raises(ContractError, match="needs cu_kv_lens"):
        attend(layer_of(batch), path, SPARSE, inputs, caches, metadata._replace(cu_kv_lens=None))


def test_judging_here_has_teeth():
    """A selection that is not the one attended is rejected."""
    batch = SCENARIOS["several-unequal-p16-f32"].build()
    out = run(batch, SPARSE, layer_of(batch))
    assert judged(batch, "dense_mla", out)["parity"] == "rejected"
    assert judged(batch, "sparse_mla_prefill", out)["parity"] == "rejected"  # the batch's own topk_pages
