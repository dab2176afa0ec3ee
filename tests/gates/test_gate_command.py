"""`dsa-verify gate`: verdicts are exit codes, stdout is the result, and a usage error is one line, early."""

import json
import shlex
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from dsa_verify.cli import main
from dsa_verify.commands.gate import gate as gate_command
from dsa_verify.commands.sections import SectionOption
from dsa_verify.gates import arrange, options
from dsa_verify.gates.arms.arm import EmbeddedArm
from dsa_verify.gates.arms.payload import Endpoint
from dsa_verify.gates.tasks.generated import generated_rows
from dsa_verify.gates.tasks.longbench import longbench
from tests.gates.fakes import Fake, gate, right, wrong
from tests.gates.replaying import rows_of

COMMAND = "serve --port {port}"


def command(*arguments: Any) -> Result:
    return CliRunner().invoke(main, ["gate", *map(str, arguments)])


@pytest.fixture
def arms(monkeypatch):
    """Makes the command run fakes: what sparse says, and changes of the gate."""

    def use(says=right, **changes: Any) -> None:
        made = gate(sparse=Fake("sparse", says, {"sparse_prefill": 9}), **changes)
        monkeypatch.setattr(arrange, "arrange", lambda options: made)

    return use


@pytest.mark.parametrize(
    ("says", "changes", "verdict", "code"),
    [
        (right, {}, "PASS", 0),
        (wrong, {}, "FAIL", 1),
        (right, {"active_tokens": 1000}, "INVALID", 3),
        (lambda key: None if key.endswith("7") else right(key), {}, "INCONCLUSIVE", 4),
    ],
)
def test_verdict_is_the_exit_code_and_the_last_line(arms, says, changes, verdict, code):
    arms(says, **changes)
    result = command()
    assert result.exit_code == code
    assert result.stdout.splitlines()[-1].startswith(f"{verdict}: ")
    names = [line.split()[0] for line in result.stdout.splitlines()[1:10]]
    assert names == ["macro", "single", "multi", "fewshot", "synthetic", "qasper", "hotpotqa", "trec", "passage_count"]


def test_json_is_one_document_and_the_same_as_the_report(arms, tmp_path):
    arms()
    result = command("--json", "--report", tmp_path / "report")
    content = json.loads(result.stdout)
    assert (content["verdict"], content["schema"]) == ("PASS", 1)
    assert json.loads((tmp_path / "report" / "gate.json").read_text("utf-8")) == content
    assert {path.name for path in (tmp_path / "report").iterdir()} == {"gate.json", "gate.md", "gate.xml", "gate.html"}
    assert "wrote" in result.stderr and "wrote" not in result.stdout


def test_controls_and_reasons_are_told(arms):
    arms(rule=arrange.Rule(), same=Fake("same"), degraded=Fake("degraded", wrong))
    lines = command().stdout.splitlines()
    assert "control degraded: FAIL, as due" in lines
    assert any(line.startswith("reason: ") for line in lines)


def test_lines_on_stderr_tell_how_far_it_is_without_a_terminal(arms, monkeypatch):
    from dsa_verify.gates.arms import progress

    monkeypatch.setattr(progress, "EVERY_S", 0.0)
    arms(lambda key: None if key.endswith("7") else right(key))
    result = command()
    lines = [line for line in result.stderr.splitlines() if line.startswith("gate: ")]
    assert lines[0] == "gate: dense 1/160"
    assert lines[-1] == "gate: dense 160/160, sparse 160/160"
    assert "gate: " not in result.stdout


def test_absent_package_is_named_with_what_installs_it(monkeypatch):
    monkeypatch.setattr(options, "PACKAGES", ("no_such_package",))
    result = command()
    assert result.exit_code == 2
    assert "needs the package no_such_package; pip install 'dsa-verify[gate]'" in result.stderr


@pytest.fixture
def data(tmp_path) -> Path:
    for name in ("qasper", "trec"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(name, 3)))
    return tmp_path


