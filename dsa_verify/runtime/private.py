"""The adapter to JAX's TPU interpreter, and the only file that names private parts of JAX.

Interpret mode has no public way to see what a kernel does, so this file replaces a handful of private functions and
classes while a call runs: memory accesses (to reach through reshaped refs and to place faults), semaphores (dead
waits), DMAs (bytes moved), race detection and the callback entry (speed). What they learn goes to a `Recorder`.
Everything private is looked up once, in `internals`, so that a JAX that moved something is refused with one clear
error instead of a silent loss of checks.
"""

import contextlib
import functools
import importlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsa_verify.errors import DsaVerifyError, RuntimeUnsupported
from dsa_verify.runtime import refs
from dsa_verify.runtime.races import Access, Region
from dsa_verify.runtime.watch import DeadWait, Recorder

SUPPORTED = "0.10.2 and 0.12.*"

_MODULES = {
    "interpreter": "jax._src.pallas.mosaic.interpret.interpret_pallas_call",
    "memory": "jax._src.pallas.mosaic.interpret.shared_memory",
    "indexing": "jax._src.state.indexing",
    "state": "jax._src.state.types",
    "tpu_info": "jax._src.pallas.mosaic.tpu_info",
    "source": "jax._src.source_info_util",
    "callback": "jax._src.callback",
}

# Every private name that this file uses, replaces or overrides, by the module above that it belongs to.
_NAMES = {
    "interpreter": (
        "get.__wrapped__ store.__wrapped__ swap.__wrapped__ fail_on_exception _get_shared_memory "
        "_local_core_id_or_zero_if_hbm TPU_MEMORY_SPACE_NAMES RaceDetectionState DMA.execute_read DmaState.STARTED"
    ),
    "memory": (
        "Semaphore.wait SharedMemory.set_failed SharedMemory.get_sempahores_with_nonzero_count "
        "SharedMemory.get_random_virtual_device_id"
    ),
    "indexing": "NDIndexer Slice",
    "state": "ReshapeTransform BitcastTransform TransposeTransform",
    "tpu_info": "registry get_tpu_info_for_chip ChipVersion.TPU_V6E",
    "source": "summarize",
    "callback": "io_callback_impl _FlatCallback",
}


@functools.lru_cache(maxsize=1)
def internals() -> dict[str, Any]:
    """The private modules by short name, after a check that each still has every name in use.

    Raises:
        RuntimeUnsupported: a name moved; the text gives it, the JAX found and the versions that are known to work.
    """
    found = {}
    for short, path in _MODULES.items():
        try:
            found[short] = importlib.import_module(path)
        except ImportError as error:
            raise _moved(path) from error
        for name in _NAMES[short].split():
            owner = found[short]
            for part in name.split("."):
                if not hasattr(owner, part):
                    raise _moved(f"{path}.{name}")
                owner = getattr(owner, part)
    return found


def _moved(name: str) -> RuntimeUnsupported:
    import jax

    return RuntimeUnsupported(
        f"JAX {jax.__version__} has no {name}, which interpret mode on CPU relies on; supported are JAX {SUPPORTED}"
    )


_CLOCK_SLOTS = 256  # entries of the vector clocks: DMAs closer than this in time never share one, so races are not lost
_CORES_MAY_SIGNAL_S = 60  # how long a core waits for another core before its wait counts as dead
_lock = threading.Lock()
_recorder = Recorder(leftovers=False)  # of the call in progress


def interpret_params(dma: str) -> Any:
    """Interpreter settings with every check on; `dma` is "on_wait" or "eager"."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(
        dma_execution_mode=dma,
        detect_races=True,
        uninitialized_memory="nan",
        out_of_bounds_reads="raise",
        vector_clock_size=_CLOCK_SLOTS,
    )


@contextlib.contextmanager
def watching(recorder: Recorder) -> Iterator[None]:
    """Within it, interpreted kernels report to `recorder`, and `get_tpu_info()` on a CPU describes a TPU v6e.

    One call at a time: the interpreter's state is one per process. Kernels must be lowered and run inside it.
    """
    global _recorder
    with _lock, contextlib.ExitStack() as undo:
        parts = internals()
        for owner, name, replacement in _replacements():
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, replacement)
        chips, info = parts["tpu_info"].registry, parts["tpu_info"]
        undo.callback(chips.pop, "cpu", None)
        chips["cpu"] = lambda: info.get_tpu_info_for_chip(info.ChipVersion.TPU_V6E, 1)
        _recorder = recorder
        yield


@functools.lru_cache(maxsize=1)
def _replacements() -> tuple[tuple[Any, str, Any], ...]:
    """(module, name, what stands there while a call runs); built once, since compiled kernels hold on to them."""
    parts = internals()
    interpreter, memory = parts["interpreter"], parts["memory"]
    return (
        *((interpreter, name, _access(getattr(interpreter, name), name)) for name in ("get", "store", "swap")),
        (interpreter, "DMA", _dma()),
        (interpreter, "RaceDetectionState", _Races),
        (memory, "SharedMemory", _shared_memory()),
        (memory, "Semaphore", _semaphore()),
        (parts["callback"], "io_callback_impl", _callback()),
    )


# ---- memory accesses


def _access(original: Callable, operation: str) -> Callable:
    """`get`, `store` or `swap` of the interpreter, with views, exact bounds and the kernel line on every error."""
    import jax

    interpreter = internals()["interpreter"]
    raw = original.__wrapped__

    @functools.wraps(original)
    def access(token, device, core, space, buffer, transforms, *rest, source_info=None, **named):
        def call(transforms, *values, function=raw):
            return function(token, device, core, space, buffer, transforms, *values, source_info=source_info, **named)

        try:
            if "input_name" in named or "output_name" in named:  # a block: the interpreter's own errors name it
                result = call(transforms, *rest)
                _recorder.copied(*("hbm", "block") if operation == "get" else ("block", "hbm"), _nbytes(result, rest))
                return result
            stored = _stored(device, core, space, buffer)
            transforms = jax.tree.map(int, transforms)
            return _reach(operation, token, stored, transforms, rest, call)
        except Exception as error:
            error.add_note(f"({_where(source_info)})")
            raise

    return interpreter.fail_on_exception(access)
