"""The page that `dsa-verify gate operating` writes: what the rule does under assumed truths, as Markdown."""

from collections.abc import Sequence
from dataclasses import replace

from dsa_verify.gates.statistics.operating import (
    BOUND_RUNS,
    MACRO_MARGINS,
    Rates,
    Simulations,
    Size,
    bound_sizes,
    fixed,
    most,
    sequential,
)
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.statistics.truths import DISCORDANCE, MOVING, ROUGE_SD, TRUTHS, Truth

NEVER = 1e-30
"""A veto at this level is none."""
SEQUENTIAL = (
    Truth("no loss"),
    Truth("uniform -.005", 0.005),
    Truth("uniform at the margin", 0.015),
    Truth("uniform -.05", 0.05),
    Truth("one QA task -.10", on={"hotpotqa": 0.10}),
)
_HEAD = """# What the gate's rule does

Written by `dsa-verify gate operating --simulations {simulations} --seed {seed}`; do not edit.
Shares of {simulations:,} simulated runs, so 0.05 is known to within {error:.4f} (two standard errors). No bound
resamples, so nothing is bootstrapped within a simulation.

Assumed, not measured: LongBench's 16 English tasks with all their documents; 8 F1-like tasks ({moving:.0%} of the
answers change, by SD 0.4), 4 ROUGE-like (SD {rouge}), 4 of 0 or 1 ({discordance:.2%} of the documents discordant);
independent documents; controls sound, dense above the floor, nothing missing, all prompts long.

{rule}.
"""


def page(plan: Simulations) -> str:
    """All tables. plan: simulations a row, seed."""
    rule = Rule()
    head = _HEAD.format(
        simulations=plan.simulations,
        seed=plan.seed,
        error=2 * (0.05 * 0.95 / plan.simulations) ** 0.5,
        moving=MOVING,
        rouge=ROUGE_SD,
        discordance=DISCORDANCE,
        rule=f"The rule: alpha {rule.alpha}, group margin {rule.group_margin}, task margin {rule.task_margin}, task "
        f"limit {rule.task_limit}, veto {rule.veto_alpha}",
    )
    parts = (head, _whole(plan), _most(plan), _looks(plan), _bounds(bound_sizes(plan)))
    return "\n".join(parts)


def _whole(plan: Simulations) -> str:
    rules = [Rule(macro_margin=margin) for margin in MACRO_MARGINS]
    # The last column is the rule at .015 as it would be without its demands on single tasks.
    rules.append(replace(Rule(), task_limit=0.999, veto_alpha=NEVER))
    rows = [(truth.name, fixed(truth, rules, plan)) for truth in TRUTHS]
    at = [fixed(Truth("uniform at the margin", one.macro_margin), [one], plan)[0] for one in rules]
    rows.insert(3, ("uniform at the margin", at))
    head = ["truth", *(f"macro margin {margin:.3f}" for margin in MACRO_MARGINS), "0.015, single tasks free"]
    body = [[name, *map(_three, rates)] for name, rates in rows]
    return "## The whole rule: PASS / FAIL / INCONCLUSIVE\n\n" + _table(head, body)


def _most(plan: Simulations) -> str:
    found = [(truth.name, most(truth, Rule(), plan)) for truth in SEQUENTIAL[:3]]
    rows = [[name, *(f"{share:.3f}" for share in shares)] for name, shares in found]
    return "## The most that bounds of this level can pass: variances known, macro margin 0.015\n\n" + _table(
        ["truth", "macro mean alone", "macro mean and every group"], rows
    )


def _looks(plan: Simulations) -> str:
    looks = ", ".join(f"{look:.0%}" for look in Rule().looks)
    rows = []
    for truth in SEQUENTIAL:
        rates = sequential(truth, Rule(), plan)
        rows.append([truth.name, _three(rates), f"{rates.documents:.2f}"])
    return f"## With looks at {looks} and the harm alarm, macro margin 0.015\n\n" + _table(
        ["truth", "PASS / FAIL / INCONCLUSIVE", "share of the documents asked"], rows
    )


def _bounds(sizes: Sequence[Size]) -> str:
    rows = [
        [one.shape, str(one.documents), f"{one.margin:.2f}", *(f"{x:.3f}" for x in (one.passed, one.failed, one.power))]
        for one in sizes
    ]
    head = ["scores", "documents", "margin", "size of PASS", "size of FAIL", "power at no loss"]
    runs = f"{BOUND_RUNS} times as many simulations.\n\n"
    return "## One task's bounds where the truth is the margin\n\n" + runs + _table(head, rows)


def _three(rates: Rates) -> str:
    return f"{rates.passed:.3f} / {rates.failed:.3f} / {rates.inconclusive:.3f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
