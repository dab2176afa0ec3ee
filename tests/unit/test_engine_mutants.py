"""Engines broken on purpose: the toy's workloads notice each, most of them by the answers alone.

A mutant is run twice: with the engine's own guards (a step that refuses to exist, a pool that refuses a page, `check()`
after every step), and without them, when only answers, leaks and stuck requests can tell.
"""

import pytest

from dsa_verify.mutants.registry import SYSTEM_MUTANTS
from dsa_verify.mutants.system import MethodReplacement
from dsa_verify.system.scenarios import SCENARIOS

WORKLOADS = 60
ENGINE = [name for name, mutant in SYSTEM_MUTANTS.items() if mutant.surface == "engine"]


def first_rejection(scenario: str) -> str | None:
    """What the first workload that goes wrong says."""
    for seed in range(WORKLOADS):
        if found := SCENARIOS[scenario](seed):
            return next(iter(found.values()))
    return None


@pytest.mark.parametrize("scenario", ["toy", "toy-unguarded"])
@pytest.mark.parametrize("name", ENGINE)
def test_broken_engine_is_rejected(name, scenario, monkeypatch):
    change = SYSTEM_MUTANTS[name].change
    assert isinstance(change, MethodReplacement)
    change.install(monkeypatch)
    found = first_rejection(scenario)
    if scenario == "toy":
        assert found
    else:
        assert found is None if change.unguarded is None else found and change.unguarded in found


@pytest.mark.parametrize("scenario", ["toy", "toy-unguarded"])
def test_nothing_is_rejected_without_a_mutant(scenario):
    assert first_rejection(scenario) is None
