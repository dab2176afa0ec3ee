"""A gate from documents to decision: ask both arms in rounds, score, look, stop early, run the controls, decide."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsa_verify.gates.arms import comparable
from dsa_verify.gates.arms.arm import Arm
from dsa_verify.gates.decision import FAIL, INCONCLUSIVE, Decision, decide, verdict_so_far
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.records import Answer, Question, TaskScores, sha
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.statistics.stopping import alarm_round, evidence_of_harm, schedule
from dsa_verify.gates.tasks.task import Task, TaskDocument


@dataclass(frozen=True)
class Gate:
    """What is run. same, degraded: the controls, None for those that are left out. looks: whether it may stop early.

    active_tokens: prompt tokens above which sparse attention drops something. trusted: sparsity needs no proof.
    """

    tasks: Sequence[Task]
    rule: Rule
    dense: Arm
    sparse: Arm
    active_tokens: int
    same: Arm | None = None
    degraded: Arm | None = None
    looks: bool = True
    repeats: int = GateOptions.repeats
    trusted: bool = GateOptions.trust_sparse
    treatment: frozenset[str] = comparable.TREATMENT


@dataclass(frozen=True)
class GateOutcome:
    """A decision with everything it was made from, for the report.

    answers: by arm and key. scores: by arm and key, of answers that count. manifests: by arm.
    """

    decision: Decision
    gate: Gate
    answers: Mapping[str, Mapping[str, Answer]]
    scores: Mapping[str, Mapping[str, float]]
    manifests: Mapping[str, Mapping[str, Any]]
    rounds: int
    of_rounds: int

    @property
    def corrections(self) -> dict[str, str]:
        """What was scored or asked otherwise than lm-eval does, by name."""
        return {name: text for task in self.gate.tasks for name, text in task.corrections.items()}

    @property
    def data_sha(self) -> str:
        return sha("".join(document.sha for task in self.gate.tasks for document in task.documents))


class _Run:
    """Answers and scores so far."""

    def __init__(self, gate: Gate, on_answer: Callable[[str, Answer], None]) -> None:
        self.gate, self.on_answer = gate, on_answer
        self.answers: dict[str, dict[str, Answer]] = {}
        self.scores: dict[str, dict[str, float]] = {}
        self.plan = schedule({task.name: _clusters(task) for task in gate.tasks}, gate.rule)

    def ask(self, arm: Arm, first: int, last: int) -> None:
        """Lets an arm answer the documents of rounds `first` to `last - 1`, and scores them."""
        due = [
            (task, document)
            for task in self.gate.tasks
            for document, at in zip(task.documents, self.plan.rounds[task.name], strict=True)
            if first <= at < last
        ]
        questions = [question for _, document in due for question in _repeated(document, self.gate.repeats)]
        given = arm.answer(questions, lambda answer: self.on_answer(arm.name, answer))
        self.answers.setdefault(arm.name, {}).update(given)
        scored = self.scores.setdefault(arm.name, {})
        for task, document in due:
            for question in _repeated(document, self.gate.repeats):
                text = given[question.key].text
                if text is not None:
                    scored[question.key] = task.score(document, text)

    def pairs(self, dense: str, sparse: str, done: int) -> list[TaskScores]:
        """Scores of two arms on the documents of the first `done` rounds."""
        return [self.plan.asked(task, done) for task in self.scored(dense, sparse)]

    def scored(self, dense: str, sparse: str) -> list[TaskScores]:
        """Scores of two arms on all documents, NaN for those that were not asked yet."""
        return [self._task(task, dense, sparse) for task in self.gate.tasks]

    def _task(self, task: Task, dense: str, sparse: str) -> TaskScores:
        first, second = (np.array([self._mean(arm, d) for d in task.documents]) for arm in (dense, sparse))
        active = np.array([self._tokens(d) > self.gate.active_tokens for d in task.documents])
        return TaskScores(task.name, task.group, first, second, _clusters(task), active)

    def _mean(self, arm: str, document: TaskDocument) -> float:
        """Mean over repeats, NaN where one is missing."""
        scored = self.scores.get(arm, {})
        return float(np.mean([scored.get(q.key, np.nan) for q in _repeated(document, self.gate.repeats)]))

    def _tokens(self, document: TaskDocument) -> int:
        """Prompt tokens as a server counted them, or a guess of one a word where it did not."""
        for answers in self.answers.values():
            answer = answers.get(document.question.key)
            if answer is not None and answer.prompt_tokens:
                return answer.prompt_tokens
        return len(document.question.prompt.split())


def run(gate: Gate, on_answer: Callable[[str, Answer], None] = lambda arm, answer: None) -> GateOutcome:
    """Run a gate. `on_answer` is called with an arm's name and each of its answers as they come."""
    state, done, look, alarm, scores = _Run(gate, on_answer), 0, 0, None, []
    looks = state.plan.looks if gate.looks else state.plan.looks[-1:]
    for look, until in enumerate(looks):
        for arm in (gate.dense, gate.sparse):
            state.ask(arm, done, until)
        done = until
        scores = state.pairs("dense", "sparse", done)
        if gate.looks:
            evidence = evidence_of_harm(state.scored("dense", "sparse"), state.plan, gate.rule.macro_margin, done)
            alarm = alarm_round(evidence, gate.rule)
        at = look if gate.looks else None
        if verdict_so_far(scores, gate.rule, look=at, alarm=alarm) != INCONCLUSIVE:
            break
    controls = _controls(state, done)
    manifests = {arm.name: arm.manifest() for arm in (gate.dense, gate.sparse, gate.same, gate.degraded) if arm}
    decision = decide(
        scores, gate.rule, controls=controls, contradictions=_contradictions(gate, state.answers, manifests),
        look=look if gate.looks else None, alarm=alarm,
    )  # fmt: skip
    return GateOutcome(decision, gate, state.answers, state.scores, manifests, done, state.plan.count)


