"""A step has the shape it was asked for and refuses to exist when it contradicts itself."""

from dataclasses import replace

import numpy as np
import pytest

from dsa_verify.engine import EngineConfig, Row, pack
from dsa_verify.errors import ConfigError, EngineError

CHUNK = Row((7, 8, 9), 3, (5, 2))
DECODE = Row((6,), 4, (3, 1))


def step(rows=(CHUNK, DECODE), shape=(6, 3)):
    return pack(rows, shape, page_size=4, pages_per_seq=3)


def test_mixed_step_pads_tokens_and_sequences_at_the_end():
    s = step()
    assert s.mode == "mixed"
    assert s.tokens.tolist() == [7, 8, 9, 6, 0, 0]
    assert s.positions.tolist() == [3, 4, 5, 4, -1, -1]
    assert s.out_cache_loc.tolist() == [23, 8, 9, 4, -1, -1]
    assert s.kv_lens.tolist() == [6, 5, 0]
    assert s.cu_q_lens.tolist() == [0, 3, 4, 4]
    assert s.page_table.tolist() == [[5, 2, 0], [3, 1, 0], [0, 0, 0]]
    assert {value.dtype for value in vars(s).values() if isinstance(value, np.ndarray)} == {np.dtype(np.int32)}


def test_every_slot_of_a_decode_step_carries_one_token():
    s = step([DECODE], (3, 3))
    assert s.mode == "decode"
    assert s.cu_q_lens.tolist() == [0, 1, 2, 3]
    assert s.kv_lens.tolist() == [5, 0, 0]
    assert s.positions.tolist() == [4, -1, -1]


def test_one_token_in_a_longer_step_is_an_extend():
    assert step([DECODE]).mode == "extend"
    assert step([CHUNK]).mode == "extend"
    assert step([]).mode == "extend"
    assert step([], (3, 3)).mode == "decode"


def test_pages_that_are_mapped_ahead_stay_out_of_the_table():
    assert step([replace(DECODE, pages=(3, 1, 4))]).page_table[0].tolist() == [3, 1, 0]


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        step().tokens[0] = 1


def changed(array, at, value):
    copy = array.copy()
    copy[at] = value
    return copy


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {"tokens": s.tokens.astype(np.int64)}, "tokens is int64"),
        (lambda s: {"positions": s.positions[:-1]}, r"positions is int32\[5\], expected int32\[6\]"),
        (lambda s: {"cu_q_lens": changed(s.cu_q_lens, 3, 7)}, "must rise from 0 to at most 6"),
        (lambda s: {"mode": "extend"}, "mode is 'extend'"),
        (lambda s: {"cu_q_lens": changed(s.cu_q_lens, 3, 5)}, "padding sequence 2 carries 1 tokens"),
        (lambda s: {"kv_lens": changed(s.kv_lens, 2, 4)}, "sequence 2 has q_len 0 and kv_len 4"),
        (lambda s: {"kv_lens": changed(s.kv_lens, 0, 13)}, "sequence 0 has q_len 3 and kv_len 13"),
        (lambda s: {"kv_lens": changed(s.kv_lens, 0, 2)}, "sequence 0 has q_len 3 and kv_len 2"),
        (lambda s: {"page_table": changed(s.page_table, (0, 0), 0)}, "expected distinct pages above 0"),
        (lambda s: {"page_table": changed(s.page_table, (0, 0), 2)}, "expected distinct pages above 0"),
        (lambda s: {"page_table": changed(s.page_table, (0, 2), 4)}, "expected zeros"),
        (lambda s: {"page_table": changed(s.page_table, (1, 0), 2)}, "maps page 2, which sequence 0 writes"),
        (lambda s: {"page_table": changed(s.page_table, (1, 1), 2)}, "maps page 2, which sequence 1 writes"),
        (lambda s: {"positions": changed(s.positions, 0, 2)}, r"positions\[0\] is 2, expected 3"),
        (lambda s: {"out_cache_loc": changed(s.out_cache_loc, 5, 11)}, r"out_cache_loc\[5\] is 11, expected -1"),
        (lambda s: {"tokens": changed(s.tokens, 5, 1)}, "0 for padding"),
        (lambda s: {"tokens": changed(s.tokens, 0, -1)}, "at least 0"),
    ],
)
def test_contradiction_is_refused(change, message):
    s = step()
    with pytest.raises(EngineError, match=message):
        replace(s, **change(s))


def test_prefix_may_be_shared_by_two_who_write_elsewhere():
    rows = [Row((1,), 4, (5, 1)), Row((2, 3), 4, (5, 2))]
    assert step(rows).page_table.tolist() == [[5, 1, 0], [5, 2, 0], [0, 0, 0]]


def test_smallest_bucket_that_fits_is_chosen():
    config = EngineConfig(max_running=4, chunk_tokens=10, pages_per_seq=3, decode_seqs=(1, 2), extend_tokens=(8,))
    assert config.decode_shapes == [(1, 1), (2, 2), (4, 4)]
    assert config.extend_shapes == [(8, 4), (13, 4)]
    assert [config.shape_for(q_lens) for q_lens in ([1], [1, 1, 1], [2], [8], [10, 1, 1, 1])] == [
        (1, 1),
        (4, 4),
        (8, 4),
        (8, 4),
        (13, 4),
    ]


@pytest.mark.parametrize(
    "change", [{"max_running": 0}, {"chunk_tokens": 0}, {"pages_per_seq": 0}, {"decode_seqs": (0,)}]
)
def test_setting_that_cannot_run_is_refused(change):
    with pytest.raises(ConfigError):
        EngineConfig(**{"max_running": 4, "chunk_tokens": 10, "pages_per_seq": 3} | change)
