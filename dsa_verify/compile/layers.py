"""Whole backend layers, as an engine runs them: all kernels of a step in one program over a (data, tensor) mesh."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsa_verify.contract import SURFACES, Surface
from dsa_verify.errors import unknown_name
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.shapes import ModelShape

DATA = 2
"""Parts of the batch; the attention heads are split over the rest of the mesh."""
DECODE_PAGES = 128
"""Pages that a decode keeps, as sgl-project/sglang-jax#1478 serves GLM-5.2 (DSA_PAGE_TOPK=128)."""
PROVIDER = "builtin"
"""Whose kernels the backend runs."""


@dataclass(frozen=True)
class Program:
    """A full layer in one mode under one configuration, with the arrays of one part of the data."""

    mode: Literal["decode", "extend"]
    config: BackendConfig
    surface: Surface


def _joined(*names: str) -> dict[str, tuple[str, ...]]:
    arrays: dict[str, tuple[str, ...]] = {}
    for name in names:
        arrays |= SURFACES[name].arrays
    return arrays


def _program(name: str, mode: Literal["decode", "extend"], attention: str, selection: str, **switches: Any) -> Program:
    arrays = _joined(selection, attention, "sparse_mla_prefill")
    arrays["index_k"] = ("tokens", "index_head_dim")
    arrays = {key: axes for key, axes in arrays.items() if key != "topk_pages"}
    outputs = {**SURFACES[attention].outputs, "index_cache": arrays["index_cache"]}
    surface = Surface(
        name, "a whole full layer: write, choose, attend", arrays, (), outputs, decode_only=mode == "decode"
    )
    return Program(mode, BackendConfig(**switches), surface)


LAYERS: dict[str, Program] = {
    program.surface.name: program
    for program in (
        _program(
            "layer_prefill", "extend", "sparse_mla_prefill_qblock", "index_page_topk",
            prefill_sparse=True, indexer_kernel_prefill=True,
        ),
        _program("layer_decode", "decode", "sparse_mla_decode", "index_page_topk", page_topk=DECODE_PAGES),
    )
}  # fmt: skip
"""By the name that stands in the place of a surface's."""


def surface_of(name: str) -> Surface:
    """The surface, or what a layer takes and gives, of this name; raises `ConfigError` when there is none."""
    if name in LAYERS:
        return LAYERS[name].surface
    if name not in SURFACES:
        raise unknown_name("surface or layer", name, [*SURFACES, *LAYERS])
    return SURFACES[name]


def call_of(name: str, model: ModelShape, mesh: Any) -> Callable[..., Any]:
    """The layer as a function of its arrays by name, over the mesh."""
    from dsa_verify.model.backend import Caches, Inputs, Layer, Metadata, attend, path_of

    program = LAYERS[name]
    layer = Layer("full", model.index_topk, model.sm_scale)
    path = path_of(layer, program.mode, program.config, selected=False)

    def call(**arrays: Any) -> Any:
        inputs = Inputs(**_named(Inputs, arrays))
        caches, metadata = Caches(**_named(Caches, arrays)), Metadata(**_named(Metadata, arrays))
        return attend(layer, path, program.config, inputs, caches, metadata, None, mesh)

    return call


def _named(kind: Any, arrays: Mapping[str, Any]) -> dict[str, Any]:
    return {field: arrays[field] for field in kind._fields if field in arrays}


def mesh_of(devices: Any) -> Any:
    """Axes `data` and `tensor` over the devices."""
    import numpy as np
    from jax.sharding import Mesh

    return Mesh(np.array(devices).reshape(DATA, -1), ("data", "tensor"))


def over_data(arrays: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Arrays of one part of the data, as the whole mesh has them."""
    return {name: ((DATA * shape[0], *shape[1:]), dtype) for name, (shape, dtype) in arrays.items()}


def by_head(name: str) -> bool:
    """Whether an array is split over the tensor axis, on its second axis."""
    return name in ("ql_nope", "q_pe")
