"""Why a verdict is what it is: every demand of the gate, each with the sentence that says how it was missed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.bounds import LARGE
from dsa_verify.gates.statistics.estimates import Estimate, Estimates
from dsa_verify.gates.statistics.paired import holm
from dsa_verify.gates.statistics.power import Study, repeats_for
from dsa_verify.gates.statistics.rule import FAIL, INCONCLUSIVE, INVALID, PASS, Levels, Rule


@dataclass(frozen=True)
class Comparison:
    """What was measured. full: None without any document. active: of the prompts long enough for sparsity, None
    without any; the same object as full where all are. controls: verdict and soundness by name."""

    scores: Sequence[TaskScores]
    full: Estimates | None
    active: Estimates | None
    controls: Mapping[str, tuple[str, bool]]


def judge(found: Comparison, rule: Rule, at: Levels, alarm: int | None) -> tuple[str, list[str]]:
    """The verdict, and every reason why it is no PASS, the gravest first."""
    invalid, doubt = _invalid(found, rule), _doubts(found, rule, at)
    too_many = _too_many_missing(found.scores, rule)
    harm = _harm(found, rule, at, alarm)
    if invalid:
        return INVALID, invalid + too_many + harm
    if too_many:
        return INCONCLUSIVE, too_many + harm + doubt
    if harm:
        return FAIL, harm
    return (INCONCLUSIVE, doubt) if doubt else (PASS, [])


def sentence(verdict: str, full: Estimates | None, rule: Rule, why: Sequence[str]) -> str:
    """The verdict in one sentence."""
    if full is None or verdict == INVALID:
        return f"INVALID: the run says nothing about sparse prefill: {why[0]}"
    macro = full.macro
    if verdict == PASS:
        return (
            f"PASS: sparse is not worse than dense by {_points(rule.macro_margin)} or more: the macro difference over "
            f"{len(full.tasks)} tasks is {_signed(macro.difference)}, at least {_signed(macro.lower)} is shown, no "
            f"group lost {_points(rule.group_margin)} and no task {_points(rule.task_limit)}."
        )
    if verdict == FAIL:
        return f"FAIL: sparse is worse than dense: {why[0]}"
    return f"INCONCLUSIVE: neither harm nor its absence is shown, so dense stays the default: {why[0]}"


def missing(scores: Sequence[TaskScores]) -> dict[str, int]:
    """Documents without a score, by arm."""
    return {arm: sum(int(np.isnan(getattr(one, arm)).sum()) for one in scores) for arm in ("dense", "sparse")}


def notes(found: Comparison, rule: Rule) -> list[str]:
    """What does not decide but should be read."""
    said = []
    for arm, count in missing(found.scores).items():
        if count:
            said.append(f"{count} answers of the {arm} arm are missing; bounds take them at their worst or best.")
    if found.full and found.active and found.active is not found.full:
        short = sorted({one.name for one in found.full.tasks} - {one.name for one in found.active.tasks})
        if short:
            said.append(f"No prompt of {', '.join(short)} is long enough for sparsity; they say nothing about it.")
    low = [one for one in found.full.tasks if not _dense(found)[one.name] > rule.floor] if found.full else []
    if low:
        said.append(f"Dense scores at most {rule.floor:g} on {_names(low)}, where it has little to lose.")
    return said


@dataclass(frozen=True)
class Needed:
    """Times as many documents that would show all that is not shown yet: were there no loss, and were the estimates
    true (inf if no number would). repeats: of every document, instead, were there no loss; None if unknown or vain."""

    without_loss: float
    as_estimated: float
    repeats: int | None

    def sentence(self, documents: int) -> str:
        """In words, for a run of so many documents."""
        more = math.ceil(documents * (self.without_loss - 1))
        if more > 0:
            instead = f" (or {self.repeats} repeats of each)" if self.repeats and self.repeats > 1 else ""
            said = f"About {more:,} more documents{instead} would show it, were there no loss"
        else:
            said = "These documents would have shown it, were there no loss"
        if math.isinf(self.as_estimated):
            return f"{said}; at the present estimates no number would."
        return f"{said}; at the present estimates {math.ceil(documents * (self.as_estimated - 1)):,} more."


def still_needed(parts: Sequence[Estimates], same: Estimates | None, rule: Rule, at: Levels) -> Needed | None:
    """What PASS still lacks; None if no estimate is short of its limit.

    parts: all documents; then the active ones, of which tasks are not demanded. same: the A/A control, whose variance
    is that of run-to-run noise alone.
    """
    noise = {(one.kind, one.name): one.variance for one in same.all} if same else {}
    study = Study(alpha=at.pass_, power=rule.power)
    demanded = [*parts[0].all, *(one for part in parts[1:] for one in (part.macro, *part.groups))]
    short = [one for one in demanded if one.least < one.needed or one.suspect or not one.p_pass <= at.pass_]
    if not short:
        return None
    clean, seen, repeats = [], [], []
    for one in short:
        least = max(1.0, one.needed / max(one.least, 1))
        if one.method == "betting":  # the power that is computed is that of the method for LARGE and more
            least = max(least, LARGE / max(one.n, 1))
        clean.append(max(least, study.growth(0.0, one.variance, one.limit)))
        seen.append(max(least, study.growth(one.difference, one.variance, one.limit)))
        repeats.append(repeats_for(one.variance, noise.get((one.kind, one.name), 0.0), clean[-1]))
    known = [number for number in repeats if number is not None]
    return Needed(max(clean), max(seen), max(known) if len(known) == len(short) else None)


def _dense(found: Comparison) -> dict[str, float]:
    """The dense arm's mean by task, over all that it answered; 0 where that is nothing."""
    means = {}
    for one in found.scores:
        answered = one.dense[np.isfinite(one.dense)]
        means[one.task] = float(answered.mean()) if len(answered) else 0.0
    return means


