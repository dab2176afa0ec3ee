"""The registry: one name a mutant, every source edit still in place; all read from source, nothing is run."""

import subprocess
import sys
from dataclasses import replace

import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ConfigError
from dsa_verify.mutants import broken_arm, kernel, registry
from dsa_verify.mutants.kinds import KINDS, OTHER
from dsa_verify.mutants.source import StaleMutant, source_of

ALL = registry.all_mutants()
EDITED = {name: mutant for name, mutant in registry.HANDWRITTEN.items() if mutant.edits}


def test_a_name_is_one_mutants():
    assert set(registry.KERNEL_MUTANTS) | set(registry.SYSTEM_MUTANTS) == set(registry.HANDWRITTEN)
    assert set(registry.HANDWRITTEN) < set(ALL)
    assert all(registry.named(name) is mutant for name, mutant in ALL.items())
    mutant = registry.named("no-relu")
    with pytest.raises(AssertionError, match="several mutants are called no-relu"):
        registry.by_name([mutant, mutant])


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown mutant 'no-rilu'\. Did you mean 'no-relu'"):
        registry.named("no-rilu")


@pytest.mark.parametrize("name", EDITED)
def test_source_that_a_mutant_edits_is_there_exactly_once(name):
    mutant = EDITED[name]
    for edit in mutant.edits:
        source = source_of(mutant.package, edit.module)
        changed = edit.apply(source)
        assert changed != source
        compile(changed, name, "exec")


def test_an_edit_whose_module_or_text_is_gone_is_an_error():
    (edit,) = EDITED["no-relu"].edits
    with pytest.raises(StaleMutant, match="occurs 0 times in indexer, expected once"):
        edit.apply("")
    with pytest.raises(StaleMutant, match=f"occurs 2 times in {edit.module}, expected once"):
        edit.apply(edit.old * 2)
    with pytest.raises(StaleMutant, match=r"dsa_verify\.kernels\.jnp\.gone does not exist"):
        source_of("dsa_verify.kernels.jnp", "gone")


@pytest.mark.parametrize("mutant", registry.KERNEL_MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_a_kernel_mutant_names_what_exists(mutant):
    assert mutant.kind in KINDS or mutant.kind in OTHER
    assert mutant.provider in kernel.PACKAGES
    assert mutant.surface in SURFACES
    assert SCENARIOS[mutant.scenario].tier == "quick"
    if mutant.same_as is not None:
        twin = registry.KERNEL_MUTANTS[mutant.same_as]
        assert twin.provider != mutant.provider
        assert (twin.kind, twin.same_as) == (mutant.kind, None)


def test_an_arm_runs_kernels_that_have_mutants():
    assert set(broken_arm.PROVIDERS.values()) == set(kernel.PACKAGES)
    assert broken_arm.mutant_for("causal-bound", "pallas").name == "causal-bound-pallas"


def test_what_an_edit_replaced_is_back_when_the_arm_has_answered():
    from dsa_verify.kernels.jnp import attention

    def right() -> bool:
        from dsa_verify.kernels.jnp import attention as now

        return now is attention

    assert not broken_arm.with_mutant("causal-bound", "jnp", right)
    assert right()
    assert broken_arm.with_mutant(None, "jnp", right)


def test_the_registry_is_read_without_jax():
    check = (
        "from dsa_verify.mutants import registry; registry.all_mutants(); import sys; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


def test_a_mutant_that_nothing_imports_proves_nothing():
    # A package's `__init__` is imported under the package's name, never under its own.
    unused = replace(registry.KERNEL_MUTANTS["no-relu"], change=replace(EDITED["no-relu"].edits[0], module="__init__"))
    with pytest.raises(StaleMutant, match="nothing imports"):
        unused.load()
