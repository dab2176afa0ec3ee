"""Task, a gate's documents with their scorer; and LongBench by lm-eval's prompts and scorers, over hub or file rows."""

import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from dsa_verify.errors import ConfigError, unknown_name
from dsa_verify.gates.records import Question, sha

ENGLISH = {
    "single": ("narrativeqa", "qasper", "multifieldqa_en"),
    "multi": ("hotpotqa", "2wikimqa", "musique"),
    "summarization": ("gov_report", "qmsum", "multi_news"),
    "fewshot": ("trec", "triviaqa", "samsum"),
    "synthetic": ("passage_count", "passage_retrieval_en"),
    "code": ("lcc", "repobench-p"),
}
"""The 16 English tasks by lm-eval's groups."""
CHINESE = {
    "single": ("multifieldqa_zh",),
    "multi": ("dureader",),
    "summarization": ("vcsum",),
    "fewshot": ("lsht",),
    "synthetic": ("passage_retrieval_zh",),
}
HUB = "Xnhyacinth/LongBench"
"""The dataset that lm-eval's tasks name; its question column is `question`, the official one is `input`."""
COLUMNS = ("context", "question", "answers")

FIRST_LINE = frozenset({"trec", "triviaqa", "samsum", "lsht"})
RECURSION = 100_000
CORRECTIONS = {
    "first-line": "trec, triviaqa, samsum and lsht: leading newlines are dropped and the first line is scored, as the "
    "official runner does; a newline is no stop, which would make an answer that begins with one empty",
    "temperature": "temperature 0 is sent; the tasks say 1 with do_sample False, and servers that see only the first "
    "sample",
    "recursion": f"ROUGE-L under a recursion limit of {RECURSION:,}: under Python's default, prediction and reference "
    "of about 1,000 words together score 0",
    "code-similarity": "lcc and repobench-p by difflib, whether or not python-Levenshtein is installed, which scores "
    "differently",
    "reference": "a passage_retrieval reference without a paragraph number is refused when it is read; the scorer "
    "would end the run at that document",
}
"""What is done otherwise than lm-eval 0.4.13 does it, and why; every report lists those that apply."""
_TOUCHES = {
    "first-line": FIRST_LINE,
    "recursion": frozenset({*ENGLISH["summarization"], "samsum", "dureader", "vcsum"}),
    "code-similarity": frozenset(ENGLISH["code"]),
    "reference": frozenset({"passage_retrieval_en", "passage_retrieval_zh"}),
}


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
    """What lm-eval's task objects are used for: `process_results(row, [answer])["score"]` is in [0, 1]."""

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
        if "first-line" in self.corrections:
            text = text.lstrip("\n").split("\n")[0]
        guarded = {"recursion", "code-similarity"} & self.corrections.keys()
        with _safely() if guarded else nullcontext():
            return float(self.scorer.process_results(dict(document.row), [text])["score"])


def group_of(task: str, others: Iterable[str] = ()) -> str:
    """lm-eval's group of a task. Raises `ConfigError` for a name that is no LongBench task, naming `others` too."""
    for groups in (ENGLISH, CHINESE):
        for group, tasks in groups.items():
            if task in tasks:
                return group
    names = [name for groups in (ENGLISH, CHINESE) for tasks in groups.values() for name in tasks]
    raise unknown_name("task", task, [*names, *others])


def longbench(name: str, rows: Sequence[Mapping[str, Any]], where: str) -> Task:
    """A LongBench task over rows with at least `context`, `question` (or `input`), `answers` and `_id`.

    Prompts, limits and scores are those of lm-eval's task `longbench_<name>`, with `CORRECTIONS`.
    Raises `ConfigError` naming `where` and the line (row) for one that lacks a column or holds something else in it,
    for ids that occur twice, and for no rows at all.
    """
    group = group_of(name)
    demand_some(rows, name, where)
    rows = [_complete(name, row, f"{where}, line {number}") for number, row in enumerate(rows, 1)]
    demand_distinct(rows, where)
    scorer = _lm_eval_task(name, rows)
    documents = tuple(_document(name, scorer, row) for row in rows)
    return Task(name, group, float(scorer.config.metadata["version"]), documents, scorer, _corrections(name))


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


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON ({error}); the file may be cut off, download it again.") from None
    if not isinstance(row, dict):
        raise ConfigError(f"{where} holds a {type(row).__name__}, expected an object with a column a field.")
    return row


def _complete(name: str, row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The row with lm-eval's column names and the types that prompts and scorers rely on."""
    row = dict(row)
    if "question" not in row and "input" in row:
        row["question"] = row.pop("input")
    missing = [column for column in (*COLUMNS, "_id") if column not in row]
    if missing:
        raise ConfigError(f"{where} has no {', '.join(missing)}; it has {', '.join(sorted(row))}.")
    strange = [column for column in ("context", "question") if not isinstance(row[column], str)]
    if strange:
        raise ConfigError(f"{where}: {strange[0]} is {row[strange[0]]!r:.80}, expected a text.")
    answers = row["answers"]
    if not isinstance(answers, list) or not answers or not all(isinstance(answer, str) for answer in answers):
        raise ConfigError(f"{where}: answers is {answers!r:.80}, expected a list of at least one text.")
    if name in ("trec", "lsht") and not row.get("all_classes"):
        raise ConfigError(f"{where} has no all_classes, which {name} is scored by.")
    if name in _TOUCHES["reference"]:
        marker = "Paragraph " if name.endswith("en") else "段落"
        strange = [answer for answer in answers if not re.search(rf"{marker}\d", answer)]
        if strange:
            raise ConfigError(f"{where}: answer {strange[0]!r:.80} names no paragraph, expected {marker}N.")
    return row


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


def _document(name: str, scorer: Any, row: dict[str, Any]) -> TaskDocument:
    limits = scorer.config.generation_kwargs
    stop = () if name in FIRST_LINE else tuple(limits["until"])
    number = str(row["_id"])
    question = Question(f"{name}/{number}", scorer.doc_to_text(row), int(limits["max_gen_toks"]), stop)
    return TaskDocument(name, number, question, sha(row["context"]), row)


def _corrections(name: str) -> dict[str, str]:
    names = ("temperature", *(correction for correction, tasks in _TOUCHES.items() if name in tasks))
    return {correction: CORRECTIONS[correction] for correction in names}


def _lm_eval_task(name: str, rows: list[dict[str, Any]]) -> Any:
    """lm-eval's task object over these rows; nothing of it reaches for the hub."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    used = (*COLUMNS, "all_classes")
    data = datasets.Dataset.from_list(
        [{column: row[column] for column in used if row.get(column) is not None} for row in rows]
    )
    with _silently():
        own = configuration(f"longbench/{name}.yaml")
        return ConfigurableTask(config={**own, "custom_dataset": lambda **_: {"test": data}})


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


@contextmanager
def _safely() -> Iterator[None]:
    """Score under a recursion limit that ROUGE-L needs, and one code similarity on every machine."""
    from difflib import SequenceMatcher

    from fuzzywuzzy import fuzz

    limit, matcher = sys.getrecursionlimit(), fuzz.SequenceMatcher
    sys.setrecursionlimit(max(limit, RECURSION))
    fuzz.SequenceMatcher = SequenceMatcher
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        fuzz.SequenceMatcher = matcher


@contextmanager
def _silently() -> Iterator[None]:
    """lm-eval warns about every task that has its own dataset."""
    import logging

    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)
