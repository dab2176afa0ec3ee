"""Worker processes that run one item at a time; one that dies is replaced, and the item that ended it is known."""

import glob
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import active_children, connection, get_context, parent_process
from typing import Any, TypeVar

# Nothing here may import NumPy or JAX: `prepare_environment` has to run before they read the environment.

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_POLL = 0.2
"""Seconds between two looks for Ctrl-C."""
_THREADS = ("NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""What sizes thread pools: NPROC is read by XLA's CPU client, the others by NumPy's BLAS."""


@dataclass(frozen=True)
class WorkerDied:
    """What is left of an item whose process died under it; `exit_code` is negative for a signal."""

    exit_code: int | None

    def __str__(self) -> str:
        if self.exit_code is None:
            return "the worker process died"
        if self.exit_code < 0:
            return f"the worker process died of {signal.Signals(-self.exit_code).name}"
        return f"the worker process died with exit code {self.exit_code}"


def tpu_wanted() -> bool:
    """Whether kernels will run on a TPU: JAX_PLATFORMS says so, or it says nothing and the machine has one."""
    platforms = os.environ.get("JAX_PLATFORMS")
    if platforms:
        return "tpu" in platforms.split(",")
    return bool(glob.glob("/dev/accel*") or glob.glob("/dev/vfio/[0-9]*"))


def prepare_environment(threads: int | None = None) -> None:
    """Set what JAX and BLAS read from the environment when they are imported, where the user has not.

    `threads` bounds the pools of a process that shares the machine with others.
    """
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    if not os.environ.get("JAX_PLATFORMS") and not tpu_wanted():
        os.environ["JAX_PLATFORMS"] = "cpu"
    if threads is not None:
        for name in _THREADS:
            os.environ.setdefault(name, str(threads))


def run_groups(
    groups: Sequence[Sequence[Item]], work: Callable[[Item], Answer], jobs: int
) -> Generator[tuple[Item, Answer | WorkerDied], None, None]:
    """Do `work` on every item in `jobs` processes; the items of a group share a process, in order.

    Yields answers as they come. An item whose process dies yields `WorkerDied`; the rest of its group goes on in a
    new process. What `work` raises is raised here. However the iteration ends, no process is left behind.
    """
    waiting = deque(deque(group) for group in groups)
    lanes = [_Lane(max(1, (os.cpu_count() or 1) // jobs)) for _ in range(jobs)]
    running: dict[Future, tuple[_Lane, deque, Item]] = {}

    def feed(lane: _Lane, rest: deque) -> None:
        rest = rest or (waiting.popleft() if waiting else rest)
        if rest:
            item = rest.popleft()
            running[lane.submit(work, item)] = lane, rest, item

    finished = False
    with _noted_interrupts() as came:
        try:
            for lane in lanes:
                feed(lane, deque())
            while running:
                done = wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done
                if came:
                    raise KeyboardInterrupt
                for future in done:
                    lane, rest, item = running.pop(future)
                    answer = lane.answer(future)
                    feed(lane, rest)
                    yield item, answer
            if came:
                raise KeyboardInterrupt
            finished = True
        finally:
            if not finished:  # interrupted: end them all
                for child in active_children():
                    child.terminate()
            for lane in lanes:
                lane.close()


class _Lane:
    """One worker process at a time."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=_begin, initargs=(self._threads,))
        self._process = None

    def submit(self, work: Callable, item: object) -> Future:
        before = set(active_children())
        try:
            future = self._pool.submit(work, item)
        except BrokenProcessPool:  # it died between two items: none of them is to blame
            self._pool.shutdown()
            self._start()
            future = self._pool.submit(work, item)
        if self._process is None:
            self._process = next(iter(set(active_children()) - before), None)
        return future

    def answer(self, future: Future) -> Any:
        """What the work returned, or `WorkerDied`; raises what the work raised."""
        try:
            return future.result()
        except BrokenProcessPool:
            self._pool.shutdown()
            died = WorkerDied(self._process.exitcode if self._process else None)
            self._start()
            return died

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@contextmanager
def _noted_interrupts() -> Iterator[list[None]]:
    """Ctrl-C is noted in the list and acted on by who reads it. An exception out of nowhere could leave a process half
    started, which nobody knows then, or be lost in a callback, which may not raise; a second Ctrl-C is one."""
    came: list[None] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(None)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(threads: int) -> None:
    """What a worker does before its first item."""
    prepare_environment(threads)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent acts on it
    os.dup2(2, 1)  # stdout is the result's; whatever a kernel prints goes to stderr
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
