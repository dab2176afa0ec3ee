"""The `tpu_inference` provider: vLLM TPU's dense MLA v2 and DeepSeek-V4 StreamIndex top-k, loaded without vLLM."""

import contextlib
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from dsa_verify.batch.batch import Batch
from dsa_verify.contract import Kernel, Promise, Provider
from dsa_verify.errors import ProviderError
from dsa_verify.kernels.providers import layout
from dsa_verify.shapes import LANES, align

PACKAGE = "tpu_inference"
HOW_TO_GET = "Install it without vLLM: pip install --no-deps tpu-inference==0.32.0 sympy==1.14.0 mpmath==1.3.0"

DENSE_MLA = f"{PACKAGE}.kernels.mla.v2.kernel"
STREAMINDEX = f"{PACKAGE}.kernels.experimental.deepseek_v4.indexer.streamindex_topk"

DENSE_BLOCKS = {"num_kv_pages_per_block": (3, 1, 2), "num_queries_per_block": (1, 1, 8), "decode_batch_size": 4}
"""(decode, unused, mixed). Decode pages and batch are their fallback for shapes without tuned sizes. Mixed blocks are 2
pages instead of 1, which at our three page sizes takes each of their three code paths for masks and scores; queries are
8 instead of 16, so that a chunk of our scenarios is more than one block."""

INDEX_QUERIES = 8
"""Queries per block of the indexer; their default is 128, which would swallow every scenario whole."""

# logit_dtype: kernel.py, signature, `s_dtype: jnp.dtype = jnp.bfloat16`, to which both flash loops round the scaled
# logits (`s = s.astype(s_dtype)`). finite_memory: weights of 0 multiply what is masked, "as long as they are not NaN or
# inf" (above `load_bkv`); in bfloat16 a sequence's last row may share a 32-bit word with the row of a padding token.
# write_rows: new rows are merged into such words of the cache.
DENSE_PROMISE = Promise(logit_dtype="bfloat16", finite_memory=True, write_rows=2)

FP8 = np.dtype(ml_dtypes.float8_e4m3fn)
SCALE_OF_ONE = 127
"""1.0 as a float8_e8m0fnu byte."""

SPARSE_MLA = f"{PACKAGE}.kernels.experimental.deepseek_v4.core_attention.sparse_mla"
NEEDS_SPARSECORE = "needs a SparseCore gather that interpret mode cannot run: not verified on CPU"
"""Their DeepSeek-V4 sparse MLA (kernels/experimental/deepseek_v4/core_attention)."""


def load() -> Provider:
    """Dense MLA and the indexer's top-k. Raises `ProviderError` when the package cannot be imported."""
    dense, topk = _import_kernels(DENSE_MLA, STREAMINDEX)
    _provide_reciprocal(dense)
    not_theirs = "tpu-inference has no such kernel for a paged latent cache in bfloat16 or float32"
    return Provider(
        PACKAGE,
        _version(),
        kernels={
            "dense_mla": Kernel(
                partial(_dense_mla, dense.mla_ragged_paged_attention), DENSE_PROMISE, layout.padding_between
            ),
            "index_topk": Kernel(partial(_index_topk, topk.streamindex_topk), limits=_index_limits),
        },
        missing={
            "index_page_topk": "tpu-inference selects tokens, not pages",
            "sparse_mla_decode": NEEDS_SPARSECORE,
            "sparse_mla_prefill": NEEDS_SPARSECORE,
            "sparse_mla_prefill_qblock": not_theirs,
            "cache_write": "tpu-inference writes its cache inside dense_mla only",
        },
    )


def sparse_mla() -> Callable[..., Any]:
    """Their DeepSeek-V4 sparse MLA, which no surface of ours is: to be compiled, not run.

    Its arrays are in `compile/foreign.py`. Raises `ProviderError` when the package cannot be imported.
    """
    (module,) = _import_kernels(SPARSE_MLA)
    _provide_reciprocal(module)
    return module.sparse_ragged_paged_attention


def _version() -> str:
    try:
        return metadata.version("tpu-inference")
    except metadata.PackageNotFoundError:
        return "unknown (not installed, found on the import path)"


