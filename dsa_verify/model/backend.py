"""The DSA attention backend: which kernels a layer runs in a step, what it writes, and what it hands to the next layer.

One decision, made from what is static (`paths_of`), handed to the report and to what carries it out (`attend`), so that
the report of what ran cannot differ from what ran:

    layer              mode            attention                     selection
    full, no indexer   any             dense_mla                     none; shared layers behind it have nothing to reuse
    full               decode          sparse_mla_decode             own: a page budget, or token top-k and its pages
    full               extend, mixed   dense_mla                     none, but index keys are written (sparse is off)
    full               extend, mixed   sparse_mla_prefill[_qblock]   own: the best pages of every query
    shared             decode          sparse_mla_decode             the last full layer's
    shared             extend, mixed   dense_mla or sparse           none, or the last full layer's

A leading layer is not dense for being first: a full layer that has an indexer uses it wherever it stands. A mixed step
takes its decodes as extends of one token. Source of these rules: SGLang-JAX, srt/layers/attention (DSA backend); the
code is not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from dsa_verify.batch.ragged import RaggedStep
from dsa_verify.errors import ContractError
from dsa_verify.kernels.jnp.ragged import fixed_stride, pages_of
from dsa_verify.model.backend_config import BackendConfig

Mode = Literal["decode", "extend", "mixed"]

MOST_UNION_PAGES = 512
"""Pages that the union of a token top-k may have; a longer one would be cut, so such a configuration is refused."""


@dataclass(frozen=True)
class Layer:
    """What is static of one layer. `indexer`: whether a full layer has one; shared layers have none of their own."""

    kind: Literal["full", "shared"]
    index_topk: int
    sm_scale: float
    indexer: bool = True


@dataclass(frozen=True)
class LayerPath:
    """What ran: the attention surface, where its selection comes from, and who computed that.

    selection: `none`, `keys` (written, nothing chosen), `pages`, `tokens`, or `shared`.
    """

    attention: str
    selection: str
    indexer: str = ""

    @property
    def selects(self) -> bool:
        """Whether a shared layer behind this one has a selection to reuse."""
        return self.selection not in ("none", "keys")

    def __str__(self) -> str:
        return f"{self.attention}, {self.selection}{f' by {self.indexer}' if self.indexer else ''}"


class Metadata(NamedTuple):
    """A `dsa_verify.batch.ragged.RaggedStep` on a device.

    page_table is i32[seqs, pages_per_seq], or i32[seqs * pages_per_seq] packed: sequence i starts at
    `cu_kv_lens[i] // page_size`, its page-aligned prefix sum, which only a packed table needs.
    """

    kv_lens: jax.Array
    cu_q_lens: jax.Array
    page_table: jax.Array
    positions: jax.Array
    out_cache_loc: jax.Array
    cu_kv_lens: jax.Array | None = None

    @classmethod
    def of(cls, step: RaggedStep) -> "Metadata":
        """The arrays of a step, its page table as it is."""
        arrays = (step.kv_lens, step.cu_q_lens, step.page_table, step.positions, step.out_cache_loc)
        return cls(*map(jnp.asarray, arrays))


class Inputs(NamedTuple):
    """What a layer's projections made of the step's tokens; the index part is None without an indexer."""

    ql_nope: jax.Array
    q_pe: jax.Array
    new_c_kv: jax.Array
    new_k_pe: jax.Array
    index_q: jax.Array | None = None
    index_k: jax.Array | None = None
    index_weights: jax.Array | None = None


class Caches(NamedTuple):
    """The pools of one layer; shared layers have no index cache."""

    cache_kv: jax.Array
    index_cache: jax.Array | None = None


class Selection(NamedTuple):
    """What a full layer chose, for itself and the shared layers behind it: i32[tokens, k] each, -1 fills the tail."""

    pages: jax.Array
    tokens: jax.Array | None = None


class Output(NamedTuple):
    """Attention output [tokens, heads, kv_lora_rank], the pools after the step, and the selection to hand on."""

    out: jax.Array
    caches: Caches
    selection: Selection | None


def path_of(layer: Layer, mode: Mode, config: BackendConfig, selected: bool) -> LayerPath:
    """What a layer runs. `selected`: whether a full layer before it in this step chose something.

    Raises `ContractError` for a shared layer that has nothing to reuse.
    """
    own = layer.kind == "full"
    if own and not layer.indexer:
        return LayerPath("dense_mla", "none")
    exact = config.granularity == "token"
    if mode != "decode" and not (config.prefill_sparse or exact):
        return LayerPath("dense_mla", "keys" if own else "none")
    if not own and not selected:
        raise _nothing_to_reuse(f"this {mode} step")
    if exact:
        return LayerPath("sparse_mla_tokens", *(("tokens", "jnp") if own else ("shared",)))
    if mode == "decode":
        by_pages = config.page_topk > 0
        indexer = "pallas" if config.indexer_kernel and not by_pages else "jnp"
        return LayerPath("sparse_mla_decode", *(("pages" if by_pages else "tokens", indexer) if own else ("shared",)))
    attention = "sparse_mla_prefill_qblock" if config.prefill_qblock else "sparse_mla_prefill"
    return LayerPath(
        attention, *(("pages", "pallas" if config.indexer_kernel_prefill else "jnp") if own else ("shared",))
    )


def paths_of(layers: Sequence[Layer], mode: Mode, config: BackendConfig) -> tuple[LayerPath, ...]:
    """What each layer of a model runs in a step of this mode; carried out by `attend`, and the report of what ran."""
    paths: list[LayerPath] = []
    for layer in layers:
        paths.append(path_of(layer, mode, config, selected=bool(paths) and paths[-1].selects))
    return tuple(paths)


def _nothing_to_reuse(where: str) -> ContractError:
    return ContractError(
        f"a shared layer reuses the selection of the full layer before it, and none has made one in {where}; begin "
        f"with a full layer that has an indexer."
    )


def attend(
    layer: Layer,
    path: LayerPath,
    config: BackendConfig,
    inputs: Inputs,
    caches: Caches,
    metadata: Metadata,
    selection: Selection | None = None,
    mesh: Mesh | None = None,
) -> Output:
    """Run one layer: write its keys and latents, choose, attend.

    Args:
      path: what it runs, as `path_of` decided.
      selection: of the last full layer in this step; a shared layer hands it on as it is.
      mesh: axes `data` and `tensor`. Every array is split over `data` on its first axis, each part a step of its own
        with its own pool; attention heads are split over `tensor`, on which the indexer is replicated, because its
        score sums over all index heads.

    Raises `ContractError` for a shared layer without a selection and for calls outside a surface's contract.
    """
    if path.selection == "shared" and selection is None:
        raise _nothing_to_reuse("this step")
    if layer.kind == "full" and layer.indexer != (inputs.index_q is not None):
        raise ContractError(
            f"a full layer with indexer={layer.indexer} was given index_q={inputs.index_q is not None}."
        )

    def local(inputs: Inputs, caches: Caches, metadata: Metadata, selection: Selection | None) -> Output:
        return _local(path, layer, config, inputs, caches, metadata, selection)

    operands = (inputs, caches, metadata, selection)
    return local(*operands) if mesh is None else _over(mesh, local, *operands)


def _over(mesh: Mesh, local: Callable[..., Output], inputs: Inputs, *others: Any) -> Output:
    """One step on every part of the data, heads split over `tensor`."""
    by_data: Any = PartitionSpec("data")  # a specification stands in the place of each array
    by_head: Any = PartitionSpec("data", "tensor")
    of_inputs = inputs._replace(**{name: by_data for name, value in inputs._asdict().items() if value is not None})
    specs = (of_inputs._replace(ql_nope=by_head, q_pe=by_head), *[by_data] * len(others))
    mapped = jax.shard_map(
        local, mesh=mesh, in_specs=specs, out_specs=Output(by_head, by_data, by_data), check_vma=False
    )
    return mapped(inputs, *others)


def _local(
    path: LayerPath,
    layer: Layer,
    config: BackendConfig,
    inputs: Inputs,
    caches: Caches,
    metadata: Metadata,
    selection: Selection | None,
) -> Output:
    """One layer on one device, its path decided."""
    if metadata.page_table.ndim == 1:
        if metadata.cu_kv_lens is None:
            raise ContractError("a packed page table needs cu_kv_lens, the page-aligned prefix sum of kv_lens.")
        table = fixed_stride(metadata.page_table, metadata.cu_kv_lens, caches.cache_kv.shape[1])
        metadata = metadata._replace(page_table=table)
    if path.selection != "shared":
        selection = None
    index_cache = caches.index_cache
    if path.selection in ("keys", "pages", "tokens"):
        assert inputs.index_k is not None and index_cache is not None
        write = _function(config.kernels, "write_rows")
        index_cache = write(inputs.index_k.astype(index_cache.dtype), index_cache, metadata.out_cache_loc)
    if path.selection in ("pages", "tokens"):
        assert index_cache is not None
        selection = _select(path, layer, config, inputs, index_cache, metadata)
    out, cache_kv = _attention(path, layer, config, inputs, caches.cache_kv, metadata, selection)
    return Output(out, Caches(cache_kv, index_cache), selection)


def _select(
    path: LayerPath, layer: Layer, config: BackendConfig, inputs: Inputs, index_cache: jax.Array, metadata: Metadata
) -> Selection:
    assert inputs.index_q is not None
    page_size, width = index_cache.shape[1], metadata.page_table.shape[1]
    arrays = dict(
        index_q=inputs.index_q.astype(index_cache.dtype),
        index_weights=inputs.index_weights,
        index_cache=index_cache,
        kv_lens=metadata.kv_lens,
        cu_q_lens=metadata.cu_q_lens,
        page_table=metadata.page_table,
    )
    if path.selection == "pages":
        budget = layer.index_topk
        if path.attention == "sparse_mla_decode":
            budget = min(config.page_topk, width) * page_size
        return Selection(_function(path.indexer, "index_page_topk")(**arrays, index_topk=budget))
    tokens = _function(path.indexer, "index_topk")(**arrays, index_topk=layer.index_topk)
    if path.attention == "sparse_mla_tokens":
        return Selection(tokens[:, :0], tokens)
    most = min(width, layer.index_topk)
    if most > MOST_UNION_PAGES:
        raise ContractError(
            f"a top-k of {layer.index_topk} tokens may lie in {most} pages of {page_size}, more than the "
            f"{MOST_UNION_PAGES} that a decode attends; use larger pages, or a page budget (page_topk)."
        )
    return Selection(pages_of(tokens, page_size, most), tokens)


def _attention(
    path: LayerPath,
    layer: Layer,
    config: BackendConfig,
    inputs: Inputs,
    cache_kv: jax.Array,
    metadata: Metadata,
    selection: Selection | None,
) -> tuple[jax.Array, jax.Array]:
    latent = dict(
        ql_nope=inputs.ql_nope,
        q_pe=inputs.q_pe,
        new_c_kv=inputs.new_c_kv,
        new_k_pe=inputs.new_k_pe,
        cache_kv=cache_kv,
        page_table=metadata.page_table,
        sm_scale=layer.sm_scale,
    )
    run = _function(config.kernels, path.attention)
    if path.attention == "dense_mla":
        return run(**latent, kv_lens=metadata.kv_lens, cu_q_lens=metadata.cu_q_lens)
    assert selection is not None
    if path.attention == "sparse_mla_decode":
        return run(**latent, topk_pages=selection.pages, kv_lens=metadata.kv_lens)
    places = dict(positions=metadata.positions, out_cache_loc=metadata.out_cache_loc, cu_q_lens=metadata.cu_q_lens)
    if path.attention == "sparse_mla_tokens":
        return run(**latent, topk_indices=selection.tokens, **places)
    blocks = {}
    if config.kernels == "pallas" and path.attention.endswith("qblock"):
        blocks = {"query_block": min(config.query_block, inputs.ql_nope.shape[0])}
    out, *_, cache = run(**latent, topk_pages=selection.pages, **places, **blocks)
    return out, cache


def _function(kernels: str, name: str) -> Callable[..., Any]:
    """A surface's function of one of the two built-in sets, at its own tiling, or one of its helpers."""
    from dsa_verify.kernels.providers import serving

    provider = serving(kernels)
    return provider.kernels[name].fn if name in provider.kernels else provider.helpers[name]
