"""Runs mutants against the suite: cheapest scenarios first, stop at the first kill, keep what was found."""

import gc
import hashlib
import json
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.contract import Provider, surface_named
from dsa_verify.errors import DsaVerifyError
from dsa_verify.mutants.digest import code_digest
from dsa_verify.mutants.kernel_table import MUTANTS
from dsa_verify.mutants.source import StaleMutant
from dsa_verify.mutants.system import SystemMutant
from dsa_verify.mutants.system_table import SYSTEM_MUTANTS
from dsa_verify.mutants.systematic import systematic_mutants
from dsa_verify.run import suite, workers

TIME_LIMIT = 240
"""Seconds for one scenario, compilation included: fifty times what an unbroken kernel takes. A kernel that takes longer
loops for ever, and is killed with its process."""

EVERY = tuple(CHECKS)
PLAIN = tuple(name for name, check in CHECKS.items() if check.variant is None)
"""Checks that look at one batch, not at variants of it."""
CHEAP = tuple(name for name in PLAIN if not CHECKS[name].runs)
"""Checks that need no run of the kernel beside the first."""


Attempt = tuple[str, str, tuple[str, ...]]
"""A surface, a scenario, and the checks to make."""


class AnyMutant(Protocol):
    """What all mutants have in common. `scenario`: where to look first, if one is known."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def provider(self) -> str: ...
    @property
    def surfaces(self) -> tuple[str, ...]: ...
    @property
    def scenario(self) -> str | None: ...
    @property
    def fingerprint(self) -> str: ...


class KernelMutant(AnyMutant, Protocol):
    """A mutant whose kernels can be had as a provider; handwritten or systematic."""

    def load(self) -> Provider: ...


@dataclass(frozen=True)
class MutantResult:
    """What became of one mutant.

    killed_by: checks that rejected it on `surface` and `scenario`; or `timeout` or `crash` where its process ended,
      `import` where it could not even be loaded, `broke` where a check could not judge what came out. Empty for a
      survivor, whose `surface` is the first that was tried.
    reason: what the first of these said.
    """

    name: str
    kind: str
    provider: str
    surface: str
    killed_by: tuple[str, ...] = ()
    scenario: str | None = None
    reason: str = ""
    seconds: float = 0.0

    @property
    def killed(self) -> bool:
        return bool(self.killed_by)


@dataclass(frozen=True)
class MutantJob:
    """A mutant to try, by name, and what killed it before: surface, scenario, checks."""

    name: str
    hint: Attempt | None = None


def named(name: str) -> KernelMutant | SystemMutant:
    """A handwritten, system or systematic mutant."""
    return MUTANTS.get(name) or SYSTEM_MUTANTS.get(name) or systematic_mutants()[name]


def run(
    mutants: Sequence[AnyMutant],
    tier: str,
    jobs: int | None,
    folder: Path | None,
    on_fate: Callable[[MutantResult], None] = lambda fate: None,
    explained: Collection[str] = (),
) -> list[MutantResult]:
    """Find out what becomes of each mutant, in their order.

    Args:
      tier: scenarios that may kill, as for `suite.plan`.
      jobs: worker processes; one a core if None.
      folder: where results are kept and looked up, so that a campaign goes on where it was interrupted.
      on_fate: called with each result as it comes.
      explained: names of mutants that change nothing: the cheapest scenarios may still say otherwise, the rest is left.

    Raises `StaleMutant` for a mutant whose source is gone, `ConfigError` for an unknown tier.
    """
    fates: dict[str, MutantResult] = {}
    keys = {m.name: code_digest(m.provider, m.name, m.fingerprint, tier) for m in mutants}
    hints = {}
    for mutant in mutants:
        known, hints[mutant.name] = _recall(folder, mutant.name, keys[mutant.name])
        if known is not None:
            fates[mutant.name] = known
            on_fate(known)
    for deep in (False, True):  # most die of little; what is left is told early, and takes the time
        orders = [MutantJob(m.name, hints[m.name]) for m in mutants if m.name not in fates]
        for fate in _round(orders, tier, deep, jobs):
            if fate.killed or deep or fate.name in explained:
                fates[fate.name] = fate
                _keep(folder, keys[fate.name], fate)
                on_fate(fate)
    return [fates[mutant.name] for mutant in mutants]


def _round(orders: Sequence[MutantJob], tier: str, deep: bool, jobs: int | None) -> Iterator[MutantResult]:
    """Try each once. Whose process dies is tried again by itself: somebody else may have killed it the first time."""
    again: list[MutantJob] = []
    for order, answer in _answers(orders, tier, deep, jobs):
        if not isinstance(answer, workers.WorkerDied):
            yield answer
        elif answer.exit_code == -signal.SIGALRM:
            yield _died(order.name, "timeout", f"one scenario took longer than {TIME_LIMIT} s")
        else:
            again.append(order)
    for order, answer in _answers(again, tier, deep, 1):
        if isinstance(answer, workers.WorkerDied):
            yield _died(order.name, "crash", str(answer))
        else:
            yield answer


def _answers(orders: Sequence[MutantJob], tier: str, deep: bool, jobs: int | None):
    groups = [[order] for order in orders]
    if groups:
        work = partial(try_mutant, tier=tier, deep=deep)
        with closing(workers.run_groups(groups, work, suite.job_count(jobs, len(groups)))) as answers:
            yield from answers


def _died(name: str, how: str, reason: str) -> MutantResult:
    mutant = named(name)
    return MutantResult(name, mutant.kind, mutant.provider, mutant.surfaces[0], (how,), None, reason)


def try_mutant(order: MutantJob, tier: str, deep: bool) -> MutantResult:
    """Try one mutant in this process until something kills it; `deep` goes on where the first round ended."""
    mutant, start = named(order.name), time.perf_counter()
    fate = MutantResult(mutant.name, mutant.kind, mutant.provider, mutant.surfaces[0])
    try:
        if isinstance(mutant, SystemMutant):
            fate = _system_fate(fate, mutant, deep)
        else:
            fate = _kernel_fate(fate, mutant, _dear(mutant, tier) if deep else _cheap(mutant, order.hint, tier))
    finally:
        _forget()
    return replace(fate, seconds=round(time.perf_counter() - start, 2))


def _kernel_fate(fate: MutantResult, mutant: KernelMutant, attempts: Iterator[Attempt]) -> MutantResult:
    try:
        provider = mutant.load()
    except StaleMutant:
        raise
    except Exception as error:
        return replace(fate, killed_by=("import",), reason=f"{type(error).__name__}: {error}")
    for surface, scenario, checks in attempts:
        killers = _in_time(partial(_rejections, provider, surface, scenario, checks))
        if killers:
            return replace(_killed(fate, scenario, killers), surface=surface)
    return fate


def _system_fate(fate: MutantResult, mutant: SystemMutant, deep: bool) -> MutantResult:
    for place, play in mutant.attempts(deep):
        killers = _in_time(play)
        if killers:
            return _killed(fate, place, killers)
    return fate


def _killed(fate: MutantResult, scenario: str, killers: Mapping[str, str]) -> MutantResult:
    reason = " ".join(next(iter(killers.values())).split())
    return replace(fate, killed_by=tuple(killers), scenario=scenario, reason=reason)


def _rejections(provider: Provider, surface: str, scenario: str, checks: tuple[str, ...]) -> dict[str, str]:
    """Checks that reject, and why."""
    from dsa_verify.run.verify import verify

    results = verify(surface_named(surface), provider, SCENARIOS[scenario], checks)
    return {result.check: result.verdict.reason for result in results if result.verdict.status == "rejected"}


def _in_time(judge: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What `judge` says, or that it could not. The process dies if it takes too long."""
    signal.setitimer(signal.ITIMER_REAL, TIME_LIMIT)
    try:
        return judge()
    except DsaVerifyError:
        raise
    except Exception as error:
        return {"broke": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _forget() -> None:
    """Drop what JAX compiled for a mutant; nothing will ask for it again."""
    import jax

    jax.clear_caches()
    gc.collect()


def _cheap(mutant: KernelMutant, hint: Attempt | None, tier: str) -> Iterator[Attempt]:
    """Where it was killed before, and where it is expected to be; then the scenarios of each surface's fullest bucket,
    which cost one compilation, by the checks that need one run."""
    if hint is not None:
        yield hint
    if mutant.scenario is not None:
        yield mutant.surfaces[0], mutant.scenario, EVERY
    for surface in mutant.surfaces:
        for scenario in _by_bucket(mutant.provider, surface, tier)[0]:
            yield surface, scenario, CHEAP


def _dear(mutant: KernelMutant, tier: str) -> Iterator[Attempt]:
    """All scenarios by all checks of one batch, the fullest buckets first; variants of these batches last, because what
    no batch shows they hardly ever do."""
    buckets = {surface: _by_bucket(mutant.provider, surface, tier) for surface in mutant.surfaces}
    for first, checks in ((True, PLAIN), (False, PLAIN), (True, EVERY)):
        for surface, (fullest, *others) in buckets.items():
            for scenario in fullest if first else [name for bucket in others for name in bucket]:
                yield surface, scenario, checks


@lru_cache
def _by_bucket(provider: str, surface: str, tier: str) -> tuple[tuple[str, ...], ...]:
    """Scenarios of a surface by bucket, the fullest first; stable, so that a rerun tries in the same order."""
    buckets: dict[str, list[str]] = {}
    for case in suite.plan([provider], [surface], tier=tier):
        buckets.setdefault(case.bucket, []).append(case.scenario)
    return tuple(sorted(map(tuple, buckets.values()), key=lambda names: -len(names)))


def _file(folder: Path, name: str) -> Path:
    return folder / f"{hashlib.sha256(name.encode()).hexdigest()[:24]}.json"


def _recall(folder: Path | None, name: str, key: str) -> tuple[MutantResult | None, Attempt | None]:
    """The kept result if nothing that matters has changed; otherwise where to look first."""
    if folder is None or not _file(folder, name).is_file():
        return None, None
    try:
        record: Mapping = json.loads(_file(folder, name).read_text("utf-8"))
        fate = MutantResult(**record["fate"] | {"killed_by": tuple(record["fate"]["killed_by"])})
    except (OSError, ValueError, KeyError, TypeError):  # torn by an interruption: as good as none
        return None, None
    if record["key"] == key:
        return fate, None
    checks = tuple(name for name in fate.killed_by if name in CHECKS)
    return None, (fate.surface, fate.scenario, checks) if checks and fate.scenario in SCENARIOS else None


def _keep(folder: Path | None, key: str, fate: MutantResult) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    fresh = _file(folder, fate.name).with_suffix(".new")
    fresh.write_text(json.dumps({"key": key, "fate": asdict(fate)}), "utf-8")
    fresh.replace(_file(folder, fate.name))
