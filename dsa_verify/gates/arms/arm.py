"""Arms of a gate: each answers the questions and states what it ran; here the built-in model and recorded answers."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from dsa_verify.gates.records import Answer, Question, sha

if TYPE_CHECKING:  # it imports JAX, which no other kind of arm needs
    from dsa_verify.serve.model import ServedModel

OnAnswer = Callable[[Answer], None]


class Arm(Protocol):
    """One side of a gate. `name` is `dense`, `sparse`, `same` (dense once more) or `degraded`."""

    @property
    def name(self) -> str: ...

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        """An answer, or a named reason, for each question by its key."""
        ...

    def manifest(self) -> dict[str, Any]:
        """What ran, with everything that must be equal in both arms, and what was meant to differ. After `answer`."""
        ...


@dataclass
class EmbeddedArm:
    """The built-in model in this process, behind the engine.

    environment: its DSA_* variables. index_topk: its budget in tokens. mutant: one that breaks the kernels of this arm
    only, by name. kernels: `jnp`, or `pallas` in interpret mode.
    """

    name: str
    environment: Mapping[str, str]
    index_topk: int = 128
    kernels: Literal["jnp", "pallas"] = "jnp"
    mutant: str | None = None
    _served: "ServedModel | None" = field(default=None, repr=False)

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        from contextlib import nullcontext

        from dsa_verify.mutants.broken_arm import with_mutant
        from dsa_verify.runtime import interpreted

        def each() -> dict[str, Answer]:
            answers = {}
            for question in questions:
                answers[question.key] = self._answer(question)
                on_answer(answers[question.key])
            return answers

        with interpreted() if self.kernels == "pallas" else nullcontext():
            return with_mutant(self.mutant, self.kernels, each)

    def manifest(self) -> dict[str, Any]:
        from dsa_verify.serve.model import describe

        return describe(self._model())

    def _model(self) -> "ServedModel":
        from dsa_verify.serve.model import ServerSettings, load

        if self._served is None:
            settings = ServerSettings(
                index_topk=self.index_topk, context_length=960, chunk_tokens=128, kernels=self.kernels
            )
            self._served = load(settings, self.environment)
        return self._served

    def _answer(self, question: Question) -> Answer:
        from dsa_verify.engine import GenerationRequest
        from dsa_verify.serve.text import Writer

        served, start = self._model(), time.perf_counter()
        words = served.tokenizer()
        prompt = tuple(words.encode(question.prompt))
        request = GenerationRequest(prompt, question.max_tokens, stop=served.stop)
        (done,) = served.engine.generate([request])
        writer, tokens = Writer(words, question.stop), [token for token in done.tokens if token not in served.stop]
        text = "".join(writer.add(token) for token in tokens) + ("" if not tokens or writer.stopped else writer.rest())
        return Answer(
            question.key, question.prompt_sha, sha(repr((question.prompt, question.max_tokens, question.stop))),
            text, None, done.reason, len(prompt), len(done.tokens), 0, round(time.perf_counter() - start, 4),
        )  # fmt: skip


@dataclass
class RecordedArm:
    """Answers of an earlier run: lm-eval's sample files, or a journal of this gate."""

    name: str
    answers: Mapping[str, Answer]
    facts: Mapping[str, Any]

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        given = {}
        for question in questions:
            missing = Answer(question.key, question.prompt_sha, "", None, "not_recorded")
            given[question.key] = self.answers.get(question.key, missing)
            on_answer(given[question.key])
        return given

    def manifest(self) -> dict[str, Any]:
        return dict(self.facts)