def _import_kernels(*names: str) -> list[ModuleType]:
    """Import modules of the package without running its `__init__`, which imports vLLM and looks for TPUs.

    Whatever `tpu_inference` was imported before stays what it is: the modules of this import are known to the
    provider only.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ProviderError(f"tpu-inference is not installed. {HOW_TO_GET}")
    with _bare_package(list(spec.submodule_search_locations)):
        try:
            return [import_module(name) for name in names]
        except ImportError as error:
            raise ProviderError(f"cannot import tpu-inference's kernels: {error}. {HOW_TO_GET}") from error


@contextlib.contextmanager
def _bare_package(locations: list[str]) -> Iterator[None]:
    """Within it `tpu_inference` is an empty package with the real one's folders, and logs through `logging`."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if _belongs(name)}
    package, logger = ModuleType(PACKAGE), ModuleType(f"{PACKAGE}.logger")
    package.__path__ = locations
    logger.__dict__["init_logger"] = logging.getLogger  # the real one wraps vLLM's
    sys.modules.update({PACKAGE: package, logger.__name__: logger})
    try:
        yield
    finally:
        for name in [name for name in sys.modules if _belongs(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _belongs(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _provide_reciprocal(dense: ModuleType) -> None:
    """Give the kernel `pltpu.reciprocal` where JAX has it as `pl.reciprocal` only, as 0.10 does.

    The kernel's own `pltpu` becomes a copy that has it; JAX's module stays as it is.
    """
    if hasattr(dense.pltpu, "reciprocal"):
        return
    from jax.experimental import pallas as pl

    extended = ModuleType(dense.pltpu.__name__)
    extended.__dict__.update(vars(dense.pltpu), reciprocal=pl.reciprocal)
    dense.__dict__["pltpu"] = extended


def _dense_mla(
    mla: Callable[..., Any], *, ql_nope: jax.Array, q_pe: jax.Array, new_c_kv: jax.Array, new_k_pe: jax.Array,
    cache_kv: jax.Array, kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, sm_scale: float,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    out, cache = mla(
        ql_nope.transpose(1, 0, 2),  # heads first, as their projection emits it, and so is the output
        q_pe,
        new_c_kv,
        new_k_pe,
        layout.pack_cache(cache_kv),
        kv_lens,
        layout.fixed_stride(page_table),
        cu_q_lens,
        layout.distribution(kv_lens, cu_q_lens, decodes_first=True),
        sm_scale=sm_scale,
        **DENSE_BLOCKS,
    )
    return out.transpose(1, 0, 2), layout.unpack_cache(cache)


def _index_topk(
    streamindex_topk: Callable[..., Any], *, index_q: jax.Array, index_weights: jax.Array, index_cache: jax.Array,
    kv_lens: jax.Array, cu_q_lens: jax.Array, page_table: jax.Array, index_topk: int,
) -> jax.Array:  # fmt: skip
    return streamindex_topk(
        index_q,
        index_weights,
        layout.pack_cache(_fp8_records(index_cache)),
        kv_lens,
        layout.fixed_stride(page_table),
        cu_q_lens,
        layout.distribution(kv_lens, cu_q_lens, decodes_first=True),
        k=index_topk,
        compression_ratio=1,
        num_kv_pages_per_block=max(1, LANES // index_cache.shape[1]),  # the smallest block: 128 keys
        num_queries_per_block=INDEX_QUERIES,
    )


def _fp8_records(index_cache: jax.Array) -> jax.Array:
    """Keys as bytes `[float8_e4m3fn key | float8_e8m0fnu scale | 0]`, the scale always 1.0, padded to 128 lanes."""
    keys = jax.lax.bitcast_convert_type(index_cache.astype(FP8), jnp.uint8)
    head_dim = align(keys.shape[-1], LANES)
    width = align(head_dim + 1, LANES)
    keys = jnp.pad(keys, ((0, 0), (0, 0), (0, width - keys.shape[-1])))
    return keys.at[..., head_dim].set(SCALE_OF_ONE)


def _index_limits(batch: Batch) -> str | None:
    """The index cache is FP8: converting other keys would round them, and judge the adapter instead of the kernel."""
    keys = batch.index_cache.reshape(-1, batch.index_cache.shape[-1])[batch.owned].astype(np.float32)
    if (keys.astype(FP8).astype(np.float32) != keys).any():
        return "their index cache holds float8_e4m3fn, and the keys of this scenario are not representable in it"
    return layout.padding_between(batch)
