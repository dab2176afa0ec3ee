"""Every check rejects a kernel that is broken in the way the check exists to find."""

import itertools

import numpy as np
import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS, INVARIANCES
from dsa_verify.checks.bits import differing_outputs
from dsa_verify.contract import SURFACES, Kernel, Provider
from dsa_verify.kernels.providers import load_provider
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.mutants.source import SourceEdit, StaleMutant, with_changes
from dsa_verify.run.verify import verify


def rejections(provider: Provider, surface: str, scenario: str, *checks: str) -> dict[str, str]:
    """The checks that reject, with their reasons; of the named ones, or of all."""
    results = verify(SURFACES[surface], provider, SCENARIOS[scenario], checks or tuple(CHECKS))
    return {result.check: result.verdict.reason for result in results if result.verdict.status == "rejected"}


@pytest.mark.parametrize("mutant", KERNEL_MUTANTS.values(), ids=lambda mutant: mutant.name)
def test_mutant_is_rejected_by_the_check_that_names_its_fault(mutant):
    found = rejections(mutant.load(), mutant.surface, mutant.scenario, mutant.check)
    assert mutant.check in found, f"{mutant.name} survived {mutant.check}; rejected by {sorted(found)}"


def test_rejection_speaks_the_domains_coordinates():
    mutant = KERNEL_MUTANTS["causal-bound-strict"]
    reason = rejections(mutant.load(), mutant.surface, mutant.scenario)["parity"]
    for word in ("request", "position", "head", "oracle", "budget"):
        assert word in reason


def test_two_calls_that_differ_are_rejected():
    """A kernel whose answer depends on how often it was called."""
    import jax

    original = load_provider("jnp").kernels["index_page_topk"].fn
    calls = itertools.count()

    def unstable(**operands):
        pages = original(**operands)
        turn = jax.pure_callback(lambda: np.int32(next(calls) % 2), jax.ShapeDtypeStruct((), np.int32))
        return jax.numpy.where(turn == 0, pages, pages[:, ::-1])

    provider = Provider("unstable", "0", {"index_page_topk": Kernel(unstable)})
    assert "determinism" in rejections(provider, "index_page_topk", "single-extend-p16-f32")


def test_an_output_that_only_one_of_two_calls_gives_is_a_difference():
    one, two = {"out": np.ones((3, 2)), "lse": np.ones(3)}, {"out": np.ones((3, 2))}
    for pair in ((one, two), (two, one)):
        assert [(name, rows.tolist()) for name, rows in differing_outputs(*pair)] == [("lse", [0, 1, 2])]
    assert not list(differing_outputs(one, dict(one)))


def test_every_check_kills_some_mutant():
    killed_by_a_mutant = {mutant.check for mutant in KERNEL_MUTANTS.values()}
    assert killed_by_a_mutant | {"determinism"} >= set(CHECKS) - set(INVARIANCES)  # see test_invariances_reject.py


def test_mutant_whose_source_is_gone_is_an_error_not_a_survivor():
    gone = SourceEdit("indexer", "no such line", "")
    with pytest.raises(StaleMutant, match=r"dsa_verify\.kernels\.jnp\.indexer: .*expected once"):
        with_changes("dsa_verify.kernels.jnp", [gone], lambda: load_provider("jnp"))


def test_broken_copy_leaves_the_real_package_untouched():
    before = load_provider("jnp").kernels["index_topk"].fn
    KERNEL_MUTANTS["no-relu"].load()
    assert load_provider("jnp").kernels["index_topk"].fn is before
    assert not rejections(load_provider("jnp"), "index_topk", "single-extend-p16-f32")
