"""A task of a gate: documents, their questions and scorer; and how rows are read, from files, the hub and lm-eval."""

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Question, sha


@dataclass(frozen=True)
class TaskDocument:
    """One document of a task: its question as every arm gets it, and the row that the scorer needs; `answers` in it are
    for readers too."""

    task: str
    number: str
    question: Question
    context_sha: str
    row: Mapping[str, Any] = field(repr=False)

    @property
    def sha(self) -> str:
        """Of the whole row, so that two runs can show that they saw the same."""
        return sha(json.dumps(self.row, sort_keys=True, ensure_ascii=False))


class TaskScorer(Protocol):
    """What scores an answer, as lm-eval's task objects do: `process_results(row, [answer])["score"]` is in [0, 1]."""

    def process_results(self, doc: dict[str, Any], results: list[str], /) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Task:
    """A task with its documents.

    corrections: what is asked or scored otherwise than lm-eval does, and why, by name. sized: its prompts were made as
    long as was asked for, and are not to be cut.
    """

    name: str
    group: str
    version: float
    documents: tuple[TaskDocument, ...]
    scorer: TaskScorer = field(repr=False)
    corrections: Mapping[str, str] = field(repr=False)
    sized: bool = False

    def score(self, document: TaskDocument, text: str) -> float:
        """The unified score of an answer, in [0, 1]."""
        return float(self.scorer.process_results(dict(document.row), [text])["score"])


def rows_of_file(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file. Raises `ConfigError` naming file and line for one that does not parse."""
    try:
        # Not splitlines: a text may hold line separators of Unicode, which JSON leaves as they are.
        lines = path.read_text("utf-8").rstrip("\n").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; expected a JSONL file with a row a line.") from None
    return [_row(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)] if any(lines) else []


def rows_of_hub(dataset: str, part: str | None, split: str = "test") -> list[dict[str, Any]]:
    """Rows of a dataset of the hub, or of its local cache. Raises `ConfigError` when neither has them."""
    import datasets

    try:
        return [dict(row) for row in datasets.load_dataset(dataset, part, split=split)]
    except Exception as error:  # the hub's client raises a dozen kinds
        raise ConfigError(
            f"cannot load {dataset} ({part or split}) from the hub: {' '.join(str(error).split())[:200]}; download its "
            "files and give their folder as --data."
        ) from None


def demand_some(rows: Sequence[Any], name: str, where: str) -> None:
    """Raises `ConfigError` for no rows at all."""
    if not rows:
        raise ConfigError(f"{where} holds no rows; expected at least one document of {name}.")


def demand_distinct(rows: Iterable[Mapping[str, Any]], where: str) -> None:
    """Raises `ConfigError` for two rows with one `_id`."""
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        first = seen.setdefault(str(row["_id"]), number)
        if first != number:
            raise ConfigError(f"{where}: lines {first} and {number} share the _id {row['_id']!r}; ids pair the arms.")


@cache
def configuration(file: str) -> dict[str, Any]:
    """A task's YAML in lm-eval's folder of tasks, its scorer loaded. The registry of all 14,000 tasks, which takes
    seconds, stays unread. Raises `ConfigError` without the packages."""
    try:
        import lm_eval
        from lm_eval.tasks._yaml_loader import load_yaml

        path = Path(lm_eval.__file__).parent / "tasks" / file
        with warnings.catch_warnings():  # fuzzywuzzy warns that it uses difflib, which is what is wanted
            warnings.simplefilter("ignore")
            return dict(load_yaml(path, resolve_func=True))
    except ImportError as error:
        raise ConfigError(
            f"the gate needs lm-eval and its scorers ({error}): pip install 'dsa-verify[gate]'."
        ) from None


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON ({error}); the file may be cut off, download it again.") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} holds a {type(row).__name__}, expected an object with a column a field.")
    return row
