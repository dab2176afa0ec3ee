"""Every invariance rejects a kernel that breaks it, where nothing else that looks at the same case sees the fault."""

import dataclasses
import fnmatch
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS, INVARIANCES, invariances_for
from dsa_verify.contract import SURFACES, Provider
from dsa_verify.kernels.providers import load_provider
from dsa_verify.mutants.source import SourceEdit, with_changes
from dsa_verify.run.verify import verify

JNP = "dsa_verify.kernels.jnp"
PLAIN = tuple(name for name in CHECKS if name not in INVARIANCES)
UNSEEN = 1 + 2**-22
"""A factor that moves float32 by two units in the last place: far inside every budget, but not the same bits."""


@dataclass(frozen=True)
class Broken:
    """A provider that breaks one invariance.

    kind: as in `dsa_verify.mutants`. hidden: none of the checks that look at one batch rejects it on this scenario.
    """

    invariance: str
    kind: str
    surface: str
    scenario: str
    load: Callable[[], Provider]
    hidden: bool = True

    def __str__(self) -> str:
        return f"{self.invariance}-{self.surface}-{self.kind.replace(' ', '_')}"


def patched(module: str, *replacements: tuple[str, str]) -> Callable[[], Provider]:
    """The `jnp` provider with lines of one module replaced."""
    edits = [SourceEdit(module, old, new) for old, new in replacements]
    return lambda: with_changes(JNP, edits, lambda: load_provider("jnp"))


def wrapped(surface: str, wrapper: Callable) -> Callable[[], Provider]:
    """The `jnp` provider with `wrapper(kernel, operands)` in the place of one of its kernels."""

    def load() -> Provider:
        right = load_provider("jnp")
        kernel = right.kernels[surface]
        broken = dataclasses.replace(kernel, fn=lambda **operands: wrapper(kernel.fn, operands))
        return dataclasses.replace(right, kernels={**right.kernels, surface: broken})

    return load


def _new_rows_in_another_precision(kernel, operands):
    """Tokens of this step are attended as they came, those of earlier steps as they were cached."""
    _, cache = kernel(**operands)
    out, _ = kernel(**{**operands, "new_c_kv": operands["new_c_kv"] * UNSEEN})
    return out, cache


def _path_of_its_own_for_one_request(kernel, operands):
    out, cache = kernel(**operands)
    alone = (operands["kv_lens"] > 0).sum() == 1
    return out * (1 - alone), cache


def _first_slot_rounded_otherwise(kernel, operands):
    import jax.numpy as jnp

    out, cache = kernel(**operands)
    first = jnp.arange(len(out)) < operands["cu_q_lens"][1]
    return jnp.where(first[:, None, None], out * UNSEEN, out), cache


def _shared_prefix_merged_separately(kernel, operands):
    """Requests whose first page is mapped by another one too are merged from two parts."""
    import jax.numpy as jnp

    out, cache = kernel(**operands)
    first, lens = operands["page_table"][:, 0], operands["kv_lens"]
    same = (first[:, None] == first) & (lens[:, None] > 0) & (lens > 0)
    shares = (same.sum(axis=1) > 1)[jnp.searchsorted(operands["cu_q_lens"][1:], jnp.arange(len(out)), side="right")]
    return jnp.where(shares[:, None, None], out * UNSEEN, out), cache


def _no_output_for_one_token_extends(kernel, operands):
    lens = operands["cu_q_lens"][1:] - operands["cu_q_lens"][:-1]
    out, cache = kernel(**operands)
    return out * (lens.max() > 1), cache


def _wrong_scale(kernel, operands):
    return kernel(**{**operands, "sm_scale": 1.01 * operands["sm_scale"]})


def _selection_dropped(kernel, operands):
    return kernel(**{**operands, "topk_pages": operands["topk_pages"].at[1].set(-1)})


