"""Sharding: a step under `shard_map` on eight host devices gives what each shard's batch gives alone.

Run as a program, this file makes the comparison of one provider; the tests start it with eight devices.

Over `data`, eight steps of one bucket run on a device each, with pools, tables and slots of their own. The kernel
sees the shapes that it sees alone, so results are the same bit for bit. Over `tensor`, heads are split and everything
else is replicated; a kernel of one head is compiled to other loops than one of four, so outputs may be as far apart as
the sum of both budgets; what is written, the same by every device, is the same bit for bit.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from dsa_verify import oracle
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks.tolerance import attention_budget
from dsa_verify.contract import SURFACES, Kernel, Provider, Surface
from dsa_verify.run import mesh
from dsa_verify.run.mesh import Grid

DEVICES = 8
NAMES = ("dense_mla", "sparse_mla_prefill_qblock", "index_page_topk", "cache_write")
STEPS = (
    "several-unequal-p16-f32",
    "mixed-decode-and-chunk-p16-f32",
    "single-extend-p16-f32",
    "prefix-unaligned-p16-f32",
    "several-zero-length-p16-f32",
    "padding-sequences-between-p16-f32",
    "padding-everything-p16-f32",
    "table-reversed-p16-f32",
)
BY_HEAD = ("out", "lse")


def worst_share(surface: Surface, provider: Provider, grid: Grid, exact: bool) -> float:
    """The largest share of both budgets by which a sharded run differs from runs of its batches alone; inf for a bit
    that must not differ."""
    from dsa_verify.run.verify import execute

    kernel = provider.kernels[surface.name]
    batches = [SCENARIOS[name].build() for name in STEPS[: grid.data]]
    parts, findings = mesh.run(surface, kernel, batches, grid)
    assert len(parts) == DEVICES, findings
    assert not findings
    alone = [execute(surface, kernel, batch).outputs or {} for batch in batches]
    budgets = [budget_of(surface, kernel, batch) for batch in batches] if surface.attends else []
    worst = 0.0
    for part in parts:
        for name, mine in part.outputs.items():
            heads = (slice(None), part.heads) if name in BY_HEAD else ()
            due = alone[part.data][name][heads]
            if exact or name not in BY_HEAD:
                worst = max(worst, 0.0 if mine.tobytes() == due.tobytes() else np.inf)
                continue
            budget, real = budgets[part.data], batches[part.data].real
            allowed = 2 * (budget.element if name == "out" else budget.lse)[heads][real]
            mine, due = mine[real], due[real]
            apart = np.abs(np.where(mine == due, 0.0, mine.astype(np.float64) - due))
            worst = max(worst, float((apart / np.maximum(allowed, np.finfo(float).tiny)).max(initial=0.0)))
    return worst


def budget_of(surface: Surface, kernel: Kernel, batch):
    answer = oracle.expected(surface.name, batch).attention
    assert answer is not None
    return attention_budget(answer, batch.ql_nope.dtype, batch.ql_nope.shape[-1] + batch.q_pe.shape[-1], kernel.promise)


def numbering_heads() -> Provider:
    """A dense MLA in which a head's number matters, as if every device held the first heads."""
    import jax.numpy as jnp

    from dsa_verify.kernels.providers import load_provider

    right = load_provider("jnp").kernels["dense_mla"]

    def wrong(**operands):
        out, cache = right.fn(**operands)
        return out * (1 + jnp.arange(out.shape[1]))[:, None], cache

    return Provider("numbering_heads", "0", {"dense_mla": Kernel(wrong, right.promise)})


def compare(name: str) -> dict[str, float]:
    from dsa_verify.kernels.providers import load_provider

    if name == "numbering_heads":
        share = worst_share(SURFACES["dense_mla"], numbering_heads(), Grid(2, 4), exact=False)
        return {"dense_mla over data and tensor": share}
    provider, found = load_provider(name), {}
    for surface in (SURFACES[name] for name in NAMES):
        found[f"{surface.name} over data"] = worst_share(surface, provider, Grid(DEVICES, 1), exact=True)
        if surface.attends:
            found[f"{surface.name} over data and tensor"] = worst_share(surface, provider, Grid(2, 4), exact=False)
    return found


def on_eight_devices(provider: str) -> dict[str, float]:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={DEVICES}"}
    done = subprocess.run([sys.executable, __file__, provider], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("provider", ["jnp", "builtin"])
def test_sharded_step_gives_what_its_shards_give_alone(provider):
    found = on_eight_devices(provider)
    assert len(found) == 6
    assert max(found.values()) <= 1.0, found


def test_kernel_that_counts_heads_from_zero_on_every_device_is_found():
    assert min(on_eight_devices("numbering_heads").values()) > 100


if __name__ == "__main__":
    print(json.dumps(compare(sys.argv[1])))
