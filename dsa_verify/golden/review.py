"""The one path behind `golden check`, `diff` and `update`: compute, compare, perhaps write."""

import platform
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dsa_verify import __version__
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.contract import SURFACES
from dsa_verify.errors import ConfigError, GoldenError
from dsa_verify.evidence import Result
from dsa_verify.golden import measure, record, store
from dsa_verify.golden.compare import RecordDifference, differences, provider_differences
from dsa_verify.golden.store import Name
from dsa_verify.run import known_failures, suite
from dsa_verify.run.verify import batch_of, on_device

TIER = "quick"
Status = Literal["same", "changed", "missing", "orphan", "corrupt"]
Entry = Mapping[str, object]
"""A provider's part of a record."""
Stored = dict[str, Any] | GoldenError | None
"""A record on disk, why it cannot be trusted, or None where there is none."""

_batch = lru_cache(maxsize=2)(batch_of)  # records of a scenario follow each other


@dataclass(frozen=True)
class Reviewed:
    """One record beside what is computed now. `record` is what an update writes, None where it writes nothing."""

    name: str
    path: Path
    status: Status
    differences: tuple[RecordDifference, ...] = ()
    record: Mapping[str, object] | None = None
    accept: str = ""

    @property
    def fails(self) -> bool:
        kinds = {difference.kind for difference in self.differences}
        return self.status in ("missing", "orphan", "corrupt") or bool(kinds & {"drift", "unmeasured"})


@dataclass(frozen=True)
class Review:
    """All records asked for, and what the kernels' results were if they ran."""

    records: tuple[Reviewed, ...]
    results: tuple[Result, ...] = ()

    @property
    def rejections(self) -> list[Result]:
        return [result for result in self.results if result.verdict.status == "rejected"]

    @property
    def unrecorded(self) -> list[str]:
        """Providers that ran and of which no record holds anything to compare with."""
        ran = {result.provider for result in self.results}
        new = [{d.field for d in one.differences if d.kind == "new"} for one in self.records]
        return sorted(provider for provider in ran if all(provider in fields for fields in new))

    @property
    def failing(self) -> list[Reviewed]:
        return [one for one in self.records if one.fails]

    @property
    def updates(self) -> list[Reviewed]:
        return [one for one in self.records if one.record is not None or one.status == "orphan"]


def wanted(surfaces: Iterable[str] = (), scenarios: Iterable[str] = ()) -> tuple[Name, ...]:
    """The records that must exist, scenario by scenario. Raises `ConfigError` for names that do not exist or are not
    of the quick tier."""
    cases = suite.plan(("jnp",), surfaces, scenarios, TIER)
    for case in cases:
        if SCENARIOS[case.scenario].tier != TIER:
            raise ConfigError(
                f"scenario {case.scenario} is of tier {SCENARIOS[case.scenario].tier}; records pin {TIER}"
            )
    order = {name: at for at, name in enumerate(SCENARIOS)}
    return tuple(sorted(((case.surface, case.scenario) for case in cases), key=lambda name: order[name[1]]))


def compute(name: Name) -> dict[str, Any]:
    """The oracle part of a record, as the code of this moment makes it."""
    surface, scenario = SURFACES[name[0]], SCENARIOS[name[1]]
    return record.make(surface, scenario, _batch(scenario))


def stored(folder: Path, names: Iterable[Name], *, trusting: bool) -> dict[Name, Stored]:
    """The records on disk. One that cannot be trusted is raised as `GoldenError`, or returned as it where `trusting` is
    false, because it will be replaced."""
    found: dict[Name, Stored] = {}
    for name in names:
        try:
            found[name] = store.read(folder, name)
        except GoldenError as error:
            if trusting:
                raise
            found[name] = error
    return found


