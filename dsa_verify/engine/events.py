"""What an engine says while it works, in order: decisions, tokens, ends; and the counts that they add up to."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dsa_verify.engine.step import Step


@dataclass(frozen=True)
class Queued:
    """A request has to wait for `needed` of what `reason` names: `pages`, or `running` for a place among those."""

    step: int
    request: int
    reason: str
    needed: int
    available: int


@dataclass(frozen=True)
class Admitted:
    """A request runs from now on; its first `hit_tokens` were found in the prefix cache."""

    step: int
    request: int
    pages: int
    hit_tokens: int


@dataclass(frozen=True)
class Evicted:
    """The prefix cache gave up pages."""

    step: int
    pages: int


@dataclass(frozen=True)
class Preempted:
    """A request gave up its pages to an older one; it will compute its tokens again, and none is lost."""

    step: int
    request: int
    pages: int


@dataclass(frozen=True)
class Token:
    """A request's next token; `gap` as in `Pick`: a caller may excuse another token where it is small."""

    step: int
    request: int
    position: int
    token: int
    gap: float | None


@dataclass(frozen=True)
class Finished:
    """A request is done, for `reason` `stop`, `length` or `abort`; `tokens` is its whole answer."""

    step: int
    request: int
    reason: str
    tokens: tuple[int, ...]
    gaps: tuple[float | None, ...]


Event = Queued | Admitted | Evicted | Preempted | Token | Finished


@dataclass(frozen=True)
class Report:
    """What an engine has done so far."""

    decode_steps: int = 0
    extend_steps: int = 0
    mixed_steps: int = 0
    computed_tokens: int = 0
    hit_tokens: int = 0
    evicted_pages: int = 0
    preemptions: int = 0

    def after_step(self, step: Step) -> "Report":
        steps = f"{step.mode}_steps"
        counts = {steps: getattr(self, steps) + 1}
        return replace(self, computed_tokens=self.computed_tokens + int((step.positions >= 0).sum()), **counts)

    def after_events(self, events: Iterable[Event]) -> "Report":
        report = self
        for event in events:
            match event:
                case Admitted():
                    report = replace(report, hit_tokens=report.hit_tokens + event.hit_tokens)
                case Evicted():
                    report = replace(report, evicted_pages=report.evicted_pages + event.pages)
                case Preempted():
                    report = replace(report, preemptions=report.preemptions + 1)
        return report
