"""The `sglang_jax` provider: SGLang-JAX's DSA kernels and dense MLA v2, from a source checkout on the import path."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.contract import Kernel, Promise, Provider
from dsa_verify.errors import ProviderError
from dsa_verify.kernels.providers import layout
from dsa_verify.shapes import LANES

HOW_TO_GET = (
    "The DSA kernels of SGLang-JAX are not in its PyPI release. Clone https://github.com/sgl-project/sglang-jax and "
    "pass its folder: --provider sglang_jax --provider-path sglang-jax"
)

KERNELS = "sgl_jax.srt.kernels"
BACKEND = "sgl_jax.srt.layers.attention.dsa_sparse_backend"

DENSE_BLOCKS = {"num_kv_pages_per_block": (3, 1, 1), "num_queries_per_block": (1, 1, 8), "decode_batch_size": 4}
"""(decode, unused, mixed). Pages and decode batch are what their kernel and backend fall back to for shapes without
tuned sizes (the last entries of their table are looked up by chip); queries are 8 instead of 16, so that a chunk of our
scenarios is more than one block."""

DECODE_BLOCKS = {"num_kv_pages_per_block": (2, 1, 1), "num_queries_per_block": (1, 1, 1)}
"""Two pages a block instead of their three: the selections of our scenarios are two to four pages, and shall take
several steps."""

INDEX_QUERIES = 8
"""Queries per block of the indexer kernels. Their decode default is 1 and their prefill default 512."""

QUERY_BLOCK = 8
"""Queries that share a union of pages; their default is 256, which would swallow every scenario whole."""

# Weights of 0 multiply what is masked, "as long as they are not NaN or inf" (mla/v2/kernel.py, above `load_bkv`). In
# bfloat16 that reaches an output where a sequence's last row shares a 32-bit word with the row of a padding token.
# write_rows: new rows are merged into such words of the cache.
DENSE_PROMISE = Promise(finite_memory=True, write_rows=2)

# sparse_mla_prefill.py and its qblock twin add a bias of -inf to the scores instead of selecting, which leaves NaN
# scores NaN; their comment on padded lanes ("so a stale/NaN row can't poison the (masked-out) score") zeroes scratch
# only, and the tails of pages are read as they are. The pool is allocated as zeros (mem_cache/memory_pool.py).
PREFILL_PROMISE = Promise(finite_memory=True)


def load() -> Provider:
    """Every DSA surface that the checkout has; what it lacks is listed as missing, with the reason.

    Raises `ProviderError` when there is no checkout.
    """
    _find_checkout()
    try:
        version = import_module("sgl_jax.version").__version__
        topk = import_module(f"{KERNELS}.dsa.streamindex_topk")
        reference = import_module(f"{KERNELS}.dsa.ref")
        decode = import_module(f"{KERNELS}.dsa.sparse_mla")
        prefill = import_module(f"{KERNELS}.dsa.sparse_mla_prefill")
        dense = import_module(f"{KERNELS}.mla.v2.kernel")
    except ImportError as error:
        raise ProviderError(f"cannot import SGLang-JAX's kernels: {error}. {HOW_TO_GET}") from error
    kernels = {
        "index_topk": Kernel(partial(_index_topk, topk.streamindex_topk), limits=layout.padding_between),
        "index_page_topk": _index_page_topk_kernel(topk, reference),
        "dense_mla": Kernel(
            partial(_dense_mla, dense.mla_ragged_paged_attention), DENSE_PROMISE, layout.padding_between
        ),
        "sparse_mla_decode": Kernel(partial(_sparse_mla_decode, decode.sparse_mla_page_level), DENSE_PROMISE),
        "sparse_mla_prefill": _prefill_kernel(prefill),
    }
    missing: dict[str, str] = {}
    for surface, found in (("sparse_mla_prefill_qblock", _qblock_kernel()), ("cache_write", _cache_write_kernel())):
        if isinstance(found, Kernel):
            kernels[surface] = found
        else:
            missing[surface] = found
    return Provider("sglang_jax", f"{version}{_notes(topk, prefill)}", kernels, missing)


def _find_checkout() -> None:
    """Put the `python` folder of a checkout first on the import path where its root is on it."""
    for entry in list(sys.path):
        source = Path(entry) / "python"
        if (source / "sgl_jax" / "srt" / "kernels" / "dsa").is_dir():
            if str(source) not in sys.path:
                sys.path.insert(0, str(source))
            return


def _notes(topk: ModuleType, prefill: ModuleType) -> str:
    """What a reader of results must know about which of their paths ran."""
    notes = []
    if not hasattr(topk, "streamindex_page_topk"):
        notes.append("index_page_topk is their jnp reference, the path of this checkout")
    if not hasattr(prefill, "prefill_write_and_attend_ragged"):
        notes.append("sparse_mla_prefill is the single-shot one")
    return f" ({'; '.join(notes)})" if notes else ""


def _index_topk(
    streamindex_topk: Callable[..., Any], *, index_q: jax.Array, index_weights: jax.Array, index_cache: jax.Array,
    kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, index_topk: int,
) -> jax.Array:  # fmt: skip
    indexer = (index_q, index_weights, layout.pack_cache(index_cache))
    counts = layout.distribution(kv_lens, cu_q_lens, decodes_first=False)
    return streamindex_topk(
        *indexer,
        *(kv_lens, layout.fixed_stride(page_table), cu_q_lens, counts),
        k=index_topk,
        compression_ratio=1,
        num_kv_pages_per_block=max(1, LANES // index_cache.shape[1]),  # the smallest block: 128 keys
        num_queries_per_block=INDEX_QUERIES,
    )


def _index_page_topk_kernel(topk: ModuleType, reference: ModuleType) -> Kernel:
    """Their page kernel where the checkout has one, else the jnp function that they serve with without it."""
    if hasattr(topk, "streamindex_page_topk"):
        return Kernel(partial(_page_topk_pallas, topk.streamindex_page_topk), limits=layout.padding_between)
    return Kernel(partial(_page_topk_reference, reference.streamindex_page_topk_ref))


def _page_topk_pallas(
    streamindex_page_topk: Callable[..., Any], *, index_q: jax.Array, index_weights: jax.Array, index_cache: jax.Array,
    kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, index_topk: int,
) -> jax.Array:  # fmt: skip
    indexer = (index_q, index_weights, layout.pack_cache(index_cache))
    counts = layout.distribution(kv_lens, cu_q_lens, decodes_first=False)
    return streamindex_page_topk(
        *indexer,
        *(kv_lens, layout.fixed_stride(page_table), cu_q_lens, counts[2]),
        k_pages=-(-index_topk // index_cache.shape[1]),
        num_queries_per_block=INDEX_QUERIES,
    )


def _page_topk_reference(
    streamindex_page_topk_ref: Callable[..., Any], *, index_q: jax.Array, index_weights: jax.Array,
    index_cache: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, index_topk: int,
) -> jax.Array:  # fmt: skip
    page_size = index_cache.shape[1]
    metadata = layout.packed_metadata(page_table, kv_lens, cu_q_lens, page_size)
    return streamindex_page_topk_ref(
        *(index_q, index_weights, index_cache, kv_lens),
        *metadata,
        k_pages=-(-index_topk // page_size),
        pages_per_seq=page_table.shape[1],
        one_token_per_seq=index_q.shape[0] == kv_lens.shape[0],
    )


def _dense_mla(
    mla: Callable[..., Any], *, ql_nope: jax.Array, q_pe: jax.Array, new_c_kv: jax.Array, new_k_pe: jax.Array,
    cache_kv: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, sm_scale: float,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    step = (ql_nope, q_pe, new_c_kv, new_k_pe, layout.pack_cache(cache_kv))
    metadata = layout.packed_metadata(page_table, kv_lens, cu_q_lens, cache_kv.shape[1])
    out, cache = mla(*step, kv_lens, *metadata, sm_scale=sm_scale, **DENSE_BLOCKS)
    return out, layout.unpack_cache(cache)


def _sparse_mla_decode(
    page_level: Callable[..., Any], *, ql_nope: jax.Array, q_pe: jax.Array, new_c_kv: jax.Array, new_k_pe: jax.Array,
    cache_kv: jax.Array, topk_pages: jax.Array, kv_lens: jax.Array, page_table: jax.Array, sm_scale: float,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    tokens, page_size = ql_nope.shape[0], cache_kv.shape[1]
    step = (ql_nope, q_pe, new_c_kv, new_k_pe, layout.pack_cache(cache_kv))
    topk_indices = jnp.full((tokens, 1), -1, jnp.int32)  # not read: topk_pages are given
    metadata = layout.packed_metadata(page_table, kv_lens, jnp.arange(tokens + 1, dtype=jnp.int32), page_size)
    out, cache = page_level(
        *step,
        *(kv_lens, topk_indices, *metadata, topk_pages),
        sm_scale=sm_scale,
        page_size=page_size,
        pages_per_seq=page_table.shape[1],
        kv_lora_rank=ql_nope.shape[-1],
        k_pages_max=topk_pages.shape[1] + 1,  # one more for the page of the new token, as in their backend
        **DECODE_BLOCKS,
    )
    return out, layout.unpack_cache(cache)


def _prefill_kernel(prefill: ModuleType) -> Kernel:
    """The ragged per-query kernel where the checkout has it, else the one for a single prompt from position 0."""
    if hasattr(prefill, "prefill_write_and_attend_ragged"):
        return Kernel(partial(_ragged, prefill.prefill_write_and_attend_ragged), PREFILL_PROMISE, _unpadded_rows)
    return Kernel(partial(_single_shot, prefill.prefill_write_and_attend), PREFILL_PROMISE, _single_shot_limits)


def _unpadded_rows(batch: Batch) -> str | None:
    if batch.ql_nope.shape[-1] % LANES:
        return f"their rows are [c_kv | k_pe] without padding between, kv_lora_rank must be a multiple of {LANES}"
    return None


def _single_shot_limits(batch: Batch) -> str | None:
    """Their docstring: "SINGLE-SEQUENCE, SINGLE-SHOT extend only", "prefilled from position 0"."""
    real = np.flatnonzero(batch.kv_lens > 0)
    if len(real) != 1 or batch.kv_lens[real[0]] != batch.q_lens[real[0]] or batch.cu_q_lens[real[0]] != 0:
        return (
            "prefill_write_and_attend takes one sequence in one shot from position 0; the ragged form is not in this "
            "checkout"
        )
    return _unpadded_rows(batch)


def _single_shot(
    write_and_attend: Callable[..., Any], *, ql_nope: jax.Array, q_pe: jax.Array, new_c_kv: jax.Array,
    new_k_pe: jax.Array, cache_kv: jax.Array, topk_pages: jax.Array, positions: jax.Array, out_cache_loc: jax.Array,
    cu_q_lens: jax.Array, page_table: jax.Array, sm_scale: float,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    del cu_q_lens, page_table  # it finds the pages of its one sequence in out_cache_loc
    step = (ql_nope, q_pe, new_c_kv, new_k_pe, layout.pack_cache(cache_kv), topk_pages, positions, out_cache_loc)
    sizes = {"kv_lora_rank": ql_nope.shape[-1], "page_size": cache_kv.shape[1]}
    out, cache = write_and_attend(*step, **sizes, sm_scale=sm_scale)
    return out.astype(ql_nope.dtype), layout.unpack_cache(cache)  # their backend casts, too


def _ragged(
    write_and_attend: Callable[..., Any], *, ql_nope: jax.Array, q_pe: jax.Array, new_c_kv: jax.Array,
    new_k_pe: jax.Array, cache_kv: jax.Array, topk_pages: jax.Array, positions: jax.Array, out_cache_loc: jax.Array,
    cu_q_lens: jax.Array, page_table: jax.Array, sm_scale: float, **options: Any,
) -> tuple[jax.Array, ...]:  # fmt: skip
    page_size = cache_kv.shape[1]
    kv_lens = layout.kv_lens_of(positions, cu_q_lens)
    step = (ql_nope, q_pe, new_c_kv, new_k_pe, layout.pack_cache(cache_kv), topk_pages, positions, out_cache_loc)
    pages, _, cu_kv_lens, _ = layout.packed_metadata(page_table, kv_lens, cu_q_lens, page_size)
    sizes = {"kv_lora_rank": ql_nope.shape[-1], "page_size": page_size}
    out, cache, *lse = write_and_attend(
        *step, kv_lens, cu_q_lens, cu_kv_lens, pages, **sizes, sm_scale=sm_scale, **options
    )
    return out.astype(ql_nope.dtype), *lse, layout.unpack_cache(cache)


def _qblock_kernel() -> Kernel | str:
    try:
        module = import_module(f"{KERNELS}.dsa.sparse_mla_prefill_qblock")
        attend = module.prefill_write_and_attend_ragged_qblock
    except (ImportError, AttributeError) as error:
        return f"this checkout has no query-block prefill: {error}"
    with_lse = "return_lse" in inspect.signature(attend).parameters
    return Kernel(partial(_qblock, attend, with_lse), PREFILL_PROMISE, _unpadded_rows)


def _qblock(attend: Callable[..., Any], with_lse: bool, **call: Any) -> tuple[jax.Array | None, ...]:
    if with_lse:
        return _ragged(attend, **call, query_block=QUERY_BLOCK, return_lse=True)
    out, cache = _ragged(attend, **call, query_block=QUERY_BLOCK)
    return out, None, cache


def _cache_write_kernel() -> Kernel | str:
    """The Pallas write-back of the query-block prefill where there is one, else the scatter of their backend."""
    try:
        return Kernel(partial(_write_back, import_module(f"{KERNELS}.dsa.sparse_mla_prefill_qblock").paged_write_back))
    except (ImportError, AttributeError):
        pass
    try:
        return Kernel(partial(_scatter, import_module(BACKEND)._scatter_paged))
    except Exception as error:  # it imports half of their server, which may fail in any way
        return f"this checkout writes caches in its attention backend, which cannot be imported here: {error}"


def _write_back(
    paged_write_back: Callable[..., Any], *, new_c_kv: jax.Array, new_k_pe: jax.Array, cache_kv: jax.Array,
    out_cache_loc: jax.Array,
) -> jax.Array:  # fmt: skip
    rows = layout.latent_rows(new_c_kv, new_k_pe, cache_kv.dtype)
    page_size = cache_kv.shape[1]
    return layout.unpack_cache(paged_write_back(layout.pack_cache(cache_kv), rows, out_cache_loc, page_size=page_size))


def _scatter(
    scatter_paged: Callable[..., Any], *, new_c_kv: jax.Array, new_k_pe: jax.Array, cache_kv: jax.Array,
    out_cache_loc: jax.Array,
) -> jax.Array:  # fmt: skip
    """Every token as a sequence of its own whose only page is the one it lands in."""
    page_size, one_each = cache_kv.shape[1], jnp.arange(len(out_cache_loc) + 1, dtype=jnp.int32)
    rows = layout.latent_rows(new_c_kv, new_k_pe, cache_kv.dtype)
    kv_lens = jnp.where(out_cache_loc < 0, 0, out_cache_loc % page_size + 1)
    pages = jnp.maximum(out_cache_loc, 0) // page_size
    return scatter_paged(cache_kv, rows, kv_lens, pages, one_each, one_each * page_size, 1)
