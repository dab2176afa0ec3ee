"""Rows of LongBench tasks made here, for the built-in model: long documents whose answers must be found, or counted.

The model continues the text where its last two words stood before, with what followed them most often. Each prompt ends
with the task's own cue ("Answer:", "Summary:", "Next line of code:"); where a task lets the row choose its question,
the cue is a name, so that the right fact must be found among others. Claims contradict each other, at most one stands
on a page, and the right answer is the one made most often: a model that looks at one page only loses.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TASKS = (
    "qasper", "multifieldqa_en", "hotpotqa", "musique", "gov_report", "qmsum", "trec", "triviaqa", "passage_count",
    "passage_retrieval_en", "lcc", "repobench-p",
)  # fmt: skip
"""Two of each of LongBench's six groups."""
SEED = 3002
FILLER = [f"filler{n}" for n in range(60)]
APART = 32
"""Words between claims: more than a page, so that no page holds two."""
CLAIMS = (0, 0, 0, 1, 1, 2)
"""Which of three answers each claim gives; the first is right."""
END = "␄"


def generated_rows(task: str, documents: int, words: int = 260) -> list[dict[str, Any]]:
    """So many rows of a task, the same every time; each context has about `words` words."""
    return [_row(task, number, words) for number in range(documents)]


def _row(task: str, number: int, words: int) -> dict[str, Any]:
    rng = np.random.default_rng([SEED, *task.encode(), number])
    cue, question, answer = _KINDS[task]
    answers: list[str] = []
    while len(answers) < 3:
        answers += [one for one in [answer(rng)] if one not in answers]
    name = f"name{rng.integers(100, 1000)}"
    cue, question = cue.format(name=name), question.format(name=name)
    sentences = [f"{cue} {answers[which]} {END}" for which in CLAIMS]
    row = {
        "_id": f"{task}-{number}", "context": _scattered(rng, sentences, words), "question": question,
        "answers": [answers[0]], "length": words,
    }  # fmt: skip
    return row | ({"all_classes": sorted(set(answers))} if task == "trec" else {})


def _scattered(rng: np.random.Generator, sentences: list[str], words: int) -> str:
    """The sentences in random order, APART or more words of filler between them."""
    text = [str(word) for word in rng.choice(FILLER, words)]
    slots = rng.permutation(np.arange(words // APART))[: len(sentences)] * APART
    for slot, sentence in zip(slots, rng.permutation(sentences), strict=True):
        text[slot] += f" {sentence}"
    return " ".join(text)


def _word(kind: str) -> Callable[[np.random.Generator], str]:
    return lambda rng: f"{kind}{rng.integers(100, 1000)}"


def _phrase(rng: np.random.Generator) -> str:
    return " ".join(f"point{n}" for n in rng.choice(900, 8, replace=False) + 100)


def _code(rng: np.random.Generator) -> str:
    return f"value{rng.integers(100, 1000)} = load{rng.integers(100, 1000)} ( key{rng.integers(100, 1000)} )"


_KINDS: Mapping[str, tuple[str, str, Callable[[np.random.Generator], str]]] = {
    # The cue in the context, the row's question, the answer.
    "qasper": ("Answer :", "what", _word("claim")),
    "multifieldqa_en": ("Answer :", "what", _word("claim")),
    "hotpotqa": ("Answer :", "who", _word("claim")),
    "musique": ("Answer :", "who", _word("claim")),
    "gov_report": ("Summary :", "", _phrase),
    "qmsum": ("Answer :", "why", _phrase),
    "trec": ("{name} is", "the type of {name} is", _word("type")),
    "triviaqa": ("{name} is", "the name of {name} is", _word("claim")),
    "passage_count": ("answer is :", "", lambda rng: str(rng.integers(100, 1000))),
    "passage_retrieval_en": ("answer is :", "which", lambda rng: f"Paragraph {rng.integers(100, 1000)}"),
    "lcc": ("of code :", "", _code),
    "repobench-p": ("of code :", "", _code),
}
