"""Scheduler: who runs in the next step, with how many tokens, and on which pages.

Requests are admitted in order of arrival and preempted in the reverse, so whoever runs is older than whoever waits.
The oldest is preempted by nobody, for alone it fits in the pool: it always advances, so every request ends.
"""

from bisect import insort
from operator import attrgetter

from dsa_verify.batch.requests import page_count
from dsa_verify.engine.engine_config import EngineConfig
from dsa_verify.engine.events import Admitted, Event, Evicted, Preempted, Queued
from dsa_verify.engine.pool import PagePool
from dsa_verify.engine.radix import RadixCache
from dsa_verify.engine.request import Sequence

Plan = list[tuple[Sequence, int]]
"""Sequences of a step, and how many tokens each computes."""


class Scheduler:
    """Waiting and running sequences, both oldest first, and the pages between them."""

    def __init__(self, config: EngineConfig, page_size: int, pool_pages: int) -> None:
        self.config, self.page_size = config, page_size
        self.pool = PagePool(pool_pages, config.page_seed)
        self.cache = RadixCache(self.pool, page_size)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.clock = 0
        self.events: list[Event] = []

    def add(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=attrgetter("age"))

    def plan(self) -> Plan:
        """The next step; every sequence in it has the pages for its tokens."""
        if self.config.mixed:
            # Decodes take their pages first: nobody is admitted only to be preempted in the same step.
            decodes = self._decodes()
            self._admit()
            return decodes + self._chunks()
        self._admit()
        return self._chunks() or self._decodes()

    def publish(self, seq: Sequence) -> None:
        """Offers the whole pages that a sequence has computed to later requests."""
        if self.config.prefix_cache:
            seq.pages = self.cache.insert(seq.tokens[: seq.computed], seq.pages)

    def finish(self, seq: Sequence) -> None:
        self.publish(seq)
        self.drop(seq)

    def drop(self, seq: Sequence) -> None:
        """Forgets a sequence, wherever it is, and gives its pages back."""
        (self.running if seq in self.running else self.waiting).remove(seq)
        self.pool.release(seq.pages)

    def _decodes(self) -> Plan:
        """Everyone with one token to compute, which may be the last of a prompt, oldest first."""
        decoding = [seq for seq in self.running if seq.pending == 1]
        return [(seq, 1) for seq in decoding if seq in self.running and self._grow(seq)]

    def _chunks(self) -> Plan:
        """Chunks of whoever has more than one token to compute, oldest first, within the budget.

        A last crumb of the budget is left alone: one token of a prompt among chunks would look like a decode.
        """
        plan: Plan = []
        budget = self.config.chunk_tokens
        for seq in self.running:
            count = min(seq.pending, budget)
            if seq.pending > 1 and (count > 1 or (count == 1 and not plan)):
                plan.append((seq, count))
                budget -= count
        return plan

    def _grow(self, seq: Sequence) -> bool:
        """Sees to a page for the next token: evicts, then preempts the youngest. False when that was `seq` itself."""
        if seq.computed < len(seq.pages) * self.page_size:
            return True
        while not self._make_room(1):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
        seq.pages += self.pool.allocate(1)
        return True

    def _admit(self) -> None:
        """Lets the oldest who wait run, until one of them has to go on waiting; nobody overtakes."""
        while self.waiting and self.waiting[0].arrival <= self.clock:
            seq = self.waiting[0]
            if len(self.running) == self.config.max_running:
                return self._refuse(seq, "running", 1, 0)
            if not self._map(seq):
                return
            self.running.append(self.waiting.pop(0))

    def _map(self, seq: Sequence) -> bool:
        """Maps pages for all tokens of a sequence, first those of a cached prefix; False when there are too few."""
        hit = self.cache.match(seq.tokens) if self.config.prefix_cache else []
        # Referred to before anything is evicted, or the hit itself could be.
        self.pool.share(hit)
        wanted = page_count(len(seq.tokens), self.page_size) - len(hit)
        if not self._make_room(wanted):
            self._refuse(seq, "pages", wanted, self.pool.free + self.cache.evictable)
            self.pool.release(hit)
            return False
        seq.pages = hit + self.pool.allocate(wanted)
        seq.computed = len(hit) * self.page_size
        self.events.append(Admitted(self.clock, seq.number, len(seq.pages), seq.computed))
        return True

    def _make_room(self, pages: int) -> bool:
        """Whether so many pages are free, after eviction if need be; nothing is evicted in vain."""
        short = pages - self.pool.free
        if short > 0 and self.cache.evictable >= short:
            self.events.append(Evicted(self.clock, self.cache.evict(short)))
        return self.pool.free >= pages

    def _preempt(self, seq: Sequence) -> None:
        self.events.append(Preempted(self.clock, seq.number, len(seq.pages)))
        self.drop(seq)
        seq.restart()
        self.add(seq)

    def _refuse(self, seq: Sequence, reason: str, needed: int, available: int) -> None:
        if not seq.refused:
            self.events.append(Queued(self.clock, seq.number, reason, needed, available))
        seq.refused = True
