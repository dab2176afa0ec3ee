"""Runs one function over kernels and says what came out and what went wrong: natively on a TPU, simulated on a CPU."""

import functools
import platform
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

import numpy as np

from dsa_verify.errors import DsaVerifyError
from dsa_verify.runtime.watch import CallRecorder, Finding, Traffic

DmaMode = Literal["on_wait", "eager"]

# A simulated kernel is a chain of callbacks into Python, which no optimisation makes faster; compiling it without any
# takes a quarter to a third less time.
QUICK_COMPILE = {"xla_backend_optimization_level": "0"}

# Entries of the race detector's vector clocks. DMAs take them in turn, and two that share one hide races from each
# other; JAX's default leaves a single entry to all DMAs of a core.
_CLOCK_SLOTS = 256


@dataclass(frozen=True)
class Observation:
    """One call of a function.

    outputs: its results as fresh NumPy arrays (None where it returned None); None if a kernel in it failed.
    findings: faults of its kernels; always empty on a TPU, which shows none.
    seconds: wall time of the call, with tracing and compilation if `compiled`.
    compiled: this call traced the function.
    dma: copies between memory spaces; empty on a TPU.
    """

    outputs: tuple[np.ndarray | None, ...] | None
    findings: tuple[Finding, ...]
    seconds: float
    compiled: bool
    dma: tuple[Traffic, ...] = ()


@dataclass
class _Callable:
    """A jitted function and how often it was traced."""

    jitted: Callable[..., Any]
    traces: list[None] = field(default_factory=list)


def run(
    fn: Callable[..., Any],
    arrays: Mapping[str, np.ndarray],
    statics: Mapping[str, Hashable],
    *,
    dma: DmaMode = "on_wait",
    donate: tuple[str, ...] = (),
) -> Observation:
    """Calls `fn(**arrays, **statics)` under `jax.jit`, with every check that the machine offers.

    On a CPU every `pallas_call` inside, third-party code included, runs in TPU interpret mode: uninitialised memory is
    NaN (integers: their maximum), accesses are bounds-checked, races are recorded, `pltpu.get_tpu_info()` describes a
    v6e. `dma` chooses when copies happen: "on_wait" as late as a wait allows, so that a missing wait shows as NaN;
    "eager" at once, so that it shows as a race or a leftover semaphore count. On a TPU the function runs as it is, with
    the buffers of `donate` (names of `arrays`) donated; `dma` means nothing there.

    Args:
        fn: a jittable function of keyword arguments that returns an array or a tuple of arrays or None. A second call
            with the same function, statics, mode, shapes and dtypes does not trace again.
        arrays: its traced arguments. They are not changed.
        statics: its other arguments; they take part in the cache key.

    Raises:
        RuntimeUnsupported: the installed JAX cannot be watched.
        NotSimulated: a kernel does what the interpreter cannot simulate.
        Exception: whatever `fn` raises while it is traced, unchanged.
    """
    import jax

    native = jax.default_backend() == "tpu"
    prepared = _prepare(fn, tuple(sorted(statics.items())), dma, donate if native else (), native)
    traces, start = len(prepared.traces), time.perf_counter()
    if native:
        outputs, findings, traffic = _to_numpy(prepared.jitted(**arrays)), (), ()
    else:
        outputs, findings, traffic = _simulate(prepared.jitted, arrays, dma)
    seconds = time.perf_counter() - start
    return Observation(outputs, findings, seconds, len(prepared.traces) > traces, traffic)


@functools.lru_cache(maxsize=512)
def _prepare(fn: Callable[..., Any], statics: tuple, dma: DmaMode, donate: tuple[str, ...], native: bool) -> _Callable:
    """The jitted function of one (function, statics, mode); JAX keeps the compiled versions per shape in it."""
    import jax

    del dma  # only distinguishes the entries: the interpreter's settings are baked in when a function is traced
    traces: list[None] = []

    def traced(**arrays: Any) -> Any:
        traces.append(None)
        return fn(**arrays, **dict(statics))

    options = None if native else QUICK_COMPILE
    return _Callable(jax.jit(traced, donate_argnames=donate, compiler_options=options), traces)


def _simulate(
    jitted: Callable[..., Any], arrays: Mapping[str, np.ndarray], dma: DmaMode
) -> tuple[tuple[np.ndarray | None, ...] | None, tuple[Finding, ...], tuple[Traffic, ...]]:
    """Runs in interpret mode; a kernel that fails is a finding, and leaves nothing behind for the next call."""
    import jax

    from dsa_verify.runtime import private

    outputs = None
    with interpreted(dma) as recorder:
        try:
            outputs = _to_numpy(jitted(**arrays))
            jax.effects_barrier()
        except Exception:
            private.forget_failure()
            if isinstance(recorder.failure, DsaVerifyError):
                raise recorder.failure from None
            if recorder.failure is None:
                raise
    return outputs, recorder.findings, recorder.traffic


@contextmanager
def interpreted(dma: DmaMode = "on_wait") -> Iterator[CallRecorder]:
    """Within it, every kernel that is traced runs in interpret mode, as in `run`, and reports to the recorder.

    For programs that call kernels somewhere: they are traced and run inside it, and are done at its end. JAX's own
    `force_tpu_interpret_mode` is not enough: its callbacks take JAX arrays, and where all threads of a small machine
    wait in callbacks, none is left to make one, so that the program hangs.
    """
    import jax
    from jax.experimental.pallas import tpu as pltpu

    from dsa_verify.runtime import private

    recorder = CallRecorder(leftovers=dma == "eager")
    with private.watching(recorder), pltpu.force_tpu_interpret_mode(_interpreter(dma)):
        yield recorder
        jax.effects_barrier()


def _interpreter(dma: DmaMode) -> Any:
    """The interpreter's settings: every check on."""
    from jax.experimental.pallas import tpu as pltpu

    return pltpu.InterpretParams(
        dma_execution_mode=dma,
        detect_races=True,
        uninitialized_memory="nan",
        out_of_bounds_reads="raise",
        vector_clock_size=_CLOCK_SLOTS,
    )


def _to_numpy(results: Any) -> tuple[np.ndarray | None, ...]:
    results = results if isinstance(results, tuple | list) else (results,)
    return tuple(None if result is None else np.array(result) for result in results)


def environment() -> dict[str, str]:
    """Versions and device that results depend on; a package that is not installed reads "none"."""
    import jax

    def version(package: str) -> str:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "none"

    return {
        "python": platform.python_version(),
        **{package: version(package) for package in ("jax", "jaxlib", "libtpu", "numpy")},
        "backend": jax.default_backend(),
        "device_kind": jax.devices()[0].device_kind,
    }
