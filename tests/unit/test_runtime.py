"""The runtime room: every fault that interpret mode should show is seeded in a small kernel and must be found."""

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from dsa_verify.errors import NotSimulated, RuntimeUnsupported
from dsa_verify.runtime import Traffic, environment, private, refs, run
from dsa_verify.runtime.races import Access, RaceDetector

pytestmark = pytest.mark.filterwarnings("error")

HBM = pl.BlockSpec(memory_space=pltpu.HBM)
F32_8x128 = pltpu.VMEM((8, 128), jnp.float32)
MODES = ("on_wait", "eager")


def call(kernel, *args, out=None, scratch=(), **options):
    """A pallas_call whose operands all stay in HBM; the result looks like the first operand by default."""
    out = out or jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
    in_specs = [HBM] * len(args)
    return pl.pallas_call(kernel, in_specs=in_specs, out_specs=HBM, out_shape=out, scratch_shapes=scratch, **options)(
        *args
    )


def kinds(seen):
    return [finding.kind for finding in seen.findings]


X = np.arange(8 * 128, dtype=np.float32).reshape(8, 128)


# ---- DMAs and waits


def copy_kernel(x, o, buffer, semaphore, *, wait="all", extra=0):
    """HBM -> VMEM -> HBM; `wait` says when the first copy is waited for, `extra` adds waits for nothing."""
    first = pltpu.make_async_copy(x, buffer, semaphore.at[0])
    first.start()
    if wait == "all":
        first.wait()
    result = buffer[...] + 1.0
    if wait == "late":
        first.wait()
    buffer[...] = result
    second = pltpu.make_async_copy(buffer, o, semaphore.at[1])
    second.start()
    second.wait()
    for _ in range(extra):
        second.wait()


def copied(x, wait="all", extra=0):
    kernel = functools.partial(copy_kernel, wait=wait, extra=extra)
    return call(kernel, x, scratch=[F32_8x128, pltpu.SemaphoreType.DMA((2,))])


@pytest.mark.parametrize("dma", MODES)
def test_right_copy_gives_values_and_no_findings(dma):
    seen = run(copied, {"x": X}, {}, dma=dma)
    np.testing.assert_array_equal(seen.outputs[0], X + 1)
    assert seen.findings == ()
    assert seen.dma == (Traffic("hbm", "vmem", 1, X.nbytes), Traffic("vmem", "hbm", 1, X.nbytes))


def test_missing_wait_shows_as_nan_when_dmas_run_on_wait():
    seen = run(copied, {"x": X}, {"wait": "never"})
    assert np.isnan(seen.outputs[0]).all()


def test_missing_wait_shows_as_race_and_leftover_when_dmas_are_eager():
    seen = run(copied, {"x": X}, {"wait": "never"}, dma="eager")
    assert set(kinds(seen)) == {"race", "leftover-semaphore"}
    race = seen.findings[0].message
    assert race.count("test_runtime.py:") == 2 and "vmem" in race  # both accesses by file and line


@pytest.mark.parametrize("dma", MODES)
def test_late_wait_is_a_race(dma):
    seen = run(copied, {"x": X}, {"wait": "late"}, dma=dma)
    assert set(kinds(seen)) == {"race"}
    assert np.isnan(seen.outputs[0]).all() == (dma == "on_wait")


@pytest.mark.parametrize("dma", MODES)
def test_dead_wait_is_reported_instead_of_hanging(dma):
    seen = run(copied, {"x": X}, {"extra": 1}, dma=dma)
    assert kinds(seen) == ["dead-wait"] and seen.outputs is None
    assert f"wait for {X.nbytes} at test_runtime.py:" in seen.findings[0].message


def two_kernels(x):
    """A racing kernel, then a right one: the interpreter forgets the first race when the second kernel starts."""
    return copied(copied(x, wait="late"))


def test_race_in_the_first_of_two_kernels_is_not_forgotten():
    assert "race" in kinds(run(two_kernels, {"x": X}, {}, dma="eager"))


