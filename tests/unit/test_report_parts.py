"""What other commands found, on the page of a run: read from their documents, other files refused with what to do."""

import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.commands import compile as compiling
from dsa_verify.compile.cases import CompileCase
from dsa_verify.compile.chips import CHIPS, GIB, MIB
from dsa_verify.compile.evidence import Figures, judge, not_verified, refused
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result, Verdict
from dsa_verify.gates.decision import decide
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.mutants.campaign import MutantResult
from dsa_verify.mutants.kinds import title
from dsa_verify.mutants.score import Score
from dsa_verify.report import parts
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.page import page

HEAD = {"schema": 1, "seconds": 1.0, "provenance": {}}
BUDGETS = {chip.name: (chip.hbm_bytes, chip.vmem_bytes) for chip in CHIPS.values()}
RUN = Outcome("dsa-verify parity", 1.0, {}, (Result("jnp", "dense_mla", "single", "parity", Verdict.accepted()),))
WRITE = CompileCase("builtin", "cache_write", "v5e", "glm-5.2-tp16", "prefill", 4096, 131_072, 64)
FITS = Figures(temporaries=0, arguments=2 * GIB, outputs=2 * GIB, aliased=2 * GIB, code=MIB, vmem=MIB, vmem_limit=None)


def _mutants():
    fates = (
        [
            MutantResult(
                "causal-bound-strict", "15", "builtin", "dense_mla", ("parity", "races"), "single-extend-p16-f32", "x"
            ),
            MutantResult("lives", "26", "jnp", "index_topk"),
        ],
        [MutantResult("flash:12:swap", "swap", "builtin", "dense_mla")],
    )
    score = Score(
        *fates, {"flash:12:swap": "It is overwritten <b>at once</b>.", "gone": "No such."}, {"lives", "flash:12:swap"}
    )
    return {**HEAD, "command": "dsa-verify mutants --json", **score.document()}


def _compiles():
    results = [
        judge(WRITE, FITS),
        not_verified(WRITE, "missing", "not provided"),
        refused(WRITE, "Used 20.00G of 15.75G hbm. Exceeded"),
    ]
    return {**compiling._document(results, {}, 1.0), "command": "dsa-verify compile --json"}


def _gate(loss=0.3):
    rng, n = np.random.default_rng(0), 200
    dense = rng.uniform(0.6, 1.0, n)
    sparse = np.clip(dense - loss * rng.uniform(0.8, 1.2, n), 0, 1)
    scores = [
        TaskScores(name, "single", dense, sparse, np.arange(n), np.ones(n, bool)) for name in ("qasper", "hotpot")
    ]
    decision = decide(scores, Rule(controls=False, looks=(1.0,)))
    return {**HEAD, "command": "dsa-verify gate --json", **decision.document()}


DOCUMENTS = {"mutants": _mutants(), "compile": _compiles(), "gate": _gate()}
READ = {
    "mutants": lambda path: parts.mutants(path, title),
    "compile": lambda path: parts.compiles(path, BUDGETS),
    "gate": parts.gate,
}


@pytest.fixture
def files(tmp_path):
    for name, content in DOCUMENTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content, allow_nan=False))
    (tmp_path / "run.json").write_text(json.dumps(RUN.document()))
    return tmp_path


def test_mutants_are_kinds_with_what_killed_them_and_survivors_first(files):
    part = parts.mutants(files / "mutants.json", title)
    survivors, killed = part.tables
    assert "handwritten 1 of 2 killed; systematic 0 of 1 killed; 2 survived, 1 of them without" in part.sentence
    assert [(row.cells[1], row.cells[3], row.status) for row in survivors.rows] == [
        ("lives", "NOT EXPLAINED", "rejected"),
        ("flash:12:swap", "It is overwritten <b>at once</b>.", ""),
    ]
    ((kind, name, place, checks, scenario),) = (row.cells for row in killed.rows)
    assert kind == "15 causal mask absent or off by one"
    assert (name, place, checks) == ("causal-bound-strict", "builtin dense_mla", "parity, races")
    assert scenario == "single-extend-p16-f32"
    assert part.notes == ("stale explanation: gone: no such mutant; take the entry out",)


def test_compiles_stand_beside_the_budgets_of_the_chip_rejected_first(files):
    part = parts.compiles(files / "compile.json", BUDGETS)
    rows = [dict(zip(part.tables[0].headings, row.cells, strict=True)) for row in part.tables[0].rows]
    assert [row["verdict"] for row in rows] == ["rejected: hbm", "not verified: missing", "accepted"]
    assert [row.status for row in part.tables[0].rows] == ["rejected", "not verified", "accepted"]
    assert part.sentence == "1 accepted, 1 not verified, 1 rejected."
    fits = rows[2]
    assert (fits["HBM temporaries"], fits["HBM"], fits["of the chip's"]) == ("0 B", "2.00 GiB", "12.7% of 15.75 GiB")
    assert (fits["VMEM"], fits["of the core's"], fits["code"]) == ("1.00 MiB", "0.8% of 128.00 MiB", "1.00 MiB")
    assert (rows[0]["HBM temporaries"], rows[0]["VMEM"], rows[1]["HBM"]) == ("20.00 GiB", "", "")
    assert part.notes == ("Used 20.00G of 15.75G hbm. Exceeded", "not provided")