BROKEN = [
    Broken(
        "split", "14 suffix prefill scores only the chunk", "index_topk", "single-prefill-p16-f32",
        patched("indexer", (
            "jnp.arange(scores.shape[1]) <= placement.position[:, None]",
            "(jnp.arange(scores.shape[1]) <= placement.position[:, None])"
            " & (jnp.arange(scores.shape[1]) >= (kv_lens - jnp.diff(cu_q_lens))[placement.seq][:, None])",
        )),
    ),
    Broken(
        "split", "chunk attended in another precision than the cache", "dense_mla", "chunk-off-page-p16-f32",
        wrapped("dense_mla", _new_rows_in_another_precision),
    ),
    Broken(
        "composition", "33 batch of one takes a path of its own", "dense_mla", "several-unequal-p16-f32",
        wrapped("dense_mla", _path_of_its_own_for_one_request),
    ),
    Broken(
        "composition", "12 history assumed as long as the first request's", "index_topk", "several-unequal-p16-f32",
        patched("ragged", ("position = kv_lens[seq] - cu_q_lens[seq + 1] + token",
                           "position = kv_lens[0] - cu_q_lens[1] + token")),
        hidden=False,
    ),
    Broken(
        "order", "12 right for the first request only", "sparse_mla_prefill", "several-unequal-p16-f32",
        wrapped("sparse_mla_prefill", _first_slot_rounded_otherwise),
    ),
    Broken(
        "order", "25 page table read with the wrong base", "dense_mla", "several-unequal-p16-f32",
        patched("ragged", ("cache[jnp.clip(page_table[seq], 0,", "cache[jnp.clip(page_table[seq // 2 * 2], 0,")),
        hidden=False,
    ),
    Broken(
        "padding", "51 sequence without tokens before others", "dense_mla", "padding-tokens-p16-f32",
        patched("ragged", ("    token = jnp.arange(tokens, dtype=jnp.int32)\n",
                           "    seq = jnp.minimum(seq, jnp.sum(kv_lens > 0) - 1)\n"
                           "    token = jnp.arange(tokens, dtype=jnp.int32)\n")),
    ),
    Broken(
        "pages", "last page of the pool taken for reserved", "index_page_topk", "single-extend-p16-f32",
        patched("ragged", ("cache.shape[0] - 1", "cache.shape[0] - 2")),
    ),
    Broken(
        "prefix", "47 shared pages treated otherwise than private ones", "dense_mla", "prefix-aligned-p16-f32",
        wrapped("dense_mla", _shared_prefix_merged_separately),
    ),
    Broken(
        "scaling", "values clipped", "sparse_mla_prefill", "single-extend-p16-f32",
        patched("attention", ("    latent, rotary = rows[:, :rank],",
                              "    latent, rotary = jnp.clip(rows[:, :rank], -10, 10),")),
    ),
    Broken(
        "scaling", "finite stand-in for minus infinity", "index_topk", "single-prefill-p16-f32",
        patched("indexer", ("jnp.where(causal, scores, -jnp.inf)", "jnp.where(causal, scores, -1e4)"),
                ("values == -jnp.inf", "values <= -1e4")),
    ),
    Broken(
        "shift", "running maximum starts at zero", "sparse_mla_prefill_qblock", "single-extend-p16-f32",
        patched("attention", ("top = jnp.max(logits, axis=2, keepdims=True)",
                              "top = jnp.maximum(jnp.max(logits, axis=2, keepdims=True), 0.0)")),
    ),
    Broken(
        "shift", "maximum not subtracted", "dense_mla", "single-extend-p64-bf16",
        patched("attention", ("jnp.exp(logits - jnp.where(top == -jnp.inf, 0.0, top))", "jnp.exp(logits)"),
                ("(top + jnp.log(total))", "jnp.log(total)")),
    ),
    Broken(
        "dense", "26 dense and sparse scale differently", "sparse_mla_prefill", "budget-covers-history-p16-f32",
        wrapped("dense_mla", _wrong_scale),
    ),
    Broken(
        "qblock", "39 one of two kernels drops a selection", "sparse_mla_prefill_qblock", "masked-rows-p64-bf16",
        wrapped("sparse_mla_prefill", _selection_dropped),
    ),
    Broken(
        "decode", "38 one-token extends routed elsewhere", "sparse_mla_decode", "decode-page-edges-d16-bf16",
        wrapped("sparse_mla_prefill", _no_output_for_one_token_extends),
    ),
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=str)
def test_invariance_rejects_a_kernel_that_breaks_it(broken):
    check = f"invariance:{broken.invariance}"
    scenario = SCENARIOS[broken.scenario]
    results = {r.check: r.verdict for r in verify(SURFACES[broken.surface], broken.load(), scenario, (*PLAIN, check))}
    verdict = results.pop(check)
    assert verdict.status == "rejected"
    assert verdict.reason.startswith(("when ", "beside "))
    assert "request" in verdict.reason and "position" in verdict.reason
    seen_anyway = {name: other.reason for name, other in results.items() if other.status != "accepted"}
    assert bool(seen_anyway) is not broken.hidden, seen_anyway


