"""The soak: what is drawn is valid and repeatable, what fails gets smaller, and the command repeats it."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dsa_verify.batch.requests import Request
from dsa_verify.batch.soak import smaller
from dsa_verify.batch.table import BUCKETS, SCENARIOS
from dsa_verify.cli import main
from dsa_verify.evidence import Result, Verdict
from dsa_verify.run import soak, suite


@pytest.mark.parametrize("start", range(0, 14 * 25, 25))
def test_what_is_drawn_makes_a_batch(start):
    for index in range(start, start + 4):
        SCENARIOS[f"soak:11:{index}"].build()


def test_every_bucket_and_every_way_is_drawn():
    drawn = [SCENARIOS[f"soak:5:{index}"] for index in range(0, 25 * len(BUCKETS), 5)]
    assert {scenario.bucket.name for scenario in drawn} == set(BUCKETS)
    assert {scenario.selection for scenario in drawn} == {"structured", "partial", "indexer"}
    assert {scenario.table for scenario in drawn} == {"shuffled", "reversed", "high"}
    assert {type(scenario.values).__name__ for scenario in drawn} == {"Signal", "Document", "Ties"}
    requests = [request for scenario in drawn for request in scenario.requests]
    assert any(request.shares is not None and request.shared_tokens % 16 for request in requests)
    assert any(request.is_padding for request in requests)
    assert any(request.q_len == 0 and request.kv_len for request in requests)


def test_name_says_all():
    first = SCENARIOS["soak:3:17"]
    assert repeated(first) == first
    assert SCENARIOS["soak:4:17"].requests != first.requests
    small = next(smaller(first))
    assert repeated(small) == small


def repeated(scenario):
    """The scenario again by its name alone; values have no equality, they are of one kind."""
    again = SCENARIOS[scenario.name]
    assert vars(again.values) == vars(scenario.values)
    return replace(again, values=scenario.values)


def test_soak_scenarios_are_named_but_not_listed():
    assert "soak:1:2" in SCENARIOS and "soak:1" not in SCENARIOS
    assert not any(name.startswith("soak") for name in SCENARIOS)
    (case,) = suite.plan(["jnp"], ["cache_write"], ["soak:1:2"])
    assert case.scenario == "soak:1:2"


@pytest.mark.parametrize("index", [0, 60, 160])
def test_smaller_scenarios_are_valid(index):
    for scenario in list(smaller(SCENARIOS[f"soak:2:{index}"]))[:12]:
        scenario.build()


def test_failure_shrinks_to_the_smallest_batch():
    """A kernel that fails on any sequence longer than 20 tokens."""

    def work(case):
        fails = any(request.kv_len > 20 for request in SCENARIOS[case.scenario].requests)
        verdict = Verdict.rejected("too long") if fails else Verdict.accepted()
        return (Result(case.provider, case.surface, case.scenario, "parity", verdict),)

    name = next(f"soak:1:{n}" for n in range(99) if sum(r.kv_len > 20 for r in SCENARIOS[f"soak:1:{n}"].requests) > 2)
    failed = Result("jnp", "dense_mla", name, "parity", Verdict.rejected("too long"))
    (smallest,) = soak.shrink(failed, work)
    (request,) = SCENARIOS[smallest.scenario].requests
    assert request.kv_len == 21
    assert smallest.scenario.startswith(f"{name}:") and smallest.shrunk_from == name


def test_request_without_new_tokens_keeps_its_length_of_zero():
    scenario = replace(SCENARIOS["soak:1:0"], name="soak:1:0", requests=(Request(40, 0),))
    assert all(r.q_len == 0 for small in smaller(scenario) for r in small.requests)


def test_command_soaks_and_repeats_a_failure():
    provider = "tests.unit.broken_providers:nan"
    arguments = ["parity", "--provider", provider, "--surface", "cache_write", "--jobs", "1", "--json"]
    result = CliRunner().invoke(main, [*arguments, "--tier", "soak", "--minutes", "0.01", "--seed", "1"])
    assert result.exit_code == 1, result.output
    document = json.loads(result.stdout)
    rejected = [record for record in document["results"] if record["verdict"] == "rejected"]
    smallest = rejected[-1]["scenario"]
    assert smallest.startswith("soak:1:") and smallest.count(":") == 3
    again = CliRunner().invoke(main, [*arguments, "--scenario", smallest])
    assert again.exit_code == 1
    assert smallest in rejected[-1]["reproduce"]


def test_command_refuses_time_that_is_none():
    assert CliRunner().invoke(main, ["parity", "--tier", "soak", "--minutes", "0"]).exit_code == 2


def test_step_without_new_tokens_is_judged():
    """Found by the soak (soak:1:89): no request has a token to be alone with."""
    case = suite.Case("jnp", "cache_write", "soak:1:89", SCENARIOS["soak:1:89"].bucket.name)
    assert not SCENARIOS["soak:1:89"].build().real.any()
    assert {result.verdict.status for result in suite.judge_case(case)} == {"accepted"}


def test_rows_that_one_key_dominates_may_all_be_rounded_towards_it():
    """Found by the soak (soak:1:758): bfloat16 pulled a whole batch the same way, and it was called systematic."""
    name = "soak:1:758:0.0,124.9"
    case = suite.Case("jnp", "dense_mla", name, SCENARIOS[name].bucket.name)
    results = suite.judge_case(case)
    assert {result.verdict.status for result in results} == {"accepted"}
    assert max(result.verdict.share for result in results if result.check == "parity") < 1.0
