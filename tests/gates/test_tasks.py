"""LongBench tasks: lm-eval's prompts and scores bit for bit, but where a named correction changes them."""

import json
import sys
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from dsa_verify.errors import ConfigError
from dsa_verify.gates.decision import measure
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.statistics.stopping import levels
from dsa_verify.gates.tasks.longbench import CHINESE, CORRECTIONS, ENGLISH, FIRST_LINE, CorrectedScorer, longbench
from dsa_verify.gates.tasks.task import Task, rows_of_file, rows_of_hub
from tests.gates.replaying import CLASSES, answers_to, evaluate, rows_of

NAMES = [name for names in ENGLISH.values() for name in names]
COUNT = 6


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> dict:
    """lm-eval's own evaluation of all 16 English tasks."""
    rows = {name: rows_of(name, COUNT) for name in NAMES}
    answers = {name: answers_to(name, rows[name], seed=1) for name in NAMES}
    return evaluate(rows, answers, tmp_path_factory.mktemp("lm_eval"))


@pytest.fixture(scope="module")
def ours() -> dict[str, Task]:
    return {name: longbench(name, rows_of(name, COUNT), "the test") for name in NAMES}


def one(name: str, **columns) -> Task:
    """A task of one document."""
    row = {**rows_of(name, 1)[0], **columns}
    return longbench(name, [row], "the test")


def score(task: Task, text: str) -> float:
    return task.score(task.documents[0], text)


def own_scorer(task: Task) -> Any:
    """lm-eval's task object."""
    assert isinstance(task.scorer, CorrectedScorer)
    return task.scorer.own


def own_score(task: Task, text: str) -> float:
    """As lm-eval does it."""
    return own_scorer(task).process_results(dict(task.documents[0].row), [text])["score"]


def test_tasks_and_groups_are_those_of_lm_eval():
    import lm_eval

    folder = Path(lm_eval.__file__).parent / "tasks" / "longbench"
    for group, names in ENGLISH.items():
        stated = yaml.safe_load((folder / f"_longbench_{group}.yaml").read_text())
        assert set(stated["task"]) == {f"longbench_{name}" for name in (*names, *CHINESE.get(group, ()))}
        assert [one["weight_by_size"] for one in stated["aggregate_metric_list"]] == [False]


@pytest.mark.parametrize("name", NAMES)
def test_prompts_limits_and_scores_are_those_of_lm_eval(theirs, ours, name):
    task, samples = ours[name], theirs["samples"][f"longbench_{name}"]
    assert len(samples) == COUNT
    for document, sample in zip(task.documents, samples, strict=True):
        prompt, settings = sample["arguments"][0]
        assert document.question.prompt == prompt
        assert document.question.max_tokens == settings["max_gen_toks"]
        assert document.question.stop == (() if name in FIRST_LINE else tuple(settings["until"]))
        assert task.score(document, sample["resps"][0][0]) == sample["score"]
    assert task.version == theirs["versions"][f"longbench_{name}"]
    assert len({sample["score"] for sample in samples}) > 1, "the answers tell the documents apart"


def test_means_of_tasks_and_groups_are_those_of_lm_eval(theirs, ours):
    scores = []
    for name, task in ours.items():
        samples = theirs["samples"][f"longbench_{name}"]
        found = np.array([task.score(d, s["resps"][0][0]) for d, s in zip(task.documents, samples, strict=True)])
        scores.append(TaskScores(name, task.group, found, found, np.arange(COUNT), np.ones(COUNT, bool)))
    measured = measure(scores, Rule(), levels(Rule(), None))
    means = {name: theirs["results"][f"longbench_{name}"]["score,none"] for name in NAMES}
    # Sums of the same numbers in another order: the last bits.
    assert {e.name: e.mean_dense for e in measured.tasks} == pytest.approx(means, rel=1e-14)
    groups = {group: np.mean([means[name] for name in names]) for group, names in ENGLISH.items()}
    assert {e.name: e.mean_dense for e in measured.groups} == pytest.approx(groups, rel=1e-14)


@pytest.mark.parametrize("name", sorted(FIRST_LINE - {"lsht"}))
def test_first_line_is_scored_after_leading_newlines(name):
    task = one(name)
    right = task.documents[0].row["answers"][0]
    assert score(task, right) == pytest.approx(1.0, abs=1e-6), "ROUGE adds a millionth to its denominator"
    chatter = f"\n\n{right}\n{' '.join(CLASSES)} and an invented next question"
    assert score(task, chatter) == score(task, right)
    assert own_score(task, chatter) != own_score(task, right)
    assert task.documents[0].question.stop == ()
    assert own_scorer(task).config.generation_kwargs["until"] == ["\n"], "the stop that is left out"


def test_other_tasks_are_scored_on_the_whole_answer():
    task = one("qasper", answers=["alpha beta"])
    assert score(task, "alpha\nbeta") == 1.0


def test_long_summaries_are_scored():
    """400 words against 900 need a recursion deeper than Python allows by default."""
    rng = np.random.default_rng(0)
    words = [f"w{n}" for n in range(500)]
    reference, answer = (" ".join(rng.choice(words, count)) for count in (900, 400))
    task, limit = one("gov_report", answers=[reference]), sys.getrecursionlimit()
    assert own_score(task, answer) == 0.0, "lm-eval's score of the pair"
    assert 0.1 < score(task, answer) < 0.5
    assert sys.getrecursionlimit() == limit


