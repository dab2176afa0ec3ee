"""Contract of every surface: what goes in, what comes out, what is promised; and what a provider is."""

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from dsa_verify.errors import ContractError, unknown_name
from dsa_verify.shapes import LANES, align

PAGE_MULTIPLE = 16
"""Page sizes are multiples of the bfloat16 sublane tile, so that no tile straddles two pages."""

_QUERY = {"ql_nope": ("tokens", "heads", "kv_lora_rank"), "q_pe": ("tokens", "heads", "qk_rope_head_dim")}
_NEW = {"new_c_kv": ("tokens", "kv_lora_rank"), "new_k_pe": ("tokens", "qk_rope_head_dim")}
_LATENT = {"cache_kv": ("pages", "page_size", "latent_width")}
_KV_LENS = {"kv_lens": ("seqs",)}
_CU_Q_LENS = {"cu_q_lens": ("seqs+1",)}
_TABLE = {"page_table": ("seqs", "pages_per_seq")}
_PAGES = {"topk_pages": ("tokens", "k_pages")}
_PLACES = {"positions": ("tokens",), "out_cache_loc": ("tokens",)}
_INDEX = {
    "index_q": ("tokens", "index_n_heads", "index_head_dim"),
    "index_weights": ("tokens", "index_n_heads"),
    "index_cache": ("pages", "page_size", "index_head_dim"),
}
_INDEXER = {
    "hidden": ("tokens", "hidden_size"),
    "q_lora": ("tokens", "q_lora_rank"),
    "wq_b": ("index_heads_width", "q_lora_rank"),
    "wk": ("index_head_dim", "hidden_size"),
    "k_norm": ("index_head_dim",),
    "k_norm_bias": ("index_head_dim",),
    "weights_proj": ("index_n_heads", "hidden_size"),
    "index_cache": _INDEX["index_cache"],
}
_POOLS = ("cache_kv", "index_cache")
_INTEGERS = {"kv_lens", "cu_q_lens", "page_table", "topk_pages", "positions", "out_cache_loc"}


@dataclass(frozen=True)
class Surface:
    """One kernel-level operation.

    `arrays` maps each input to its axes; axes of one name have one length. `statics` must be given and are
    compile-time constants. `outputs` names what comes back, in order; a provider may return None for an
    `optional` one. `pools` are inputs that come back with the new tokens' rows: overwritten in place on a device.
    """

    name: str
    summary: str
    arrays: Mapping[str, tuple[str, ...]]
    statics: tuple[str, ...]
    outputs: Mapping[str, tuple[str, ...]]
    optional: tuple[str, ...] = ()
    decode_only: bool = False

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(name for name in _POOLS if name in self.outputs)

    @property
    def selects(self) -> bool:
        """Whether the surface chooses positions or pages, rather than attending or writing."""
        return "topk_indices" in self.outputs or "topk_pages" in self.outputs

    @property
    def attends(self) -> bool:
        return "out" in self.outputs

    @property
    def reads(self) -> Literal["causal", "selected", "selected and own", "nothing"]:
        """Which pages of its sequence a token reads."""
        if "topk_pages" in self.arrays:
            return "selected and own" if self.decode_only else "selected"
        return "causal" if self.attends or self.selects else "nothing"

    @property
    def writes(self) -> bool:
        return bool(self.pools)


_OUT = {"out": ("tokens", "heads", "kv_lora_rank")}

