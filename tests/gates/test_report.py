"""What a reader gets: verdict first, both answers side by side, nothing from outside, files that programs can parse."""

import dataclasses
import json
import math
import re
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from dsa_verify.gates import report
from dsa_verify.gates.run import run
from dsa_verify.gates.tasks.needle import DEPTHS, needle
from dsa_verify.gates.tasks.truncation import words
from tests.gates.fakes import NAMES, RULE, TASKS, Fake, gate, right, wrong

HOSTILE = "</td><script>alert(1)</script> & <img src=http://example.org/x> | \ud800 ␄"
HEAD = {
    "schema": 1, "command": "dsa-verify gate --dense-url http://a:1", "seconds": 1.5, "provenance": {"python": "3"}
}  # fmt: skip
CONTROLS = dataclasses.replace(RULE, controls=True)
LOST = TASKS[0].documents[3].question.key
VOID = {"script", "link", "img", "iframe", "object", "embed", "base", "audio", "video", "source", "form"}


def content_of(dense=right, sparse=right, **changes: Any) -> dict[str, Any]:
    arms = Fake("dense", dense, {"sparse_prefill": 0, "url": "http://a"}), Fake("sparse", sparse, {"sparse_prefill": 9})
    outcome = run(gate(*arms, **changes))
    return report.document(outcome, HEAD)


@pytest.fixture(scope="module")
def passed() -> dict[str, Any]:
    return content_of(rule=CONTROLS, same=Fake("same"), degraded=Fake("degraded", wrong))


@pytest.fixture(scope="module")
def failed() -> dict[str, Any]:
    """All wrong in trec, one hostile answer, one that is missing."""

    def says(key: str) -> str | None:
        if key == LOST:
            return HOSTILE
        if key == TASKS[1].documents[0].question.key:
            return None
        return (wrong if key.startswith("trec") else right)(key)

    return content_of(sparse=says, rule=dataclasses.replace(RULE, missing_limit=0.05))


