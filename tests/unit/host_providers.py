"""Providers for runs in several processes: one that is right, and those that are wrong or end on one process only."""

import os
import signal

from dsa_verify.contract import Kernel, Provider
from dsa_verify.kernels.providers import load_provider

WRONG_DATA, WRONG_FROM = 1, 2


def _right() -> dict[str, Kernel]:
    """A kernel that interpret mode simulates, and one in plain JAX, which compiles in a moment."""
    kernels = {name: load_provider(name).kernels for name in ("builtin", "jnp")}
    return {"cache_write": kernels["builtin"]["cache_write"], "dense_mla": kernels["jnp"]["dense_mla"]}


def _wrong_heads(**operands):
    """Dense MLA that is wrong where only the second device row is, from its third head on."""
    import jax
    import jax.numpy as jnp

    out, cache = load_provider("jnp").kernels["dense_mla"].fn(**operands)
    try:
        row, column = jax.lax.axis_index("data"), jax.lax.axis_index("tensor")
    except NameError:  # not under a mesh
        return out, cache
    return jnp.where((row == WRONG_DATA) & (column >= WRONG_FROM), 1.5 * out, out), cache


def _dies_on(victim: int):
    def cache_write(**operands):
        import jax

        if jax.process_index() == victim and operands["cache_kv"].dtype == "bfloat16":
            os.kill(os.getpid(), signal.SIGKILL)
        return load_provider("jnp").kernels["cache_write"].fn(**operands)

    return cache_write


right = Provider("right", "1", _right())
wrong_heads = Provider("wrong_heads", "1", {**_right(), "dense_mla": Kernel(_wrong_heads)})
dies_on_0 = Provider("dies_on_0", "1", {"cache_write": Kernel(_dies_on(0))})
dies_on_1 = Provider("dies_on_1", "1", {"cache_write": Kernel(_dies_on(1))})
