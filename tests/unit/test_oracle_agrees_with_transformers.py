"""The float64 oracle gives what transformers gives for GLM-MoE-DSA and DeepSeek-V3.2, and a wrong one would not."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsa_verify.oracle.attention import attend, token_mask
from dsa_verify.oracle.indexer import project
from dsa_verify.oracle.scores import Scores, best, index_scores
from dsa_verify.shapes import IndexerConvention
from tests.pinned.record import FOLDER, TOLERANCE, differences, digest, disagreements, read, record
from tests.unit.mla_projections import (
    CASES,
    Core,
    Run,
    Yarn,
    absorbed,
    decode,
    frequencies,
    project_indexer,
    rms_norm,
    run_named,
    weights_of,
)

ORACLE = Core(index_scores, best, token_mask, attend)

SPARSE = ("glm_moe_dsa-sparse", "deepseek_v32-sparse")
CUT = ("chunked", "decode")

installed = all(importlib.util.find_spec(package) for package in ("torch", "transformers"))
live = pytest.mark.skipif(not installed, reason="transformers is not installed: pins were not regenerated")


def cases(names: tuple[str, ...] = CASES) -> list:
    """Parameters of a test that runs transformers itself."""
    return [pytest.param(name, marks=live) for name in names]


def ours(run: Run, core: Core = ORACLE) -> dict:
    """The record of what the oracle says for a run."""
    return record(decode(run, core), run.decoder.sm_scale)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference, relative to the largest expected element."""
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / np.abs(expected).max())


# ---- The oracle against the pins; no torch


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_those_that_transformers_got(case):
    assert digest(run_named(case).weights) == read(case)["inputs_sha256"]


@pytest.mark.parametrize("case", CASES)
def test_oracle_gives_the_scores_selections_and_outputs_of_transformers(case):
    assert disagreements(read(case), ours(run_named(case))) == []


@pytest.mark.parametrize("case", CASES)
def test_rounding_stays_well_inside_the_tolerance(case):
    assert max(differences(read(case), ours(run_named(case))).values()) <= 0.1 * TOLERANCE


@pytest.mark.parametrize("family", ["glm_moe_dsa", "deepseek_v32"])
@pytest.mark.parametrize("cut", CUT)
def test_transformers_gives_the_same_in_steps_over_its_cache_as_at_once(family, cut):
    assert disagreements(read(f"{family}-sparse"), read(f"{family}-{cut}")) == []


def test_every_pin_belongs_to_a_case_and_fits_review():
    files = sorted(FOLDER.glob("*"))
    assert [file.stem for file in files] == sorted(CASES)
    assert all(file.suffix == ".json" and file.stat().st_size <= 8192 for file in files)


@pytest.mark.parametrize("case", ["glm_moe_dsa-sparse", "deepseek_v32-sparse"])
def test_indexer_oracle_projects_as_the_decoder_that_agrees_with_transformers(case):
    run = run_named(case)
    d, w = run.decoder, weights_of(run, 0)
    rng = np.random.default_rng(5)
    hidden, q_lora = rng.standard_normal((9, d.hidden_size)), rng.standard_normal((9, d.q_lora_rank))
    positions = np.array([0, 1, 2, 3, 4, 5, -1, -1, 19])
    plain = replace(d, yarn=None)
    due = project_indexer(replace(run, decoder=plain), 0, hidden, q_lora, positions[:, None] * frequencies(plain))
    weights = {name: w(f"indexer.{name}") for name in ("wq_b", "wk", "k_norm", "weights_proj")}
    batch = SimpleNamespace(
        hidden=hidden, q_lora=q_lora, positions=positions, real=positions >= 0, index_q=due["index_q"],
        indexer=SimpleNamespace(**weights, k_norm_bias=w("indexer.k_norm", "bias")),
        convention=IndexerConvention(d.index_rope, d.qk_rope_head_dim, d.rope_theta, d.index_norm_eps),
    )  # fmt: skip
    found = project(batch)
    for name, vectors in (("index_q", found.queries), ("index_k", found.keys), ("index_weights", found.weights)):
        assert relative(vectors.value[batch.real], due[name][batch.real]) < 1e-12, name


# ---- The cases have teeth


@pytest.mark.parametrize("case", SPARSE)
def test_sparse_rows_choose_among_more_than_three_budgets_and_none_is_a_tie(case):
    run = run_named(case)
    k, tokens = run.decoder.index_topk, run.decoder.tokens
    assert tokens > 3 * k
    for stages in decode(run, ORACLE):
        if "index_score" not in stages:
            continue
        scores = stages["index_score"]
        for row in range(k, tokens):
            ranked = np.sort(scores[row, : row + 1])[::-1]
            assert ranked[k - 1] - ranked[k] >= 0.002 * np.abs(scores).max()


