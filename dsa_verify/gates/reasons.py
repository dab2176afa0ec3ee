"""Sentences: how the gate says a verdict, a demand that was missed, and what else a reader should know."""

import math
from collections.abc import Sequence

from dsa_verify.gates.statistics.estimates import Estimate, Estimates
from dsa_verify.gates.statistics.needed import Needed
from dsa_verify.gates.statistics.rule import FAIL, INVALID, PASS, Rule
from dsa_verify.report.formats import points, rounded_points

NO_DOCUMENT = "no document was scored; give tasks with documents."
NO_LONG_PROMPT = "no prompt is long enough for sparsity to be active, so both arms computed the same."
CONTROL_INVALID = {
    "same": "dense against dense again must pass, but is FAIL: the harness finds harm where there is none.",
    "degraded": "an arm broken on purpose passes, so this gate would not notice a broken sparse path.",
}
"""A control whose verdict says that the gate itself cannot be believed, by its name."""
CONTROL_IN_DOUBT = {
    "same": "dense against dense again does not pass either: there is too much noise or too little data.",
    "degraded": "an arm broken on purpose does not fail: there is too much noise or too little data.",
}
"""A control without a verdict, by its name."""
AMONG_LONG = "among long prompts, "


def sentence(verdict: str, full: Estimates | None, rule: Rule, why: Sequence[str]) -> str:
    """A verdict in one sentence."""
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


def dense_too_low(tasks: Sequence[Estimate], low: Sequence[Estimate], rule: Rule) -> str:
    """Of all tasks, on these the dense arm scores next to nothing."""
    return (
        f"dense scores above {rule.floor:g} on {len(tasks) - len(low)} of {len(tasks)} tasks, expected at least "
        f"{rule.floor_share:.0%}; too low: {_names(low)}. Look at the answers: a prompt or a limit is wrong."
    )


def too_many_missing(arm: str, count: int, total: int, rule: Rule) -> str:
    """An arm left so many of all answers out."""
    return (
        f"{count} of {total} answers of the {arm} arm are missing ({count / total:.1%}), at most "
        f"{rule.missing_limit:.1%} may be; ask them again."
    )


def alarmed(after: int, rule: Rule) -> str:
    """The harm alarm, with the number of rounds that it took."""
    return f"the harm alarm sounded after round {after}: a macro loss beyond {_points(rule.macro_margin)}."


def harmed(one: Estimate, p: float) -> str:
    """An estimate that is shown to be below its margin. p: corrected for the number of tests."""
    return (
        f"{one.title} lost more than {_points(one.margin)}: {_signed(one.difference)}, at most {_signed(one.upper)} "
        f"(n = {one.n}, p = {p:.2g}, {one.method})."
    )


def too_few(where: str, kind: str, estimates: Sequence[Estimate]) -> str:
    """Estimates of one kind of too few documents for any bound to exclude their limit."""
    parts = "all tasks together" if kind == "macro" else f"{kind} {_names(estimates)}"
    return (
        f"{where}too few independent documents in {parts}: {min(one.least for one in estimates)} in the "
        f"smallest task, at least {max(one.needed for one in estimates)} are needed to exclude a loss of "
        f"{_points(estimates[0].limit)} even without any disagreement."
    )


def suspect(where: str, one: Estimate) -> str:
    """A task that looks harmed."""
    return (
        f"{where}{one.title} looks harmed: {_signed(one.difference)} is beyond {_points(one.margin)}, and were "
        f"there no loss at all that would be rare (p = {one.p_loss:.2g}, n = {one.n})."
    )


def not_shown(where: str, one: Estimate) -> str:
    """An estimate that is not shown to be above its limit."""
    shown = "no bound can be computed" if math.isnan(one.lower) else f"at least {_signed(one.lower)} is shown"
    return (
        f"{where}{one.title} may have lost {_points(one.limit)} or more: {_signed(one.difference)}, {shown} "
        f"(n = {one.n}, {one.method})."
    )


def control_absent(name: str) -> str:
    """A control that PASS demands and that was not run."""
    return f"the control {name!r} was not run, so the gate itself is not verified."


def still_needed(needed: Needed, documents: int) -> str:
    """What a run of so many documents still lacks."""
    more = math.ceil(documents * (needed.without_loss - 1))
    if more > 0:
        instead = f" (or {needed.repeats} repeats of each)" if needed.repeats and needed.repeats > 1 else ""
        text = f"About {more:,} more documents{instead} would show it, were there no loss"
    else:
        text = "These documents would have shown it, were there no loss"
    if math.isinf(needed.as_estimated):
        return f"{text}; at the present estimates no number would."
    return f"{text}; at the present estimates {math.ceil(documents * (needed.as_estimated - 1)):,} more."


def some_missing(arm: str, count: int) -> str:
    """A note: an arm left answers out, though not too many."""
    return f"{count} answers of the {arm} arm are missing; bounds take them at their worst or best."


def short_prompts(names: Sequence[str]) -> str:
    """A note: tasks whose every prompt is short."""
    return f"No prompt of {', '.join(names)} is long enough for sparsity; they say nothing about it."


def little_to_lose(low: Sequence[Estimate], rule: Rule) -> str:
    """A note: tasks on which the dense arm scores next to nothing."""
    return f"Dense scores at most {rule.floor:g} on {_names(low)}, where it has little to lose."


def _points(share: float) -> str:
    return f"{rounded_points(share)} points"


def _signed(share: float) -> str:
    return f"{points(share, '+')} points"


def _names(estimates: Sequence[Estimate]) -> str:
    return ", ".join(one.name for one in estimates)
