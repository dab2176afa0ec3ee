"""The journal: what was answered survives a kill, what is damaged is refused, and nothing of two runs is mixed."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.journal import Journal, fingerprint
from dsa_verify.gates.records import Answer, Question

MANIFEST = {"index_topk": 128, "page_size": 16, "environment": {"DSA_PREFILL_SPARSE": "1"}}
ASKED = [Question(f"task/{number}", f"prompt {number}", 8) for number in range(3)]
ANSWERS = [
    Answer("task/0", ASKED[0].prompt_sha, "p", "zwölf\u2028\n\ud800", None, "stop", 5, 2, 0, 0.25),
    Answer("task/1", ASKED[1].prompt_sha, "p", None, "http_503", seconds=60.0),
    Answer("task/2", ASKED[2].prompt_sha, "p", "", None, "stop", 5, 0, None, 0.5),
]


@pytest.fixture
def path(tmp_path) -> Path:
    """A journal with a header and three answers, one of them missing."""
    path = tmp_path / "arms" / "sparse.jsonl"
    with Journal(path, "sparse", MANIFEST) as journal:
        for answer in ANSWERS:
            journal.write(answer)
    return path


def reopened(path: Path, arm="sparse", manifest=MANIFEST) -> dict[str, Answer]:
    with Journal(path, arm, manifest) as journal:
        return dict(journal.answers)


def test_answers_come_back_as_they_were(path):
    assert list(reopened(path).values()) == ANSWERS
    assert reopened(path, manifest=dict(reversed(MANIFEST.items()))) == reopened(path), "the order of names is nothing"


def test_lines_say_what_a_reader_wants(path):
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header == {"journal": 1, "arm": "sparse", "fingerprint": fingerprint(MANIFEST), "manifest": MANIFEST}
    assert [(line["arm"], line["key"], line["ok"], line["reason"]) for line in lines] == [
        ("sparse", "task/0", True, None), ("sparse", "task/1", False, "http_503"), ("sparse", "task/2", True, None),
    ]  # fmt: skip


def test_answer_is_found_for_its_question_and_payload_only(path):
    with Journal(path, "sparse", MANIFEST) as journal:
        assert journal.find(ASKED[0], "p") == ANSWERS[0]
        assert journal.find(ASKED[0], "q") is None
        assert journal.find(dataclasses.replace(ASKED[0], prompt="other"), "p") is None
        assert journal.find(ASKED[1], "p") is None, "a failure is asked again"
        assert journal.find(ASKED[2], "p") == ANSWERS[2], "an empty answer is one"
        assert journal.find(Question("task/9", "prompt 9", 8), "p") is None


def test_later_line_of_a_key_counts(path):
    answered = dataclasses.replace(ANSWERS[1], text="late", reason=None, finish="length")
    with Journal(path, "sparse", MANIFEST) as journal:
        journal.write(answered)
    assert reopened(path)["task/1"] == answered


def test_line_is_on_the_disk_when_write_returns(path):
    with Journal(path, "sparse", MANIFEST) as journal:
        journal.write(dataclasses.replace(ANSWERS[0], key="task/7"))
        assert json.loads(path.read_text().splitlines()[-1])["key"] == "task/7"


def test_file_cut_anywhere_keeps_every_whole_line(path):
    content = path.read_bytes()
    ends = [at + 1 for at, byte in enumerate(content) if byte == ord("\n")]
    for cut in {*range(0, len(content), 7), *ends, *(end - 1 for end in ends)}:
        path.write_bytes(content[:cut])
        whole = [end for end in ends if end <= cut]
        if cut in (0, *ends):
            answers = reopened(path)
        else:
            with pytest.warns(UserWarning, match=r"sparse.jsonl: the last line has no end"):
                answers = reopened(path)
        assert list(answers.values()) == ANSWERS[: max(len(whole) - 1, 0)]
        assert reopened(path) == answers, "the torn line is gone, and the file good again"


@pytest.mark.parametrize(
    "damage",
    [b"{", b"", b"\0\0\0", b"[1]", b"{}", b'{"key": "a"}', b"\xff\xfe"],
    ids=["half", "empty", "zeros", "list", "nothing", "fields", "not text"],
)
def test_damaged_line_is_refused_by_file_and_number(path, damage):
    lines = path.read_bytes().splitlines()
    for number in (2, 4):
        changed = [*lines[: number - 1], damage, *lines[number:]]
        path.write_bytes(b"\n".join(changed) + b"\n")
        with pytest.raises(ConfigError, match=rf"sparse.jsonl, line {number} "):
            reopened(path)


def test_answer_that_is_both_text_and_missing_is_refused(path):
    line = {**dataclasses.asdict(ANSWERS[0]), "reason": "timeout"}
    path.write_text(path.read_text() + json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match="line 5 is no answer"):
        reopened(path)


def test_journal_of_another_run_is_refused_by_what_differs(path):
    with pytest.raises(ConfigError, match="arm was 'sparse', is 'dense'"):
        reopened(path, arm="dense")
    with pytest.raises(ConfigError, match="index_topk was 128, is 64"):
        reopened(path, manifest={**MANIFEST, "index_topk": 64})
    with pytest.raises(ConfigError, match=r"chunk was None, is 64"):
        reopened(path, manifest={**MANIFEST, "chunk": 64})
    path.write_text("\n".join(path.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(ConfigError, match="line 1 is no header"):
        reopened(path)


def test_second_process_is_refused_while_the_first_has_the_journal(path):
    code = (
        "import sys; from pathlib import Path\nfrom dsa_verify.gates.arms.journal import Journal\n"
        f"Journal(Path(sys.argv[1]), 'sparse', {MANIFEST!r})"
    )
    command = [sys.executable, "-c", code, str(path)]
    with Journal(path, "sparse", MANIFEST) as journal:
        second = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
        assert second.returncode == 1
        assert "ConfigError: another process has the journal" in second.stderr
        with pytest.raises(ConfigError, match="another process has the journal"):
            reopened(path)
        journal.write(dataclasses.replace(ANSWERS[0], key="task/8"))
    assert subprocess.run(command, cwd=Path(__file__).parents[2]).returncode == 0
    assert len(reopened(path)) == 4


def test_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot open the journal"):
        Journal(tmp_path / "file" / "j", "sparse", MANIFEST)
