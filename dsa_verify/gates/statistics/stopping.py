"""Early stopping: the rounds in which documents are asked, O'Brien-Fleming looks for PASS, an alarm for harm."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from scipy import optimize, stats

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.bounds import log_wealth, mixture
from dsa_verify.gates.statistics.rule import Levels, Rule

_NODES = 120
"""Gauss-Legendre nodes between looks; doubling them moves no boundary by 1e-8."""
_FAR = 9.0
"""Standard deviations below which a path is not followed: the normal tail there is 1e-19."""


@dataclass(frozen=True, eq=False)
class Schedule:
    """When each document is asked. A task's documents go over the same rounds, whole clusters, at least one a round.

    rounds: i64[documents] by task name, the round of each, from 0. count: number of rounds. looks: rounds done at each
    look, by its place in `Rule.looks`.
    """

    rounds: Mapping[str, np.ndarray]
    count: int
    looks: tuple[int, ...]

    def asked(self, scores: TaskScores, done: int) -> TaskScores:
        """The documents of a task that `done` rounds have asked."""
        return scores.only(self.rounds[scores.task] < done)


def schedule(clusters: Mapping[str, np.ndarray], rule: Rule) -> Schedule:
    """The seeded order of a run. clusters: i64[documents] by task name, equal for documents that share a context.

    There are as many rounds as the smallest task has clusters, so that every round samples the macro mean.
    Raises `ConfigError` for a task without documents.
    """
    empty = [name for name, cluster in clusters.items() if not len(cluster)]
    if empty or not clusters:
        raise ConfigError(f"the gate needs documents for every task; {', '.join(empty) or 'the whole run'} has none.")
    count = min(len(np.unique(cluster)) for cluster in clusters.values())
    rounds = {}
    for name in sorted(clusters):
        # A stream of its own, so that one more task moves no other task's order.
        order = np.random.default_rng([rule.seed, *name.encode()])
        _, which = np.unique(clusters[name], return_inverse=True)
        size = int(which.max()) + 1
        rounds[name] = (order.permutation(size) * count // size)[which]
    return Schedule(rounds, count, tuple(max(1, math.ceil(fraction * count)) for fraction in rule.looks))


@cache
def boundaries(looks: tuple[float, ...], alpha: float) -> tuple[float, ...]:
    """O'Brien-Fleming critical values z_k = c / sqrt(t_k), crossed at any look with probability alpha under the null.

    The score process at information t is Brownian motion, whose boundary is then the constant c.
    Source: O'Brien and Fleming, Biometrics 35 (1979); integration after Armitage, McPherson and Rowe (1969).
    """
    c = optimize.root_scalar(lambda bound: _crossing(bound, looks) - alpha, bracket=(0.1, 8.0), xtol=1e-10).root
    return tuple(c / math.sqrt(t) for t in looks)


def levels(rule: Rule, look: int | None) -> Levels:
    """Levels at a look (its place in `rule.looks`), or of a run without looks.

    Before the last look harm is the alarm's business alone; at the last, the tests have what the alarm has not spent.
    """
    if look is None:
        return Levels(rule.alpha, rule.alpha)
    z = boundaries(rule.looks, rule.alpha)[look]
    last = look == len(rule.looks) - 1
    return Levels(float(stats.norm.sf(z)), rule.alpha - rule.alarm_alpha if last else 0.0)


def evidence_of_harm(scores: Sequence[TaskScores], plan: Schedule, margin: float, done: int) -> np.ndarray:
    """f64[done]: the e-value after each round against "the macro mean difference is at least -margin".

    scores: all documents of the schedule, in its order; those of later rounds are not read.
    Under that null its mean never exceeds 1, so the chance that it ever reaches 1 / a is at most a, however often one
    looks. Missing answers count at their best for sparse.
    """
    means = np.array([_round_means(one, plan.rounds[one.task], done) for one in scores])
    return np.exp(np.minimum(log_evidence(means, margin), 700.0))


def log_evidence(means: np.ndarray, margin: float) -> np.ndarray:
    """f64[..., rounds] of f64[tasks, ..., rounds]: log e-values; a round multiplies one bet on each task (AM-GM)."""
    return mixture(np.cumsum(log_wealth(-means, margin).sum(0), axis=-2))


def alarm_round(evidence: np.ndarray, rule: Rule) -> int | None:
    """The number of rounds after which the alarm sounded, None where it never did."""
    crossed = np.flatnonzero(evidence >= 1 / rule.alarm_alpha)
    return int(crossed[0]) + 1 if len(crossed) else None


def _round_means(scores: TaskScores, rounds: np.ndarray, done: int) -> np.ndarray:
    best = np.nan_to_num(scores.sparse, nan=1.0) - np.nan_to_num(scores.dense, nan=0.0)
    used = rounds < done
    return np.bincount(rounds[used], best[used], done) / np.bincount(rounds[used], minlength=done)


def _crossing(bound: float, looks: tuple[float, ...]) -> float:
    """P(Brownian motion is at or above `bound` at some look)."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    low = -_FAR
    places, weights = low + (nodes + 1) * (bound - low) / 2, weights * (bound - low) / 2
    density = stats.norm.pdf(places, scale=math.sqrt(looks[0]))
    for before, after in pairwise(looks):
        step = stats.norm.pdf(places[:, None] - places[None, :], scale=math.sqrt(after - before))
        density = step @ (weights * density)
    return 1 - float(weights @ density)
