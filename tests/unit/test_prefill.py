"""A long prompt in blocks is chosen from as the engine's steps choose, and becomes a trace."""

import numpy as np
import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.model.decoder import load_params
from dsa_verify.model.model_config import parse_config
from dsa_verify.model.prefill import selections_of
from dsa_verify.profile.prefill import PrefillSettings, trace_of
from tests.unit.random_models import DOCUMENTS, TOKENS, tokens_of, weights_of
from tests.unit.test_model import pinned


@pytest.mark.parametrize("queries", [TOKENS, 5])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_blocks_choose_what_transformers_chooses(kind, queries):
    config, (_, due) = parse_config(DOCUMENTS[kind], kind), pinned(kind)
    full = [layer for layer, mode in enumerate(config.indexer_types) if mode == "full"]
    params = load_params(config, weights_of(kind), np.float32)
    found = selections_of(config, params, tokens_of(kind), tuple(full), queries)
    assert sorted(found) == full
    for layer, rows in zip(full, due, strict=True):
        assert [[c for c in row if c >= 0] for row in found[layer].tolist()] == rows[-queries:]


def test_every_block_is_told_up_to_the_number_that_was_said_first():
    """Two blocks a layer: a full one chooses and attends, a shared one attends, the last one chooses for its end."""
    config, told = parse_config(DOCUMENTS["glm_moe_dsa"], "here"), []
    tokens = np.tile(tokens_of("glm_moe_dsa"), 16)[:300]
    params = load_params(config, weights_of("glm_moe_dsa"), np.float32)
    selections_of(config, params, tokens, (0, 2), 20, lambda *blocks: told.append(blocks))
    assert told == [(n, 7) for n in range(1, 8)]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the old house and the new house . " * 40, "utf-8")
    return path


def test_built_in_model_makes_a_trace_of_its_full_layers(text):
    trace = trace_of([text], None, PrefillSettings(queries=64))
    assert sorted(trace.layers) == [0, 1] and trace.source.model == "built-in"
    assert trace.source.tokens == 320 and trace.source.text == "text.txt"
    last = trace.layers[0].topk[-1]
    assert {*last[last >= 0].tolist()} == set(range(320))  # fewer tokens than the budget: all of them


def test_bad_request_is_one_clear_error(text, tmp_path):
    with pytest.raises(ConfigError, match="layer 2 has no indexer of its own; layers that have one: 0, 1"):
        trace_of([text], None, PrefillSettings(layers=(2,), queries=8))
    with pytest.raises(ConfigError, match="the prompt has 320 tokens; give a longer text"):
        trace_of([text], None, PrefillSettings(queries=2048))
    with pytest.raises(ConfigError, match=r"cannot read .*gone"):
        trace_of([tmp_path / "gone"], None, PrefillSettings())
    with pytest.raises(ConfigError, match=r"cannot read .*config.json"):
        trace_of([text], tmp_path, PrefillSettings(queries=8))
