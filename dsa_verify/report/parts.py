"""What other commands found, for the page of a run: mutants, compiles and a gate, each read from its JSON document."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsa_verify import SCHEMA
from dsa_verify.errors import ConfigError
from dsa_verify.report.formats import points, size
from dsa_verify.report.templates import Table, TableRow

PARTS = {
    "mutants": "dsa-verify mutants --json",
    "compile": "dsa-verify compile --json",
    "gate": "dsa-verify gate --json, or gate.json of its --report folder",
}
"""The parts that a page may have, and which command writes the document of each."""
_KEYS = {"mutants": ("mutants", "systematic"), "compile": ("cases", "counts"), "gate": ("verdict", "macro")}
"""Keys that only the document of a part has together."""

Budgets = Mapping[str, tuple[int, int]]
"""HBM and VMEM in bytes that one device of a chip has, by the chip's name."""


@dataclass(frozen=True)
class PageSection:
    """What one command found: a sentence, tables, and notes below them."""

    name: str
    title: str
    sentence: str
    tables: tuple[Table, ...]
    notes: tuple[str, ...] = ()
    command: str = ""


def mutants(path: Path, title: Callable[[str], str] = str) -> PageSection:
    """A campaign: kind x mutant x what killed it, survivors first and with why. title: words for a kind.

    Raises `ConfigError` for another file.
    """
    return _read(path, "mutants", lambda content: _mutants(content, title))


def compiles(path: Path, budgets: Budgets) -> PageSection:
    """Compiles: verdict and memory of each case beside what the chip has, rejected ones first.

    Raises `ConfigError` for another file.
    """
    return _read(path, "compile", lambda content: _compiles(content, budgets))


def gate(path: Path) -> PageSection:
    """A gate: its sentence, and macro, groups and tasks with bounds and margins, in points (hundredths of a score).

    Raises `ConfigError` for another file.
    """
    return _read(path, "gate", _gate)


def _read(path: Path, name: str, convert: Callable[[dict[str, Any]], PageSection]) -> PageSection:
    expected = f"--{name} takes the document of `{PARTS[name]}`"
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path}: {error}; {expected}") from error
    if not isinstance(content, dict) or not all(key in content for key in _KEYS[name]):
        found = content.get("command") if isinstance(content, dict) else None
        raise ConfigError(f"{path} is {f'of `{found}`' if found else 'no such document'}; {expected}")
    if content.get("schema") != SCHEMA:
        raise ConfigError(f"{path} has schema {content.get('schema')}, expected {SCHEMA}; run the command again")
    try:
        return convert(content)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path} is damaged: {type(error).__name__} {error}; {expected}") from error


def _mutants(content: dict[str, Any], title: Callable[[str], str]) -> PageSection:
    hand, auto = content["handwritten"], content["systematic"]
    killed = [one for one in content["mutants"] if one["killed_by"]]
    survived = sorted((one for one in content["mutants"] if not one["killed_by"]), key=lambda one: bool(one["reason"]))
    unexplained = sum(not one["reason"] for one in survived)
    counts = [f"{name} {one['killed']} of {one['total']} killed" for name, one in
              (("handwritten", hand), ("systematic", auto)) if one["total"]]  # fmt: skip
    survivors = f"{len(survived)} survived" + (f", {unexplained} of them without an explanation" if survived else "")
    places = ("kind", "mutant", "provider and surface")
    by_kind = sorted(killed, key=lambda one: title(one["kind"]))
    return PageSection(
        "mutants", "Mutants: kernels broken on purpose", "; ".join([*counts, survivors]) + ".",
        (
            Table("Survivors", (*places, "why nothing can kill it"), tuple(
                TableRow((*_mutant(one, title), one["reason"] or "NOT EXPLAINED"), "" if one["reason"] else "rejected")
                for one in survived
            )),
            Table("Killed", (*places, "checks that killed it", "scenario"), tuple(
                TableRow((*_mutant(one, title), ", ".join(one["killed_by"]), one["scenario"] or "")) for one in by_kind
            ), folded=True),
        ),
        tuple(f"stale explanation: {line}" for line in content["stale"]), content["command"],
    )  # fmt: skip


def _mutant(one: Mapping[str, Any], title: Callable[[str], str]) -> tuple[str, str, str]:
    return title(one["kind"]), one["name"], f"{one['provider']} {one['surface']}"


def _compiles(content: dict[str, Any], budgets: Budgets) -> PageSection:
    order = ("rejected", "not_verified", "accepted")
    cases = sorted(content["cases"], key=lambda one: order.index(one["verdict"]))
    counts = ", ".join(f"{content['counts'][status]} {status.replace('_', ' ')}" for status in reversed(order))
    memory = ("HBM temporaries", "HBM", "of the chip's", "VMEM", "of the core's", "code")
    reasons = dict.fromkeys(one["message"] for one in cases if one["verdict"] != "accepted" and one["message"])
    return PageSection(
        "compile", "Compiled ahead of time", f"{counts}.",
        (Table("Cases", ("provider", "surface", "shape", "chip", "verdict", *memory), tuple(
            TableRow((*(one[name] for name in ("provider", "surface", "shape", "target")), _verdict(one),
                *_memory(one, budgets)), one["verdict"].replace("_", " ")) for one in cases
        ), memory),),
        tuple(reasons), content["command"],
    )  # fmt: skip


def _verdict(one: Mapping[str, Any]) -> str:
    return one["verdict"].replace("_", " ") + (f": {one['cause']}" if one["cause"] else "")


def _memory(one: Mapping[str, Any], budgets: Budgets) -> Iterable[str]:
    hbm, vmem = budgets.get(one["target"], (None, None))
    yield size(one["hbm_temp_bytes"])
    yield from (size(one["hbm_bytes"]), _of(one["hbm_bytes"], hbm))
    yield from (size(one["vmem_bytes"]), _of(one["vmem_bytes"], vmem))
    yield size(one["code_bytes"])


def _of(count: float | None, budget: int | None) -> str:
    return "" if count is None or budget is None else f"{count / budget:.1%} of {size(budget)}"


def _gate(content: dict[str, Any]) -> PageSection:
    numbers = ("n", "dense", "sparse", "difference", "at least", "at most", "margin")
    rows = [("all tasks", one) for one in [content["macro"]] if one]
    rows += [("group", one) for one in content["groups"]] + [("task", one) for one in content["tasks"]]
    controls = [
        f"Control {name}: {one['verdict']}, {'as due' if one['sound'] else 'NOT as due'}."
        for name, one in content["controls"].items()
    ]
    return PageSection(
        "gate", "Gate: may sparse prefill become the default?", content["sentence"],
        (Table("Differences in points, sparse minus dense", ("of", "name", *numbers, "shown"), tuple(
            TableRow((kind, one["name"], *_differences(one), _shown(one)), "rejected" if _shown(one) == "harm" else "")
            for kind, one in rows
        ), numbers),),
        (*content["reasons"][1:], *content["notes"], *controls), content["command"],
    )  # fmt: skip


def _differences(one: Mapping[str, Any]) -> Iterable[str]:
    yield str(one["n"])
    yield from (points(one[name]) for name in ("mean_dense", "mean_sparse"))
    yield from (points(one[name], "+") for name in ("difference", "lower", "upper"))
    yield points(-one["margin"])


def _shown(one: Mapping[str, Any]) -> str:
    """On which side of the margin the whole interval lies."""
    if one["upper"] is not None and one["upper"] < -one["margin"]:
        return "harm"
    return "not worse" if one["lower"] is not None and one["lower"] > -one["margin"] else "neither"
