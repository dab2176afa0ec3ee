"""Rows made here: the same every time, whole, and answerable only by who sees more than one page."""

import itertools
import re

import pytest

from dsa_verify.gates.tasks.generated import APART, TASKS, generated_rows
from dsa_verify.gates.tasks.longbench import ENGLISH, group_of, longbench
from dsa_verify.gates.tasks.truncation import words

ROWS = {task: generated_rows(task, 32) for task in TASKS}
PAGE = 16
"""Tokens of a page of the built-in model."""


def claims(task: str, row: dict) -> list[tuple[int, str]]:
    """Place, in tokens, and answer of each claim in a context; a claim ends with its sign."""
    text = row["context"]
    found = re.finditer(r"(?:Answer :|Summary :|answer is :|of code :|name\d+ is) (.*?) ␄", text)
    return [(len(words(text[: match.start()])), match[1]) for match in found]


@pytest.mark.parametrize("task", TASKS)
def test_rows_are_the_same_every_time_and_more_of_them_begin_alike(task):
    assert generated_rows(task, 3) == ROWS[task][:3]
    assert len({row["context"] for row in ROWS[task]}) == len(ROWS[task])
    assert len({row["_id"] for row in ROWS[task]}) == len(ROWS[task])


@pytest.mark.parametrize("task", TASKS)
def test_right_answer_is_claimed_most_often_and_no_page_holds_two_claims(task):
    for row in ROWS[task]:
        found = claims(task, row)
        assert len(found) == 6
        counts = {answer: sum(answer == other for _, other in found) for _, answer in found}
        right = counts.pop(row["answers"][0])
        assert right == 3 > max(counts.values())
        assert all(after - before >= APART > PAGE for (before, _), (after, _) in itertools.pairwise(found))


@pytest.mark.parametrize("task", TASKS)
def test_right_answer_scores_1_and_the_other_claims_less(task):
    made = longbench(task, ROWS[task][:4], "rows made here")
    for document in made.documents:
        right = document.row["answers"][0]
        assert made.score(document, right) == pytest.approx(1.0, abs=1e-6), "ROUGE adds a millionth to a denominator"
        others = {answer for _, answer in claims(task, dict(document.row))} - {right}
        # Claims of one kind share words (or brackets and signs, for code), never the one that is asked for.
        assert all(made.score(document, other) < 0.9 for other in others)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_fit_the_built_in_model_and_exceed_its_budget(task):
    for document in longbench(task, ROWS[task], "rows made here").documents:
        tokens = len(words(document.question.prompt))
        assert 2 * 128 < tokens < 960 - document.question.max_tokens


def test_every_group_has_two_tasks():
    groups = [group_of(task) for task in TASKS]
    assert {group: groups.count(group) for group in ENGLISH} == dict.fromkeys(ENGLISH, 2)
