"""`dsa-verify profile`: what the indexer selects, as numbers, plots and one page."""

import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from dsa_verify.commands import output
from dsa_verify.commands.numbers import Numbers

SECONDS_BETWEEN_LINES = 15.0
"""Where stderr is no terminal: seldom enough for a log, often enough to see that it is alive."""


@dataclass(frozen=True)
class ProfileOptions:
    """What `dsa-verify profile` was asked to measure."""

    files: tuple[Path, ...]
    model: Path | None
    trace: Path | None
    layers: tuple[int, ...]
    block_sizes: tuple[int, ...]
    queries: int
    page_size: int
    out: Path
    plots: bool


@click.command("profile")
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option("--model", type=output.NEW_FOLDER, metavar="DIR", help="A Hugging Face checkpoint to read FILEs with.")
@click.option("--trace", type=click.Path(path_type=Path), metavar="FILE.npz", help="Selections recorded elsewhere.")
@click.option("--layers", type=Numbers(0), metavar="N,N", default=(), help="[default: all that are there]")
@click.option(
    "--block-sizes", type=Numbers(1), metavar="N,N", default="16,32,64,128,256", show_default=True,
    help="Queries in a block.",
)  # fmt: skip
@click.option(
    "--queries", type=click.IntRange(min=1), metavar="N", default=2048, show_default=True,
    help="Length of the window, at the end.",
)  # fmt: skip
@click.option("--page-size", type=click.IntRange(min=1), metavar="N", default=64, show_default=True)
@click.option("--out", type=output.NEW_FOLDER, metavar="DIR", default=Path("profile-out"), show_default=True)
@click.option("--plots/--no-plots", default=True, help="Draw pictures; needs dsa-verify[profile].  [default: plots]")
@output.as_json
def profile(as_json: bool, **given: Any) -> None:
    """Measure what the indexer selects: overlap of neighbouring queries, sinks, strides, pages and bytes.

    The selections are those of a prefill of FILEs, or come from a trace that was recorded elsewhere.
    """
    from dsa_verify.report import terminal

    start = time.perf_counter()
    with output.stdout_to_stderr():
        found, document, paths = _measure(ProfileOptions(**given), start)
    if found.left_out:
        sizes = ", ".join(map(str, found.left_out))
        click.echo(f"dsa-verify: left out block sizes {sizes}, which are larger than the window", err=True)
    if not any(path.suffix == ".html" for path in paths):
        output.note("wrote no page, which needs the package jinja2; pip install 'dsa-verify[profile]'")
    if as_json:
        output.print_json(document)
        return
    terminal.stdout().print(_table(document["layers"]))
    for pattern in document["patterns"]:
        click.echo(_sentence(pattern))
    click.echo(f"profile: {len(paths)} files in {given['out']}, {time.perf_counter() - start:.1f} s")


def _measure(options: ProfileOptions, start: float):
    """Read or record a trace, measure it and write everything; returns the profile, the document and the paths."""
    from dsa_verify.errors import ConfigError
    from dsa_verify.profile import analysis, page, prefill, trace
    from dsa_verify.report import templates

    if options.plots:
        templates.require()
    if (options.trace is None) == (not options.files):
        raise ConfigError("give either FILEs to read or --trace FILE.npz, one of both")
    if options.trace is not None and options.model is not None:
        raise ConfigError("--model reads FILEs; with --trace there are none, so leave it out")
    if options.trace is not None:
        recorded = trace.load(options.trace, options.layers)
    else:
        settings = prefill.PrefillSettings(options.layers, options.queries, options.page_size)
        with _prefilling() as done:
            recorded = prefill.trace_of(options.files, options.model, settings, done)
    plan = analysis.AnalysisPlan(options.block_sizes, options.queries, options.page_size)
    with _progress() as tell:
        found = analysis.analyse(recorded, plan, tell)
        document = _document(found, start)
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            pictures = _pictures(found, options, tell)
            paths = page.write(found, document, pictures, options.out)
        except OSError as error:
            raise ConfigError(f"cannot write to {options.out}: {error}; give another folder with --out") from error
    return found, document, [*paths, *(one.path for one in pictures)]


def _pictures(found, options: ProfileOptions, tell):
    if not options.plots:
        return []
    from dsa_verify.profile import plots

    tell("drawing")
    return plots.draw(found, options.out)


@contextmanager
def _prefilling():
    """A bar on stderr on a terminal, else a line now and then; yields what to tell how many blocks of how many are
    done."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, start = Console(stderr=True), time.perf_counter()
    columns = (TextColumn("profile: prefill"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    told = start
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("prefill", total=None)

        def done(blocks: int, total: int) -> None:
            nonlocal told
            bar.update(task, completed=blocks, total=total)
            now = time.perf_counter()
            if not console.is_terminal and now - told >= SECONDS_BETWEEN_LINES:
                told = now
                click.echo(f"profile: prefill, {blocks} of {total} blocks, {now - start:.0f} s", err=True)

        yield done


class _progress:
    """What is being done, in one line on stderr that is rewritten; only on a terminal."""

    def __enter__(self):
        from rich.console import Console

        console = Console(stderr=True)
        self.status = console.status("profile") if console.is_terminal else None
        if self.status:
            self.status.start()
        return self.tell

    def tell(self, what: str) -> None:
        if self.status:
            self.status.update(f"profile: {what}")

    def __exit__(self, *_) -> None:
        if self.status:
            self.status.stop()


def _document(found, start: float) -> dict:
    import numpy

    import dsa_verify

    numbers = found.to_json()
    provenance = {
        "dsa_verify": dsa_verify.__version__,
        "python": sys.version.split()[0],
        "numpy": numpy.__version__,
        "source": numbers.pop("source"),
    }
    return {**output.head(time.perf_counter() - start, provenance), **numbers}


def _table(rows):
    """Layer x block size."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("layer", "block\nsize", "inter-\nsection", "union", "sinks", "pages\na query", "pages\na block"):
        table.add_column(heading, justify="right", vertical="bottom")
    for row in rows:
        numbers = [row[name] for name in ("mean_intersection", "mean_union", "sinks", "pages_per_query")]
        cells = [f"{number:,.1f}" for number in (*numbers, row["pages_per_block"])]
        table.add_row(str(row["layer"]), str(row["block_size"]), *cells, end_section=row is rows[-1])
    return table


def _sentence(pattern) -> str:
    strides = ", ".join(f"every {stride['period']:g} tokens ({stride['share']:.0%})" for stride in pattern["strides"])
    return (
        f"layer {pattern['layer']}: of {pattern['mean_selected']:,.0f} positions a query, {pattern['local_share']:.0%} "
        f"in a local window of {pattern['local_window']:,}, {pattern['sink_share']:.0%} in {pattern['sinks']:,} sinks, "
        f"strides: {strides or 'none'}"
    )
