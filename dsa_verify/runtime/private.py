"""The adapter to JAX's TPU interpreter, and the only file that names private parts of JAX.

Interpret mode has no public way to see what a kernel does, so this file replaces a handful of private functions and
classes while a call runs: memory accesses (to reach through reshaped refs and to place faults), semaphores (dead
waits), DMAs (bytes moved), race detection and the callback entry (speed). What they learn goes to a `CallRecorder`.
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
from typing import Any
from unittest import mock

import numpy as np

from dsa_verify.errors import NotSimulated, RuntimeUnsupported
from dsa_verify.runtime import refs
from dsa_verify.runtime.access import Root, Step, perform
from dsa_verify.runtime.races import Access
from dsa_verify.runtime.watch import CallRecorder, DeadWait, Patience

_INTERPRET = "jax._src.pallas.mosaic.interpret"

# Every private module in use, by a short name, with every name of it that this file uses, replaces or overrides.
_NAMES = {
    "interpreter": (
        f"{_INTERPRET}.interpret_pallas_call",
        "get.__wrapped__ store.__wrapped__ swap.__wrapped__ fail_on_exception _get_shared_memory "
        "_local_core_id_or_zero_if_hbm TPU_MEMORY_SPACE_NAMES RaceDetectionState DMA.execute_read DmaState.STARTED",
    ),
    "memory": (
        f"{_INTERPRET}.shared_memory",
        "Semaphore.wait SharedMemory.set_failed SharedMemory.get_sempahores_with_nonzero_count "
        "SharedMemory.get_random_virtual_device_id",
    ),
    "indexing": ("jax._src.state.indexing", "NDIndexer Slice"),
    "state": ("jax._src.state.types", "ReshapeTransform BitcastTransform TransposeTransform"),
    "tpu_info": ("jax._src.pallas.mosaic.tpu_info", "registry get_tpu_info_for_chip ChipVersion.TPU_V6E"),
    "source": ("jax._src.source_info_util", "summarize"),
    "callback": ("jax._src.callback", "io_callback_impl _FlatCallback"),
    "dispatch": ("jax._src.dispatch", "runtime_tokens.block_until_ready runtime_tokens.clear"),
}


@functools.lru_cache(maxsize=1)
def internals() -> dict[str, Any]:
    """The private modules by short name, after a check that each still has every name in use.

    Raises:
        RuntimeUnsupported: a name moved; the text gives it, the JAX found and the versions that are known to work.
    """
    found = {}
    for short, (path, names) in _NAMES.items():
        try:
            found[short] = importlib.import_module(path)
        except ImportError as error:
            raise _moved(path) from error
        for name in names.split():
            try:
                functools.reduce(getattr, name.split("."), found[short])
            except AttributeError:
                raise _moved(f"{path}.{name}") from None
    return found


def _moved(name: str) -> RuntimeUnsupported:
    import jax

    return RuntimeUnsupported(
        f"JAX {jax.__version__} has no {name}, which runs on a CPU rely on; supported are JAX 0.10.2 and 0.12.*"
    )


_lock = threading.RLock()
_recorder = CallRecorder(leftovers=False)  # of the call in progress


@contextlib.contextmanager
def watching(recorder: CallRecorder) -> Iterator[None]:
    """Within it, interpreted kernels report to `recorder`, and `get_tpu_info()` on a CPU describes a TPU v6e.

    One call at a time: the interpreter's state is one per process. Kernels must be lowered and run inside it.
    """
    global _recorder
    info = internals()["tpu_info"]
    chip = {"cpu": lambda: info.get_tpu_info_for_chip(info.ChipVersion.TPU_V6E, 1)}
    with _lock, contextlib.ExitStack() as replaced:
        for owner, name, replacement in _replacements():
            replaced.enter_context(mock.patch.object(owner, name, replacement))
        replaced.enter_context(mock.patch.dict(info.registry, chip))
        previous, _recorder = _recorder, recorder
        try:
            yield
        finally:
            _recorder = previous


def forget_failure() -> None:
    """After a kernel failed: waits until nothing of it runs, then drops what it left in JAX and in the interpreter."""
    from jax.experimental.pallas import tpu as pltpu

    tokens = internals()["dispatch"].runtime_tokens
    with contextlib.suppress(Exception):
        tokens.block_until_ready()
    tokens.clear()  # else the failure is raised once more when the process ends
    pltpu.reset_tpu_interpret_mode_state()


@functools.lru_cache(maxsize=1)
def _replacements() -> tuple[tuple[Any, str, Any], ...]:
    """(module, name, what stands there while a call runs); built once, since compiled kernels hold on to them."""
    parts = internals()
    interpreter, memory = parts["interpreter"], parts["memory"]
    return (
        *((interpreter, name, _access(name)) for name in ("get", "store", "swap")),
        (interpreter, "DMA", _dma()),
        (interpreter, "RaceDetectionState", _Races),
        (memory, "SharedMemory", _shared_memory()),
        (memory, "Semaphore", _semaphore()),
        (parts["callback"], "io_callback_impl", _callback()),
    )


@functools.lru_cache(maxsize=1)
def _originals() -> dict[str, Callable]:
    """The interpreter's own get, store and swap, without the wrapper that marks a kernel as failed."""
    return {name: getattr(internals()["interpreter"], name).__wrapped__ for name in ("get", "store", "swap")}


