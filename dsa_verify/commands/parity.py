"""`dsa-verify parity`: run kernels beside dense MLA and float64 oracles, and judge them by every check."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dsa_verify import errors
from dsa_verify.commands import output
from dsa_verify.commands.distributed import host_options
from dsa_verify.commands.output import EXITS, FILE, NEW_FILE, stdout_to_stderr
from dsa_verify.run.distributed import Hosts, ProcessIndex, barrier, heartbeat, initialize, supervised

# What a command needs is imported inside it: `--help` and completion import no NumPy and no JAX.


@dataclass(frozen=True)
class ParityOptions:
    """What `dsa-verify parity` was asked to run."""

    provider: tuple[str, ...]
    surface: tuple[str, ...]
    scenario: tuple[str, ...]
    tier: str
    jobs: int | None
    provider_path: Path | None
    document: Path | None
    known_failures: Path | None
    no_known_failures: bool
    minutes: float
    seed: int
    shard: str | None = None
    durations: Path | None = None
    mesh: str | None = None
    hosts: Hosts | None = None


@click.command(epilog=EXITS)
@click.option("--provider", multiple=True, metavar="NAME", help="A name or module:object.  [default: builtin, jnp]")
@click.option("--surface", multiple=True, metavar="NAME", help="[default: all]")
@click.option("--scenario", multiple=True, metavar="GLOB", help="A name of any tier, or a glob over the tier's names.")
@click.option("--tier", default="quick", metavar="quick|full|soak", help="[default: quick]")
@click.option(
    "--minutes", default=20.0, type=click.FloatRange(min=0, min_open=True), help="Length of a soak.  [default: 20]"
)
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Seed of a soak.  [default: 0]")
@output.jobs
@output.provider_path
@click.option("--document", type=FILE, help="A UTF-8 text that the document family is drawn from.")
@click.option("--known-failures", type=FILE, help="A TOML file of known failures, beside the shipped ones.")
@click.option("--no-known-failures", is_flag=True, help="Judge known failures as plain rejections.")
@click.option("--shard", metavar="i/n", help="Run one of n parts of the plan; `report merge` makes them one run.")
@click.option("--durations", type=FILE, metavar="RUN.json", help="An earlier --json document, to cut shards evenly.")
@click.option("--mesh", metavar="DATAxTENSOR", help="Also run kernels sharded over a mesh of all devices, as 2x4.")
@host_options
@click.option("--report", type=NEW_FILE, metavar="FILE.html", help="Write a page of the run.")
@click.option("--history", type=NEW_FILE, metavar="FILE", help="Append the run to a history; see `report trend`.")
@output.as_json
@output.slowest
@output.verbose
def parity(as_json: bool, slowest: int, verbose: bool, report: Path | None, history: Path | None, **given: Any) -> None:
    """Run kernels beside dense MLA and float64 oracles, and judge them by every check."""
    from dsa_verify.report import files, terminal

    options = ParityOptions(**given)
    with supervised(options.hosts, output.note):
        whole = options.shard is None and options.hosts is None
        files.check_writable(report, history, repeatable=options.tier != "soak" and whole)
        with stdout_to_stderr():  # a kernel or a package that prints must not spoil the result
            outcome = _run(options)
        if as_json:
            output.print_json(outcome.document())
        else:
            terminal.print_outcome(outcome, slowest, verbose=verbose)
        for trace in dict.fromkeys(result.broke for result in outcome.results if result.broke):
            output.note(f"the suite broke\n{trace}")
        if history is not None:
            output.note(files.append_to_history(outcome, history))
        if report is not None:
            output.note(files.write_page(outcome, report, history))
    sys.exit(int(outcome.exit_code))


def _run(options: ParityOptions):
    """Plan, run and judge; returns the `Outcome`. Raises `DsaVerifyError` for bad input."""
    from dsa_verify.report.outcome import Outcome
    from dsa_verify.run import known_failures, mesh, partition, suite

    if options.hosts and options.shard:
        raise errors.ConfigError("several processes share the plan by themselves; leave out --shard")
    if options.durations and not (options.shard or options.hosts):
        raise errors.ConfigError("--durations cuts shards; give --shard i/n with it")
    if options.tier == "soak":
        return _soak(options)
    start = time.perf_counter()
    place = initialize(options.hosts)
    plan = suite.plan(options.provider, options.surface, options.scenario, options.tier)
    providers = tuple(dict.fromkeys(case.provider for case in plan))
    entries = () if options.no_known_failures else known_failures.load(providers, options.known_failures)
    shard, cases, elsewhere = _shard(plan, options, place)
    suite.scenario_table(options.document)
    provenance = suite.provenance(providers, options.provider_path)
    grid = mesh.chosen(options.mesh)
    results = _results(plan if place.of > 1 else cases, cases, grid, options)
    entries = known_failures.applicable(entries, native=provenance["backend"] == "tpu")
    seen = known_failures.tally(results, entries)
    stale = tuple(entry for entry, failed in seen.items() if not failed and not partition.may_show(entry, elsewhere))
    return Outcome(
        command=output.command_line(),
        seconds=time.perf_counter() - start,
        provenance={**provenance, **({"mesh": str(grid)} if grid else {}), **place.provenance},
        results=tuple(known_failures.forgive(results, entries)),
        stale=stale,
        seen=seen,
        shard=shard,
    )


def _results(everywhere, cases, grid, options: ParityOptions):
    """The results of a plan: of `everywhere` those that all processes run together, of `cases` all others.

    All processes get here and away from here together, so that none reports a run of which another has no part.
    """
    from dsa_verify.report import terminal
    from dsa_verify.run import sharded_check, suite

    path, document = options.provider_path, options.document
    meshed = sharded_check.run_cases(everywhere, grid, path, document) if grid else []
    barrier("run the cases of their own")
    with terminal.progress(len(cases)) as done:

        def on_result(case, results) -> None:
            heartbeat(f"had judged {case.name}")
            done(case, results)

        alone = suite.run_cases(cases, jobs=options.jobs, provider_path=path, document=document, on_result=on_result)
    barrier("report")
    places = {(case.provider, case.surface, case.scenario): at for at, case in enumerate(everywhere)}
    return sorted(alone + meshed, key=lambda result: places[result.provider, result.surface, result.scenario])


def _shard(cases, options: ParityOptions, place: ProcessIndex):
    """Which shard of the plan is to run, its cases, and those that run elsewhere."""
    from dsa_verify.report.reading import read
    from dsa_verify.run import partition

    if options.shard is None and place.of == 1:
        return None, cases, ()
    index, of = (place.index + 1, place.of) if options.shard is None else partition.parse(options.shard)
    seconds = partition.durations(read(options.durations).results) if options.durations else None
    return partition.take(cases, index, of, seconds)


def _soak(options: ParityOptions):
    """As `_run`, for random scenarios; known failures are forgiven, and none has to show."""
    from dsa_verify.report.outcome import Outcome
    from dsa_verify.run import known_failures, soak, suite

    if options.shard or options.hosts or options.mesh:
        raise errors.ConfigError("a soak has no shards, hosts or mesh; give each machine another --seed")
    start = time.perf_counter()
    plan = soak.SoakPlan(
        options.provider or suite.DEFAULT_PROVIDERS, options.surface, options.minutes, options.seed,
        options.jobs, options.provider_path,
    )  # fmt: skip
    entries = () if options.no_known_failures else known_failures.load(plan.providers, options.known_failures)
    provenance = suite.provenance(plan.providers, options.provider_path)
    seen: set[str] = set()

    def done(case, results) -> None:
        if case.scenario not in seen:
            seen.add(case.scenario)
            if len(seen) % 50 == 0:
                click.echo(f"{len(seen)} scenarios", err=True)

    results = soak.run(plan, done)
    entries = known_failures.applicable(entries, native=provenance["backend"] == "tpu")
    return Outcome(
        command=output.command_line(),
        seconds=time.perf_counter() - start,
        provenance={**provenance, "seed": options.seed, "scenarios": len(seen)},
        results=tuple(known_failures.forgive(results, entries)),
    )
