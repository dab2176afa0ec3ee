"""Mutants for the gate: the kernels of its built-in arm broken on purpose while it answers, to see the gate fail."""

from collections.abc import Callable
from typing import TypeVar

from dsa_verify.errors import ConfigError
from dsa_verify.mutants import registry
from dsa_verify.mutants.source import with_changes

T = TypeVar("T")
PROVIDERS = {"jnp": "jnp", "pallas": "builtin"}
"""By the kernels that an arm runs: the provider whose mutants are broken copies of them."""


def mutant_for(name: str, kernels: str) -> registry.AnyMutant:
    """The mutant of that name for an arm that runs `kernels`; or the one of these kernels that has the same fault.

    Raises `ConfigError` for an unknown name, and for a mutant that does not change the source of these kernels.
    """
    provider, asked = PROVIDERS[kernels], registry.named(name)
    same = (mutant for mutant in registry.KERNEL_MUTANTS.values() if mutant.same_as == name)
    for mutant in (asked, *same):
        if mutant.provider == provider and mutant.edits:
            return mutant
    if not asked.edits:
        raise ConfigError(
            f"{name} changes no line of source, which is all that --mutant can do to the gate's arm; "
            f"`dsa-verify mutants --mutant {name}` tries it."
        )
    other = next((kernels for kernels, theirs in PROVIDERS.items() if theirs == asked.provider), None)
    advice = f"give --kernels {other}" if other else f"`dsa-verify mutants --mutant {name}` tries it"
    raise ConfigError(f"{name} is a mutant of {asked.provider}, the gate's arm runs {provider}; {advice}.")


def with_mutant(name: str | None, kernels: str, run: Callable[[], T]) -> T:
    """`run()` while the package of `kernels` is the broken copy, for everything that it traces; plainly for None.

    Raises `ConfigError` for a mutant that does not exist for these kernels, `StaleMutant` for one
    that no longer applies.
    """
    if name is None:
        return run()
    import jax

    mutant = mutant_for(name, kernels)
    jax.clear_caches()  # what was traced from the right kernels
    try:
        return with_changes(mutant.package, mutant.edits, run)
    finally:
        jax.clear_caches()