def _access(name: str) -> Callable:
    """What stands in for the interpreter's get, store or swap: views, exact bounds, the kernel's line on errors."""
    original = _originals()[name]

    @functools.wraps(original)
    def access(
        token: Any, device: Any, core: Any, space: Any, buffer: Any, transforms: Any, *rest: Any, **named: Any
    ) -> Any:
        try:
            if "input_name" in named or "output_name" in named:  # a block: the interpreter's own errors name it
                result = original(token, device, core, space, buffer, transforms, *rest, **named)
                route, block = (("hbm", "block"), result[1]) if name == "get" else (("block", "hbm"), rest[0])
                _recorder.copied(*route, block.nbytes)
                return result
            place = (token, int(device), int(core), int(space), int(buffer))
            root, steps = _resolve(name, place, transforms, named)
            result = perform(root, steps, *rest[: {"get": 0, "store": 1, "swap": 2}[name]])
            return token if name == "store" else (token, result)
        except Exception as error:
            error.add_note(f"({_where(named.get('source_info'))})")
            raise

    # DMAs call `access.__wrapped__`, which is the function above without the wrapper that fails the whole kernel.
    return internals()["interpreter"].fail_on_exception(access)


def _resolve(name: str, place: tuple, transforms: Any, named: dict[str, Any]) -> tuple[Root, list[Step]]:
    """The buffer at `place` and the steps that `transforms` take from it to what the kernel accesses."""
    import jax

    interpreter, indexing = internals()["interpreter"], internals()["indexing"]
    _, device, core, space, buffer = place
    space = interpreter.TPU_MEMORY_SPACE_NAMES[space]
    core = interpreter._local_core_id_or_zero_if_hbm(core, space)
    stored = interpreter._get_shared_memory().mem[space, buffer, device, core]
    shape = tuple(stored.logical_shape)
    transforms = jax.tree.map(int, transforms)  # they arrive as arrays; an index vector fails here, as it should

    def call(operation: str, box: refs.Box | None, *values: Any) -> np.ndarray | None:
        through = transforms
        if box is not None:
            through = (indexing.NDIndexer(tuple(indexing.Slice(start, size) for start, size in box), shape, ()),)
        result = _originals()[operation](*place, through, *values, **named)
        return None if operation == "store" else result[1]

    steps = (_step(transform) for transform in transforms)
    return Root(name, space, shape, stored.dtype, call), [step for step in steps if step]


def _step(transform: Any) -> Step | None:
    """A transform in plain numbers; None for one that changes no element."""
    indexing, state = internals()["indexing"], internals()["state"]
    match transform:
        case indexing.NDIndexer():
            slices = (isinstance(index, indexing.Slice) for index in transform.indices)
            return "index", tuple(
                (i.start, i.size, i.stride) if s else i for i, s in zip(transform.indices, slices, strict=False)
            )
        case state.ReshapeTransform():
            return "reshape", tuple(transform.shape)
        case state.BitcastTransform():
            return "bitcast", np.dtype(transform.dtype)
        case state.TransposeTransform():
            return "transpose", tuple(transform.permutation)
    if type(transform).__name__ == "MemorySpaceCastTransform":  # exists in 0.12 only
        return None
    raise NotSimulated(f"a ref under {type(transform).__name__} cannot be simulated")


