"""Engine: takes requests, runs a model step by step, and yields events; no setting may change an answer."""

from collections.abc import Iterable, Iterator

import numpy as np

from dsa_verify.engine.engine_config import EngineConfig
from dsa_verify.engine.events import Event, Finished, Report, Token
from dsa_verify.engine.invariants import problems
from dsa_verify.engine.packing import pack
from dsa_verify.engine.request import GenerationRequest, Sequence
from dsa_verify.engine.sampling import pick
from dsa_verify.engine.scheduler import Scheduler
from dsa_verify.engine.step import Runner, Step
from dsa_verify.errors import EngineError, RequestError


class Engine:
    """Continuous batching over one runner, whose caches nobody else may touch. It is not thread-safe.

    A server calls `submit` and `abort` between steps, and sends on what `step` or `stream` yields. Finished requests
    are forgotten, so an engine can run forever.
    """

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self.runner, self.config = runner, config
        self.scheduler = Scheduler(config, runner.page_size, runner.pool_pages)
        self.report = Report()
        self._sequences: dict[int, Sequence] = {}
        self._submitted = 0

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do or to say."""
        return bool(self._sequences or self.scheduler.events)

    def submit(self, request: GenerationRequest) -> int:
        """Takes a request; its number, which events carry. Raises `RequestError` for one that can never be served."""
        self._demand_possible(request)
        number, self._submitted = self._submitted, self._submitted + 1
        seq = Sequence(number, request, max(request.arrival, self.scheduler.clock), list(request.prompt))
        self._sequences[number] = seq
        self.scheduler.add(seq)
        return number

    def abort(self, number: int) -> bool:
        """Ends a request now and frees its pages; False when it has ended already."""
        seq = self._sequences.get(number)
        if seq is None:
            return False
        self.scheduler.drop(seq)
        self._end(seq, "abort")
        return True

    def step(self) -> list[Event]:
        """One step: plans it, runs the model unless there is nothing to compute, and says what happened."""
        plan = self.scheduler.plan()
        if plan:
            step = self._pack(plan)
            logits = self._run(step)
            self.report = self.report.after_step(step)
            for row, (seq, count) in enumerate(plan):
                self._advance(seq, count, logits[row])
        self.scheduler.clock += 1
        events, self.scheduler.events = self.scheduler.events, []
        self.report = self.report.after_events(events)
        return events

    def stream(self) -> Iterator[Event]:
        """Events until nothing is left to do; requests may be submitted and aborted meanwhile."""
        while self.busy:
            yield from self.step()

    def generate(self, requests: Iterable[GenerationRequest]) -> list[Finished]:
        """Submits requests, runs until nothing is left to do, and gives their ends in order."""
        numbers = [self.submit(request) for request in requests]
        ends = {event.request: event for event in self.stream() if isinstance(event, Finished)}
        return [ends[number] for number in numbers]

    def check(self) -> None:
        """Raises `EngineError` when pages, prefix cache and sequences contradict each other."""
        for problem in problems(self.scheduler):
            raise EngineError(f"inconsistent engine: {problem}")

    def _pack(self, plan: list[tuple[Sequence, int]]) -> Step:
        shape = self.config.shape_for([count for _, count in plan])
        rows = [seq.row(count) for seq, count in plan]
        return pack(rows, shape, self.runner.page_size, self.config.pages_per_seq)

    def _run(self, step: Step) -> np.ndarray:
        logits = np.asarray(self.runner.run(step))
        if logits.shape != (step.seqs, self.runner.vocab_size):
            raise EngineError(
                f"the runner returned logits {list(logits.shape)}, expected {[step.seqs, self.runner.vocab_size]}"
            )
        for seq in np.flatnonzero(step.kv_lens):
            if not np.isfinite(logits[seq]).all():
                raise EngineError(f"the runner returned logits that are not finite for sequence {seq} of the step")
        return logits

    def _advance(self, seq: Sequence, count: int, logits: np.ndarray) -> None:
        """Takes over what a step computed for a sequence: its next token, once none is pending."""
        seq.computed += count
        if seq.pending:
            return
        if seq.prefilling:
            self.scheduler.publish(seq)
            seq.prefilling = False
        position = len(seq.tokens)
        chosen = pick(logits, seq.request.sampling, position)
        seq.tokens.append(chosen.token)
        seq.gaps.append(chosen.gap)
        self._say(Token(self.scheduler.clock, seq.number, position, chosen.token, chosen.gap))
        if reason := seq.finish_reason:
            self.scheduler.finish(seq)
            self._end(seq, reason)

    def _end(self, seq: Sequence, reason: str) -> None:
        del self._sequences[seq.number]
        self._say(Finished(self.scheduler.clock, seq.number, reason, seq.answer, tuple(seq.gaps)))

    def _say(self, event: Event) -> None:
        self.scheduler.events.append(event)

    def _demand_possible(self, request: GenerationRequest) -> None:
        needed = request.pages(self.runner.page_size)
        most = min(self.config.pages_per_seq, self.scheduler.pool.size)
        if needed > most:
            raise RequestError(
                f"a prompt of {len(request.prompt)} tokens with {request.max_new_tokens} new ones needs {needed} pages "
                f"of {self.runner.page_size}, but a request can have at most {most}: pages_per_seq is "
                f"{self.config.pages_per_seq}, and the pool has {self.scheduler.pool.size} pages"
            )
        strange = [token for token in request.prompt if not 0 <= token < self.runner.vocab_size]
        if strange:
            raise RequestError(f"prompt tokens {strange} are not in the vocabulary of {self.runner.vocab_size}")
