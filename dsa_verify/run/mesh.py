"""One kernel over a mesh of all devices, of one process or of many; what this process can address of the outcome.

Over `data`, every device row takes a step of its own; over `tensor`, heads are split and all else is replicated.

In interpret mode the program is the global one too; its devices wait for each other within a process only, so copies
and semaphores between devices of two processes are not simulated.
"""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsa_verify import runtime
from dsa_verify.batch import Batch
from dsa_verify.contract import Kernel, Surface, check_call, surface_named
from dsa_verify.errors import ConfigError, DsaVerifyError, NotSimulated, ProviderError, RuntimeUnsupported
from dsa_verify.run.verify import batch_axes, named, on_device
from dsa_verify.runtime.run import QUICK_COMPILE

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec

HEADS = 4
"""Attention heads of the mini shapes, which nearly all scenarios have: over more devices they cannot be split."""

_BY_DATA = ("tokens", "seqs", "seqs+1", "pages")


@dataclass(frozen=True)
class Grid:
    """The shape of a mesh: device rows that each take a step, and devices in a row that share its heads."""

    data: int
    tensor: int

    def __str__(self) -> str:
        return f"{self.data}x{self.tensor}"


@dataclass(frozen=True)
class DevicePart:
    """What one device holds after a run: its place in the mesh, which heads, and the outputs by name."""

    data: int
    tensor: int
    heads: slice
    outputs: Mapping[str, np.ndarray]

    def batch(self, batch: Batch) -> Batch:
        """The batch that this part is the answer to, out of its step's."""
        return batch.replace(ql_nope=batch.ql_nope[:, self.heads], q_pe=batch.q_pe[:, self.heads])

    def __str__(self) -> str:
        first = f" (its head 0 is head {self.heads.start})" if self.heads.start else ""
        return f"data {self.data}, tensor {self.tensor}{first}"


def parse(text: str) -> Grid:
    """`2x4` as two steps, the heads of each on four devices. Raises `ConfigError`."""
    data, cross, tensor = text.partition("x")
    if cross and data.isdecimal() and tensor.isdecimal() and int(data) and int(tensor):
        return Grid(int(data), int(tensor))
    raise ConfigError(f"--mesh expects DATAxTENSOR, as in 2x4, found {text!r}")


