"""The soak: random scenarios for a stated time, and the smallest batch that still shows what failed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dsa_verify.batch.soak import bucket_of, smaller
from dsa_verify.batch.table import BUCKETS, SCENARIOS
from dsa_verify.contract import SURFACES, surface_named
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result
from dsa_verify.run import suite, workers
from dsa_verify.run.suite import Case

MOST = 4000
"""Scenarios of one soak; the time is up long before."""
SHRINK_SECONDS = 180
"""For making one failure smaller."""
SHRUNK = 3
"""Failures that are made smaller, one a provider, surface and check."""


@dataclass(frozen=True)
class SoakPlan:
    """What a soak runs, and for how long."""

    providers: tuple[str, ...]
    surfaces: tuple[str, ...]
    minutes: float
    seed: int
    jobs: int | None = None
    provider_path: Path | None = None


def run(plan: SoakPlan, on_result: Callable[[Case, tuple[Result, ...]], None]) -> list[Result]:
    """Judge scenarios `soak:SEED:0`, `soak:SEED:1`, ... until the time is up; the surfaces take turns.

    Every provider gets the same scenarios. What a surface is to find in one random batch, its next turn finds in
    another: more batches are seen than if each went through all surfaces. Each failure of a provider, surface and check
    is shrunk; the results of the smallest scenario come last.
    Raises `ConfigError` for an unknown provider or surface, and when the time was too short for a single case.
    """
    providers = plan.providers or suite.DEFAULT_PROVIDERS
    surfaces = [surface_named(name).name for name in plan.surfaces or SURFACES]
    lanes = suite.job_count(plan.jobs, len(surfaces))
    cases = list(_cases(plan.seed, providers, surfaces))
    groups = [[case for case in cases if surfaces.index(case.surface) % lanes == lane] for lane in range(lanes)]
    work = partial(suite.judge_case, provider_path=plan.provider_path)
    deadline = time.monotonic() + 60 * plan.minutes
    results: list[Result] = []
    answers = suite.in_process(groups, work) if lanes == 1 else workers.run_groups(groups, work, lanes)
    with closing(answers):
        for case, answer in answers:
            judged = suite.results_of(case, answer, plan.provider_path)
            results.extend(judged)
            on_result(case, judged)
            if time.monotonic() > deadline:
                break
    if not results:
        raise ConfigError(f"not one case in {plan.minutes} minutes; give --minutes more")
    return results + _shrink_all(results, work)


def _cases(seed: int, providers: Sequence[str], surfaces: Sequence[str]) -> Iterator[Case]:
    """Scenario by scenario, each on the next of the surfaces that can take it."""
    for index in range(MOST):
        bucket = bucket_of(seed, index, BUCKETS)
        able = [name for name in surfaces if bucket.decode or not SURFACES[name].decode_only]
        if able:
            for provider in providers:
                yield Case(provider, able[index % len(able)], f"soak:{seed}:{index}", bucket.name)


def _shrink_all(results: Sequence[Result], work: Callable[[Case], tuple[Result, ...]]) -> list[Result]:
    first: dict[tuple[str, str, str], Result] = {}
    for result in results:
        if result.verdict.status == "rejected" and not result.broke:
            first.setdefault((result.provider, result.surface, result.check), result)
    return [smallest for result in list(first.values())[:SHRUNK] for smallest in shrink(result, work)]


def shrink(failed: Result, work: Callable[[Case], tuple[Result, ...]]) -> tuple[Result, ...]:
    """The failure in the smallest scenario that is found in time; empty if no smaller one shows it."""
    scenario, best = SCENARIOS[failed.scenario], ()
    end = time.monotonic() + SHRINK_SECONDS
    candidates = smaller(scenario)
    while time.monotonic() < end:
        candidate = next(candidates, None)
        if candidate is None:
            break
        if SURFACES[failed.surface].decode_only and not candidate.decode:
            continue
        judged = work(Case(failed.provider, failed.surface, candidate.name, candidate.bucket.name))
        still = tuple(r for r in judged if r.check == failed.check and r.verdict.status == "rejected")
        if still:
            best, candidates = still, smaller(candidate)
    return tuple(replace(result, shrunk_from=failed.scenario) for result in best)
