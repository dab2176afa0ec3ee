"""The decoder gives what transformers gives for the same checkpoint: at once, in chunks, and token by token."""

import json
from pathlib import Path

import numpy as np
import pytest

from dsa_verify.batch.ragged import mode_of, slots_of
from dsa_verify.engine.step import Step
from dsa_verify.errors import ConfigError
from dsa_verify.model.backend_config import BackendConfig
from dsa_verify.model.checkpoint import read_weights, write_checkpoint
from dsa_verify.model.model_config import ModelConfig, parse_config, read_config
from tests.unit.random_models import CHUNKS, DOCUMENTS, tokens_of, weights_of

PINS = Path(__file__).parents[2] / "golden" / "model"
PAGE_SIZE, POOL, WIDTH = 16, 6, 29
PAGES = np.array([4, 1], np.int32)
EXACT = BackendConfig(kernels="jnp", granularity="token")


def budget(config: ModelConfig, logits: np.ndarray) -> float:
    """How far two float32 implementations may be apart, of the largest logit.

    Each has about twelve matrix products a layer, each off by 2 sqrt(W) u32 of its result (checks/tolerance.py, step
    2), with W at most the widest of them; norms keep errors relative, so they add up. Twice, for both sides.
    """
    widest = max(config.hidden_size, config.num_attention_heads * config.v_head_dim, config.intermediate_size)
    return 2 * 12 * config.num_hidden_layers * 2 * widest**0.5 * 2.0**-24 * float(np.abs(logits).max())


def steps_of(tokens: np.ndarray, chunks: tuple[int, ...]):
    """One sequence in chunks, in the first of two sequence slots; a chunk of one token is a decode."""
    done = 0
    for chunk in chunks:
        decode = chunk == 1
        length = 2 if decode else WIDTH
        given, positions, locs = (
            np.zeros(length, np.int32),
            np.full(length, -1, np.int32),
            np.full(length, -1, np.int32),
        )
        here = slice(0, chunk)
        given[here], positions[here] = tokens[done : done + chunk], np.arange(done, done + chunk)
        locs[here] = slots_of(PAGES, done + chunk, PAGE_SIZE)[done:]
        table = np.zeros((2, len(PAGES)), np.int32)
        table[0, : -(-(done + chunk) // PAGE_SIZE)] = PAGES[: -(-(done + chunk) // PAGE_SIZE)]
        q_lens, kv_lens = np.array([chunk, int(decode)]), np.array([done + chunk, 0], np.int32)
        cu = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32)
        done += chunk
        yield Step(PAGE_SIZE, given, kv_lens, cu, table, positions, locs, mode_of(length, q_lens, kv_lens))


def run(kind: str, chunks: tuple[int, ...], backend: BackendConfig = EXACT):
    """Logits after every chunk by the position of its last token; choices by layer and position; the runner."""
    from dsa_verify.model.decoder import load_params
    from dsa_verify.model.runner import ModelRunner

    config, chosen = parse_config(DOCUMENTS[kind], kind), {}
    params = load_params(config, weights_of(kind), np.float32)

    def remember(choice) -> None:
        for at, row in zip(choice.positions.tolist(), choice.topk.tolist(), strict=True):
            chosen.setdefault(choice.layer, {})[at] = sorted(c for c in row if c >= 0)

    runner = ModelRunner(config, params, backend, PAGE_SIZE, POOL, on_choice=remember)
    logits = {int(step.kv_lens[0]) - 1: runner.run(step)[0] for step in steps_of(tokens_of(kind), chunks)}
    return logits, chosen, runner


def pinned(kind: str) -> tuple[dict[int, np.ndarray], list[list[list[int]]]]:
    record = json.loads((PINS / f"{kind}.json").read_text("utf-8"))
    rows = {int(at): np.array(row) for at, row in record["logits"].items()}
    layers = [
        [[int(row[i : i + 2]) for i in range(0, len(row), 2)] for row in layer.split(" ")]
        for layer in record["selections"]
    ]
    return rows, layers


@pytest.mark.parametrize("cut", CHUNKS)
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_choices_and_logits_are_those_of_transformers(kind, cut):
    logits, chosen, _ = run(kind, CHUNKS[cut])
    rows, layers = pinned(kind)
    assert [list(chosen[layer].values()) for layer in sorted(chosen)] == layers
    compared = sorted(set(logits) & set(rows))
    assert compared
    config = parse_config(DOCUMENTS[kind], kind)
    for at in compared:
        assert np.abs(logits[at] - rows[at]).max() <= budget(config, rows[at]), at


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_prefix_ends_in_the_logits_of_transformers(kind):
    """Prompts of every pinned length, each in one step."""
    rows, _ = pinned(kind)
    config = parse_config(DOCUMENTS[kind], kind)
    worst = 0.0
    for at in rows:
        logits, _, _ = run(kind, (at + 1,))
        worst = max(worst, float(np.abs(logits[at] - rows[at]).max()) / budget(config, rows[at]))
    assert worst <= 0.7


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_budget_has_teeth(kind):
    """Dense attention instead of the chosen tokens is far outside."""
    rows, _ = pinned(kind)
    at = max(rows)
    whole, _, _ = run(kind, (at + 1,), BackendConfig(kernels="jnp"))
    assert np.abs(whole[at] - rows[at]).max() > 30 * budget(parse_config(DOCUMENTS[kind], kind), rows[at])


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_runner_tells_the_path_of_every_layer(kind):
    _, _, runner = run(kind, CHUNKS["decode"], BackendConfig(kernels="jnp", prefill_sparse=True))
    told = {(mode, layer): path.attention for mode, layer, path in runner.paths}
    layers = range(runner.config.num_hidden_layers)
    assert {told["extend", layer] for layer in layers} == {"sparse_mla_prefill_qblock"}
    assert {told["decode", layer] for layer in layers} == {"sparse_mla_decode"}
    assert sum(runner.paths.values()) == len(CHUNKS["decode"]) * len(layers)


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path, DOCUMENTS["glm_moe_dsa"], weights_of("glm_moe_dsa"))
    return tmp_path


