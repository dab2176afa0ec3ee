"""One compile in this process: trace, lower and compile a kernel for a chip that is not there, and read its figures."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from dsa_verify.compile import foreign, layers
from dsa_verify.compile.cases import POOL_TOKENS, CompileCase
from dsa_verify.compile.chips import CHIPS
from dsa_verify.compile.evidence import Figures
from dsa_verify.kernels.providers import load_provider
from dsa_verify.shapes import shape_named


def devices_of(case: CompileCase) -> list[Any]:
    """A device of the chip, or those of a mesh for a layer, as libtpu describes them; raises what libtpu raises."""
    chip = CHIPS[case.target]
    if case.surface in layers.LAYERS:
        return list(topologies.get_topology_desc(chip.mesh, "tpu").devices)
    return topologies.get_topology_desc(chip.topology, "tpu").devices[:1]


def kernel_of(case: CompileCase, devices: list[Any], path: Path | None = None) -> Callable[..., Any]:
    """The function to compile. Raises `ProviderError`, and `KeyError` where the provider lacks the surface.

    devices: of a layer's mesh. The built-in provider tiles its kernels for small scenarios; their own defaults are what
    serving uses.
    """
    if case.surface in layers.LAYERS:
        return layers.call_of(case.surface, shape_named(case.model), layers.mesh_of(devices))
    if (case.provider, case.surface) in foreign.UNRUN:
        from dsa_verify.kernels.providers.tpu_inference import sparse_mla

        return sparse_mla()
    if case.provider == "builtin":
        from dsa_verify.kernels import pallas

        return getattr(pallas, case.surface)
    return load_provider(case.provider, path).kernels[case.surface].fn


def figures_of(case: CompileCase, kernel: Callable[..., Any], devices: list[Any]) -> Figures:
    """Compile; where temporaries are as large as the pool, once more with twice the pool: a copy grows with it.

    Raises what tracing, lowering and compiling raise.
    """
    figures = _compile(case, kernel, devices, POOL_TOKENS)
    if figures.temporaries < case.pool_bytes() or (case.provider, case.surface) in foreign.CONVERTED:
        return figures
    larger = _compile(case, kernel, devices, 2 * POOL_TOKENS)
    growth = larger.temporaries - figures.temporaries
    return Figures(**{**vars(figures), "pool_growth": growth})


def _compile(case: CompileCase, kernel: Callable[..., Any], devices: list[Any], pool_tokens: int) -> Figures:
    statics, pools = case.statics(), layers.surface_of(case.surface).pools
    mesh, placed = _placement(case, devices)
    kernel = partial(kernel, **statics)
    if (case.provider, case.surface) in foreign.UNRUN:
        specs = foreign.unrun_specs(case, pool_tokens)
    else:
        specs = {name: jax.ShapeDtypeStruct(*array) for name, array in case.arrays(pool_tokens).items()}
        kernel, specs = foreign.in_own_layout(case, kernel, specs)
    specs = {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=placed(name)) for name, spec in specs.items()}
    jitted = jax.jit(lambda **arrays: kernel(**arrays), donate_argnames=pools)
    # Kernels may ask which chip they are traced for; without a TPU only an abstract mesh can tell them.
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        lowered = jitted.trace(**specs).lower(lowering_platforms=("tpu",))
    compiled = lowered.compile()
    memory: Any = compiled.memory_analysis()
    text = _text(compiled)
    return Figures(
        temporaries=memory.temp_size_in_bytes,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        vmem=_largest("used_scoped_memory_configs", text),
        vmem_limit=_largest("scoped_memory_configs", text),
    )


def _placement(case: CompileCase, devices: list[Any]) -> tuple[Mesh, Callable[[str], Any]]:
    """The mesh that a program is traced under, and where each of its arrays lies."""
    if case.surface not in layers.LAYERS:
        return Mesh(np.array(devices), ("x",)), lambda name: SingleDeviceSharding(devices[0])
    mesh = layers.mesh_of(devices)
    by_data, by_head = PartitionSpec("data"), PartitionSpec("data", "tensor")
    return mesh, lambda name: NamedSharding(mesh, by_head if layers.by_head(name) else by_data)


def _text(compiled: Any) -> str:
    """The program's HLO, or nothing where this JAX cannot print what this libtpu made."""
    try:
        return compiled.as_text()
    except Exception:
        return ""


def _largest(key: str, text: str) -> int | None:
    """The largest VMEM (memory space 1) in the configurations of this key; None for a program that shows none."""
    lists = re.findall(rf'"{key}":\[(.*?)\]', text)
    sizes = [int(size) for found in lists for size in re.findall(r'"memory_space":"1".*?"size":"(\d+)"', found)]
    return max(sizes, default=None)