def reused_buffer(x):
    """Overwrites a VMEM buffer while a copy out of it may still be running, after other copies were waited for."""

    def kernel(x, o, buffer, semaphore):
        pltpu.sync_copy(x, buffer)
        out = pltpu.make_async_copy(buffer, o, semaphore)
        out.start()
        buffer[...] = jnp.zeros_like(buffer)
        out.wait()

    return call(kernel, x, scratch=[F32_8x128, pltpu.SemaphoreType.DMA])


@pytest.mark.parametrize("dma", MODES)
def test_overwriting_a_buffer_before_its_copy_is_awaited_is_a_race(dma):
    seen = run(reused_buffer, {"x": X}, {}, dma=dma)
    assert kinds(seen) == ["race"]
    assert "write of" in seen.findings[0].message and "read of" in seen.findings[0].message


def double_buffered(x):
    """Rows through a ring of two buffers, the next one fetched while the current one is used."""

    def kernel(x, o, ring, semaphores):
        def fetch(step):
            slot = step % 2
            return pltpu.make_async_copy(x.at[pl.ds(step, 1)], ring.at[slot], semaphores.at[slot])

        fetch(0).start()

        @pl.loop(0, 8)
        def _(step):
            @pl.when(step < 7)
            def _():
                fetch(step + 1).start()

            fetch(step).wait()
            ring[step % 2] = ring[step % 2] * 2.0
            pltpu.sync_copy(ring.at[step % 2], o.at[pl.ds(step, 1)])

    return call(kernel, x, scratch=[pltpu.VMEM((2, 1, 128), jnp.float32), pltpu.SemaphoreType.DMA((2,))])


@pytest.mark.parametrize("dma", MODES)
def test_double_buffered_kernel_is_clean(dma):
    seen = run(double_buffered, {"x": X}, {}, dma=dma)
    np.testing.assert_array_equal(seen.outputs[0], 2 * X)
    assert seen.findings == ()


def dynamic_copy(x, n, start):
    """Copies `n` rows from `start` on, both known at run time only; the rest of the output stays zero."""

    def kernel(x, n, start, o, buffer, numbers, semaphore):
        pltpu.sync_copy(n, numbers.at[0])
        pltpu.sync_copy(start, numbers.at[1])
        buffer[...] = jnp.zeros_like(buffer)
        pltpu.sync_copy(buffer, o)
        rows, first = numbers[0, 0], numbers[1, 0]
        copy = pltpu.make_async_copy(x.at[pl.ds(first, rows)], o.at[pl.ds(0, rows)], semaphore)
        copy.start()
        copy.wait()

    scratch = [F32_8x128, pltpu.SMEM((2, 1), jnp.int32), pltpu.SemaphoreType.DMA]
    return call(kernel, x, n, start, scratch=scratch)


def dynamic(n, start, dma="on_wait"):
    return run(dynamic_copy, {"x": X, "n": np.array([n], np.int32), "start": np.array([start], np.int32)}, {}, dma=dma)


@pytest.mark.parametrize("dma", MODES)
@pytest.mark.parametrize(("n", "start"), [(3, 2), (8, 0), (0, 3), (0, 8)])
def test_dma_of_a_size_known_at_run_time_works_down_to_nothing(n, start, dma):
    seen = dynamic(n, start, dma)
    assert seen.findings == ()
    np.testing.assert_array_equal(seen.outputs[0], np.concatenate([X[start : start + n], 0 * X[n:]]))


# ---- bounds, memory, blocks


@pytest.mark.parametrize("start", [5, 8, -1, -4])
def test_dma_source_out_of_bounds_is_found_at_both_ends(start):
    seen = dynamic(4, start)
    assert kinds(seen) == ["out-of-bounds"] and seen.outputs is None
    assert f"[{start}:{start + 4}, 0:128] in a hbm buffer of shape [8, 128]" in seen.findings[0].message
    assert "test_runtime.py:" in seen.findings[0].message


