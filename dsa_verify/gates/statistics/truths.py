"""Assumed truths for simulations: how the 16 English tasks score, and what a loss does to their paired differences."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dsa_verify.gates.statistics.paired import Paired, paired

MOVING = 0.4
"""Share of documents whose answer changes between two runs, where scores are F1-like."""
DISCORDANCE = 0.0625
"""Share of documents on which two equal arms disagree, where scores are 0 or 1."""
ROUGE_SD = 0.08
_WIDTH = 0.4 * 6**0.5
"""The difference of two uniform scores over this width has SD 0.4."""


def f1_like(rng: np.random.Generator, shape: tuple[int, int], loss: float) -> np.ndarray:
    """40% of the answers change, by SD 0.4: dense u, sparse v^k (times 0.98), k such that the mean is -loss."""
    power = 1 / (0.5 - loss / (MOVING * _WIDTH)) - 1
    moved = rng.random(shape) < MOVING
    return np.where(moved, _WIDTH * (rng.random(shape) ** power - rng.random(shape)), 0.0)


def lost_answers(rng: np.random.Generator, shape: tuple[int, int], loss: float) -> np.ndarray:
    """F1-like without loss, but some sparse answers are lost and score 0: the skew of a needle that is not found."""
    dense = rng.random(shape)
    sparse = np.where(rng.random(shape) < MOVING, rng.random(shape), dense)
    return np.where(rng.random(shape) < 2 * loss, 0.0, sparse) - dense


def rouge_like(rng: np.random.Generator, shape: tuple[int, int], loss: float) -> np.ndarray:
    """Every score moves a little: normal, SD 0.08."""
    return rng.normal(-loss, ROUGE_SD, shape)


def zero_or_one(rng: np.random.Generator, shape: tuple[int, int], loss: float) -> np.ndarray:
    """6.25% discordance, more only where the loss needs it; SD 0.25."""
    differ = max(DISCORDANCE, loss)
    draw = rng.random(shape)
    return np.where(draw < (differ + loss) / 2, -1.0, np.where(draw < differ, 1.0, 0.0))


def losses_only(rng: np.random.Generator, shape: tuple[int, int], loss: float) -> np.ndarray:
    """Scores of 0 or 1 that never get better: the worst skew there is."""
    return -(rng.random(shape) < loss).astype(float)


Draw = Callable[[np.random.Generator, tuple[int, int], float], np.ndarray]
BINARY = (zero_or_one, losses_only)


@dataclass(frozen=True)
class AssumedTask:
    """A task of a simulated run. draw: its paired differences, f64[simulations, documents]."""

    group: str
    documents: int
    draw: Draw

    def paired(self, difference: np.ndarray) -> Paired:
        return paired(difference, None, self.draw in BINARY)


TASKS: Mapping[str, AssumedTask] = {
    "narrativeqa": AssumedTask("single", 200, f1_like),
    "qasper": AssumedTask("single", 200, f1_like),
    "multifieldqa_en": AssumedTask("single", 150, f1_like),
    "hotpotqa": AssumedTask("multi", 200, f1_like),
    "2wikimqa": AssumedTask("multi", 200, f1_like),
    "musique": AssumedTask("multi", 200, f1_like),
    "gov_report": AssumedTask("summarization", 200, rouge_like),
    "qmsum": AssumedTask("summarization", 200, rouge_like),
    "multi_news": AssumedTask("summarization", 200, rouge_like),
    "trec": AssumedTask("fewshot", 200, zero_or_one),
    "triviaqa": AssumedTask("fewshot", 200, f1_like),
    "samsum": AssumedTask("fewshot", 200, rouge_like),
    "passage_count": AssumedTask("synthetic", 200, zero_or_one),
    "passage_retrieval_en": AssumedTask("synthetic", 200, zero_or_one),
    "lcc": AssumedTask("code", 500, f1_like),
    "repobench-p": AssumedTask("code", 500, zero_or_one),
}
"""LongBench's English tasks with their numbers of documents; shapes are assumptions, 8 F1, 4 ROUGE, 4 of 0 or 1."""


@dataclass(frozen=True)
class Truth:
    """What sparse really loses. uniform: on every task. on: on these tasks instead. share: of the documents used."""

    name: str
    uniform: float = 0.0
    on: Mapping[str, float] | None = None
    share: float = 1.0

    def loss(self, task: str) -> float:
        return (self.on or {}).get(task, self.uniform)

    def documents(self, task: str) -> int:
        return round(TASKS[task].documents * self.share)


def _group(name: str, loss: float) -> dict[str, float]:
    return {task: loss for task, one in TASKS.items() if one.group == name}


TRUTHS = (
    Truth("no loss"),
    Truth("no loss, half the documents", share=0.5),
    Truth("uniform -.005", 0.005),
    Truth("uniform -.03", 0.03),
    Truth("one QA task -.07", on={"hotpotqa": 0.07}),
    Truth("one QA task -.10", on={"hotpotqa": 0.10}),
    Truth("one QA task -.15", on={"hotpotqa": 0.15}),
    Truth("passage_retrieval_en -.10", on={"passage_retrieval_en": 0.10}),
    Truth("passage_retrieval_en -.20", on={"passage_retrieval_en": 0.20}),
    Truth("multi-document QA -.05", on=_group("multi", 0.05)),
    Truth("multi-document QA -.10", on=_group("multi", 0.10)),
)
"""The truths of the operating table, besides the one at each macro margin."""
