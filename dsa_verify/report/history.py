"""The history of runs in one SQLite file: a run is appended whole or not at all, and read back check by check."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError
from dsa_verify.report.outcome import Outcome

APPLICATION = 0x44534156
"""`DSAV`: marks the file as ours, so that no other program's database is written to."""
VERSION = 1
_TABLES = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, digest TEXT NOT NULL UNIQUE, at TEXT NOT NULL, command TEXT NOT NULL, seconds REAL NOT NULL,
    exit_code INTEGER NOT NULL, provenance TEXT NOT NULL);
CREATE TABLE places (
    id INTEGER PRIMARY KEY, provider TEXT NOT NULL, surface TEXT NOT NULL, scenario TEXT NOT NULL, demand TEXT NOT NULL,
    UNIQUE (provider, surface, scenario, demand));
CREATE TABLE reasons (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
CREATE TABLE results (
    place INTEGER NOT NULL REFERENCES places, run INTEGER NOT NULL REFERENCES runs, status TEXT NOT NULL, share REAL,
    reason INTEGER NOT NULL REFERENCES reasons, PRIMARY KEY (place, run)) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class CheckPlace:
    """One check of one case."""

    provider: str
    surface: str
    scenario: str
    check: str

    def __str__(self) -> str:
        return f"{self.provider} {self.surface} {self.scenario} {self.check}"


@dataclass(frozen=True)
class RecordedRun:
    """One run. at: when it was appended, UTC. versions: its provenance, flat: `providers.jnp` beside `jax`."""

    id: int
    at: str
    exit_code: int
    versions: Mapping[str, str]

    def __str__(self) -> str:
        return f"run {self.id} ({self.at})"


@dataclass(frozen=True)
class Point:
    """What one run said of one check; `share` is None where it has none."""

    run: RecordedRun
    status: str
    share: float | None
    reason: str


@contextmanager
def _opened(path: Path, *, write: bool) -> Iterator[sqlite3.Connection]:
    if not write and not path.is_file():
        raise ConfigError(f"there is no history at {path}; `dsa-verify parity --history {path}` begins one")
    try:
        file = sqlite3.connect(path, timeout=60, isolation_level=None)
    except sqlite3.Error as error:
        raise ConfigError(f"cannot open the history {path}: {error}; name a file in a folder that exists") from error
    try:
        file.execute("PRAGMA foreign_keys = ON")
        if write:
            file.execute("BEGIN IMMEDIATE")
        _check(file, path, write)
        yield file
        if write:
            file.execute("COMMIT")
    except sqlite3.Error as error:
        raise ConfigError(f"cannot use {path} as a history: {error}; name another file") from error
    finally:
        file.close()  # what was not committed is undone


def _check(file: sqlite3.Connection, path: Path, write: bool) -> None:
    application, version = (file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version"))
    if (application, version) == (APPLICATION, VERSION):
        return
    empty = not file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] and (application, version) == (0, 0)
    if not (write and empty):
        found = f"version {version}" if application == APPLICATION else "another program's database"
        raise ConfigError(f"{path} is {found}, expected a history of version {VERSION}; name another file")
    for statement in _TABLES.strip().split(";\n"):
        file.execute(statement)
    file.execute(f"PRAGMA application_id = {APPLICATION}")
    file.execute(f"PRAGMA user_version = {VERSION}")


def prepare(path: Path) -> None:
    """Make sure that a run can be appended, before it takes an hour. Raises `ConfigError`."""
    with _opened(path, write=True):
        pass


def append(path: Path, outcome: Outcome, at: datetime | None = None) -> int:
    """Add a run in one transaction and return its number; a run that is there already keeps the number it has.

    at: when it ended, now by default. Raises `ConfigError` for a file that is no history of this version, and for a
    soak or a shard, whose cases are not those of the next run.
    """
    if outcome.shard is not None:
        raise ConfigError(
            "a shard is not a run; merge all of them: dsa-verify report merge --history FILE SHARD.json ..."
        )
    if "seed" in outcome.provenance:
        raise ConfigError("a soak has no history, because its scenarios do not come again; leave out --history")
    document: dict[str, Any] = outcome.document()
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    stamp = (at or datetime.now(UTC)).astimezone(UTC).isoformat(timespec="seconds")
    with _opened(path, write=True) as file:
        if known := file.execute("SELECT id FROM runs WHERE digest = ?", (digest,)).fetchone():
            return known[0]
        run = file.execute(
            "INSERT INTO runs (digest, at, command, seconds, exit_code, provenance) VALUES (?, ?, ?, ?, ?, ?)",
            (
                digest, stamp, outcome.command, outcome.seconds, int(outcome.exit_code),
                json.dumps(document["provenance"]),
            ),
        ).lastrowid  # fmt: skip
        assert run is not None
        _insert(file, run, document["results"])
    return run


def _insert(file: sqlite3.Connection, run: int, records: Iterable[Mapping[str, Any]]) -> None:
    for record in records:
        place = tuple(record[name] for name in ("provider", "surface", "scenario", "check"))
        file.execute("INSERT OR IGNORE INTO reasons (text) VALUES (?)", (record["reason"],))
        file.execute("INSERT OR IGNORE INTO places (provider, surface, scenario, demand) VALUES (?, ?, ?, ?)", place)
        file.execute(
            "INSERT INTO results SELECT places.id, ?, ?, ?, reasons.id FROM places, reasons "
            "WHERE provider = ? AND surface = ? AND scenario = ? AND demand = ? AND text = ?",
            (run, record["verdict"].replace("_", " "), record["share"], *place, record["reason"]),
        )


def runs(path: Path) -> list[RecordedRun]:
    """All runs, oldest first. Raises `ConfigError`."""
    with _opened(path, write=False) as file:
        return _runs(file)


def _runs(file: sqlite3.Connection) -> list[RecordedRun]:
    rows = file.execute("SELECT id, at, exit_code, provenance FROM runs ORDER BY id")
    return [RecordedRun(number, at, code, flat(json.loads(provenance))) for number, at, code, provenance in rows]


def lines(path: Path) -> Iterator[tuple[CheckPlace, tuple[Point, ...]]]:
    """Each check that ever ran, with what every run said of it, oldest first. Raises `ConfigError`.

    One at a time, because a year of nights is millions of results.
    """
    with _opened(path, write=False) as file:
        by_id = {run.id: run for run in _runs(file)}
        rows = file.execute(
            "SELECT provider, surface, scenario, demand, run, status, share, text FROM results "
            "JOIN places ON places.id = place JOIN reasons ON reasons.id = reason ORDER BY place, run"
        )
        for names, some in groupby(rows, key=lambda row: row[:4]):
            yield CheckPlace(*names), tuple(Point(by_id[row[4]], *row[5:]) for row in some)


def flat(provenance: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Nested provenance as one level of names and texts."""
    found: dict[str, str] = {}
    for key, value in provenance.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = str(value)
    return found
