"""A run of the gate with arms that answer by rule: when it stops, what makes it invalid, what is never scored as 0."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from dsa_verify.gates.run import GateOutcome, run
from dsa_verify.gates.tasks.longbench import longbench
from tests.gates.fakes import DOCUMENTS, NAMES, RIGHT, RULE, TASKS, Fake, document_of, gate, right, wrong

ALL = len(NAMES) * DOCUMENTS
CONTROLS = dataclasses.replace(RULE, controls=True)
FIRST = TASKS[0].documents[0].question.key


def sparse(**options: Any) -> Fake:
    return Fake("sparse", facts={"sparse_prefill": 9}, **options)


def dense(**options: Any) -> Fake:
    return Fake("dense", facts={"sparse_prefill": 0}, **options)


def some(share: float, otherwise=wrong):
    """Right but for this share of each task's documents."""

    def says(key: str) -> str | None:
        number = int(document_of(key).rpartition("-")[2])
        return otherwise(key) if number < share * DOCUMENTS else right(key)

    return says


def only(key: str, **fields: Any):
    """Changes of one answer."""
    return lambda asked: fields if asked == key else {}


def first_reason(outcome: GateOutcome) -> str:
    assert outcome.decision.verdict == "INVALID"
    assert outcome.decision.sentence.endswith(outcome.decision.reasons[0])
    return outcome.decision.reasons[0]


def test_equal_arms_pass_at_a_look_before_all_is_asked():
    arms = dense(), sparse()
    outcome = run(gate(*arms, looks=True))
    assert outcome.decision.verdict == "PASS"
    assert (outcome.rounds, outcome.of_rounds) == (30, 40), "at the third look"
    assert [arm.count for arm in arms] == [ALL * 3 // 4] * 2
    assert [len(keys) for keys in arms[0].asked] == [ALL // 4] * 3
    assert arms[0].asked == arms[1].asked, "both arms get the same questions"
    assert len({key for keys in arms[0].asked for key in keys}) == ALL * 3 // 4, "none is asked twice"


def test_without_looks_all_is_asked_at_once():
    arms = dense(), sparse()
    outcome = run(gate(*arms))
    assert outcome.decision.verdict == "PASS"
    assert [[len(keys) for keys in arm.asked] for arm in arms] == [[ALL], [ALL]]


def test_great_harm_sounds_the_alarm_at_the_first_look():
    outcome = run(gate(sparse=sparse(says=wrong), looks=True))
    assert outcome.decision.verdict == "FAIL"
    assert outcome.rounds == 10
    assert "the harm alarm sounded after round" in outcome.decision.reasons[0]


def test_harm_in_one_task_fails_and_names_it():
    half = some(0.5)
    outcome = run(gate(sparse=sparse(says=lambda key: (half if key.startswith("trec") else right)(key))))
    assert outcome.decision.verdict == "FAIL"
    assert any("task trec lost more than 20 points" in reason for reason in outcome.decision.reasons)


def test_loss_that_few_documents_cannot_tell_is_inconclusive_and_says_what_is_needed():
    outcome = run(gate(sparse=sparse(says=some(0.1)), looks=True))
    assert outcome.decision.verdict == "INCONCLUSIVE"
    assert outcome.rounds == 40
    assert outcome.decision.needed is not None
    assert outcome.decision.estimates is not None
    assert outcome.decision.estimates.macro.difference == pytest.approx(-0.1)


def test_controls_are_run_and_the_broken_one_no_longer_than_it_needs():
    same, degraded = Fake("same"), Fake("degraded", says=wrong)
    arms = dense(), sparse()
    outcome = run(gate(*arms, rule=CONTROLS, same=same, degraded=degraded, looks=True))
    assert outcome.decision.verdict == "PASS"
    assert {one.name: (one.verdict, one.sound) for one in outcome.decision.controls} == {
        "same": ("PASS", True), "degraded": ("FAIL", True),
    }  # fmt: skip
    assert {key for keys in same.asked for key in keys} == {key for keys in arms[0].asked for key in keys}
    assert degraded.count <= same.count // 4 + len(NAMES)
    assert set(outcome.manifests) == {"dense", "sparse", "same", "degraded"}


def test_dense_that_differs_from_itself_is_invalid():
    outcome = run(gate(rule=CONTROLS, same=Fake("same", says=some(0.5)), degraded=Fake("degraded", says=wrong)))
    assert "dense against dense again must pass" in first_reason(outcome)


def test_broken_arm_that_passes_is_invalid():
    degraded = Fake("degraded")
    outcome = run(gate(rule=CONTROLS, same=Fake("same"), degraded=degraded))
    assert "an arm broken on purpose passes" in first_reason(outcome)
    assert degraded.count == ALL, "it was given every chance to fail"


def test_pass_without_a_demanded_control_is_inconclusive():
    outcome = run(gate(rule=CONTROLS, same=Fake("same")))
    assert outcome.decision.verdict == "INCONCLUSIVE"
    assert "'degraded' was not run" in outcome.decision.sentence


def test_dead_dense_arm_is_invalid():
    outcome = run(gate(dense(says=wrong), sparse(says=wrong)))
    assert "dense scores above 0.05 on 0 of 4 tasks" in first_reason(outcome)


def test_prompts_too_short_for_sparsity_are_invalid():
    outcome = run(gate(active_tokens=100))
    assert "no prompt is long enough for sparsity" in first_reason(outcome)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt_sha": "other"}, "given different prompts"),
        ({"payload_sha": "other"}, "sent different settings"),
        ({"prompt_tokens": 99}, "counted different prompt tokens"),
        ({"cached_tokens": 64}, "the sparse arm took part of the prompt from a prefix cache"),
    ],
)
def test_answers_that_contradict_each_other_are_invalid(changes, words):
    (key,) = [key for key in run(gate()).answers["dense"] if key.startswith("qasper")][:1]
    reason = first_reason(run(gate(sparse=sparse(changes=only(key, **changes)))))
    assert words in reason
    assert f"for 1 documents, the first is {key}." in reason


