"""The system around the kernels, broken on purpose: each fault of backend, decoder and runner is noticed.

Engines are in tests/unit/test_engine_mutants.py; that nothing is rejected without a mutant, in test_engine_model.py.
"""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.contract import SURFACES as KERNEL_SURFACES
from dsa_verify.mutants import campaign
from dsa_verify.mutants.campaign import MutantJob, try_mutant
from dsa_verify.mutants.kinds import KINDS, OTHER
from dsa_verify.mutants.registry import SYSTEM_MUTANTS
from dsa_verify.mutants.source import SourceEdit, StaleMutant
from dsa_verify.mutants.system import SURFACES, MethodReplacement
from dsa_verify.system.scenarios import CHECKS, SCENARIOS

WIRED = [name for name, mutant in SYSTEM_MUTANTS.items() if mutant.surface != "engine"]


@pytest.mark.parametrize("name", WIRED)
def test_broken_system_is_rejected_by_the_check_that_names_its_fault(name):
    mutant = SYSTEM_MUTANTS[name]
    found = mutant.rejections(mutant.scenarios[0], mutant.seed)
    assert mutant.check in found, f"{name} survived {mutant.check}; rejected by {sorted(found)}"


@pytest.mark.parametrize("name", ["shared-first", "packed-table"])
def test_backend_by_itself_is_accepted(name):
    assert not any(SCENARIOS[name](seed) for seed in range(3))


def test_every_check_of_the_system_kills_some_mutant():
    assert {mutant.check for mutant in SYSTEM_MUTANTS.values()} == set(CHECKS)


def test_mutants_have_kinds_scenarios_and_surfaces_of_their_own():
    assert not set(SURFACES) & set(KERNEL_SURFACES)
    for mutant in SYSTEM_MUTANTS.values():
        assert mutant.kind in KINDS or mutant.kind in OTHER
        assert set(mutant.scenarios) <= set(SCENARIOS) and mutant.surface in SURFACES


def test_source_that_moved_on_is_an_error_not_a_survivor():
    gone = replace(SYSTEM_MUTANTS["page-budget-ignored"], change=SourceEdit("backend", "no such line", ""))
    with pytest.raises(StaleMutant, match="expected once"):
        gone.rejections("shared-first", 0)


def test_system_that_is_right_survives_and_the_real_modules_are_untouched(monkeypatch):
    before = {module: vars(__import__(module, fromlist=["x"])) for module in ("dsa_verify.model.backend",)}
    right = replace(
        SYSTEM_MUTANTS["shared-layer-runs-without-a-selection"],
        change=SourceEdit("backend", '"""One layer on one device, its path decided."""', ""),
    )
    monkeypatch.setattr(campaign, "named", lambda name: right)
    assert not try_mutant(MutantJob("right"), "quick", deep=False).killed
    assert all(vars(__import__(module, fromlist=["x"])) is held for module, held in before.items())


def test_play_that_breaks_is_a_kill_and_what_it_replaced_comes_back(monkeypatch):
    from dsa_verify.engine import Engine

    def install(patch):
        patch.setattr(Engine, "submit", lambda engine, request: 1 / 0)

    right, broken = Engine.submit, replace(SYSTEM_MUTANTS["abort-leaks-pages"], change=MethodReplacement(install))
    monkeypatch.setattr(campaign, "named", lambda name: broken)
    found = try_mutant(MutantJob("broken"), "quick", deep=False)
    assert found.killed_by == ("broke",) and "ZeroDivisionError" in found.reason
    assert Engine.submit is right


def test_command_counts_them_among_the_handwritten_and_keeps_their_results(tmp_path):
    arguments = ["mutants", "--surface", "engine", "--mutant", "abort-*", "--jobs", "1", "--json"]
    for _ in range(2):
        result = CliRunner().invoke(main, [*arguments, "--cache", str(tmp_path)])
        assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["handwritten"] == {"killed": 1, "total": 1}
    (record,) = document["mutants"]
    assert (record["provider"], record["surface"], record["scenario"]) == ("system", "engine", "toy/4")
    assert set(record["killed_by"]) == {"guards", "answers"} and record["kind"] == "engine"
    assert len(list(tmp_path.glob("*.json"))) == 1
