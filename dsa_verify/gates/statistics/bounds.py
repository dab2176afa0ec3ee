"""One-sided p-values and bounds for a mean paired difference: which method judges what, and why it holds its level."""

from collections.abc import Callable, Sequence

import numpy as np
from scipy import optimize, special, stats

from dsa_verify.gates.statistics.paired import Paired, average

FEW, LARGE = 10, 150
"""Below FEW differing clusters no variance is trusted; below LARGE clusters no normal approximation is: of 200,000
F1-like runs at the margin 5.6% pass at 100 documents, 5.3% at 150, as many as LongBench's smallest task has."""
BETS = np.geomspace(0.05, 1.0, 10)
"""Shares of the largest admissible bet; an equal mixture of them needs no tuning and no look at the data."""
_PLACED, _FAR = 1e-9, 38.0
"""How exactly a bound is placed, far below a score's resolution; the largest quantile with a float64 p-value."""


def least_documents(margin: float, level: float) -> int:
    """Documents below which not even zero disagreements show that a loss is smaller than `margin`."""
    return int(np.ceil(np.log(level) / np.log1p(-margin)))


def method(tasks: Sequence[Paired]) -> str:
    """The name of what judges the mean of these tasks: `score`, `counting`, `betting` or `skewed`."""
    if len(tasks) == 1 and tasks[0].binary:
        return "score"
    if _differing(tasks) < FEW:
        return "counting"
    return "skewed" if _clusters(tasks) >= LARGE and average([one.moments for one in tasks]).variance > 0 else "betting"


def p_above(tasks: Sequence[Paired], value: float) -> np.ndarray:
    """f64[...]: p-value of "the unweighted mean of the tasks' differences is at most `value`"; small: it is above.

    One binary task: score test. Fewer than `FEW` clusters that differ: exact counting. At least `LARGE` clusters: the
    studentised mean, corrected for skew. Else, and where nothing varies: betting. NaN where nothing can be said.
    """
    if len(tasks) == 1 and tasks[0].binary:
        return score(tasks[0], value)
    few = _differing(tasks) < FEW
    if _clusters(tasks) < LARGE:
        return np.where(few, counting(tasks, value), betting(tasks, value))
    large = skewed(tasks, value)
    if few.any():
        large = np.where(few, counting(tasks, value), large)
    return large if np.isfinite(large).all() else np.where(np.isfinite(large), large, betting(tasks, value))


def p_below(tasks: Sequence[Paired], value: float) -> np.ndarray:
    """f64[...]: p-value of "the mean is at least `value`"; small: it is below."""
    return p_above([one.mirrored for one in tasks], -value)


def lower_bound(tasks: Sequence[Paired], level: float) -> float:
    """The one-sided lower bound at 1 - level: the largest value that the mean is shown to exceed; NaN if none is."""
    return _bound(lambda value: float(p_above(tasks, value)), level)


def upper_bound(tasks: Sequence[Paired], level: float) -> float:
    """The one-sided upper bound at 1 - level."""
    return -lower_bound([one.mirrored for one in tasks], level)


def skewed(tasks: Sequence[Paired], value: float) -> np.ndarray:
    """Hall's monotone cubic transform of the studentised mean against Student's t.

    It removes the error of order 1/sqrt(n) that skew leaves in a t test, as the bootstrap-t does, without resampling.
    Source: P. Hall, "On the removal of skewness by transformation", J. R. Statist. Soc. B 54 (1992).
    """
    moments = average([one.moments for one in tasks])
    with np.errstate(divide="ignore", invalid="ignore"):
        t = (moments.mean - value) / np.sqrt(moments.variance)
        skew = moments.third / moments.variance**1.5
        return stats.t.sf(t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6, moments.degrees)


