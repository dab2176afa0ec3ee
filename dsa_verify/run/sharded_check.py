"""The check `sharding`: a kernel over a mesh of all devices, each process judging the shards that it can address.

Every device row takes the scenario with another seed, so other numbers and other pages, in a pool of its own. What a
device holds is then the answer to a batch of its own, with a part of the heads, and the surface's own checks judge it
against the oracle.
"""

import time
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from dsa_verify import oracle
from dsa_verify.batch import Batch, Scenario
from dsa_verify.batch.poison import repoisoned
from dsa_verify.checks import CHECKS, INVARIANCES, checks_for
from dsa_verify.contract import Kernel, Provider, Surface, surface_named
from dsa_verify.errors import DsaVerifyError
from dsa_verify.evidence import Evidence, Expected, Result, Run, Subject, Verdict
from dsa_verify.run import distributed, mesh, suite
from dsa_verify.run.mesh import DevicePart, Grid
from dsa_verify.run.partition import SHARDING, worst
from dsa_verify.run.suite import Case
from dsa_verify.run.verify import batch_of, kernel_for, verdicts_or_why

QUICK = INVARIANCES["invariance:composition"].quick
"""The quick scenarios that run sharded, as globs: requests of unequal length, a mixed step, a decode."""

_JUDGES = ("parity", "selection", "cache")


def applies(scenario: Scenario) -> bool:
    """Whether a scenario runs sharded: all do in the full tier, some of the quick one."""
    return scenario.tier != "quick" or any(fnmatchcase(scenario.name, glob) for glob in QUICK)


def run_cases(
    cases: Iterable[Case], grid: Grid, provider_path: Path | None = None, document: Path | None = None
) -> list[Result]:
    """Verify the cases that run sharded, every process the same ones in the same order.

    Raises `ConfigError` for a grid that is not of all devices, `HostsApart` when another process is gone.
    """
    mesh.check_devices(grid)
    found = []
    for case in cases:
        scenario = suite.scenario_table(document)[case.scenario]
        if applies(scenario):
            distributed.barrier(f"run {case.name}")
            subject = suite.subject_of(case, provider_path, document, "--mesh", str(grid))
            provider = suite.load(case.provider, provider_path)
            found.append(verify(surface_named(case.surface), provider, scenario, grid, subject))
    return found


def verify(surface: Surface, provider: Provider, scenario: Scenario, grid: Grid, subject: Subject) -> Result:
    """Run one kernel over all devices and judge what this process can address of it.

    A kernel that raises or returns something unusable is rejected, a fault of the suite too, with `broke`: other
    processes are to go on. Raises `DsaVerifyError` for bad input.
    """
    start, broke = time.perf_counter(), ""
    try:
        judged = verdicts_or_why([SHARDING], lambda: {SHARDING: _judge(surface, provider, scenario, grid)})
        verdict = judged[SHARDING]
    except DsaVerifyError:
        raise
    except Exception as error:
        verdict = Verdict.rejected(f"the suite broke: {type(error).__name__}: {error}")
        broke = traceback.format_exc()
    place = distributed.here()
    if verdict.reason and verdict.status == "rejected" and place.of > 1:
        verdict = replace(verdict, reason=f"{place}: {verdict.reason}")
    (result,) = subject.results({SHARDING: verdict}, time.perf_counter() - start, broke)
    return result


def _judge(surface: Surface, provider: Provider, scenario: Scenario, grid: Grid) -> Verdict:
    kernel = kernel_for(surface, provider, [])
    batches = steps(scenario, grid.data, kernel.promise.finite_memory)
    heads = batches[0].ql_nope.shape[1]
    if surface.attends and heads % grid.tensor:
        return Verdict.not_verified(f"{heads} heads cannot be split over {grid.tensor} devices")
    width = heads // grid.tensor if surface.attends else heads
    for batch in batches:
        if reason := kernel.limits(DevicePart(0, 0, slice(0, width), {}).batch(batch)):
            return Verdict.not_verified(reason)
    parts, findings = mesh.run(surface, kernel, batches, grid)
    if findings:
        return Verdict.rejected(f"races: {findings[0].kind}: {findings[0].message}")
    exact: dict[tuple[int, int], Expected] = {}
    verdicts = [verdict for part in parts for verdict in _of_part(surface, kernel, batches[part.data], part, exact)]
    bad, found = sum(verdict.status == "rejected" for verdict in verdicts), worst(verdicts)
    if bad > 1:
        return replace(found, reason=f"{found.reason}; and {bad - 1} more of {len(verdicts)} judgements")
    return found


def _of_part(surface: Surface, kernel: Kernel, batch: Batch, part: DevicePart, exact: dict) -> Iterator[Verdict]:
    """What the surface's own checks say of what one device holds. exact: the oracle's answers so far."""
    mine, key = part.batch(batch), (part.data, part.heads.start)
    if key not in exact:
        exact[key] = oracle.expected(surface.name, mine)
    evidence = Evidence(mine, exact[key], {"base": Run(part.outputs)}, kernel.promise, reads=surface.reads)
    for name in checks_for(attends=surface.attends, selects=surface.selects, writes=surface.writes):
        if name in _JUDGES:
            verdict = CHECKS[name].judge(evidence)
            yield replace(verdict, reason=f"{part}: {name}: {verdict.reason}") if verdict.reason else verdict


def steps(scenario: Scenario, count: int, finite: bool = False) -> list[Batch]:
    """One step for each device row: the scenario with seeds of their own, and one set of weights, as a layer has."""
    batches = [batch_of(replace(scenario, seed=scenario.seed + row)) for row in range(count)]
    batches = [batch.replace(indexer=batches[0].indexer) for batch in batches]
    return [repoisoned(batch, finite=True, seed=0) for batch in batches] if finite else batches
