"""Early stopping: boundaries, the order of documents, and an alarm that may be looked at any time."""

import numpy as np
import pytest
from scipy import integrate, stats

from dsa_verify.errors import ConfigError
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics.rule import Rule
from dsa_verify.gates.statistics.stopping import (
    alarm_round,
    boundaries,
    evidence_of_harm,
    levels,
    log_evidence,
    schedule,
)

LOOKS = Rule().looks


def test_the_boundaries_are_obrien_and_flemings():
    assert [round(z, 3) for z in boundaries(LOOKS, 0.05)] == [3.466, 2.451, 2.001, 1.733]


def test_one_look_costs_nothing():
    assert boundaries((1.0,), 0.05) == pytest.approx([stats.norm.isf(0.05)], abs=1e-8)


def test_two_looks_spend_alpha_exactly():
    early, late = boundaries((0.3, 1.0), 0.025)
    # Given the first score, the second is normal with mean sqrt(.3) times it and variance .7.
    below = integrate.quad(
        lambda z: stats.norm.pdf(z) * stats.norm.cdf((late - 0.3**0.5 * z) / 0.7**0.5), -9, early, epsabs=1e-12
    )[0]
    assert 1 - below == pytest.approx(0.025, abs=1e-8)


def test_unequal_looks_spend_alpha_in_simulation():
    looks = (0.1, 0.4, 0.9, 1.0)
    steps = np.random.default_rng(2).normal(size=(200_000, 4)) * np.sqrt(np.diff((0.0, *looks)))
    z = np.cumsum(steps, -1) / np.sqrt(looks)
    # 200,000 paths: four standard errors of 0.05 are 0.002.
    assert (z >= boundaries(looks, 0.05)).any(-1).mean() == pytest.approx(0.05, abs=0.002)


def test_harm_is_tested_at_the_last_look_with_what_the_alarm_has_left():
    rule = Rule()
    assert [levels(rule, look).fail for look in range(4)] == pytest.approx([0, 0, 0, 0.04])
    assert levels(rule, None).fail == levels(rule, None).pass_ == 0.05
    assert [levels(rule, look).pass_ for look in range(4)] == pytest.approx(stats.norm.sf(boundaries(LOOKS, 0.05)))


def clusters():
    return {"a": np.arange(30), "b": np.repeat(np.arange(50), 2), "c": np.arange(75)[::-1].copy()}


def test_every_round_asks_every_task_and_whole_documents():
    order = schedule(clusters(), Rule())
    assert order.count == 30 and order.looks == (8, 15, 23, 30)
    for name, cluster in clusters().items():
        counts = np.bincount(order.rounds[name], minlength=30)
        assert counts.min() >= 1 and order.rounds[name].max() == 29
        for one in np.unique(cluster):
            assert len(set(order.rounds[name][cluster == one])) == 1
        # Each round has its share of the clusters, to one.
        per_round = [len(np.unique(cluster[order.rounds[name] == r])) for r in range(30)]
        assert max(per_round) - min(per_round) <= 1


def test_the_order_is_the_seeds_and_no_other_tasks():
    whole, again = schedule(clusters(), Rule()), schedule(clusters(), Rule())
    fewer = schedule({name: one for name, one in clusters().items() if name != "c"}, Rule())
    other = schedule(clusters(), Rule(seed=1))
    for name in ("a", "b"):
        assert (whole.rounds[name] == again.rounds[name]).all() and (whole.rounds[name] == fewer.rounds[name]).all()
        assert (whole.rounds[name] != other.rounds[name]).any()


def test_a_task_without_documents_is_refused():
    with pytest.raises(ConfigError, match="empty"):
        schedule({"full": np.arange(3), "empty": np.arange(0)}, Rule())


def scores(task: str, difference: np.ndarray) -> TaskScores:
    n = len(difference)
    dense = np.full(n, 0.5)
    return TaskScores(task, "g", dense, dense + difference, np.arange(n), np.ones(n, bool))


def drawn(seed: int, losses: tuple[float, ...], shape=(2000, 120)) -> np.ndarray:
    """f64[tasks, simulations, rounds]: normal differences, SD 0.15, clipped to what half-way scores allow."""
    rng = np.random.default_rng(seed)
    return np.array([np.clip(rng.normal(-loss, 0.15, shape), -0.5, 0.5) for loss in losses])


def ever(means: np.ndarray) -> np.ndarray:
    return (log_evidence(means, 0.05) >= -np.log(0.05)).any(-1)


def test_the_alarm_rarely_sounds_at_the_margin_however_often_one_looks():
    assert ever(drawn(3, (0.05,) * 4)).mean() <= 0.05


def test_the_alarm_holds_when_one_task_loses_much_and_the_macro_mean_is_at_the_margin():
    assert ever(drawn(4, (0.20, 0.0, 0.0, 0.0))).mean() <= 0.05


def test_the_alarm_hears_a_loss_beyond_the_margin():
    assert ever(drawn(5, (0.12,) * 4, (200, 120))).mean() > 0.99


def test_the_alarm_names_its_round_and_missing_answers_count_for_sparse():
    rule, d = Rule(), np.full(60, -0.4)
    both = [scores("a", d), scores("b", d)]
    plan = schedule({one.task: one.cluster for one in both}, rule)
    evidence = evidence_of_harm(both, plan, rule.macro_margin, plan.count)
    sounded = alarm_round(evidence, rule)
    assert sounded is not None and evidence[sounded - 1] >= 100 > evidence[sounded - 2]
    both[0].sparse[:] = np.nan
    both[1].sparse[:] = np.nan
    assert alarm_round(evidence_of_harm(both, plan, rule.macro_margin, plan.count), rule) is None


def test_the_alarm_looks_at_no_document_that_was_not_asked():
    rule, d = Rule(), np.random.default_rng(1).uniform(-0.5, 0.5, 40)
    one = scores("a", d)
    plan = schedule({"a": one.cluster}, rule)
    early = evidence_of_harm([one], plan, 0.015, 10)
    one.sparse[plan.rounds["a"] >= 10] = 0.0
    assert early == pytest.approx(evidence_of_harm([one], plan, 0.015, 10))
    assert plan.asked(one, 10).dense.size == 10
