"""A gate's outcome for readers: a JSON document, Markdown for a CI summary, JUnit, one self-contained HTML page."""

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from dsa_verify.gates.run import GateOutcome
from dsa_verify.report import templates
from dsa_verify.report.formats import points

BANDS = (0, 1024, 4096, 8192, 16384, 32768)
"""Lower ends, in prompt tokens, of the bands of length that scores are shown by."""
CHANGED = 20
"""Documents whose score changed most that are shown with both answers."""


def document(outcome: GateOutcome, head: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of `dsa-verify gate`. head: what every command's document begins with."""
    return {
        **head,
        **outcome.decision.document(),
        "rounds": {"asked": outcome.rounds, "of": outcome.of_rounds},
        "lengths": list(by_length(outcome)),
        "grid": list(grid(outcome)),
        "changed": list(changed(outcome)),
        "missing_reasons": missing_reasons(outcome),
        "corrections": outcome.corrections,
        "rule": dataclasses.asdict(outcome.gate.rule),
        "manifest": {"data_sha": outcome.data_sha, **outcome.manifests},
        "answers": {arm: counts(outcome, arm) for arm in outcome.answers},
    }


def counts(outcome: GateOutcome, arm: str) -> dict[str, int]:
    """How an arm's answers ended: `stop`, `length`, and by reason those that are missing."""
    ends: dict[str, int] = {}
    for answer in outcome.answers[arm].values():
        name = answer.reason or answer.finish or "unknown"
        ends[name] = ends.get(name, 0) + 1
    return dict(sorted(ends.items()))


def missing_reasons(outcome: GateOutcome) -> dict[str, dict[str, str]]:
    """Why answers are missing, by arm and key."""
    return {
        arm: {key: answer.reason for key, answer in answers.items() if answer.reason is not None}
        for arm, answers in outcome.answers.items()
    }


def by_length(outcome: GateOutcome) -> Iterator[dict[str, Any]]:
    """Mean scores of both arms by band of prompt tokens, over documents that both answered."""
    bands: dict[int, list[tuple[float, float]]] = {}
    for key, dense, sparse in _pairs(outcome):
        tokens = outcome.answers["dense"][key].prompt_tokens or 0
        bands.setdefault(max(band for band in BANDS if band <= tokens), []).append((dense, sparse))
    for band, pairs in sorted(bands.items()):
        dense, sparse = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        yield {"from_tokens": band, "n": len(pairs), "mean_dense": dense, "mean_sparse": sparse}


def grid(outcome: GateOutcome) -> Iterator[dict[str, Any]]:
    """Mean scores of both arms by length and depth, of tasks that place something in a text."""
    placed = {d.question.key: d.row for task in outcome.gate.tasks for d in task.documents if "depth" in d.row}
    cells: dict[tuple[int, float], list[tuple[float, float]]] = {}
    for key, dense, sparse in _pairs(outcome):
        row = placed.get(key.partition("#")[0])
        if row is not None:
            cells.setdefault((row["tokens"], row["depth"]), []).append((dense, sparse))
    for (tokens, depth), pairs in sorted(cells.items()):
        dense, sparse = (sum(side) / len(pairs) for side in zip(*pairs, strict=True))
        yield {"tokens": tokens, "depth": depth, "n": len(pairs), "mean_dense": dense, "mean_sparse": sparse}


def changed(outcome: GateOutcome) -> Iterator[dict[str, Any]]:
    """The documents whose score changed most, losses first, with what both arms said."""
    order = sorted(((sparse - dense, key) for key, dense, sparse in _pairs(outcome) if sparse != dense))
    losses, gains = [one for one in order if one[0] < 0], [one for one in reversed(order) if one[0] > 0]
    for difference, key in (losses + gains)[:CHANGED]:
        dense, sparse = outcome.answers["dense"][key], outcome.answers["sparse"][key]
        yield {
            "document": key, "difference": difference, "references": _references(outcome, key),
            "dense": dense.text, "sparse": sparse.text, "prompt_tokens": dense.prompt_tokens,
        }  # fmt: skip


def markdown(content: dict[str, Any]) -> str:
    """A summary for a CI page."""
    lines = [f"## dsa-verify gate: {content['verdict']}", "", content["sentence"], ""]
    if content["reasons"][1:]:
        lines += [f"- {_cell(reason)}" for reason in content["reasons"]] + [""]
    lines += ["| | n | dense | sparse | difference | interval | margin |", "|---|--:|--:|--:|--:|--:|--:|"]
    for one in ([content["macro"]] if content["macro"] else []) + content["groups"] + content["tasks"]:
        interval = f"{points(one['lower'])} to {points(one['upper'])}"
        lines.append(
            f"| {one['name']} | {one['n']} | {points(one['mean_dense'])} | {points(one['mean_sparse'])} "
            f"| {points(one['difference'])} | {interval} | {points(-one['margin'])} |"
        )
    lines += ["", "Scores and differences are in points (hundredths of the mean score)."]
    for name, control in content["controls"].items():
        lines.append(f"Control `{name}`: {control['verdict']}, {'as due' if control['sound'] else 'NOT as due'}.")
    return "\n".join(lines) + "\n"


def junit(content: dict[str, Any]) -> str:
    """JUnit XML: one case for the verdict, one for each task, group and control; no PASS fails or is skipped."""
    suite = ElementTree.Element("testsuite", name="dsa-verify gate", time=str(content["seconds"]))
    verdict = ElementTree.SubElement(suite, "testcase", classname="gate", name="verdict")
    kinds = {"FAIL": "failure", "INVALID": "error", "INCONCLUSIVE": "skipped"}
    if content["verdict"] in kinds:
        element = ElementTree.SubElement(verdict, kinds[content["verdict"]], message=content["sentence"])
        element.text = "\n".join(content["reasons"])
    for part in ("groups", "tasks"):
        for one in content[part]:
            case = ElementTree.SubElement(suite, "testcase", classname=f"gate.{part}", name=one["name"])
            if one["upper"] is not None and one["upper"] < -one["margin"]:
                message = f"difference {points(one['difference'])} points, at most {points(one['upper'])}"
                ElementTree.SubElement(case, "failure", message=message)
    for name, control in content["controls"].items():
        case = ElementTree.SubElement(suite, "testcase", classname="gate.controls", name=name)
        if not control["sound"]:
            ElementTree.SubElement(case, "error", message=f"the control {name} is {control['verdict']}")
    suite.set("tests", str(len(suite)))
    for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    return ElementTree.tostring(suite, encoding="unicode")


def html(content: dict[str, Any]) -> str:
    """One page that needs nothing else: no network, no script; light and dark."""
    rows = ([content["macro"]] if content["macro"] else []) + content["groups"] + content["tasks"]
    limits = [abs(value) for one in rows for value in (one["lower"], one["upper"], one["margin"]) if value is not None]
    span = min(1.05 * max(limits, default=1), 1)
    return templates.render("dsa_verify.gates", "report.html.j2", **content, rows=rows, span=span)


def write(content: dict[str, Any], folder: Path) -> list[Path]:
    """All four into a folder; the files written."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "gate.json": json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False),
        "gate.md": markdown(content),
        "gate.xml": junit(content),
        "gate.html": html(content),
    }
    for name, text in texts.items():
        # An answer may hold half of a surrogate pair, which UTF-8 cannot; the escape is also right in JSON.
        (folder / name).write_text(text, "utf-8", "backslashreplace")
    return [folder / name for name in texts]


def _pairs(outcome: GateOutcome) -> Iterator[tuple[str, float, float]]:
    dense, sparse = outcome.scores["dense"], outcome.scores["sparse"]
    for key in sorted(dense.keys() & sparse.keys()):
        yield key, dense[key], sparse[key]


def _references(outcome: GateOutcome, key: str) -> list[str]:
    task_name, _, number = key.partition("#")[0].partition("/")
    for task in outcome.gate.tasks:
        if task.name == task_name:
            return next(list(d.row["answers"]) for d in task.documents if d.number == number)
    return []


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
