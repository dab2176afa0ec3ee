"""OpenAI's request and response bodies: what of them is understood, what is refused, and how answers look."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from dsa_verify.engine import GenerationRequest, Sampling
from dsa_verify.errors import RequestError
from dsa_verify.serve.text import Tokenizer

DEFAULT_MAX_TOKENS = 16
"""Of a completion that does not say; a chat answer may fill the context."""
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,), "best_of": (1,), "echo": (False,), "logprobs": (False,), "top_logprobs": (), "suffix": (),
    "presence_penalty": (0, 0.0), "frequency_penalty": (0, 0.0), "logit_bias": ({},), "tools": ([],),
    "tool_choice": ("none",), "response_format": ({"type": "text"},), "ignore_eos": (False,), "min_tokens": (0,),
}  # fmt: skip
"""Fields that are not supported, and the values (beside null) that ask for nothing."""


class Refusal(RequestError):
    """A request that gets an error object instead of an answer."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None) -> None:
        super().__init__(message)
        self.param, self.status, self.code = param, status, code


@dataclass(frozen=True)
class Asked:
    """A request body, understood. tokenizer: the one that read the prompt, and shows the answer."""

    request: GenerationRequest
    stops: tuple[str, ...]
    stream: bool
    stream_usage: bool
    tokenizer: Tokenizer


@dataclass(frozen=True)
class Reader:
    """Reads request bodies for one model. chat: bodies of the chat API."""

    model: str
    context_length: int
    vocab_size: int
    stop: tuple[int, ...]
    tokenizer: Callable[[], Tokenizer]
    chat: bool = False

    def read(self, content: bytes) -> Asked:
        """Raises `Refusal`, or `RequestError` for settings that the engine refuses."""
        body = _object(content)
        if body.get("model") not in (None, self.model):
            raise Refusal(f"the model {body['model']!r} is not served; this is {self.model!r}", "model", 404,
                          "model_not_found")  # fmt: skip
        for name, neutral in _NEUTRAL.items():
            if not any(type(body.get(name)) is type(value) and body.get(name) == value for value in (None, *neutral)):
                raise Refusal(f"{name} is {body[name]!r}, which is not supported; leave it out", name)
        tokenizer = self.tokenizer()
        prompt = self._prompt(body, tokenizer)
        room = self.context_length - len(prompt)
        max_tokens = self._max_tokens(body, room)
        if max_tokens > room:
            raise Refusal(
                f"This model's maximum context length is {self.context_length} tokens, but {len(prompt)} tokens of the "
                f"prompt and {max_tokens} of the answer were asked for.",
                "messages" if self.chat else "prompt", code="context_length_exceeded",
            )  # fmt: skip
        options = _typed(body, "stream_options", dict) or {}
        return Asked(
            GenerationRequest(tuple(prompt), max_tokens, _sampling(body), self.stop),
            _stops(body.get("stop")),
            bool(_typed(body, "stream", bool)),
            bool(options.get("include_usage")),
            tokenizer,
        )

    def _prompt(self, body: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
        if self.chat:
            return tokenizer.encode(_chat_text(body.get("messages")))
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
            prompt = prompt[0]
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        if isinstance(prompt, list) and all(_is_int(token) and 0 <= token < self.vocab_size for token in prompt):
            return prompt
        raise Refusal(f"prompt must be one text, or a list of tokens from 0 to {self.vocab_size - 1}", "prompt")

    def _max_tokens(self, body: Mapping[str, Any], room: int) -> int:
        for name in ("max_completion_tokens", "max_tokens"):
            value = body.get(name)
            if value is not None:
                if not _is_int(value) or value < 1:
                    raise Refusal(f"{name} is {value!r}, expected a whole number of at least 1", name)
                return value
        return max(room, 1) if self.chat else DEFAULT_MAX_TOKENS


def _object(content: bytes) -> dict[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Refusal(f"the body is not JSON ({error})") from None
    if not isinstance(body, dict):
        raise Refusal(f"the body holds a {type(body).__name__}, expected an object")
    return body


def _chat_text(messages: Any) -> str:
    """Contents of messages, one a line: the built-in model knows no roles."""
    if not isinstance(messages, list) or not messages or not all(isinstance(one, dict) for one in messages):
        raise Refusal("messages must be a list of at least one object with role and content", "messages")
    texts = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        for part in parts:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise Refusal("the content of a message must be a text, or a list of parts of type text", "messages")
            texts.append(part["text"])
    return "\n".join(texts)


def _sampling(body: Mapping[str, Any]) -> Sampling:
    seed = body.get("seed")
    if seed is not None and not _is_int(seed):
        raise Refusal(f"seed is {seed!r}, expected a whole number", "seed")
    return Sampling(_number(body, "temperature"), _number(body, "top_p"), seed or 0)


def _number(body: Mapping[str, Any], name: str) -> float:
    """A setting whose default is 1, as OpenAI has it."""
    value = body.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float | None):
        raise Refusal(f"{name} is {value!r}, expected a number", name)
    return 1.0 if value is None else float(value)


def _stops(stop: Any) -> tuple[str, ...]:
    stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
    if not isinstance(stops, list) or not all(isinstance(one, str) and one for one in stops):
        raise Refusal(f"stop is {stop!r}, expected a text or a list of texts, none empty", "stop")
    return tuple(stops)


def _typed(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and not isinstance(value, kind):
        raise Refusal(f"{name} is {value!r}, expected a {kind.__name__}", name)
    return value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def error_object(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error body."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


@dataclass(frozen=True)
class Piece:
    """Text that an answer goes on with; `finish` (`stop`, `length`, `abort`) with the last one. Counts so far."""

    text: str
    finish: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int

    @property
    def usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True)
class Answering:
    """Bodies of the answer to one request."""

    number: str
    model: str
    chat: bool
    created: int

    @classmethod
    def new(cls, number: str, model: str, chat: bool) -> "Answering":
        return cls(f"{'chatcmpl' if chat else 'cmpl'}-{number}", model, chat, int(time.time()))

    def whole(self, text: str, last: Piece) -> dict[str, Any]:
        """The body of a response that is not streamed."""
        content = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": last.finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": last.usage}

    def chunk(self, piece: Piece) -> dict[str, Any]:
        """One event of a stream."""
        content = {"delta": {"role": "assistant", "content": piece.text}} if self.chat else {"text": piece.text}
        choice = {"index": 0, **content, "logprobs": None, "finish_reason": piece.finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage(self, last: Piece) -> dict[str, Any]:
        """The event with the counts, where they were asked for."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": last.usage}

    def _head(self, kind: str) -> dict[str, Any]:
        kind = kind if self.chat else "text_completion"
        return {"id": self.number, "object": kind, "created": self.created, "model": self.model}
