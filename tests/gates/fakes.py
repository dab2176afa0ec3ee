"""Arms that answer by rule, and small gates of them: for tests of everything around a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsa_verify.gates.records import Answer, Question
from dsa_verify.gates.run import Gate
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.tasks.longbench import longbench
from tests.gates.replaying import rows_of

NAMES = ("qasper", "hotpotqa", "trec", "passage_count")
DOCUMENTS = 40
RULE = Rule(macro_margin=0.1, group_margin=0.2, task_margin=0.2, task_limit=0.3, controls=False)
"""With margins that 30 documents a task can show."""
TASKS = [longbench(name, rows_of(name, DOCUMENTS), "the test") for name in NAMES]
RIGHT = {document.question.key: document.row["answers"][0] for task in TASKS for document in task.documents}

Says = Callable[[str], str | None]
"""An answer by the question's key, None for one that is missing."""


def document_of(key: str) -> str:
    return key.partition("#")[0]


def right(key: str) -> str | None:
    return RIGHT[document_of(key)]


def wrong(key: str) -> str | None:
    return "nothing"


@dataclass
class Fake:
    """Answers by rule. changes: fields of the `Answer`, by key. asked: keys of each call."""

    name: str
    says: Says = right
    facts: Mapping[str, Any] = field(default_factory=dict)
    changes: Callable[[str], Mapping[str, Any]] = lambda key: {}
    asked: list[list[str]] = field(default_factory=list)

    def answer(self, questions: Sequence[Question], on_answer: Callable[[Answer], None]) -> dict[str, Answer]:
        self.asked.append([question.key for question in questions])
        given = {}
        for question in questions:
            text = self.says(question.key)
            fields = {
                "prompt_sha": question.prompt_sha, "payload_sha": "p", "text": text, "prompt_tokens": 100,
                "reason": "http_500" if text is None else None, "finish": None if text is None else "stop",
            }  # fmt: skip
            given[question.key] = Answer(question.key, **{**fields, **self.changes(question.key)})
            on_answer(given[question.key])
        return given

    def manifest(self) -> dict[str, Any]:
        return dict(self.facts)

    @property
    def count(self) -> int:
        return sum(map(len, self.asked))


def gate(dense: Fake | None = None, sparse: Fake | None = None, **changes: Any) -> Gate:
    """A gate whose arms are always right and that looks once, but for what is given."""
    arms = {
        "dense": dense or Fake("dense", facts={"sparse_prefill": 0}),
        "sparse": sparse or Fake("sparse", facts={"sparse_prefill": 9}),
    }
    return Gate(**{"tasks": TASKS, "rule": RULE, "active_tokens": 50, "looks": False, **arms, **changes})
