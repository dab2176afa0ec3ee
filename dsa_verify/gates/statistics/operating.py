"""Operating characteristics: how often the whole rule says what, by seeded simulation of assumed truths."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from dsa_verify.gates.statistics.bounds import p_above, p_below
from dsa_verify.gates.statistics.criteria import harms, passes, suspects
from dsa_verify.gates.statistics.paired import Paired
from dsa_verify.gates.statistics.rule import Levels, Rule
from dsa_verify.gates.statistics.stopping import levels, log_evidence
from dsa_verify.gates.statistics.truths import TASKS, Draw, Truth, f1_like, losses_only, lost_answers, zero_or_one

MACRO_MARGINS = (0.010, 0.015, 0.020)
BOUND_SHAPES: dict[str, Draw] = {
    "F1-like": f1_like,
    "F1-like, lost answers": lost_answers,
    "0 or 1": zero_or_one,
    "0 or 1, losses only": losses_only,
}
BOUND_SIZES, BOUND_MARGINS = (30, 60, 100, 150, 200, 500), (0.05, 0.10)
BOUND_RUNS = 5
"""Times as many simulations of one task's bounds: their sizes are held against 0.055."""
_CHUNK = 250
"""Simulations at a time: memory stays below 100 MB."""

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Rates:
    """Shares of simulations. documents: mean share of the documents that a run asked before it stopped."""

    passed: float
    failed: float
    documents: float = 1.0

    @property
    def inconclusive(self) -> float:
        return 1 - self.passed - self.failed


@dataclass(frozen=True)
class Size:
    """How often one task's bounds err at the margin, and how often they show it at no loss. least: of documents."""

    shape: str
    documents: int
    margin: float
    passed: float
    failed: float
    power: float


@dataclass(frozen=True)
class Simulations:
    """How much to simulate. progress is told to `tell`."""

    simulations: int
    seed: int
    tell: Tell = lambda _: None

    def chunks(self, *name: object) -> Iterator[tuple[np.random.Generator, int]]:
        """A generator and a number of simulations at a time; the stream depends on what is simulated, not on order."""
        self.tell(" ".join(map(str, name)))
        rng = np.random.default_rng([self.seed, zlib.crc32(repr(name).encode())])
        for start in range(0, self.simulations, _CHUNK):
            yield rng, min(_CHUNK, self.simulations - start)


def fixed(truth: Truth, rules: Sequence[Rule], plan: Simulations) -> list[Rates]:
    """Verdicts on all documents at once under rules that differ in margins and levels; controls and floor hold."""
    counts = np.zeros((len(rules), 2))
    for rng, number in plan.chunks("fixed", truth.name, truth.uniform):
        tasks = [one for _, one in _draw(truth, rng, number)]
        counts += [[part.sum() for part in verdict(tasks, rule, levels(rule, None))] for rule in rules]
    return [Rates(*row) for row in counts / plan.simulations]


def sequential(truth: Truth, rule: Rule, plan: Simulations) -> Rates:
    """Verdicts of runs that may pass at every look, fail at any round by the alarm, and fail by tests at the end."""
    passed = failed = asked = 0.0
    for rng, number in plan.chunks("sequential", truth.name, truth.uniform):
        runs = _run(truth, rule, rng, number)
        passed, failed, asked = (total + part.sum() for total, part in zip((passed, failed, asked), runs, strict=True))
    return Rates(*(float(total) / plan.simulations for total in (passed, failed, asked)))


def most(truth: Truth, rule: Rule, plan: Simulations) -> tuple[float, float]:
    """How often the macro mean's bound, and with it every group's, would pass if the variances were known.

    No demand on single tasks, no estimated variance, exact level: no rule that demands these bounds passes more.
    """
    means = np.concatenate(
        [[one.moments.mean for _, one in _draw(truth, rng, number)] for rng, number in plan.chunks("most", truth.name)],
        axis=-1,
    )
    variances, names = means.var(-1), list(TASKS)

    def shown(places: Sequence[int], margin: float) -> np.ndarray:
        error = np.sqrt(variances[list(places)].sum()) / len(places)
        return means[list(places)].mean(0) + margin >= stats.norm.isf(rule.alpha) * error

    macro = shown(range(len(names)), rule.macro_margin)
    groups = dict.fromkeys(task.group for task in TASKS.values())
    low = [shown([n for n, name in enumerate(names) if TASKS[name].group == g], rule.group_margin) for g in groups]
    return float(macro.mean()), float((macro & np.array(low).all(0)).mean())


