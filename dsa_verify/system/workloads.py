"""Random workloads for an engine, what it does with them, and what must hold whatever the model behind it."""

from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from dsa_verify.engine import Engine, EngineConfig, Finished, GenerationRequest, Report, Sampling, Token

MOST_STEPS = 1000
"""Many times what any workload here needs; whoever is not done then is stuck."""


class Wrong(AssertionError):
    """An engine, or the model that it runs, did what it must not; says what."""


@dataclass(frozen=True)
class Workload:
    """Requests, and the engine and pool that take them. `aborts`: a request by the step before which it is aborted."""

    config: EngineConfig
    page_size: int
    pool_pages: int
    requests: tuple[GenerationRequest, ...]
    aborts: dict[int, int]


@dataclass
class Played:
    """What an engine did with a workload: tokens as they were streamed and ends, by request.

    leaked: pages that are not free although no request is left and the prefix cache is empty.
    """

    report: Report
    streamed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, Finished] = field(default_factory=dict)
    leaked: int = 0


def toy_workload(seed: int, vocabulary: int = 64) -> Workload:
    """Requests with shared prefixes on a pool that is often too small for them, under random settings."""
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 2, 4]))
    stems = [rng.integers(0, vocabulary, 24).tolist() for _ in range(2)]

    def request() -> GenerationRequest:
        stem = stems[rng.integers(2)][: rng.integers(0, 25)]
        prompt = stem + rng.integers(0, vocabulary, rng.integers(0 if stem else 1, 8)).tolist()
        sampling = Sampling(float(rng.choice([0, 0.1, 1])), float(rng.choice([0.7, 1])), int(rng.integers(100)))
        stop = tuple(rng.integers(0, vocabulary, rng.integers(0, 4)).tolist())
        return GenerationRequest(tuple(prompt), int(rng.integers(1, 16)), sampling, stop, int(rng.integers(0, 20)))

    requests = tuple(request() for _ in range(rng.integers(3, 10)))
    longest = max(request.pages(page_size) for request in requests)
    config = EngineConfig(
        max_running=int(rng.integers(1, 6)),
        chunk_tokens=int(rng.integers(1, 20)),
        pages_per_seq=longest + int(rng.integers(0, 3)),
        mixed=bool(rng.random() < 0.7),
        prefix_cache=bool(rng.random() < 0.8),
        decode_seqs=(2,),
        extend_tokens=(8,),
        page_seed=seed,
    )
    aborts = {int(rng.integers(0, 25)): n for n in range(len(requests)) if rng.random() < 0.15}
    return Workload(config, page_size, 1 + longest + int(rng.integers(0, longest + 1)), requests, aborts)


def decoder_workload(seed: int, vocabulary: int = 24) -> Workload:
    """Arrivals, lengths, shared prefixes, chunks and aborts at random; a page has 16 tokens.

    The static shapes are always the same, so that a wiring is compiled once, and the pool is tiny: whoever grows evicts
    or preempts.
    """
    rng = np.random.default_rng([41, seed])
    stems = [tuple(rng.integers(0, vocabulary, 40).tolist()) for _ in range(2)]

    def request() -> GenerationRequest:
        stem = stems[rng.integers(2)][: int(rng.integers(17, 41))] if rng.random() < 0.6 else ()
        prompt = stem + tuple(rng.integers(0, vocabulary, int(rng.integers(1, 40))).tolist())
        stop = tuple(rng.integers(0, vocabulary, rng.integers(0, 2)).tolist())
        return GenerationRequest(prompt, int(rng.integers(1, 20)), stop=stop, arrival=int(rng.integers(0, 12)))

    requests = tuple(request() for _ in range(rng.integers(2, 8)))
    config = EngineConfig(
        max_running=4,
        chunk_tokens=int(rng.choice([7, 16, 33])),
        pages_per_seq=7,
        mixed=bool(rng.random() < 0.7),
        prefix_cache=bool(rng.random() < 0.9),
        decode_seqs=(4,),
        extend_tokens=(48,),
        page_seed=seed,
    )
    aborts = {int(rng.integers(1, 12)): int(rng.integers(len(requests)))} if rng.random() < 0.3 else {}
    return Workload(config, 16, 11, requests, aborts)


def small_workload(mixed: bool = True) -> Workload:
    """A prompt of more pages than any budget, one that joins it, and one that hits the first's prefix.

    Every mode in few steps, for kernels in interpret mode, where each takes long to compile; without `mixed` one less.
    Its 34 token slots are two blocks of 16 queries and a bit.
    """
    rng = np.random.default_rng(7)
    first, second = (tuple(rng.integers(0, 24, tokens).tolist()) for tokens in (50, 12))
    requests = (
        GenerationRequest(first, 5),
        GenerationRequest(second, 3, arrival=3),
        GenerationRequest(first[:32] + second, 2, arrival=5),
    )
    config = EngineConfig(
        max_running=2, chunk_tokens=31, pages_per_seq=4, mixed=mixed, decode_seqs=(2,), extend_tokens=(34,), page_seed=1
    )
    return Workload(config, 16, 9, requests, {})


def play(work: Workload, engine: Engine, checked: bool = True) -> Played:
    """A workload through an engine, whose pages are checked after every step.

    Raises `Wrong` for requests that are stuck, and what the engine and its guards raise.
    """
    for request in work.requests:
        engine.submit(request)
    played = Played(engine.report)
    while engine.busy:
        if engine.scheduler.clock > MOST_STEPS:
            raise Wrong("requests are stuck")
        if (number := work.aborts.get(engine.scheduler.clock)) is not None:
            engine.abort(number)
        for event in engine.step():
            if isinstance(event, Token):
                played.streamed[event.request].append(event.token)
            if isinstance(event, Finished):
                played.ends[event.request] = event
        if checked:
            engine.check()
    pool, cache = engine.scheduler.pool, engine.scheduler.cache
    cache.evict(pool.size)
    played.leaked, played.report = pool.size - pool.free, engine.report
    return played


def demand_streamed(work: Workload, played: Played) -> None:
    """Raises `Wrong` unless every request has ended with the tokens that it streamed."""
    for number in range(len(work.requests)):
        end = played.ends[number]
        if tuple(played.streamed[number]) != end.tokens:
            raise Wrong(f"request {number} streamed {played.streamed[number]} and ended with {end.tokens}")


def demand_whole_pool(played: Played) -> None:
    """Raises `Wrong` unless every page is free."""
    if played.leaked:
        raise Wrong(f"{played.leaked} pages leaked")
