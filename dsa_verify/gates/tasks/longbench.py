"""LongBench as the gate asks it: prompts and scorers of lm-eval, with every correction named."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from dsa_verify.errors import ConfigError, unknown_name
from dsa_verify.gates.records import Question, sha
from dsa_verify.gates.tasks.task import Task, TaskDocument, configuration, demand_distinct, demand_some

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
class CorrectedScorer:
    """lm-eval's own scorer of a task, with the corrections that concern scores."""

    own: Any
    corrections: frozenset[str]

    def process_results(self, doc: dict[str, Any], results: list[str], /) -> Mapping[str, float]:
        if "first-line" in self.corrections:
            results = [text.lstrip("\n").split("\n")[0] for text in results]
        guarded = self.corrections & {"recursion", "code-similarity"}
        with _safely() if guarded else nullcontext():
            return self.own.process_results(doc, results)


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
    corrections = _corrections(name)
    version = float(scorer.config.metadata["version"])
    return Task(name, group, version, documents, CorrectedScorer(scorer, frozenset(corrections)), corrections)


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
