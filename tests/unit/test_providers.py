"""Loading providers: unknown names, bad paths, absent packages, and an import that leaves no trace."""

import sys
from types import ModuleType

import jax.numpy as jnp
import numpy as np
import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES, Provider
from dsa_verify.errors import ConfigError, ProviderError
from dsa_verify.kernels.providers import load_provider, sglang_jax, tpu_inference


def hide(monkeypatch, package: str) -> None:
    """Make a package impossible to import, whether it is installed or not."""
    for name in list(sys.modules):
        if name == package or name.startswith(f"{package}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_Hidden(package), *sys.meta_path])


class _Hidden:
    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_an_unknown_provider_names_the_nearest():
    with pytest.raises(ConfigError, match=r"unknown provider 'sglang-jax'\. Did you mean 'sglang_jax'\?"):
        load_provider("sglang-jax")


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    file = tmp_path / "checkout"
    file.touch()
    for path in (file, tmp_path / "absent"):
        with pytest.raises(ConfigError, match="is not a directory"):
            load_provider("sglang_jax", path)


@pytest.mark.parametrize(
    "target", ["no_such_module:load", "dsa_verify.errors:absent", "dsa_verify.errors:DsaVerifyError"]
)
def test_a_target_that_gives_no_provider_is_refused(target):
    with pytest.raises(ProviderError):
        load_provider(target)


@pytest.mark.parametrize("name", ["builtin", "jnp"])
def test_our_own_providers_have_every_surface(name):
    provider = load_provider(name)
    assert set(provider.kernels) == set(SURFACES)
    assert not provider.missing


def test_an_absent_tpu_inference_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(tpu_inference, "find_spec", lambda name: None)
    with pytest.raises(ProviderError, match=r"pip install --no-deps tpu-inference==\S+ sympy==\S+ mpmath=="):
        load_provider("tpu_inference")


def test_an_absent_sglang_jax_says_where_to_get_it(monkeypatch):
    hide(monkeypatch, "sgl_jax")
    with pytest.raises(ProviderError, match=r"Clone https://github\.com/sgl-project/sglang-jax .*--provider-path"):
        load_provider("sglang_jax")


def test_a_tpu_inference_without_its_kernels_says_how_to_install_it(monkeypatch, tmp_path):
    package = tmp_path / "tpu_inference"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('the package itself must not be run')\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = ModuleType("tpu_inference")
    before.__spec__ = None
    monkeypatch.delitem(sys.modules, "tpu_inference", raising=False)
    with pytest.raises(ProviderError, match=r"No module named 'tpu_inference\.kernels'.*pip install --no-deps"):
        load_provider("tpu_inference")
    assert "tpu_inference" not in sys.modules


def test_a_tpu_inference_in_use_stays_as_it_is(tmp_path):
    real, part = ModuleType("tpu_inference"), ModuleType("tpu_inference.part")
    (tmp_path / "part.py").write_text("from tpu_inference.logger import init_logger\nname = init_logger('x').name\n")
    sys.modules.update({"tpu_inference": real, "tpu_inference.part": part})
    try:
        with tpu_inference._bare_package([str(tmp_path)]):
            import tpu_inference.part as loaded  # type: ignore

            assert loaded is not part
            assert loaded.name == "x"
        assert sys.modules["tpu_inference"] is real
        assert sys.modules["tpu_inference.part"] is part
        assert "tpu_inference.logger" not in sys.modules
    finally:
        del sys.modules["tpu_inference"], sys.modules["tpu_inference.part"]


@pytest.mark.parametrize("given", ["", "python"])
def test_a_checkout_is_found_from_its_root_and_from_its_python_folder(monkeypatch, tmp_path, given):
    hide_installed = [entry for entry in sys.path if "sglang" not in entry]
    kernels = tmp_path / "python" / "sgl_jax" / "srt" / "kernels" / "dsa"
    kernels.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / given), *hide_installed])
    sglang_jax._find_checkout()
    assert sys.path[0] == str(tmp_path / "python")
    sglang_jax._find_checkout()
    assert sys.path.count(str(tmp_path / "python")) == 1


def test_a_missing_reciprocal_is_given_to_the_kernel_only(monkeypatch):
    from jax.experimental import pallas as pl

    kernel, pltpu = ModuleType("kernel"), ModuleType("pltpu")
    monkeypatch.setitem(vars(pl), "reciprocal", "as in 0.10")  # 0.12 deprecates the name there
    pltpu.VMEM, kernel.pltpu = "vmem", pltpu
    tpu_inference._provide_reciprocal(kernel)
    assert kernel.pltpu.reciprocal == "as in 0.10"
    assert kernel.pltpu.VMEM == "vmem"
    assert not hasattr(pltpu, "reciprocal")
    pltpu.reciprocal, kernel.pltpu = "theirs", pltpu
    tpu_inference._provide_reciprocal(kernel)
    assert kernel.pltpu is pltpu


def test_index_keys_become_fp8_records_only_where_that_is_exact():
    exact, rounded = SCENARIOS["ties-few-values-p16-f32"].build(), SCENARIOS["single-extend-p16-f32"].build()
    assert tpu_inference._index_limits(exact) is None
    assert "float8_e4m3fn" in (tpu_inference._index_limits(rounded) or "")
    records = np.asarray(tpu_inference._fp8_records(exact.index_cache))
    assert records.dtype == np.uint8
    assert records.shape == (*exact.index_cache.shape[:2], 256)
    keys = records[..., :128].view(tpu_inference.FP8).astype(np.float32)
    owned = exact.owned.reshape(exact.index_cache.shape[:2])
    assert np.array_equal(keys[owned], exact.index_cache[owned])
    assert (records[..., 128] == 127).all()
    assert not records[..., 129:].any()


def test_a_token_writes_through_a_page_table_of_its_own():
    """A stand-in with the meaning of their scatter: sequence i puts its tokens at the end of its packed pages."""

    def scatter(cache, rows, kv_lens, page_indices, cu_q_lens, cu_kv_lens, pages_per_seq):
        out, page_size = np.array(cache), cache.shape[1]
        for seq, kv_len in enumerate(np.asarray(kv_lens)):
            for token in range(int(cu_q_lens[seq]), int(cu_q_lens[seq + 1])):
                position = int(kv_len) - int(cu_q_lens[seq + 1]) + token
                if kv_len > 0:
                    page = page_indices[cu_kv_lens[seq] // page_size + position // page_size]
                    out[page, position % page_size] = rows[token]
        assert pages_per_seq == 1
        return out

    batch = SCENARIOS["padding-sequences-between-p16-f32"].build()
    arrays = {name: jnp.asarray(getattr(batch, name)) for name in SURFACES["cache_write"].arrays}
    got = sglang_jax._scatter(scatter, **arrays)
    assert np.array_equal(got, load_provider("jnp").kernels["cache_write"].fn(**arrays), equal_nan=True)


def test_single_shot_prefill_takes_one_prompt_without_history():
    assert sglang_jax._single_shot_limits(SCENARIOS["single-prefill-p16-f32"].build()) is None
    for name in ("single-extend-p16-f32", "several-unequal-p16-f32", "padding-everything-p16-f32"):
        assert "one sequence in one shot" in (sglang_jax._single_shot_limits(SCENARIOS[name].build()) or "")


def test_missing_surfaces_state_a_reason():
    provider = load_provider("jnp")
    assert isinstance(provider, Provider)
    with pytest.raises(ConfigError, match="Did you mean 'tpu_inference'"):
        load_provider("tpu-inference")
