"""The scenario table: every family of batch shapes that serving makes, crossed with page sizes and dtypes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from dsa_verify.batch.requests import DECODE_PADDING, PADDING, Request, page_count
from dsa_verify.batch.scenario import Bucket, Scenario, Values
from dsa_verify.batch.soak import is_soak, soak_scenario
from dsa_verify.batch.values import Document, Signal, Ties

# Static shapes, few on purpose: every scenario is padded to one of these, as an engine pads its steps.
# index_topk is not a multiple of the page in half of them, so that ceil() is exercised; half of them rotate the
# indexer's heads as GLM does, half as DeepSeek.
_EXTEND = [
    Bucket("p16-f32", 16, "float32", 16, 5, 14, 64, 64),
    Bucket("p64-bf16", 64, "bfloat16", 16, 5, 10, 48, 180, "mini-half-split"),
    Bucket("p128-bf16", 128, "bfloat16", 16, 5, 7, 30, 256),
    Bucket("p16-bf16", 16, "bfloat16", 16, 5, 14, 64, 60, "mini-half-split"),
    Bucket("p64-f32", 64, "float32", 16, 5, 10, 48, 192),
    Bucket("p128-f32", 128, "float32", 16, 5, 7, 30, 250, "mini-half-split"),
]
_DECODE = [
    Bucket("d16-bf16", 16, "bfloat16", 8, 8, 14, 96, 60),
    Bucket("d64-f32", 64, "float32", 8, 8, 10, 72, 192, "mini-half-split"),
    Bucket("d128-bf16", 128, "bfloat16", 8, 8, 7, 56, 250, "mini-half-split"),
    Bucket("d16-f32", 16, "float32", 8, 8, 14, 96, 64, "mini-half-split"),
    Bucket("d64-bf16", 64, "bfloat16", 8, 8, 10, 72, 180),
    Bucket("d128-f32", 128, "float32", 8, 8, 7, 56, 256),
]
_LONG = Bucket("long-p128-bf16", 128, "bfloat16", 8, 4, 72, 144, 512)
_WIDE = Bucket("wide-p16-f32", 16, "float32", 42, 12, 14, 96, 64)  # six query blocks of 8, and not six of 7
_PROMPT = Bucket("prompt-p16-f32", 16, "float32", 58, 2, 5, 20, 32)
_LONG_PROMPT = Bucket("long-prompt-p16-f32", 16, "float32", 152, 2, 12, 32, 64)
_NARROW = Bucket("narrow-p64-bf16", 64, "bfloat16", 16, 5, 3, 24, 2048, "mini-half-split")
BUCKETS = {bucket.name: bucket for bucket in (*_EXTEND, *_DECODE, _LONG, _WIDE, _PROMPT, _LONG_PROMPT, _NARROW)}


@dataclass(frozen=True)
class _Sizes:
    """The lengths that matter in a bucket, so that one recipe fits every page size."""

    page: int
    budget: int  # index_topk, tokens
    deep: int  # tokens of the shortest history with more than twice the budget's pages

    @classmethod
    def of(cls, bucket: Bucket) -> "_Sizes":
        k_pages = page_count(bucket.index_topk, bucket.page_size)
        return cls(bucket.page_size, bucket.index_topk, (2 * k_pages + 1) * bucket.page_size)


@dataclass(frozen=True)
class _Recipe:
    name: str
    family: str
    discriminates: str
    requests: Callable[[_Sizes], tuple[Request, ...]]
    quick: tuple[str, ...]
    decode: bool = False
    values: Values = field(default_factory=Signal)
    table: str = "shuffled"
    selection: str = "structured"


def _seqs(*lens: tuple[int, int]) -> tuple[Request, ...]:
    return tuple(Request(kv_len, q_len) for kv_len, q_len in lens)


_RECIPES = [
    _Recipe(
        "single-extend",
        "single",
        "one request over a long history: the selection itself, and several KV steps a query",
        lambda s: _seqs((s.deep + s.page // 2 + 3, 14)),
        ("p16-f32", "p64-bf16", "p128-bf16"),
    ),
    _Recipe(
        "single-prefill",
        "single",
        "a prompt with no history, shorter than the budget: selection is the whole prefix",
        lambda s: _seqs((15, 15)),
        ("p16-f32",),
    ),
    _Recipe(
        "several-unequal",
        "several",
        "requests of unequal length: a page table read with the wrong base or stride",
        lambda s: _seqs((s.deep + 9, 4), (2 * s.page - 3, 3), (s.deep + s.page + 3, 6), (s.page + 1, 2)),
        ("p16-f32", "p64-bf16", "p128-bf16"),
    ),
    _Recipe(
        "several-zero-length",
        "several",
        "sequences without new tokens among others: a prologue that waits for work that never comes",
        lambda s: _seqs((s.page + 5, 0), (s.deep + 1, 7), (s.deep, 0), (3, 3), (s.deep + 2, 5)),
        ("p16-f32",),
    ),
    _Recipe(
        "prefix-aligned",
        "prefix",
        "two requests map the same physical prefix pages, a whole number of them",
        lambda s: (Request(s.deep + 8, 7), Request(s.deep + s.page + 2, 8, shares=0, shared_tokens=s.deep - s.page)),
        ("p16-f32", "p64-bf16"),
    ),
    _Recipe(
        "prefix-unaligned",
        "prefix",
        "a prefix hit that ends inside a page: its tail is a private copy, positions start mid-page",
        lambda s: (Request(s.deep + 5, 6), Request(s.deep + 3, 10, shares=0, shared_tokens=s.deep - 7)),
        ("p16-f32", "p128-bf16"),
    ),
    _Recipe(
        "prefix-three-sharers",
        "prefix",
        "three requests over one prefix: a write of one that reaches the others",
        lambda s: (
            Request(s.deep + 4, 4),
            Request(s.deep + 5, 5, shares=0, shared_tokens=s.deep),
            Request(s.deep + s.page - 1, 7, shares=0, shared_tokens=s.deep - s.page),
        ),
        ("p64-bf16",),
    ),
    _Recipe(
        "prefix-full-hit",
        "prefix",
        "everything but one new token is in the cache: one query, all history",
        lambda s: (Request(s.deep + 12, 12), Request(s.deep + 1, 1, shares=0, shared_tokens=s.deep)),
        ("p16-f32",),
    ),
    _Recipe(
        "chunk-on-page",
        "chunked",
        "a chunk that starts and ends on a page boundary",
        lambda s: _seqs((s.deep + s.page, 16)),
        ("p16-f32",),
    ),
    _Recipe(
        "chunk-off-page",
        "chunked",
        "a chunk that starts and ends inside pages and straddles a boundary",
        lambda s: _seqs((s.deep + 5, 13)),
        ("p16-f32", "p64-bf16"),
    ),
    _Recipe(
        "chunk-one-token",
        "chunked",
        "a last chunk of a single token beside a long one",
        lambda s: _seqs((s.deep + 1, 1), (s.deep + 15, 14)),
        ("p128-bf16",),
    ),
    _Recipe(
        "chunk-longer-than-history",
        "chunked",
        "a chunk longer than what is cached: scoring that stops at the chunk or at the history",
        lambda s: _seqs((14, 11), (s.deep + 3, 5)),
        ("p16-f32",),
    ),
    _Recipe(
        "decode-one",
        "decode",
        "one running request in a padded decode batch",
        lambda s: (Request(s.deep + 5, 1), *(DECODE_PADDING,) * 7),
        ("d16-bf16",),
        decode=True,
    ),
    _Recipe(
        "decode-page-edges",
        "decode",
        "lengths one below, at and one above page edges, and the very first token",
        lambda s: _seqs(
            (s.page - 1, 1),
            (s.page, 1),
            (s.page + 1, 1),
            (1, 1),
            (s.deep - 1, 1),
            (s.deep, 1),
            (s.deep + 1, 1),
            (3 * s.page, 1),
        ),
        ("d16-bf16", "d64-f32"),
        decode=True,
    ),
    _Recipe(
        "decode-shared-prefix",
        "decode",
        "several decodes over one physical prefix",
        lambda s: (
            Request(s.deep + 9, 1),
            *(Request(s.deep + n, 1, shares=0, shared_tokens=s.deep) for n in (1, 2, 8, s.page)),
            *_seqs((s.page // 2, 1), (2 * s.page + 1, 1)),
            DECODE_PADDING,
        ),
        ("d64-f32",),
        decode=True,
    ),
    _Recipe(
        "mixed-decode-and-chunk",
        "mixed",
        "decodes, a chunk and a short prompt in one step: a decode is a one-token extend",
        lambda s: _seqs((s.deep + 7, 1), (s.page + 1, 1), (s.deep + 3, 8), (6, 6)),
        ("p16-f32", "p64-bf16"),
    ),
    _Recipe(
        "mixed-budget-sides",
        "mixed",
        "a long decode beside a prompt below the budget: routing of one that breaks the other",
        lambda s: _seqs((s.deep + 2, 1), (5, 5), (s.budget + 1, 5), (s.deep + s.page, 4)),
        ("p128-bf16",),
    ),
    _Recipe(
        "padding-tokens",
        "padding",
        "more padding tokens than real ones: slot -1 that wraps, output rows never written",
        lambda s: _seqs((s.deep + 2, 3)),
        ("p16-f32",),
    ),
    _Recipe(
        "padding-sequences-between",
        "padding",
        "padding sequences in the middle and at the end of the batch",
        lambda s: (Request(s.deep + 4, 5), PADDING, Request(s.page + 3, 4), PADDING, Request(s.deep + 9, 4)),
        ("p16-f32", "p64-bf16"),
    ),
    _Recipe(
        "padding-decode-between",
        "padding",
        "padding slots between running decodes, each with a token at position -1",
        lambda s: (
            Request(s.deep + 4, 1),
            DECODE_PADDING,
            Request(s.page + 3, 1),
            DECODE_PADDING,
            DECODE_PADDING,
            Request(s.deep - 2, 1),
        ),
        ("d16-bf16", "d64-f32"),
        decode=True,
    ),
    _Recipe(
        "padding-everything",
        "padding",
        "a step of nothing but padding",
        lambda s: (),
        ("p16-f32",),
    ),
    _Recipe(
        "budget-edges",
        "budget",
        "histories one below, at and one above the budget, and far above it",
        lambda s: _seqs((s.budget - 1, 3), (s.budget, 4), (s.budget + 1, 4), (s.deep + 3, 5)),
        ("p16-f32", "p64-bf16", "p128-bf16"),
    ),
    _Recipe(
        "budget-covers-history",
        "budget",
        "every history fits the budget: sparse must equal dense",
        lambda s: _seqs((s.budget - 2, 5), (s.page + 1, 5), (s.budget, 6)),
        ("p16-f32",),
    ),
    _Recipe(
        "ties-few-values",
        "ties",
        "scores that take a handful of exact values: the order among equals at the cut",
        lambda s: _seqs((s.deep + 7, 7), (s.deep + s.page, 9)),
        ("p16-f32", "p64-bf16"),
        values=Ties(plateau=False),
    ),
    _Recipe(
        "ties-plateau",
        "ties",
        "three winners over a plateau of exact zeros wider than the budget: holes, overflow, wrong order",
        lambda s: _seqs((s.deep + 7, 8), (s.deep + 2, 7)),
        ("p16-f32",),
        values=Ties(plateau=True),
    ),
    _Recipe(
        "ties-decode",
        "ties",
        "ties at the cut of single queries, the same in every batch slot",
        lambda s: _seqs(*((s.deep + n, 1) for n in range(8))),
        ("d16-bf16",),
        decode=True,
        values=Ties(plateau=False),
    ),
    _Recipe(
        "masked-rows",
        "masked",
        "queries with nothing selected among others: 0/0, or a neighbour's accumulator",
        lambda s: _seqs((s.deep + 9, 7), (s.deep + 3, 4), (s.page + 1, 5)),
        ("p16-f32", "p64-bf16"),
        selection="partial",
    ),
    _Recipe(
        "masked-decode",
        "masked",
        "decodes with an empty selection still attend the page of their own token",
        lambda s: _seqs(*((s.deep + n, 1) for n in range(7)), (2, 1)),
        ("d16-bf16",),
        decode=True,
        selection="partial",
    ),
    _Recipe(
        "table-reversed",
        "table",
        "pages in descending order: a table that is ignored, or read as a range",
        lambda s: _seqs((s.deep + 5, 8), (s.deep - 1, 6)),
        ("p16-f32",),
        table="reversed",
    ),
    _Recipe(
        "table-high-pages",
        "table",
        "the last page of the pool and its neighbours in use: off-by-one in the pool's size",
        lambda s: _seqs((s.deep + 5, 8), (s.deep - 1, 6)),
        ("p128-bf16",),
        table="high",
    ),
    _Recipe(
        "table-decode-high-pages",
        "table",
        "decodes that write the last page of the pool",
        lambda s: _seqs((s.page, 1), (s.deep + 3, 1), *((s.page + n, 1) for n in range(1, 7))),
        ("d16-bf16",),
        decode=True,
        table="high",
    ),
    _Recipe(
        "document-extend",
        "document",
        "real text: repeated words make structured, overlapping selections",
        lambda s: _seqs((s.deep + s.page - 3, 9), (s.deep + 5, 7)),
        ("p16-f32", "p64-bf16"),
        values=Document(),
        selection="indexer",
    ),
    _Recipe(
        "document-decode",
        "document",
        "real text, one query a request",
        lambda s: _seqs(*((s.deep + 3 * n, 1) for n in range(8))),
        ("d16-bf16",),
        decode=True,
        values=Document(),
        selection="indexer",
    ),
]

_OF_THEIR_OWN = (
    Scenario(
        "many-requests-wide-p16-f32",
        "several",
        "more requests than a kernel has copies in flight, more new rows than one aligned window of them",
        _seqs(
            (151, 1), (17, 1), (147, 9), (6, 6), (18, 3), (3, 3), (160, 8), (37, 6), (5, 1), (16, 2), (15, 1), (1, 1)
        ),
        _WIDE,
    ),
    Scenario(
        "whole-prompt-p16-f32",
        "single",
        "a prompt of several pages from its first token on: nothing is cached, queries see different numbers of pages",
        _seqs((57, 57)),
        _PROMPT,
    ),
    Scenario(
        "whole-long-prompt-p16-f32",
        "single",
        "a prompt of ten pages and a budget of four: attention that stops at some page of what it computed itself",
        _seqs((151, 151)),
        _LONG_PROMPT,
        tier="full",
    ),
    Scenario(
        "budget-above-table-p64-bf16",
        "budget",
        "a budget wider than the whole page table, as prompts of at most 2,048 tokens have it",
        _seqs((190, 5), (64, 4), (7, 7)),
        _NARROW,
    ),
    Scenario(
        "long-context-p128-bf16",
        "long",
        "thousands of tokens through a large page pool: up to 72 pages a sequence, a budget of 4",
        _seqs((9000, 4), (3001, 3)),
        _LONG,
    ),
    Scenario(
        "document-long-p128-bf16",
        "document",
        "chapters of real text in the history, and the indexer's own selection over them",
        _seqs((4201, 4), (2050, 3)),
        _LONG,
        values=Document(),
        selection="indexer",
    ),
)


def _scenarios() -> Iterator[Scenario]:
    for index, recipe in enumerate(_RECIPES):
        for bucket in _DECODE if recipe.decode else _EXTEND:
            yield Scenario(
                name=f"{recipe.name}-{bucket.name}",
                family=recipe.family,
                discriminates=recipe.discriminates,
                requests=recipe.requests(_Sizes.of(bucket)),
                bucket=bucket,
                values=recipe.values,
                table=recipe.table,
                selection=recipe.selection,
                seed=1000 + index,
                tier="quick" if bucket.name in recipe.quick else "full",
            )
    yield from _OF_THEIR_OWN


class _Table(dict[str, Scenario]):
    """Scenarios by name; those of the soak, of which there is no end, are made when they are asked for."""

    def __missing__(self, name: str) -> Scenario:
        return soak_scenario(name, BUCKETS)

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or (isinstance(name, str) and is_soak(name))


SCENARIOS: dict[str, Scenario] = _Table({scenario.name: scenario for scenario in _scenarios()})
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(scenario.family for scenario in SCENARIOS.values()))
TIERS = ("quick", "full")


def with_document(path: Path) -> dict[str, Scenario]:
    """The table with the `document` family drawn from a text file of the user's."""
    return _Table(
        {
            name: replace(scenario, values=Document(path)) if scenario.family == "document" else scenario
            for name, scenario in SCENARIOS.items()
        }
    )