def test_every_invariance_has_a_kernel_that_only_it_rejects():
    assert {f"invariance:{broken.invariance}" for broken in BROKEN if broken.hidden} == set(INVARIANCES)


def test_factor_that_no_budget_sees_is_not_one():
    assert math.isclose(UNSEEN, 1.0, rel_tol=1e-6) and UNSEEN != 1.0


def test_missing_sibling_is_not_verified_with_the_reason():
    right = load_provider("jnp")
    alone = Provider(
        "alone", "0", {"sparse_mla_prefill": right.kernels["sparse_mla_prefill"]}, {"dense_mla": "sold out"}
    )
    scenario = SCENARIOS["budget-covers-history-p16-f32"]
    (result,) = verify(SURFACES["sparse_mla_prefill"], alone, scenario, ("invariance:dense",))
    assert (result.verdict.status, result.verdict.reason) == ("not verified", "sold out")


def test_fault_in_a_variant_only_rejects_the_invariance_and_nothing_else():
    def needs_two_requests(kernel, operands):
        import jax

        def refuse(lens):
            if (lens > 0).sum() == 1:
                raise ValueError("a lonely request")
            return lens

        lens = operands["kv_lens"]
        return kernel(**{**operands, "kv_lens": jax.pure_callback(refuse, lens, lens)})

    scenario = SCENARIOS["several-unequal-p16-f32"]
    results = verify(SURFACES["dense_mla"], wrapped("dense_mla", needs_two_requests)(), scenario)
    rejected = {result.check: result.verdict.reason for result in results if result.verdict.status == "rejected"}
    assert set(rejected) == {"invariance:composition"}
    assert "a lonely request" in rejected["invariance:composition"]


def test_check_without_a_variant_of_the_batch_is_not_made():
    one = replace(SCENARIOS["single-extend-p16-f32"], tier="full")
    made = {result.check for result in verify(SURFACES["cache_write"], load_provider("jnp"), one)}
    assert {"invariance:split", "invariance:pages", "invariance:padding"} <= made
    assert not {"invariance:order", "invariance:composition", "invariance:prefix"} & made


def test_exactness_is_not_asked_of_a_kernel_that_does_not_promise_it():
    broken = next(b for b in BROKEN if b.invariance == "order" and b.hidden)
    provider = broken.load()
    kernel = provider.kernels[broken.surface]
    loose = dataclasses.replace(kernel, promise=dataclasses.replace(kernel.promise, summation="step"))
    provider = dataclasses.replace(provider, kernels={**provider.kernels, broken.surface: loose})
    (result,) = verify(SURFACES[broken.surface], provider, SCENARIOS[broken.scenario], ("invariance:order",))
    assert result.verdict.status == "accepted"
    assert 0.0 < result.verdict.share < 0.5


def test_surfaces_and_scenarios_of_the_table_exist():
    quick = [scenario.name for scenario in SCENARIOS.values() if scenario.tier == "quick"]
    for name, way in INVARIANCES.items():
        assert set(way.surfaces) <= set(SURFACES), name
        assert not [glob for glob in way.quick if not fnmatch.filter(quick, glob)], name


def test_every_invariance_is_made_in_every_tier_and_soak_scenarios_take_turns():
    for tier in ("quick", "full"):
        names = [scenario.name for scenario in SCENARIOS.values() if scenario.tier == tier]
        assert {n for name in names for surface in SURFACES for n in invariances_for(surface, name, tier)} == set(
            INVARIANCES
        )
    turns = [{n for surface in SURFACES for n in invariances_for(surface, f"soak:1:{i}", "soak")} for i in range(11)]
    assert set.union(*turns) == set(INVARIANCES) and all(len(turn) == 1 for turn in turns)
    assert turns[3] == {n for surface in SURFACES for n in invariances_for(surface, "soak:1:3:20.4", "soak")}
