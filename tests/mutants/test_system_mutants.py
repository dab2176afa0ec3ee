"""The system around the kernels, broken on purpose: each fault of backend, decoder and runner is noticed."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from dsa_verify.model.config import parse_config
from dsa_verify.mutants.source import Patch, with_patches
from tests.unit import test_backend, test_engine_model, test_model
from tests.unit.random_models import CHUNKS, DOCUMENTS


@dataclass(frozen=True)
class SystemMutant:
    """Source replaced in one module; `kind` as in `dsa_verify.mutants.kinds`; `noticed` runs what must notice."""

    kind: str
    module: str
    old: str
    new: str
    noticed: Callable[[], bool]


def backend_tests_fail(*names: str) -> Callable[[], bool]:
    """Whether any of the backend's own tests fails."""

    def fails() -> bool:
        from dsa_verify import backend

        with pytest.MonkeyPatch.context() as patch:
            for name in ("attend", "path_of", "Path", "Layer", "Inputs", "Caches", "Metadata", "Selection"):
                patch.setattr(test_backend, name, getattr(backend, name))
            return any(rejected(name) for name in names)

    return fails


def rejected(test: str) -> bool:
    calls = {
        "sparse": lambda: test_backend.test_sparse_prefill_attends_the_best_pages_of_every_query(
            "mixed-decode-and-chunk-p16-f32", True, False
        ),
        "packed": lambda: test_backend.test_sparse_prefill_attends_the_best_pages_of_every_query(
            "several-unequal-p16-f32", True, True
        ),
        "dense": lambda: test_backend.test_dense_prefill_attends_everything_and_still_writes_index_keys(
            "several-unequal-p16-f32"
        ),
        "budget": lambda: test_backend.test_decode_with_a_page_budget_attends_that_many_best_pages(
            "decode-page-edges-d16-bf16"
        ),
        "shared": lambda: test_backend.test_shared_layer_attends_what_the_last_full_layer_chose_and_hands_it_on(
            "several-unequal-p16-f32"
        ),
        "refusal": test_backend.test_shared_layer_refuses_to_run_before_a_full_one_has_chosen,
    }
    try:
        calls[test]()
    except (Exception, pytest.fail.Exception):  # whatever it is: without the mutant the same test passes
        return True
    return False


def leaves_transformers() -> bool:
    """Whether choices or logits of a random checkpoint are no longer those of transformers."""
    rows, layers = test_model.pinned("glm_moe_dsa")
    logits, chosen, _ = test_model.run("glm_moe_dsa", CHUNKS["decode"])
    config = parse_config(DOCUMENTS["glm_moe_dsa"], "here")
    off = max(
        np.abs(logits[at] - rows[at]).max() / test_model.budget(config, rows[at]) for at in set(logits) & set(rows)
    )
    return off > 1 or [list(chosen[layer].values()) for layer in sorted(chosen)] != layers


BACKEND, DECODER = "dsa_verify.backend", "dsa_verify.model.decoder"
MUTANTS = {
    "selection of the first full layer for all shared ones": SystemMutant(
        "19", DECODER, "selection = output.selection", "selection = selection or output.selection", leaves_transformers
    ),
    "shared layer chooses for itself": SystemMutant(
        "18", BACKEND, '    if path.selection != "shared":\n        selection = None\n',
        '    if path.selection == "shared":\n'
        "        selection = Selection(0 * selection.pages + jax.numpy.arange(selection.pages.shape[1]))\n",
        backend_tests_fail("shared"),
    ),
    "shared layer runs without a selection": SystemMutant(
        "19", BACKEND, "    if not own and not selected:\n", "    if False:\n", backend_tests_fail("refusal")
    ),
    "dense prefill writes no index keys": SystemMutant(
        "20", BACKEND, 'Path("dense_mla", "keys" if own else "none")', 'Path("dense_mla", "none")',
        backend_tests_fail("dense"),
    ),
    "mixed step taken for a decode": SystemMutant(
        "38", BACKEND, '    if mode == "decode":\n', '    if mode != "extend":\n', backend_tests_fail("sparse")
    ),
    "sparse prefill silently dense": SystemMutant(
        "39", BACKEND, "not (config.prefill_sparse or exact)", "not exact", backend_tests_fail("sparse")
    ),
    "page budget ignored": SystemMutant(
        "50", BACKEND, "by_pages = config.page_topk > 0", "by_pages = False", backend_tests_fail("budget")
    ),
    "packed table read at a fixed stride": SystemMutant(
        "25", BACKEND, "fixed_stride(metadata.page_table, metadata.cu_kv_lens, caches.cache_kv.shape[1])",
        "metadata.page_table.reshape(metadata.kv_lens.shape[0], -1)", backend_tests_fail("packed"),
    ),
    "rotary part of the keys not turned": SystemMutant(
        "01", DECODER, "for part in (pe, latent[:, None, rank:]))", "for part in (pe, pe[:, :1]))", leaves_transformers
    ),
    "softmax scale of the latent width": SystemMutant(
        "26", DECODER, "Layer(kind, config.index_topk, config.sm_scale)",
        "Layer(kind, config.index_topk, (config.kv_lora_rank + config.qk_rope_head_dim) ** -0.5)", leaves_transformers,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_broken_system_is_noticed(name):
    mutant = MUTANTS[name]
    patch = [Patch(mutant.module, mutant.old, mutant.new)]
    package = mutant.module.rpartition(".")[0] if mutant.module == DECODER else mutant.module
    assert not mutant.noticed(), "what must notice fails without the mutant"
    assert with_patches(package, patch, mutant.noticed)


def restored_without_keys(runner) -> None:
    """A prefix hit brings back latents but no index keys (kind 45): whoever starts behind the end of another's."""
    import jax.numpy as jnp

    run, end = runner.run, {}

    def broken(step):
        for seq in np.flatnonzero(step.kv_lens):
            table, history = step.page_table[seq], int(step.kv_lens[seq] - step.q_lens[seq])
            if history and end.get(int(table[0])) != history:
                gone = jnp.asarray(table[: history // step.page_size])
                runner.pools = tuple(
                    pool if pool.index_cache is None else pool._replace(index_cache=pool.index_cache.at[gone].set(0))
                    for pool in runner.pools
                )
            end[int(table[0])] = int(step.kv_lens[seq])
        return run(step)

    runner.run = broken


def table_of_the_step_before(runner) -> None:
    """The page table that the host has already overwritten for another step (kind 57)."""
    run, last = runner.run, []

    def broken(step):
        table = last[-1] if last and last[-1].shape == step.page_table.shape else step.page_table
        last.append(step.page_table)
        stale = object.__new__(type(step))
        vars(stale).update({**vars(step), "page_table": table})
        return run(stale)

    runner.run = broken


@pytest.mark.parametrize("spoil", [restored_without_keys, table_of_the_step_before])
def test_broken_runner_is_noticed(spoil):
    """Some workload with hits and company gives other tokens than the requests get alone."""
    alone = test_engine_model.runner_of(test_engine_model.EXACT, 9)
    for seed in range(test_engine_model.WORKLOADS):
        work = dataclasses.replace(test_engine_model.workload(seed), aborts={})
        runner = test_engine_model.runner_of(test_engine_model.EXACT, work.pool)
        spoil(runner)
        if test_engine_model.differences(work, runner, alone):
            return
    pytest.fail("no workload noticed")
