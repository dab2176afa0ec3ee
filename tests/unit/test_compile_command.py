"""`dsa-verify compile`: what no TPU may run is rejected with the compiler's figure, and a result is kept."""

import importlib.util
import json
import threading
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from click.testing import CliRunner

from dsa_verify.commands.compile import compile_kernels
from dsa_verify.compile import compiler, digest, foreign, run
from dsa_verify.compile.cases import CompileCase, CompilePlan, cases
from dsa_verify.compile.chips import CHIPS, GIB, MIB
from dsa_verify.compile.evidence import Figures, judge, refused
from dsa_verify.compile.layers import DATA, LAYERS
from dsa_verify.contract import SURFACES, Provider, check_call
from dsa_verify.errors import ConfigError
from dsa_verify.kernels.providers import layout, load_provider

WRITE = CompileCase("builtin", "cache_write", "v6e", "glm-5.2-tp16", "prefill", 4096, 131_072, 64)
SCORE = replace(WRITE, surface="index_topk", tokens=8192, context=135_168)
FITS = Figures(temporaries=0, arguments=2 * GIB, outputs=2 * GIB, aliased=2 * GIB, code=MIB, vmem=MIB, vmem_limit=None)


def broken(name: str, case: CompileCase = WRITE) -> CompileCase:
    return replace(case, provider=f"tests.unit.broken_compiles:{name}")


def compiled(case: CompileCase, settings: run.CompileSettings):
    (done,) = run.run([case], {case.provider: load_provider(case.provider)}, settings)
    return done


@pytest.mark.parametrize(
    ("case", "cause", "figure", "words"),
    [
        (broken("greedy"), "vmem", 200 * MIB, "would exceed memory (size=134217728)"),
        (broken("misaligned"), "compiler", None, "Offsets along tiled dimensions must be aligned to tiles"),
        (broken("copying"), "pool copy", WRITE.pool_bytes(), "with a pool twice as large they grow by 1.25 GiB"),
        # 8,192 tokens x 135,168 keys x 128 lanes of bfloat16
        (broken("gathering", SCORE), "hbm", 264 * GIB, "exceeds available HBM (31.25G)"),
    ],
    ids=["too much vector memory", "misaligned slice", "copy of the pool", "more temporaries than HBM"],
)
def test_broken_program_is_rejected_with_the_compilers_figure(case, cause, figure, words):
    done = compiled(case, run.CompileSettings())
    assert (done.verdict, done.cause) == ("rejected", cause)
    assert words in done.message
    found = done.vmem_bytes if cause == "vmem" else done.hbm_temp_bytes
    # Padding and what else the program holds come on top of the array that is too large.
    assert found is None if figure is None else figure <= found <= 1.1 * figure


@pytest.mark.parametrize(
    ("name", "limits", "cause"),
    [
        ("crashing", {}, "crash"),
        ("endless", {"seconds": 5}, "time"),
        ("hungry", {"memory": GIB}, "memory"),
    ],
)
def test_a_compile_that_ends_badly_has_a_verdict_of_its_own(name, limits, cause):
    done = compiled(broken(name), run.CompileSettings(**limits))
    assert (done.verdict, done.cause) == ("rejected", cause)


def test_a_result_is_kept_until_something_it_depends_on_changes(tmp_path, monkeypatch):
    settings = run.CompileSettings(folder=tmp_path)
    first = compiled(WRITE, settings)
    assert first.verdict == "accepted" and not first.cached

    monkeypatch.setattr(run, "compile_apart", lambda case, *_: refused(case, "compiled again"))
    assert compiled(WRITE, settings) == replace(first, cached=True)
    assert compiled(replace(WRITE, page_size=128), settings).message == "compiled again"
    assert compiled(WRITE, replace(settings, seconds=7)).message == "compiled again"
    monkeypatch.setattr(digest, "versions", lambda: {"libtpu": "another"})
    assert compiled(WRITE, settings).message == "compiled again"


def test_an_interrupted_compile_is_no_verdict_and_is_not_kept(tmp_path):
    stop = threading.Event()
    stop.set()
    provider = load_provider("builtin")
    assert run._one(WRITE, provider, run.CompileSettings(folder=tmp_path), stop).verdict == "not verified"
    assert not list(tmp_path.iterdir())


def test_without_the_compiler_nothing_is_verified_and_the_reason_is_told(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "libtpu" else found(name))
    result = CliRunner().invoke(compile_kernels, ["--target", "v6e", "--no-cache", "--json"])
    document = json.loads(result.stdout)
    assert result.exit_code == 4
    assert document["counts"] == {"accepted": 0, "rejected": 0, "not_verified": len(SURFACES) + len(LAYERS)}
    assert {entry["message"] for entry in document["cases"]} == {run.NO_COMPILER}
    assert {"provider", "surface", "shape", "target", "verdict", "hbm_temp_bytes", "vmem_bytes", "seconds"} <= set(
        document["cases"][0]
    )


def test_a_surface_that_the_provider_lacks_is_not_verified_for_its_own_reason():
    done = compiled(broken("greedy", replace(WRITE, surface="dense_mla")), run.CompileSettings())
    assert (done.verdict, done.message) == ("not verified", "it has none")


def test_the_default_set_has_each_surface_once_a_target():
    planned = cases(CompilePlan())
    everything = (*SURFACES, *LAYERS)
    assert len(planned) == len(everything) * len(CHIPS)
    assert {(case.surface, case.target) for case in planned} == {(s, t) for s in everything for t in CHIPS}


