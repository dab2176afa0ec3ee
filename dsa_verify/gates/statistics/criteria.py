"""What PASS and FAIL demand of p-values, for one run and for simulated ones alike."""

import numpy as np

from dsa_verify.gates.statistics.paired import holm
from dsa_verify.gates.statistics.rule import Levels, Rule


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