def _controls(state: _Run, done: int) -> dict[str, list[TaskScores]]:
    """Dense once more on all documents that were asked, and the degraded arm until it has failed."""
    gate = state.gate
    scores: dict[str, list[TaskScores]] = {}
    if gate.same is not None:
        state.ask(gate.same, 0, done)
        scores["same"] = state.pairs("dense", gate.same.name, done)
    if gate.degraded is not None:
        begin = 0
        for quarter in range(1, 5):
            end = -(-done * quarter // 4)
            if end == begin:
                continue
            state.ask(gate.degraded, begin, end)
            begin = end
            scores["degraded"] = state.pairs("dense", gate.degraded.name, end)
            if verdict_so_far(scores["degraded"], gate.rule) == FAIL:
                break
    return scores


def _contradictions(
    gate: Gate, answers: Mapping[str, Mapping[str, Answer]], manifests: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Why the arms cannot be compared, whatever their scores say."""
    dense, sparse = manifests["dense"], manifests["sparse"]
    controls = [arm.name for arm in (gate.same, gate.degraded) if arm]
    asked = {name: {key: answers["dense"][key] for key in answers[name]} for name in controls}
    return [
        *comparable.answers_differ(answers["dense"], answers["sparse"]),
        *(why for name in controls for why in comparable.answers_differ(asked[name], answers[name], name)),
        *comparable.manifests_differ(dense, sparse, gate.treatment),
        *comparable.sparsity(dense, sparse, gate.trusted),
    ]


def _repeated(document: TaskDocument, repeats: int) -> list[Question]:
    question = document.question
    return [question, *(dataclasses.replace(question, key=f"{question.key}#{n}") for n in range(1, repeats))]


def _clusters(task: Task) -> np.ndarray:
    """i64[documents]: equal for documents that share a context."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(document.context_sha, len(numbers)) for document in task.documents])
