"""Random scenarios by seed, in the buckets of the table, and the simpler ones that a failing one is shrunk to."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from dsa_verify.batch.requests import DECODE_PADDING, PADDING, Request, page_count
from dsa_verify.batch.scenario import Bucket, Scenario
from dsa_verify.batch.values import Document, Signal, Ties

TIER = "soak"
_NAME = re.compile(r"soak:(\d+):(\d+)(?::([\d.,]*))?")

# Bounds of what is drawn. Lengths lie within the bucket's page table; half of them at the edge of a page.
_SHARING = 0.35
_NO_NEW_TOKENS = 0.12
_PADDING = 0.15
_LONGEST_TEXT = 4000
"""Words that the shipped document has at least."""
_SAME_BUCKET = 25
"""Scenarios in a row that share a bucket, so that a short soak compiles for few."""


def is_soak(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def soak_scenario(name: str, buckets: Mapping[str, Bucket]) -> Scenario:
    """The scenario that a name stands for: `soak:SEED:INDEX`, or with the requests of a smaller one behind it.

    Requests are `kv_len.q_len` or `kv_len.q_len.shares.shared_tokens`, between commas.
    Raises `KeyError` for any other name.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise KeyError(name)
    scenario = _drawn(int(found[1]), int(found[2]), buckets)
    if found[3] is None:
        return scenario
    requests = [Request(*map(int, item.split("."))) for item in found[3].split(",") if item]
    return _with(scenario, tuple(requests))


def smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios a step simpler than a soak scenario, the boldest steps first; each can be named and repeated."""
    requests = scenario.requests
    for at in range(len(requests)):
        yield from _valid(scenario, _without(requests, at))
    for at, request in enumerate(requests):
        for other in _simpler(request, scenario.bucket.page_size):
            yield from _valid(scenario, (*requests[:at], other, *requests[at + 1 :]))


def _simpler(request: Request, page_size: int) -> Iterator[Request]:
    """The request without its prefix hit, with a shorter history, with fewer new tokens."""
    if request.shares is not None:
        yield replace(request, shares=None, shared_tokens=0)
    for history in dict.fromkeys((request.history // 2, request.history - page_size, request.history - 1)):
        if 0 <= history < request.history:
            yield replace(request, kv_len=history + request.q_len)
    for q_len in dict.fromkeys((1, request.q_len // 2, request.q_len - 1)):
        if 0 < q_len < request.q_len and request.kv_len:
            yield replace(request, kv_len=request.history + q_len, q_len=q_len)


def _without(requests: tuple[Request, ...], at: int) -> tuple[Request, ...]:
    """The requests without one; who shared its prefix shares nothing."""
    kept = []
    for request in (*requests[:at], *requests[at + 1 :]):
        if request.shares == at:
            request = replace(request, shares=None, shared_tokens=0)
        elif request.shares is not None and request.shares > at:
            request = replace(request, shares=request.shares - 1)
        kept.append(request)
    return tuple(kept)


def _valid(scenario: Scenario, requests: tuple[Request, ...]) -> Iterator[Scenario]:
    """The scenario with other requests, if a shared prefix still lies within both histories and the pool holds all."""
    for request in requests:
        if request.shares is not None:
            limit = min(requests[request.shares].history, request.history)
            if request.shared_tokens > limit:
                return
    if sum(page_count(r.kv_len, scenario.bucket.page_size) for r in requests) < scenario.bucket.pool_pages:
        yield _with(scenario, requests)


def _with(scenario: Scenario, requests: tuple[Request, ...]) -> Scenario:
    _, seed, index = scenario.name.split(":")[:3]
    return replace(scenario, name=f"soak:{seed}:{index}:{','.join(map(_spelled, requests))}", requests=requests)


def _spelled(request: Request) -> str:
    parts = [request.kv_len, request.q_len]
    if request.shares is not None:
        parts += [request.shares, request.shared_tokens]
    return ".".join(map(str, parts))


def bucket_of(seed: int, index: int, buckets: Mapping[str, Bucket]) -> Bucket:
    """The bucket of `soak:SEED:INDEX`."""
    order = np.random.default_rng([seed, 0]).permutation(len(buckets))
    return list(buckets.values())[order[index // _SAME_BUCKET % len(buckets)]]


def _drawn(seed: int, index: int, buckets: Mapping[str, Bucket]) -> Scenario:
    bucket = bucket_of(seed, index, buckets)
    rng = np.random.default_rng([seed, 1, index])
    decode = bucket.tokens == bucket.seqs
    text = bucket.pages_per_seq * bucket.page_size <= _LONGEST_TEXT
    values = (Signal(), Document() if text else Signal(), Ties(plateau=False), Ties(plateau=True))[rng.integers(4)]
    return Scenario(
        name=f"soak:{seed}:{index}",
        family=TIER,
        discriminates="what nobody thought of",
        requests=_requests(bucket, rng, decode),
        bucket=bucket,
        values=values,
        table=str(rng.choice(["shuffled", "reversed", "high"])),
        selection=str(rng.choice(["structured", "structured", "partial", "indexer"])),
        seed=int(rng.integers(2**31)),
        tier=TIER,
    )


def _requests(bucket: Bucket, rng: np.random.Generator, decode: bool) -> tuple[Request, ...]:
    """Requests that fit the bucket's sequences, tokens and pages, in random order with padding among them."""
    made: list[Request] = []
    tokens, pages = bucket.tokens, bucket.pool_pages - 1
    for _ in range(int(rng.integers(0 if rng.random() < 0.05 else 1, bucket.seqs + 1))):
        if rng.random() < _PADDING:
            made.append(DECODE_PADDING if decode else PADDING)
            continue
        q_len = 1 if decode else int(rng.integers(1, tokens + 1)) if tokens else 0
        if not decode and rng.random() < _NO_NEW_TOKENS:
            q_len = 0
        longest = min(bucket.pages_per_seq, pages) * bucket.page_size
        if longest < max(q_len, 1):
            break
        request = Request(_length(rng, max(q_len, 1), longest, bucket.page_size), q_len)
        made.append(_sharing(request, made, rng))
        tokens -= q_len
        pages -= page_count(request.kv_len, bucket.page_size)
    return tuple(made)


def _length(rng: np.random.Generator, least: int, most: int, page: int) -> int:
    """A length from `least` to `most`; half of them at a whole number of pages or one beside."""
    length = int(rng.integers(least, most + 1))
    if rng.random() < 0.5:
        length = round(length / page) * page + int(rng.integers(-1, 2))
    return int(np.clip(length, least, most))


def _sharing(request: Request, earlier: list[Request], rng: np.random.Generator) -> Request:
    """The request, or a prefix hit on an earlier one: of any length, or the most that is possible."""
    sources = [at for at, other in enumerate(earlier) if min(other.history, request.history) > 0]
    if not sources or rng.random() >= _SHARING:
        return request
    source = int(rng.choice(sources))
    most = min(earlier[source].history, request.history)
    shared = most if rng.random() < 0.5 else int(rng.integers(1, most + 1))
    return replace(request, shares=source, shared_tokens=shared)