@dataclass(frozen=True)
class Measured:
    """What kernels added: provider entries by case, results, and what these depend on."""

    entries: Mapping[tuple[str, str, str], Entry] = field(default_factory=dict)
    results: tuple[Result, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    def of(self, name: Name) -> dict[str, Entry]:
        """Each provider's entry for one record."""
        return {provider: entry for (provider, *case), entry in self.entries.items() if tuple(case) == name}


def run_kernels(
    names: Sequence[Name],
    providers: Sequence[str],
    jobs: int | None = None,
    on_result: Callable[[suite.Case, tuple[Result, ...]], None] | None = None,
) -> Measured:
    """Measure the kernels of some providers on the scenarios of some records; known failures are not verified."""
    if not providers:
        return Measured()
    cases = [c for c in suite.plan(providers, tier=TIER) if (c.surface, c.scenario) in set(names)]
    versions = suite.provenance(providers)
    results = suite.run_cases(cases, jobs=jobs, on_result=on_result, judge=measure.measure)
    failures = known_failures.applicable(known_failures.load(providers), native=on_device())
    results = known_failures.forgive(results, failures)
    provenance = {name: _provider_provenance(versions, name) for name in providers}
    return Measured(measure.entries(results), tuple(results), provenance)


def _provider_provenance(versions: Mapping[str, Any], provider: str) -> str:
    """What a provider's numbers depend on, in a line."""
    packages = ", ".join(f"{name} {versions[name]}" for name in ("jax", "jaxlib", "libtpu"))
    device = f"on {versions['backend']} ({versions['device_kind']})"
    return "; ".join(filter(None, [f"version {versions['providers'][provider]}", packages, device, measure.switches()]))


def review(folder: Path, names: Sequence[Name], measured: Measured, *, whole: bool, trusting: bool = True) -> Review:
    """Compare records with what is computed now.

    Args:
      measured: the provider parts; parts of providers that did not run are left as they are.
      whole: `names` are all there should be, so that any other file is an orphan.
      trusting: refuse a record that is corrupt, rather than plan to replace it. Raises `GoldenError` then.
    """
    on_disk = stored(folder, names, trusting=trusting)
    reviewed = [_review_one(store.path_of(folder, name), name, on_disk[name], measured) for name in names]
    if whole:
        for path in store.strays(folder, names):
            gone = RecordDifference("file", "no such record", str(path), "no quick scenario and surface has it")
            reviewed.append(Reviewed(path.stem, path, "orphan", (gone,), None, accept(None, ())))
    return Review(tuple(reviewed), measured.results)


def _review_one(path: Path, name: Name, old: Stored, measured: Measured) -> Reviewed:
    """One record beside what was computed, and what an update would write."""
    label, found, entries = "/".join(name), compute(name), measured.of(name)
    if not isinstance(old, dict):
        status: Status = "missing" if old is None else "corrupt"
        absent = RecordDifference("record", "a file", "none", str(path))
        difference = absent if old is None else RecordDifference("record", "one that can be trusted", str(old))
        return Reviewed(
            label, path, status, (difference,), complete(found, entries, {}, measured.provenance), accept(name)
        )
    recorded = old.get("providers", {})
    drifted = any(difference.kind == "drift" for difference in differences(old, found))
    changes = differences(old, found | ({"providers": entries} if entries else {}))
    fresh = None
    if drifted:  # metrics are about the old question or the old answer
        fresh = complete(found, entries, {}, measured.provenance)
    elif changes:
        fresh = _with_changed_metrics(old, entries, measured.provenance)
    missing = [provider for provider in suite.DEFAULT_PROVIDERS if provider not in {**recorded, **entries}]
    changes = [
        replace(d, kind="unmeasured") if d.kind == "new" and d.field in suite.DEFAULT_PROVIDERS else d for d in changes
    ]
    changes += [RecordDifference(provider, "its metrics", "none recorded", kind="unmeasured") for provider in missing]
    again = tuple(recorded) if drifted else tuple(dict.fromkeys([*entries, *missing]))
    return Reviewed(label, path, "changed" if changes else "same", tuple(changes), fresh, accept(name, again))


def _with_changed_metrics(
    old: Mapping[str, Any], entries: Mapping[str, Entry], provenance: Mapping[str, str]
) -> dict[str, object]:
    """A record whose oracle part stays, with the entries that left their tolerance."""
    recorded = old.get("providers", {})
    changed = {
        provider: entry
        for provider, entry in entries.items()
        if any(provider_differences(provider, recorded.get(provider), entry))
    }
    kept = {key: value for key, value in old.items() if key not in ("provenance", "providers", "digest")}
    return complete(kept, changed, recorded, provenance, old["provenance"])


def accept(name: Name | None = None, providers: Iterable[str] = suite.DEFAULT_PROVIDERS) -> str:
    """The command that accepts what is computed now, for one record or for all."""
    words = ["dsa-verify", "golden", "update"]
    words += [] if name is None else ["--surface", name[0], "--scenario", name[1]]
    for provider in providers:
        words += ["--provider", provider]
    return shlex.join(words)


def complete(
    oracle_part: Mapping[str, object],
    entries: Mapping[str, Entry],
    kept: Mapping[str, Entry],
    provenance: Mapping[str, str],
    was: Mapping[str, str] | None = None,
) -> dict[str, object]:
    """A record to write: the oracle part, providers measured now and those kept, and how each part was computed."""
    providers = {**kept, **entries}
    origins = {name: text for name, text in (was or {}).items() if name == "oracle" or name in kept}
    origins |= {name: text for name, text in provenance.items() if name in entries}
    origins.setdefault("oracle", oracle_provenance())
    whole = {**oracle_part, "provenance": origins}
    return {**whole, "providers": providers} if providers else whole


def oracle_provenance() -> str:
    """Versions that the oracle's last bits depend on."""
    python = f"python {platform.python_version()} {platform.machine()}"
    return f"dsa_verify {__version__}, numpy {np.__version__}, {python}"


def update(folder: Path, outcome: Review) -> list[Path]:
    """Write what the review found to differ and remove what has no scenario; returns the files touched.

    Raises `GoldenError` when a kernel of the run was rejected: its numbers are not a reference.
    """
    if outcome.rejections:
        first = outcome.rejections[0]
        raise GoldenError(
            f"nothing was recorded: the run has {len(outcome.rejections)} rejections, first {first.provider} "
            f"{first.surface} {first.scenario} {first.check}: {first.verdict.reason}"
        )
    from dsa_verify.golden import snapshot  # syrupy, which a check does not need

    touched = snapshot.write(folder, *(one.record for one in outcome.updates if one.record is not None))
    for one in outcome.updates:
        if one.status == "orphan":
            snapshot.remove(one.path)
            touched.append(one.path)
    return touched
