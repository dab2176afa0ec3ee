"""Plays one workload through the real decoder under one wiring and judges it by four checks."""

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dsa_verify.batch.ragged import slots_of
from dsa_verify.engine import Engine, EngineConfig, Step
from dsa_verify.errors import EngineError
from dsa_verify.system.wirings import Wiring
from dsa_verify.system.workloads import Played, Workload, Wrong, demand_streamed, demand_whole_pool, play

if TYPE_CHECKING:
    from dsa_verify.model.model_config import ModelConfig

CHECKS = {
    "engine": "the engine contradicts itself or leaks pages, a request is stuck or loses tokens, a kernel breaks",
    "paths": "a layer ran another path than its configuration asks for",
    "cache writes": "a new row was not written to the latent or index cache of every layer, or something else was",
    "answers": "logits are not those of the float64 reference for the request alone, each token by its own path",
}
"""What each check rejects."""
UNWRITTEN, EXTENDED, DECODED = -1, 0, 1


@dataclass(frozen=True)
class Look:
    """A request at the moment its next token is chosen: its tokens, how each was computed, and the logits."""

    request: int
    tokens: np.ndarray
    how: np.ndarray
    logits: np.ndarray


class Watched(Engine):
    """An engine that remembers by which mode every slot of the pool was computed, and every moment of choice."""

    def __init__(self, runner, config: EngineConfig) -> None:
        super().__init__(runner, config)
        self.how = np.full(runner.pool_pages * runner.page_size, UNWRITTEN, np.int8)
        self.looks: list[Look] = []

    def _run(self, step: Step) -> np.ndarray:
        here = step.out_cache_loc[step.out_cache_loc >= 0]
        self.how[here] = DECODED if step.mode == "decode" else EXTENDED
        return super()._run(step)

    def _advance(self, seq, count: int, logits: np.ndarray) -> None:
        if seq.pending == count:
            slots = slots_of(np.array(seq.pages), len(seq.tokens), self.runner.page_size)
            self.looks.append(Look(seq.number, np.array(seq.tokens), self.how[slots], logits.copy()))
        super()._advance(seq, count, logits)


@dataclass
class Judged:
    """rejected: reasons by check. modes: steps by mode. looks: moments of choice that were compared; excused: of those,
    how many differ where a choice hung on rounding. budget: the largest that a logit had.
    """

    rejected: dict[str, str] = field(default_factory=dict)
    played: Played | None = None
    looks: int = 0
    excused: int = 0
    budget: float = 0.0
    modes: Counter[str] = field(default_factory=Counter)


def judged(wiring: Wiring, work: Workload) -> Judged:
    """A workload under a wiring."""
    found, runner = Judged(), wiring.runner(work.pool_pages)
    engine = Watched(runner, work.config)
    try:
        with wiring.running() as watched:
            found.played = play(work, engine)
        if watched is not None and watched.findings:
            found.rejected["engine"] = f"a kernel under the watched interpreter: {watched.findings[0]}"
        demand_streamed(work, found.played)
        demand_whole_pool(found.played)
    except (Wrong, EngineError) as error:
        found.rejected["engine"] = str(error)
    except Exception as error:  # a broken system may fail in any way, and none of them is a pass
        found.rejected["engine"] = f"broke: {type(error).__name__}: {error}"
    found.modes.update({mode: steps for (mode, layer, _), steps in runner.paths.items() if layer == 0})
    reasons = {
        "paths": _wrong_path(wiring, runner),
        "cache writes": _wrong_write(engine, runner),
        "answers": _wrong_answer(wiring, engine, found),
    }
    found.rejected |= {check: reason for check, reason in reasons.items() if reason}
    return found


def _wrong_path(wiring: Wiring, runner) -> str | None:
    for mode, layer, path in runner.paths:
        due = wiring.due(mode, wiring.config.indexer_types[layer])
        if str(path) != due:
            return f"layer {layer} ran {path} in a {mode} step, expected {due}"
    return None


def _wrong_write(engine: Watched, runner) -> str | None:
    """Pools begin as NaN, so a slot is finite exactly if it was written; page 0 and padding are nobody's."""
    written = engine.how != UNWRITTEN
    for layer, caches in enumerate(runner.pools):
        for name, pool in zip(caches._fields, caches, strict=True):
            if pool is None:
                continue
            finite = np.isfinite(np.asarray(pool)).all(axis=2).reshape(-1)
            for slot in np.flatnonzero(finite != written)[:1]:
                page, offset = divmod(int(slot), runner.page_size)
                what = "never written" if written[slot] else "written, but is no token's"
                return f"{name} of layer {layer}: page {page}, offset {offset} was {what}"
    return None


def rounding(config: "ModelConfig") -> float:
    """How far float32 logits may be from exact ones, of the largest, and scores too.

    About twelve matrix products a layer, each off by 2 sqrt(W) u32 of its result (checks/tolerance.py, step 2), W the
    widest sum; norms keep errors relative, so they add up. Once more for the softmax, which errors of logits enter.
    """
    widest = max(config.hidden_size, config.num_attention_heads * config.v_head_dim, config.intermediate_size)
    return 2 * 12 * config.num_hidden_layers * 2 * widest**0.5 * 2.0**-24


def _wrong_answer(wiring: Wiring, engine: Watched, found: Judged) -> str | None:
    """Compares every moment of choice; the newest of a request first, because its history mostly holds the others'."""
    reference, share = wiring.reference(), rounding(wiring.config)
    held, known, told = None, None, None
    for look in sorted(reversed(engine.looks), key=lambda look: look.request):
        if held is None or not _begins(held, look):
            held, known = look, reference.read(look.tokens, look.how == DECODED)
        assert known is not None
        at = len(look.tokens) - 1
        due = known.logits[at]
        off = float(np.abs(look.logits - due).max())
        budget = share * float(np.abs(due).max())
        found.looks, found.budget = found.looks + 1, max(found.budget, budget)
        if off > budget and known.margin[at] <= share:
            found.excused += 1
        elif off > budget and told is None:
            told = (
                f"request {look.request}, position {at}: a logit is {off:.2g} off the reference's, budget "
                f"{budget:.2g}; token {look.logits.argmax()}, expected {due.argmax()}"
            )
    return told


def _begins(longer: Look, look: Look) -> bool:
    """Whether a look's whole history is the beginning of another's of the same request."""
    n = len(look.tokens)
    return (
        longer.request == look.request
        and np.array_equal(longer.tokens[:n], look.tokens)
        and np.array_equal(longer.how[:n], look.how)
    )