def test_negative_row_does_not_wrap_to_the_last_one():
    assert kinds(dynamic(1, -1)) == ["out-of-bounds"]


def stored_at(x, row):
    def kernel(x, row, o, buffer, numbers):
        pltpu.sync_copy(row, numbers)
        buffer[pl.ds(numbers[0], 4)] = jnp.zeros((4, 128), jnp.float32)
        pltpu.sync_copy(buffer, o)

    return call(kernel, x, row, scratch=[F32_8x128, pltpu.SMEM((1,), jnp.int32)])


@pytest.mark.parametrize("row", [6, -1])
def test_store_out_of_bounds_is_found(row):
    seen = run(stored_at, {"x": X, "row": np.array([row], np.int32)}, {})
    assert kinds(seen) == ["out-of-bounds"]
    assert f"[{row}:{row + 4}, 0:128] in a vmem buffer" in seen.findings[0].message


def test_read_of_uninitialised_vmem_is_nan():
    def untouched(x):
        def kernel(x, o, buffer):
            pltpu.sync_copy(x.at[pl.ds(0, 4)], buffer.at[pl.ds(0, 4)])
            buffer[...] = buffer[...] * 1.0
            pltpu.sync_copy(buffer, o)

        return call(kernel, x, scratch=[F32_8x128])

    seen = run(untouched, {"x": X}, {})
    np.testing.assert_array_equal(seen.outputs[0][:4], X[:4])
    assert np.isnan(seen.outputs[0][4:]).all() and seen.findings == ()


def blocks(x, order=(0, 1, 2, 3)):
    """Two rows per grid step, written to the output block that `order` names."""

    def kernel(x, o):
        o[...] = x[...] + 1.0

    def output_block(i):
        return (sum(jnp.where(i == step, block, 0) for step, block in enumerate(order)), 0)

    block = (2, 128)
    return pl.pallas_call(
        kernel,
        grid=(4,),
        in_specs=[pl.BlockSpec(block, lambda i: (i, 0))],
        out_specs=pl.BlockSpec(block, output_block),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
    )(x)


def test_blocks_are_copied_and_counted():
    seen = run(blocks, {"x": X}, {})
    np.testing.assert_array_equal(seen.outputs[0], X + 1)
    assert seen.findings == ()
    assert seen.dma == (Traffic("block", "hbm", 4, X.nbytes), Traffic("hbm", "block", 4, X.nbytes))


def test_output_block_visited_again_is_found():
    assert kinds(run(blocks, {"x": X}, {"order": (0, 1, 0, 2)})) == ["revisited-block"]


def test_block_index_out_of_bounds_is_found():
    assert kinds(run(blocks, {"x": X}, {"order": (0, 1, 2, 9)})) == ["out-of-bounds"]


def aliased(x):
    def kernel(x, o, buffer):
        pltpu.sync_copy(o.at[pl.ds(0, 1)], buffer)
        buffer[...] = -buffer[...]
        pltpu.sync_copy(buffer, o.at[pl.ds(7, 1)])

    return call(kernel, x, scratch=[pltpu.VMEM((1, 128), jnp.float32)], input_output_aliases={0: 0})


def test_aliased_output_keeps_what_the_kernel_does_not_write_and_spares_the_callers_array():
    before = X.copy()
    seen = run(aliased, {"x": X}, {}, donate=("x",))
    np.testing.assert_array_equal(seen.outputs[0], np.concatenate([X[:7], -X[:1]]))
    np.testing.assert_array_equal(X, before)


# ---- reshaped and bitcast refs

BF16 = np.arange(64 * 128).reshape(64, 128).astype(ml_dtypes.bfloat16)


def as_words(x):
    """uint32 words of a bf16 array's row pairs, the first row in the low bits; the meaning under test."""
    rows = x.view(np.uint16).astype(np.uint32)
    return rows[..., 0::2, :] | rows[..., 1::2, :] << 16


