"""One compile in this process: trace, lower and compile a kernel for a chip that is not there, and read its figures."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding

from dsa_verify.compile import foreign
from dsa_verify.compile.cases import POOL_TOKENS, Case
from dsa_verify.compile.chips import CHIPS
from dsa_verify.compile.evidence import Figures
from dsa_verify.kernels.contract import SURFACES
from dsa_verify.kernels.providers import load_provider


def device_of(target: str) -> Any:
    """A device of the chip, as libtpu describes it; opens libtpu and raises what it raises."""
    return topologies.get_topology_desc(CHIPS[target].topology, "tpu").devices[0]


def kernel_of(case: Case, path: Path | None = None) -> Callable[..., Any]:
    """The function to compile. Raises `ProviderError`, and `KeyError` where the provider lacks the surface.

    The built-in provider tiles its kernels for small scenarios; their own defaults are what serving uses.
    """
    if case.provider == "builtin":
        from dsa_verify.kernels import pallas

        return getattr(pallas, case.surface)
    return load_provider(case.provider, path).kernels[case.surface].fn


def figures_of(case: Case, kernel: Callable[..., Any], device: Any) -> Figures:
    """Compile; where temporaries are as large as the pool, once more with twice the pool: a copy grows with it.

    Raises what tracing, lowering and compiling raise.
    """
    figures = _compile(case, kernel, device, POOL_TOKENS)
    if figures.temporaries < case.pool_bytes() or (case.provider, case.surface) in foreign.CONVERTED:
        return figures
    larger = _compile(case, kernel, device, 2 * POOL_TOKENS)
    growth = larger.temporaries - figures.temporaries
    return Figures(**{**vars(figures), "pool_growth": growth})


def _compile(case: Case, kernel: Callable[..., Any], device: Any, pool_tokens: int) -> Figures:
    statics, sharding, pools = case.statics(), SingleDeviceSharding(device), SURFACES[case.surface].pools
    specs = {name: jax.ShapeDtypeStruct(*array) for name, array in case.arrays(pool_tokens).items()}
    kernel, specs = foreign.in_own_layout(case, partial(kernel, **statics), specs)
    specs = {name: jax.ShapeDtypeStruct(spec.shape, spec.dtype, sharding=sharding) for name, spec in specs.items()}
    jitted = jax.jit(lambda **arrays: kernel(**arrays), donate_argnames=pools)
    # Kernels may ask which chip they are traced for; without a TPU only an abstract mesh can tell them.
    with jax.sharding.use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
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
