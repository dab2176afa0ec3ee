"""Clustered paired differences: a task's mean with its variance and skew, unweighted means of tasks, plain p-values."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy import stats

from dsa_verify.gates.records import TaskScores

_ROUNDING = 1e-30
"""A variance below it is rounding: scores carry errors of 1e-16, whose square it exceeds a hundredfold."""


@dataclass(frozen=True, eq=False)
class Moments:
    """An estimate of a mean difference. All fields f64[...], equal in shape; the axes are independent data sets.

    variance, third: second and third cumulant of the estimate itself, not of a document. degrees: of freedom.
    """

    mean: np.ndarray
    variance: np.ndarray
    third: np.ndarray
    degrees: np.ndarray


@dataclass(frozen=True, eq=False)
class Paired:
    """The differences of one task, reduced to what the bounds read; leading axes are independent data sets.

    binary: every score is 0 or 1. documents, clusters: how many. better, worse: i64[...], documents with a positive, a
    negative difference; winners, losers, differing: clusters that hold a positive, a negative, any. unclustered:
    f64[...], the variance of the mean were documents independent.
    units: f64[..., clusters], the mean difference of each cluster.
    """

    binary: bool
    documents: int
    clusters: int
    moments: Moments
    better: np.ndarray
    worse: np.ndarray
    winners: np.ndarray
    losers: np.ndarray
    differing: np.ndarray
    unclustered: np.ndarray
    units: np.ndarray = field(repr=False)

    @property
    def mirrored(self) -> "Paired":
        """The same task with every sign turned, so that an upper bound is a lower one."""
        moments = replace(self.moments, mean=-self.moments.mean, third=-self.moments.third)
        return Paired(
            self.binary, self.documents, self.clusters, moments,
            self.worse, self.better, self.losers, self.winners, self.differing, self.unclustered, -self.units,
        )  # fmt: skip


def paired(difference: np.ndarray, cluster: np.ndarray | None = None, binary: bool = False) -> Paired:
    """Reduce f64[..., documents] differences in [-1, 1] without NaN.

    cluster: i64[documents], equal for documents that share a context; None: each is its own. The variance is
    C/(C-1) sum_c (sum_{i in c} (d_i - m))^2 / n^2, as in Miller, "Adding Error Bars to Evals" (arXiv 2411.00640); the
    third cumulant is its unbiased analogue. Fewer than three clusters have no variance: NaN.
    """
    labels = np.arange(difference.shape[-1]) if cluster is None else np.asarray(cluster)
    order = np.argsort(labels, kind="stable")
    starts = np.unique(labels[order], return_index=True)[1]
    difference = difference[..., order]
    n, count = len(order), len(starts)
    mean = difference.mean(-1) if n else np.full(difference.shape[:-1], np.nan)

    def total(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts, axis=-1) if 0 < count < n else values

    sums = total(difference)
    sizes = total(np.ones(n))
    residual = sums - sizes * mean[..., None]
    if count < 3:
        variance = third = unclustered = np.full(mean.shape, np.nan)
    else:
        variance = count / (count - 1) * (residual**2).sum(-1) / n**2
        variance = np.where(variance < _ROUNDING, 0.0, variance)
        third = count**2 / ((count - 1) * (count - 2)) * (residual**3).sum(-1) / n**3
        unclustered = ((difference - mean[..., None]) ** 2).sum(-1) / (n * (n - 1))
    moments = Moments(mean, variance, third, np.full(mean.shape, float(count - 1)))
    sides = difference > 0, difference < 0
    better, worse = (side.sum(-1) for side in sides)
    winners, losers, differing = (
        (total(side.astype(int)) > 0).sum(-1) if count < n else side.sum(-1) for side in (*sides, difference != 0)
    )
    units = sums / sizes if count < n else difference
    return Paired(binary, n, count, moments, better, worse, winners, losers, differing, unclustered, units)


def paired_of(scores: TaskScores) -> Paired:
    """`paired` of a task in which no answer is missing."""
    both = np.concatenate([scores.dense, scores.sparse])
    return paired(scores.difference, scores.cluster, bool(np.isin(both, (0.0, 1.0)).all()))


def average(tasks: Sequence[Moments]) -> Moments:
    """The unweighted mean of independent tasks; degrees of freedom by Welch and Satterthwaite."""
    if len(tasks) == 1:
        return tasks[0]
    variances = np.array([one.variance for one in tasks])
    total = variances.sum(0)
    parts = (variances**2 / np.array([one.degrees for one in tasks])).sum(0)
    degrees = np.divide(total**2, parts, out=np.full(total.shape, np.nan), where=parts > 0)
    mean = np.mean([one.mean for one in tasks], axis=0)
    third = np.sum([one.third for one in tasks], axis=0) / len(tasks) ** 3
    return Moments(mean, total / len(tasks) ** 2, third, degrees)


def holm(p: np.ndarray) -> np.ndarray:
    """Holm's adjusted p-values along the first axis; NaN counts as 1."""
    p = np.nan_to_num(np.asarray(p, float), nan=1.0)
    order = np.argsort(p, axis=0, kind="stable")
    steps = np.arange(len(p), 0, -1).reshape(-1, *[1] * (p.ndim - 1))
    climbing = np.maximum.accumulate(np.take_along_axis(p, order, 0) * steps, axis=0)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.minimum(climbing, 1.0), 0)
    return adjusted


def mcnemar(difference: np.ndarray) -> float:
    """Exact one-sided p-value of "no difference" against "sparse is wrong more often"; differences in {-1, 0, 1}.

    A test of difference, not of a margin: it describes, and decides nothing.
    """
    worse, better = int((difference < 0).sum()), int((difference > 0).sum())
    return float(stats.binomtest(worse, worse + better, alternative="greater").pvalue) if worse + better else 1.0


def sign_flip(units: np.ndarray, seed: int, replications: int) -> float:
    """One-sided p-value of "no difference" against "sparse is worse", by random signs of f64[clusters] differences.

    Needs symmetry around zero only, so it says nothing about a margin: it describes, and decides nothing.
    """
    moved = units[units != 0]
    if not len(moved):
        return 1.0
    signs = np.random.default_rng(seed).integers(0, 2, (replications, len(moved)), dtype=np.int8) * 2 - 1
    # One part in 10^9: sums that are equal on paper differ in their last bits.
    as_low = (signs @ moved <= moved.sum() + 1e-9).sum()
    return float((1 + as_low) / (1 + replications))