def test_bf16_rows_seen_as_words_have_the_first_row_in_the_low_bits():
    def words(x):
        def kernel(x, o, buffer):
            pltpu.sync_copy(x, buffer)
            pltpu.sync_copy(buffer.bitcast(jnp.uint32).at[pl.ds(4, 8)], o)

        out = jax.ShapeDtypeStruct((8, 128), jnp.uint32)
        return call(kernel, x, out=out, scratch=[pltpu.VMEM((64, 128), jnp.bfloat16)])

    seen = run(words, {"x": BF16}, {})
    np.testing.assert_array_equal(seen.outputs[0], as_words(BF16)[4:12])


def test_words_stored_through_a_reshaped_bitcast_ref_land_in_the_right_rows():
    def store(x, value):
        def kernel(x, value, o, words):
            pltpu.sync_copy(value, words)
            view = o.bitcast(jnp.uint32).reshape(4, 8, 128)  # word rows in groups of eight
            pltpu.sync_copy(words, view.at[2, pl.ds(3, 2)])

        scratch = [pltpu.VMEM((2, 128), jnp.uint32)]
        return call(kernel, x, value, scratch=scratch, input_output_aliases={0: 0})

    value = np.arange(2 * 128, dtype=np.uint32).reshape(2, 128) + 77
    expected = BF16.copy()
    expected.view(np.uint16)[38:42:2], expected.view(np.uint16)[39:42:2] = value & 0xFFFF, value >> 16
    seen = run(store, {"x": BF16, "value": value}, {})
    np.testing.assert_array_equal(seen.outputs[0].view(np.uint16), expected.view(np.uint16))


def test_half_a_word_stored_leaves_the_other_half():
    def store(x):
        def kernel(x, o, buffer):
            pltpu.sync_copy(x, buffer)
            rows = buffer.bitcast(jnp.bfloat16)
            rows[pl.ds(5, 1)] = jnp.ones((1, 128), jnp.bfloat16)
            pltpu.sync_copy(buffer, o)

        return call(kernel, x, scratch=[pltpu.VMEM((32, 128), jnp.uint32)])

    expected = BF16.copy()
    expected[5] = 1
    seen = run(store, {"x": as_words(BF16)}, {})
    np.testing.assert_array_equal(seen.outputs[0], as_words(expected))


def test_swap_through_a_reshaped_ref_returns_the_old_and_stores_the_new():
    def swapped(x):
        def kernel(x, o, buffer):
            pltpu.sync_copy(x, buffer)
            view = buffer.reshape(2, 4, 128)
            old = pltpu.roll(view[1], 0, 0)
            view[1] = old + 1000.0  # a store from a kernel body is a swap to the interpreter
            view[0, pl.ds(1, 2)] = old[:2]
            pltpu.sync_copy(buffer, o)

        return call(kernel, x, scratch=[F32_8x128])

    expected = X.copy()
    expected[4:] += 1000
    expected[1:3] = X[4:6]
    np.testing.assert_array_equal(run(swapped, {"x": X}, {}).outputs[0], expected)


def through_reshape(x, start, stride=1):
    def kernel(x, start, o, buffer, numbers):
        pltpu.sync_copy(start, numbers)
        pltpu.sync_copy(x, buffer)
        o_words = buffer.reshape(4, 2, 128)
        buffer[0:2] = o_words[pl.ds(numbers[0], 1, stride=stride)][0]
        pltpu.sync_copy(buffer, o)

    return call(kernel, x, start, scratch=[F32_8x128, pltpu.SMEM((1,), jnp.int32)])


@pytest.mark.parametrize("start", [4, -1])
def test_out_of_bounds_through_a_reshaped_ref_is_found(start):
    seen = run(through_reshape, {"x": X, "start": np.array([start], np.int32)}, {})
    assert kinds(seen) == ["out-of-bounds"] and "reshaped" in seen.findings[0].message


