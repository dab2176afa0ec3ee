"""A toy model over a paged cache, random workloads for an engine over it, and what each request must answer.

The toy stores what a step gives it where the step says, and its logits are a hash of the history that it reads back
through the page table. Slots that were never written hold garbage. Each stored row carries a digest of the history
that it saw when it was written, as rows of a real model do from the second layer on.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from dsa_verify.engine import Engine, EngineConfig, Finished, GenerationRequest, Report, Sampling, Step, Token
from dsa_verify.engine.sampling import pick

VOCAB = 64


def mix(value: np.ndarray) -> np.ndarray:
    """A bijective hash of 64 bits."""
    value = value.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))


def row_of(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    return mix(mix(tokens) + positions.astype(np.uint64))


def logits_of(rows: np.ndarray, digests: np.ndarray) -> np.ndarray:
    seed = np.sum(mix(rows ^ digests), dtype=np.uint64)
    return (mix(seed + np.arange(VOCAB, dtype=np.uint64)) >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


class ToyRunner:
    """A `Runner` that answers with `logits_of` whatever its cache holds."""

    vocab_size = VOCAB

    def __init__(self, page_size: int, pool_pages: int) -> None:
        self.page_size, self.pool_pages = page_size, pool_pages
        garbage = np.random.default_rng(pool_pages).integers(0, 2**62, (2, page_size * pool_pages), np.uint64)
        self.rows, self.digests = garbage
        self.steps: list[Step] = []

    def run(self, step: Step) -> np.ndarray:
        self.steps.append(step)
        logits = np.full((step.seqs, VOCAB), np.nan, np.float32)
        self.write(step)
        for seq in np.flatnonzero(step.kv_lens):
            kv_len = int(step.kv_lens[seq])
            history = np.arange(kv_len)
            slots = step.page_table[seq][history // self.page_size] * self.page_size + history % self.page_size
            new = slots[kv_len - int(step.q_lens[seq]) :]
            self.digests[new] = mix(np.cumsum(self.rows[slots], dtype=np.uint64))[kv_len - len(new) :]
            logits[seq] = logits_of(self.rows[slots], self.digests[slots])
        return logits

    def write(self, step: Step) -> None:
        real = step.out_cache_loc >= 0
        self.rows[step.out_cache_loc[real]] = row_of(step.tokens[real], step.positions[real])


@lru_cache(4096)
def expected(request: GenerationRequest) -> tuple[int, ...]:
    """The answer to a request that is alone in the world: no pages, no chunks, no cache."""
    tokens = list(request.prompt)
    while True:
        rows = row_of(np.array(tokens), np.arange(len(tokens)))
        token = pick(logits_of(rows, mix(np.cumsum(rows, dtype=np.uint64))), request.sampling, len(tokens)).token
        tokens.append(token)
        answer = tuple(tokens[len(request.prompt) :])
        if token in request.stop or len(answer) == request.max_new_tokens:
            return answer


@dataclass(frozen=True)
class Workload:
    config: EngineConfig
    page_size: int
    pool_pages: int
    requests: tuple[GenerationRequest, ...]
    aborts: dict[int, int]
    """Request by the step before which it is aborted."""


def workload(seed: int) -> Workload:
    """Requests with shared prefixes on a pool that is often too small for them, under random settings."""
    rng = np.random.default_rng(seed)
    page_size = int(rng.choice([1, 2, 4]))
    stems = [rng.integers(0, VOCAB, 24).tolist() for _ in range(2)]

    def request() -> GenerationRequest:
        stem = stems[rng.integers(2)][: rng.integers(0, 25)]
        prompt = stem + rng.integers(0, VOCAB, rng.integers(0 if stem else 1, 8)).tolist()
        sampling = Sampling(float(rng.choice([0, 0.1, 1])), float(rng.choice([0.7, 1])), int(rng.integers(100)))
        stop = tuple(rng.integers(0, VOCAB, rng.integers(0, 4)).tolist())
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


@dataclass
class Played:
    report: Report
    streamed: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    ends: dict[int, Finished] = field(default_factory=dict)
    leaked: int = 0
    """Pages that are not free although no request is left and the prefix cache is empty."""


class Wrong(AssertionError):
    """An engine did what it must not."""


def play(work: Workload, runner: ToyRunner | None = None, checked: bool = True) -> Played:
    """A workload through an engine that is checked after every step."""
    engine = Engine(runner or ToyRunner(work.page_size, work.pool_pages), work.config)
    for request in work.requests:
        engine.submit(request)
    played = Played(engine.report)
    while engine.busy:
        if engine.scheduler.clock > 1000:
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


def judge(work: Workload, played: Played) -> None:
    """Demands of every request the answer that it gets alone, of an aborted one a beginning of it; and a whole pool."""
    for number, request in enumerate(work.requests):
        answer, end = expected(request), played.ends[number]
        if tuple(played.streamed[number]) != end.tokens:
            raise Wrong(f"request {number} streamed {played.streamed[number]} and ended with {end.tokens}")
        if end.tokens != (answer[: len(end.tokens)] if end.reason == "abort" else answer):
            raise Wrong(f"request {number} answered {end.tokens}, alone {answer}")
        if end.reason != "abort" and (end.reason == "stop") != (answer[-1] in request.stop):
            raise Wrong(f"request {number} ended for {end.reason}")
    if played.leaked:
        raise Wrong(f"{played.leaked} pages leaked")
