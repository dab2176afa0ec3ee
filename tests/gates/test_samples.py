"""lm-eval's sample files as arms: the same decision as live answers, and one clear error for files that do not fit."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.arm import RecordedArm
from dsa_verify.gates.arms.samples import recorded
from dsa_verify.gates.arrange import arrange
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.records import Answer
from dsa_verify.gates.run import Gate, run
from dsa_verify.gates.tasks.longbench import longbench
from tests.gates.replaying import answers_to, evaluate, rows_of

NAMES = ("qasper", "gov_report", "lcc")
COUNT = 8
SEEDS = {"dense": 1, "sparse": 2}
ROWS = {name: rows_of(name, COUNT) for name in NAMES}
GIVEN = {arm: {name: answers_to(name, ROWS[name], seed) for name in NAMES} for arm, seed in SEEDS.items()}


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """What lm-eval writes for two arms, each in a folder of its name."""
    folder = tmp_path_factory.mktemp("samples")
    for arm, answers in GIVEN.items():
        evaluate(ROWS, answers, folder / f"work-{arm}", folder / arm)
    return folder


@pytest.fixture
def folders(written, tmp_path) -> Path:
    """A copy that a test may spoil."""
    for arm in SEEDS:
        shutil.copytree(written / arm, tmp_path / arm)
    return tmp_path


def gate_of(folders: Path, **options: Any) -> Gate:
    options = {"trust_sparse": True, "index_topk": 16, "page_size": 16, **options}
    return arrange(GateOptions(dense_samples=folders / "dense", sparse_samples=folders / "sparse", **options))


def file_of(folders: Path, task: str, arm: str = "sparse") -> Path:
    (path,) = (folders / arm).rglob(f"samples_longbench_{task}_*.jsonl")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), "utf-8")


def live(gate: Gate) -> Gate:
    """The same gate with the answers as they were given, not as lm-eval wrote them."""
    tasks = [longbench(name, ROWS[name], "the test") for name in sorted(NAMES)]

    def arm(name: str) -> RecordedArm:
        answers = {}
        for task in tasks:
            for document, text in zip(task.documents, GIVEN[name][task.name], strict=True):
                question = document.question
                answers[question.key] = Answer(question.key, question.prompt_sha, "", text)
        return RecordedArm(name, answers, {})

    return dataclasses.replace(gate, tasks=tasks, dense=arm("dense"), sparse=arm("sparse"))


def test_samples_give_the_decision_of_live_answers(folders):
    gate = gate_of(folders)
    found, due = run(gate), run(live(gate))
    assert found.scores == due.scores
    assert found.decision.document() == due.decision.document()
    assert len(found.scores["dense"]) == COUNT * len(NAMES)
    assert found.scores["dense"] != found.scores["sparse"]


def test_order_of_documents_does_not_matter(folders):
    due = run(gate_of(folders)).decision.document()
    path = file_of(folders, "qasper")
    write(path, lines_of(path)[::-1])
    assert run(gate_of(folders)).decision.document() == due


def test_text_with_separators_of_lines_is_read_whole(folders):
    for arm in SEEDS:
        path = file_of(folders, "qasper", arm)
        lines = lines_of(path)
        lines[0]["filtered_resps"] = ["one\u2028two\x85three"]
        write(path, lines)
    assert run(gate_of(folders)).answers["dense"]["qasper/qasper-0"].text == "one\u2028two\x85three"


def test_empty_answer_is_missing_and_not_0(folders):
    """lm-eval writes an empty text also where a server gave none."""
    path = file_of(folders, "qasper")
    lines = lines_of(path)
    lines[3]["filtered_resps"] = [""]
    write(path, lines)
    outcome = run(gate_of(folders))
    assert outcome.answers["sparse"]["qasper/qasper-3"].reason == "empty_text"
    assert "qasper/qasper-3" not in outcome.scores["sparse"]
    assert outcome.decision.missing == {"dense": 0, "sparse": 1}


def test_sparsity_of_samples_is_not_believed_without_a_word(folders):
    outcome = run(gate_of(folders, trust_sparse=False))
    assert outcome.decision.verdict == "INVALID"
    assert "--trust-sparse" in outcome.decision.sentence


def test_settings_that_differ_make_it_invalid(folders):
    path = file_of(folders, "qasper")
    lines = lines_of(path)
    lines[2]["arguments"]["gen_args_0"]["arg_1"]["temperature"] = 0.7
    write(path, lines)
    outcome = run(gate_of(folders))
    assert outcome.decision.verdict == "INVALID"
    assert "sent different settings for 1 documents, the first is qasper/qasper-2" in outcome.decision.sentence


def _truncated(folders: Path) -> None:
    path = file_of(folders, "qasper")
    path.write_text(path.read_text("utf-8")[:-100], "utf-8")


def _other_version(folders: Path) -> None:
    (path,) = (folders / "sparse").rglob("results_*.json")
    content = json.loads(path.read_text())
    content["versions"]["longbench_qasper"] = 4.0
    path.write_text(json.dumps(content))


def _truncated_results(folders: Path) -> None:
    (path,) = (folders / "sparse").rglob("results_*.json")
    path.write_text(path.read_text()[:100])


def _other_prompt(folders: Path) -> None:
    path = file_of(folders, "qasper")
    lines = lines_of(path)
    lines[4]["arguments"]["gen_args_0"]["arg_0"] += " please"
    write(path, lines)


def _fewer_documents(folders: Path) -> None:
    path = file_of(folders, "qasper")
    write(path, lines_of(path)[:-1])


def _other_documents(folders: Path) -> None:
    path = file_of(folders, "qasper")
    lines = lines_of(path)
    lines[0]["doc"]["answers"] = ["another"]
    write(path, lines)


def _twice(folders: Path) -> None:
    path = file_of(folders, "qasper")
    shutil.copy(path, path.with_name("samples_longbench_qasper_2030-01-01T00-00-00.jsonl"))


def _no_task(folders: Path) -> None:
    file_of(folders, "qasper").unlink()


def _no_files(folders: Path) -> None:
    for path in (folders / "sparse").rglob("samples_*"):
        path.unlink()


def _no_sample(folders: Path) -> None:
    path = file_of(folders, "qasper")
    lines = lines_of(path)
    del lines[1]["filtered_resps"]
    write(path, lines)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_truncated, r"samples_longbench_qasper_.*, line 8 is not JSON .* cut off"),
        (_other_version, r"samples_longbench_qasper_.* is of version 4.0 of qasper, the installed lm-eval has 5.0"),
        (_truncated_results, r"results_.*json is not JSON .* cut off"),
        (_other_prompt, r"samples_longbench_qasper_.*: the prompt of document 4 is not the one"),
        (_fewer_documents, r"samples of qasper are of different documents: 8 and 7, of which 7 are equal"),
        (_other_documents, r"samples of qasper are of different documents: 8 and 8, of which 7 are equal"),
        (_twice, r"are both of qasper; keep the run that is meant"),
        (_no_task, r"samples are of different tasks: \['qasper'\] stand in one arm only"),
        (_no_files, r"holds no samples_longbench_\*\.jsonl; run lm_eval with --log_samples"),
        (_no_sample, r"samples_longbench_qasper_.*, line 2 is no sample of lm-eval: it lacks filtered_resps"),
    ],
)
def test_files_that_do_not_fit_are_refused(folders, spoil, words):
    spoil(folders)
    with pytest.raises(ConfigError, match=words):
        gate_of(folders)


def test_one_file_is_an_arm_too(folders):
    arm, (task,) = recorded("dense", file_of(folders, "qasper", "dense"))
    assert (arm.name, task.name, len(task.documents)) == ("dense", "qasper", COUNT)
