"""LongBench v2 by generation: lm-eval's prompt, the official form of an answer, and the letter that stands in it."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Question, sha
from dsa_verify.gates.tasks.task import Task, TaskDocument, configuration, demand_distinct, demand_some, rows_of_file

NAME = "longbench2"
HUB, SPLIT = "zai-org/LongBench-v2", "train"
CHOICES = tuple("ABCD")
COLUMNS = ("_id", "context", "question", *(f"choice_{letter}" for letter in CHOICES), "answer")
MAX_TOKENS = 128
"""As the official runner asks for without chain of thought."""
VERSION = 1.0
CORRECTIONS = {
    "generated": "longbench2: the answer is generated and its letter read from it, as the official runner does; "
    "lm-eval compares the likelihoods of the four letters, for which few servers return what it needs",
}
_CUE = "\n\nAnswer:"
_FORM = '\n\nAnswer with one sentence of the form "The correct answer is (X)", X being one of A, B, C and D.'
_SAID = re.compile(r"the correct answer is:?\s*\(?([A-D])\b", re.IGNORECASE)


class Letters:
    """1.0 for an answer that names the right letter, otherwise 0.0."""

    def process_results(self, doc: dict[str, Any], results: list[str], /) -> Mapping[str, float]:
        return {"score": float(letter(results[0]) == doc["answer"])}


def letter(text: str) -> str | None:
    """The letter that an answer names last, None where it names none.

    Asterisks do not count. A bare "B" or "(B)" that is the whole answer names B. The last counts, since a model that
    thinks aloud quotes the form before it answers. Source: THUDM/LongBench, pred.py, which takes the first.
    """
    text = text.replace("*", "").strip()
    found = _SAID.findall(text)
    if found:
        return found[-1].upper()
    bare = re.fullmatch(r"\(?([A-D])\)?\.?", text)
    return bare.group(1) if bare else None


def longbench2(rows: Sequence[Mapping[str, Any]], where: str) -> Task:
    """LongBench v2 (arXiv 2412.15204) over rows with the official columns, `COLUMNS`.

    Raises `ConfigError` naming `where` and the row for a column that is missing or holds something else, for ids that
    occur twice, and for no rows at all.
    """
    from jinja2 import Environment, StrictUndefined

    demand_some(rows, NAME, where)
    for number, row in enumerate(rows, 1):
        _demand(row, f"{where}, row {number}")
    demand_distinct(rows, where)
    text = configuration("longbench2/_longbench_common_yaml")["doc_to_text"].removesuffix(_CUE)
    template = Environment(undefined=StrictUndefined).from_string(text)
    return Task(NAME, NAME, VERSION, tuple(_document(template, dict(row)) for row in rows), Letters(), CORRECTIONS)


def rows_of(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Rows, and where they are from: `longbench2.jsonl`, or the official `data.json`, of a folder."""
    official = folder / "data.json"
    if (folder / f"{NAME}.jsonl").is_file() or not official.is_file():
        return rows_of_file(folder / f"{NAME}.jsonl"), str(folder / f"{NAME}.jsonl")
    try:
        rows = json.loads(official.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{official} is not JSON ({error}); the file may be cut off, download it again.") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"{official} is no list of rows, which LongBench v2's data.json is.")
    return rows, str(official)


def _demand(row: Mapping[str, Any], where: str) -> None:
    strange = [column for column in COLUMNS if not isinstance(row.get(column), str)]
    if strange:
        column = strange[0]
        found = f"{row[column]!r:.80}" if column in row else "nothing"
        raise ConfigError(f"{where}: {column} is {found}, expected a text.")
    if row["answer"] not in CHOICES:
        raise ConfigError(f"{where}: answer is {row['answer']!r:.80}, expected one of {', '.join(CHOICES)}.")


def _document(template: Any, row: dict[str, Any]) -> TaskDocument:
    choices = [row[f"choice_{one}"] for one in CHOICES]
    prompt = template.render(context=row["context"], question=row["question"], choices=choices) + _FORM
    number = row["_id"]
    return TaskDocument(
        NAME,
        number,
        Question(f"{NAME}/{number}", prompt, MAX_TOKENS),
        sha(row["context"]),
        row | {"answers": [row["answer"]]},
    )
