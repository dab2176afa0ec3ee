"""Cutting in the middle: head and tail of a long prompt are kept, in tokens, and nothing of a short one changes."""

import json
import sys
from pathlib import Path

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.tasks.longbench import longbench
from dsa_verify.gates.tasks.truncation import by_file, middle, truncate, words
from tests.gates.replaying import rows_of

TEXT = "one two, three four five six."


def test_words_and_signs_are_tokens():
    assert [TEXT[a:b] for a, b in words(TEXT)] == ["one", "two", ",", "three", "four", "five", "six", "."]


def test_words_are_the_tokens_of_the_built_in_model():
    from dsa_verify.model.tiny import Words

    assert len(words(TEXT)) == len(Words().encode(TEXT))


@pytest.mark.parametrize(
    ("most", "kept"), [(8, TEXT), (9, TEXT), (7, "one two, five six."), (6, "one two, five six."), (2, "one .")]
)
def test_head_and_tail_are_kept(most, kept):
    assert middle(TEXT, most, words) == kept
    assert len(words(kept)) <= most


def test_every_prompt_is_cut_and_the_row_is_not():
    task = longbench("qasper", rows_of("qasper", 3), "the test")
    short = truncate(task, 40, words)
    for before, after in zip(task.documents, short.documents, strict=True):
        assert len(words(after.question.prompt)) == 40
        assert before.question.prompt.startswith("You are given a scientific article")
        assert after.question.prompt.startswith("You are given a scientific article")
        assert after.question.prompt.endswith("\n\nAnswer:")
        assert (after.question.key, after.row) == (before.question.key, before.row)
        assert after.question.prompt_sha != before.question.prompt_sha
    assert truncate(task, 10_000, words) == task


def test_tokenizer_without_its_package_is_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="needs the package tokenizers; pip install tokenizers"):
        by_file(tmp_path / "tokenizer.json")


def test_tokenizer_of_a_file_cuts_by_its_tokens(monkeypatch, tmp_path):
    """With a stand-in for the package, which not every machine has."""

    class Tokenizer:
        @classmethod
        def from_file(cls, path: str):
            json.loads(Path(path).read_text())
            return cls()

        def encode(self, text: str, add_special_tokens: bool):
            assert not add_special_tokens, "they are no part of the text"
            self.offsets = [(n, n + 1) for n in range(len(text))]
            return self

    monkeypatch.setitem(sys.modules, "tokenizers", type("Package", (), {"Tokenizer": Tokenizer}))
    path = tmp_path / "tokenizer.json"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"tokenizer.json is no tokenizer.json"):
        by_file(path)
    path.write_text("{}")
    assert middle("abcdefgh", 4, by_file(path)) == "abgh"