def score(task: Paired, value: float) -> np.ndarray:
    """Score test of a difference of paired proportions, with continuity and skew corrections.

    Under the null the numbers of better and of worse documents follow from one constrained estimate, and with them
    the mean, variance and skew of their difference; a Pearson III tail has the same three. Where nothing got better the
    binomial test is exact and taken instead; where nothing got worse it is the least p-value. Clusters shrink the
    counts by the design effect.
    Source: T. Tango, Statistics in Medicine 17 (1998); the corrections are ours (docs/decisions/0005).
    """
    n, better, worse = _effective_counts(task)
    b = worse * (1 - value) + better * (1 + value) - 2 * n * value
    share = (b + np.sqrt(np.maximum(b**2 + 8 * n * worse * value * (1 - value), 0.0))) / (4 * n)
    second = 2 * share + value
    variance, third = second - value**2, value - 3 * value * second + 2 * value**3
    with np.errstate(divide="ignore", invalid="ignore"):
        z = (better - worse - n * value - 0.5) / np.sqrt(n * variance)
        p = stats.pearson3.sf(z, third / np.sqrt(n * variance**3))
    p = np.where(better + worse > 0, p, 1.0)
    if value < 0:
        return np.where(better == 0, _few(worse, n, -value), p)
    return np.where((worse == 0) & (value > 0), np.maximum(p, 1 - _few(better - 1, n, value)), p)


def _effective_counts(task: Paired) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Documents, better and worse ones, each divided by the design effect (clustered over unclustered variance)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        effect = task.moments.variance / task.unclustered
    # Without any disagreement nothing is known of the correlation: a cluster then counts once.
    effect = np.where(np.isfinite(effect), np.maximum(effect, 1.0), task.documents / max(task.clusters, 1))
    return task.documents / effect, task.better / effect, task.worse / effect


def counting(tasks: Sequence[Paired], value: float) -> np.ndarray:
    """Every cluster that lost anything counts as wholly lost, every gain as nothing: an exact binomial bound.

    With T tasks of at least C clusters, a mean below -x needs an expected T C x such clusters in all; the
    binomial is then the worst case (Hoeffding, Ann. Math. Statist. 27 (1956)).
    """
    trials = len(tasks) * min(one.clusters for one in tasks)
    losers = np.sum([one.losers for one in tasks], axis=0)
    return _few(losers, trials, -value)


def betting(tasks: Sequence[Paired], value: float) -> np.ndarray:
    """1 / E for a mixture of bets against "the mean is at most `value`"; valid for any bounded scores and any n.

    The log wealth of a task with more clusters is scaled down to the smallest task's (Jensen), and the product over
    tasks is bounded by the power of their mean (AM-GM), so tasks may differ under the null.
    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting" (arXiv 2010.09686).
    """
    least = min(one.clusters for one in tasks)
    wealth = sum(least / one.clusters * log_wealth(one.units, value).sum(-2) for one in tasks)
    return np.minimum(1.0, np.exp(-mixture(np.asarray(wealth))))


def log_wealth(units: np.ndarray, value: float) -> np.ndarray:
    """f64[..., units, bets]: what each unit adds to the log wealth of bets on "the mean is above `value`"."""
    bets = BETS / (1 + value)
    with np.errstate(divide="ignore"):
        return np.log(np.maximum(1 + bets * (units[..., None] - value), 0.0))


def mixture(wealth: np.ndarray) -> np.ndarray:
    """f64[...]: the log of the mean wealth over the last axis."""
    return special.logsumexp(wealth, axis=-1) - np.log(wealth.shape[-1])


def _few(count: np.ndarray, trials: np.ndarray | float, rate: float) -> np.ndarray:
    """P(Binomial(trials, rate) <= count), for real counts; 1 for a rate that is none."""
    count, trials = np.broadcast_arrays(count, trials)
    if not 0 < rate < 1:
        return np.ones(count.shape)
    inside = special.betainc(np.maximum(trials - count, 1e-9), np.maximum(count, -1 + 1e-9) + 1, 1 - rate)
    return np.where(count >= trials, 1.0, np.where(count <= -1, 0.0, inside))


def _differing(tasks: Sequence[Paired]) -> np.ndarray:
    return np.sum([one.differing for one in tasks], axis=0)


def _clusters(tasks: Sequence[Paired]) -> int:
    return sum(one.clusters for one in tasks)


def _bound(p: Callable[[float], float], level: float) -> float:
    """Where p, which rises with its argument, reaches the level; its normal quantile is nearly a line."""
    sought = stats.norm.isf(level)

    def above(value: float) -> float:
        return float(sought - np.clip(stats.norm.isf(p(value)), -_FAR, _FAR))

    if np.isnan(p(0.0)):
        return float("nan")
    low, high = -1 + _PLACED, 1 - _PLACED
    if above(low) > 0:
        return -1.0
    return optimize.root_scalar(above, bracket=(low, high), xtol=_PLACED).root if above(high) > 0 else 1.0
