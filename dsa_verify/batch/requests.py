"""Requests: what each sequence of a step holds and adds, and the allocation of physical pages to them."""

from dataclasses import dataclass
from itertools import islice

import numpy as np

from dsa_verify.errors import BatchError

RESERVED_PAGE = 0
"""Never handed out: padding is dumped here. The LAST page of the pool is an ordinary one."""


@dataclass(frozen=True)
class Request:
    """One sequence of a step.

    `kv_len` counts the tokens in its cache including the `q_len` new ones of this step. A padding
    sequence has `kv_len == 0` (and `q_len` 1 in a decode batch, where every slot carries a token).
    `shares` names an earlier request of the step whose first `shared_tokens` tokens this one repeats:
    a prefix hit. Pages wholly inside them are the same physical pages; the rest is a private copy.
    """

    kv_len: int
    q_len: int
    shares: int | None = None
    shared_tokens: int = 0

    @property
    def is_padding(self) -> bool:
        return self.kv_len == 0

    @property
    def history(self) -> int:
        """Tokens that were in the cache before this step."""
        return max(self.kv_len - self.q_len, 0)


PADDING = Request(0, 0)
DECODE_PADDING = Request(0, 1)


def page_count(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def page_order(pool_pages: int, style: str, rng: np.random.Generator) -> np.ndarray:
    """Physical pages in the order in which the allocator hands them out; page 0 is not among them.

    `shuffled` is any order; `reversed` descends; `high` starts with the last page of the pool and stays
    near it, so that the highest page ids are in use.
    """
    pages = np.arange(1, pool_pages)
    if style == "shuffled":
        return rng.permutation(pages)
    if style == "reversed":
        return pages[::-1]
    if style == "high":
        top = pages[-(len(pages) // 2) :]
        return np.concatenate([top[-1:], rng.permutation(top[:-1]), pages[: -len(top)]])
    raise BatchError(f"unknown page table style {style!r}; expected shuffled, reversed or high")


def allocate(requests: tuple[Request, ...], page_size: int, order: np.ndarray) -> list[np.ndarray]:
    """Pages of each request, in the sequence's own order.

    Raises `BatchError` when the pool is too small or a shared prefix is longer than its source.
    """
    free = iter(order.tolist())
    mapped: list[np.ndarray] = []
    for index, request in enumerate(requests):
        shared: list[int] = []
        if request.shares is not None:
            shared = _shared_pages(index, request, requests, page_size, mapped)
        wanted = page_count(request.kv_len, page_size) - len(shared)
        own = list(islice(free, wanted))
        if len(own) < wanted:
            raise BatchError(
                f"the pool ran out of pages at request {index}: it needs {wanted}, {len(own)} are left "
                f"of {len(order)} (page {RESERVED_PAGE} is reserved); enlarge pool_pages"
            )
        mapped.append(np.array(shared + own, np.int32))
    return mapped


def _shared_pages(index, request, requests, page_size, mapped) -> list[int]:
    if not 0 <= request.shares < index:
        raise BatchError(f"request {index} shares with {request.shares}; expected an earlier request")
    source = requests[request.shares]
    limit = min(source.history, request.history)
    if request.shared_tokens > limit:
        raise BatchError(
            f"request {index} shares {request.shared_tokens} tokens with request {request.shares}, but only "
            f"{limit} of them are in both histories; new tokens of this step cannot be shared"
        )
    return mapped[request.shares][: request.shared_tokens // page_size].tolist()
