"""The needle grid: every cell, texts of the length that was asked for, the needle at its depth, one right code."""

import re

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.tasks.needle import DEPTHS, OTHERS, needle
from dsa_verify.gates.tasks.truncation import truncate, words

LENGTHS = (300, 900)
GRID = needle(LENGTHS, words, repeats=3)


def place(document) -> float:
    """Where the needle stands, as a share of the text's sentences."""
    text = document.question.prompt.partition("\n\n")[0]
    sentences = re.split(r"(?<=\.) ", text)
    others = [n for n, one in enumerate(sentences) if one.startswith("The code of the ")]
    (found,) = (n for n in others if document.row["answers"][0] in sentences[n])
    return sum(n not in others for n in range(found)) / (len(sentences) - len(others))


def test_every_cell_has_as_many_documents_and_the_first_of_all_come_first():
    cells = [(d.row["tokens"], d.row["depth"]) for d in GRID.documents]
    assert cells[:10] == cells[10:20] == cells[20:] == [(length, depth) for length in LENGTHS for depth in DEPTHS]
    assert len({d.question.key for d in GRID.documents}) == len({d.context_sha for d in GRID.documents}) == 30


def test_texts_have_the_length_that_was_asked_for():
    for document in GRID.documents:
        assert document.row["tokens"] - 20 < len(words(document.question.prompt)) <= document.row["tokens"]


def test_needle_stands_at_its_depth():
    for document in GRID.documents:
        # A place among n sentences is a whole number; 300 tokens are about 18 sentences.
        assert place(document) == pytest.approx(document.row["depth"], abs=1 / 18)


def test_the_right_code_stands_once_among_others_and_the_question_names_it():
    for document in GRID.documents:
        prompt, row = document.question.prompt, document.row
        codes = re.findall(r"\d+", prompt)
        assert len(set(codes)) == len(codes) == OTHERS + 1
        assert f"The code of the {row['name']} is {row['answers'][0]}." in prompt
        assert prompt.endswith(f"The code of the {row['name']} is")


def test_only_the_right_code_scores():
    for document in GRID.documents[:10]:
        codes = re.findall(r"\d+", document.question.prompt)
        scores = {code: GRID.score(document, f"It is {code}, I think.") for code in codes}
        assert scores == {code: float(code == document.row["answers"][0]) for code in codes}
        assert GRID.score(document, "") == 0.0


def test_the_grid_is_the_same_every_time():
    again = needle(LENGTHS, words, repeats=3)
    assert [d.sha for d in again.documents] == [d.sha for d in GRID.documents]
    assert [d.question for d in again.documents] == [d.question for d in GRID.documents]


def test_texts_without_room_are_refused():
    with pytest.raises(ConfigError, match="more than 60 tokens around it; give larger --needle-tokens"):
        needle((60,), words)


def test_texts_of_a_length_are_not_cut():
    with pytest.raises(
        ConfigError, match=r"needle has prompts of \d+ tokens, .* --max-prompt-tokens 500 .* --needle-tokens"
    ):
        truncate(GRID, 500, words)
    assert truncate(GRID, 900, words) == GRID
