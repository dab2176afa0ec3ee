"""The gate's client: every question is answered, or missing for a named reason; a journal keeps what was paid for."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from dsa_verify.errors import ConfigError
from dsa_verify.gates.arms.journal import Journal
from dsa_verify.gates.arms.payload import Endpoint, Reply, body_of, payload_sha, read_reply
from dsa_verify.gates.records import Answer, Question

CONNECT_S = 10.0
"""Seconds for a connection alone; a server that is there takes it at once, however busy."""


def _nothing(answer: Answer) -> None:
    pass


async def answer_all(
    questions: Sequence[Question],
    endpoint: Endpoint,
    journal: Journal,
    on_answer: Callable[[Answer], None] = _nothing,
    concurrency: int = 1,
) -> dict[str, Answer]:
    """An `Answer` to every question by its key, in the questions' order; missing ones say why.

    What the journal has answered with the same prompt and payload is not asked again; what failed is. `on_answer` is
    called once for each question, those from the journal first. At most `concurrency` requests are under way.

    Raises `ConfigError` for two questions with one key, and for an endpoint that nothing listens at from the start.
    """
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}, expected at least 1")
    _demand_distinct(questions)
    bodies = {question.key: body_of(question, endpoint) for question in questions}
    found = {q.key: journal.find(q, payload_sha(bodies[q.key])) for q in questions}
    answers = {key: answer for key, answer in found.items() if answer is not None}
    for answer in answers.values():
        on_answer(answer)
    open_questions = iter([question for question in questions if question.key not in answers])

    async def work(asker: "_Asker", left: Iterator[Question]) -> None:
        for question in left:
            answer = await asker.ask(question, bodies[question.key])
            journal.write(answer)
            answers[question.key] = answer
            on_answer(answer)

    async with _connections(endpoint, concurrency) as http:
        asker = _Asker(http, endpoint)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work(asker, open_questions))
        except BaseExceptionGroup as several:
            raise several.exceptions[0] from None
    return {question.key: answers[question.key] for question in questions}


def _connections(endpoint: Endpoint, concurrency: int) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=concurrency)
    timeout = httpx.Timeout(None, connect=min(CONNECT_S, endpoint.timeout_s / 2))
    return httpx.AsyncClient(headers=endpoint.headers, limits=limits, timeout=timeout, trust_env=not endpoint.local)


def _demand_distinct(questions: Sequence[Question]) -> None:
    seen: set[str] = set()
    for question in questions:
        if question.key in seen:
            raise ConfigError(f"two questions have the key {question.key!r}; expected one of each")
        seen.add(question.key)


@dataclass
class _Asker:
    """Asks one question after another; remembers whether the server was ever reached, and since when it is away."""

    http: httpx.AsyncClient
    endpoint: Endpoint
    reached: bool = False
    away_since: float | None = None

    async def ask(self, question: Question, body: dict[str, Any]) -> Answer:
        """Tries until there is an answer, or no more attempt is due."""
        retry, started = self.endpoint.retry, time.monotonic()
        failures = counted = 0
        while True:
            reply = await self._attempt(question, body)
            if reply.reason is None or not reply.worth_retrying:
                break
            failures += 1
            counted += not reply.away
            wait = max(retry.wait_s(failures), reply.wait_s)
            # A server that is away keeps every question waiting: the patience is shared, not spent once a question.
            begun = min(started, self.away_since or started)
            if counted >= retry.attempts or time.monotonic() + wait > begun + retry.patience_s:
                break
            await asyncio.sleep(wait)
        return Answer(
            key=question.key,
            prompt_sha=question.prompt_sha,
            payload_sha=payload_sha(body),
            text=reply.text,
            reason=reply.reason,
            finish=reply.finish,
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            cached_tokens=reply.cached_tokens,
            seconds=round(time.monotonic() - started, 6),
        )

    async def _attempt(self, question: Question, body: dict[str, Any]) -> Reply:
        begun = time.monotonic()
        try:
            async with asyncio.timeout(self.endpoint.timeout_s):
                reply = await self._post(question, body)
        except TimeoutError:
            self.reached, reply = True, Reply(reason="timeout")
        if not reply.away:
            self.away_since = None
        elif self.away_since is None:
            self.away_since = begun
        return reply

    async def _post(self, question: Question, body: dict[str, Any]) -> Reply:
        # Our own bytes: every character is escaped, so no text is beyond what can be sent.
        content, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        try:
            response = await self.http.post(self.endpoint.address, content=content, headers=headers)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if not self.reached:
                raise ConfigError(
                    f"nothing answers at {self.endpoint.root} ({_text(error)}); start the server, or correct the URL"
                ) from None
            return Reply(reason="connection")
        except httpx.DecodingError:
            self.reached = True
            return Reply(reason="bad_json")
        except httpx.RequestError:
            self.reached = True
            return Reply(reason="connection")
        self.reached = True
        if response.status_code != 200:
            return Reply(reason=f"http_{response.status_code}", wait_s=_retry_after(response))
        return read_reply(response.content, self.endpoint.api, question.max_tokens)


def _text(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _retry_after(response: httpx.Response) -> float:
    """Seconds that the server asks to wait, given as a number or a date; 0 where it says nothing that parses."""
    text = response.headers.get("retry-after", "")
    try:
        return max(float(text), 0.0) if text.strip()[:1].isdigit() else max(_until(text), 0.0)
    except (ValueError, TypeError):
        return 0.0


def _until(date: str) -> float:
    then = parsedate_to_datetime(date)
    return (then.replace(tzinfo=then.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
