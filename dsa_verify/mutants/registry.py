"""Every mutant by its one name: handwritten ones of kernels, backend, decoder, runner and engine; systematic ones."""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from dsa_verify.errors import ConfigError
from dsa_verify.mutants import kernel_table, system_table
from dsa_verify.mutants.kernel import KernelMutant
from dsa_verify.mutants.system import SystemMutant
from dsa_verify.mutants.systematic import SystematicMutant, systematic_mutants

AnyMutant = KernelMutant | SystemMutant | SystematicMutant
M = TypeVar("M", bound=AnyMutant)


def by_name(mutants: Iterable[M]) -> dict[str, M]:
    """Mutants by their names, each of which must be one mutant's."""
    mutants = tuple(mutants)
    twice = [name for name, count in Counter(mutant.name for mutant in mutants).items() if count > 1]
    assert not twice, f"several mutants are called {', '.join(twice)}"
    return {mutant.name: mutant for mutant in mutants}


KERNEL_MUTANTS: Mapping[str, KernelMutant] = by_name(kernel_table.TABLE)
"""Handwritten mutants of the kernels of `builtin` and `jnp`."""
SYSTEM_MUTANTS: Mapping[str, SystemMutant] = by_name(system_table.TABLE)
"""Handwritten mutants of backend, decoder, runner and engine."""
HANDWRITTEN: Mapping[str, KernelMutant | SystemMutant] = by_name((*kernel_table.TABLE, *system_table.TABLE))


def all_mutants() -> dict[str, AnyMutant]:
    """Handwritten and systematic mutants; the latter are generated from the source of the built-in kernels."""
    return by_name((*HANDWRITTEN.values(), *systematic_mutants().values()))


def named(name: str) -> AnyMutant:
    """The mutant of that name. Raises `ConfigError` if there is none."""
    found = HANDWRITTEN.get(name) or systematic_mutants().get(name)
    if found is None:
        near = difflib.get_close_matches(name, HANDWRITTEN, n=3)
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"unknown mutant {name!r}.{hint} `dsa-verify list mutants` prints the handwritten ones.")
    return found
