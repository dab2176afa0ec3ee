"""The decision: which scores, controls and missing answers lead to which verdict, and that its reasons say so."""

import dataclasses
import json
import math
from functools import cache

import numpy as np
import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.gates.decision import FAIL, INCONCLUSIVE, INVALID, PASS, Decision, decide, verdict_so_far
from dsa_verify.gates.records import TaskScores
from dsa_verify.gates.statistics import operating, truths
from dsa_verify.gates.statistics.criteria import harms, suspects
from dsa_verify.gates.statistics.estimates import Estimates, measure
from dsa_verify.gates.statistics.needed import still_needed
from dsa_verify.gates.statistics.rule import Levels, Rule
from dsa_verify.gates.statistics.stopping import levels

RULE = Rule(sign_flips=99)


def task(name, group="g", n=200, loss=0.0, seed=0, moving=0.1, active=None) -> TaskScores:
    """Uniform dense scores; a share `moving` is drawn again; then as many sparse answers are lost as `loss` takes."""
    rng = np.random.default_rng([seed, *name.encode()])
    dense = rng.uniform(0, 1, n)
    sparse = np.where(rng.random(n) < moving, rng.uniform(0, 1, n), dense)
    sparse[rng.permutation(n)[: round(2 * loss * n)]] = 0.0
    return TaskScores(name, group, dense, sparse, np.arange(n), np.ones(n, bool) if active is None else active(n))


def run(loss=0.0, n=200, only=None, **more) -> list[TaskScores]:
    """Nine tasks in three groups. only: these tasks lose, the others do not."""
    names = [f"t{i}" for i in range(9)]
    return [
        task(name, f"g{i // 3}", n, loss if only is None or name in only else 0.0, **more)
        for i, name in enumerate(names)
    ]


@cache
def controls() -> dict:
    return {"same": run(moving=0.0), "degraded": run(0.3)}


def verdict_of(scores, rule=RULE, /, **more):
    """With the controls, unless others are given by their names."""
    ran = {name: more.pop(name, usual) for name, usual in controls().items()}
    return decide(scores, rule, controls=ran, **more)


def estimates(found: Decision) -> Estimates:
    assert found.estimates is not None
    return found.estimates


def test_no_loss_passes_and_says_so_first():
    found = verdict_of(run())
    assert (
        found.verdict == PASS and found.sentence.startswith("PASS: ") and found.reasons == () and found.needed is None
    )


def test_identical_arms_pass():
    assert verdict_of(run(moving=0.0)).verdict == PASS


def test_a_loss_everywhere_fails_and_every_reason_is_listed():
    found = verdict_of(run(0.15))
    assert found.verdict == FAIL and found.sentence.startswith("FAIL: ")
    assert "macro mean" in found.reasons[0]
    assert all(any(f"group g{i} " in reason for reason in found.reasons) for i in range(3))


def test_one_harmed_task_fails_the_run_although_the_macro_mean_holds():
    found = verdict_of(run(0.2, only=("t4",)), dataclasses.replace(RULE, macro_margin=0.05))
    assert found.verdict == FAIL and "task t4" in found.sentence
    assert estimates(found).macro.p_harm > 0.5


def test_a_task_that_looks_harmed_withholds_pass():
    rule = dataclasses.replace(RULE, macro_margin=0.05)
    found = verdict_of(run(0.07, only=("t4",)), rule)
    assert found.verdict == INCONCLUSIVE and any("t4 looks harmed" in reason for reason in found.reasons)
    assert verdict_of(run(0.07, only=("t4",)), dataclasses.replace(rule, veto_alpha=1e-30)).verdict == PASS


def test_a_task_with_little_data_withholds_pass_although_the_macro_mean_holds():
    scores = run()
    scores[4] = task("t4", "g1", 18)
    found = verdict_of(scores)
    assert found.verdict == INCONCLUSIVE
    assert any("too few independent documents in task t4: 18" in reason and "19" in reason for reason in found.reasons)


