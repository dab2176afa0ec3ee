"""Plans refuse names that do not exist; runs give the same results in one process or two, and survive one that dies."""

import dataclasses
import re
from collections import Counter

import pytest

from dsa_verify.batch.batch import Batch
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import BatchError, ConfigError, ContractError, ProviderError
from dsa_verify.kernels.providers import load_provider
from dsa_verify.run import suite
from dsa_verify.run.verify import execute, verify

SINGLE = "single-prefill-p16-f32"


def fake(name, *scenarios):
    return suite.plan([f"broken_providers:{name}"], ["cache_write"], scenarios or [SINGLE])


def reasons(results):
    return {result.verdict.reason for result in results if result.verdict.status == "rejected"}


def verdicts(results):
    return [(r.provider, r.surface, r.scenario, r.check, r.verdict, r.reproduce) for r in results]


def test_plan_is_the_quick_tier_of_both_default_providers():
    cases = suite.plan()
    assert {case.provider for case in cases} == {"builtin", "jnp"}
    assert {case.surface for case in cases} == set(SURFACES)
    assert {SCENARIOS[case.scenario].tier for case in cases} == {"quick"}
    assert len(set(cases)) == len(cases)
    assert set(suite.plan(tier="full")) > set(cases)


def test_decode_only_surfaces_are_planned_with_decode_batches_only():
    everywhere = {case.scenario for case in suite.plan(["jnp"], ["cache_write"])}
    decode = {case.scenario for case in suite.plan(["jnp"], ["sparse_mla_decode"])}
    assert decode == {name for name in everywhere if SCENARIOS[name].build().mode == "decode"}


def test_scenario_is_found_by_name_in_any_tier_and_by_glob_in_its_own():
    full = next(name for name, scenario in SCENARIOS.items() if scenario.tier == "full")
    assert [case.scenario for case in suite.plan(["jnp"], ["cache_write"], [full])] == [full]
    quick = suite.plan(["jnp"], ["cache_write"], ["prefix-*"])
    assert {SCENARIOS[case.scenario].tier for case in quick} == {"quick"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"providers": ["jpn"]}, "unknown provider 'jpn'. Did you mean 'jnp'?"),
        ({"providers": ["module:"]}, "not of the form module:object"),
        ({"surfaces": ["cache_wirte"]}, "unknown surface 'cache_wirte'. Did you mean 'cache_write'?"),
        ({"scenarios": ["single-prefil-p16-f32"]}, "unknown scenario .* Did you mean 'single-prefill-p16-f32'?"),
        ({"scenarios": ["prefx-*"]}, r"no scenario matches 'prefx-\*'"),
        ({"scenarios": ["single-prefill-d*"]}, "no scenario matches"),
        ({"scenarios": ["single-prefill-p128*"]}, "no scenario of tier quick"),
        ({"tier": "nightly"}, "unknown tier 'nightly'. Available: full, quick."),
        ({"surfaces": ["sparse_mla_decode"], "scenarios": [SINGLE]}, "takes decode scenarios only"),
    ],
)
def test_name_that_does_not_exist_is_one_clear_error(arguments, message):
    with pytest.raises(ConfigError, match=message) as caught:
        suite.plan(**arguments)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("broken_at_import:provider", "built for another JAX"),
        ("broken_providers:raises_on_load", "from another planet"),
        ("broken_providers:absent", "has no attribute 'absent'"),
        ("broken_providers:number", "gave int, expected"),
        ("no_such_module:provider", "No module named"),
    ],
)
@pytest.mark.parametrize("start", [suite.provenance, lambda names: suite.run_cases(suite.plan(names), jobs=1)])
def test_provider_that_cannot_be_loaded_is_one_clear_error(provider, message, start):
    with pytest.raises(ProviderError, match=message):
        start([provider])


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        ("raises", "the kernel raised ValueError: no such layout"),
        ("wrong_shape", r"the kernel returned shape \(63, 16, \d+\) for cache_kv, expected \(64, "),
        ("two_outputs", "the kernel returned 2 outputs, cache_write has 1: cache_kv"),
        ("nan", "15 of 15 new rows are not as given"),
    ],
)
def test_broken_kernel_is_rejected_with_what_it_did(provider, message):
    results = suite.run_cases(fake(provider), jobs=1)
    statuses = Counter(result.verdict.status for result in results)
    assert statuses["rejected"]
    assert any(re.match(message, reason) for reason in reasons(results))


