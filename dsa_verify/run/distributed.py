"""The processes of a multi-host run: how they find each other, keep in step, and end when one of them is gone."""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from dsa_verify.errors import ConfigError, DsaVerifyError, Exit
from dsa_verify.run import workers

# JAX is imported inside functions: `supervise` has to fork before anything starts a thread.

PATIENCE = 1800.0
"""Seconds: by far more than the work of processes that share a plan evenly differs."""


class HostsApart(DsaVerifyError):
    """The processes of a multi-host run did not meet, or one of them is gone."""


@dataclass(frozen=True)
class Hosts:
    """How this process meets the others. coordinator, processes and process: all given, or all None, and then JAX finds
    them as on a TPU pod. patience: seconds without progress after which the others count as gone."""

    coordinator: str | None = None
    processes: int | None = None
    process: int | None = None
    patience: float = PATIENCE

    def __post_init__(self) -> None:
        given = [value is not None for value in (self.coordinator, self.processes, self.process)]
        if any(given) and not all(given):
            raise ConfigError("--coordinator, --processes and --process go together; give all three, or --hosts alone")
        if self.process is not None and not 0 <= self.process < (self.processes or 0):
            raise ConfigError(f"--process is {self.process}, expected 0 to {(self.processes or 0) - 1} (--processes)")

    @property
    def name(self) -> str:
        return "this process" if self.process is None else f"process {self.process} of {self.processes}"


@dataclass(frozen=True)
class ProcessIndex:
    """Which process this is. index: from 0."""

    index: int = 0
    of: int = 1

    @property
    def provenance(self) -> dict[str, str]:
        """What a document says of the process that it is of, where there are others."""
        return {"process": f"{self.index} of {self.of}"} if self.of > 1 else {}

    def __str__(self) -> str:
        return f"process {self.index} of {self.of}"


@contextmanager
def supervised(hosts: Hosts | None, say: Callable[[str], None]) -> Iterator[None]:
    """Run the body, which calls `initialize`, as one of several processes, and end when all of them do; alone for None.

    Where the others are gone, `say` says so and the process ends with `Exit.BROKE`: Python's own way out would wait.
    """
    if hosts is None:
        yield
        return
    supervise(hosts, say)
    try:
        yield
        _leave()
    except HostsApart as error:
        say(" ".join(str(error).split()))
        sys.stdout.flush()
        os._exit(Exit.BROKE)


def _leave() -> None:
    import jax

    place = here()
    try:
        jax.distributed.shutdown()  # waits for all of them
    except Exception as error:
        raise HostsApart(f"{place} has reported, but another process is gone since: {error}") from error


def initialize(hosts: Hosts | None) -> ProcessIndex:
    """Meet the other processes, before anything asks JAX for a device; which of them this is.

    Raises `HostsApart` if they do not come.
    """
    if hosts is None:
        return ProcessIndex()
    if not workers.tpu_wanted():  # on a pod, what `settle` sets would keep JAX from the other hosts' addresses
        workers.prepare_environment()
    import jax

    # Its handler swallows SIGTERM, so that a run that waits could not be ended.
    jax.config.update("jax_enable_preemption_service", False)
    heartbeat(f"waited for all processes at {hosts.coordinator or 'the coordinator that JAX found'}")
    try:
        jax.distributed.initialize(
            hosts.coordinator, hosts.processes, hosts.process, initialization_timeout=max(1, int(hosts.patience))
        )
        return here()
    except (ValueError, RuntimeError) as error:
        where = hosts.coordinator or "found by JAX; give --coordinator, --processes and --process where it finds none"
        raise HostsApart(f"{hosts.name} did not meet the others (coordinator {where}): {error}") from error


def here() -> ProcessIndex:
    """Which process this is, of those that JAX knows of."""
    import jax

    return ProcessIndex(jax.process_index(), jax.process_count())


def barrier(what: str) -> None:
    """Go on only when every process is about to do `what`, by that name. Raises `HostsApart`.

    One that is gone shows as an error of the collective, or not at all; then `supervise` ends the wait.
    """
    from jax.experimental import multihost_utils

    heartbeat(f"waited for the others to {what}")
    if here().of > 1:
        try:
            multihost_utils.sync_global_devices(what)
        except Exception as error:  # a broken connection, or another name: which type is up to the backend
            first = next(iter(str(error).splitlines()), "")
            raise HostsApart(
                f"{here()} could not {what} with the others: one of them died, or runs another plan; see what they "
                f"printed, and run all of them again with the same options ({type(error).__name__}: {first})"
            ) from error
    heartbeat(f"was to {what}")


_beats: int | None = None  # the pipe to the process that supervises this one


def heartbeat(what: str) -> None:
    """Tell the supervising process, if there is one, what this process is at."""
    if _beats is not None:
        os.write(_beats, f"{what}\n".encode())


def supervise(hosts: Hosts, say: Callable[[str], None]) -> None:
    """Go on in a child process; this one only waits, and ends with one clear error where the child is killed or makes
    no progress, else as the child ends.

    JAX ends a process by a signal when the coordinator is gone, and waits in native code, out of reach of exceptions,
    for a peer that is gone. To be called before JAX is imported. Only the child returns.
    """
    global _beats
    said, _beats = os.pipe()
    alive, held = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(_beats)
        os.close(alive)
        os._exit(_watch(child, said, hosts, say))
    os.close(said)
    os.close(held)
    threading.Thread(target=_leave_with, args=(alive,), daemon=True).start()


def _leave_with(alive: int) -> None:
    os.read(alive, 1)  # returns when the other end is closed: the supervising process is gone
    os._exit(Exit.BROKE)


def _watch(child: int, said: int, hosts: Hosts, say: Callable[[str], None]) -> int:
    """The exit code for a child: its own, or `Exit.BROKE` where a signal ended it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches the child too, whose answer counts
    signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
    last, end = "had not begun", time.monotonic() + hosts.patience
    while (left := end - time.monotonic()) > 0:
        if not select.select([said], [], [], left)[0]:
            continue
        if not (text := os.read(said, 1 << 16)):  # the child ended
            return _exit_code_of(os.waitpid(child, 0)[1], last, hosts, say)
        last, end = text.decode().splitlines()[-1], time.monotonic() + hosts.patience
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    say(
        f"{hosts.name} made no progress for {hosts.patience:g} s, when it {last}: another process is gone or slow; "
        f"see what the others printed, and raise --patience if they are only slow"
    )
    return Exit.BROKE


def _exit_code_of(status: int, last: str, hosts: Hosts, say: Callable[[str], None]) -> int:
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    why = "JAX ended it because another process is gone" if -code == signal.SIGABRT else "see what it printed"
    say(f"{hosts.name} died of {signal.Signals(-code).name} when it {last}: {why}; nothing is decided")
    return Exit.BROKE
