"""What the gate sends for a question, and what a response is: an answer that counts, or a named reason why not."""

import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from dsa_verify.errors import ConfigError
from dsa_verify.gates.options import GateOptions
from dsa_verify.gates.records import Question, sha

COUNTED = ("stop", "length")
"""Finish reasons of an answer that counts."""
_PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_AGAIN = frozenset({"http_408", "http_409", "http_425", "http_429"})
_AWAY = frozenset({"connection", "http_429", "http_502", "http_503"})


@dataclass(frozen=True)
class Retry:
    """How long a client tries; all times in seconds.

    attempts: of a question; those in which the server was away (no connection, 429, 502, 503) are not counted, for such
    a server is waited for. The wait doubles from `first_wait_s` to `longest_wait_s`, and is never shorter than the
    server's Retry-After. patience_s: no attempt starts later than this after the question's first one, or after the
    server went away.
    """

    attempts: int = 5
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    patience_s: float = GateOptions.patience

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.first_wait_s < 0 or self.longest_wait_s < 0 or self.patience_s < 0:
            raise ConfigError(f"{self}: expected at least 1 attempt and no negative times")

    def wait_s(self, failures: int) -> float:
        """Seconds between failure number `failures` (from 1) and the next attempt."""
        return min(self.first_wait_s * 2.0 ** min(failures - 1, 32), self.longest_wait_s)


@dataclass(frozen=True)
class Endpoint:
    """Where an arm's answers come from.

    url: of the server, with or without `/v1` behind it. api: `completions` sends the text as it is, `chat` as one user
    message. timeout_s: for one attempt, from its start to the last byte. token: sent as a bearer token, never written.
    """

    url: str
    model: str
    api: Literal["completions", "chat"] = GateOptions.api
    seed: int = 0
    timeout_s: float = GateOptions.timeout
    retry: Retry = Retry()
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.api not in _PATHS:
            raise ConfigError(f"api is {self.api!r}, expected {' or '.join(map(repr, _PATHS))}")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout_s is {self.timeout_s}, expected more than 0")
        try:
            parts = urlsplit(self.url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise ConfigError(f"{self.url!r} is no URL of a server, expected one as in http://127.0.0.1:8000")

    @property
    def root(self) -> str:
        """The server's URL without `/v1`."""
        return self.url.rstrip("/").removesuffix("/v1").rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """What shows a server who asks."""
        return {"authorization": f"Bearer {self.token}"} if self.token else {}

    @property
    def address(self) -> str:
        """The URL that questions are posted to."""
        return self.root + _PATHS[self.api]

    @property
    def local(self) -> bool:
        """Whether the server is this machine, so that no proxy of the environment stands between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


@dataclass(frozen=True)
class Reply:
    """What one attempt came to; the fields are those of `records.Answer`. wait_s: the server's Retry-After."""

    text: str | None = None
    reason: str | None = None
    finish: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    wait_s: float = 0.0

    @property
    def away(self) -> bool:
        """Whether the server was not there to answer, which says nothing about the question."""
        return self.reason in _AWAY

    @property
    def worth_retrying(self) -> bool:
        """Whether another attempt may end otherwise: after anything but a refusal of the request itself (4xx, 3xx)."""
        reason = self.reason or ""
        return reason in _AGAIN or not re.fullmatch(r"http_[1-4]\d\d", reason)


def body_of(question: Question, endpoint: Endpoint) -> dict[str, Any]:
    """The request body: greedy, with seed, stop texts and limit spelled out, the prompt as text."""
    if endpoint.api == "chat":
        prompt = {"messages": [{"role": "user", "content": question.prompt}]}
    else:
        prompt = {"prompt": question.prompt}
    return {
        "model": endpoint.model,
        **prompt,
        "max_tokens": question.max_tokens,
        "temperature": 0,
        "top_p": 1,
        "seed": endpoint.seed,
        "stop": list(question.stop),
    }


def payload_sha(body: Mapping[str, Any]) -> str:
    """Hex SHA-256 of a request body without the model's name, in which alone two arms may differ."""
    return sha(json.dumps({name: value for name, value in body.items() if name != "model"}, sort_keys=True))


def read_reply(content: bytes, api: str, max_tokens: int) -> Reply:
    """What the body of a response with status 200 is.

    Counts that make no sense are a reason of their own: a prompt of unknown length cannot be compared with the other
    arm's, and an answer beyond `max_tokens` was made under another limit.
    """
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return Reply(reason="bad_json")
    if not isinstance(body, dict):
        return Reply(reason="bad_json")
    if body.get("error") is not None:
        return Reply(reason="error_object")
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return Reply(reason="empty_choices")
    if len(choices) > 1:
        return Reply(reason="many_choices")
    text, finish = _text(choices[0], api), _name(choices[0].get("finish_reason"))
    counts = _counts(body.get("usage"))
    reason = _reason(text, finish, counts, max_tokens)
    prompt, completion, cached = (count if _is_count(count) else None for count in counts)
    return Reply(None if reason else text, reason, finish, prompt, completion, cached)


def _text(choice: Mapping[str, Any], api: str) -> str | None:
    holder = choice.get("message") if api == "chat" else choice
    text = holder.get("content" if api == "chat" else "text") if isinstance(holder, dict) else None
    return text if isinstance(text, str) else None


def _name(finish: Any) -> str:
    """A finish reason as a part of a name."""
    return re.sub(r"\W+", "_", str(finish))[:32] if finish is not None else "null"


def _counts(usage: Any) -> tuple[Any, Any, Any]:
    """Prompt, completion and cached tokens as stated, None where nothing is."""
    usage = usage if isinstance(usage, dict) else {}
    details = usage.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return usage.get("prompt_tokens"), usage.get("completion_tokens"), cached


def _reason(text: str | None, finish: str, counts: tuple[Any, Any, Any], max_tokens: int) -> str | None:
    prompt, completion, cached = counts
    if finish not in COUNTED:
        return f"finish_{finish}"
    if text is None or (text == "" and (finish != "stop" or completion is None)):
        return "null_text"
    if (
        not _is_count(prompt)
        or prompt < 1
        or not all(value is None or _is_count(value) for value in (completion, cached))
    ):
        return "wrong_token_count"
    if completion is not None and completion > max_tokens:
        return "wrong_token_count"
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