def test_a_chip_of_another_version_has_no_budget(files):
    part = parts.compiles(files / "compile.json", {})
    assert part.tables[0].rows[2].cells[7] == ""


def test_the_gate_has_its_sentence_and_every_bound_with_its_margin(files):
    part = parts.gate(files / "gate.json")
    assert part.sentence.startswith("FAIL")
    rows = [dict(zip(part.tables[0].headings, row.cells, strict=True)) for row in part.tables[0].rows]
    assert [(row["of"], row["name"]) for row in rows] == [
        ("all tasks", "macro"), ("group", "single"), ("task", "qasper"), ("task", "hotpot"),
    ]  # fmt: skip
    for row, one in zip(rows, [DOCUMENTS["gate"]["macro"], *DOCUMENTS["gate"]["groups"]], strict=False):
        assert row["difference"] == f"{100 * one['difference']:.2f}"
        assert float(row["at most"]) == pytest.approx(100 * one["upper"], abs=0.01)
        assert (row["margin"], row["shown"]) == (f"{-100 * one['margin']:.2f}", "harm")
    assert {row.status for row in part.tables[0].rows} == {"rejected"}


def test_equal_arms_are_not_marked(tmp_path):
    (tmp_path / "gate.json").write_text(json.dumps(_gate(loss=0.0)))
    macro, *_ = parts.gate(tmp_path / "gate.json").tables[0].rows
    assert (macro.cells[-1], macro.status) == ("not worse", "")
    assert macro.cells[5] == "+0.00"


def test_a_gate_without_numbers_still_has_its_verdict(tmp_path):
    none = {**DOCUMENTS["gate"], "macro": None, "groups": [], "tasks": []}
    (tmp_path / "gate.json").write_text(json.dumps(none))
    assert parts.gate(tmp_path / "gate.json").tables[0].rows == ()


@pytest.mark.parametrize("name", parts.PARTS)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("not json", "cannot read"),
        ("[]", "no such document"),
        ("{}", "no such document"),
        (json.dumps(RUN.document()), "is of `dsa-verify parity`"),
    ],
)
def test_another_file_is_refused_with_the_command_that_writes_the_right_one(tmp_path, name, wrong, message):
    path = tmp_path / "other.json"
    path.write_text(wrong)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        READ[name](path)
    assert str(path) in str(caught.value)
    assert f"--{name} takes the document of `{parts.PARTS[name]}`" in str(caught.value)


@pytest.mark.parametrize("name", parts.PARTS)
def test_parts_are_not_mistaken_for_one_another(files, name):
    for other in set(parts.PARTS) - {name}:
        with pytest.raises(ConfigError, match=f"is of `dsa-verify {other} --json`"):
            READ[name](files / f"{other}.json")


@pytest.mark.parametrize("name", parts.PARTS)
def test_another_schema_and_damage_are_refused(files, name):
    path = files / f"{name}.json"
    path.write_text(json.dumps({**DOCUMENTS[name], "schema": 2}))
    with pytest.raises(ConfigError, match="schema 2, expected 1"):
        READ[name](path)
    rows = {"mutants": "mutants", "compile": "cases", "gate": "groups"}[name]
    path.write_text(json.dumps({**DOCUMENTS[name], rows: [{"name": "x", "verdict": "fine"}]}))
    with pytest.raises(ConfigError, match="is damaged"):
        READ[name](path)


def test_the_command_puts_all_parts_on_the_page(files):
    out = files / "run.html"
    options = [word for name in parts.PARTS for word in (f"--{name}", str(files / f"{name}.json"))]
    found = CliRunner().invoke(main, ["report", "html", str(files / "run.json"), "-o", str(out), *options])
    assert (found.exit_code, found.stdout) == (0, ""), found.output
    text = out.read_text("utf-8")
    for name in parts.PARTS:
        assert f'<h2 id="{name}">' in text
        assert f'<a href="#{name}">' in text
    assert "&lt;b&gt;at once&lt;/b&gt;" in text
    assert "<summary>Killed: 1</summary>" in text
    assert text.count("<table") == text.count('<div class="wide" tabindex="0"')
    assert "Not here" not in text


def test_a_part_that_is_not_given_is_absent_and_one_line_says_how_to_add_it(files):
    text = page(RUN, parts=[parts.gate(files / "gate.json")])
    assert 'id="gate"' in text and 'id="mutants"' not in text and 'id="compile"' not in text
    assert "Not here: mutants, compile;" in text
    assert "dsa-verify report html --mutants FILE --compile FILE" in text


def test_the_command_refuses_a_wrong_part_and_writes_nothing(files):
    out = files / "run.html"
    arguments = [str(files / "run.json"), "-o", str(out), "--gate", str(files / "mutants.json")]
    found = CliRunner().invoke(main, ["report", "html", *arguments])
    assert (found.exit_code, found.stdout, out.exists()) == (2, "", False)
    assert "--gate takes the document of `dsa-verify gate --json" in found.stderr
