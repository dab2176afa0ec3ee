"""Traces: what is written is read back, nothing unsound passes, and the recorder sees every selection once."""

import json
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dsa_verify.errors import ConfigError
from dsa_verify.profile.recorder import Recorder, recording, sglang_jax, tokens_of_pages
from dsa_verify.profile.trace import Selections, Source, Trace, load, save
from tests.unit.planted_selections import planted, selections, source, trace

ROWS = [[0, 1], [2], [0, 2, 3], []]
"""Queries at positions 2 to 5."""


def sound():
    return trace(ROWS, first=2, index_topk=4)


def arrays(**changes):
    """The contents of a sound file, some of them changed; None leaves one out."""
    layer = sound().layers[3]
    meta = {"format": "dsa-verify-trace", "version": 1, **vars(source(6, 4)), **changes.pop("meta", {})}
    contents = {
        "meta": np.array(json.dumps({name: value for name, value in meta.items() if value is not None})),
        "layer_003/positions": layer.positions,
        "layer_003/topk": layer.topk,
        **{key.replace("__", "/"): value for key, value in changes.items()},
    }
    return {key: value for key, value in contents.items() if value is not None}


def written(path, contents):
    with path.open("wb") as file:
        np.savez(file, **contents)
    return path


def test_a_trace_is_read_back_as_it_was_written(tmp_path):
    one = selections(ROWS, 2, 4)
    before = Trace(source(6, 4), {0: one, 1234: one.window(2)})
    path = tmp_path / "no-suffix-is-added"
    save(before, path)
    after = load(path)
    assert after.source == before.source
    assert list(after.layers) == [0, 1234]
    for layer in before.layers:
        np.testing.assert_array_equal(after.layers[layer].positions, before.layers[layer].positions)
        np.testing.assert_array_equal(after.layers[layer].topk, before.layers[layer].topk)
        assert after.layers[layer].topk.dtype == np.int32
    assert list(load(path, [1234]).layers) == [1234]


def test_the_documented_keys_make_a_trace(tmp_path):
    meta = {"granularity": None, "synthetic": None}  # both have defaults
    read = load(written(tmp_path / "t.npz", arrays(meta=meta)))
    assert read.source == Source("planted by construction", "mini", 64, 4, 6)
    assert read.layers[3].topk.tolist() == [[0, 1, -1, -1], [2, -1, -1, -1], [0, 2, 3, -1], [-1] * 4]


def changed(row, column, value):
    topk = sound().layers[3].topk.copy()
    topk[row, column] = value
    return {"layer_003__topk": topk}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"meta": {"version": 2}}, ["version 2", "reads version 1"]),
        ({"meta": {"version": None}}, ["version None"]),
        ({"meta": {"format": "other"}}, ["'format' is 'dsa-verify-trace'"]),
        ({"meta": {"model": None}}, ["lacks ['model']"]),
        ({"meta": {"extra": 1}}, ["['extra'] that mean nothing"]),
        ({"meta": {"tokens": "6"}}, ["tokens must be int, found '6'"]),
        ({"meta": {"tokens": True}}, ["tokens must be int, found True"]),
        ({"meta": {"page_size": 0}}, ["page_size must be at least 1, found 0"]),
        ({"meta": {"granularity": "block"}}, ["'token' or 'page', found 'block'"]),
        ({"layer_003__topk": None}, ["layer 3 has positions alone"]),
        ({"layer_003__positions": None}, ["layer 3 has topk alone"]),
        ({"layer_003__scores": np.zeros(3)}, ["'layer_003/scores' means nothing"]),
        ({"layer_x__topk": np.zeros(3)}, ["'layer_x/topk' means nothing"]),
        ({"layer_003__positions": np.arange(2, 6)}, ["layer 3", "positions must be int32, found int64", "astype"]),
        ({"layer_003__topk": np.zeros((4, 4))}, ["topk must be int32, found float64"]),
        ({"layer_003__topk": np.zeros(4, np.int32)}, ["topk must have 2 axes, found shape (4,)"]),
        ({"layer_003__topk": np.zeros((3, 4), np.int32)}, ["one row a query", "found 4 and 3"]),
        ({"layer_003__topk": np.zeros((4, 5), np.int32)}, ["4 columns", "index_topk 4, selected by token", "found 5"]),
        ({"layer_003__positions": np.array([2, 3, 3, 4], np.int32)}, ["ascend, found 3 before 3 (rows 1 and 2)"]),
        ({"layer_003__positions": np.array([-1, 3, 4, 5], np.int32)}, ["within 0 to 5", "found -1 to 5"]),
        ({"layer_003__positions": np.array([2, 3, 4, 6], np.int32)}, ["within 0 to 5", "found 2 to 6"]),
        (changed(1, 0, 4), ["topk[1, 0] is 4", "position 3 can select 0 to 3 only"]),
        (changed(1, 1, -2), ["topk[1, 1] is -2"]),
        (changed(2, 0, -1), ["topk[2, 0] is -1 before a selected position"]),
        (changed(2, 1, 3), ["position 4 (row 2) selected position 3 twice"]),
        (changed(0, 1, 0), ["position 2 (row 0) selected position 0 twice"]),
    ],
)
def test_an_unsound_file_is_one_clear_error(tmp_path, changes, words):
    path = written(tmp_path / "t.npz", arrays(**changes))
    with pytest.raises(ConfigError) as error:
        load(path)
    assert all(word in str(error.value) for word in [str(path), "docs/profile.md", *words]), error.value