def test_race_through_a_bitcast_ref_is_found():
    def racing(x):
        def kernel(x, o, buffer, semaphore):
            copy = pltpu.make_async_copy(x, buffer.bitcast(jnp.uint32), semaphore)
            copy.start()
            buffer[...] = buffer[...] * 1
            copy.wait()
            pltpu.sync_copy(buffer.bitcast(jnp.uint32), o)

        return call(kernel, x, scratch=[pltpu.VMEM((64, 128), jnp.bfloat16), pltpu.SemaphoreType.DMA])

    assert "race" in kinds(run(racing, {"x": as_words(BF16)}, {}, dma="eager"))


def test_what_the_views_cannot_do_is_refused_and_not_reported_as_a_fault():
    with pytest.raises(NotSimulated, match="strided"):
        run(through_reshape, {"x": X, "start": np.zeros(1, np.int32)}, {"stride": 2})


class Stored:
    """A NumPy array as the root of views, to compare them with NumPy's own reshape, view and transpose."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def read(self, box):
        return self.array[tuple(slice(start, start + size) for start, size in box)].copy()

    def write(self, box, value):
        old = self.read(box)
        self.array[tuple(slice(start, start + size) for start, size in box)] = value
        return old


RESHAPES = [
    ((4, 16, 2, 8), (64, 2, 8)),
    ((64, 2, 8), (4, 16, 16)),
    ((6, 4), (3, 8)),
    ((2, 3, 4), (1, 6, 4, 1)),
    ((8,), (2, 4)),
]


@pytest.mark.parametrize(("shape", "seen_as"), [*RESHAPES, *(pair[::-1] for pair in RESHAPES)])
def test_reshaped_view_reads_and_writes_what_numpy_does(shape, seen_as):
    rng = np.random.default_rng(len(shape) + 10 * len(seen_as))
    array = rng.standard_normal(shape)
    view, expected = refs.Reshaped(Stored(array.copy()), seen_as), array.reshape(seen_as).copy()
    for _ in range(20):
        starts = [int(rng.integers(0, size)) for size in seen_as]
        box = tuple(
            (start, int(rng.integers(1, size - start + 1))) for start, size in zip(starts, seen_as, strict=False)
        )
        where = tuple(slice(start, start + size) for start, size in box)
        value = rng.standard_normal(refs.sizes(box))
        np.testing.assert_array_equal(view.read(box), expected[where])
        np.testing.assert_array_equal(view.write(box, value), expected[where])
        expected[where] = value
    np.testing.assert_array_equal(view.parent.array.reshape(seen_as), expected)


def test_chain_of_views_reads_what_numpy_does():
    words = np.random.default_rng(0).integers(0, 2**32, (4, 8, 16), dtype=np.uint32)
    rows = np.stack([words & 0xFFFF, words >> 16], axis=2).reshape(4, 16, 16).astype(np.uint16)
    view = refs.Bitcast(Stored(words), np.dtype(np.uint16))
    view = refs.Transposed(refs.Indexed(refs.Reshaped(view, (64, 16)), ((3, 40, 1), (2, 8, 1))), (1, 0))
    np.testing.assert_array_equal(view.read(refs.whole(view)), rows.reshape(64, 16)[3:43, 2:10].T)
    view.write(((1, 2), (4, 3)), np.zeros((2, 3), np.uint16))
    expected = rows.reshape(64, 16).copy()
    expected[7:10, 3:5] = 0
    np.testing.assert_array_equal(
        refs.Bitcast(Stored(words), np.dtype(np.uint16)).read(((0, 4), (0, 16), (0, 16))), expected.reshape(4, 16, 16)
    )


def test_race_detector_agrees_with_comparing_all_pairs():
    rng = np.random.default_rng(1)
    for _ in range(60):
        clocks, accesses, found = [np.zeros(4, int) for _ in range(4)], [], []
        detector = RaceDetector(lambda buffer, earlier, later, found=found: found.append(later))
        for _ in range(30):
            core, other = rng.integers(0, 4, 2)
            if rng.random() < 0.3:
                clocks[core] = np.maximum(clocks[core], clocks[other])  # `core` waited for `other`
            clocks[core][core] += 1
            start, size = rng.integers(0, 6), rng.integers(1, 5)
            region = (range(start, start + size), range(0, 2 * int(rng.integers(1, 3)), 1))
            accesses.append(Access(bool(rng.random() < 0.4), clocks[core].copy(), region, str))
            detector.check(("vmem", 100), accesses[-1])
        racing = {id(b) for i, b in enumerate(accesses) for a in accesses[:i] if _conflict(a, b)}
        assert {id(access) for access in found} == racing


def _conflict(a, b):
    apart = any(r.start >= s.stop or s.start >= r.stop for r, s in zip(a.region, b.region, strict=False))
    ordered = (a.clock <= b.clock).all() or (b.clock <= a.clock).all()
    return (a.write or b.write) and not apart and not ordered


# ---- what a call leaves behind, and what it passes through


def test_a_failed_kernel_leaves_nothing_behind(capfd):
    for dma in MODES:
        assert run(copied, {"x": X}, {"extra": 1}, dma=dma).outputs is None
        assert run(copied, {"x": X}, {}, dma=dma).findings == ()
    assert capfd.readouterr() == ("", "")  # no "RACE DETECTED", no tracebacks of callbacks


def test_a_second_call_of_the_same_shapes_does_not_trace_again():
    traced = []

    def double(x, factor):
        traced.append(x.shape)
        return copied(x) * factor

    first = run(double, {"x": X}, {"factor": 2})
    second = run(double, {"x": X + 1}, {"factor": 2})
    assert (first.compiled, second.compiled, len(traced)) == (True, False, 1)
    np.testing.assert_array_equal(second.outputs[0], 2 * (X + 2))
    assert run(double, {"x": X}, {"factor": 3}).compiled
    assert run(double, {"x": X}, {"factor": 2}, dma="eager").compiled


def test_a_private_name_that_moved_is_refused_by_name_and_version(monkeypatch):
    private.internals.cache_clear()
    monkeypatch.delattr(private.internals()["interpreter"], "TPU_MEMORY_SPACE_NAMES")
    private.internals.cache_clear()
    with pytest.raises(RuntimeUnsupported, match=rf"JAX {jax.__version__} .*TPU_MEMORY_SPACE_NAMES.*0\.10\.2"):
        run(copied, {"x": X}, {"extra": 0})
    private.internals.cache_clear()


def test_plain_jax_functions_run_too_and_none_stays_none():
    seen = run(lambda x, y: (x + y, None), {"x": X, "y": BF16[:8]}, {})
    np.testing.assert_array_equal(seen.outputs[0], X + BF16[:8].astype(np.float32))
    assert seen.outputs[1] is None and seen.findings == () and seen.dma == ()
    assert run(lambda x: x * 2, {"x": BF16}, {}).outputs[0].dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, AssertionError])
def test_errors_of_the_function_itself_reach_the_caller_unchanged(error):
    def refuse(x):
        raise error("not like this")

    with pytest.raises(error, match="not like this"):
        run(refuse, {"x": X}, {})
    assert run(copied, {"x": X}, {}).findings == ()


def test_tpu_info_on_a_cpu_describes_a_v6e_during_a_call_only():
    seen = []
    run(lambda x: seen.append(pltpu.get_tpu_info()) or x, {"x": X}, {})
    assert seen[0].vmem_capacity_bytes == 128 << 20
    with pytest.raises(ValueError, match="cpu"):
        pltpu.get_tpu_info()


def test_importing_the_room_does_not_import_jax():
    program = "import sys, dsa_verify.runtime, dsa_verify.runtime.private; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_environment_names_what_results_depend_on():
    found = environment()
    assert found["jax"] == jax.__version__ and found["numpy"] == np.__version__ and found["backend"] == "cpu"
    assert set(found) == {"python", "jax", "jaxlib", "libtpu", "numpy", "backend", "device_kind"}
