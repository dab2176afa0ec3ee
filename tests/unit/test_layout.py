"""Layout conversions of the adapters against NumPy definitions, on shuffled tables with poisoned entries."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.kernels.providers import layout

POOL = 90


def lengths_and_table(seed: int, page_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Lengths of 0, one token, whole and broken pages, and a shuffled table whose unused entries are poison."""
    rng = np.random.default_rng(seed)
    kv_lens = rng.permutation([0, 1, page_size, 2 * page_size, 2 * page_size + 3, 5 * page_size - 1]).astype(np.int32)
    table = rng.permutation(POOL)[: kv_lens.size * 6].reshape(kv_lens.size, 6).astype(np.int32)
    for seq, kv_len in enumerate(kv_lens):
        table[seq, -(-kv_len // page_size) :] = [POOL + 7, 0, -1, POOL + 7, 0, -1][: 6 + (-kv_len // page_size)]
    return kv_lens, table


@pytest.mark.parametrize("page_size", [16, 64, 128])
@pytest.mark.parametrize("seed", range(4))
def test_packed_holds_every_used_page_right_behind_the_last(seed, page_size):
    kv_lens, table = lengths_and_table(seed, page_size)
    cu_kv_lens = np.asarray(layout.cu_kv_lens(jnp.asarray(kv_lens), page_size))
    pages = [-(-int(kv_len) // page_size) for kv_len in kv_lens]
    assert cu_kv_lens.tolist() == [0, *(np.cumsum(pages) * page_size).tolist()]
    assert cu_kv_lens.dtype == np.int32

    flat = np.asarray(jax.jit(layout.packed, static_argnums=2)(table, kv_lens, page_size))
    wanted = np.concatenate([row[:count] for row, count in zip(table, pages, strict=True)])
    assert flat.dtype == np.int32
    assert flat.shape == (table.size,)
    assert flat[: len(wanted)].tolist() == wanted.tolist()
    assert not flat[len(wanted) :].any()
    for seq, count in enumerate(pages):
        start = cu_kv_lens[seq] // page_size
        assert flat[start : start + count].tolist() == table[seq, :count].tolist()


def test_packed_of_full_sequences_is_the_fixed_stride_form():
    table = np.random.default_rng(0).permutation(12).reshape(3, 4).astype(np.int32)
    kv_lens = np.full(3, 4 * 16, np.int32)
    assert np.array_equal(layout.packed(table, kv_lens, 16), layout.fixed_stride(table))


def test_packed_without_a_real_sequence_is_all_page_0():
    assert not np.asarray(layout.packed(np.full((2, 3), POOL + 7, np.int32), np.zeros(2, np.int32), 16)).any()


def test_packed_metadata_is_what_the_parts_give_in_the_order_of_their_kernels():
    kv_lens, table = lengths_and_table(1, 16)
    cu_q_lens = np.arange(len(kv_lens) + 1, dtype=np.int32)
    pages, queries, aligned, counts = layout.packed_metadata(table, kv_lens, cu_q_lens, 16)
    assert np.array_equal(pages, layout.packed(table, kv_lens, 16))
    assert queries is cu_q_lens
    assert np.array_equal(aligned, layout.cu_kv_lens(kv_lens, 16))
    assert np.array_equal(counts, layout.distribution(kv_lens, cu_q_lens, decodes_first=False))


def test_fixed_stride_keeps_poison():
    _, table = lengths_and_table(0, 16)
    flat = np.asarray(layout.fixed_stride(jnp.asarray(table)))
    assert [flat[seq * 6 : seq * 6 + 6].tolist() for seq in range(len(table))] == table.tolist()


@pytest.mark.parametrize(
    ("kv_lens", "q_lens", "decodes_first", "together"),
    [
        ([5, 9, 3], [1, 1, 1], [3, 3, 3], [3, 3, 3]),
        ([5, 9, 0, 0], [1, 1, 1, 1], [2, 2, 2], [2, 2, 2]),  # a decode step padded with one-token slots
        ([5, 9, 7], [1, 1, 4], [2, 2, 3], [0, 0, 3]),
        ([7, 5, 9], [4, 1, 1], [0, 0, 3], [0, 0, 3]),
        ([7, 5], [7, 2], [0, 0, 2], [0, 0, 2]),
        ([5, 6, 7], [1, 0, 3], [1, 1, 3], [0, 0, 3]),  # a sequence without new tokens is no decode
        ([7, 0, 5, 0], [4, 0, 2, 0], [0, 0, 3], [0, 0, 3]),
        ([0, 0], [0, 0], [0, 0, 0], [0, 0, 0]),
    ],
)
def test_distribution(kv_lens, q_lens, decodes_first, together):
    cu_q_lens = np.concatenate([[0], np.cumsum(q_lens)]).astype(np.int32)
    for flag, wanted in ((True, decodes_first), (False, together)):
        found = layout.distribution(jnp.asarray(kv_lens, jnp.int32), jnp.asarray(cu_q_lens), decodes_first=flag)
        assert found.dtype == jnp.int32
        assert found.tolist() == wanted


@pytest.mark.parametrize(
    "name", ["several-unequal-p16-f32", "padding-sequences-between-p64-bf16", "decode-one-d16-bf16"]
)
def test_lengths_are_read_from_positions(name):
    batch = SCENARIOS[name].build()
    found = layout.kv_lens_of(jnp.asarray(batch.positions), jnp.asarray(batch.cu_q_lens))
    assert found.tolist() == batch.kv_lens.tolist()


@pytest.mark.parametrize(("dtype", "pack"), [(np.float32, 1), (ml_dtypes.bfloat16, 2), (np.uint8, 4)])
def test_cache_packs_neighbouring_rows_into_words_and_back(dtype, pack):
    cache = np.arange(3 * 16 * 8).reshape(3, 16, 8).astype(dtype)
    packed = np.asarray(layout.pack_cache(jnp.asarray(cache)))
    assert packed.shape == (3, 16 // pack, pack, 8)
    for offset in range(16):
        assert np.array_equal(packed[1, offset // pack, offset % pack], cache[1, offset])
    assert np.array_equal(layout.unpack_cache(jnp.asarray(packed)), cache)


def test_latent_rows_pad_each_part_to_lanes():
    c_kv, k_pe = np.full((2, 130), 3.0, np.float32), np.full((2, 64), 5.0, np.float32)
    rows = np.asarray(layout.latent_rows(jnp.asarray(c_kv), jnp.asarray(k_pe), jnp.bfloat16), np.float32)
    wanted = np.concatenate([np.full(130, 3.0), np.zeros(126), np.full(64, 5.0), np.zeros(64)])
    assert rows.tolist() == [wanted.tolist()] * 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("padding-sequences-between-p16-f32", False),
        ("padding-decode-between-d16-bf16", False),
        ("several-unequal-p16-f32", True),  # padding at the end only
        ("padding-everything-p16-f32", True),
    ],
)
def test_padding_between_real_sequences_is_out_of_reach(name, told):
    assert (layout.padding_between(SCENARIOS[name].build()) is None) == told
