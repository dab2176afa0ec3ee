"""Arms of a gate: each answers the questions and states what it ran, with the proof that its prefill was sparse."""

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import Answer, Question, sha

OnAnswer = Callable[[Answer], None]
INFO_ATTEMPTS = 3
"""Of asking a server what it is, a second apart while it is away."""


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
    kernels: str = "jnp"
    mutant: str | None = None
    _served: Any = field(default=None, repr=False)

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

    def _model(self) -> Any:
        from dsa_verify.serve.model import ServerSettings, load

        if self._served is None:
            settings = ServerSettings(
                index_topk=self.index_topk, context_length=960, chunk_tokens=128,
                kernels=self.kernels,  # pyright: ignore[reportArgumentType]
            )  # fmt: skip
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
class ServedArm:
    """A server that is running already, behind an OpenAI-compatible endpoint; answers are kept in a journal.

    endpoint: a `payload.Endpoint`. concurrency: requests under way at once.
    """

    name: str
    endpoint: Any
    journal: Path
    concurrency: int = 1
    data_sha: str = ""
    _manifest: dict[str, Any] = field(default_factory=dict)

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        to = self.endpoint
        header = {
            "url": to.root, "model": to.model, "api": to.api, "data": self.data_sha,
            # A server that was started again otherwise must not go on in the journal of the first.
            "environment": server_info(to).get("environment"),
        }  # fmt: skip
        answers, self._manifest = _asked(self, to, header, questions, on_answer)
        return answers

    def manifest(self) -> dict[str, Any]:
        return self._manifest


@dataclass
class StartedArm:
    """A server that the gate starts for this arm, and stops again; otherwise as `ServedArm`.

    server: a `servercmd.ServerCommand`. endpoint: a `payload.Endpoint` whose URL is that of the server once it runs. It
    is not started where the journal holds every answer already.
    """

    name: str
    server: Any
    endpoint: Any
    journal: Path
    concurrency: int = 1
    data_sha: str = ""
    _manifest: dict[str, Any] = field(default_factory=dict)

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        header = {"command": self.server.command, "environment": dict(self.server.environment), "data": self.data_sha}
        answers, found = _kept(self, header, questions)
        if found is None:
            with self._running() as endpoint:
                answers, found = _asked(self, endpoint, header, questions, on_answer)
        else:
            for answer in answers.values():
                on_answer(answer)
        self._manifest = found | {"command": self.server.command}
        return answers

    def manifest(self) -> dict[str, Any]:
        return self._manifest

    @contextmanager
    def _running(self) -> Iterator[Any]:
        from dsa_verify.gates.arms.server_command import running

        with running(self.server, self.journal.with_suffix(".server.log")) as url:
            yield with_model(dataclasses.replace(self.endpoint, url=url))


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


def server_info(endpoint: Any) -> dict[str, Any]:
    """What a server says about itself, where this suite's own server and SGLang's say it; {} if nothing."""
    import httpx

    for path in ("/server_info", "/get_server_info") * INFO_ATTEMPTS:
        try:
            response = _get(endpoint, path)
            if response.status_code == 200 and isinstance(response.json(), dict):
                return response.json()
            if response.status_code >= 500:
                time.sleep(1.0)
        except (httpx.HTTPError, ValueError):
            continue
    return {}


def _get(endpoint: Any, path: str) -> Any:
    import httpx

    return httpx.get(endpoint.root + path, headers=endpoint.headers, timeout=10.0, trust_env=not endpoint.local)


def with_model(endpoint: Any) -> Any:
    """The endpoint with the model that its server lists, where none is named; also then, something must listen."""
    listed = served_model(endpoint)
    return endpoint if endpoint.model else dataclasses.replace(endpoint, model=listed)


def served_model(endpoint: Any) -> str:
    """The first model that a server lists, `default` if it lists none.

    Raises `ConfigError` where nothing listens: better now than after hours with the other arm.
    """
    import httpx

    for wait in range(INFO_ATTEMPTS):
        try:
            time.sleep(wait)
            response = _get(endpoint, "/v1/models")
            if response.status_code in (401, 403):
                raise ConfigError(
                    f"{endpoint.root} answers {response.status_code} when it is asked for its models; give the name of "
                    "the variable that holds its token as --token-env."
                )
            if response.status_code < 500:
                return str(response.json()["data"][0]["id"])
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise ConfigError(
                f"nothing answers at {endpoint.root} ({error}); start the server, or correct the URL"
            ) from None
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            continue
    return "default"


def _asked(
    arm: "ServedArm | StartedArm",
    endpoint: Any,
    header: Mapping[str, Any],
    questions: Sequence[Question],
    on_answer: OnAnswer,
) -> tuple[dict[str, Answer], dict[str, Any]]:
    """The answers of a server, and its manifest afterwards."""
    from dsa_verify.gates.arms.client import answer_all
    from dsa_verify.gates.arms.journal import Journal

    with Journal(arm.journal, arm.name, header) as journal:
        answers = asyncio.run(answer_all(questions, endpoint, journal, on_answer, arm.concurrency))
        manifest = _remembered(server_info(endpoint) | {"served_model": endpoint.model}, header, _beside(arm))
    return answers, manifest


def _kept(
    arm: "StartedArm", header: Mapping[str, Any], questions: Sequence[Question]
) -> tuple[dict[str, Answer], dict[str, Any] | None]:
    """The answers and the manifest of an arm that was asked all these questions before, else None for the manifest."""
    from dsa_verify.gates.arms.journal import Journal
    from dsa_verify.gates.arms.payload import body_of, payload_sha

    manifest = _manifest_of(header, _beside(arm))
    if manifest is None:
        return {}, None
    with Journal(arm.journal, arm.name, header) as journal:
        found = {q.key: journal.find(q, payload_sha(body_of(q, arm.endpoint))) for q in questions}
    answers = {key: answer for key, answer in found.items() if answer is not None}
    return answers, manifest if len(answers) == len(questions) else None


def _remembered(info: dict[str, Any], header: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The manifest, kept, with the highest count of sparse prefill that the same arm has shown: a server that was
    started again for a run that had little left to ask counts from 0."""
    count, old = info.get("sparse_prefill"), _manifest_of(header, path) or {}
    if count is not None:
        info = info | {"sparse_prefill": max(count, old.get("sparse_prefill") or 0)}
    path.write_text(json.dumps({"header": header, "manifest": info}))
    return info


def _manifest_of(header: Mapping[str, Any], path: Path) -> dict[str, Any] | None:
    """What an arm with this header showed of itself last, None if there is no such arm."""
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return kept["manifest"] if kept.get("header") == json.loads(json.dumps(header)) else None


def _beside(arm: "ServedArm | StartedArm") -> Path:
    """Where an arm's manifest is kept."""
    return arm.journal.with_suffix(".manifest.json")