def test_documents_of_one_context_count_once():
    shared = [dataclasses.replace(one, cluster=np.arange(200) // 12) for one in run(moving=0.0)]
    assert any("too few independent documents" in reason for reason in verdict_of(shared).reasons)


def test_few_documents_are_inconclusive_however_equal():
    found = verdict_of(run(n=12, moving=0.0))
    assert found.verdict == INCONCLUSIVE and "too few" in found.sentence


def test_what_is_still_needed_would_do():
    scores, rule = run(n=60, moving=0.5, seed=1), dataclasses.replace(RULE, controls=False)
    found = decide(scores, rule)
    assert found.verdict == INCONCLUSIVE and found.needed and "more documents" in found.reasons[-1]
    enough = int(60 * found.needed.without_loss) + 1
    assert enough > 120
    passed = [decide(run(n=enough, moving=0.5, seed=seed), rule).verdict == PASS for seed in range(10)]
    # Aimed at a power of 0.8 a demand: fewer than 4 of 10 would be a fault (chance 1e-3 even at 0.8 ** 3 in all).
    assert sum(passed) >= 4


def test_noise_known_from_the_control_gives_repeats_instead():
    """The control shows as much noise as the run, so repeats do exactly what documents do."""
    scores, rule = run(n=200, moving=0.6, seed=5), dataclasses.replace(RULE, macro_margin=0.02)
    full = measure(scores, rule, levels(rule, None))
    wanted = still_needed([full], full, dataclasses.replace(rule, power=0.999), Levels(1e-6, 0.05))
    assert wanted and wanted.without_loss > 2 and wanted.repeats == math.ceil(wanted.without_loss)
    without_noise = verdict_of(run(n=60, moving=0.5)).needed
    assert without_noise and without_noise.repeats is None


def test_the_long_prompts_are_judged_on_their_own():
    """Half the prompts are short and equal; the loss of the long ones is diluted to half."""

    def half(n):
        return np.arange(n) < n // 2

    scores = run(moving=0.05, active=half)
    for one in scores:
        one.sparse[100:] = one.dense[100:]
        one.sparse[:5] = 0.0
    diluted = [dataclasses.replace(one, active=np.ones(200, bool)) for one in scores]
    rule = dataclasses.replace(RULE, macro_margin=0.035)
    assert verdict_of(diluted, rule).verdict == PASS
    found = verdict_of(scores, rule)
    assert found.verdict == INCONCLUSIVE and all("among long prompts" in reason for reason in found.reasons[:1])
    assert found.active and found.active.macro.n == 900 and estimates(found).macro.n == 1800


@pytest.mark.parametrize(
    ("scores", "more", "text"),
    [
        ([], {}, "no document was scored"),
        (run(active=lambda n: np.zeros(n, bool)), {}, "long enough"),
        (run(), {"same": run(0.1)}, "dense against dense again must pass"),
        (run(), {"degraded": run()}, "broken on purpose passes"),
        (run(0.3), {"degraded": run()}, "broken on purpose passes"),
        ([dataclasses.replace(one, dense=one.dense * 0.05, sparse=one.sparse * 0.05) for one in run()], {}, "0 of 9"),
    ],
)
def test_a_run_that_shows_nothing_is_invalid_whatever_its_scores(scores, more, text):
    found = verdict_of(scores, **more)
    assert found.verdict == INVALID and found.sentence.startswith("INVALID: ")
    assert any(text in reason for reason in found.reasons)


MISSING_MANY = [dataclasses.replace(one, sparse=np.where(np.arange(200) < 9, np.nan, one.sparse)) for one in run(0.15)]
FEW = {"same": run(n=20, moving=0.0)}
CUT = "the arms counted different prompt tokens."


@pytest.mark.parametrize(
    ("scores", "more", "verdict", "order"),
    [
        (run(0.15), {"contradictions": [CUT], "degraded": run()}, INVALID, (CUT, "broken on purpose passes", "macro")),
        (MISSING_MANY, {"contradictions": [CUT]}, INVALID, (CUT, "ask them again", "macro mean lost more")),
        (run(), {"contradictions": [CUT], **FEW}, INVALID, (CUT,)),
        ([], {"contradictions": [CUT]}, INVALID, (CUT, "no document was scored")),
        (MISSING_MANY, {"degraded": run()}, INVALID, ("broken on purpose passes", "ask them again", "lost more")),
        (MISSING_MANY, FEW, INCONCLUSIVE, ("ask them again", "macro mean lost more", "does not pass either")),
        (run(0.15), FEW, FAIL, ("macro mean lost more",)),
        (run(), FEW, INCONCLUSIVE, ("does not pass either",)),
        (run(), {}, PASS, ()),
    ],
)
def test_the_gravest_demand_that_is_missed_decides_and_its_reason_stands_first(scores, more, verdict, order):
    found = verdict_of(scores, **more)
    assert found.verdict == verdict and found.sentence.startswith(f"{verdict}: ")
    places = [next(n for n, reason in enumerate(found.reasons) if text in reason) for text in order]
    assert places == sorted(places) and places[:1] in ([], [0])
    assert not order or found.sentence.endswith(found.reasons[0])
    doubts = ("may have lost", "too few", "does not pass either", "more documents")
    assert verdict == INCONCLUSIVE or not any(doubt in reason for doubt in doubts for reason in found.reasons)
    assert (found.needed is None) or verdict == INCONCLUSIVE


def test_controls_are_not_missed_in_a_verdict_on_the_way():
    assert [verdict_so_far(scores, RULE) for scores in (run(), run(0.15), [])] == [PASS, FAIL, INVALID]
    assert verdict_so_far(run(0.15), RULE, look=0) == INCONCLUSIVE
    assert verdict_so_far(run(0.15), RULE, look=0, alarm=17) == FAIL


def test_a_control_with_too_few_documents_allows_no_pass_and_hides_no_harm():
    few = {"same": run(n=20, moving=0.0)}
    found = verdict_of(run(), **few)
    assert found.verdict == INCONCLUSIVE and any("does not pass either" in reason for reason in found.reasons)
    assert verdict_of(run(0.3), **few).verdict == FAIL
    slightly = {"degraded": run(0.02, n=40)}
    found = verdict_of(run(), **slightly)
    assert found.verdict == INCONCLUSIVE and any("does not fail" in reason for reason in found.reasons)


def test_a_sparse_arm_without_an_answer_is_not_blamed_on_dense():
    scores = [dataclasses.replace(one, sparse=np.full_like(one.sparse, np.nan)) for one in run()]
    found = verdict_of(scores)
    assert found.verdict == INCONCLUSIVE and "of the sparse arm are missing" in found.reasons[0]


def test_a_third_of_the_tasks_may_lie_below_the_floor_and_is_named():
    scores = run()
    for one in scores[:3]:
        one.dense[:] *= 0.05
        one.sparse[:] *= 0.05
    found = verdict_of(scores)
    assert found.verdict == PASS and any("t0, t1, t2" in note for note in found.notes)
    scores[3].dense[:] *= 0.05
    assert verdict_of(scores).verdict == INVALID


def test_without_controls_nothing_passes_but_harm_still_fails():
    found = decide(run(), RULE)
    assert found.verdict == INCONCLUSIVE and sum("was not run" in reason for reason in found.reasons) == 2
    assert decide(run(), dataclasses.replace(RULE, controls=False)).verdict == PASS
    assert decide(run(0.15), RULE).verdict == FAIL


def lose_answers(scores, arm, count):
    for one in scores[:count]:
        getattr(one, arm)[0] = np.nan
    return scores


def test_a_few_missing_answers_count_at_their_worst_for_pass():
    """A task of 40 documents whose one missing answer decides: at its worst the task may have lost its limit."""
    rule = dataclasses.replace(RULE, task_limit=0.08, group_margin=0.08, missing_limit=0.05)
    scores = run(moving=0.0)
    scores[4] = task("t4", "g1", 40, moving=0.0)
    assert verdict_of(scores, rule).verdict == PASS
    scores[4].sparse[0] = np.nan
    found = verdict_of(scores, rule)
    assert found.verdict == INCONCLUSIVE and found.missing == {"dense": 0, "sparse": 1}
    assert estimates(found).tasks[4].difference == 0.0 and estimates(found).tasks[4].n == 39


def test_missing_answers_count_at_their_best_for_fail():
    scores = run(0.04)
    assert verdict_of(scores).verdict == FAIL
    for one in scores:
        one.sparse[np.flatnonzero(one.sparse == 0.0)[:10]] = np.nan
    assert verdict_of(scores, dataclasses.replace(RULE, missing_limit=0.2)).verdict != FAIL


@pytest.mark.parametrize("arm", ["dense", "sparse"])
def test_too_many_missing_answers_in_an_arm_allow_no_verdict(arm):
    within, beyond = lose_answers(run(), arm, 9), lose_answers(run(0.15), arm, 9)
    beyond[0] = dataclasses.replace(beyond[0], **{arm: np.where(np.arange(200) < 2, np.nan, getattr(beyond[0], arm))})
    assert verdict_of(within).verdict == PASS and any("9 answers" in note for note in verdict_of(within).notes)
    found = verdict_of(beyond)
    assert found.verdict == INCONCLUSIVE and "ask them again" in found.sentence


def test_a_task_without_any_answer_is_no_pass_and_no_crash():
    scores = run()
    scores[2].sparse[:] = np.nan
    found = verdict_of(scores, dataclasses.replace(RULE, missing_limit=0.5))
    assert found.verdict == INCONCLUSIVE
    json.dumps(found.document(), allow_nan=False)


def test_at_an_early_look_only_the_alarm_fails_a_run():
    scores = run(0.15)
    assert verdict_of(scores, look=0).verdict == INCONCLUSIVE
    assert verdict_of(scores, look=3).verdict == FAIL
    found = verdict_of(scores, look=0, alarm=17)
    assert found.verdict == FAIL and "round 17" in found.sentence


def test_an_early_look_demands_more_than_the_last():
    scores = run(0.003, moving=0.3, seed=3)
    lower = [estimates(verdict_of(scores, look=look)).macro.lower for look in (*range(4), None)]
    assert lower == sorted(lower) and len(set(lower)) == 5


def test_the_document_is_json_with_the_promised_keys():
    document = json.loads(json.dumps(verdict_of(run(n=30)).document(), allow_nan=False))
    assert {"verdict", "macro", "groups", "tasks", "controls", "missing"} <= set(document)
    numbers = {"n", "mean_dense", "mean_sparse", "difference", "lower", "upper", "margin"}
    for one in (document["macro"], *document["groups"], *document["tasks"]):
        assert numbers <= set(one)
    assert document["needed"]["without_loss"] >= 1


@pytest.mark.parametrize(
    ("scores", "text"),
    [
        ([task("a"), task("a")], "twice"),
        ([dataclasses.replace(task("a"), cluster=np.arange(3))], "arrays of"),
        ([dataclasses.replace(task("a"), dense=np.full(200, 1.5))], "1.5"),
    ],
)
def test_scores_that_contradict_themselves_are_refused(scores, text):
    with pytest.raises(ConfigError, match=text):
        decide(scores, RULE)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("looks", looks) for looks in ((0.5, 0.4, 1.0), (0.5,), ())),
        ("alpha", 0.0),
        ("floor", -1.0),
        ("task_limit", 0.01),
        ("alarm_alpha", 0.05),
        ("sign_flips", 0),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        Rule(**{field: value})


def test_holm_protects_groups_and_tasks_and_a_level_of_none_fails_nothing():
    parts = np.array([0.01, 0.9, 0.9, 0.9])
    assert harms(np.array(0.5), parts, 0.05) and not harms(np.array(0.5), parts, 0.03)
    assert not harms(np.array(0.0), parts, 0.0)


def test_a_suspect_needs_both_size_and_significance():
    p, means = np.array([1e-6, 1e-6, 0.2]), np.array([-0.06, -0.04, -0.2])
    assert list(suspects(means, p, RULE, Levels(0.05, 0.05))) == [True, False, False]
    # Before the last look size is enough.
    assert list(suspects(means, p, RULE, Levels(0.05, 0.0))) == [True, False, True]


@pytest.mark.parametrize("seed", range(6))
def test_decide_and_the_simulated_rule_agree(seed):
    """The table of operating characteristics speaks of this rule, not of a second one."""
    rng = np.random.default_rng(seed)
    loss, at = (0.0, 0.004, 0.012, 0.03, 0.06, 0.02)[seed], levels(RULE, None)
    scores, tasks = [], []
    for name, one in truths.TASKS.items():
        difference = one.draw(rng, (1, one.documents), loss)
        dense = (
            np.where(difference[0] < 0, 1.0, 0.0) if one.draw is truths.zero_or_one else -np.minimum(difference[0], 0)
        )
        each, active = np.arange(len(dense)), np.ones(len(dense), bool)
        scores.append(TaskScores(name, one.group, dense, dense + difference[0], each, active))
        tasks.append(one.paired(scores[-1].difference[None]))
    found = measure(scores, RULE, at)
    passed, failed = operating.verdict(tasks, RULE, at)
    assert bool(failed[0]) == found.harmed(at.fail)
    assert bool(passed[0]) == (found.passes(at.pass_) and not found.harmed(at.fail))
    assert operating.verdict(tasks, RULE, Levels(at.pass_, 0.0))[1].sum() == 0