@pytest.mark.parametrize("case", SPARSE)
def test_sparse_selections_are_neither_a_window_nor_a_prefix(case):
    for layer in read(case)["layers"]:
        wide = layer["selection"][7:]
        assert all(len(row) == 6 for row in wide)
        assert sum(row != list(range(row[0], row[0] + 6)) for row in wide) >= 10
        assert [len(row) for row in layer["selection"][:6]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("family", ["glm_moe_dsa", "deepseek_v32"])
def test_a_budget_of_the_whole_history_attends_every_causal_token(family):
    for layer in read(f"{family}-dense")["layers"]:
        assert layer["selection"] == [list(range(row + 1)) for row in range(20)]


def test_a_shared_layer_attends_what_the_full_layer_before_it_selected():
    full, shared = read("glm_moe_dsa-sparse")["layers"]
    assert full["selection"] == shared["selection"]
    assert "index_score" in full["stages"]
    assert "index_score" not in shared["stages"]


# ---- The comparison can fail: each fault is found, first where it is made


@dataclass(frozen=True)
class Fault:
    """A wrong decoder or core; `first` is the part that must disagree first, `spreads` to the layer's output or not."""

    first: str
    run: Callable[[Run], Run] = lambda run: run
    core: Core = ORACLE
    case: str | None = None
    spreads: bool = True


def convention(**changes) -> Callable[[Run], Run]:
    return lambda run: replace(run, decoder=replace(run.decoder, **changes))


def other_index_rope(run: Run) -> Run:
    other = {"half_split": "interleaved", "interleaved": "half_split"}[run.decoder.index_rope]
    return convention(index_rope=other)(run)


def yarn(**changes) -> Callable[[Run], Run]:
    return convention(yarn=Yarn(**changes))


def values_before_keys(run: Run) -> Run:
    """Reads kv_b_proj heads as `[v | nope]`."""
    d, weights = run.decoder, dict(run.weights)
    for name in (name for name in weights if "kv_b_proj" in name):
        heads = weights[name].reshape(d.num_attention_heads, -1, d.kv_lora_rank)
        weights[name] = np.roll(heads, -d.v_head_dim, axis=1).reshape(-1, d.kv_lora_rank)
    return replace(run, weights=weights)


def positions_restart_with_the_chunk(run: Run) -> Run:
    return replace(run, positions=np.concatenate([np.arange(size) for size in run.chunks]))


def scores_by(formula: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Core:
    """A core whose score is `formula(q.k [queries, heads, kv], w [queries, heads, 1])`, summed over heads."""

    def scores(q, w, k, positions):
        value = formula(q @ k.T, w[:, :, None]).sum(axis=1)
        causal = np.arange(len(k)) <= positions[:, None]
        return Scores(np.where(causal, value, -np.inf), np.abs(value))

    return replace(ORACLE, scores=scores)


def next_position(value: np.ndarray, k: int) -> np.ndarray:
    """The positions after the best ones, those that are causal."""
    after = best(value, k) + 1
    causal = np.isfinite(np.take_along_axis(value, np.minimum(after, value.shape[1] - 1), axis=1))
    return np.where((after > 0) & (after < value.shape[1]) & causal, after, -1)


def scaled(scale: Callable[[float], float]) -> Core:
    def scaled_attend(ql_nope, q_pe, c_kv, k_pe, allowed, sm_scale):
        return attend(ql_nope, q_pe, c_kv, k_pe, allowed, scale(sm_scale))

    return replace(ORACLE, attend=scaled_attend)


_D = run_named(SPARSE[0]).decoder
LATENT_SCALE = (_D.kv_lora_rank + _D.qk_rope_head_dim) ** -0.5

FAULTS = {
    "the indexer rotates in the other layout": Fault("layer 0 index_k", other_index_rope),
    "indexer heads are [nope | rope]": Fault("layer 0 index_k", convention(index_rope_last=True)),
    "attention rotates half-split": Fault("layer 0 q_pe", convention(attention_rope="half_split")),
    "the index key is normalised without its mean": Fault("layer 0 index_k", convention(index_norm="rms")),
    "the index key's eps is 1e-5": Fault("layer 0 index_k", convention(index_norm_eps=1e-5), spreads=False),
    "latents use eps 1e-5": Fault("layer 0 index_q", convention(latent_norm_eps=1e-5)),
    "kv_b heads are [v | nope]": Fault("layer 0 context", values_before_keys),
    "relu is dropped": Fault("layer 0 index_score", core=scores_by(lambda qk, w: qk * w)),
    "relu acts after the head weight": Fault(
        "layer 0 index_score", core=scores_by(lambda qk, w: np.maximum(qk * w, 0))
    ),
    "head weights lose their sign": Fault(
        "layer 0 index_score", core=scores_by(lambda qk, w: np.maximum(qk, 0) * np.abs(w))
    ),
    "heads are not weighted": Fault("layer 0 index_score", core=scores_by(lambda qk, w: np.maximum(qk, 0) + 0 * w)),
    "one token fewer is selected": Fault("layer 0 selection", core=replace(ORACLE, choose=lambda v, k: best(v, k - 1))),
    "one token more is selected": Fault("layer 0 selection", core=replace(ORACLE, choose=lambda v, k: best(v, k + 1))),
    "the selection is off by one position": Fault("layer 0 selection", core=replace(ORACLE, choose=next_position)),
    "sm_scale is derived from the latent width": Fault("layer 0 context", core=scaled(lambda _: LATENT_SCALE)),
    "sm_scale is 1e-9 too large": Fault("layer 0 context", core=scaled(lambda scale: scale * (1 + 1e-9))),
    "YaRN's factor is missing from sm_scale": Fault("sm_scale", yarn(mscale_all_dim=0.0), case="deepseek_v32-sparse"),
    "YaRN slows the wrong pairs": Fault("layer 0 index_k", yarn(beta_slow=0.1), case="deepseek_v32-sparse"),
    "positions restart with the chunk": Fault(
        "layer 0 index_k", positions_restart_with_the_chunk, case="glm_moe_dsa-chunked"
    ),
}

FAULTY = [(fault, case) for fault in FAULTS for case in SPARSE if FAULTS[fault].case in (None, case)] + [
    (name, fault.case) for name, fault in FAULTS.items() if fault.case and fault.case not in SPARSE
]


@pytest.mark.parametrize(("name", "case"), FAULTY)
def test_a_wrong_decoder_or_core_disagrees_with_transformers(name, case):
    fault = FAULTS[name]
    run = fault.run(run_named(case))
    far = differences(read(case), ours(run, fault.core))
    wrong = [part for part, distance in far.items() if distance > TOLERANCE]
    assert wrong[0] == fault.first
    assert far[fault.first] > 3 * TOLERANCE
    assert (far["layer 0 output"] > 3 * TOLERANCE) == fault.spreads


# ---- transformers itself, where it is installed


@pytest.mark.parametrize("case", cases())
def test_pins_are_what_transformers_says_today(case):
    from tests.pinned.transformers_dsa import pin_of

    pinned, today = read(case), pin_of(case)
    assert today["inputs_sha256"] == pinned["inputs_sha256"]
    assert disagreements(pinned, today) == []


@pytest.mark.parametrize("case", cases())
def test_absorbed_attention_on_the_latents_of_transformers_gives_its_unabsorbed_output(case):
    from tests.pinned.transformers_dsa import observe

    run = run_named(case)
    seen = observe(run)
    for layer, hf in enumerate(seen.trace):
        w_uk, w_uv = absorbed(run.decoder, run.weights[f"layers.{layer}.self_attn.kv_b_proj.weight"])
        ql_nope = np.einsum("qhn,hnr->qhr", hf["q_nope"], w_uk)
        out = attend(ql_nope, hf["q_pe"], hf["c_kv"], hf["k_pe"], hf["attended"], seen.sm_scale).out
        context = np.einsum("qhr,hvr->qhv", out, w_uv)
        output = context.reshape(len(out), -1) @ run.weights[f"layers.{layer}.self_attn.o_proj.weight"].T
        assert relative(context, hf["context"]) <= TOLERANCE
        assert relative(output, hf["output"]) <= TOLERANCE


@pytest.mark.parametrize("case", cases())
def test_index_scores_and_best_on_the_index_vectors_of_transformers_give_its_sets(case):
    from tests.pinned.transformers_dsa import observe

    run = run_named(case)
    seen = observe(run)
    positions = np.arange(run.decoder.tokens)
    for hf, indices in zip(seen.trace, seen.topk, strict=True):
        if "index_q" not in hf:
            continue
        value = index_scores(hf["index_q"], hf["index_weights"], hf["index_k"], positions).value
        assert relative(np.where(np.isfinite(value), value, 0.0), hf["index_score"]) <= TOLERANCE
        chosen = best(value, run.decoder.index_topk)
        for row, theirs in enumerate(np.concatenate(indices)):
            assert len(set(theirs)) == len(theirs) == run.decoder.index_topk
            assert sorted(theirs[theirs <= row]) == sorted(chosen[row][chosen[row] >= 0])
            assert np.flatnonzero(hf["attended"][row]).tolist() == sorted(theirs[theirs <= row])


FLOAT32_ISLANDS = 100 * 2.0**-24
"""What the code as shipped may add, relative: it rounds to float32 (2**-24 each) two norms, RoPE, scores and softmax in
each of two layers, some ten roundings in a row, each of which the logits' spread may stretch tenfold. Measured: 8."""


@pytest.mark.parametrize("case", cases())
def test_transformers_as_shipped_selects_the_same_and_differs_by_its_float32_rounding(case):
    from tests.pinned.transformers_dsa import observe

    run = run_named(case)
    seen = observe(run, widened=False)
    far = differences(read(case), record(seen.trace, seen.sm_scale))
    assert [far[f"layer {layer} selection"] for layer in range(2)] == [0, 0]
    assert TOLERANCE < max(far.values()) <= FLOAT32_ISLANDS


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("case", cases(SPARSE))
def test_the_whole_model_of_transformers_unobserved_gives_the_oracle_output(case, attention):
    from tests.pinned.transformers_dsa import plain_output

    run = run_named(case)
    hidden = run.weights["hidden"] + sum(stages["output"] for stages in decode(run, ORACLE))
    expected = rms_norm(hidden, np.ones(run.decoder.hidden_size), run.decoder.rms_norm_eps)
    assert relative(plain_output(run, attention), expected) <= FLOAT32_ISLANDS
