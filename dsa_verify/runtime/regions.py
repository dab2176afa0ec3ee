"""Regions of a buffer: which indices an access touches along each dimension, as exact Python ranges."""

from collections.abc import Iterable

Index = int | tuple[int, int, int]  # one dimension of an indexer: an int drops it, (start, size, stride) keeps it
Region = tuple[range, ...]  # the indices touched per dimension; missing trailing dimensions are touched whole


def touched(indexers: Iterable[tuple[Index, ...]], shape: tuple[int, ...]) -> Region:
    """The region of a buffer of `shape` that a chain of indexers, each applied to the result of the last, selects."""
    axes = [range(size) for size in shape]
    visible = list(range(len(shape)))
    for indexer in indexers:
        for axis, index in zip(visible, indexer, strict=True):
            start, size, stride = (index, 1, 1) if isinstance(index, int) else index
            first, step = axes[axis].start + start * axes[axis].step, axes[axis].step * stride
            axes[axis] = range(first, first + size * step, step)
        visible = [axis for axis, index in zip(visible, indexer, strict=False) if not isinstance(index, int)]
    return tuple(axes)


def outside(region: Region, shape: tuple[int, ...]) -> bool:
    """Whether a non-empty region leaves a buffer of `shape`, at either end."""
    return all(region) and any(r[0] < 0 or r[-1] >= size for r, size in zip(region, shape, strict=False))


def overlap(left: Region, right: Region) -> bool:
    """Whether two non-empty regions share an element."""
    for a, b in zip(left, right, strict=False):
        if a.start >= b.stop or b.start >= a.stop:
            return False
        if (a.step != 1 or b.step != 1) and set(a).isdisjoint(b):
            return False
    return True


def covers(outer: Region, inner: Region) -> bool:
    """Whether `outer` certainly holds all of `inner`."""
    if len(outer) > len(inner):
        return False  # `inner` takes a whole dimension of which `outer` may take a part
    return all(a.step == 1 and a.start <= b.start and b.stop <= a.stop for a, b in zip(outer, inner, strict=False))


def pretty(region: Region) -> str:
    """NumPy notation: "[3, 0:128]", or "[...]" for a whole buffer."""
    parts = [] if region else ["..."]
    for r in region:
        stride = f":{r.step}" if r.step != 1 else ""
        parts.append(str(r.start) if len(r) == 1 else f"{r.start}:{r.stop}{stride}")
    return f"[{', '.join(parts)}]"