def bound_sizes(plan: Simulations) -> list[Size]:
    """The size of one task's bounds where the truth is the margin, for every shape and number of documents."""
    plan = replace(plan, simulations=BOUND_RUNS * plan.simulations)
    return [
        _size(shape, documents, margin, plan)
        for shape in BOUND_SHAPES
        for documents in BOUND_SIZES
        for margin in BOUND_MARGINS
    ]


def _size(shape: str, documents: int, margin: float, plan: Simulations) -> Size:
    draw, alpha = BOUND_SHAPES[shape], Rule().alpha
    found = np.zeros(3)
    for rng, number in plan.chunks("bound", shape, documents, margin):
        at, without = (_paired(draw, draw(rng, (number, documents), loss)) for loss in (margin, 0.0))
        ps = p_above([at], -margin), p_below([at], -margin), p_above([without], -margin)
        found += [(p <= alpha).sum() for p in ps]
    return Size(shape, documents, margin, *(found / plan.simulations))


def _paired(draw: Draw, difference: np.ndarray) -> Paired:
    return replace(TASKS["trec"], draw=draw).paired(difference)


def _draw(truth: Truth, rng: np.random.Generator, number: int) -> list[tuple[np.ndarray, Paired]]:
    """Differences f64[number, documents] of every task, and what they reduce to."""
    drawn = []
    for name, task in TASKS.items():
        difference = task.draw(rng, (number, truth.documents(name)), truth.loss(name))
        drawn.append((difference, task.paired(difference)))
    return drawn


def verdict(tasks: Sequence[Paired], rule: Rule, at: Levels) -> tuple[np.ndarray, np.ndarray]:
    """bool[simulations]: PASS, FAIL; exactly what `decide` does with estimates."""
    names = list(TASKS)
    groups = [
        [tasks[names.index(name)] for name in names if TASKS[name].group == group]
        for group in dict.fromkeys(task.group for task in TASKS.values())
    ]
    singles = [[one] for one in tasks]
    low = np.array([p_above(part, -rule.group_margin) for part in groups])
    limits = np.array([p_above(part, -rule.task_limit) for part in singles])
    means, no_loss = np.array([one.moments.mean for one in tasks]), np.array([p_below(part, 0.0) for part in singles])
    passed = passes(p_above(tasks, -rule.macro_margin), low, limits, at.pass_)
    passed &= ~suspects(means, no_loss, rule, at).any(0)
    if not at.last:
        return passed, np.zeros_like(passed)
    parts = [p_below(part, -rule.group_margin) for part in groups]
    parts += [p_below(part, -rule.task_margin) for part in singles]
    failed = harms(p_below(tasks, -rule.macro_margin), np.array(parts), at.fail)
    return passed & ~failed, failed


def _run(truth: Truth, rule: Rule, rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """PASS, FAIL and the share of documents asked, f64[number] each."""
    differences = [difference for difference, _ in _draw(truth, rng, number)]
    count = min(one.shape[-1] for one in differences)
    rounds = [np.arange(one.shape[-1]) * count // one.shape[-1] for one in differences]
    alarm = _alarm(differences, rounds, count, rule)
    passed, failed, stopped = np.zeros(number, bool), np.zeros(number, bool), np.full(number, count)
    for look, fraction in enumerate(rule.looks):
        done = int(np.ceil(fraction * count))
        sounded = ~passed & ~failed & (alarm <= done)
        failed |= sounded
        stopped[sounded] = alarm[sounded]
        tasks = [
            task.paired(one[:, when < done])
            for task, one, when in zip(TASKS.values(), differences, rounds, strict=True)
        ]
        shown, harmed = verdict(tasks, rule, levels(rule, look))
        going = ~passed & ~failed
        stopped[going & shown] = done
        passed |= going & shown
        failed |= going & harmed
    return passed, failed, stopped / count


def _alarm(differences: Sequence[np.ndarray], rounds: Sequence[np.ndarray], count: int, rule: Rule) -> np.ndarray:
    """i64[number]: the round of the alarm, beyond `count` where it stays silent."""
    means = []
    for one, when in zip(differences, rounds, strict=True):
        starts = np.searchsorted(when, np.arange(count))
        means.append(np.add.reduceat(one, starts, axis=-1) / np.bincount(when))
    crossed = log_evidence(np.array(means), rule.macro_margin) >= -np.log(rule.alarm_alpha)
    return np.where(crossed.any(-1), crossed.argmax(-1) + 1, count + 1)
