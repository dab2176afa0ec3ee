"""What a gate is to run: options become tasks, arms and a rule; options that contradict each other are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates import arrange
from dsa_verify.gates.arms import server_info
from dsa_verify.gates.arms.payload import Endpoint
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.tasks.by_name import GENERATED_DOCUMENTS
from dsa_verify.gates.tasks.generated import TASKS as MADE
from dsa_verify.gates.tasks.longbench import ENGLISH
from tests.gates.replaying import rows_of

COMMAND = "serve --port {port}"
LETTERS = {"_id": "a", "context": "text", "question": "what?", "answer": "B"} | {f"choice_{one}": one for one in "ABCD"}


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("qasper", "trec"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(name, 3)))
    return folder


@pytest.fixture
def listening(monkeypatch) -> None:
    """Every URL lists a model of its own."""
    monkeypatch.setattr(server_info, "served_model", lambda endpoint: f"model of {endpoint.root}")


def arranged(**options: Any):
    return arrange.arrange(GateOptions(**options))


def test_default_is_the_built_in_model_on_documents_made_here():
    gate = arranged()
    assert [task.name for task in gate.tasks] == list(MADE)
    assert {len(task.documents) for task in gate.tasks} == {GENERATED_DOCUMENTS}
    by_name = {arm.name: arm for arm in (gate.dense, gate.sparse, gate.same, gate.degraded)}
    assert {name: arm.environment for name, arm in by_name.items()} == {
        "dense": {"DSA_PREFILL_SPARSE": "0"}, "same": {"DSA_PREFILL_SPARSE": "0"},
        "sparse": {"DSA_PREFILL_SPARSE": "1"}, "degraded": {"DSA_PREFILL_SPARSE": "1", "DSA_PAGE_TOPK": "1"},
    }  # fmt: skip
    assert {arm.mutant for arm in by_name.values()} == {None}
    assert gate.rule == Rule()
    assert (gate.looks, gate.repeats, gate.trusted, gate.active_tokens) == (True, 1, False, 144)


def test_mutant_breaks_the_sparse_arm_alone():
    gate = arranged(mutant="top-1-page", tasks=("qasper",), documents=2, controls=False, repeats=3)
    assert (gate.dense.mutant, gate.sparse.mutant) == (None, "top-1-page")
    assert (gate.same, gate.degraded, gate.rule.controls, gate.repeats) == (None, None, False, 3)


@pytest.mark.parametrize(
    ("name", "kernels", "found"),
    [
        ("causal-bound", "jnp", "causal-bound"),
        ("causal-bound", "pallas", "causal-bound-pallas"),
        ("causal-bound-pallas", "pallas", "causal-bound-pallas"),
        ("softmax-not-rescaled", "pallas", "softmax-not-rescaled"),
        ("selection-ignored", "jnp", "selection-ignored"),
    ],
)
def test_any_mutant_of_the_arms_kernels_may_break_it_by_name_or_as_the_same_fault(name, kernels, found):
    assert arranged(mutant=name, kernels=kernels).sparse.mutant == found


def test_urls_become_arms_with_a_journal_each(data, tmp_path, listening):
    gate = arranged(
        dense_url="http://a:1/v1", sparse_url="http://b:2", data=data, tasks=("qasper",), work=tmp_path,
        index_topk=100, page_size=10, concurrency=4, documents=2, differs=("BLOCK",), api="chat", timeout=7.0,
    )  # fmt: skip
    assert [arm.journal for arm in (gate.dense, gate.sparse)] == [tmp_path / "dense.jsonl", tmp_path / "sparse.jsonl"]
    assert [arm.endpoint.root for arm in (gate.dense, gate.sparse)] == ["http://a:1", "http://b:2"]
    assert [arm.endpoint.model for arm in (gate.dense, gate.sparse)] == ["model of http://a:1", "model of http://b:2"]
    assert (gate.sparse.concurrency, gate.sparse.endpoint.api, gate.sparse.endpoint.timeout_s) == (4, "chat", 7.0)
    assert gate.dense.data_sha == gate.sparse.data_sha != ""
    assert (gate.active_tokens, len(gate.tasks[0].documents)) == (110, 2)
    assert gate.treatment == {"DSA_PREFILL_SPARSE", "BLOCK"}
    assert (gate.same, gate.degraded, gate.rule.controls) == (None, None, False)


def test_named_model_is_asked_for(data, listening):
    gate = arranged(dense_url="http://a:1", sparse_url="http://b:2", data=data, tasks=("qasper",), model="glm")
    assert {arm.endpoint.model for arm in (gate.dense, gate.sparse)} == {"glm"}


def test_token_comes_from_a_variable_and_is_shown_to_nobody(data, listening, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_TEST", "secret")
    gate = arranged(
        dense_url="http://a:1", sparse_url="http://b:2", data=data, tasks=("trec",), token_env="TOKEN_OF_TEST"
    )
    assert gate.dense.endpoint.headers == gate.sparse.endpoint.headers == {"authorization": "Bearer secret"}
    assert "secret" not in repr(gate.dense)


def test_controls_with_urls(data, listening):
    gate = arranged(
        dense_url="http://a:1", sparse_url="http://b:2", degraded_url="http://c:3", data=data, tasks=("trec",),
        controls=True,
    )  # fmt: skip
    assert gate.same.endpoint == gate.dense.endpoint
    assert gate.same.journal != gate.dense.journal, "a journal would answer for it"
    assert gate.degraded.endpoint.root == "http://c:3"


def test_server_command_runs_once_an_arm_and_what_its_variables_differ_in_is_the_treatment(data, tmp_path):
    gate = arranged(
        server_cmd=COMMAND, data=data, tasks=("qasper",), work=tmp_path, controls=True,
        dense_env=("MODE=a", "SAME=1"), sparse_env=("MODE=b=c", "SAME=1", "MORE="),
    )  # fmt: skip
    assert gate.dense.server.environment == {"MODE": "a", "SAME": "1"}
    assert gate.sparse.server.environment == {"MODE": "b=c", "SAME": "1", "MORE": ""}
    assert gate.same.server.environment == gate.dense.server.environment
    assert gate.degraded.server.environment["DSA_PAGE_TOPK"] == "1"
    assert gate.treatment == {"DSA_PREFILL_SPARSE", "MODE", "MORE"}
    assert not gate.looks, "every look would start both servers again"
    default = arranged(server_cmd=COMMAND, data=data, tasks=("qasper",))
    assert default.sparse.server.environment == {"DSA_PREFILL_SPARSE": "1"}


def test_data_stands_for_16_english_tasks_unless_they_are_named(data):
    with pytest.raises(ConfigError, match=r"cannot read .*narrativeqa.jsonl"):
        arranged(server_cmd=COMMAND, data=data)
    for names in ENGLISH.values():
        for name in names:
            (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows_of(name, 2)))
    gate = arranged(server_cmd=COMMAND, data=data)
    assert [task.name for task in gate.tasks] == [name for names in ENGLISH.values() for name in names]
    assert len(arranged(server_cmd=COMMAND, data=data, tasks=("english", "trec")).tasks) == 16


def test_prompts_are_cut_for_both_arms(data):
    gate = arranged(server_cmd=COMMAND, data=data, tasks=("qasper",), max_prompt_tokens=50)
    assert {len(d.question.prompt.split()) for d in gate.tasks[0].documents} < set(range(51))


def test_sets_beside_longbench_are_read_from_the_folder_or_made(data):
    (data / "longbench2.jsonl").write_text(json.dumps(LETTERS) + "\n")
    for split, count in (("test", 3), ("train", 50)):
        rows = [{"question": f"how many is {n}?", "answer": f"#### {n}"} for n in range(count)]
        (data / f"gsm8k_{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gate = arranged(
        server_cmd=COMMAND, data=data, tasks=("longbench2", "gsm8k_long", "needle", "trec"), documents=2,
        gsm8k_tokens=90, needle_tokens=(300, 200),
    )  # fmt: skip
    assert [(task.name, len(task.documents)) for task in gate.tasks] == [
        ("longbench2", 1), ("gsm8k_long", 2), ("needle", 2), ("trec", 2)
    ]  # fmt: skip
    assert {document.row["tokens"] for document in gate.tasks[2].documents} == {300}


def test_the_built_in_model_can_be_asked_for_needles():
    gate = arranged(tasks=("needle", "qasper"), documents=3, needle_tokens=(250,))
    assert [(task.name, len(task.documents)) for task in gate.tasks] == [("needle", 3), ("qasper", 3)]


def test_rule_takes_the_options():
    rule = arranged(tasks=("qasper",), documents=1, alpha=0.02, macro_margin=0.03, task_margin=0.2, seed=5).rule
    assert (rule.alpha, rule.macro_margin, rule.task_margin, rule.seed) == (0.02, 0.03, 0.2, 5)
    assert rule.task_limit >= rule.task_margin
    assert rule.alarm_alpha < rule.alpha


URLS = {"dense_url": "http://a:1", "sparse_url": "http://b:2"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dense_url": "http://a"}, "needs both --dense-url and --sparse-url"),
        ({"sparse_url": "http://a"}, "needs both --dense-url and --sparse-url"),
        ({"dense_url": "http://a:1", "sparse_url": "http://a:1/v1/"}, "are the same server"),
        ({**URLS, "server_cmd": COMMAND}, "give one kind of arms"),
        ({"dense_samples": Path("x")}, "needs both --dense-samples and --sparse-samples"),
        ({**URLS, "mutant": "top-1-page"}, "--mutant means nothing with --dense-url and --sparse-url"),
        ({**URLS, "controls": True}, "--controls with URLs needs --degraded-url"),
        ({**URLS, "dense_env": ("A=1",)}, "--dense-env means nothing with"),
        ({"data": Path("x")}, "--data means nothing with the built-in model"),
        ({"max_prompt_tokens": 5}, "--max-prompt-tokens means nothing with the built-in model"),
        ({"server_cmd": "serve"}, "has no {port}"),
        ({"server_cmd": COMMAND, "sparse_env": ("A",)}, "'A' is no NAME=VALUE"),
        ({"server_cmd": COMMAND, "sparse_env": ("=1",)}, "'=1' is no NAME=VALUE"),
        ({"server_cmd": COMMAND, "tasks": ("qaspr",), "data": Path("x")}, "Did you mean 'qasper'"),
        ({"dense_samples": Path("x"), "sparse_samples": Path("y"), "tasks": ("trec",)}, "--task means nothing with"),
        ({**URLS, "token_env": "NO_SUCH_VARIABLE"}, "--token-env NO_SUCH_VARIABLE: that variable is empty or not set"),
        ({"server_cmd": COMMAND, "tasks": ("needle",), "max_prompt_tokens": 50}, "--max-prompt-tokens 50 would cut"),
        ({"gsm8k_tokens": 100}, "--gsm8k-tokens means nothing with the built-in model"),
        ({"tasks": ("narrativeqa",)}, "the built-in model has no documents for narrativeqa"),
        ({"mutant": "top-2-pages"}, "Did you mean 'top-1-page'"),
        (
            {"mutant": "top-1-page", "kernels": "pallas"},
            "top-1-page is a mutant of jnp, the gate's arm runs builtin; give --kernels jnp",
        ),
        ({"mutant": "abort-leaks-pages"}, "changes no line of source"),
        ({"mutant": "page-budget-ignored"}, "is a mutant of system, the gate's arm runs jnp"),
        ({"alpha": 0.05, "macro_margin": 1.5}, "macro_margin = 1.5, expected between 0 and 1"),
    ],
)
def test_options_that_make_no_gate_are_refused(options, words, listening, tmp_path):
    with pytest.raises(ConfigError) as refused:
        arranged(**{"work": None, **options})
    assert words in str(refused.value)


def test_server_that_is_not_there_is_refused_before_anything_is_asked():
    with pytest.raises(ConfigError, match=r"nothing answers at http://127\.0\.0\.1:1 "):
        server_info.served_model(Endpoint("http://127.0.0.1:1", "m"))


def test_provenance_names_what_a_verdict_depends_on():
    found = arrange.provenance()
    assert {"python", "lm_eval", "numpy", "scipy", "rouge"} <= {name for name, one in found.items() if one != "none"}
