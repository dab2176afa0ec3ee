"""Sparse prefill broken on purpose for the embedded arm, to see the gate fail."""

from collections.abc import Callable
from typing import TypeVar

from dsa_verify.errors import unknown_name

T = TypeVar("T")

MUTANTS: dict[str, dict[str, tuple[str, str, str]]] = {
    "page-stride": {
        "jnp": (
            "dsa_verify.kernels.jnp.attention",
            "of_position = jnp.arange(kv, dtype=jnp.int32) // page_size",
            "of_position = jnp.arange(kv, dtype=jnp.int32) // (2 * page_size)",
        ),
    },
    "causal-bound": {
        "jnp": (
            "dsa_verify.kernels.jnp.attention",
            "jnp.arange(page_table.shape[1] * cache.shape[1]) <= placement.position[:, None]",
            "jnp.arange(page_table.shape[1] * cache.shape[1]) < placement.position[:, None]",
        ),
        "pallas": ("dsa_verify.kernels.pallas.block_attention", "(row <= last)", "(row < last)"),
    },
    "top-1-page": {
        "jnp": (
            "dsa_verify.kernels.jnp.attention",
            "    chosen = _in_pages(topk_pages, ",
            "    chosen = _in_pages(topk_pages[:, :1], ",
        ),
    },
}
"""By name and by kernels: the module, what is replaced in its source, and by what."""


def demand_mutant(name: str, kernels: str) -> None:
    """Raises `ConfigError` for a mutant that does not exist for these kernels."""
    able = sorted(mutant for mutant, by_kernels in MUTANTS.items() if kernels in by_kernels)
    if name not in able:
        raise unknown_name(f"mutant of the gate for {kernels} kernels", name, able)


def with_mutant(name: str | None, kernels: str, run: Callable[[], T]) -> T:
    """`run()` while the package of `kernels` is the broken copy, for everything that it traces; plainly for None.

    Raises `ConfigError` for a mutant that does not exist for these kernels, `StaleMutant` for one
    that no longer applies.
    """
    if name is None:
        return run()
    import jax

    from dsa_verify.mutants.source import Patch, with_patches

    demand_mutant(name, kernels)
    module, old, new = MUTANTS[name][kernels]
    jax.clear_caches()  # what was traced from the right kernels
    try:
        return with_patches(module.rpartition(".")[0], [Patch(module, old, new)], run)
    finally:
        jax.clear_caches()
