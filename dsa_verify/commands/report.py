"""`dsa-verify report`: runs that are over, merged, kept in a history, asked since when, and shown on one page."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsa_verify import __version__
from dsa_verify.commands import output
from dsa_verify.commands.output import FILE, NEW_FILE

if TYPE_CHECKING:
    from dsa_verify.report.history import CheckPlace, RecordedRun
    from dsa_verify.report.parts import PageSection
    from dsa_verify.report.trend import Fall, Trend

# What a command needs is imported inside it: `--help` imports no NumPy and no JAX.

_HISTORY = click.option(
    "--history", type=NEW_FILE, metavar="FILE", required=True, help="As written by `parity --history FILE`."
)


@click.group()
def report() -> None:
    """Merge runs, ask a history since when something is wrong, and make a page of a run."""


@report.command()
@click.argument("documents", nargs=-1, required=True, type=FILE, metavar="RUN.json...")
@click.option("--history", type=NEW_FILE, metavar="FILE", help="Append the merged run to this history.")
@output.as_json
@output.slowest
@output.verbose
def merge(documents: tuple[Path, ...], history: Path | None, as_json: bool, slowest: int, verbose: bool) -> None:
    """Make one run of several, as of the shards of one; the exit code is that of the whole.

    Runs must have equal provenance and no case in common; shards must be all of one plan.
    """
    from dsa_verify.errors import ConfigError
    from dsa_verify.report import files, terminal
    from dsa_verify.report import merge as merging
    from dsa_verify.report.reading import read

    if len(set(documents)) < len(documents):
        raise ConfigError("a file is given twice; name every run once")
    outcome = merging.merge({str(path): read(path) for path in documents}, output.command_line())
    if as_json:
        output.print_json(outcome.document())
    else:
        terminal.print_outcome(outcome, slowest, verbose=verbose)
    if history is not None:
        output.note(files.append_to_history(outcome, history))
    sys.exit(int(outcome.exit_code))


@report.command()
@click.argument("document", type=FILE, metavar="RUN.json")
@click.option("-o", "--output", "page", type=NEW_FILE, metavar="FILE", required=True, help="The page to write.")
@click.option("--history", type=FILE, metavar="FILE", help="Says since when each check is rejected.")
@click.option("--mutants", type=FILE, metavar="FILE", help="Adds a campaign: as `mutants --json` prints it.")
@click.option("--compile", "compiles", type=FILE, metavar="FILE", help="Adds compiles: as `compile --json` prints it.")
@click.option("--gate", type=FILE, metavar="FILE", help="Adds a gate: its --json document, gate.json of --report.")
def html(
    document: Path, page: Path, history: Path | None, mutants: Path | None, compiles: Path | None, gate: Path | None
) -> None:
    """Make one HTML page of a run that needs no other file, no network and no script."""
    from dsa_verify.report import files
    from dsa_verify.report.reading import read

    output.note(files.write_page(read(document), page, history, _parts(mutants, compiles, gate)))


def _parts(mutants: Path | None, compiles: Path | None, gate: Path | None) -> "list[PageSection]":
    """What other commands found, with their own words for it. Raises `ConfigError`."""
    from dsa_verify.compile.chips import CHIPS
    from dsa_verify.mutants.kinds import title
    from dsa_verify.report import parts

    budgets = {chip.name: (chip.hbm_bytes, chip.vmem_bytes) for chip in CHIPS.values()}
    found = [
        mutants and parts.mutants(mutants, title),
        compiles and parts.compiles(compiles, budgets),
        gate and parts.gate(gate),
    ]
    return [part for part in found if part is not None]


@report.command()
@click.argument("document", type=FILE, metavar="RUN.json")
@click.option("--history", type=FILE, metavar="FILE", help="Says since when each check is rejected.")
def markdown(document: Path, history: Path | None) -> None:
    """Print a screen of Markdown, for the summary of a CI job."""
    from dsa_verify.report import markdown as text
    from dsa_verify.report.reading import read

    click.echo(text.markdown(read(document), history), nl=False)


@report.command()
@_HISTORY
@click.option("--top", type=click.IntRange(min=1), default=20, show_default=True, help="Largest moves to print.")
@output.as_json
def trend(history: Path, top: int, as_json: bool) -> None:
    """Print when verdicts and shares of error budgets (or of bytes) moved, the first bad run, and flaky checks."""
    from dsa_verify.checks import ERROR_BUDGET, share_of
    from dsa_verify.report import history as file
    from dsa_verify.report import trend as trends

    runs, found = file.runs(history), trends.trend(file.lines(history))
    if as_json:
        output.print_json(_trend_document(runs, found))
        return
    for (run, old, new), count in sorted(found.changes.items()):
        click.echo(f"run {run}: {_checks(count)} {old} -> {new}")
    for one in found.falls:
        click.echo(f"rejected: {one.place}: {_since(one)}")
    for one in found.flaky:
        seen = ", ".join(f"{run.id} {status}" for run, status in one.statuses)
        click.echo(f"flaky: {one.place}: equal versions, runs {seen}")
    for one in found.moves[:top]:
        a, b, of = one.before, one.after, share_of(one.place.check)
        what = "" if of == ERROR_BUDGET else f" of {of}"
        click.echo(f"share{what}: {one.place}: {a.share:.3g} in run {a.run.id} -> {b.share:.3g} in {b.run}")
    if len(found.moves) > top:
        click.echo(f"share: {len(found.moves) - top} more checks moved by less; --top prints more")
    click.echo(
        f"trend: {len(runs)} runs, {found.checks} checks: {len(found.falls)} rejected, {len(found.flaky)} flaky, "
        f"{len(found.moves)} with a share that moved"
    )


def _checks(count: int) -> str:
    return f"{count} check{'s' * (count != 1)}"


def _since(one: "Fall") -> str:
    good = f"last accepted in {one.last_good}" if one.last_good else "never accepted"
    return f"{good}, rejected since {one.first_bad}"


@report.command()
@_HISTORY
@output.as_json
def bisect(history: Path, as_json: bool) -> None:
    """Print which versions changed between the last good and the first bad run of what is rejected now."""
    from dsa_verify.report import history as file
    from dsa_verify.report import trend as trends

    intervals = trends.by_interval(one for line in file.lines(history) if (one := trends.fall(line)))
    if as_json:
        output.print_json(_bisect_document(intervals))
        return
    for good, bad, falls in intervals:
        click.echo(f"{_checks(len(falls))}: {_since(falls[0])}")
        if good is not None:
            changed = trends.version_changes(good, bad)
            for line in changed or ["no version changed: the source did under one version, or the check is flaky"]:
                click.echo(f"  {line}")
        for one in falls:
            click.echo(f"  rejected: {one.place}: {one.reason}")
    if not intervals:
        click.echo("bisect: no check is rejected in its last run")


def _head() -> dict[str, Any]:
    return output.head(0.0, {"dsa_verify": __version__})


def _run(run: "RecordedRun | None") -> dict[str, Any] | None:
    return None if run is None else {"run": run.id, "at": run.at}


def _place(place: "CheckPlace") -> dict[str, str]:
    return {"provider": place.provider, "surface": place.surface, "scenario": place.scenario, "check": place.check}


def _fall(one: "Fall") -> dict[str, Any]:
    ends = {"last_good": _run(one.last_good), "first_bad": _run(one.first_bad)}
    return {**_place(one.place), **ends, "reason": one.reason}


def _trend_document(runs: "list[RecordedRun]", found: "Trend") -> dict[str, Any]:
    return {
        **_head(),
        "runs": [{**(_run(run) or {}), "exit_code": run.exit_code} for run in runs],
        "verdicts": [
            {"run": run, "from": old.replace(" ", "_"), "to": new.replace(" ", "_"), "count": count}
            for (run, old, new), count in sorted(found.changes.items())
        ],
        "rejected": [_fall(one) for one in found.falls],
        "flaky": [
            {**_place(one.place), "runs": [{"run": run.id, "verdict": s.replace(" ", "_")} for run, s in one.statuses]}
            for one in found.flaky
        ],
        "moved": [
            {**_place(one.place), "from": one.before.share, "to": one.after.share, "in": _run(one.after.run)}
            for one in found.moves
        ],
    }


def _bisect_document(
    intervals: "list[tuple[RecordedRun | None, RecordedRun, list[Fall]]]",
) -> dict[str, Any]:
    from dsa_verify.report.trend import version_changes

    found = [
        {
            "last_good": _run(good),
            "first_bad": _run(bad),
            "changed": version_changes(good, bad) if good is not None else [],
            "checks": [_fall(one) for one in falls],
        }
        for good, bad, falls in intervals
    ]
    return {**_head(), "intervals": found}