def test_layers_are_planned_for_the_kernels_that_they_run_alone():
    planned = cases(CompilePlan(providers=("jnp",)))
    assert {case.surface for case in planned} == set(SURFACES)
    (asked,) = cases(CompilePlan(providers=("jnp",), surfaces=("layer_decode",), targets=("v6e",)))
    done = compiled(asked, run.CompileSettings())
    assert (done.verdict, done.message) == ("not verified", "layers run the kernels of builtin, not of jnp")


def test_a_layer_takes_both_parts_of_the_data_and_all_heads_of_the_model():
    (case,) = cases(CompilePlan(surfaces=("layer_prefill",), targets=("v6e",), models=("glm-5.2-tp16",)))
    arrays = case.arrays()
    assert arrays["ql_nope"] == ((DATA * 4096, 64, 512), "bfloat16")
    assert arrays["cu_q_lens"] == ((DATA * 9,), "int32")
    assert arrays["cache_kv"][0][0] == DATA * 2**20 // 64
    assert case.pool_bytes() == 2**20 * 128 * 2, "the smaller of both pools"


def test_every_case_of_the_full_set_is_a_call_that_the_contract_allows_and_none_is_there_twice():
    class Array:
        def __init__(self, shape, dtype):
            self.shape, self.dtype = shape, dtype

    planned = cases(CompilePlan(targets=("v6e",), models=("glm-5.2", "deepseek-v3.2"), everything=True))
    seen = set()
    for case in planned:
        arrays = case.arrays()
        given = {name: Array(*array) for name, array in arrays.items()}
        if case.surface in SURFACES:
            check_call(SURFACES[case.surface], given, case.statics())
        seen.add((case.surface, *arrays.items(), *case.statics().items()))
    assert len(seen) == len(planned)
    assert {case.context for case in planned} == {8_192, 32_768, 131_072}
    assert {case.tokens for case in planned if case.mode == "decode"} == {1, 16, 64, 128}


@pytest.mark.parametrize("wrong", [{"models": ("glm-9",)}, {"surfaces": ("dense",)}, {"contexts": (0,)}])
def test_what_does_not_exist_is_refused(wrong):
    with pytest.raises(ConfigError):
        cases(CompilePlan(**wrong))


@pytest.mark.parametrize(
    ("figures", "cause"),
    [
        (FITS, ""),
        (replace(FITS, temporaries=CHIPS["v6e"].hbm_bytes), "hbm"),
        (replace(FITS, vmem_limit=CHIPS["v6e"].vmem_bytes + 1), "vmem"),
        (replace(FITS, temporaries=2 * GIB, pool_growth=WRITE.pool_bytes()), "pool copy"),
        (replace(FITS, temporaries=2 * GIB, pool_growth=MIB), ""),
        (replace(FITS, aliased=0), "pool copy"),
    ],
    ids=["fits", "too much HBM", "asks for too much VMEM", "copy", "large, but no copy", "not in place"],
)
def test_budgets_of_the_chip_decide(figures, cause):
    done = judge(WRITE, figures)
    assert (done.cause, done.verdict) == (cause, "rejected" if cause else "accepted")


def test_a_refusal_of_a_whole_kernels_vector_memory_is_read():
    done = refused(WRITE, "E1001: CompileTimeScopedVmemOom: Scoped allocation with size 90.00M and limit 32.00M")
    assert (done.cause, done.vmem_bytes) == ("vmem", 90 * MIB)


def test_an_adapters_packing_of_the_pool_is_undone_before_the_compiler_sees_it():
    def adapter(cache_kv, scale):
        return scale, layout.unpack_cache(layout.pack_cache(cache_kv) * scale)

    case = replace(WRITE, provider="tpu_inference", surface="dense_mla")
    specs = {"cache_kv": jax.ShapeDtypeStruct((4, 16, 128), "bfloat16"), "scale": jax.ShapeDtypeStruct((), "bfloat16")}
    call, packed = foreign.in_own_layout(case, adapter, specs)
    assert packed["cache_kv"].shape == (4, 8, 2, 128)
    traced = jax.jit(call).lower(**packed).as_text()
    assert traced.count("reshape") == 4  # in and out, each there and back, for the compiler to take away
    _, cache = call(cache_kv=jnp.ones((4, 8, 2, 128), "bfloat16"), scale=jnp.bfloat16(3))
    assert cache.shape == (4, 8, 2, 128) and (cache == 3).all()
    ours, same = foreign.in_own_layout(WRITE, adapter, specs)
    assert ours is adapter and same == specs


def test_a_kernel_that_nothing_runs_is_compiled_at_the_sizes_of_its_case(monkeypatch):
    from dsa_verify.kernels.providers import tpu_inference

    monkeypatch.setattr(tpu_inference, "sparse_mla", lambda: "theirs")
    case = replace(WRITE, provider="tpu_inference", surface="sparse_mla_prefill")
    specs = foreign.unrun_specs(case)
    assert compiler.kernel_of(case, []) == "theirs"
    assert specs["q"].shape == (4096, 4, 512) and specs["topk_indices"].shape == (4096, 2048)
    bytes_of_a_token = sum(specs[name].size for name in ("cache_kv_nope", "cache_kv_rope")) / 2**20
    assert bytes_of_a_token == 512 + 128, "FP8 values with their scales, and 64 rotary lanes in bfloat16"
    twice = foreign.unrun_specs(case, 2**21)
    assert twice["cache_kv_nope"].size == 2 * specs["cache_kv_nope"].size
    monkeypatch.setattr(run, "compile_apart", lambda case, settings, stop: judge(case, FITS))
    (done,) = run.run([case], {"tpu_inference": Provider("tpu_inference", "0", {})}, run.CompileSettings())
    assert done.verdict == "accepted", "it is not missing, although parity has no adapter for it"