def _invalid(found: Comparison, rule: Rule) -> list[str]:
    if found.full is None:
        return ["no document was scored; give tasks with documents."]
    said = []
    if found.active is None:
        said.append("no prompt is long enough for sparsity to be active, so both arms computed the same.")
    tasks = found.full.tasks
    above = [one for one in tasks if _dense(found)[one.name] > rule.floor]
    if len(above) < rule.floor_share * len(tasks):
        low = [one for one in tasks if one not in above]
        said.append(
            f"dense scores above {rule.floor:g} on {len(above)} of {len(tasks)} tasks, expected at least "
            f"{rule.floor_share:.0%}; too low: {_names(low)}. Look at the answers: a prompt or a limit is wrong."
        )
    if (control := found.controls.get("same")) and control[0] == FAIL:
        said.append("dense against dense again must pass, but is FAIL: the harness finds harm where there is none.")
    if (control := found.controls.get("degraded")) and control[0] == PASS:
        said.append("an arm broken on purpose passes, so this gate would not notice a broken sparse path.")
    return said


def _too_many_missing(scores: Sequence[TaskScores], rule: Rule) -> list[str]:
    total = sum(len(one.dense) for one in scores)
    return [
        f"{count} of {total} answers of the {arm} arm are missing ({count / total:.1%}), at most "
        f"{rule.missing_limit:.1%} may be; ask them again."
        for arm, count in missing(scores).items()
        if count > rule.missing_limit * total
    ]


def _harm(found: Comparison, rule: Rule, at: Levels, alarm: int | None) -> list[str]:
    if found.full is None:
        return []
    said = []
    if alarm is not None:
        said.append(f"the harm alarm sounded after round {alarm}: a macro loss beyond {_points(rule.macro_margin)}.")
    macro, *parts = found.full.all
    if at.fail > 0 and macro.p_harm <= at.fail:
        said.append(_harmed(macro, macro.p_harm))
    adjusted = holm(np.array([one.p_harm for one in parts]))
    said += [_harmed(one, p) for one, p in zip(parts, adjusted, strict=True) if at.fail > 0 and p <= at.fail]
    return said


def _harmed(one: Estimate, p: float) -> str:
    return (
        f"{one.title} lost more than {_points(one.margin)}: {_signed(one.difference)}, at most {_signed(one.upper)} "
        f"(n = {one.n}, p = {p:.2g}, {one.method})."
    )


def _doubts(found: Comparison, rule: Rule, at: Levels) -> list[str]:
    if found.full is None:
        return []
    said = _all_short("", found.full.all, at)
    if found.active and found.active is not found.full:
        said += _all_short("among long prompts, ", (found.active.macro, *found.active.groups), at)
    if (control := found.controls.get("same")) and control[0] == INCONCLUSIVE:
        said.append("dense against dense again does not pass either: there is too much noise or too little data.")
    if (control := found.controls.get("degraded")) and control[0] == INCONCLUSIVE:
        said.append("an arm broken on purpose does not fail: there is too much noise or too little data.")
    if rule.controls:
        absent = [name for name in ("same", "degraded") if name not in found.controls]
        said += [f"the control {name!r} was not run, so the gate itself is not verified." for name in absent]
    return said


def _all_short(where: str, demanded: Sequence[Estimate], at: Levels) -> list[str]:
    """Why these estimates do not let PASS through."""
    said = []
    few = [one for one in demanded if one.least < one.needed]
    for kind in dict.fromkeys(one.kind for one in few):
        these = [one for one in few if one.kind == kind]
        said.append(
            f"{where}too few independent documents in {_parts(kind, these)}: {min(one.least for one in these)} in the "
            f"smallest task, at least {max(one.needed for one in these)} are needed to exclude a loss of "
            f"{_points(these[0].limit)} even without any disagreement."
        )
    for one in demanded:
        if one.suspect:
            said.append(
                f"{where}{one.title} looks harmed: {_signed(one.difference)} is beyond {_points(one.margin)}, and were "
                f"there no loss at all that would be rare (p = {one.p_loss:.2g}, n = {one.n})."
            )
        if one.least >= one.needed and not one.p_pass <= at.pass_:
            shown = "no bound can be computed" if math.isnan(one.lower) else f"at least {_signed(one.lower)} is shown"
            said.append(
                f"{where}{one.title} may have lost {_points(one.limit)} or more: {_signed(one.difference)}, {shown} "
                f"(n = {one.n}, {one.method})."
            )
    return said


def _points(share: float) -> str:
    return f"{100 * share:.3g} points"


def _signed(share: float) -> str:
    return f"{100 * share:+.2f} points"


def _parts(kind: str, estimates: Sequence[Estimate]) -> str:
    return "all tasks together" if kind == "macro" else f"{kind} {_names(estimates)}"


def _names(estimates: Sequence[Estimate]) -> str:
    return ", ".join(one.name for one in estimates)
