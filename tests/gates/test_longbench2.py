"""LongBench v2: lm-eval's prompt with the official form of an answer, and the letter that an answer names."""

import json

import pytest
import yaml

from dsa_verify.errors import ConfigError
from dsa_verify.gates.tasks.longbench2 import letter, longbench2, rows_of

ROW = {
    "_id": "a", "domain": "Code Repository Understanding", "context": "a long {{ text }}", "question": " what is it? ",
    "choice_A": "one", "choice_B": "two", "choice_C": "three", "choice_D": "four", "answer": "C",
}  # fmt: skip


def test_prompt_is_that_of_lm_eval_but_for_its_end(tmp_path):
    import datasets
    import lm_eval
    from lm_eval.api.task import ConfigurableTask

    (folder,) = lm_eval.__path__
    with open(f"{folder}/tasks/longbench2/_longbench_common_yaml") as file:
        own = {**yaml.safe_load(file), "task": "theirs", "test_split": "test"}
    rows = [{**ROW, "choices": [ROW[f"choice_{one}"] for one in "ABCD"]}]
    theirs = ConfigurableTask(
        config={**own, "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)}, "dataset_path": "none"}
    )
    prompt = longbench2([ROW], "the test").documents[0].question.prompt
    common, cue = theirs.doc_to_text(rows[0]).removesuffix("Answer:"), "The correct answer is (X)"
    assert prompt.startswith(common) and cue in prompt.removeprefix(common)
    assert "a long {{ text }}" in prompt, "a document is no template"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("The correct answer is (C)", "C"), ("**The correct answer is (C)**.", "C"), ("The correct answer is C", "C"),
        ("the correct answer is: (D), because (A) is wrong", "D"), ("B", "B"), (" (B). ", "B"),
        ('I must say "The correct answer is (A)" or so. The correct answer is (B).', "B"),
        ("", None), ("A lot", None), ("The correct answer is Cairo", None), ("The correct answer is (E)", None),
        ("(A) or (B)", None),
    ],
)  # fmt: skip
def test_letter_of_an_answer(text, said):
    assert letter(text) == said


def test_right_letter_scores_1_and_every_other_0():
    task = longbench2([ROW], "the test")
    scores = {one: task.score(task.documents[0], f"The correct answer is ({one})") for one in "ABCD"}
    assert scores == {"A": 0.0, "B": 0.0, "C": 1.0, "D": 0.0}


def test_rows_come_from_jsonl_or_from_the_official_file(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([ROW, {**ROW, "_id": "b"}]))
    assert [row["_id"] for row in rows_of(tmp_path)[0]] == ["a", "b"]
    (tmp_path / "longbench2.jsonl").write_text(json.dumps(ROW))
    assert [row["_id"] for row in rows_of(tmp_path)[0]] == ["a"]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "holds no rows"),
        ([ROW, {**ROW, "_id": "b", "choice_B": None}], "row 2: choice_B is None, expected a text"),
        ([{key: value for key, value in ROW.items() if key != "context"}], "row 1: context is nothing"),
        ([{**ROW, "answer": "E"}], "answer is 'E', expected one of A, B, C, D"),
        ([ROW, ROW], "lines 1 and 2 share the _id 'a'"),
    ],
)
def test_rows_that_are_none_are_refused(rows, said):
    with pytest.raises(ConfigError, match=said):
        longbench2(rows, "the test")


@pytest.mark.parametrize(
    ("text", "said"), [("[{", "not JSON"), ('{"a": 1}', "no list of rows"), ("[1]", "no list of rows")]
)
def test_official_file_that_is_none_is_refused(tmp_path, text, said):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(ConfigError, match=said):
        rows_of(tmp_path)
