"""A toy model over a paged cache, and what each request must answer; it needs no JAX.

The toy stores what a step gives it where the step says, and its logits are a hash of the history that it reads back
through the page table. Slots that were never written hold garbage. Each stored row carries a digest of the history
that it saw when it was written, as rows of a real model do from the second layer on.
"""

from functools import lru_cache

import numpy as np

from dsa_verify.engine import Engine, GenerationRequest, Step
from dsa_verify.engine.sampling import pick
from dsa_verify.system.workloads import Played, Workload, Wrong, demand_streamed, demand_whole_pool, play

VOCAB = 64


def mix(value: np.ndarray) -> np.ndarray:
    """A bijective hash of 64 bits."""
    value = value.astype(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return value ^ (value >> np.uint64(31))


def row_of(tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """What is stored of tokens at positions."""
    return mix(mix(tokens) + positions.astype(np.uint64))


def logits_of(rows: np.ndarray, digests: np.ndarray) -> np.ndarray:
    """f32[VOCAB] after a history."""
    seed = np.sum(mix(rows ^ digests), dtype=np.uint64)
    return (mix(seed + np.arange(VOCAB, dtype=np.uint64)) >> np.uint64(40)).astype(np.float32) / np.float32(2**24)


class ToyRunner:
    """A `Runner` that answers with `logits_of` whatever its cache holds; it keeps the steps that it ran."""

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


def play_toy(work: Workload, runner: ToyRunner | None = None, checked: bool = True) -> Played:
    """A workload through an engine over the toy."""
    return play(work, Engine(runner or ToyRunner(work.page_size, work.pool_pages), work.config), checked)


def judge(work: Workload, played: Played) -> None:
    """Demands of every request the answer that it gets alone, of an aborted one a beginning of it; and a whole pool.

    Raises `Wrong`.
    """
    demand_streamed(work, played)
    for number, request in enumerate(work.requests):
        answer, end = expected(request), played.ends[number]
        if end.tokens != (answer[: len(end.tokens)] if end.reason == "abort" else answer):
            raise Wrong(f"request {number} answered {end.tokens}, alone {answer}")
        if end.reason != "abort" and (end.reason == "stop") != (answer[-1] in request.stop):
            raise Wrong(f"request {number} ended for {end.reason}")
    demand_whole_pool(played)
