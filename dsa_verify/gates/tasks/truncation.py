"""Middle truncation as the official LongBench runner does it: of too long a prompt the head and the tail are kept."""

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Question
from dsa_verify.gates.tasks.task import Task, TaskDocument

Spans = Callable[[str], Sequence[tuple[int, int]]]
"""Where each token of a text begins and ends, in characters."""


def words(text: str) -> list[tuple[int, int]]:
    """The tokens of the built-in model: words and signs."""
    return [match.span() for match in re.finditer(r"\w+|[^\w\s]", text)]


def by_file(path: Path) -> Spans:
    """Tokens of a Hugging Face tokenizer.json. Raises `ConfigError` without the package or for a file that is none."""
    try:
        from tokenizers import Tokenizer  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ConfigError("cutting by a tokenizer.json needs the package tokenizers; pip install tokenizers.") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise ConfigError(f"{path} is no tokenizer.json: {error}.") from None
    return lambda text: tokenizer.encode(text, add_special_tokens=False).offsets


def middle(text: str, most: int, spans: Spans) -> str:
    """The text itself, or its first and last `most // 2` tokens where it has more than `most`.

    Source: LongBench (arXiv 2308.14508), section on evaluation; THUDM/LongBench, pred.py.
    """
    found = spans(text)
    if len(found) <= most:
        return text
    half = most // 2
    # The head keeps the space that follows it, or two words would become one.
    return text[: found[half][0]] + text[found[-half][0] :]


def truncate(task: Task, most: int, spans: Spans) -> Task:
    """The task with every prompt cut to at most so many tokens; both arms get the same bytes.

    Raises `ConfigError` for a task whose prompts were made to a length and are longer: what is asked for may stand in
    the middle.
    """
    longest = max((len(spans(document.question.prompt)) for document in task.documents), default=0)
    if task.sized and longest > most:
        raise ConfigError(
            f"{task.name} has prompts of {longest:,} tokens, which --max-prompt-tokens {most:,} would cut; ask for "
            f"shorter ones with --{task.name.partition('_')[0]}-tokens."
        )

    def shorter(document: TaskDocument) -> TaskDocument:
        question: Question = dataclasses.replace(
            document.question, prompt=middle(document.question.prompt, most, spans)
        )
        return dataclasses.replace(document, question=question)

    return dataclasses.replace(task, documents=tuple(map(shorter, task.documents)))
