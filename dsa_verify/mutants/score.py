"""Scores a campaign of mutants: killed counts, explained and unexplained survivors, exit code, JSON document."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsa_verify.errors import ConfigError
from dsa_verify.mutants.campaign import MutantResult

EQUIVALENT = Path(__file__).with_name("equivalent.toml")
REQUIRED_SHARE = 0.95
"""Share of systematic mutants that must be killed; explained survivors count as not killed."""


def explanations(path: Path = EQUIVALENT) -> dict[str, str]:
    """Why each explained survivor changes nothing that any result may depend on. Raises `ConfigError`."""
    try:
        entries = tomllib.loads(path.read_text("utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error
    for name, reason in entries.items():
        if not isinstance(reason, str) or not reason.strip():
            raise ConfigError(f"{path}: {name!r} has no reason; expected one sentence")
    return entries


@dataclass(frozen=True)
class Score:
    """A finished campaign. `known`: names of all mutants there are, tried or not."""

    handwritten: Sequence[MutantResult]
    systematic: Sequence[MutantResult]
    explained: Mapping[str, str]
    known: Collection[str]

    @property
    def results(self) -> list[MutantResult]:
        return [*self.handwritten, *self.systematic]

    @property
    def survivors(self) -> list[MutantResult]:
        """Mutants that nothing killed and nobody explained."""
        return [result for result in self.results if not result.killed and result.name not in self.explained]

    @property
    def equivalent(self) -> list[MutantResult]:
        return [result for result in self.systematic if not result.killed and result.name in self.explained]

    @property
    def killed_handwritten(self) -> int:
        return sum(result.killed for result in self.handwritten)

    @property
    def killed_systematic(self) -> int:
        return sum(result.killed for result in self.systematic)

    @property
    def share(self) -> float:
        """Of the systematic mutants, how many were killed."""
        return self.killed_systematic / len(self.systematic) if self.systematic else 1.0

    @property
    def stale(self) -> list[str]:
        """Explanations of mutants that do not exist, or that were killed after all."""
        killed = {result.name for result in self.results if result.killed}
        return [
            f"{name}: {'it was killed' if name in killed else 'no such mutant'}; take the entry out"
            for name in self.explained
            if name in killed or name not in self.known
        ]

    @property
    def accepted(self) -> bool:
        return not self.survivors and not self.stale and self.share >= REQUIRED_SHARE

    def document(self) -> dict[str, object]:
        """The part of the JSON document that is about mutants."""
        return {
            "handwritten": {"killed": self.killed_handwritten, "total": len(self.handwritten)},
            "systematic": {
                "killed": self.killed_systematic,
                "total": len(self.systematic),
                "equivalent": len(self.equivalent),
            },
            "stale": self.stale,
            "mutants": [self._record(result) for result in self.results],
        }

    def _record(self, result: MutantResult) -> dict[str, object]:
        return {
            "name": result.name,
            "kind": result.kind,
            "provider": result.provider,
            "surface": result.surface,
            "killed_by": list(result.killed_by),
            "scenario": result.scenario,
            "reason": result.reason if result.killed else self.explained.get(result.name, ""),
            "seconds": result.seconds,
        }
