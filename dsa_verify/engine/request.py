"""What is asked of the engine, and how far it has come: GenerationRequest and Sequence."""

from dataclasses import dataclass, field

from dsa_verify.batch.requests import page_count
from dsa_verify.engine.packing import Row
from dsa_verify.engine.sampling import Sampling
from dsa_verify.errors import RequestError


@dataclass(frozen=True)
class GenerationRequest:
    """A prompt to continue. It ends with a token of `stop`, which is part of the answer, or after `max_new_tokens`.

    `arrival` is the step before which the engine does not see it.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop: tuple[int, ...] = ()
    arrival: int = 0

    def __post_init__(self) -> None:
        if not self.prompt or self.max_new_tokens < 1:
            raise RequestError(
                f"{len(self.prompt)} prompt tokens, max_new_tokens {self.max_new_tokens}: expected at least 1 of each"
            )

    def pages(self, page_size: int) -> int:
        """Pages at its longest; the last token of an answer is never fed back, so it takes no slot."""
        return page_count(len(self.prompt) + self.max_new_tokens - 1, page_size)


@dataclass(eq=False)
class Sequence:
    """A request on its way. The first `computed` of its tokens, prompt and answer, have their rows in the cache."""

    number: int
    request: GenerationRequest
    arrival: int
    tokens: list[int]
    gaps: list[float | None] = field(default_factory=list)
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    prefilling: bool = True
    """Its prompt, or after a preemption its tokens so far, are not all computed yet."""
    refused: bool = False
    """It is known to wait; said once in the events."""

    @property
    def age(self) -> tuple[int, int]:
        """Orders sequences, the oldest first."""
        return self.arrival, self.number

    @property
    def pending(self) -> int:
        """Tokens still to compute before the next one can be chosen; 1 when it decodes."""
        return len(self.tokens) - self.computed

    @property
    def answer(self) -> tuple[int, ...]:
        return tuple(self.tokens[len(self.request.prompt) :])

    @property
    def finish_reason(self) -> str | None:
        """Why its answer is complete, or None while it is not."""
        if self.answer and self.answer[-1] in self.request.stop:
            return "stop"
        return "length" if len(self.answer) == self.request.max_new_tokens else None

    def row(self, count: int) -> Row:
        """Its next `count` tokens as a share of a step."""
        return Row(tuple(self.tokens[self.computed : self.computed + count]), self.computed, tuple(self.pages))

    def restart(self) -> None:
        """Gives up what is computed; its tokens stay."""
        self.computed, self.pages, self.prefilling, self.refused = 0, [], True, False