def test_reproduction_names_the_provider_as_it_was_given():
    (result, *_) = suite.run_cases(fake("raises"), jobs=1)
    assert result.reproduce == (
        f"dsa-verify parity --provider broken_providers:raises --surface cache_write --scenario {SINGLE}"
    )


def test_page_size_of_24_breaks_the_contract():
    scenario = SCENARIOS[SINGLE]
    scenario = scenario.at(dataclasses.replace(scenario.bucket, page_size=24))
    with pytest.raises(ContractError, match="page size 24 is not a multiple of 16"):
        verify(SURFACES["cache_write"], load_provider("jnp"), scenario)


def test_missing_scale_breaks_the_contract():
    batch = object.__new__(Batch)  # a batch that could not be made
    vars(batch).update({**vars(SCENARIOS[SINGLE].build()), "sm_scale": None})
    with pytest.raises(ContractError, match="needs sm_scale, which was not given"):
        execute(SURFACES["dense_mla"], load_provider("jnp").kernels["dense_mla"], batch)


def test_inconsistent_batch_is_refused_before_a_kernel_runs():
    scenario = SCENARIOS[SINGLE]
    small = scenario.at(dataclasses.replace(scenario.bucket, tokens=4))
    with pytest.raises(BatchError, match="15 tokens, but bucket p16-f32 has 4"):
        verify(SURFACES["cache_write"], suite.load("broken_providers:raises"), small)


def test_two_processes_say_what_one_says():
    cases = suite.plan(["jnp", "broken_providers:nan"], ["cache_write"], ["decode-one-*", "single-prefill-*"])
    seen = []
    together = suite.run_cases(cases, jobs=2, on_result=lambda case, results: seen.append(case))
    assert verdicts(together) == verdicts(suite.run_cases(cases, jobs=1))
    assert sorted(map(str, seen)) == sorted(map(str, cases))


def test_worker_that_dies_rejects_its_case_and_the_rest_goes_on():
    cases = fake("dies", SINGLE, "decode-one-d16-bf16", "decode-page-edges-d64-f32")
    results = suite.run_cases(cases, jobs=2)
    by_scenario = {result.scenario: result for result in results}
    died = by_scenario["decode-one-d16-bf16"]
    assert died.verdict.status == "rejected"
    assert died.verdict.reason == "the worker process died of SIGKILL while it ran this case"
    assert died.broke
    assert by_scenario[SINGLE].verdict.status == "accepted"
    assert by_scenario["decode-page-edges-d64-f32"].verdict.status == "accepted"


def test_bad_input_met_by_a_worker_ends_the_run():
    with pytest.raises(ProviderError, match="built for another JAX"):
        suite.run_cases(suite.plan(["broken_at_import:provider"], ["cache_write"]), jobs=2)


def test_fault_of_the_suite_rejects_one_case_only(monkeypatch):
    def broken(*_, **__):
        raise AssertionError("an oracle without an answer")

    monkeypatch.setattr("dsa_verify.run.verify.verify", broken)
    results = suite.run_cases(fake("nan"), jobs=1)
    assert reasons(results) == {"the suite broke: AssertionError: an oracle without an answer"}
    assert all("test_suite.py" in result.broke for result in results)


def test_tpu_belongs_to_one_process(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert suite.job_count(8, groups=3) == 3
    monkeypatch.setenv("JAX_PLATFORMS", "tpu,cpu")
    assert suite.job_count(8, groups=3) == 1


def test_document_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the document"):
        suite.scenario_table(tmp_path / "absent.txt")
