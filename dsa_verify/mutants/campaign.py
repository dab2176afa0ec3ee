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
from typing import Any

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.contract import Provider, surface_named
from dsa_verify.errors import DsaVerifyError
from dsa_verify.mutants.digest import code_digest
from dsa_verify.mutants.kernel import KernelMutant
from dsa_verify.mutants.registry import AnyMutant, named
from dsa_verify.mutants.source import StaleMutant
from dsa_verify.mutants.system import SystemMutant
from dsa_verify.mutants.systematic import SystematicMutant
from dsa_verify.run import suite, workers

TIME_LIMIT = 240
"""Seconds for one scenario, compilation included: fifty times what an unbroken kernel takes. A kernel that takes longer
loops for ever, and is killed with its process."""

EVERY = tuple(CHECKS)
PLAIN = tuple(name for name, check in CHECKS.items() if check.variant is None)
"""Checks that look at one batch, not at variants of it."""
CHEAP = tuple(name for name in PLAIN if not CHECKS[name].runs)
"""Checks that need no run of the kernel beside the first."""


LoadableMutant = KernelMutant | SystematicMutant
"""A mutant whose kernels can be had as a provider."""
Attempt = tuple[str, str, tuple[str, ...]]
"""A surface, a scenario, and the checks to make."""


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


def run(
    mutants: Sequence[AnyMutant],
    tier: str,
    processes: int | None,
    folder: Path | None,
    on_result: Callable[[MutantResult], None] = lambda result: None,
    explained: Collection[str] = (),
) -> list[MutantResult]:
    """Find out what becomes of each mutant, in their order.

    Args:
      tier: scenarios that may kill, as for `suite.plan`.
      processes: worker processes; one a core if None.
      folder: where results are kept and looked up, so that a campaign goes on where it was interrupted.
      on_result: called with each result as it comes.
      explained: names of mutants that change nothing: the cheapest scenarios may still say otherwise, the rest is left.

    Raises `StaleMutant` for a mutant whose source is gone, `ConfigError` for an unknown tier.
    """
    results: dict[str, MutantResult] = {}
    keys = {m.name: code_digest(m.provider, m.name, m.fingerprint, tier) for m in mutants}
    hints = {}
    for mutant in mutants:
        known, hints[mutant.name] = _kept(folder, mutant.name, keys[mutant.name])
        if known is not None:
            results[mutant.name] = known
            on_result(known)
    for deep in (False, True):  # most die of little; what is left is reported early, and takes the time
        jobs = [MutantJob(m.name, hints[m.name]) for m in mutants if m.name not in results]
        for result in _round(jobs, tier, deep, processes):
            if result.killed or deep or result.name in explained:
                results[result.name] = result
                _keep(folder, keys[result.name], result)
                on_result(result)
    return [results[mutant.name] for mutant in mutants]


def _round(jobs: Sequence[MutantJob], tier: str, deep: bool, processes: int | None) -> Iterator[MutantResult]:
    """Try each once. Whose process dies is tried again by itself: somebody else may have killed it the first time."""
    again: list[MutantJob] = []
    for job, answer in _answers(jobs, tier, deep, processes):
        if not isinstance(answer, workers.WorkerDied):
            yield answer
        elif answer.exit_code == -signal.SIGALRM:
            yield _died(job.name, "timeout", f"one scenario took longer than {TIME_LIMIT} s")
        else:
            again.append(job)
    for job, answer in _answers(again, tier, deep, 1):
        if isinstance(answer, workers.WorkerDied):
            yield _died(job.name, "crash", str(answer))
        else:
            yield answer


def _answers(
    jobs: Sequence[MutantJob], tier: str, deep: bool, processes: int | None
) -> Iterator[tuple[MutantJob, MutantResult | workers.WorkerDied]]:
    groups = [[job] for job in jobs]
    if groups:
        work = partial(try_mutant, tier=tier, deep=deep)
        with closing(workers.run_groups(groups, work, suite.job_count(processes, len(groups)))) as answers:
            yield from answers