def test_checkpoint_comes_back_as_it_was_written(checkpoint):
    config = read_config(checkpoint)
    assert config == parse_config(DOCUMENTS["glm_moe_dsa"], "here")
    stored = read_weights(checkpoint, config)
    assert all(np.array_equal(stored[name], value) for name, value in weights_of("glm_moe_dsa").items())


def changed(folder: Path, **changes) -> None:
    document = {**DOCUMENTS["glm_moe_dsa"], **changes}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in document.items() if v is not None}))


def rewritten(folder: Path, change) -> None:
    weights = dict(weights_of("glm_moe_dsa"))
    change(weights)
    write_checkpoint(folder, DOCUMENTS["glm_moe_dsa"], weights)


def cut_off(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


LAYER = "model.layers.2.self_attn."
BAD = {
    "missing tensor": (lambda f: rewritten(f, lambda w: w.pop(LAYER + "indexer.wk.weight")), "lacks 1 of .*indexer.wk"),
    "wrong shape": (
        lambda f: rewritten(f, lambda w: w.update({LAYER + "o_proj.weight": np.zeros((48, 29), np.float32)})),
        r"o_proj.weight has shape \[48, 29\], expected \[48, 30\]",
    ),
    "unknown model type": (lambda f: changed(f, model_type="llama"), "model_type is 'llama', expected 'glm_moe_dsa'"),
    "config against weights": (lambda f: changed(f, kv_lora_rank=24), r"expected \[32, 48\] from config.json"),
    "layers against kinds": (lambda f: changed(f, num_hidden_layers=5), "for each of 5 layers"),
    "shared first": (lambda f: changed(f, indexer_types=["shared"] * 4), "a shared layer needs a full one before it"),
    "size that is no number": (lambda f: changed(f, index_topk="6"), "index_topk is '6', expected a positive integer"),
    "size that is absent": (lambda f: changed(f, q_lora_rank=None), "q_lora_rank is None"),
    "rotary part too wide": (lambda f: changed(f, qk_rope_head_dim=20), "expected an even number of at most"),
    "unknown rope": (lambda f: changed(f, rope_parameters={"rope_type": "su", "rope_theta": 1e4}), "rope_type is 'su'"),
    "unequal mscale": (
        lambda f: changed(f, rope_parameters={**DOCUMENTS["deepseek_v32"]["rope_parameters"], "mscale": 0.7}),
        "expected equal numbers",
    ),
    "no config": (lambda f: (f / "config.json").unlink(), "cannot read .*config.json"),
    "config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "cannot read .*config.json"),
    "truncated file": (cut_off, "the file is damaged or was cut off"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no .*safetensors file"),
    "index without its file": (
        lambda f: (f / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}'),
        "lacks gone.safetensors, which",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_checkpoint_is_one_clear_error(case, checkpoint):
    spoil, told = BAD[case]
    spoil(checkpoint)
    with pytest.raises(ConfigError, match=told):
        read_weights(checkpoint, read_config(checkpoint))


def test_schedule_of_shared_layers_is_derived_as_transformers_derives_it():
    base = {name: value for name, value in DOCUMENTS["glm_moe_dsa"].items() if name != "indexer_types"}
    kinds = lambda **more: parse_config({**base, **more}, "here").indexer_types  # noqa: E731
    assert kinds() == ("full",) * 4
    assert kinds(index_topk_freq=2, index_skip_topk_offset=2) == ("full", "full", "shared", "full")
    assert kinds(index_topk_pattern="FSSF") == ("full", "shared", "shared", "full")
