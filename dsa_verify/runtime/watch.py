"""The recorder of one interpreted call: failures, races of every kernel in it, leftover semaphores, bytes moved.

The interpreter's adapter (`private.py`) reports here while kernels run; `run.py` reads the findings afterwards. A
finding states what happened and where (file:line of the kernel, of both accesses for a race), never how JAX worded it
in one version or another, so that both supported versions give the same kinds.
"""

import threading
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Literal

from dsa_verify.runtime.races import Access, RaceDetector

Kind = Literal["race", "out-of-bounds", "dead-wait", "leftover-semaphore", "revisited-block", "kernel-error"]


class DeadWait(Exception):
    """A semaphore wait that nothing in the kernel can ever satisfy."""


class Patience(threading.Condition):
    """What a semaphore sleeps on when nothing is pending: alone that is for ever, so it raises `DeadWait`.

    Where other cores run (`alone` is false) one of them may still signal; the interpreter then naps 0.1 s at a time,
    and a minute of naps in one wait counts as dead.
    """

    def __init__(self, alone: bool) -> None:
        super().__init__()
        self._naps = 0 if alone else 600
        self._left = self._naps

    def rest(self) -> None:
        """A new wait starts."""
        self._left = self._naps

    def wait(self, timeout: float | None = None) -> bool:
        if self._left == 0:
            raise DeadWait
        self._left -= 1
        return super().wait(timeout)


@dataclass(frozen=True)
class Finding:
    """One fault of a kernel: its kind, and what happened where."""

    kind: Kind
    message: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


@dataclass(frozen=True)
class Traffic:
    """Copies between two memory spaces in one call: `copies` of them moved `bytes` in all.

    Spaces are "hbm", "vmem", "smem" and so on. Blocks that a BlockSpec brings in or takes out count too, under the
    space "block": that is VMEM, or SMEM where the spec says so. A DMA that is never waited for moves nothing in the
    `on_wait` mode.
    """

    source: str
    destination: str
    copies: int
    bytes: int


@dataclass
class CallRecorder:
    """What one call showed. `leftovers`: semaphore counts at kernel end mean something (eager DMAs only)."""

    leftovers: bool
    failure: BaseException | None = None
    _races: dict[Hashable, tuple[int, str]] = field(default_factory=dict)
    _left: list[str] = field(default_factory=list)
    _copies: Counter = field(default_factory=Counter)
    _bytes: Counter = field(default_factory=Counter)

    def failed(self, error: BaseException) -> None:
        """Keeps the first failure; the interpreter reports follow-up failures of the same call too."""
        self.failure = self.failure or error

    def kernel(self) -> RaceDetector:
        """A race detector for a kernel that starts now; it reports to this recorder."""
        return RaceDetector(lambda buffer, earlier, later: self._raced(buffer[0], earlier, later))

    def _raced(self, space: str, earlier: Access, later: Access) -> None:
        """Counts a race once per pair of source lines: a racing loop is one fault, not a thousand."""
        pair = (space, earlier.write, earlier.where(), later.write, later.where())
        count, message = self._races.get(pair, (0, f"in {space}: {later} is not ordered after {earlier}"))
        self._races[pair] = (count + 1, message)

    def leftover(self, semaphore: int, count: int) -> None:
        """A semaphore that a kernel left above zero."""
        if self.leftovers:
            self._left.append(f"semaphore {semaphore} holds {count} when its kernel ends: a signal was never awaited")

    def copied(self, source: str, destination: str, nbytes: int) -> None:
        """A copy between memory spaces, by DMA or as a block."""
        route = ("hbm" if source == "any" else source, "hbm" if destination == "any" else destination)
        self._copies[route] += 1
        self._bytes[route] += nbytes

    @property
    def traffic(self) -> tuple[Traffic, ...]:
        """Copies so far, per pair of memory spaces, in alphabetical order."""
        routes = sorted(self._copies)
        return tuple(Traffic(source, to, self._copies[source, to], self._bytes[source, to]) for source, to in routes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Every fault seen; the one that stopped the kernel comes first."""
        found = [Finding(kind_of(self.failure), _describe(self.failure))] if self.failure else []
        for count, message in self._races.values():
            found.append(Finding("race", message + (f" ({count} times)" if count > 1 else "")))
        found += [Finding("leftover-semaphore", message) for message in self._left]
        return tuple(found)


def kind_of(error: BaseException) -> Kind:
    """The kind of finding that an exception raised inside the interpreter stands for."""
    text = str(error)
    if isinstance(error, DeadWait):
        return "dead-wait"
    if "Out-of-bounds" in text:
        return "out-of-bounds"
    if text.startswith("Revisited block"):
        return "revisited-block"
    return "kernel-error"


def _describe(error: BaseException) -> str:
    """The exception's text, or its type where it has none, with the kernel line that its notes carry."""
    text = str(error) or f"{type(error).__name__} without a message"
    return " ".join((text, *getattr(error, "__notes__", ())))