def chosen(text: str | None) -> Grid | None:
    """The grid that was asked for; without one, none in one process, and in several one of all devices.

    Raises `ConfigError`.
    """
    import jax

    if text is not None:
        return parse(text)
    if jax.process_count() == 1:
        return None
    tensor = math.gcd(jax.local_device_count(), HEADS)
    return Grid(jax.device_count() // tensor, tensor)


def check_devices(grid: Grid) -> None:
    """Refuse a grid that does not take every device of every process. Raises `ConfigError`."""
    import jax

    if grid.data * grid.tensor != jax.device_count():
        raise ConfigError(
            f"--mesh {grid} takes {grid.data * grid.tensor} devices, but there are {jax.device_count()} in "
            f"{jax.process_count()} processes; name a mesh of all of them (on a CPU, XLA_FLAGS="
            f"--xla_force_host_platform_device_count=N makes N a process)"
        )


def run(surface: Surface, kernel: Kernel, batches: list[Batch], grid: Grid) -> tuple[list[DevicePart], tuple[Any, ...]]:
    """Run one step on each device row; what the devices of this process hold then, and what the runtime found.

    Raises `ContractError` for batches outside the contract, `ProviderError` for a kernel that raises or returns
    something other than the contract's outputs.
    """
    import jax
    from jax.sharding import NamedSharding

    mesh = _mesh(grid)
    statics = {name: getattr(batches[0], name) for name in surface.statics}
    arrays = {name: _joined(surface, batches, name) for name in surface.arrays}
    placed = {
        name: jax.make_array_from_callback(x.shape, NamedSharding(mesh, spec(surface.arrays[name])), x.__getitem__)
        for name, x in arrays.items()
    }
    width = batches[0].ql_nope.shape[1] // (grid.tensor if surface.attends else 1)
    one = DevicePart(0, 0, slice(0, width), {}).batch(batches[0])
    axes = check_call(surface, {name: one.operand(name, name in surface.pools) for name in surface.arrays}, statics)
    program = _program(surface.name, kernel.fn, tuple(statics.items()), mesh)
    with nullcontext() if on_device() else runtime.interpreted() as recorder:
        try:
            outputs = program(placed)
            jax.block_until_ready(outputs)
        except (NotSimulated, RuntimeUnsupported):
            raise
        except Exception as error:
            return _failed(error, recorder)
    parts = list(_parts(surface, outputs, one, axes, mesh))
    return parts, () if recorder is None else recorder.findings


def _failed(error: Exception, recorder) -> tuple[list[DevicePart], tuple[Any, ...]]:
    """What a kernel that failed leaves: findings where the interpreter made some, else `ProviderError`."""
    if recorder is not None:
        from dsa_verify.runtime import private

        private.forget_failure()
        if isinstance(recorder.failure, DsaVerifyError):
            raise recorder.failure from None
        if recorder.findings:
            return [], recorder.findings
    raise ProviderError(f"the kernel raised {type(error).__name__}: {error}") from error


@functools.lru_cache
def _mesh(grid: Grid):
    import jax
    from jax.sharding import AxisType

    return jax.make_mesh((grid.data, grid.tensor), ("data", "tensor"), (AxisType.Auto,) * 2)


def spec(axes: tuple[str, ...]) -> "PartitionSpec":
    """How an array with these axes of the contract is split: steps over `data`, heads over `tensor`, weights not."""
    from jax.sharding import PartitionSpec

    return PartitionSpec(*("data" if axis in _BY_DATA else "tensor" if axis == "heads" else None for axis in axes))


def _joined(surface: Surface, batches: list[Batch], name: str) -> np.ndarray:
    found = [batch.operand(name, name in surface.pools) for batch in batches]
    return np.concatenate(found) if surface.arrays[name][0] in _BY_DATA else found[0]


@functools.lru_cache(maxsize=64)
def _program(name: str, fn: Callable[..., Any], statics: tuple, mesh):
    """The jitted program of all devices; compiled once for all steps of one shape."""
    import jax

    surface = surface_named(name)

    def local(arrays: dict[str, Any]) -> dict[str, Any]:
        results = fn(**arrays, **dict(statics))
        results = results if isinstance(results, tuple | list) else (results,)
        if len(results) != len(surface.outputs):
            raise ProviderError(f"the kernel returned {len(results)} outputs, expected {', '.join(surface.outputs)}")
        return dict(zip(surface.outputs, results, strict=True))

    def program(arrays: dict[str, Any]) -> dict[str, Any]:
        specs = {name: spec(surface.arrays[name]) for name in arrays}
        due = {name: spec(axes) for name, axes in surface.outputs.items()}
        # Interpret mode's callbacks do not say what is replicated.
        return jax.shard_map(local, mesh=mesh, in_specs=(specs,), out_specs=due, check_vma=False)(arrays)

    # As for a kernel alone, so that both are the same bit for bit.
    return jax.jit(program, compiler_options=None if on_device() else QUICK_COMPILE)


def _parts(
    surface: Surface, outputs: Mapping[str, Any], one: Batch, axes: Mapping[str, int], mesh
) -> Iterator[DevicePart]:
    """What each device of this process holds, in the order of the mesh. one: the batch of a device."""
    import jax

    width = one.ql_nope.shape[1]
    held = {
        name: {shard.device: np.asarray(shard.data) for shard in value.addressable_shards}
        for name, value in outputs.items()
        if value is not None
    }
    for (data, tensor), device in np.ndenumerate(mesh.devices):
        if device.process_index != jax.process_index():
            continue
        mine = tuple(held[name][device] if name in held else None for name in surface.outputs)
        at = tensor * width if surface.attends else 0
        yield DevicePart(data, tensor, slice(at, at + width), named(surface, mine, {**axes, **batch_axes(one)}))
