"""Trace: which positions each query of a sequence selected, layer by layer; and its versioned .npz file.

The file is an .npz archive of

    meta                  JSON text: `format`, `version` and the fields of `Source`
    layer_007/positions   i32[queries]           position of each query in its sequence, strictly ascending
    layer_007/topk        i32[queries, columns]  positions that the query selected, in any order; -1 fills the tail

with one pair of arrays a layer. `columns` is `index_topk`, rounded up to whole pages where pages were selected. One
trace holds one sequence. `docs/profile.md` shows how to write one without this package.
"""

import json
import zipfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.shapes import align

FORMAT, VERSION = "dsa-verify-trace", 1
FILL = -1
"""What stands in the tail of a row that selected fewer positions than it has columns."""

Granularity = Literal["token", "page"]

_ROWS = 1024
"""Rows checked at a time: a whole trace of 32k queries has 64 M entries, and checking sorts a copy."""


@dataclass(frozen=True)
class Source:
    """Where a trace comes from.

    text: what was read, in words. model: a name. index_topk: the positions a query may select. tokens: length of the
    recorded sequence, what was generated included. granularity: whether positions were selected, or whole pages (then
    every causal position of a selected page is listed). synthetic: made by construction, not by a model.
    """

    text: str
    model: str
    page_size: int
    index_topk: int
    tokens: int
    granularity: Granularity = "token"
    synthetic: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = {"granularity": str}.get(field.name, field.type)
            if type(value) is not wanted:
                raise ConfigError(f"meta: {field.name} must be {wanted.__name__}, found {value!r}")  # pyright: ignore
            if wanted is int and value < 1:
                raise ConfigError(f"meta: {field.name} must be at least 1, found {value}")
        if self.granularity not in get_args(Granularity):
            raise ConfigError(f"meta: granularity must be 'token' or 'page', found {self.granularity!r}")

    @property
    def columns(self) -> int:
        """Columns of every `topk`."""
        return self.index_topk if self.granularity == "token" else align(self.index_topk, self.page_size)


@dataclass(frozen=True, eq=False)
class Selections:
    """What the queries of one layer selected: `positions i32[queries]`, `topk i32[queries, columns]`."""

    positions: np.ndarray
    topk: np.ndarray

    def window(self, queries: int) -> "Selections":
        """The last `queries` of them."""
        return Selections(self.positions[-queries:], self.topk[-queries:])


@dataclass(frozen=True, eq=False)
class Trace:
    """Selections by layer. It refuses to exist when a selection could not have happened; raises `ConfigError`."""

    source: Source
    layers: Mapping[int, Selections]

    def __post_init__(self) -> None:
        if not self.layers:
            raise ConfigError("a trace holds at least one layer, found none; record a layer that has an indexer")
        for layer, selections in self.layers.items():
            for fault in _faults(self.source, selections):
                raise ConfigError(f"layer {layer}: {fault}")


def _faults(source: Source, selections: Selections) -> Iterator[str]:
    """What is wrong with one layer; the first fault makes the later ones meaningless."""
    positions, topk = selections.positions, selections.topk
    for name, array, axes in (("positions", positions, 1), ("topk", topk, 2)):
        if array.dtype != np.int32:
            yield f"{name} must be int32, found {array.dtype}; convert with .astype(numpy.int32)"
        if array.ndim != axes:
            yield f"{name} must have {axes} axes, found shape {array.shape}"
    if len(positions) != len(topk) or not len(positions):
        yield f"positions and topk must have one row a query and at least one, found {len(positions)} and {len(topk)}"
    if topk.shape[1] != source.columns:
        budget = f"index_topk {source.index_topk}, selected by {source.granularity}"
        yield f"topk must have {source.columns} columns ({budget}), found {topk.shape[1]}; fill the tail with {FILL}"
    falling = np.flatnonzero(np.diff(positions) <= 0)
    if len(falling):
        at = int(falling[0])
        yield (
            f"positions must ascend, found {positions[at]} before {positions[at + 1]} (rows {at} and {at + 1}); "
            "a trace holds one sequence, each query once"
        )
    if positions[0] < 0 or positions[-1] >= source.tokens:
        yield (
            f"positions must be within 0 to {source.tokens - 1} (meta says {source.tokens} tokens), found "
            f"{positions[0]} to {positions[-1]}; leave padding out"
        )
    for start in range(0, len(positions), _ROWS):
        yield from _row_faults(positions[start : start + _ROWS], topk[start : start + _ROWS], start)


