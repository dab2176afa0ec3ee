"""Bit for bit: comparison that tells NaN from NaN and -0.0 from 0.0."""

from collections.abc import Iterator

import numpy as np

from dsa_verify.evidence import Outputs


def as_bits(array: np.ndarray) -> np.ndarray:
    """The same memory as unsigned bytes [rows, bytes a row]."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1)


def differing_lanes(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Indices into two rows of one dtype at which their bits differ."""
    return np.flatnonzero((as_bits(a[:, None]) != as_bits(b[:, None])).any(axis=1))


def differing_rows(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """bool[rows]: rows of the leading axis that differ in any bit."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return np.ones(len(a), bool)
    return (as_bits(a) != as_bits(b)).any(axis=1)


def differing_outputs(one: Outputs, other: Outputs) -> Iterator[tuple[str, np.ndarray]]:
    """Outputs of two runs that differ in a bit, each with the rows that do; all rows of one that a single run has."""
    for name in (*one, *(name for name in other if name not in one)):
        if name in one and name in other:
            rows = np.flatnonzero(differing_rows(one[name], other[name]))
        else:
            rows = np.arange(len(one.get(name, other.get(name, ()))))
        if len(rows):
            yield name, rows
