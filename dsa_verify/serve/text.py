"""Tokens -> text as it may be sent on: stop texts end an answer and are no part of it, half characters wait."""

from collections.abc import Sequence
from typing import Protocol

_HALF = "\ufffd"
"""What a tokenizer shows for bytes that are no whole character yet."""


class Tokenizer(Protocol):
    """Text to tokens and back, for one request: what an answer reads like must not depend on other requests."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class Writer:
    """The text of one answer, token by token."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.tokens: list[int] = []
        self.stopped = False
        """A stop text has come; the answer ends before it."""
        self._text, self._sent = "", 0

    def add(self, token: int) -> str:
        """The text that is certain since the last call: no stop text can begin in it any more."""
        self.tokens.append(token)
        self._text = self.tokenizer.decode(self.tokens)
        found = [at for stop in self.stops if (at := self._text.find(stop)) >= 0]
        self.stopped = bool(found)
        return self._up_to(min(found) if found else len(self._text) - self._held())

    def rest(self) -> str:
        """What was held back, once no token will come."""
        return self._up_to(len(self._text))

    def _up_to(self, end: int) -> str:
        begin, self._sent = self._sent, max(self._sent, end)
        return self._text[begin : self._sent]

    def _held(self) -> int:
        """Characters at the end that may be the beginning of a stop text, or of a character."""
        longest = max((len(stop) - 1 for stop in self.stops), default=0)
        for count in range(min(longest, len(self._text)), 0, -1):
            if any(stop.startswith(self._text[-count:]) for stop in self.stops):
                return count
        return len(self._text) - len(self._text.rstrip(_HALF))