@pytest.mark.parametrize("name", ["same", "degraded"])
def test_control_that_was_not_asked_the_same_is_invalid(name):
    """A prefix cache answers dense against dense from memory, which shows nothing."""
    controls = {"same": Fake("same"), "degraded": Fake("degraded", says=wrong)}
    controls[name].changes = lambda key: {"cached_tokens": 64}
    reason = first_reason(run(gate(rule=CONTROLS, **controls)))
    assert f"the {name} arm took part of the prompt from a prefix cache" in reason


def test_harm_does_not_hide_a_contradiction():
    outcome = run(gate(sparse=sparse(says=wrong, changes=lambda key: {"prompt_tokens": 99}), looks=True))
    assert "counted different prompt tokens" in first_reason(outcome)
    assert any("alarm" in reason for reason in outcome.decision.reasons), "the rest is still told"


@pytest.mark.parametrize(
    ("dense_facts", "sparse_facts", "words"),
    [
        ({"page_size": 64}, {"page_size": 128}, "the arms differ in page_size: 64 in dense, 128 in sparse"),
        ({"a": {"b": 1}}, {"a": {}}, "the arms differ in a.b: 1 in dense, 'not stated' in sparse"),
        ({}, {"sparse_prefill": 0}, "the sparse arm never ran sparse prefill"),
        ({}, {"sparse_prefill": None}, "does not say whether prefill was sparse"),
        ({"sparse_prefill": 4}, {}, "the dense arm ran sparse prefill"),
    ],
)
def test_manifests_that_do_not_prove_the_treatment_are_invalid(dense_facts, sparse_facts, words):
    arms = dense(), sparse()
    arms[0].facts, arms[1].facts = {**arms[0].facts, **dense_facts}, {**arms[1].facts, **sparse_facts}
    assert words in first_reason(run(gate(*arms)))


def test_treatment_may_differ_and_more_where_it_is_named():
    arms = dense(), sparse()
    arms[0].facts = {**arms[0].facts, "environment": {"DSA_PREFILL_SPARSE": "0", "BLOCK": "64"}}
    arms[1].facts = {**arms[1].facts, "environment": {"DSA_PREFILL_SPARSE": "1", "BLOCK": "256"}}
    assert "environment.BLOCK" in first_reason(run(gate(*arms)))
    treatment = frozenset({"DSA_PREFILL_SPARSE", "BLOCK"})
    assert run(gate(*arms, treatment=treatment)).decision.verdict == "PASS"


