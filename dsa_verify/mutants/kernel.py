"""Kernel mutants: lines of a provider's source replaced, or a function around one kernel that spoils its operands."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dsa_verify.contract import Provider
from dsa_verify.mutants import adapters
from dsa_verify.mutants.source import SourceEdit, with_changes

PACKAGES = {"builtin": "dsa_verify.kernels.pallas", "jnp": "dsa_verify.kernels.jnp"}
"""The package of each provider that has mutants; edits name its modules."""


@dataclass(frozen=True)
class KernelWrapper:
    """A function of `dsa_verify.mutants.adapters` around one kernel."""

    wrapper: Callable[..., Any]

    @property
    def fingerprint(self) -> str:
        return self.wrapper.__name__  # the source of adapters is part of the campaign's digest


@dataclass(frozen=True)
class KernelMutant:
    """A provider broken on purpose.

    kind: the kind of bug it stands for, a key of `dsa_verify.mutants.kinds`.
    change: what is replaced in `provider`'s source, or wrapped around its kernel of `surface`.
    scenario: a cheap scenario that shows it on `surface`. check: a check that must reject it there.
    same_as: the mutant of another provider that has the same fault, if there is one.
    """

    name: str
    kind: str
    provider: str
    surface: str
    change: SourceEdit | KernelWrapper
    scenario: str
    check: str
    same_as: str | None = None

    @property
    def surfaces(self) -> tuple[str, ...]:
        return (self.surface,)

    @property
    def fingerprint(self) -> str:
        return self.change.fingerprint

    @property
    def package(self) -> str:
        return PACKAGES[self.provider]

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """What it changes in the source of its package; nothing if it wraps a kernel."""
        return (self.change,) if isinstance(self.change, SourceEdit) else ()

    def load(self) -> Provider:
        """The broken provider. Raises `StaleMutant` when the source it replaces has moved on."""
        from dsa_verify.kernels.providers import load_provider

        if isinstance(self.change, SourceEdit):
            return with_changes(self.package, self.edits, lambda: load_provider(self.provider))
        right = load_provider(self.provider)
        kernel = right.kernels[self.surface]
        broken = dataclasses.replace(kernel, fn=adapters.wrap(kernel.fn, self.change.wrapper))
        return dataclasses.replace(right, kernels={**right.kernels, self.surface: broken})
