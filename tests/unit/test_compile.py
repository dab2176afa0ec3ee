"""The built-in kernels compile for real TPUs at per-device shapes, and none hides a copy of the paged cache."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsa_verify.contract import SURFACES

ROOT = Path(__file__).parents[2]
TARGETS = {"v5e": "v5e:2x2", "v6e": "v6e:2x2", "tpu7x": "tpu7x:2x2x1"}

# Compiles run in a process of their own: libtpu holds a lock and its own copy of XLA. The cache is larger than any
# VMEM, so that a copy of it must show in HBM temporaries.
SCRIPT = """
import json, sys
import jax, numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, SingleDeviceSharding
from dsa_verify.kernels import pallas
from dsa_verify.contract import SURFACES
from dsa_verify.shapes import shape_named

model, tokens, page_size, pages, bf16, i32 = shape_named("glm-5.2-tp16"), 64, 64, 3200, "bfloat16", "int32"
lengths = dict(
    tokens=tokens, seqs=64, pages=pages, page_size=page_size, pages_per_seq=64, k_pages=32,
    heads=model.heads, kv_lora_rank=model.kv_lora_rank, qk_rope_head_dim=model.qk_rope_head_dim,
    latent_width=model.latent_width, index_n_heads=model.index_n_heads, index_head_dim=model.index_head_dim,
    hidden_size=model.hidden_size, q_lora_rank=model.q_lora_rank,
    index_heads_width=model.index_n_heads * model.index_head_dim,
)
lengths["seqs+1"] = lengths["seqs"] + 1
integers = {"kv_lens", "cu_q_lens", "page_table", "topk_pages", "positions", "out_cache_loc"}
device = topologies.get_topology_desc(sys.argv[1], "tpu").devices[0]
report = {}
for surface in SURFACES.values():
    specs = {
        name: jax.ShapeDtypeStruct(
            tuple(lengths[axis] for axis in axes),
            i32 if name in integers else "float32" if name == "index_weights" else bf16,
            sharding=SingleDeviceSharding(device),
        )
        for name, axes in surface.arrays.items()
    }
    statics = {"sm_scale": model.sm_scale, "index_topk": model.index_topk, "convention": model.indexer}
    given = {name: statics[name] for name in surface.statics}
    function = getattr(pallas, surface.name)
    jitted = jax.jit(lambda function=function, given=given, **arrays: function(**arrays, **given),
                     donate_argnames=surface.pools)
    with jax.sharding.use_abstract_mesh(Mesh(np.array([device]), ("x",)).abstract_mesh):
        lowered = jitted.trace(**specs).lower(lowering_platforms=("tpu",))
    memory = lowered.compile().memory_analysis()
    report[surface.name] = {"temporaries": memory.temp_size_in_bytes, "aliased": memory.alias_size_in_bytes}
    width = model.latent_width if "cache_kv" in surface.arrays else model.index_head_dim
    report[surface.name] |= {"cache": pages * page_size * width * 2, "pools": surface.pools}
print(json.dumps(report))
"""


@pytest.fixture(scope="module", params=TARGETS.values(), ids=TARGETS)
def compiled(request):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("not verified: libtpu is not installed, so nothing was compiled; install the extra 'tpu'")
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "TPU_LOG_DIR": "disabled",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, request.param], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_surface_compiles_without_a_hidden_copy_of_the_cache(compiled):
    assert set(compiled) == set(SURFACES)
    for surface, memory in compiled.items():
        assert memory["temporaries"] < memory["cache"] / 2, f"{surface} holds {memory['temporaries']} bytes"


def test_every_writing_surface_updates_the_cache_in_place(compiled):
    for surface, memory in compiled.items():
        assert memory["aliased"] == (memory["cache"] if memory["pools"] else 0), surface
