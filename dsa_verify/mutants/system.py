"""System mutants: backend, decoder, runner or engine broken on purpose, and the play of a workload that must notice."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol
from unittest import mock

from dsa_verify.mutants.source import Patch, with_patches
from dsa_verify.system.scenarios import SCENARIOS

PROVIDER = "system"
SURFACES = ("engine", "backend", "decoder", "runner")
"""Parts of the system that are broken here, in the place of a kernel's surface."""
_PACKAGES = ("dsa_verify.model",)
"""Imported anew: the decoder takes the backend's functions by name."""

Rejected = dict[str, str]
"""Reasons by check."""


class Setter(Protocol):
    """Replaces attributes for a while; pytest's MonkeyPatch is one."""

    def setattr(self, target: object, name: str, value: object) -> None: ...


class _Mock(ExitStack):
    def setattr(self, target: object, name: str, value: object) -> None:
        self.enter_context(mock.patch.object(target, name, value))


@dataclass(frozen=True)
class Lines:
    """Lines replaced in the source of `dsa_verify.model.backend` or a module of `dsa_verify.model`."""

    module: str
    old: str
    new: str

    @property
    def fingerprint(self) -> str:
        return "\0".join((self.module, self.old, self.new))

    def under(self, play: Callable[[], Rejected]) -> Rejected:
        """`play` while the change is in place. Raises `StaleMutant` when the source has moved on."""
        return with_patches(_PACKAGES, [Patch(self.module, self.old, self.new)], play)


@dataclass(frozen=True)
class Hook:
    """A function that replaces methods. `alone`: what tells without the engine's guards, see `engine_table`."""

    install: Callable[[Setter], None]
    alone: str | None = None

    @property
    def fingerprint(self) -> str:
        return inspect.getsource(self.install)

    def under(self, play: Callable[[], Rejected]) -> Rejected:
        """`play` while the change is in place."""
        with _Mock() as setter:
            self.install(setter)
            return play()


@dataclass(frozen=True)
class SystemMutant:
    """A part of the system broken on purpose.

    kind: as of a kernel's mutant. surface: the part. scenarios: names of `dsa_verify.system.scenarios` where it shows.
    check: what must reject it there. seed: of the workload that shows it first.
    """

    name: str
    kind: str
    surface: str
    change: Lines | Hook
    scenarios: tuple[str, ...]
    check: str
    seed: int = 0

    provider = PROVIDER

    @property
    def surfaces(self) -> tuple[str, ...]:
        return (self.surface,)

    @property
    def scenario(self) -> str:
        return f"{self.scenarios[0]}/{self.seed}"

    @property
    def fingerprint(self) -> str:
        return "\0".join((self.change.fingerprint, *self.scenarios, str(self.seed)))

    def rejected(self, scenario: str, seed: int) -> Rejected:
        """What checks say of the broken system. Raises `StaleMutant`."""
        return self.change.under(lambda: SCENARIOS[scenario](seed))

    def attempts(self, deep: bool) -> Iterator[tuple[str, Callable[[], Rejected]]]:
        """Places to look, by name: where it is expected, then a few workloads, `deep` many more."""
        seeds = range(10, 60) if deep else dict.fromkeys((self.seed, *range(10)))
        for seed in seeds:
            yield f"{self.scenarios[0]}/{seed}", lambda seed=seed: self._everywhere(seed)

    def _everywhere(self, seed: int) -> Rejected:
        return {check: why for scenario in self.scenarios for check, why in self.rejected(scenario, seed).items()}