def test_what_the_last_query_and_the_last_row_may_select(tmp_path):
    read = load(written(tmp_path / "t.npz", arrays(**changed(3, 0, 5))))  # its own position
    assert read.layers[3].topk[3, 0] == 5


def test_faults_far_down_a_trace_are_found_and_named_by_their_row():
    rows = [[0]] * 1500
    topk = selections(rows, 2, 4).topk
    topk[1300, 1] = 1303
    with pytest.raises(ConfigError, match=r"topk\[1300, 1\] is 1303, but the query at position 1302"):
        Trace(source(2000, 4), {0: Selections(np.arange(2, 1502, dtype=np.int32), topk)})


def test_files_of_other_kinds_are_refused(tmp_path):
    save(sound(), tmp_path / "whole.npz")
    whole = (tmp_path / "whole.npz").read_bytes()
    for name, content in (("half", whole[: len(whole) // 2]), ("empty", b""), ("text", b"layer,topk\n1,2\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match="truncated or of another kind"):
            load(tmp_path / name)
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="found a single array"):
        load(tmp_path / "one.npy")
    with pytest.raises(ConfigError, match="there is no trace"):
        load(tmp_path / "nowhere.npz")
    written(tmp_path / "bare.npz", {"topk": np.zeros(3)})
    with pytest.raises(ConfigError, match="expected the key 'meta', found topk"):
        load(tmp_path / "bare.npz")


def test_damage_inside_an_array_is_noticed(tmp_path):
    save(trace(planted(50, 40, sinks=range(20)), 50, 20), tmp_path / "t.npz")
    content = bytearray((tmp_path / "t.npz").read_bytes())
    content[len(content) // 2] ^= 0xFF
    (tmp_path / "t.npz").write_bytes(content)
    with pytest.raises(ConfigError):
        load(tmp_path / "t.npz")


def test_layers_that_are_not_there_and_no_layers_at_all(tmp_path):
    save(sound(), tmp_path / "t.npz")
    with pytest.raises(ConfigError, match="layer 4 is not in it; it holds 3"):
        load(tmp_path / "t.npz", [3, 4])
    with pytest.raises(ConfigError, match="at least one layer"):
        Trace(source(6, 4), {})


def test_page_selections_have_whole_pages_of_columns():
    assert source(900, index_topk=100, page_size=64, granularity="page").columns == 128
    assert source(900, index_topk=100, page_size=64).columns == 100


# The recorder


def chosen_by(positions):
    """Each query selects itself and the position before it."""
    return jnp.stack([positions, positions - 1], axis=1)


def attention(layer, positions):
    return positions * 2, chosen_by(positions)


def look(result, layer, positions):
    return layer, positions, result[1]


def expect_two_chunks(recorded):
    assert list(recorded.layers) == [5]
    assert recorded.layers[5].positions.tolist() == [1, 2, 3, 4, 5, 6]
    assert recorded.layers[5].topk.tolist() == [[p - 1, p, -1] for p in range(1, 7)]


def test_a_hooked_function_is_recorded_under_jit_and_returns_what_it_returned(tmp_path):
    module = SimpleNamespace(attention=attention)
    path = tmp_path / "t.npz"
    with recording(path, source(7, 3)) as recorder, recorder.hooked(module, "attention", look):
        step = jax.jit(lambda positions: module.attention(5, positions)[0])
        for positions in (jnp.array([4, 5, 6]), jnp.array([1, 2, 3])):  # chunks in any order
            np.testing.assert_array_equal(step(positions), positions * 2)
    assert module.attention is attention
    expect_two_chunks(load(path))


def test_numpy_arrays_and_values_outside_jit_are_recorded_too():
    for library in (np, jnp):
        recorder = Recorder(source(7, 3))
        observed = recorder.hook(attention, look)
        observed(5, library.array([1, 2, 3, 4, 5, 6]))
        expect_two_chunks(recorder.trace())
    recorder = Recorder(source(7, 3))
    recorder.record(5, np.arange(1, 7), np.array([[p, p - 1] for p in range(1, 7)]))
    expect_two_chunks(recorder.trace())


def test_the_layer_may_be_traced_as_in_a_scan_over_layers():
    recorder = Recorder(source(7, 3))
    observed = recorder.hook(attention, look)

    @jax.jit
    def model(positions):
        return jax.lax.scan(lambda carry, layer: (carry, observed(layer, positions)[0]), 0, jnp.arange(2, 4))

    model(jnp.array([1, 2]))
    assert {layer: one.positions.tolist() for layer, one in recorder.trace().layers.items()} == {2: [1, 2], 3: [1, 2]}


def test_padding_rows_are_left_out_and_replicas_count_once():
    recorder = Recorder(source(7, 3))
    for columns in ([[2, 0], [9, 9], [0, -1]], [[0, 2], [5, 5], [-1, 0]]):  # in another order, and other padding
        recorder.record(0, np.array([2, -1, 0]), np.array(columns))
    assert recorder.trace().layers[0].positions.tolist() == [0, 2]
    assert recorder.trace().layers[0].topk.tolist() == [[0, -1, -1], [0, 2, -1]]


def test_recordings_that_cannot_be_one_request_are_refused():
    recorder = Recorder(source(7, 3))
    recorder.record(4, np.array([2]), np.array([[2, 0]]))
    recorder.record(4, np.array([2]), np.array([[2, 1]]))
    with pytest.raises(ConfigError, match="layer 4, position 2 selected two different sets; record one request"):
        recorder.trace()
    recorder = Recorder(source(9, 3))
    recorder.record(4, np.array([5]), np.array([[0, 1, 2, 3]]))
    with pytest.raises(ConfigError, match="4 positions were selected, and the source says at most 3"):
        recorder.trace()


def test_nothing_recorded_is_an_error_that_says_why():
    recorder = Recorder(source(7, 3))
    module = SimpleNamespace(attention=attention)
    step = jax.jit(lambda positions: module.attention(5, positions)[0])
    step(jnp.array([1]))
    with recorder.hooked(module, "attention", look):
        step(jnp.array([1]))  # compiled before it was hooked
    with pytest.raises(ConfigError, match="compiled before it was hooked"):
        recorder.trace()
    recorder.record(0, np.array([-1]), np.array([[0]]))
    with pytest.raises(ConfigError, match="nothing was recorded"):
        recorder.trace()


def test_a_block_that_fails_writes_nothing_and_takes_the_hook_off(tmp_path):
    module = SimpleNamespace(attention=attention)

    def serve():
        with recording(tmp_path / "t.npz", source(7, 3)) as recorder, recorder.hooked(module, "attention", look):
            raise RuntimeError("the engine died")

    with pytest.raises(RuntimeError, match="the engine died"):
        serve()
    assert not (tmp_path / "t.npz").exists()
    assert module.attention is attention


@pytest.mark.parametrize("library", [np, jnp])
def test_pages_become_their_causal_positions(library):
    pages, positions = library.array([[2, 0], [1, -1]]), library.array([9, 6])
    tokens = np.sort(np.asarray(tokens_of_pages(pages, positions, 4)))
    assert tokens.tolist() == [[-1, -1, 0, 1, 2, 3, 8, 9], [-1] * 5 + [4, 5, 6]]


class TheirBackend:
    """Answers like SGLang-JAX's: (output, cache) with what `step` says was selected."""

    def __init__(self, topk=None, topk_pages=None):
        self.cache = SimpleNamespace(topk=topk, topk_pages=topk_pages)

    def __call__(self, q, k, v, layer, forward_batch, token_to_kv_pool, **kwargs):
        return q, self.cache


def call_theirs(backend, positions, slots):
    batch = SimpleNamespace(positions=jnp.array(positions), out_cache_loc=jnp.array(slots))
    return backend(1.0, 2.0, None, SimpleNamespace(layer_id=11), batch, None, indexer_type="full")


def test_sglang_jax_prefill_is_recorded_by_page():
    recorder = Recorder(source(12, 8, page_size=4, granularity="page"))
    with recorder.hooked(TheirBackend, "__call__", sglang_jax(recorder.source)):
        pages = jnp.array([[2, 0], [1, -1], [0, -1]])
        assert call_theirs(TheirBackend(None, pages), [9, 6, 0], [70, 67, -1])[0] == 1.0  # the last row is padding
        call_theirs(TheirBackend(jnp.array([[1, 2, 3]]), jnp.array([[0, 1]])), [11], [72])  # a decode: by token
        call_theirs(TheirBackend(None, None), [10], [71])  # a shared layer, or a dense prefill
    recorded = recorder.trace().layers[11]
    assert recorded.positions.tolist() == [6, 9]
    assert recorded.topk.tolist() == [[4, 5, 6] + [-1] * 5, [0, 1, 2, 3, 8, 9, -1, -1]]


def test_sglang_jax_decode_is_recorded_by_token():
    recorder = Recorder(source(12, 3))
    with recorder.hooked(TheirBackend, "__call__", sglang_jax(recorder.source)):
        call_theirs(TheirBackend(jnp.array([[7, 3, -1], [0, 0, 0]]), jnp.array([[0, 1], [0, 0]])), [9, 0], [73, 0])
        call_theirs(TheirBackend(jnp.array([[-1]]), jnp.array([[0, 1]])), [10], [74])  # DSA_PAGE_TOPK: pages only
        call_theirs(TheirBackend(None, jnp.array([[0, 1]])), [8], [72])  # a prefill
    recorded = recorder.trace().layers[11]
    assert recorded.positions.tolist() == [9]
    assert recorded.topk.tolist() == [[3, 7, -1]]
