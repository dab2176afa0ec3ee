"""One access of a kernel to simulated memory: bounds are checked exactly, views are resolved to the real buffer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from dsa_verify.errors import NotSimulated
from dsa_verify.runtime import refs
from dsa_verify.runtime.regions import Index, Region, outside, pretty, touched

Step = (
    tuple[Literal["index"], tuple[Index, ...]]
    | tuple[Literal["reshape"], tuple[int, ...]]
    | tuple[Literal["transpose"], tuple[int, ...]]
    | tuple[Literal["bitcast"], np.dtype]
)
"""One transform of a ref: its kind, and the indices, shape, permutation or dtype."""


@dataclass(frozen=True)
class Root:
    """The buffer that an access ends in; as a view, it hands every box to the interpreter's own function.

    operation: "get", "store" or "swap".
    space: the memory space's name, for messages.
    call: `call(operation, box, *values)` performs the interpreter's access to `box`, or, when that is None, to what the
        kernel asked for; returns what it read, if anything.
    """

    operation: str
    space: str
    shape: tuple[int, ...]
    dtype: np.dtype
    call: Callable[..., np.ndarray | None]

    def check(self, region: Region) -> None:
        """Raises IndexError where `region` leaves the buffer; the interpreter lets negative starts of reads through."""
        if outside(region, self.shape):
            did = "read" if self.operation == "get" else "write"
            raise IndexError(
                f"Out-of-bounds {did} of {pretty(region)} in a {self.space} buffer of shape {list(self.shape)}"
            )

    def read(self, box: refs.Box) -> np.ndarray:
        self.check(refs.region(box))
        return cast(np.ndarray, self.call("get", box))

    def write(self, box: refs.Box, value: np.ndarray) -> np.ndarray | None:
        self.check(refs.region(box))
        return self.call(self.operation, box, *((value, None) if self.operation == "swap" else (value,)))


def perform(
    root: Root, steps: Sequence[Step], value: ArrayLike | None = None, mask: ArrayLike | None = None
) -> np.ndarray | None:
    """Reads or writes what `steps` select of `root`; returns what was read, if anything.

    Raises:
        IndexError: the access leaves the buffer or a view of it ("Out-of-bounds ...").
        NotSimulated: a strided or masked access under a reshape, bitcast or transpose.
    """
    indexers = [step[1] for step in steps if step[0] == "index"]
    if len(indexers) == len(steps):
        return _directly(root, indexers, value, mask)
    if mask is not None:
        raise NotSimulated("a masked access of a reshaped, bitcast or transposed ref cannot be simulated")
    view: refs.View = root
    for step in steps:
        view = _seen_through(view, step)
    if 0 in view.shape:
        return np.empty(view.shape, view.dtype)
    if value is None:
        return view.read(refs.whole(view))
    return view.write(refs.whole(view), np.asarray(value))


def _directly(
    root: Root, indexers: list[tuple[Index, ...]], value: ArrayLike | None, mask: ArrayLike | None
) -> np.ndarray | None:
    region = touched(indexers, root.shape)
    if not all(region):  # nothing is touched, wherever it is; the interpreter would refuse an empty slice at the end
        return np.empty([index[1] for index in indexers[-1] if not isinstance(index, int)], root.dtype)
    if mask is None:  # what a mask hides may lie outside
        root.check(region)
    return root.call(root.operation, None, *{"get": (), "store": (value,), "swap": (value, mask)}[root.operation])


def _seen_through(parent: refs.View, step: Step) -> refs.View:
    match step:
        case "index", indices:
            return refs.Indexed(parent, indices)
        case "reshape", shape:
            return refs.Reshaped(parent, shape)
        case "transpose", permutation:
            return refs.Transposed(parent, permutation)
        case "bitcast", dtype:
            return refs.Bitcast(parent, dtype)
