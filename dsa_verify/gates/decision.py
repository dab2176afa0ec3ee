# pyright: strict
"""The decision: paired scores, controls and a rule in; PASS, FAIL, INCONCLUSIVE or INVALID with every reason out.

The order of the gate's demands stands in `_verdict`, and nowhere else.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dsa_verify.gates import reasons
from dsa_verify.gates.records import TaskScores, demand_sound
from dsa_verify.gates.statistics.estimates import Estimate, Estimates, measure
from dsa_verify.gates.statistics.needed import Needed, still_needed
from dsa_verify.gates.statistics.paired import holm
from dsa_verify.gates.statistics.rule import FAIL, INCONCLUSIVE, INVALID, PASS, Levels, Rule
from dsa_verify.gates.statistics.stopping import levels

CONTROLS = {"same": (PASS, FAIL), "degraded": (FAIL, PASS)}
"""The verdict that a control is to have, and the one that it must not have: then the gate itself is wrong."""
_NO_CONTROLS: Mapping[str, Sequence[TaskScores]] = {}


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
    needed: Needed | None

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
    controls: Mapping[str, Sequence[TaskScores]] = _NO_CONTROLS,
    contradictions: Sequence[str] = (),
    look: int | None = None,
    alarm: int | None = None,
) -> Decision:
    """May sparse become the default?

    controls: of those that were run. `same`: dense against dense again, which must pass; `degraded`: dense against an
    arm broken on purpose, which must not. contradictions: why the arms cannot be compared (`arms/comparable.py`).
    look: place in `rule.looks` of a run that may stop early, with the documents asked so far; None: all documents, one
    look. alarm: the round in which the harm alarm sounded (`stopping.alarm_round`).
    Raises `ConfigError` for scores that contradict themselves. Sources: the rule is docs/decisions/0005.
    """
    ran = {name: part for name in CONTROLS if (part := _scored(controls.get(name, ())))}
    found = replace(
        _measured(scores, rule, look, alarm),
        controls=tuple(_control(name, part, rule) for name, part in ran.items()),
        demanded=tuple(CONTROLS) if rule.controls else (),
        contradictions=tuple(contradictions),
    )
    verdict, why = _verdict(found, rule)
    needed = _needed(found, rule, ran.get("same", [])) if verdict == INCONCLUSIVE else None
    if needed and found.full:
        why.append(reasons.still_needed(needed, sum(one.n for one in found.full.tasks)))
    return Decision(
        verdict, reasons.sentence(verdict, found.full, rule, why), tuple(why), tuple(_notes(found, rule)),
        found.full, None if found.active is found.full else found.active,
        found.controls, _missing(found.scores), needed,
    )  # fmt: skip


def verdict_so_far(
    scores: Sequence[TaskScores], rule: Rule, *, look: int | None = None, alarm: int | None = None
) -> str:
    """What the scores of two arms say by themselves, before any control: whether a run, or a control, may stop."""
    return _verdict(_measured(scores, rule, look, alarm), rule)[0]


@dataclass(frozen=True)
class _Measured:
    """All that a verdict is made from.

    full: None without any document. active: of the prompts long enough for sparsity, None without any; the same object
    as full where all are. demanded: controls without which there is no PASS.
    """

    scores: Sequence[TaskScores]
    full: Estimates | None
    active: Estimates | None
    at: Levels
    alarm: int | None
    controls: tuple[Control, ...] = ()
    demanded: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()


def _verdict(found: _Measured, rule: Rule) -> tuple[str, list[str]]:
    """The verdict, and every reason why it is no PASS, the gravest first.

    A run that shows nothing is INVALID, whatever its scores say. Too many missing answers decide nothing, for those
    that came may be the easy ones. Then harm, then doubt; PASS is what is left.
    """
    invalid = [*found.contradictions, *_invalid(found, rule)]
    too_many, harm, doubts = _too_many_missing(found, rule), _harm(found, rule), _doubts(found)
    if invalid:
        return INVALID, invalid + too_many + harm
    if too_many:
        return INCONCLUSIVE, too_many + harm + doubts
    if harm:
        return FAIL, harm
    return (INCONCLUSIVE, doubts) if doubts else (PASS, [])


def _invalid(found: _Measured, rule: Rule) -> list[str]:
    """Why the run says nothing about sparse prefill."""
    if found.full is None:
        return [reasons.NO_DOCUMENT]
    why = [] if found.active else [reasons.NO_LONG_PROMPT]
    tasks, low = found.full.tasks, _dense_low(found, rule)
    if len(tasks) - len(low) < rule.floor_share * len(tasks):
        why.append(reasons.dense_too_low(tasks, low, rule))
    return why + [reasons.CONTROL_INVALID[one.name] for one in found.controls if one.verdict == CONTROLS[one.name][1]]


def _too_many_missing(found: _Measured, rule: Rule) -> list[str]:
    total = sum(len(one.dense) for one in found.scores)
    return [
        reasons.too_many_missing(arm, count, total, rule)
        for arm, count in _missing(found.scores).items()
        if count > rule.missing_limit * total
    ]


def _harm(found: _Measured, rule: Rule) -> list[str]:
    """What is shown to be worse than its margin: the macro mean, and after Holm any group or task."""
    why = [] if found.alarm is None else [reasons.alarmed(found.alarm, rule)]
    if found.full is None or found.at.fail <= 0:
        return why
    macro, *parts = found.full.all
    adjusted: list[float] = holm(np.array([one.p_harm for one in parts])).tolist()
    tested = [(macro, macro.p_harm), *zip(parts, adjusted, strict=True)]
    return why + [reasons.harmed(one, p) for one, p in tested if p <= found.at.fail]


def _doubts(found: _Measured) -> list[str]:
    """Why harm is not excluded."""
    if found.full is None:
        return []
    why = _short("", found.full.all, found.at)
    if found.active and found.active is not found.full:
        why += _short(reasons.AMONG_LONG, (found.active.macro, *found.active.groups), found.at)
    why += [reasons.CONTROL_IN_DOUBT[one.name] for one in found.controls if one.verdict == INCONCLUSIVE]
    ran = {one.name for one in found.controls}
    return why + [reasons.control_absent(name) for name in found.demanded if name not in ran]


def _short(where: str, demanded: Sequence[Estimate], at: Levels) -> list[str]:
    """Why these estimates do not let PASS through."""
    few = [one for one in demanded if one.least < one.needed]
    kinds = dict.fromkeys(one.kind for one in few)
    why = [reasons.too_few(where, kind, [one for one in few if one.kind == kind]) for kind in kinds]
    for one in demanded:
        if one.suspect:
            why.append(reasons.suspect(where, one))
        if one.least >= one.needed and not one.p_pass <= at.pass_:
            why.append(reasons.not_shown(where, one))
    return why


def _notes(found: _Measured, rule: Rule) -> list[str]:
    """What does not decide but should be read."""
    notes = [reasons.some_missing(arm, count) for arm, count in _missing(found.scores).items() if count]
    if found.full and found.active and found.active is not found.full:
        short = sorted({one.name for one in found.full.tasks} - {one.name for one in found.active.tasks})
        notes += [reasons.short_prompts(short)] if short else []
    low = _dense_low(found, rule)
    return notes + ([reasons.little_to_lose(low, rule)] if low else [])


def _measured(scores: Sequence[TaskScores], rule: Rule, look: int | None, alarm: int | None) -> _Measured:
    at, scores = levels(rule, look), _scored(scores)
    full = measure(scores, rule, at) if scores else None
    if all(one.active.all() for one in scores):
        return _Measured(scores, full, full, at, alarm)
    long = [one.only(one.active) for one in scores if one.active.any()]
    return _Measured(scores, full, measure(long, rule, at) if long else None, at, alarm)


def _needed(found: _Measured, rule: Rule, same: Sequence[TaskScores]) -> Needed | None:
    if not (found.full and found.active):
        return None
    noise = measure(same, rule, found.at) if same else None
    parts = [found.full] if found.active is found.full else [found.full, found.active]
    return still_needed(parts, noise, rule, found.at)


def _missing(scores: Sequence[TaskScores]) -> dict[str, int]:
    """Documents without a score, by arm."""
    return {
        "dense": sum(int(np.isnan(one.dense).sum()) for one in scores),
        "sparse": sum(int(np.isnan(one.sparse).sum()) for one in scores),
    }


def _dense_low(found: _Measured, rule: Rule) -> list[Estimate]:
    """Tasks on which the dense arm's mean, over all that it answered, is not above the floor."""
    means: dict[str, float] = {}
    for one in found.scores:
        answered = one.dense[np.isfinite(one.dense)]
        means[one.task] = float(answered.mean()) if len(answered) else 0.0
    return [one for one in found.full.tasks if not means[one.name] > rule.floor] if found.full else []


def _scored(scores: Sequence[TaskScores]) -> list[TaskScores]:
    demand_sound(scores)
    return [one for one in scores if len(one.dense)]


def _control(name: str, scores: Sequence[TaskScores], rule: Rule) -> Control:
    """A control is judged once, on all its documents, by the bounds alone."""
    at = levels(rule, None)
    found = measure(scores, rule, at)
    verdict = PASS if found.passes(at.pass_) else FAIL if found.harmed(at.fail) else INCONCLUSIVE
    return Control(name, verdict, verdict == CONTROLS[name][0], found.macro)


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


__all__ = ["FAIL", "INCONCLUSIVE", "INVALID", "PASS", "Control", "Decision", "decide", "verdict_so_far"]
