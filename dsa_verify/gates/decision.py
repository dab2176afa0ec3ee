"""The decision: paired scores, controls and a rule in; PASS, FAIL, INCONCLUSIVE or INVALID with every reason out."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsa_verify.errors import ConfigError
from dsa_verify.gates import reasons as why_so
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.estimates import Estimate, Estimates, measure
from dsa_verify.gates.statistics.rule import FAIL, INCONCLUSIVE, INVALID, PASS, Rule
from dsa_verify.gates.statistics.stopping import levels


@dataclass(frozen=True)
class Control:
    """A comparison whose answer is known. verdict: what the rule says of it. sound: it is as it must be."""

    name: str
    verdict: str
    sound: bool
    macro: Estimate


@dataclass(frozen=True)
class Decision:
    """A verdict with all that led to it.

    sentence: the verdict in one plain sentence. reasons: why it is no PASS, the gravest first. notes: what else to
    know. active: estimates of prompts long enough for sparsity to matter, whose macro mean and groups are demanded as
    well; None where all are.
    missing: answers without a score, by arm. needed: what an inconclusive run still lacks, None where that is moot.
    """

    verdict: str
    sentence: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...]
    estimates: Estimates | None
    active: Estimates | None
    controls: tuple[Control, ...]
    missing: Mapping[str, int]
    needed: why_so.Needed | None

    def document(self) -> dict[str, Any]:
        """For JSON: plain values, None for what is not a number."""
        return {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "reasons": list(self.reasons),
            "notes": list(self.notes),
            **_plain(self.estimates),
            "active": _plain(self.active),
            "controls": {
                one.name: {"verdict": one.verdict, "sound": one.sound, "macro": _fields(one.macro)}
                for one in self.controls
            },
            "missing": dict(self.missing),
            "needed": {key: _number(value) for key, value in vars(self.needed).items()} if self.needed else None,
        }


def decide(
    scores: Sequence[TaskScores],
    rule: Rule,
    *,
    same: Sequence[TaskScores] | None = None,
    degraded: Sequence[TaskScores] | None = None,
    look: int | None = None,
    alarm: int | None = None,
) -> Decision:
    """May sparse become the default?

    same: dense against dense again, which must pass. degraded: dense against an arm broken on purpose, which must not.
    look: place in `rule.looks` of a run that may stop early, with the documents asked so far; None: all documents, one
    look. alarm: the round in which the harm alarm sounded (`stopping.alarm_round`).
    Raises `ConfigError` for scores that contradict themselves. Sources: the rule is docs/decisions/0005.
    """
    for part in (scores, same or (), degraded or ()):
        demand_sound(part)
    at = levels(rule, look)
    scores, same, degraded = (_scored(part) for part in (scores, same, degraded))
    full = measure(scores, rule, at) if scores else None
    stratum = [_active(one) for one in scores if one.active.any()]
    whole = all(one.active.all() for one in scores)
    active = full if whole else measure(stratum, rule, at) if stratum else None
    controls = tuple(_control(name, part, rule) for name, part in (("same", same), ("degraded", degraded)) if part)
    found = why_so.Comparison(scores, full, active, {one.name: (one.verdict, one.sound) for one in controls})
    verdict, why = why_so.judge(found, rule, at, alarm)
    needed = None
    if verdict == INCONCLUSIVE and full and active:
        noise = measure(same, rule, at) if same else None
        needed = why_so.still_needed([full] if whole else [full, active], noise, rule, at)
        why += [needed.sentence(sum(one.n for one in full.tasks))] if needed else []
    return Decision(
        verdict,
        why_so.sentence(verdict, full, rule, why),
        tuple(why),
        tuple(why_so.notes(found, rule)),
        full,
        None if whole else active,
        controls,
        why_so.missing(scores),
        needed,
    )


def demand_sound(scores: Sequence[TaskScores]) -> None:
    """Raises `ConfigError` for a task that occurs twice, for arrays of unequal length, for scores outside [0, 1]."""
    names = [one.task for one in scores]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"task {twice[0]} is scored twice; give each task once, with all its documents.")
    for one in scores:
        lengths = {len(array) for array in (one.dense, one.sparse, one.cluster, one.active)}
        if len(lengths) > 1:
            raise ConfigError(f"task {one.task} has arrays of {sorted(lengths)} documents; give one entry a document.")
        both = np.concatenate([one.dense, one.sparse])
        wrong = both[np.isinf(both) | (both < 0) | (both > 1)]
        if len(wrong):
            raise ConfigError(f"task {one.task} has a score of {wrong[0]}, expected 0 to 1 or NaN; check its scorer.")


def _scored(scores: Sequence[TaskScores] | None) -> list[TaskScores]:
    return [one for one in scores or () if len(one.dense)]


def _active(one: TaskScores) -> TaskScores:
    kept = one.active
    return TaskScores(one.task, one.group, one.dense[kept], one.sparse[kept], one.cluster[kept], one.active[kept])


def _control(name: str, scores: Sequence[TaskScores], rule: Rule) -> Control:
    """A control is judged once, on all its documents, by the bounds alone."""
    at = levels(rule, None)
    found = measure(scores, rule, at)
    verdict = PASS if found.passes(at.pass_) else FAIL if found.harmed(at.fail) else INCONCLUSIVE
    return Control(name, verdict, verdict == (PASS if name == "same" else FAIL), found.macro)


def _plain(estimates: Estimates | None) -> dict[str, Any]:
    if estimates is None:
        return {"macro": None, "groups": [], "tasks": []}
    parts = {"groups": estimates.groups, "tasks": estimates.tasks}
    return {"macro": _fields(estimates.macro), **{key: [_fields(one) for one in part] for key, part in parts.items()}}


def _fields(one: Estimate) -> dict[str, Any]:
    names = ("name", "n", "mean_dense", "mean_sparse", "difference", "lower", "upper", "margin", "limit", "method")
    return {name: _number(getattr(one, name)) for name in (*names, "p_pass", "p_harm", "p_worse")}


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = ["FAIL", "INCONCLUSIVE", "INVALID", "PASS", "Control", "Decision", "decide", "demand_sound"]
