"""The backend over a (data, tensor) mesh, of one process or of two, gives what it gives on one device."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
DATA, TENSOR = 2, 4
STEPS = ("several-unequal-p16-f32", "mixed-decode-and-chunk-p16-f32")
DECODES = ("decode-page-edges-d16-bf16", "padding-decode-between-d16-bf16")


def worst_apart() -> dict[str, float]:
    """For full and shared layers of a sparse prefill and of a decode: the largest distance of a sharded output from the
    shards' own, in units of both budgets; inf where pools or selections differ in a bit.

    Of several processes, each looks at the shards that it can address.
    """
    import jax
    from jax.sharding import AxisType

    mesh = jax.make_mesh((DATA, TENSOR), ("data", "tensor"), (AxisType.Auto,) * 2)
    cases = {"mixed": STEPS, "decode": DECODES}
    return {f"{mode}, {kind}": share for mode, names in cases.items() for kind, share in compare(mesh, mode, names)}


def compare(mesh, mode: str, names: tuple[str, ...]):
    """The shares of a full layer, and of a shared one that reuses its selection."""
    import jax
    from jax.sharding import NamedSharding, PartitionSpec

    from dsa_verify import oracle
    from dsa_verify.batch.table import SCENARIOS
    from dsa_verify.checks.tolerance import attention_budget
    from dsa_verify.contract import Promise
    from dsa_verify.model.backend import Layer, attend, path_of
    from dsa_verify.model.backend_config import BackendConfig
    from tests.unit.test_backend import operands

    def layer(kind: str, mesh, *given):
        static = Layer(kind, batches[0].index_topk, batches[0].sm_scale)
        path = path_of(static, mode, config, selected=kind == "shared")
        return jax.jit(lambda *given: attend(static, path, config, *given, mesh=mesh))(*given)

    config = BackendConfig(prefill_sparse=True, kernels="jnp")
    batches = [SCENARIOS[name].build() for name in names]
    parts = [operands(batch) for batch in batches]
    over_data = NamedSharding(mesh, PartitionSpec("data"))
    joined = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    inputs, caches, metadata = jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, over_data, x.__getitem__), joined
    )
    full = layer("full", mesh, inputs, caches, metadata)
    bare = inputs._replace(index_q=None, index_k=None, index_weights=None), caches._replace(index_cache=None)
    shared = layer("shared", mesh, *bare, metadata, full.selection)
    alone = [layer("full", None, *given) for given in parts]
    exact = [oracle.expected("dense_mla", batch).attention for batch in batches]
    budgets = [attention_budget(answer, parts[0][0].ql_nope.dtype, 192, Promise()).element for answer in exact]
    for kind, output in (("full", full), ("shared", shared)):
        yield kind, max(apart(output, alone[n], n, len(names), budgets[n]) for n in range(len(names)))


def apart(output, alone, number: int, shards: int, budget: np.ndarray) -> float:
    """Distance of one data shard's results from the run of that shard alone."""
    worst = 0.0
    pairs = [(output.out, alone.out), (output.caches.cache_kv, alone.caches.cache_kv)]
    pairs.append((output.selection.pages, alone.selection.pages))
    for whole, due in pairs:
        rows = whole.shape[0] // shards
        for shard in whole.addressable_shards:
            if (shard.index[0].start or 0) != number * rows:
                continue
            got, mine = np.asarray(shard.data), np.asarray(due)[(slice(None), *shard.index[1:])]
            if got.shape != mine.shape:
                return float("inf")
            if due is alone.out:
                allowed = 2 * budget[(slice(None), *shard.index[1:])]
                off = np.abs(got.astype(np.float64) - mine.astype(np.float64))
                worst = max(worst, float((off / np.maximum(allowed, np.finfo(float).tiny)).max()))
            elif got.tobytes() != mine.tobytes():
                worst = float("inf")
    return worst


def start(devices: int, *arguments: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, __file__, *arguments], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def told_by(*processes: subprocess.Popen) -> list[dict[str, float]]:
    try:
        ends = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), "\n".join(err[-2000:] for _, err in ends)
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]


def within(found: dict[str, float]) -> bool:
    assert set(found) == {f"{mode}, {layer}" for mode in ("mixed", "decode") for layer in ("full", "shared")}
    return all(share <= 1.0 for share in found.values())


def test_eight_devices_give_what_one_gives():
    (found,) = told_by(start(DATA * TENSOR))
    assert within(found), found


def test_two_processes_give_what_one_gives():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    for found in told_by(*(start(TENSOR, address, str(process)) for process in range(2))):
        assert within(found), found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        import jax

        jax.distributed.initialize(sys.argv[1], num_processes=2, process_id=int(sys.argv[2]))
    print(json.dumps(worst_apart()))
