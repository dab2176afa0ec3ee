"""The real decoder behind the engine: answers do not depend on company, chunks, prefix hits, preemption or kernels."""

import dataclasses

import numpy as np
import pytest

from dsa_verify.config import BackendConfig
from dsa_verify.engine import Engine, EngineConfig, Finished, GenerationRequest
from dsa_verify.model.config import parse_config
from tests.unit.random_models import DOCUMENTS, weights_of

PAGE_SIZE, VOCABULARY, WORKLOADS = 16, 24, 5
NEAR_TIE = 1e-3
"""Gap of two logits (of size about 3) below which float32 may order them either way; see tests/unit/test_model.py."""

EXACT = BackendConfig(kernels="jnp", granularity="token")
DENSE = BackendConfig(kernels="jnp", page_topk=64)
SPARSE = BackendConfig(kernels="jnp", prefill_sparse=True)
PATHS = {
    "exact tokens": (EXACT, {"sparse_mla_tokens"}),
    "dense prefill, all pages": (DENSE, {"dense_mla", "sparse_mla_decode"}),
}
"""Configurations whose mathematics does not know the mode of a step, and the attention that each must have taken."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """Requests, the engine that takes them, and how long before some are aborted (by number)."""

    requests: list[GenerationRequest]
    settings: EngineConfig
    pool: int
    aborts: dict[int, int]


def workload(seed: int) -> Workload:
    """Random arrivals, lengths, shared prefixes, chunks, pools and aborts."""
    rng = np.random.default_rng([41, seed])
    shared = [tuple(rng.integers(0, VOCABULARY, 40).tolist()) for _ in range(2)]
    requests = []
    for _ in range(int(rng.integers(2, 6))):
        own = tuple(rng.integers(0, VOCABULARY, int(rng.integers(1, 40))).tolist())
        prompt = shared[rng.integers(2)][: int(rng.integers(17, 40))] + own if rng.random() < 0.6 else own
        requests.append(GenerationRequest(prompt, int(rng.integers(1, 9)), arrival=int(rng.integers(0, 6))))
    settings = EngineConfig(
        max_running=int(rng.integers(2, 5)),
        chunk_tokens=int(rng.choice([7, 16, 33])),
        pages_per_seq=7,
        mixed=bool(rng.random() < 0.7),
        decode_seqs=(4,),
        extend_tokens=(40,),
        page_seed=seed,
    )
    aborts = {int(rng.integers(len(requests))): int(rng.integers(2, 8))} if rng.random() < 0.3 else {}
    return Workload(requests, settings, int(rng.integers(9, 20)), aborts)


def runner_of(backend: BackendConfig, pool: int, kind: str = "glm_moe_dsa"):
    from dsa_verify.model.decoder import load_params
    from dsa_verify.model.runner import ModelRunner

    config = parse_config(DOCUMENTS[kind], kind)
    return ModelRunner(config, load_params(config, weights_of(kind), np.float32), backend, PAGE_SIZE, pool)


def served(work: Workload, runner) -> dict[int, Finished]:
    """Finished requests by their number in the workload; invariants hold after every step."""
    engine = Engine(runner, work.settings)
    numbers = {engine.submit(request): at for at, request in enumerate(work.requests)}
    done, steps = {}, 0
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Finished):
                done[numbers[event.request]] = event
        engine.check()
        steps += 1
        for number, at in numbers.items():
            if work.aborts.get(at) == steps:
                engine.abort(number)
        assert steps < 400, "a request is stuck"
    return done


def differences(work: Workload, runner, alone) -> list[str]:
    """Requests that got other tokens than by themselves, near-ties excepted."""
    told = []
    for at, event in served(work, runner).items():
        request = work.requests[at]
        (due,) = Engine(alone, ALONE).generate([dataclasses.replace(request, arrival=0)])
        for place, (got, wanted) in enumerate(zip(event.tokens, due.tokens, strict=False)):
            if got != wanted:
                if due.gaps[place] > NEAR_TIE:
                    told.append(f"request {at}: token {place} is {got}, alone {wanted}, gap {due.gaps[place]}")
                break
        else:
            if event.reason != "abort" and len(event.tokens) != len(due.tokens):
                told.append(f"request {at}: {len(event.tokens)} tokens, alone {len(due.tokens)}")
    return told


ALONE = EngineConfig(max_running=1, chunk_tokens=96, pages_per_seq=7, prefix_cache=False, extend_tokens=(96,))


@pytest.mark.parametrize("name", PATHS)
def test_requests_get_the_tokens_that_they_get_alone(name):
    backend, attention = PATHS[name]
    alone, taken = runner_of(backend, 9), set()
    for seed in range(WORKLOADS):
        work = workload(seed)
        runner = runner_of(backend, work.pool)
        assert not differences(work, runner, alone), seed
        taken |= {path.attention for _, _, path in runner.paths}
    assert taken == attention


@pytest.mark.parametrize("change", [{"prefill_qblock": False}, {"indexer_kernel": False}], ids=["per query", "same"])
def test_how_a_sparse_prefill_runs_changes_no_token(change):
    """The same mathematics by another kernel."""
    work = dataclasses.replace(workload(3), aborts={})
    plain = served(work, runner_of(SPARSE, work.pool))
    other = served(work, runner_of(dataclasses.replace(SPARSE, **change), work.pool))
    assert {at: event.tokens for at, event in plain.items()} == {at: event.tokens for at, event in other.items()}


def test_one_page_of_budget_changes_tokens():
    """The comparison above has teeth."""
    work = dataclasses.replace(workload(3), aborts={})
    plain = served(work, runner_of(EXACT, work.pool))
    poor = served(work, runner_of(dataclasses.replace(SPARSE, page_topk=1), work.pool))
    assert {at: event.tokens for at, event in plain.items()} != {at: event.tokens for at, event in poor.items()}
