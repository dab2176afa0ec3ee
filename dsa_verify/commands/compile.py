"""`dsa-verify compile`: put kernels at production shapes through the real TPU compiler, without a TPU."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dsa_verify.commands import output
from dsa_verify.errors import Exit

_STATUSES = ("accepted", "rejected", "not verified")
_STYLES = {"accepted": "green", "rejected": "bold red", "not verified": "yellow"}


@dataclass(frozen=True)
class CompileOptions:
    """What `dsa-verify compile` was asked to compile."""

    provider: tuple[str, ...]
    surface: tuple[str, ...]
    target: tuple[str, ...]
    shape: tuple[str, ...]
    context: tuple[int, ...]
    chunk: tuple[int, ...]
    everything: bool
    jobs: int | None
    provider_path: Path | None
    cache: Path | None
    timeout: int


@click.command("compile")
@click.option("--target", multiple=True, metavar="NAME", help="Chips, by comma.  [default: v5e,v6e,tpu7x]")
@click.option("--shape", multiple=True, metavar="NAME", help="Models or their slices, by comma.  [default: glm-5.2]")
@click.option("--provider", multiple=True, metavar="NAME", help="Names or module:object.  [default: builtin]")
@click.option("--surface", multiple=True, metavar="NAME", help="[default: all]")
@click.option("--context", multiple=True, type=int, metavar="N", help="Tokens of context.  [default: 131072]")
@click.option("--chunk", multiple=True, type=int, metavar="N", help="Tokens of a prefill step.  [default: 4096]")
@click.option("--all", "everything", is_flag=True, help="Every context, chunk, batch, page size and slice.")
@output.jobs
@click.option("--timeout", type=click.IntRange(min=1), default=600, show_default=True, help="Seconds for one compile.")
@click.option("--provider-path", type=output.NEW_FOLDER, help="A source checkout to import providers from.")
@click.option(
    "--cache",
    type=output.NEW_FOLDER,
    default=Path(".dsa-verify-cache/compile"),
    show_default=True,
    help="Where results are kept.",
)
@click.option("--no-cache", is_flag=True, help="Neither read nor keep results.")
@click.option(
    "--golden",
    type=click.Choice(["check", "update"]),
    help="Hold verdicts and sizes against the golden record, or write them into it.",
)
@click.option(
    "--folder", type=output.NEW_FOLDER, default=Path("golden"), show_default=True, help="Where the record is."
)
@output.as_json
def compile_kernels(as_json: bool, no_cache: bool, cache: Path, golden: str | None, folder: Path, **given: Any) -> None:
    """Compile kernels for TPUs that are not here, and judge what the compiler says.

    Rejected: what it refuses, what needs more HBM or VMEM than the chip has, what copies the paged cache.
    """

    start = time.perf_counter()
    if golden == "update":
        _demand_reviewable(folder)
    with output.stdout_to_stderr():
        results, provenance = _compile(CompileOptions(cache=None if no_cache else cache, **given))
    seconds = time.perf_counter() - start
    if as_json:
        output.print_json(_document(results, provenance, seconds))
    else:
        _print(results, seconds)
    drifted = _pinned(golden, folder, results, provenance) if golden else False
    sys.exit(_exit_code(results) or int(drifted))


def _demand_reviewable(folder: Path) -> None:
    """Before the compiles, which take minutes. Raises `ConfigError` and `GoldenError`."""
    from dsa_verify.golden import compiles, store

    store.guard(store.folder_at(folder), compiles.FILE)


def _pinned(golden: str, folder: Path, results: Sequence, provenance: Mapping[str, object]) -> bool:
    """Check against the record, or write it; whether anything drifted. Raises `GoldenError`."""
    from dsa_verify.golden import compiles, store

    records = [done.record() for done in results]
    if golden == "update":
        changed = compiles.write(store.folder_at(folder), records, provenance)
        click.echo(f"golden: {len(changed)} of {len(records)} records written", err=True)
        return False
    pinned = compiles.read(store.folder_at(folder))
    moved = compiles.drifts(pinned["cases"], [one for one in records if one["cause"] != "missing"])
    for drift in moved:
        click.echo(f"golden: {drift}", err=True)
    then, now = (one.get("libtpu") for one in (pinned["provenance"], provenance))
    if moved and then != now:
        click.echo(f"golden: recorded with libtpu {then}, compiled with {now}", err=True)
    click.echo(f"golden: {len(moved)} of {len(records)} cases drifted", err=True)
    return bool(moved)


def _compile(options: CompileOptions):
    """Plan and compile; returns the results and the provenance. Raises `DsaVerifyError`."""
    import os

    from dsa_verify import __version__
    from dsa_verify.compile import cases, chips, digest, run
    from dsa_verify.kernels.providers import load_provider
    from dsa_verify.run import workers

    plan = cases.CompilePlan(
        surfaces=_names(options.surface),
        contexts=options.context,
        chunks=options.chunk,
        everything=options.everything,
        **_given(
            providers=_names(options.provider),
            targets=tuple(chips.chip_named(name).name for name in _names(options.target)),
            models=_names(options.shape),
        ),
    )
    planned = cases.cases(plan)
    workers.prepare_environment()
    providers = {name: load_provider(name, options.provider_path) for name in plan.providers}
    jobs = min(options.jobs or os.cpu_count() or 1, len(planned))
    settings = run.CompileSettings(jobs, options.cache, options.provider_path, options.timeout)
    results = run.run(planned, providers, settings, _Progress(len(planned)).tell)
    versions = {name: provider.version for name, provider in providers.items()}
    return results, {"dsa_verify": __version__, **digest.versions(), "providers": versions}


def _names(given: Sequence[str]) -> tuple[str, ...]:
    """Option values with those that were given by comma taken apart, each once."""
    return tuple(dict.fromkeys(name.strip() for option in given for name in option.split(",") if name.strip()))


def _given(**choices: tuple[str, ...]) -> Any:
    return {name: chosen for name, chosen in choices.items() if chosen}


class _Progress:
    """A line on stderr for every compile that was not kept from before."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def tell(self, done) -> None:
        self.done += 1
        if not done.cached:
            case = done.case
            place = f"{case.provider} {case.surface} {case.target} {case.shape}"
            click.echo(f"{self.done} of {self.total}: {place}: {done.verdict} in {done.seconds:.1f} s", err=True)