def _semaphore() -> type:
    """The interpreter's semaphore, whose dead waits raise instead of hanging."""

    class Semaphore(internals()["memory"].Semaphore):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.cv = Patience(alone=self.num_cores == 1)

        def wait(self, value: int, core: int, *, logging_info: Any = None, **named: Any) -> None:
            if value == 0:  # always satisfied; the 0.10 interpreter asserts if nothing ever signalled
                return
            self.cv.rest()
            try:
                super().wait(value, core, logging_info=logging_info, **named)
            except DeadWait:
                where = _where(getattr(logging_info, "source_info", None))
                raise DeadWait(
                    f"wait for {value} at {where} can never end: the semaphore holds {self.read(core)}, and nothing "
                    "that could signal it is pending"
                ) from None

    return Semaphore


def _shared_memory() -> type:
    """The interpreter's state of one kernel; reports failures and what its semaphores hold at the end."""

    class SharedMemory(internals()["memory"].SharedMemory):
        def __init__(self, **named: Any) -> None:
            super().__init__(**(named | _local_barriers(named)))
            self._slots = itertools.cycle(range(self.num_cores, self.vector_clock_size))

        def set_failed(self, exception: Exception, *args: Any, **named: Any) -> None:
            _recorder.failed(exception)
            super().set_failed(exception, *args, **named)

        def get_sempahores_with_nonzero_count(self, device_id: int) -> list:
            for semaphore, core in super().get_sempahores_with_nonzero_count(device_id):
                _recorder.leftover(semaphore.id, int(semaphore.read(core)))
            return []  # the interpreter would print them

        def get_random_virtual_device_id(self) -> int:
            return next(self._slots)  # in turn instead of by chance: the same races on every run

    return SharedMemory


def _local_barriers(named: dict[str, Any]) -> dict[str, Any]:
    """Of a mesh whose devices belong to several processes, barriers for those of this one: the interpreter's own wait
    for all of them, of which the others' never come."""
    import jax

    if jax.process_count() == 1 or named["num_devices"] == 1:
        return {}
    local = jax.local_device_count()
    return {name: threading.Barrier(local, named[name]._action) for name in ("barrier", "clean_up_barrier")}


def _dma() -> type:
    """The interpreter's DMA, counted once its data is read."""
    interpreter = internals()["interpreter"]

    class DMA(interpreter.DMA):
        def execute_read(self) -> None:
            pending = self.state is interpreter.DmaState.STARTED
            super().execute_read()
            if pending:
                spaces = interpreter.TPU_MEMORY_SPACE_NAMES
                _recorder.copied(spaces[self.src_memory_space], spaces[self.dst_memory_space], self.data_size)

    return DMA


class _Races:
    """Stands in for the race state that the interpreter makes for each kernel."""

    def __init__(self, **_: Any) -> None:
        self._detector = _recorder.kernel()

    def check_read(self, *args: Any, source_info: Any = None) -> None:
        self._check(False, args, source_info)

    def check_write(self, *args: Any, source_info: Any = None) -> None:
        self._check(True, args, source_info)

    def _check(self, write: bool, args: tuple, source_info: Any) -> None:
        *_, clock, buffer, indices = args  # who comes first: device and core in 0.10, their pair in 0.12
        region = tuple(range(i, i + 1) if isinstance(i, int) else range(i.start, i.stop, i.step or 1) for i in indices)
        where = functools.partial(_where, source_info)
        self._detector.check(buffer, Access(write, getattr(clock, "clock", clock), region, where))


def _callback() -> Callable:
    """The host side of the interpreter's callbacks without JAX arrays in between, and without tracebacks on stderr."""
    parts = internals()
    original, interpreter = parts["callback"].io_callback_impl, parts["interpreter"].__name__

    def io_callback_impl(*args: Any, callback: Any, **named: Any) -> Any:
        function = getattr(callback.callback_func, "func", callback.callback_func)  # some are partials
        if function.__module__ != interpreter:
            return original(*args, callback=callback, **named)
        return [np.asarray(result) for result in callback(*args)]

    return io_callback_impl


def _where(source_info: Any) -> str:
    """file:line (function) of the kernel, without the folder, so that messages are the same on every machine."""
    if source_info is None:
        return "the pallas_call itself"
    return os.path.basename(internals()["source"].summarize(source_info))
