"""Whether arms may be compared: every contradiction is found, counted and named; what may differ is left alone."""

import dataclasses

import pytest

from dsa_verify.gates.arms.comparable import TREATMENT, answers_differ, manifests_differ, sparsity
from dsa_verify.gates.records import Answer

ANSWERS = {f"t/{n}": Answer(f"t/{n}", f"sha {n}", "payload", "text", None, "stop", 100, 5, 0) for n in range(4)}


def with_change(*keys: str, **fields) -> dict[str, Answer]:
    return {key: dataclasses.replace(one, **fields) if key in keys else one for key, one in ANSWERS.items()}


def test_equal_answers_do_not_contradict_each_other():
    assert answers_differ(ANSWERS, ANSWERS) == []
    assert answers_differ(ANSWERS, with_change("t/1", text="other", completion_tokens=9, seconds=4.0)) == []


@pytest.mark.parametrize("fields", [{"prompt_tokens": None}, {"cached_tokens": None}, {"payload_sha": ""}])
def test_what_is_not_stated_is_no_contradiction(fields):
    assert answers_differ(ANSWERS, with_change("t/1", **fields)) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt_sha": "x"}, "given different prompts"),
        ({"payload_sha": "x"}, "sent different settings"),
        ({"prompt_tokens": 101}, "counted different prompt tokens"),
        ({"cached_tokens": 1}, "took part of the prompt from a prefix cache"),
    ],
)
def test_contradiction_is_counted_and_its_first_case_is_named(fields, words):
    (said,) = answers_differ(ANSWERS, with_change("t/3", "t/2", **fields))
    assert words in said
    assert said.endswith("for 2 documents, the first is t/2.")
    assert "sparse" in said
    (swapped,) = answers_differ(with_change("t/3", "t/2", **fields), ANSWERS, "same")
    assert swapped.endswith("for 2 documents, the first is t/2.")
    assert "dense" in swapped


def test_answers_that_one_arm_lacks_are_named():
    some = {key: one for key, one in ANSWERS.items() if key != "t/0"}
    assert answers_differ(ANSWERS, some) == [
        "the sparse arm was not asked, or has other documents, for 1 documents, the first is t/0."
    ]
    assert answers_differ(some, ANSWERS)[0].startswith("the dense arm was not asked")


def test_several_contradictions_are_all_told():
    assert len(answers_differ(ANSWERS, with_change("t/1", prompt_sha="x", prompt_tokens=7, cached_tokens=2))) == 3


def test_manifests_may_differ_in_the_treatment_and_in_what_is_each_servers_own():
    dense = {"pid": 1, "url": "a", "environment": {"DSA_PREFILL_SPARSE": "0"}, "paths": [1], "page_size": 16}
    sparse = {"pid": 2, "url": "b", "environment": {"DSA_PREFILL_SPARSE": "1"}, "paths": [2], "page_size": 16}
    assert manifests_differ(dense, sparse, TREATMENT) == []
    assert manifests_differ(dense, sparse, frozenset()) == [
        "the arms differ in environment.DSA_PREFILL_SPARSE: '0' in dense, '1' in sparse."
    ]


def test_every_other_entry_must_agree_also_where_one_arm_lacks_it():
    said = manifests_differ({"a": 1, "b": {"c": 2}}, {"a": 2, "b": {"d": 3}}, TREATMENT)
    assert [text.split(":")[0] for text in said] == [f"the arms differ in {name}" for name in ("a", "b.c", "b.d")]


@pytest.mark.parametrize(
    ("dense", "sparse", "trusted", "words"),
    [
        (0, 5, False, []),
        (None, 5, False, []),
        (0, None, True, []),
        (0, None, False, ["does not say"]),
        (0, 0, True, ["never ran sparse prefill"]),
        (3, 5, False, ["the dense arm ran"]),
        (3, None, True, ["the dense arm ran"]),
        (3, 0, False, ["never ran", "the dense arm ran"]),
    ],
)
def test_sparsity_is_counted_or_vouched_for(dense, sparse, trusted, words):
    facts = [{} if count is None else {"sparse_prefill": count} for count in (dense, sparse)]
    said = sparsity(*facts, trusted)
    assert len(said) == len(words)
    assert all(word in text for word, text in zip(words, said, strict=True))
