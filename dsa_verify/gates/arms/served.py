"""Arms behind an OpenAI-compatible endpoint: a server that runs already, or one started for the arm; with a journal."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsa_verify.gates.arms.arm import OnAnswer
from dsa_verify.gates.arms.payload import Endpoint
from dsa_verify.gates.arms.server_info import server_info, with_model
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.records import Answer, Question

if TYPE_CHECKING:  # it imports httpx, a package that may be absent
    from dsa_verify.gates.arms.server_command import ServerCommand


@dataclass
class JournaledArm:
    """What arms with an endpoint share: their answers are kept in a journal, their manifest in a file beside it.

    concurrency: requests under way at once. data_sha: of the questions of the run.
    """

    name: str
    endpoint: Endpoint
    journal: Path
    concurrency: int = GateOptions.concurrency
    data_sha: str = ""
    _manifest: dict[str, Any] = field(default_factory=dict)

    def manifest(self) -> dict[str, Any]:
        """What the server said of itself after the last question."""
        return self._manifest

    def _ask(
        self, endpoint: Endpoint, header: Mapping[str, Any], questions: Sequence[Question], on_answer: OnAnswer
    ) -> dict[str, Answer]:
        """Answers from the journal, the others from the server, whose manifest is then kept."""
        from dsa_verify.gates.arms.client import answer_all
        from dsa_verify.gates.arms.journal import Journal

        with Journal(self.journal, self.name, header) as journal:
            answers = asyncio.run(answer_all(questions, endpoint, journal, on_answer, self.concurrency))
            self._manifest = self._keep(server_info(endpoint) | {"served_model": endpoint.model}, header)
        return answers

    def _keep(self, info: dict[str, Any], header: Mapping[str, Any]) -> dict[str, Any]:
        """The manifest, kept, with the highest count of sparse prefill that the same arm has shown: a server that was
        started again for a run that had little left to ask counts from 0."""
        count, old = info.get("sparse_prefill"), self._kept(header) or {}
        if count is not None:
            info = info | {"sparse_prefill": max(count, old.get("sparse_prefill") or 0)}
        self._beside.write_text(json.dumps({"header": header, "manifest": info}))
        return info

    def _kept(self, header: Mapping[str, Any]) -> dict[str, Any] | None:
        """What an arm with this header showed of itself last, None if there is no such arm."""
        try:
            kept = json.loads(self._beside.read_text())
        except (OSError, ValueError):
            return None
        return kept["manifest"] if kept.get("header") == json.loads(json.dumps(header)) else None

    @property
    def _beside(self) -> Path:
        """Where the manifest is kept."""
        return self.journal.with_suffix(".manifest.json")


@dataclass
class ServedArm(JournaledArm):
    """A server that is running already."""

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        """As `Arm.answer`."""
        to = self.endpoint
        header = {
            "url": to.root, "model": to.model, "api": to.api, "data": self.data_sha,
            # A server that was started again otherwise must not go on in the journal of the first.
            "environment": server_info(to).get("environment"),
        }  # fmt: skip
        return self._ask(to, header, questions, on_answer)


@dataclass
class StartedArm(JournaledArm):
    """A server that the gate starts for this arm, and stops again.

    endpoint: its URL is that of the server once it runs. The server is not started where the journal holds every answer
    already.
    """

    server: "ServerCommand" = field(kw_only=True)

    def answer(self, questions: Sequence[Question], on_answer: OnAnswer) -> dict[str, Answer]:
        """As `Arm.answer`."""
        header = {"command": self.server.command, "environment": dict(self.server.environment), "data": self.data_sha}
        answers = self._answered(header, questions)
        if answers is None:
            with self._running() as endpoint:
                answers = self._ask(endpoint, header, questions, on_answer)
        else:
            for answer in answers.values():
                on_answer(answer)
        self._manifest = self._manifest | {"command": self.server.command}
        return answers

    def _answered(self, header: Mapping[str, Any], questions: Sequence[Question]) -> dict[str, Answer] | None:
        """The answers of an arm that was asked all these questions before, else None; takes its manifest over."""
        from dsa_verify.gates.arms.journal import Journal
        from dsa_verify.gates.arms.payload import body_of, payload_sha

        manifest = self._kept(header)
        if manifest is None:
            return None
        with Journal(self.journal, self.name, header) as journal:
            found = {q.key: journal.find(q, payload_sha(body_of(q, self.endpoint))) for q in questions}
        answers = {key: answer for key, answer in found.items() if answer is not None}
        if len(answers) < len(questions):
            return None
        self._manifest = manifest
        return answers

    @contextmanager
    def _running(self) -> Iterator[Endpoint]:
        from dsa_verify.gates.arms.server_command import running

        with running(self.server, self.journal.with_suffix(".server.log")) as url:
            yield with_model(dataclasses.replace(self.endpoint, url=url))