class Page(HTMLParser):
    """Tags, references, and texts of a page in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in ("src", "href", "action", "xlink:href")]
        self.references += [value for name, value in attrs if name.startswith("on") and value]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in ("meta", "line", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        if data.strip() and self.open and self.open[-1] not in ("style", "title"):
            self.texts.append(data.strip())


def test_document_has_the_keys_that_programs_rely_on(passed):
    assert {"schema", "command", "seconds", "provenance", "verdict", "macro", "groups", "tasks", "controls", "missing",
            "manifest"} <= set(passed)  # fmt: skip
    assert (passed["schema"], passed["verdict"], passed["seconds"]) == (1, "PASS", 1.5)
    for one in (passed["macro"], *passed["groups"], *passed["tasks"]):
        assert {"n", "mean_dense", "mean_sparse", "difference", "lower", "upper", "margin"} <= set(one)
    assert [one["name"] for one in passed["tasks"]] == list(NAMES)
    assert {name: one["verdict"] for name, one in passed["controls"].items()} == {"same": "PASS", "degraded": "FAIL"}
    assert passed["manifest"]["sparse"]["sparse_prefill"] == 9
    assert re.fullmatch("[0-9a-f]{64}", passed["manifest"]["data_sha"])
    assert set(passed["corrections"]) == {"temperature", "first-line"}
    assert passed["rule"]["macro_margin"] == RULE.macro_margin
    assert passed["answers"]["dense"] == {"stop": 160}


def test_missing_answers_are_counted_and_named(failed):
    key = TASKS[1].documents[0].question.key
    assert failed["missing"] == {"dense": 0, "sparse": 1}
    assert failed["missing_reasons"] == {"dense": {}, "sparse": {key: "http_500"}}
    assert failed["answers"]["sparse"] == {"http_500": 1, "stop": 159}


def test_document_is_json_whatever_was_said(failed, tmp_path):
    files = {path.name: path for path in report.write(failed, tmp_path / "new")}
    assert set(files) == {"gate.json", "gate.md", "gate.xml", "gate.html"}
    read = json.loads(files["gate.json"].read_text("utf-8"))
    assert read == json.loads(json.dumps(failed))
    assert HOSTILE in [one["sparse"] for one in read["changed"]], "half of a surrogate pair too"


def test_changed_documents_show_losses_first(failed):
    found = failed["changed"]
    assert len(found) == report.CHANGED
    assert all(one["difference"] < 0 for one in found)
    lost = next(one for one in found if one["document"] == LOST)
    assert lost["dense"] == lost["references"][0] == right(LOST)


def test_scores_by_length_stand_in_their_band(passed):
    (band,) = passed["lengths"]
    assert (band["from_tokens"], band["n"]) == (0, 160)
    assert band["mean_dense"] == band["mean_sparse"]


def test_page_begins_with_the_verdict(passed, failed):
    for content in (passed, failed):
        assert Page(report.html(content)).texts[:2] == [content["verdict"], content["sentence"]]


def test_page_needs_nothing_from_outside_and_runs_nothing(failed):
    text = report.html(failed)
    page = Page(text)
    assert not VOID & set(page.tags)
    assert page.references == []
    assert "url(" not in text and "@import" not in text


def test_page_shows_both_answers_side_by_side(failed):
    rows = [row for row in Page(report.html(failed)).rows if row[0] == LOST]
    assert [row[2:] for row in rows] == [[" / ".join(TASKS[0].documents[3].row["answers"]), right(LOST), HOSTILE]]


def test_page_closes_what_it_opens(passed):
    assert Page(report.html(passed)).open == []


def test_page_has_every_number_of_the_table(failed):
    rows = {row[0]: row for row in Page(report.html(failed)).rows}
    for one in (failed["macro"], *failed["groups"], *failed["tasks"]):
        assert rows[one["name"]][1] == str(one["n"])
    trec = next(one for one in failed["tasks"] if one["name"] == "trec")
    assert rows["trec"][4] == f"{100 * trec['difference']:.2f}"


def test_page_shows_long_prompts_apart_where_others_are_too_short():
    """Only half of the prompts are long, and all of what is lost is lost there."""
    long = {document.question.key for task in TASKS for document in task.documents[::2]}
    arms = (
        Fake("dense", facts={"sparse_prefill": 0}),
        Fake("sparse", lambda key: (wrong if key in long else right)(key)),
    )
    for arm in arms:
        arm.changes = lambda key: {"prompt_tokens": 100 if key in long else 40}
    content = report.document(run(gate(*arms, trusted=True)), HEAD)
    rows = [row for row in Page(report.html(content)).rows if row[0] == "macro"]
    assert [row[1] for row in rows] == ["160", "80"]
    assert [float(row[4]) for row in rows] == [-50.0, -100.0]
    assert "Among prompts long enough for sparsity" in report.html(content)


@pytest.mark.parametrize("form", [report.html, report.markdown, report.junit])
def test_run_without_any_answer_has_a_report_too(form):
    content = content_of(sparse=lambda key: None)
    assert content["macro"]["difference"] is None
    assert content["verdict"] in form(content)


def test_markdown_is_one_table(passed, failed):
    for content in (passed, failed):
        lines = report.markdown(content).splitlines()
        assert lines[0] == f"## dsa-verify gate: {content['verdict']}"
        assert lines[2] == content["sentence"]
        table = [line for line in lines if line.startswith("|")]
        assert len(table) == 2 + 1 + len(content["groups"]) + len(content["tasks"])
        assert {len(re.findall(r"(?<!\\)\|", line)) for line in table} == {8}


def test_junit_parses_and_fails_where_the_gate_does(passed, failed):
    suite = ElementTree.fromstring(report.junit(passed))
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("0", "0", "0")
    assert int(suite.get("tests", "0")) == len(suite) == 1 + len(passed["groups"]) + len(NAMES) + 2
    suite = ElementTree.fromstring(report.junit(failed))
    broken = {case.get("name") for case in suite if case.find("failure") is not None}
    assert {"verdict", "trec"} <= broken
    assert "qasper" not in broken
    assert int(suite.get("failures", "0")) == len(broken)


@pytest.mark.parametrize(
    ("says", "kind", "verdict"),
    [(lambda key: None if key.endswith("7") else right(key), "skipped", "INCONCLUSIVE"), (right, "error", "INVALID")],
)
def test_junit_tells_no_verdict_from_a_bad_one(says, kind, verdict):
    content = content_of(sparse=says, active_tokens=1000 if verdict == "INVALID" else 50)
    assert content["verdict"] == verdict
    told = ElementTree.fromstring(report.junit(content)).find("testcase").find(kind)  # pyright: ignore
    assert told is not None
    assert told.get("message") == content["sentence"]


def test_no_number_is_nan(failed):
    def walk(value):
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, list | tuple):
            for one in value:
                walk(one)
        assert not (isinstance(value, float) and math.isnan(value))

    walk(failed)


def test_needles_are_shown_by_length_and_depth():
    task = needle((200, 300), words, repeats=2)
    codes = {document.question.key: document.row["answers"][0] for document in task.documents}
    lost = {key for key in codes if key.startswith("needle/300-50-")}
    content = content_of(codes.get, lambda key: "none" if key in lost else codes[key], tasks=[task])
    cells = {(one["tokens"], one["depth"]): (one["mean_dense"], one["mean_sparse"]) for one in content["grid"]}
    assert cells == {(n, depth): (1.0, float((n, depth) != (300, 0.5))) for n in (200, 300) for depth in DEPTHS}
    rows = Page(report.html(content)).rows
    assert ["300", *["100.00 / 100.00"] * 2, "100.00 / 0.00", *["100.00 / 100.00"] * 2] in rows
    assert {one["document"]: one["references"] for one in content["changed"]} == {key: [codes[key]] for key in lost}


def test_tasks_without_needles_show_no_grid(passed):
    assert passed["grid"] == [] and "Needles" not in report.html(passed)
