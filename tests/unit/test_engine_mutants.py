"""Engines broken on purpose: the toy's workloads notice each, most of them by the answers alone.

A mutant is run twice: with the engine's own guards (a step that refuses to exist, a pool that refuses a page, `check()`
after every step), and without them, when only answers, leaks and stuck requests can tell.
"""

import pytest

from dsa_verify.mutants.engine_table import ENGINE_MUTANTS
from dsa_verify.mutants.system import Hook
from dsa_verify.system.scenarios import SCENARIOS

WORKLOADS = 60


def first_rejection(scenario: str) -> str | None:
    """What the first workload that goes wrong says."""
    for seed in range(WORKLOADS):
        if found := SCENARIOS[scenario](seed):
            return next(iter(found.values()))
    return None


@pytest.mark.parametrize("scenario", ["toy", "toy-unguarded"])
@pytest.mark.parametrize("name", ENGINE_MUTANTS)
def test_broken_engine_is_rejected(name, scenario, monkeypatch):
    change = ENGINE_MUTANTS[name].change
    assert isinstance(change, Hook)
    change.install(monkeypatch)
    found = first_rejection(scenario)
    if scenario == "toy":
        assert found
    else:
        assert found is None if change.alone is None else found and change.alone in found


@pytest.mark.parametrize("scenario", ["toy", "toy-unguarded"])
def test_nothing_is_rejected_without_a_mutant(scenario):
    assert first_rejection(scenario) is None