def _row_faults(positions: np.ndarray, topk: np.ndarray, start: int) -> Iterator[str]:
    """Selections that cannot have happened. `start` is the row of the first query in its layer."""
    wrong = np.argwhere((topk < FILL) | (topk > positions[:, None]))
    if len(wrong):
        row, column = map(int, wrong[0])
        yield (
            f"topk[{start + row}, {column}] is {topk[row, column]}, but the query at position {positions[row]} can "
            f"select 0 to {positions[row]} only ({FILL} fills the tail); a trace holds positions, not slots or pages"
        )
    holes = np.argwhere((topk[:, :-1] == FILL) & (topk[:, 1:] != FILL))
    if len(holes):
        row, column = map(int, holes[0])
        yield f"topk[{start + row}, {column}] is {FILL} before a selected position; {FILL} may only fill the tail"
    ordered = np.sort(topk, axis=1)
    twice = np.argwhere((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != FILL))
    if len(twice):
        row, column = map(int, twice[0])
        yield (
            f"the query at position {positions[row]} (row {start + row}) selected position {ordered[row, column]} "
            "twice; a query selects a position once"
        )


def save(trace: Trace, path: Path) -> None:
    """Write a trace to exactly this path."""
    meta = json.dumps({"format": FORMAT, "version": VERSION, **asdict(trace.source)})
    arrays: dict[str, Any] = {"meta": np.array(meta)}
    for layer, selections in sorted(trace.layers.items()):
        arrays[f"layer_{layer:03}/positions"] = selections.positions
        arrays[f"layer_{layer:03}/topk"] = selections.topk
    try:
        with path.open("wb") as file:
            np.savez_compressed(file, **arrays)
    except OSError as error:
        raise ConfigError(f"cannot write the trace {path}: {error}") from error


def load(path: Path, layers: Collection[int] = ()) -> Trace:
    """Read a trace, or only some of its layers. Raises `ConfigError` for anything that is not a sound trace."""
    try:
        with path.open("rb") as file:
            return _read(np.load(file, allow_pickle=False), layers)
    except ConfigError as error:
        raise ConfigError(f"{path} is not a sound trace: {error}. docs/profile.md describes the format") from error
    except FileNotFoundError as error:
        raise ConfigError(f"there is no trace {path}; record one as docs/profile.md describes") from error
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigError(
            f"{path} cannot be read as an .npz archive ({error}); it is truncated or of another kind: record it again"
        ) from error


def _read(archive: Any, layers: Collection[int]) -> Trace:
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise ConfigError(f"expected an .npz archive, found a single array of shape {archive.shape}")
    source, found = _source(archive), _layers_in(archive)
    missing = sorted(set(layers) - found)
    if missing:
        raise ConfigError(f"layer {missing[0]} is not in it; it holds {', '.join(map(str, sorted(found)))}")
    return Trace(source, {layer: _selections(archive, layer) for layer in sorted(set(layers) or found)})


def _source(archive: Mapping[str, np.ndarray]) -> Source:
    if "meta" not in archive:
        raise ConfigError(f"expected the key 'meta', found {', '.join(archive) or 'nothing'}")
    try:
        meta = json.loads(str(archive["meta"]))
    except json.JSONDecodeError as error:
        raise ConfigError(f"meta must be JSON text: {error}") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise ConfigError(f"meta must be an object whose 'format' is {FORMAT!r}")
    if meta.get("version") != VERSION:
        raise ConfigError(
            f"it is of version {meta.get('version')!r}, and this dsa-verify reads version {VERSION}; use the one that "
            "wrote it, or record it again"
        )
    given = {name: value for name, value in meta.items() if name not in ("format", "version")}
    known = {field.name for field in fields(Source)}
    missing, unknown = sorted(known - {"granularity", "synthetic"} - set(given)), sorted(set(given) - known)
    if missing or unknown:
        raise ConfigError(f"meta lacks {missing} and has {unknown} that mean nothing; its fields are {sorted(known)}")
    return Source(**given)


def _layers_in(archive: Mapping[str, np.ndarray]) -> set[int]:
    """The layers of an archive, each of which must have both arrays; nothing else may be in it."""
    found: dict[int, set[str]] = {}
    for key in archive:
        folder, _, name = key.partition("/")
        number = folder.removeprefix("layer_")
        if name in ("positions", "topk") and folder != number and number.isascii() and number.isdigit():
            found.setdefault(int(number), set()).add(name)
        elif key != "meta":
            raise ConfigError(f"key {key!r} means nothing; expected meta, layer_007/positions, layer_007/topk")
    for layer, names in found.items():
        if len(names) != 2:
            raise ConfigError(f"layer {layer} has {names.pop()} alone; expected positions and topk")
    return set(found)


def _selections(archive: Mapping[str, np.ndarray], layer: int) -> Selections:
    key = f"layer_{layer:03}"
    if f"{key}/topk" not in archive:
        raise ConfigError(f"layer {layer} must be written as {key!r}, with three digits")
    return Selections(archive[f"{key}/positions"], archive[f"{key}/topk"])
