"""The command line: stdout is the result, stderr the rest, the exit code the verdict."""

import json
import os
import shlex
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from dsa_verify import __version__, errors
from dsa_verify.commands.compile import compile_kernels
from dsa_verify.commands.gate import gate
from dsa_verify.commands.golden import golden
from dsa_verify.commands.hosts import host_options
from dsa_verify.commands.mutants import mutants
from dsa_verify.commands.profile import profile
from dsa_verify.commands.report import keep, prepare, report
from dsa_verify.commands.serve import serve
from dsa_verify.hosts import Hosts, Place, beat, join, meet, together

# What a command needs is imported inside it: `--help` and completion import no NumPy and no JAX.

_EXITS = """\b
Exit codes: 0 accepted, 1 rejected, 2 usage, 3 the suite broke, 4 nothing verified."""

INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it: an interrupted run decided nothing."""


class _Commands(click.Group):
    """A group in which refusals are one line on stderr, and anything else unexpected says that the suite broke."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except (errors.ConfigError, errors.BatchError, errors.ContractError, errors.ProviderError) as error:
            click.echo(f"dsa-verify: {_one_line(error)}", err=True)
            ctx.exit(2)
        except errors.DsaVerifyError as error:
            click.echo(f"dsa-verify: {_one_line(error)}", err=True)
            ctx.exit(3)
        except KeyboardInterrupt:
            click.echo("dsa-verify: interrupted; nothing is decided", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception:
            click.echo(f"dsa-verify: the suite broke\n{traceback.format_exc()}", err=True)
            ctx.exit(3)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@dataclass(frozen=True)
class Selection:
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


@click.group(cls=_Commands, epilog=_EXITS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="dsa-verify")
def main() -> None:
    """Judge DeepSeek Sparse Attention kernels for TPU against float64 oracles."""


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_OUT = click.Path(dir_okay=False, path_type=Path)


@main.command(epilog=_EXITS)
@click.option("--provider", multiple=True, metavar="NAME", help="A name or module:object.  [default: builtin, jnp]")
@click.option("--surface", multiple=True, metavar="NAME", help="[default: all]")
@click.option("--scenario", multiple=True, metavar="GLOB", help="A name of any tier, or a glob over the tier's names.")
@click.option("--tier", default="quick", metavar="quick|full|soak", help="[default: quick]")
@click.option(
    "--minutes", default=20.0, type=click.FloatRange(min=0, min_open=True), help="Length of a soak.  [default: 20]"
)
@click.option("--seed", default=0, type=click.IntRange(min=0), help="Seed of a soak.  [default: 0]")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Worker processes.  [default: one a core]")
@click.option("--provider-path", type=_FOLDER, help="A source checkout to import providers from.")
@click.option("--document", type=_FILE, help="A UTF-8 text that the document family is drawn from.")
@click.option("--known-failures", type=_FILE, help="A TOML file of known failures, beside the shipped ones.")
@click.option("--no-known-failures", is_flag=True, help="Judge known failures as plain rejections.")
@click.option("--shard", metavar="i/n", help="Run one of n parts of the plan; `report merge` makes them one run.")
@click.option("--durations", type=_FILE, metavar="RUN.json", help="An earlier --json document, to cut shards evenly.")
@click.option("--mesh", metavar="DATAxTENSOR", help="Also run kernels sharded over a mesh of all devices, as 2x4.")
@host_options
@click.option("--report", type=_OUT, metavar="FILE.html", help="Write a page of the run.")
@click.option("--history", type=_OUT, metavar="FILE", help="Append the run to a history; see `report trend`.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option("--slowest", default=5, type=click.IntRange(min=0), metavar="N", help="Slowest cases to print.")
def parity(as_json: bool, slowest: int, report: Path | None, history: Path | None, **options) -> None:
    """Run kernels beside dense MLA and float64 oracles, and judge them by every check."""
    selection = Selection(**options)
    with together(selection.hosts, lambda text: click.echo(f"dsa-verify: {text}", err=True)):
        alone = selection.shard is None and selection.hosts is None
        prepare(report, history, again=selection.tier != "soak" and alone)
        with _stdout_to_stderr():  # a kernel or a package that prints must not spoil the result
            outcome = _run(selection)
        if as_json:
            click.echo(json.dumps(outcome.document(), allow_nan=False, indent=1))
        else:
            from dsa_verify.report import terminal

            terminal.print_outcome(outcome, slowest)
        for trace in dict.fromkeys(result.extra["broke"] for result in outcome.results if "broke" in result.extra):
            click.echo(f"dsa-verify: the suite broke\n{trace}", err=True)
        keep(outcome, report, history)
    sys.exit(int(outcome.exit_code))


def _run(selection: Selection):
    """Plan, run and judge; returns the `Outcome`. Raises `DsaVerifyError` for bad input."""
    from dsa_verify import known, mesh, shards, suite
    from dsa_verify.report.outcome import Outcome

    if selection.hosts and selection.shard:
        raise errors.ConfigError("several processes share the plan by themselves; leave out --shard")
    if selection.durations and not (selection.shard or selection.hosts):
        raise errors.ConfigError("--durations cuts shards; give --shard i/n with it")
    if selection.tier == "soak":
        return _soak(selection)
    start = time.perf_counter()
    place = join(selection.hosts)
    plan = suite.plan(selection.provider, selection.surface, selection.scenario, selection.tier)
    providers = tuple(dict.fromkeys(case.provider for case in plan))
    entries = () if selection.no_known_failures else known.known_failures(providers, selection.known_failures)
    shard, cases, elsewhere = _shard(plan, selection, place)
    suite.scenario_table(selection.document)
    provenance = suite.provenance(providers, selection.provider_path)
    grid = mesh.chosen(selection.mesh)
    results = _results(plan if place.of > 1 else cases, cases, grid, selection)
    entries = known.applicable(entries, native=provenance["backend"] == "tpu")
    seen = known.tally(results, entries)
    stale = tuple(entry for entry, failed in seen.items() if not failed and not shards.may_show(entry, elsewhere))
    return Outcome(
        command=shlex.join(["dsa-verify", *sys.argv[1:]]),
        seconds=time.perf_counter() - start,
        provenance={**provenance, **({"mesh": str(grid)} if grid else {}), **place.provenance},
        results=tuple(known.forgive(results, entries)),
        stale=stale,
        seen=seen,
        shard=shard,
    )


def _results(everywhere, cases, grid, selection: Selection):
    """The results of a plan: of `everywhere` those that all processes run together, of `cases` all others.

    All processes get here and away from here together, so that none reports a run of which another has no part.
    """
    from dsa_verify import sharding, suite
    from dsa_verify.report import terminal

    path, document = selection.provider_path, selection.document
    meshed = sharding.run_cases(everywhere, grid, path, document) if grid else []
    meet("run the cases of their own")
    with terminal.progress(len(cases)) as done:

        def on_result(case, results) -> None:
            beat(f"had judged {case.name}")
            done(case, results)

        alone = suite.run_cases(cases, jobs=selection.jobs, provider_path=path, document=document, on_result=on_result)
    meet("report")
    places = {(case.provider, case.surface, case.scenario): at for at, case in enumerate(everywhere)}
    return sorted(alone + meshed, key=lambda result: places[result.provider, result.surface, result.scenario])


def _shard(cases, selection: Selection, place: Place):
    """Which shard of the plan is to run, its cases, and those that run elsewhere."""
    from dsa_verify import shards
    from dsa_verify.report.reading import read

    if selection.shard is None and place.of == 1:
        return None, cases, ()
    index, of = (place.index + 1, place.of) if selection.shard is None else shards.parse(selection.shard)
    seconds = shards.durations(read(selection.durations).results) if selection.durations else None
    return shards.take(cases, index, of, seconds)


def _soak(selection: Selection):
    """As `_run`, for random scenarios; known failures are forgiven, and none has to show."""
    from dsa_verify import known, soak, suite
    from dsa_verify.report.outcome import Outcome

    if selection.shard or selection.hosts or selection.mesh:
        raise errors.ConfigError("a soak has no shards, hosts or mesh; give each machine another --seed")
    start = time.perf_counter()
    plan = soak.Plan(
        selection.provider or suite.DEFAULT_PROVIDERS, selection.surface, selection.minutes, selection.seed,
        selection.jobs, selection.provider_path,
    )  # fmt: skip
    entries = () if selection.no_known_failures else known.known_failures(plan.providers, selection.known_failures)
    provenance = suite.provenance(plan.providers, selection.provider_path)
    seen: set[str] = set()

    def done(case, results) -> None:
        if case.scenario not in seen:
            seen.add(case.scenario)
            if len(seen) % 50 == 0:
                click.echo(f"{len(seen)} scenarios", err=True)

    results = soak.run(plan, done)
    entries = known.applicable(entries, native=provenance["backend"] == "tpu")
    return Outcome(
        command=shlex.join(["dsa-verify", *sys.argv[1:]]),
        seconds=time.perf_counter() - start,
        provenance={**provenance, "seed": selection.seed, "scenarios": len(seen)},
        results=tuple(known.forgive(results, entries)),
    )


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Send what Python code, native code and child processes print to stderr."""
    sys.stdout.flush()
    kept = None
    with suppress(OSError):
        kept = os.dup(1)
        os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if kept is not None:
            os.dup2(kept, 1)
            os.close(kept)


@main.command("list")
@click.argument("kind", required=False, metavar="[surfaces|providers|scenarios|checks|families]")
def list_names(kind: str | None) -> None:
    """Print names, one a line; all of them with their kind if none is given."""
    from dsa_verify import explain

    names = explain.names()
    if kind is None:
        for group, members in names.items():
            for name in members:
                click.echo(f"{group}\t{name}")
        return
    if kind not in names:
        raise errors.unknown_name("kind", kind, names)
    click.echo("\n".join(names[kind]))


@main.command()
@click.argument("name")
def show(name: str) -> None:
    """Print what a scenario, surface, check or family is."""
    from dsa_verify import explain

    click.echo(explain.explain(name))


@main.command()
@click.option("--provider-path", type=_FOLDER, help="A source checkout to import providers from.")
def doctor(provider_path: Path | None) -> None:
    """Print versions, the backend, which providers load, and what runs where."""
    from dsa_verify import explain

    with _stdout_to_stderr():
        lines, healthy = explain.machine(provider_path)
    click.echo("\n".join(lines))
    sys.exit(0 if healthy else 3)


main.add_command(compile_kernels)
main.add_command(gate)
main.add_command(golden)
main.add_command(mutants)
main.add_command(profile)
main.add_command(report)
main.add_command(serve)