SURFACES: dict[str, Surface] = {
    surface.name: surface
    for surface in (
        Surface(
            "index_topk",
            "per query token the index_topk best causal positions by index_score; distinct, -1 only at the tail",
            {**_INDEX, **_KV_LENS, **_CU_Q_LENS, **_TABLE},
            ("index_topk",),
            {"topk_indices": ("tokens", "index_topk")},
        ),
        Surface(
            "index_page_topk",
            "the ceil(index_topk / page_size) best sequence-local pages; a page scores its best causal token",
            {**_INDEX, **_KV_LENS, **_CU_Q_LENS, **_TABLE},
            ("index_topk",),
            {"topk_pages": ("tokens", "k_pages")},
        ),
        Surface(
            "dense_mla",
            "absorbed MLA over all causal tokens; new tokens are written to the paged cache first",
            {**_QUERY, **_NEW, **_LATENT, **_KV_LENS, **_CU_Q_LENS, **_TABLE},
            ("sm_scale",),
            {**_OUT, **_LATENT},
        ),
        Surface(
            "sparse_mla_decode",
            "one query a sequence attends the selected pages and the page of its own token, which it writes first",
            {**_QUERY, **_NEW, **_LATENT, **_PAGES, **_KV_LENS, **_TABLE},
            ("sm_scale",),
            {**_OUT, **_LATENT},
            decode_only=True,
        ),
        Surface(
            "sparse_mla_prefill",
            "each query attends the causal tokens of its selected pages; the chunk's latent is written first",
            {**_QUERY, **_NEW, **_LATENT, **_PAGES, **_PLACES, **_CU_Q_LENS, **_TABLE},
            ("sm_scale",),
            {**_OUT, **_LATENT},
        ),
        Surface(
            "sparse_mla_prefill_qblock",
            "the same mathematics; a block of queries shares one union of pages, fetched once; natural-log lse",
            {**_QUERY, **_NEW, **_LATENT, **_PAGES, **_PLACES, **_CU_Q_LENS, **_TABLE},
            ("sm_scale",),
            {**_OUT, "lse": ("tokens", "heads"), **_LATENT},
            optional=("lse",),
        ),
        Surface(
            "cache_write",
            "new rows [c_kv | 0 | k_pe | 0] land at out_cache_loc, -1 is dropped, nothing else in the pool changes",
            {**_NEW, **_LATENT, "out_cache_loc": ("tokens",)},
            (),
            {**_LATENT},
        ),
        Surface(
            "indexer",
            "index keys of the new tokens are projected, normed, rotated and written, then scored as index_topk does",
            {**_INDEXER, **_PLACES, **_KV_LENS, **_CU_Q_LENS, **_TABLE},
            ("index_topk", "convention"),
            {
                "topk_indices": ("tokens", "index_topk"),
                "topk_scores": ("tokens", "index_topk"),
                "index_cache": _INDEX["index_cache"],
            },
            optional=("topk_scores",),
        ),
    )
}


def surface_named(name: str) -> Surface:
    """Look a surface up; raises `ConfigError` with the nearest names when there is none."""
    if name not in SURFACES:
        raise unknown_name("surface", name, SURFACES)
    return SURFACES[name]


@dataclass(frozen=True)
class Promise:
    """What a provider states about one kernel beyond the surface's contract; it is judged against this.

    recall: share of the best set that an approximate selection finds on average; 1.0 is exact.
    lowest_tie: whether equal scores are kept in order of position.
    write_rows: tokens that share the smallest word the kernel writes (2 for bfloat16 in 32-bit words). Slots
      nobody owns may change inside such a word.
    finite_memory: the kernel demands that memory nobody owns is finite, so that 0 * x is 0.
    summation: what the order of a query's sums depends on: `sequence`, on nothing but its own sequence; `step`, on its
      neighbours in the step too, but not on where pages lie in the pool; `any`, on whatever the kernel likes.
    query_block: how many consecutive tokens share one fetch of each page that they need; 0 where nothing is promised of
      what a kernel moves.
    logit_dtype, probability_dtype, score_dtype: what logits, softmax weights and index scores are rounded to;
      None for float32 (logits, scores) and for the cache's own dtype (weights).
    """

    recall: float = 1.0
    lowest_tie: bool = True
    write_rows: int = 1
    finite_memory: bool = False
    summation: Literal["sequence", "step", "any"] = "any"
    query_block: int = 0
    logit_dtype: str | None = None
    probability_dtype: str | None = None
    score_dtype: str | None = None


@dataclass(frozen=True)
class Kernel:
    """One provider's implementation of one surface.

    `fn` takes the surface's arrays and statics by keyword, is jit-able, and returns the outputs in order.
    `limits` says why a call is outside what the kernel supports, or None; such a case is not verified.
    `tiles` says how the kernel divides its work, for a reader of results; empty where nobody states it.
    `production` is the same kernel at the tiles it serves with, for scenarios of that tier; None where it is this one.
    """

    fn: Callable[..., Any]
    promise: Promise = field(default_factory=Promise)
    limits: Callable[[Any], str | None] = field(default=lambda batch: None)
    tiles: str = ""
    production: "Kernel | None" = None


@dataclass(frozen=True)
class Provider:
    """A set of implementations of surfaces; `missing` says why it lacks a surface.

    helpers: what a serving backend calls beside the surfaces, by name: `write_rows(rows, pool, out_cache_loc)`, which
    writes index keys, and `sparse_mla_tokens`, attention of single tokens.
    """

    name: str
    version: str
    kernels: Mapping[str, Kernel]
    missing: Mapping[str, str] = field(default_factory=dict[str, str])
    helpers: Mapping[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])


