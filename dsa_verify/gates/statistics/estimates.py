"""From paired scores to estimates: the macro mean, every group and every task, with bounds and p-values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.bounds import least_documents, lower_bound, method, p_above, p_below, upper_bound
from dsa_verify.gates.statistics.criteria import harms, passes, suspects
from dsa_verify.gates.statistics.paired import Paired, average, mcnemar, paired, paired_of, sign_flip
from dsa_verify.gates.statistics.rule import Levels, Rule


@dataclass(frozen=True)
class Estimate:
    """The paired difference of the macro mean, of a group or of a task; scores and differences in [-1, 1].

    n: documents with both answers. lower, upper: one-sided bounds at this look's levels, with missing answers at their
    worst and at their best for sparse. margin: a loss that is harm. limit: a loss that PASS must exclude.
    method: see `bounds.method`. least: independent documents of the smallest task; needed: how many it must have for
    zero disagreements to show the limit. variance: of the estimate. p_pass: of "at most -limit". p_harm: of "at least
    -margin", p_loss: of "no loss", uncorrected. p_worse: by McNemar or sign flips, for tasks; it decides nothing.
    suspect: a task that looks harmed (`criteria.suspects`).
    """

    kind: str
    name: str
    n: int
    mean_dense: float
    mean_sparse: float
    difference: float
    lower: float
    upper: float
    margin: float
    limit: float
    method: str
    needed: int
    least: int
    variance: float
    p_pass: float
    p_harm: float
    p_loss: float
    suspect: bool = False
    p_worse: float | None = None

    @property
    def title(self) -> str:
        return "the macro mean" if self.kind == "macro" else f"{self.kind} {self.name}"


@dataclass(frozen=True)
class Estimates:
    """All estimates of one set of documents."""

    macro: Estimate
    groups: tuple[Estimate, ...]
    tasks: tuple[Estimate, ...]

    @property
    def all(self) -> tuple[Estimate, ...]:
        return self.macro, *self.groups, *self.tasks

    def passes(self, level: float) -> bool:
        """What PASS demands: bounds, enough documents, no task that looks harmed."""
        groups, tasks = (np.array([one.p_pass for one in part]) for part in (self.groups, self.tasks))
        enough = all(one.least >= one.needed and not one.suspect for one in self.all)
        return enough and bool(passes(np.array(self.macro.p_pass), groups, tasks, level))

    def harmed(self, level: float) -> bool:
        """Is the macro mean, or after Holm any group or task, worse than its margin?"""
        return bool(harms(np.array(self.macro.p_harm), np.array([one.p_harm for one in self.all[1:]]), level))


def measure(scores: Sequence[TaskScores], rule: Rule, levels: Levels) -> Estimates:
    """Estimates of all tasks in `scores`, each with at least one document."""
    views = {one.task: _View.of(one) for one in scores}
    groups: dict[str, list[str]] = {}
    for one in scores:
        groups.setdefault(one.group, []).append(one.task)

    def estimate(kind: str, name: str, members: Sequence[str], margin: float, most: float) -> Estimate:
        return _estimate(kind, name, [views[task] for task in members], (margin, most), (rule, levels))

    of_groups = [estimate("group", n, m, rule.group_margin, rule.group_margin) for n, m in groups.items()]
    of_tasks = [estimate("task", name, [name], rule.task_margin, rule.task_limit) for name in views]
    macro = estimate("macro", "macro", list(views), rule.macro_margin, rule.macro_margin)
    means = np.array([views[one.name].worst.moments.mean for one in of_tasks])
    looks = suspects(means, np.array([one.p_loss for one in of_tasks]), rule, levels)
    of_tasks = [replace(one, suspect=bool(look)) for one, look in zip(of_tasks, looks, strict=True)]
    return Estimates(macro, tuple(of_groups), tuple(of_tasks))


@dataclass(frozen=True, eq=False)
class _View:
    """One task as it is, and with its missing answers at their worst and at their best for sparse."""

    scores: TaskScores
    worst: Paired
    best: Paired

    @classmethod
    def of(cls, scores: TaskScores) -> "_View":
        worst = paired_of(_filled(scores, dense=1.0, sparse=0.0))
        complete = bool(np.isfinite(scores.difference).all())
        return cls(scores, worst, worst if complete else paired_of(_filled(scores, dense=0.0, sparse=1.0)))


def _filled(scores: TaskScores, dense: float, sparse: float) -> TaskScores:
    filled = np.nan_to_num(scores.dense, nan=dense), np.nan_to_num(scores.sparse, nan=sparse)
    return TaskScores(scores.task, scores.group, *filled, scores.cluster, scores.active)


def _estimate(
    kind: str, name: str, views: Sequence[_View], bars: tuple[float, float], at: tuple[Rule, Levels]
) -> Estimate:
    (margin, limit), (rule, levels) = bars, at
    worst, best = [one.worst for one in views], [one.best for one in views]
    means = np.array([_means(one.scores) for one in views]).mean(0)
    return Estimate(
        kind,
        name,
        sum(int(np.isfinite(one.scores.difference).sum()) for one in views),
        *(float(mean) for mean in means),
        lower=lower_bound(worst, levels.pass_),
        upper=upper_bound(best, levels.fail or rule.alpha),
        margin=margin,
        limit=limit,
        method=method(worst),
        needed=-(-least_documents(limit, levels.pass_) // len(views)),
        least=min(one.clusters for one in worst),
        variance=float(average([one.moments for one in worst]).variance),
        p_pass=float(p_above(worst, -limit)),
        p_harm=float(p_below(best, -margin)),
        p_loss=float(p_below(worst, 0.0)),
        p_worse=_p_worse(views[0], rule) if kind == "task" else None,
    )


def _means(scores: TaskScores) -> tuple[float, float, float]:
    """Of dense, sparse and their difference, over documents with both answers; NaN if there is none."""
    both = np.isfinite(scores.difference)
    if not both.any():
        return math.nan, math.nan, math.nan
    dense, sparse = scores.dense[both].mean(), scores.sparse[both].mean()
    return float(dense), float(sparse), float(scores.difference[both].mean())


def _p_worse(view: _View, rule: Rule) -> float:
    both = np.isfinite(view.scores.difference)
    if view.worst.binary:
        return mcnemar(view.scores.difference[both])
    # One value a cluster: the documents of a cluster keep their sign together.
    units = paired(view.scores.difference[both], view.scores.cluster[both]).units if both.any() else np.zeros(0)
    return sign_flip(units, rule.seed, rule.sign_flips)