def _counts(results: Sequence) -> dict[str, int]:
    found = Counter(done.verdict for done in results)
    return {status: found[status] for status in _STATUSES}


def _exit_code(results: Sequence) -> Exit:
    if any(done.cause == "broke" for done in results):
        return Exit.BROKE
    counts = _counts(results)
    return Exit.REJECTED if counts["rejected"] else Exit.ACCEPTED if counts["accepted"] else Exit.NOTHING_VERIFIED


def _document(results: Sequence, provenance: Mapping[str, object], seconds: float) -> dict[str, object]:
    return {
        **output.head(seconds, provenance),
        "counts": {status.replace(" ", "_"): count for status, count in _counts(results).items()},
        "exit_code": int(_exit_code(results)),
        "cases": [done.record() for done in results],
    }


def _print(results: Sequence, seconds: float) -> None:
    from rich.text import Text

    from dsa_verify.report.terminal import stdout

    console = stdout()
    places = [(done.case.provider, done.case.model, done.case.target) for done in results]
    for place in dict.fromkeys(places):
        provider, model, target = place
        console.print(Text(f"provider {provider}, one device of {model}, {target}", style="bold"), soft_wrap=True)
        console.print(_table([done for done, here in zip(results, places, strict=True) if here == place]))
    for done in results:
        if done.verdict == "rejected":
            case = done.case
            place = f"REJECTED {case.provider} {case.surface} {case.target} {case.shape}: {done.cause}"
            console.print(Text(place, style=_STYLES["rejected"]), soft_wrap=True)
            console.print(Text(f"  {done.message}\n"), soft_wrap=True)
    for note in dict.fromkeys(done.message for done in results if done.verdict == "accepted" and done.message):
        console.print(Text(f"note: {note}"), soft_wrap=True)
    reasons = Counter(done.message for done in results if done.verdict == "not verified")
    for reason, count in reasons.most_common():
        console.print(Text(f"not verified: {count:4}  {reason}", style=_STYLES["not verified"]), soft_wrap=True)
    counts, code = _counts(results), _exit_code(results)
    verdict = {0: "accepted", 1: "rejected", 3: "the suite broke", 4: "nothing was verified"}[code]
    line = f"{verdict}: {', '.join(f'{n} {status}' for status, n in counts.items())} in {seconds:.1f} s"
    console.print(Text(line, style=_STYLES["rejected" if code else "accepted"]), soft_wrap=True)


def _table(results: Sequence):
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from dsa_verify.compile.evidence import size

    def figure(count: int | None) -> str:
        return "" if count is None else size(count)

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("surface", no_wrap=True)
    table.add_column("step", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for heading in ("HBM temp", "HBM", "VMEM", "code", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for done in results:
        record = done.record()
        figures = (figure(record[name]) for name in ("hbm_temp_bytes", "hbm_bytes", "vmem_bytes", "code_bytes"))
        verdict = Text(done.verdict + (f": {done.cause}" if done.cause else ""), style=_STYLES[done.verdict])
        seconds = "kept" if done.cached else f"{done.seconds:.1f}"
        table.add_row(done.case.surface, done.case.step, verdict, *figures, seconds)
    return table
