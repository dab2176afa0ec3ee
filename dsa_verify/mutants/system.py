"""System mutants: backend, decoder, runner or engine broken on purpose, and the workloads that must notice."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Protocol
from unittest import mock

from dsa_verify.mutants.source import SourceEdit, with_changes
from dsa_verify.system.scenarios import SCENARIOS

PROVIDER = "system"
SURFACES = ("engine", "backend", "decoder", "runner")
"""Parts of the system that are broken here, in the place of a kernel's surface."""
PACKAGE = "dsa_verify.model"
"""Where edits are made. All of it is imported anew: the decoder takes the backend's functions by name."""

Rejections = dict[str, str]
"""Reasons by check."""


class Patcher(Protocol):
    """Replaces attributes for a while; pytest's MonkeyPatch is one."""

    def setattr(self, target: object, name: str, value: object) -> None: ...


class _MockPatcher(ExitStack):
    def setattr(self, target: object, name: str, value: object) -> None:
        self.enter_context(mock.patch.object(target, name, value))


@dataclass(frozen=True)
class MethodReplacement:
    """A function that replaces methods.

    unguarded: a word of the rejection without the engine's guards, see `engine_table`; None where the answers stay
      right.
    """

    install: Callable[[Patcher], None]
    unguarded: str | None = None

    @property
    def fingerprint(self) -> str:
        return inspect.getsource(self.install)

    def during(self, run: Callable[[], Rejections]) -> Rejections:
        """What `run` returns while the methods are replaced."""
        with _MockPatcher() as patcher:
            self.install(patcher)
            return run()


@dataclass(frozen=True)
class SystemMutant:
    """A part of the system broken on purpose.

    kind: as of a kernel's mutant. surface: the part. scenarios: names of `dsa_verify.system.scenarios` where it shows.
    check: what must reject it there. seed: of the workload that shows it first.
    """

    name: str
    kind: str
    surface: str
    change: SourceEdit | MethodReplacement
    scenarios: tuple[str, ...]
    check: str
    seed: int = 0

    provider = PROVIDER
    package = PACKAGE

    @property
    def surfaces(self) -> tuple[str, ...]:
        return (self.surface,)

    @property
    def scenario(self) -> str:
        return f"{self.scenarios[0]}/{self.seed}"

    @property
    def fingerprint(self) -> str:
        return "\0".join((self.change.fingerprint, *self.scenarios, str(self.seed)))

    @property
    def edits(self) -> tuple[SourceEdit, ...]:
        """What it changes in the source of its package; nothing if it replaces methods."""
        return (self.change,) if isinstance(self.change, SourceEdit) else ()

    def rejections(self, scenario: str, seed: int) -> Rejections:
        """What checks say of the broken system. Raises `StaleMutant`."""
        run = partial(SCENARIOS[scenario], seed)
        if isinstance(self.change, MethodReplacement):
            return self.change.during(run)
        return with_changes(self.package, self.edits, run)

    def attempts(self, deep: bool) -> Iterator[tuple[str, Callable[[], Rejections]]]:
        """Places to look, by name: where it is expected, then a few workloads, `deep` many more."""
        seeds = range(10, 60) if deep else dict.fromkeys((self.seed, *range(10)))
        for seed in seeds:
            yield f"{self.scenarios[0]}/{seed}", partial(self._in_all_scenarios, seed)

    def _in_all_scenarios(self, seed: int) -> Rejections:
        return {check: why for scenario in self.scenarios for check, why in self.rejections(scenario, seed).items()}
