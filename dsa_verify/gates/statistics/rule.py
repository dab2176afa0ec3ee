"""The gate's rule: every default, fixed before a run, and what PASS and FAIL demand of the p-values."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.gates.statistics.paired import holm

PASS, FAIL, INCONCLUSIVE, INVALID = "PASS", "FAIL", "INCONCLUSIVE", "INVALID"


@dataclass(frozen=True)
class Rule:
    """Everything that a verdict depends on besides the scores; stored with every report.

    alpha: one-sided error of PASS, and of FAIL. macro_margin, group_margin, task_margin: losses of mean score that are
    still tolerated. task_limit: a PASS shows that no single task loses as much. veto_alpha: PASS is withheld while a
    task is estimated beyond task_margin and, by Holm at this level, not free of loss. floor, floor_share: dense mean
    that this share of the tasks must exceed. missing_limit: share of an arm's answers that may be missing.
    looks: fractions of the documents after which a run may pass. alarm_alpha: the part of FAIL's error that the
    stop-anytime alarm spends in a run with looks. power: what "documents still needed" aims at. controls: whether
    PASS demands both controls. seed, sign_flips: of the order of documents and of the descriptive p-value.
    """

    alpha: float = 0.05
    macro_margin: float = 0.015
    group_margin: float = 0.05
    task_margin: float = 0.05
    task_limit: float = 0.15
    veto_alpha: float = 0.005
    floor: float = 0.05
    floor_share: float = 2 / 3
    missing_limit: float = 0.005
    looks: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)
    alarm_alpha: float = 0.01
    power: float = 0.8
    controls: bool = True
    seed: int = 20260
    sign_flips: int = 9999

    def __post_init__(self) -> None:
        """Raises `ConfigError` naming the field for a value that no rule can have."""
        for name in ("alpha", "macro_margin", "group_margin", "task_margin", "task_limit", "veto_alpha", "power"):
            _demand(name, getattr(self, name), 0 < getattr(self, name) < 1, "between 0 and 1")
        for name in ("floor", "floor_share", "missing_limit"):
            _demand(name, getattr(self, name), 0 <= getattr(self, name) <= 1, "from 0 to 1")
        _demand("alarm_alpha", self.alarm_alpha, 0 < self.alarm_alpha < self.alpha, f"between 0 and alpha {self.alpha}")
        _demand("task_limit", self.task_limit, self.task_limit >= self.task_margin, "at least task_margin")
        _demand("sign_flips", self.sign_flips, self.sign_flips >= 1, "at least 1")
        rising = all(a < b for a, b in pairwise((0.0, *self.looks)))
        _demand("looks", self.looks, rising and self.looks[-1:] == (1.0,), "rising fractions, the last 1")


@dataclass(frozen=True)
class Levels:
    """One-sided levels of one look at the data. `pass_`: of every bound that PASS needs. fail: of the harm tests, 0
    where only the alarm may fail."""

    pass_: float
    fail: float

    @property
    def last(self) -> bool:
        return self.fail > 0


def passes(macro: np.ndarray, groups: np.ndarray, tasks: np.ndarray, level: float) -> np.ndarray:
    """bool[...]: is the mean shown to be above -margin, for macro, every group and every task (at `task_limit`)?

    macro: f64[...], groups: f64[groups, ...], tasks: f64[tasks, ...], p-values of "at most -margin". All must hold
    (intersection-union), so none is corrected. NaN never passes.
    """
    return (macro <= level) & (groups <= level).all(0) & (tasks <= level).all(0)


def suspects(means: np.ndarray, p: np.ndarray, rule: Rule, at: Levels) -> np.ndarray:
    """bool[tasks, ...]: does a task look harmed, so that PASS is withheld?

    means: f64[tasks, ...]. p: f64[tasks, ...], p-values of "no loss". Before the last look a mean beyond the margin is
    enough, for waiting costs documents only; at the last it must be significant too, or noise would withhold PASS.
    """
    beyond = means < -rule.task_margin
    return beyond & (holm(p) <= rule.veto_alpha) if at.last else beyond


def harms(macro: np.ndarray, parts: np.ndarray, level: float) -> np.ndarray:
    """bool[...]: is the macro mean, or after Holm any group or task (f64[parts, ...]), shown to be below -margin?"""
    if level <= 0:
        return np.zeros(np.shape(macro), bool)
    return (macro <= level) | (holm(parts) <= level).any(0)


def _demand(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"the gate's rule has {name} = {value}, expected {expected}; change that option.")
