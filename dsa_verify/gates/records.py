"""What crosses the gate's files: a question, an arm's answer to it, and the paired scores of a task."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsa_verify.errors import ConfigError


@dataclass(frozen=True)
class Question:
    """One prompt as every arm gets it.

    key: unique in a run; `task/document` or `task/document#repeat`.
    prompt: text, already cut in the middle where it was too long. stop: texts that end an answer and are no part of it.
    """

    key: str
    prompt: str
    max_tokens: int
    stop: tuple[str, ...] = ()

    @property
    def prompt_sha(self) -> str:
        return sha(self.prompt)


@dataclass(frozen=True)
class Answer:
    """What an arm answered; or, by name, why there is no answer. A missing answer is never a score of 0.

    text: None where it is missing. reason: why it is missing (`http_503`, `timeout`, `null_text`, `no_choices`,
    `finish_abort`, ...), None where it is not. finish: `stop` or `length` of an answer that counts.
    payload_sha: of the request body without the model's name. Token counts as the server stated them, None where it
    said nothing. seconds: from the first attempt's start to the end.
    """

    key: str
    prompt_sha: str
    payload_sha: str
    text: str | None
    reason: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    seconds: float = 0.0


@dataclass(frozen=True, eq=False)
class TaskScores:
    """Scores of both arms on one task, document by document; all arrays have one entry a document.

    dense, sparse: f64 in [0, 1], NaN where an answer is missing. cluster: i64, equal for documents of one context.
    active: bool, the prompt is long enough that sparse attention drops something.
    """

    task: str
    group: str
    dense: np.ndarray
    sparse: np.ndarray
    cluster: np.ndarray
    active: np.ndarray

    @property
    def difference(self) -> np.ndarray:
        """f64[documents]: sparse minus dense, NaN where either is missing."""
        return self.sparse - self.dense

    def only(self, kept: np.ndarray) -> "TaskScores":
        """Of the documents in bool[documents] alone."""
        arrays = (self.dense[kept], self.sparse[kept], self.cluster[kept], self.active[kept])
        return TaskScores(self.task, self.group, *arrays)


def demand_sound(scores: Sequence[TaskScores]) -> None:
    """Raises `ConfigError` for a task that occurs twice, for arrays of unequal length, for scores outside [0, 1]."""
    names = [one.task for one in scores]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"task {twice[0]} is scored twice; give each task once, with all its documents.")
    for one in scores:
        lengths = {len(array) for array in (one.dense, one.sparse, one.cluster, one.active)}
        if len(lengths) > 1:
            raise ConfigError(f"task {one.task} has arrays of {sorted(lengths)} documents; give one entry a document.")
        both = np.concatenate([one.dense, one.sparse])
        wrong = both[np.isinf(both) | (both < 0) | (both > 1)]
        if len(wrong):
            raise ConfigError(f"task {one.task} has a score of {wrong[0]}, expected 0 to 1 or NaN; check its scorer.")


def sha(text: str) -> str:
    """Hex SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()
