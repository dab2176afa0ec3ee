"""Views of a simulated buffer: accesses through reshaped, bitcast or transposed refs, as boxes of the real buffer.

The TPU interpreter understands indexing and nothing else, yet real kernels view a paged bf16 cache as 32-bit words or
as flat rows. A `View` pulls such an access back, transform by transform, to boxes of the buffer itself; the buffer (a
`View` too, made by the interpreter's adapter) then applies the interpreter's own bounds and race checks to every box.
Pure NumPy: nothing here knows JAX.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsa_verify.errors import NotSimulated
from dsa_verify.runtime.regions import Index, Region, outside, pretty

Box = tuple[tuple[int, int], ...]  # (start, size) per dimension; an access always names every dimension


class View(Protocol):
    """An array living in a simulated buffer."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype: ...

    def read(self, box: Box) -> np.ndarray:
        """The elements of `box`, with one axis per dimension of the view."""
        ...

    def write(self, box: Box, value: np.ndarray) -> np.ndarray | None:
        """Stores `value`; the previous content when the access is a swap, else None."""
        ...


def whole(view: View) -> Box:
    """The box that covers all of `view`."""
    return tuple((0, size) for size in view.shape)


def sizes(box: Box) -> tuple[int, ...]:
    """The shape of what `box` holds."""
    return tuple(size for _, size in box)


def region(box: Box) -> Region:
    """The box as ranges."""
    return tuple(range(start, start + size) for start, size in box)


@dataclass(frozen=True)
class Indexed:
    """`parent[indices]`: an int drops its dimension, a (start, size, stride) keeps it.

    Bounds are not checked here: a ref is an address, so a slice may overhang as long as the access inside it does not.
    """

    parent: View
    indices: tuple[Index, ...]

    def __post_init__(self) -> None:
        if any(not isinstance(index, int) and index[2] != 1 for index in self.indices):
            raise NotSimulated("a strided slice of a reshaped, bitcast or transposed ref cannot be simulated")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(index[1] for index in self.indices if not isinstance(index, int))

    @property
    def dtype(self) -> np.dtype:
        return self.parent.dtype

    def _lift(self, box: Box) -> Box:
        inner = iter(box)
        lifted = []
        for index in self.indices:
            if isinstance(index, int):
                lifted.append((index, 1))
            else:
                start, size = next(inner)
                lifted.append((index[0] + start, size))
        return tuple(lifted)

    def read(self, box: Box) -> np.ndarray:
        return self.parent.read(self._lift(box)).reshape(sizes(box))

    def write(self, box: Box, value: np.ndarray) -> np.ndarray | None:
        lifted = self._lift(box)
        old = self.parent.write(lifted, value.reshape(sizes(lifted)))
        return None if old is None else old.reshape(sizes(box))


@dataclass(frozen=True)
class Transposed:
    """`parent.transpose(permutation)`."""

    parent: View
    permutation: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.parent.shape[axis] for axis in self.permutation)

    @property
    def dtype(self) -> np.dtype:
        return self.parent.dtype

    def _lift(self, box: Box) -> Box:
        return tuple(box[self.permutation.index(axis)] for axis in range(len(box)))

    def read(self, box: Box) -> np.ndarray:
        return self.parent.read(self._lift(box)).transpose(self.permutation)

    def write(self, box: Box, value: np.ndarray) -> np.ndarray | None:
        old = self.parent.write(self._lift(box), value.transpose(np.argsort(self.permutation)))
        return None if old is None else old.transpose(self.permutation)


@dataclass(frozen=True)
class Reshaped:
    """`parent.reshape(shape)`, row-major.

    Dimensions are grouped where the products of both shapes agree; each group is pulled back on its own, as flat runs
    cut at the parent's row boundaries, and the pieces of an access are the product of its groups' pieces.
    """

    parent: View
    shape: tuple[int, ...]

    @property
    def dtype(self) -> np.dtype:
        return self.parent.dtype

    def _pieces(self, box: Box) -> Iterator[tuple[tuple[slice, ...], Box]]:
        """Per piece: where it lies in the access (one axis per group), and its box of the parent."""
        check_inside(box, self.shape)
        per_group = []
        for (a, b), (c, d) in _groups(self.parent.shape, self.shape):
            boxes = list(_pull_back(box[c:d], self.shape[c:d], self.parent.shape[a:b]))
            ends = itertools.accumulate(math.prod(sizes(piece)) for piece in boxes)
            starts = itertools.chain([0], ends)
            per_group.append([(slice(s, s + math.prod(sizes(p))), p) for s, p in zip(starts, boxes, strict=False)])
        for pieces in itertools.product(*per_group):
            yield tuple(where for where, _ in pieces), tuple(itertools.chain.from_iterable(p for _, p in pieces))

    def _grouped(self, box: Box) -> tuple[int, ...]:
        return tuple(math.prod(sizes(box[c:d])) for _, (c, d) in _groups(self.parent.shape, self.shape))

    def read(self, box: Box) -> np.ndarray:
        result = np.empty(self._grouped(box), self.dtype)
        for where, piece in self._pieces(box):
            result[where] = self.parent.read(piece).reshape(result[where].shape)
        return result.reshape(sizes(box))

    def write(self, box: Box, value: np.ndarray) -> np.ndarray | None:
        value = value.reshape(self._grouped(box))
        old = np.empty_like(value)
        swapped = False
        for where, piece in self._pieces(box):
            previous = self.parent.write(piece, value[where].reshape(sizes(piece)))
            if previous is not None:
                swapped = True
                old[where] = previous.reshape(old[where].shape)
        return old.reshape(sizes(box)) if swapped else None