def _died(name: str, how: str, reason: str) -> MutantResult:
    mutant = named(name)
    return MutantResult(name, mutant.kind, mutant.provider, mutant.surfaces[0], (how,), None, reason)


def try_mutant(job: MutantJob, tier: str, deep: bool) -> MutantResult:
    """Try one mutant in this process until something kills it; `deep` goes on where the first round ended."""
    mutant, start = named(job.name), time.perf_counter()
    result = MutantResult(mutant.name, mutant.kind, mutant.provider, mutant.surfaces[0])
    try:
        if isinstance(mutant, SystemMutant):
            result = _try_system(result, mutant, deep)
        else:
            attempts = _dear_attempts(mutant, tier) if deep else _cheap_attempts(mutant, job.hint, tier)
            result = _try_kernel(result, mutant, attempts)
    finally:
        _clear_caches()
    return replace(result, seconds=round(time.perf_counter() - start, 2))


def _try_kernel(result: MutantResult, mutant: LoadableMutant, attempts: Iterator[Attempt]) -> MutantResult:
    try:
        provider = mutant.load()
    except StaleMutant:
        raise
    except Exception as error:
        return replace(result, killed_by=("import",), reason=f"{type(error).__name__}: {error}")
    for surface, scenario, checks in attempts:
        killers = _in_time(partial(_rejections, provider, surface, scenario, checks))
        if killers:
            return replace(_killed(result, scenario, killers), surface=surface)
    return result


def _try_system(result: MutantResult, mutant: SystemMutant, deep: bool) -> MutantResult:
    for place, run_workload in mutant.attempts(deep):
        killers = _in_time(run_workload)
        if killers:
            return _killed(result, place, killers)
    return result


def _killed(result: MutantResult, scenario: str, killers: Mapping[str, str]) -> MutantResult:
    reason = " ".join(next(iter(killers.values())).split())
    return replace(result, killed_by=tuple(killers), scenario=scenario, reason=reason)


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


def _clear_caches() -> None:
    """Drop what JAX compiled for a mutant; nothing will ask for it again."""
    import jax

    jax.clear_caches()
    gc.collect()


def _cheap_attempts(mutant: LoadableMutant, hint: Attempt | None, tier: str) -> Iterator[Attempt]:
    """Where it was killed before, and where it is expected to be; then the scenarios of each surface's fullest bucket,
    which cost one compilation, by the checks that need one run."""
    if hint is not None:
        yield hint
    if mutant.scenario is not None:
        yield mutant.surfaces[0], mutant.scenario, EVERY
    for surface in mutant.surfaces:
        for scenario in _by_bucket(mutant.provider, surface, tier)[0]:
            yield surface, scenario, CHEAP


def _dear_attempts(mutant: LoadableMutant, tier: str) -> Iterator[Attempt]:
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


def _kept(folder: Path | None, name: str, key: str) -> tuple[MutantResult | None, Attempt | None]:
    """The kept result if nothing that matters has changed; otherwise where to look first."""
    if folder is None or not _file(folder, name).is_file():
        return None, None
    try:
        record: dict[str, Any] = json.loads(_file(folder, name).read_text("utf-8"))
        found = MutantResult(**record["result"] | {"killed_by": tuple(record["result"]["killed_by"])})
    except (OSError, ValueError, KeyError, TypeError):  # torn by an interruption: as good as none
        return None, None
    if record["key"] == key:
        return found, None
    checks = tuple(name for name in found.killed_by if name in CHECKS)
    return None, (found.surface, found.scenario, checks) if checks and found.scenario in SCENARIOS else None


def _keep(folder: Path | None, key: str, result: MutantResult) -> None:
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    fresh = _file(folder, result.name).with_suffix(".new")
    fresh.write_text(json.dumps({"key": key, "result": asdict(result)}), "utf-8")
    fresh.replace(_file(folder, result.name))
