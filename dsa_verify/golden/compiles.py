"""Golden record of compiles: what the TPU compiler said of each case, and how far its sizes may move."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_verify.errors import GoldenError
from dsa_verify.golden import canonical

FILE = "compiles.json"
SIZES = {"hbm_temp_bytes": 2**20, "hbm_bytes": 2**20, "vmem_bytes": 2**16, "code_bytes": 2**16}
"""Sizes of a record, and what each may grow by whatever it was: less is alignment and padding of small arrays."""
GROWTH = 1.05
"""A size drifts when it grows by more than 5% too. The same sources under the same libtpu give the same bytes, so this
is no noise: it is what a change may cost without a review. A smaller size fails nothing; the next update writes it."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Drift:
    """A case that is not what its record says."""

    case: str
    what: str

    def __str__(self) -> str:
        return f"{self.case}: {self.what}"


def name_of(record: Record) -> str:
    """Provider, surface, target and shape of an entry of `dsa-verify compile --json`."""
    return " ".join(record[key] for key in ("provider", "surface", "target", "shape"))


def kept(record: Record) -> dict[str, Any]:
    """What is pinned of an entry: its verdict with the cause, and its sizes in bytes."""
    return {key: record[key] for key in ("verdict", "cause", *SIZES)}


def drifts(pinned: Mapping[str, Record], found: Iterable[Record]) -> list[Drift]:
    """What moved, of cases that were compiled; every case that was must have a record."""
    moved = []
    for record in found:
        name, now = name_of(record), kept(record)
        then = pinned.get(name)
        if then is None:
            moved.append(Drift(name, "has no record; write it with `dsa-verify compile --golden update`"))
            continue
        if (then["verdict"], then["cause"]) != (now["verdict"], now["cause"]):
            was, is_now = (f"{one['verdict']} {one['cause']}".strip() for one in (then, now))
            moved.append(Drift(name, f"was {was}, is {is_now}"))
        for size, least in SIZES.items():
            if grown(then[size], now[size], least):
                moved.append(Drift(name, f"{size} grew from {then[size]:,} to {now[size]:,}"))
    return moved


def grown(then: int | None, now: int | None, least: int) -> bool:
    """Whether a size drifts; one that was never known may be anything."""
    return then is not None and now is not None and now - then > max(least, (GROWTH - 1) * then)


def read(folder: Path) -> dict[str, Any]:
    """The whole record, `{"cases", "provenance"}`; one without cases where there is none. Raises `GoldenError`."""
    path = folder / FILE
    try:
        content = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return {"cases": {}, "provenance": {}}
    except UnicodeDecodeError as error:
        raise GoldenError(f"{path} is not UTF-8 ({error}); restore it with `git checkout -- {path}`") from error
    return canonical.parse(content, str(path))


def write(folder: Path, found: Sequence[Record], provenance: Mapping[str, Any]) -> list[str]:
    """Write what these compiles showed beside what is recorded of others; returns the names that changed.

    A case within its tolerance keeps its record, so that an update changes no byte that it need not. Raises
    `GoldenError` for a case that was not verified: that is no fact about a kernel.
    """
    loose = [name_of(one) for one in found if one["verdict"] == "not_verified" and one["cause"] != "missing"]
    if loose:
        raise GoldenError(f"{loose[0]} was not verified, so there is nothing to record; see its reason above")
    old = read(folder)
    cases = dict(old["cases"])
    changed = []
    for record in found:
        name, now = name_of(record), kept(record)
        then = cases.get(name)
        same = then is not None and not drifts({name: then}, [record]) and not _shrunk(then, now)
        if not same and record["cause"] != "missing":
            cases[name] = now
            changed.append(name)
    if changed:
        body = {"schema": canonical.SCHEMA, "cases": cases, "provenance": dict(provenance)}
        (folder / FILE).write_bytes(canonical.text(body).encode())
    return changed


def _shrunk(then: Record, now: Record) -> bool:
    return any(grown(now[size], then[size], least) for size, least in SIZES.items())