@dataclass(frozen=True)
class Bitcast:
    """`parent` seen as another dtype; the second-minor dimension scales with the ratio of the item sizes.

    Rows that share a word are stacked from its low bits up: the first row is the low bits.
    """

    parent: View
    dtype: np.dtype

    def __post_init__(self) -> None:
        wide, narrow = sorted((self.parent.dtype.itemsize, self.dtype.itemsize), reverse=True)
        if len(self.parent.shape) < 2 or wide % narrow:
            raise NotSimulated(
                f"bitcast of a ref {self.parent.dtype}{list(self.parent.shape)} to {self.dtype}: only refs of two or "
                "more dimensions and item sizes that divide each other can be simulated"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        *major, rows, columns = self.parent.shape
        return (*major, rows * self.parent.dtype.itemsize // self.dtype.itemsize, columns)

    def _words(self, box: Box) -> tuple[Box, slice]:
        """The parent's box that covers `box`, and where `box` lies in the rows that the covering box holds."""
        check_inside(box, self.shape)
        *major, (start, size), columns = box
        ours, theirs = self.dtype.itemsize, self.parent.dtype.itemsize
        first, last = start * ours // theirs, -(-(start + size) * ours // theirs)
        skipped = start - first * theirs // ours
        return (*major, (first, last - first), columns), slice(skipped, skipped + size)

    def read(self, box: Box) -> np.ndarray:
        words, rows = self._words(box)
        return reinterpret(self.parent.read(words), self.dtype)[..., rows, :]

    def write(self, box: Box, value: np.ndarray) -> np.ndarray | None:
        words, rows = self._words(box)
        covered = sizes(words)[-2] * self.parent.dtype.itemsize // self.dtype.itemsize
        if covered != value.shape[-2]:  # half a word changes: the rest of it has to be read first, as on the chip
            merged = reinterpret(self.parent.read(words), self.dtype)
            merged[..., rows, :] = value
            value = merged
        old = self.parent.write(words, reinterpret(value, self.parent.dtype))
        return None if old is None else reinterpret(old, self.dtype)[..., rows, :]


def reinterpret(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`array` [..., rows, columns] with its bits read as `dtype`; rows are packed into words low bits first."""
    *major, rows, columns = array.shape
    ratio = dtype.itemsize / array.dtype.itemsize
    if ratio > 1:
        packed = array.reshape(*major, int(rows / ratio), int(ratio), columns)
        return np.ascontiguousarray(np.moveaxis(packed, -2, -1)).view(dtype)[..., 0]
    unpacked = np.ascontiguousarray(array)[..., None].view(dtype)
    return np.moveaxis(unpacked, -1, -2).reshape(*major, int(rows / ratio), columns).copy()


def check_inside(box: Box, shape: tuple[int, ...]) -> None:
    """Raises IndexError when `box` leaves `shape`; a view's own edge, which the buffer's check cannot know."""
    if outside(region(box), shape):
        raise IndexError(
            f"Out-of-bounds access of {pretty(region(box))} in a reshaped or bitcast ref of shape {list(shape)}"
        )


def _groups(left: tuple[int, ...], right: tuple[int, ...]) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """The finest split of two shapes of equal size into runs of dimensions with equal products."""
    i = j = 0
    while i < len(left) or j < len(right):
        first_i, first_j = i, j
        a = left[i] if i < len(left) else 1
        b = right[j] if j < len(right) else 1
        i, j = min(i + 1, len(left)), min(j + 1, len(right))
        while a != b:
            if a < b:
                a *= left[i]
                i += 1
            else:
                b *= right[j]
                j += 1
        yield (first_i, i), (first_j, j)


def _pull_back(box: Box, shape: tuple[int, ...], parent: tuple[int, ...]) -> Iterator[Box]:
    """Boxes of `parent` that hold `box` of `shape` (both of one size), in row-major order of the elements."""
    if shape == parent:
        yield box
        return
    full = len(shape)
    while full and box[full - 1] == (0, shape[full - 1]):
        full -= 1
    row = math.prod(shape[full:])  # what lies behind dimension `full - 1` is taken whole
    length = box[full - 1][1] * row if full else row
    for outer in itertools.product(*(range(start, start + size) for start, size in box[: max(full - 1, 0)])):
        inner = (*outer, box[full - 1][0]) if full else ()
        flat = 0
        for index, size in zip(inner, shape, strict=False):
            flat = flat * size + index
        yield from _cut(flat * row, length, parent)


def _cut(start: int, length: int, shape: tuple[int, ...]) -> Iterator[Box]:
    """The flat run `start : start + length` of a row-major array, as boxes in order."""
    if length == 0:
        return
    if len(shape) <= 1:
        yield ((start, length),) * len(shape)
        return
    row = math.prod(shape[1:])
    index, offset = divmod(start, row)
    if offset or length < row:  # a partial row first
        head = min(length, row - offset)
        yield from (((index, 1), *inner) for inner in _cut(offset, head, shape[1:]))
        yield from _cut(start + head, length - head, shape)
        return
    rows = length // row
    yield ((index, rows), *((0, size) for size in shape[1:]))
    yield from _cut(start + rows * row, length - rows * row, shape)