F = TypeVar("F", bound=Callable[..., Any])


def implements(surface_name: str) -> Callable[[F], F]:
    """Decorate an implementation of a surface: every call is held to the contract before it runs.

    The implementation's parameters are the surface's arrays and statics by name; others are its own tiling. A call
    outside the contract raises `ContractError`, a missing static too.
    """
    surface = SURFACES[surface_name]

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind_partial(*args, **kwargs).arguments
            arrays = {name: given[name] for name in surface.arrays if name in given}
            check_call(surface, arrays, {name: given.get(name) for name in surface.statics})
            return function(*args, **kwargs)

        return cast(F, checked)

    return decorate


def check_call(surface: Surface, arrays: Mapping[str, Any], statics: Mapping[str, Any]) -> dict[str, int]:
    """Refuse a call that breaks the static part of a contract; returns the length of every axis.

    Looks at names, shapes and dtypes only, so it works on NumPy arrays and on JAX tracers alike.
    Raises `ContractError`.
    """
    for name in surface.statics:
        if statics.get(name) is None:
            raise ContractError(
                f"{surface.name} needs {name}, which was not given. There is no default: pass it explicitly"
                + (", (qk_nope_head_dim + qk_rope_head_dim) ** -0.5" if name == "sm_scale" else "")
                + "."
            )
    axes = _axis_lengths(surface, arrays)
    for name in surface.arrays:
        dtype = str(arrays[name].dtype)
        if (dtype == "int32") != (name in _INTEGERS):
            wanted = "int32" if name in _INTEGERS else "a float dtype"
            raise ContractError(f"{surface.name}: {name} is {dtype}, expected {wanted}.")
    for problem in _axis_problems(surface, axes):
        raise ContractError(f"{surface.name}{problem}")
    return axes


def _axis_problems(surface: Surface, axes: Mapping[str, int]) -> Iterator[str]:
    """What is wrong with lengths that each array has rightly for itself; the first one is reported."""
    page_size = axes.get("page_size", PAGE_MULTIPLE)
    if page_size % PAGE_MULTIPLE:
        yield (
            f": page size {page_size} is not a multiple of {PAGE_MULTIPLE}, so a memory tile would straddle two pages; "
            f"use 16, 32, 64 or 128."
        )
    if "latent_width" in axes:
        wanted = align(axes["kv_lora_rank"], LANES) + align(axes["qk_rope_head_dim"], LANES)
        if axes["latent_width"] != wanted:
            yield (
                f": cache_kv rows are {axes['latent_width']} wide, expected {wanted}: kv_lora_rank "
                f"{axes['kv_lora_rank']} and qk_rope_head_dim {axes['qk_rope_head_dim']}, each padded to {LANES} lanes."
            )
    heads_width = axes.get("index_n_heads", 0) * axes.get("index_head_dim", 0)
    if axes.get("index_heads_width", heads_width) != heads_width:
        yield (
            f": wq_b has {axes['index_heads_width']} rows, expected {heads_width}: one for each of "
            f"{axes['index_head_dim']} dimensions of {axes['index_n_heads']} heads."
        )
    if surface.decode_only and axes["tokens"] != axes["seqs"]:
        yield f" takes one query a sequence, found {axes['tokens']} tokens for {axes['seqs']} sequences."


def _axis_lengths(surface: Surface, arrays: Mapping[str, Any]) -> dict[str, int]:
    axes: dict[str, int] = {}
    origin: dict[str, str] = {}
    for name, dims in surface.arrays.items():
        if name not in arrays:
            raise ContractError(f"{surface.name} needs the array {name}, which was not given.")
        shape = tuple(arrays[name].shape)
        if len(shape) != len(dims):
            raise ContractError(f"{surface.name}: {name} has shape {shape}, expected axes {list(dims)}.")
        for dim, length in zip(dims, shape, strict=True):
            dim, length = ("seqs", length - 1) if dim == "seqs+1" else (dim, length)
            if axes.setdefault(dim, length) != length:
                raise ContractError(
                    f"{surface.name}: axis {dim} is {axes[dim]} in {origin[dim]} but {length} in {name} {shape}."
                )
            origin.setdefault(dim, name)
    return axes