def test_sparsity_is_believed_where_the_user_vouches_for_it():
    arms = Fake("dense"), Fake("sparse")
    assert run(gate(*arms, trusted=True)).decision.verdict == "PASS"
    arms[1].facts = {"sparse_prefill": 0}
    assert run(gate(*arms, trusted=True)).decision.verdict == "INVALID", "what is counted is no matter of belief"


def test_missing_answers_are_never_0():
    outcome = run(gate(sparse=sparse(says=lambda key: None if key == FIRST else right(key))))
    assert FIRST not in outcome.scores["sparse"]
    assert outcome.decision.missing == {"dense": 0, "sparse": 1}
    assert outcome.decision.estimates is not None
    assert outcome.decision.estimates.macro.difference == 0.0
    assert outcome.decision.estimates.tasks[0].n == DOCUMENTS - 1


def test_many_missing_answers_allow_no_verdict():
    """Of wrong answers as many would be a FAIL."""
    outcome = run(gate(sparse=sparse(says=some(0.5, otherwise=lambda key: None))))
    assert outcome.decision.verdict == "INCONCLUSIVE"
    assert "80 of 160 answers of the sparse arm are missing" in outcome.decision.sentence
    assert run(gate(sparse=sparse(says=some(0.5)))).decision.verdict == "FAIL"


def test_arm_without_any_answer_allows_no_verdict():
    outcome = run(gate(sparse=sparse(says=lambda key: None)))
    assert outcome.decision.verdict in ("INCONCLUSIVE", "INVALID")
    assert outcome.scores["sparse"] == {}


def test_repeats_are_averaged_and_a_missing_one_leaves_no_score():
    def says(key: str) -> str | None:
        if key == f"{FIRST}#2":
            return None
        return right(key) if "#" not in key else wrong(key)

    arms = dense(), sparse(says=says)
    outcome = run(gate(*arms, repeats=3))
    assert arms[1].count == 3 * ALL
    assert outcome.decision.estimates is not None
    assert outcome.decision.estimates.macro.mean_sparse == pytest.approx(1 / 3, abs=1e-6)
    assert outcome.decision.missing["sparse"] == 1
    assert outcome.decision.estimates.macro.n == ALL - 1, "documents are counted, not answers"


def test_documents_of_one_context_are_asked_in_one_round():
    rows = [{**d.row, "context": TASKS[0].documents[n // 2].row["context"]} for n, d in enumerate(TASKS[0].documents)]
    arm = dense()
    outcome = run(gate(arm, tasks=[longbench("qasper", rows, "the test")], looks=True))
    assert outcome.of_rounds == DOCUMENTS // 2
    for keys in arm.asked:
        numbers = sorted(int(key.rpartition("-")[2]) for key in keys)
        assert numbers[::2] == [number - 1 for number in numbers[1::2]], "pairs stay together"


def test_everything_is_told_as_it_comes():
    told = []
    outcome = run(gate(), lambda arm, answer: told.append((arm, answer.key)))
    assert sorted(told) == sorted((arm, key) for arm, answers in outcome.answers.items() for key in answers)


def test_runs_are_deterministic_and_the_seed_chooses_the_order():
    def once(seed: int) -> tuple[dict, list[list[str]]]:
        arms = dense(), sparse(says=some(0.1))
        outcome = run(gate(*arms, rule=dataclasses.replace(RULE, seed=seed), looks=True))
        return outcome.decision.document(), arms[0].asked

    assert once(1) == once(1)
    assert once(1)[1] != once(2)[1]


def test_scores_are_those_of_the_answers():
    outcome = run(gate(sparse=sparse(says=some(0.5))))
    assert np.mean(list(outcome.scores["dense"].values())) == pytest.approx(1.0, abs=1e-6)
    assert {key for key, score in outcome.scores["sparse"].items() if score < 0.5} == {
        key for key in RIGHT if int(key.rpartition("-")[2]) < DOCUMENTS // 2
    }
