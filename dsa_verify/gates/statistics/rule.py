"""The gate's rule: every number that a verdict depends on besides the scores, fixed before a run."""

from dataclasses import dataclass
from itertools import pairwise

from dsa_verify.errors import ConfigError

# The command line reads its defaults here: only the standard library is imported.

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


def _demand(name: str, value: object, holds: bool, expected: str) -> None:
    if not holds:
        raise ConfigError(f"the gate's rule has {name} = {value}, expected {expected}; change that option.")