URLS = ("--dense-url", "http://127.0.0.1:1", "--sparse-url", "http://127.0.0.1:2")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dense-url", "http://127.0.0.1:1"), "needs both --dense-url and --sparse-url"),
        (("--task", "qasper", *URLS), "nothing answers at http://127.0.0.1:1 "),
        (("--dense-url", "here", "--sparse-url", "there"), "'here' is no URL of a server"),
        (("--task", "qaspr"), "no documents for qaspr"),
        (("--task", "qaspr", "--server-cmd", COMMAND), "Did you mean 'qasper'"),
        (("--task", "musique", "--server-cmd", COMMAND), "cannot read"),
        (("--server-cmd", COMMAND, "--dense-env", "DSA_PREFILL_SPARSE"), "'DSA_PREFILL_SPARSE' is no NAME=VALUE"),
        (("--server-cmd", "serve"), "has no {port}"),
        (("--mutant", "top-1-page", *URLS), "--mutant means nothing with"),
        (("--mutant", "nothing"), "unknown mutant 'nothing'"),
        (("--alpha", "0.05", "--macro-margin", "0"), "--macro-margin"),
        (("--documents", "0"), "--documents"),
        (("--baseline", "sparse"), "'sparse' is not 'dense'"),
        (("--dense-samples", "/nowhere", "--sparse-samples", "/nowhere"), "does not exist"),
        (("--report", "/proc/nothing/new"), "cannot write to /proc/nothing/new"),
    ],
)
def test_usage_error_is_one_line_and_exits_2(data, arguments, words):
    if "--server-cmd" in arguments:
        arguments = (*arguments, "--data", data)
    result = command(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert result.stdout == ""
    told = [line for line in result.stderr.splitlines() if line.startswith(("dsa-verify: ", "Error: "))]
    assert len(told) == 1
    assert "Traceback" not in result.stderr


def test_server_command_that_ends_is_refused_with_its_output(data):
    result = command("--server-cmd", "echo no such model; exit 7 # {port}", "--data", data, "--task", "qasper",
                     "--work", data / "work")  # fmt: skip
    assert result.exit_code == 2
    assert "ended with exit code 7" in result.stderr and "no such model" in result.stderr


def test_help_shows_every_option_in_a_section_with_an_example_that_the_command_takes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("dense", "sparse"):
        (tmp_path / folder).mkdir()
    shown_options = [one for one in gate_command.params if isinstance(one, click.Option)]
    sections = {one.section for one in shown_options if isinstance(one, SectionOption)}
    assert len(sections) == 9 and all(isinstance(one, SectionOption) for one in shown_options)
    text = gate_command.get_help(click.Context(gate_command, terminal_width=100))
    assert max(map(len, text.splitlines())) <= 100
    for section in sections:
        shown = text.partition(f"\n{section.title}:\n")[2].partition("\n\n")[0]
        assert shown.endswith(f"  $ {section.example}"), section.title
        names = {one.opts[0] for one in shown_options if isinstance(one, SectionOption) and one.section == section}
        assert {line.split()[0] for line in shown.splitlines() if line.startswith("  --")} == names
        arguments = shlex.split(section.example.partition(" >")[0])
        assert arguments[:2] == ["dsa-verify", "gate"] and names & set(arguments)
        gate_command.make_context("gate", arguments[2:])


def test_defaults_stand_in_one_place():
    """Where an option is left out, the command, its options as a value and what they are made into agree."""
    parsed = gate_command.make_context("gate", []).params
    left_out = {name: value for name, value in parsed.items() if name not in ("report", "as_json")}
    assert options.GateOptions(**left_out) == options.GateOptions()
    endpoint = Endpoint("http://127.0.0.1:1", "m")
    assert (endpoint.timeout_s, endpoint.retry.patience_s) == (
        options.GateOptions.timeout,
        options.GateOptions.patience,
    )
    text = gate_command.get_help(click.Context(gate_command))
    assert all(f"{getattr(arrange.Rule, name):g}]" in text for name in ("alpha", "macro_margin", "task_margin", "seed"))


def test_few_documents_of_the_built_in_model_are_inconclusive(tmp_path):
    """The one run here with the real model: dense and sparse prefill of the engine in this process."""
    result = command("--documents", 2, "--task", "qasper", "--task", "trec", "--no-controls", "--json")
    assert result.exit_code == 4, result.output
    content = json.loads(result.stdout)
    assert content["verdict"] == "INCONCLUSIVE"
    assert "too few independent documents" in content["sentence"]
    assert content["missing"] == {"dense": 0, "sparse": 0}
    assert [one["mean_dense"] for one in content["tasks"]] == [1.0, 1.0], "the model finds what is there"
    arms = content["manifest"]
    assert arms["dense"]["sparse_prefill"] == 0 < arms["sparse"]["sparse_prefill"]
    assert arms["dense"]["environment"] == {"DSA_PREFILL_SPARSE": "0"}


def test_mutant_breaks_its_arm_at_every_look_and_no_other_arm():
    task = longbench("qasper", generated_rows("qasper", 2), "rows made here")
    questions = [document.question for document in task.documents]
    healthy, broken = (EmbeddedArm("sparse", arrange.SPARSE, mutant=name) for name in (None, "top-1-page"))

    def score(arm: EmbeddedArm) -> float:
        answers = arm.answer(questions, lambda answer: None)
        return sum(task.score(d, answers[d.question.key].text or "") for d in task.documents) / len(questions)

    lost, whole, again = (score(arm) for arm in (broken, healthy, broken))
    assert lost == again < whole == 1.0
