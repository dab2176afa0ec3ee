"""Logits -> token: greedy, or drawn from (seed, position) alone, so that company in the batch cannot matter."""

from dataclasses import dataclass

import numpy as np

from dsa_verify.errors import RequestError


@dataclass(frozen=True)
class Sampling:
    """How a request chooses its next token; temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or not 0 < self.top_p <= 1 or self.seed < 0:
            raise RequestError(f"{self}: expected temperature >= 0, 0 < top_p <= 1 and seed >= 0")


@dataclass(frozen=True)
class Pick:
    """A chosen token. `gap` is how far the best logit is above the second; None when the token was drawn."""

    token: int
    gap: float | None


def pick(logits: np.ndarray, sampling: Sampling, position: int) -> Pick:
    """The token for `position` of a sequence; among equal logits the lowest token comes first."""
    logits = logits.astype(np.float64)
    if sampling.temperature == 0:
        best = int(np.argmax(logits))
        return Pick(best, float(logits[best] - np.delete(logits, best).max(initial=-np.inf)))
    weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-weights, kind="stable")
    below = np.cumsum(weights[order])
    # The smallest set of best tokens that holds top_p of the whole; the best one is always in it.
    kept = 1 + int(np.searchsorted(below[:-1], sampling.top_p * below[-1], side="left"))
    draw = np.random.default_rng([sampling.seed, position]).random() * below[kept - 1]
    return Pick(int(order[np.searchsorted(below[: kept - 1], draw, side="right")]), None)
