"""Calls outside a surface's contract are refused with both sides named, and implementations have its signature."""

import inspect

import numpy as np
import pytest

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES, check_call, surface_named
from dsa_verify.errors import ConfigError, ContractError

BATCH = SCENARIOS["single-extend-p16-f32"].build()


def call(surface: str, **changes):
    contract = SURFACES[surface]
    arrays = {name: getattr(BATCH, name) for name in contract.arrays}
    statics = {name: getattr(BATCH, name) for name in contract.statics}
    arrays.update({name: value for name, value in changes.items() if name not in contract.statics})
    statics.update({name: value for name, value in changes.items() if name in contract.statics})
    return check_call(contract, arrays, statics)


REFUSED = {
    "missing scale": ("dense_mla", {"sm_scale": None}, "needs sm_scale.*no default.*qk_nope_head_dim"),
    "missing budget": ("index_topk", {"index_topk": None}, "needs index_topk"),
    "page size 24": (
        "cache_write",
        {"cache_kv": np.zeros((8, 24, 256), np.float32)},
        "page size 24 is not a multiple of 16.*use 16, 32",
    ),
    "latent width": (
        "dense_mla",
        {"cache_kv": np.zeros((64, 16, 192), np.float32)},
        "192 wide, expected 256.*padded to 128 lanes",
    ),
    "heads differ": ("dense_mla", {"q_pe": BATCH.q_pe[:, :2]}, "axis heads is 4 in ql_nope but 2 in q_pe"),
    "missing axis": ("dense_mla", {"ql_nope": BATCH.ql_nope[:, 0]}, r"expected axes \['tokens', 'heads'"),
    "float page table": (
        "dense_mla",
        {"page_table": BATCH.page_table.astype(np.float32)},
        "page_table is float32, expected int32",
    ),
    "integer queries": ("dense_mla", {"q_pe": np.zeros(BATCH.q_pe.shape, np.int32)}, "q_pe is int32, expected a float"),
    "cu_q_lens of another batch": ("dense_mla", {"cu_q_lens": BATCH.cu_q_lens[:-1]}, "axis seqs is 5 in kv_lens but 4"),
    "prefill given to decode": ("sparse_mla_decode", {}, "one query a sequence, found 16 tokens for 5 sequences"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_call_outside_the_contract_is_refused(name):
    surface, changes, message = REFUSED[name]
    with pytest.raises(ContractError, match=message):
        call(surface, **changes)


def test_call_inside_the_contract_gives_every_axis():
    axes = call("sparse_mla_prefill")
    assert (axes["tokens"], axes["heads"], axes["page_size"], axes["seqs"]) == (16, 4, 16, 5)


def test_unknown_surface_suggests_the_nearest():
    with pytest.raises(ConfigError, match="Did you mean 'dense_mla'"):
        surface_named("dense_mia")


@pytest.mark.parametrize("package", ["pallas", "jnp"])
@pytest.mark.parametrize("surface", SURFACES.values(), ids=lambda surface: surface.name)
def test_implementation_has_the_signature_of_its_surface(package, surface):
    if package == "pallas":
        from dsa_verify.kernels import pallas as module
    else:
        from dsa_verify.kernels.jnp import attention, indexer

        module = indexer if surface.selects else attention
    parameters = inspect.signature(getattr(module, surface.name)).parameters.values()
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    required = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    assert positional == list(surface.arrays)
    assert required == set(surface.statics)


@pytest.mark.parametrize("package", ["pallas", "jnp"])
def test_kernel_itself_refuses_a_call_outside_the_contract(package):
    if package == "pallas":
        from dsa_verify.kernels.pallas import cache_write
    else:
        from dsa_verify.kernels.jnp.attention import cache_write
    with pytest.raises(ContractError, match="page size 24"):
        cache_write(BATCH.new_c_kv, BATCH.new_k_pe, np.zeros((8, 24, 256), np.float32), BATCH.out_cache_loc)