def test_code_similarity_does_not_depend_on_what_is_installed(monkeypatch):
    from fuzzywuzzy import fuzz

    task = one("lcc", answers=["value = load(key)"])
    alone = score(task, "value = lead(keys)")
    assert alone == round(100 * SequenceMatcher(None, "value = lead(keys)", "value = load(key)").ratio()) / 100

    class Other:
        """What python-Levenshtein puts in the place of difflib."""

        def __init__(self, *_) -> None: ...

        def ratio(self) -> float:
            return 0.25

    monkeypatch.setattr(fuzz, "SequenceMatcher", Other)
    assert own_score(task, "value = lead(keys)") == 0.25
    assert score(task, "value = lead(keys)") == alone
    assert fuzz.SequenceMatcher is Other, "it is put back"


@pytest.mark.parametrize("name", ["passage_retrieval_en", "passage_retrieval_zh"])
def test_reference_that_would_end_a_run_is_refused(name):
    with pytest.raises(ConfigError, match=r"the test, line 1: answer 'number 7' names no paragraph"):
        one(name, answers=["number 7"])
    right = "段落7" if name.endswith("zh") else "Paragraph 7"
    assert score(one(name, answers=[right]), "7") == 1.0


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("qasper", {"temperature"}),
        ("samsum", {"temperature", "first-line", "recursion"}),
        ("gov_report", {"temperature", "recursion"}),
        ("lcc", {"temperature", "code-similarity"}),
        ("passage_retrieval_en", {"temperature", "reference"}),
    ],
)
def test_corrections_that_apply_are_named(name, names):
    assert set(one(name).corrections) == names <= set(CORRECTIONS)


@pytest.mark.parametrize("name", [name for names in CHINESE.values() for name in names])
def test_chinese_tasks_score_a_right_answer_1(name):
    answer = "段落3" if name.startswith("passage") else "今天天气很好"
    task = one(name, answers=[answer], all_classes=[answer, "别的"])
    assert score(task, answer) == pytest.approx(1.0, abs=1e-6), "ROUGE adds a millionth to its denominator"
    assert score(task, "9") == 0.0


def test_official_column_is_the_question():
    (row,) = rows_of("qasper", 1)
    official = {("input" if name == "question" else name): value for name, value in row.items()}
    prompts = [longbench("qasper", [r], "the test").documents[0].question.prompt for r in (row, official)]
    assert prompts[0] == prompts[1]
    assert row["question"] in prompts[0]


def test_documents_that_share_a_context_are_known():
    first, second, third = rows_of("qasper", 3)
    task = longbench("qasper", [first, {**second, "context": first["context"]}, third], "the test")
    shas = [document.context_sha for document in task.documents]
    assert shas[0] == shas[1] != shas[2]
    assert len({document.sha for document in task.documents}) == 3


def written(folder: Path, *lines: str) -> Path:
    (folder / "qasper.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    return folder / "qasper.jsonl"


def test_file_is_read_whole(tmp_path):
    """U+2028 ends a line for `str.splitlines`, and not in JSON."""
    rows = [{**row, "context": "one\u2028two\x85three"} for row in rows_of("qasper", 3)]
    path = written(tmp_path, *(json.dumps(row, ensure_ascii=False) for row in rows))
    assert rows_of_file(path) == rows


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=rf"cannot read {tmp_path}/qasper.jsonl: .*expected a JSONL file"):
        rows_of_file(tmp_path / "qasper.jsonl")


@pytest.mark.parametrize(
    ("last", "words"),
    [
        (lambda row: json.dumps(row)[:-30], "is not JSON"),
        (lambda row: "", "is not JSON"),
        (lambda row: json.dumps([row]), "holds a list, expected an object"),
        (lambda row: json.dumps({k: v for k, v in row.items() if k != "answers"}), "has no answers; it has _id"),
        (lambda row: json.dumps({**row, "answers": "one"}), "answers is 'one', expected a list"),
        (lambda row: json.dumps({**row, "answers": []}), "answers is .*, expected a list"),
        (lambda row: json.dumps({**row, "context": None}), "context is None, expected a text"),
    ],
)
def test_bad_line_is_refused_with_file_and_number(tmp_path, last, words):
    first, second, third = rows_of("qasper", 3)
    path = written(tmp_path, json.dumps(first), last(second), json.dumps(third))
    with pytest.raises(ConfigError, match=rf"qasper.jsonl, line 2:? {words}"):
        longbench("qasper", rows_of_file(path), str(path))


def test_ids_that_occur_twice_are_refused(tmp_path):
    first, second, third = rows_of("qasper", 3)
    path = written(tmp_path, *(json.dumps(row) for row in (first, second, {**third, "_id": first["_id"]})))
    with pytest.raises(ConfigError, match=r"qasper.jsonl: lines 1 and 3 share the _id 'qasper-0'"):
        longbench("qasper", rows_of_file(path), str(path))


def test_empty_file_is_refused(tmp_path):
    path = written(tmp_path)
    with pytest.raises(ConfigError, match=r"qasper.jsonl holds no rows"):
        longbench("qasper", rows_of_file(path), str(path))


def test_trec_without_classes_is_refused():
    with pytest.raises(ConfigError, match="line 1 has no all_classes"):
        one("trec", all_classes=None)


def test_unknown_task_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown task 'qaspr'\. Did you mean 'qasper'\?"):
        longbench("qaspr", rows_of("qasper", 1), "the test")


def test_hub_that_cannot_be_reached_is_refused_with_what_to_do(monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise OSError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(ConfigError, match=r"cannot load .* \(qasper\) from the hub: no network; download .* --data"):
        rows_of_hub("a/b", "qasper")
