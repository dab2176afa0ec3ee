"""Happens-before race detection over one kernel's memory accesses; same rule as JAX's detector, in near-linear time.

Two accesses race when their regions overlap, one of them writes, and neither vector clock precedes the other. JAX's
detector compares each access with every earlier one of its buffer; this one forgets an access as soon as a later one
that it precedes covers its region, because whatever races with the first then races with the second as well.
"""

import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsa_verify.runtime.regions import Region, covers, overlap, pretty


@dataclass(frozen=True, slots=True)
class Access:
    """One read or write: when (vector clock), what, and where in the kernel's source."""

    write: bool
    clock: np.ndarray
    region: Region
    where: Callable[[], str]

    def precedes(self, other: "Access") -> bool:
        return bool((self.clock <= other.clock).all())

    def __str__(self) -> str:
        return f"{'write' if self.write else 'read'} of {pretty(self.region)} at {self.where()}"


class RaceDetector:
    """The accesses of one kernel; `found` receives (buffer, earlier, later) for each race. A buffer is any tuple."""

    def __init__(self, found: Callable[[tuple, Access, Access], None]) -> None:
        self._found = found
        self._lock = threading.Lock()  # cores of a multi-core kernel run on threads of their own
        self._reads: dict[tuple, dict[Region, list[Access]]] = defaultdict(lambda: defaultdict(list))
        self._writes: dict[tuple, list[Access]] = defaultdict(list)

    def check(self, buffer: tuple, access: Access) -> None:
        """Reports the races of `access` with earlier ones of `buffer`, and remembers it."""
        if not all(access.region):
            return  # an empty slice touches nothing
        with self._lock:
            self._writes[buffer] = self._conflicts(buffer, self._writes[buffer], access)
            if access.write:
                reads = self._reads[buffer]
                for region in list(reads):
                    reads[region] = self._conflicts(buffer, reads[region], access)
                    if not reads[region]:
                        del reads[region]
                self._writes[buffer].append(access)
            else:
                same = self._reads[buffer][access.region]
                same[:] = [old for old in same if not old.precedes(access)]
                same.append(access)

    def _conflicts(self, buffer: tuple, earlier: list[Access], access: Access) -> list[Access]:
        """Reports the races of `access` with `earlier`; what of `earlier` still has to be remembered."""
        kept = []
        for old in earlier:
            if overlap(old.region, access.region):
                ordered = old.precedes(access)
                if not ordered and not access.precedes(old):
                    self._found(buffer, old, access)
                if ordered and access.write and covers(access.region, old.region):
                    continue
            kept.append(old)
        return kept
