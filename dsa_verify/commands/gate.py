"""`dsa-verify gate`: may sparse prefill become the default? Paired answers of a dense and a sparse arm decide."""

import json
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from dsa_verify.commands import output
from dsa_verify.commands.gate_plan import operating, plan
from dsa_verify.commands.numbers import Numbers
from dsa_verify.errors import Exit

# What a command needs is imported inside it: `--help` imports no NumPy and no JAX.

_SETS = "english (16 of LongBench), all (21), one of them, longbench2, gsm8k_long, needle.  [default: as the arms need]"
_FOLDER = click.Path(file_okay=False, path_type=Path)
_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


@click.group(invoke_without_command=True, epilog=output.GATE_EXITS)
@click.option("--baseline", type=click.Choice(["dense"]), default="dense", help="What sparse is held against.")
@click.option("--task", "tasks", multiple=True, metavar="NAME", help=_SETS)
@click.option("--data", type=_FOLDER, metavar="DIR", help="Official LongBench JSONL files, one a task.")
@click.option("--documents", type=click.IntRange(min=1), metavar="N", help="At most N of each task.")
@click.option("--dense-url", metavar="URL", help="An OpenAI-compatible server with dense prefill.")
@click.option("--sparse-url", metavar="URL", help="The same model with sparse prefill.")
@click.option("--degraded-url", metavar="URL", help="The same model broken on purpose, which must not pass.")
@click.option("--server-cmd", metavar="COMMAND", help="Starts a server on {port}; run once an arm.")
@click.option("--dense-env", multiple=True, metavar="NAME=VALUE", help="[default: DSA_PREFILL_SPARSE=0]")
@click.option("--sparse-env", multiple=True, metavar="NAME=VALUE", help="[default: DSA_PREFILL_SPARSE=1]")
@click.option(
    "--dense-samples", type=click.Path(exists=True, path_type=Path), help="lm-eval's output of an earlier run."
)
@click.option("--sparse-samples", type=click.Path(exists=True, path_type=Path), help="The same, of the sparse arm.")
@click.option("--model", metavar="NAME", help="The model's name at the endpoints.  [default: the one they list]")
@click.option("--api", type=click.Choice(["completions", "chat"]), default="completions", show_default=True)
@click.option("--token-env", metavar="NAME", help="The environment variable that holds the servers' bearer token.")
@click.option("--index-topk", type=click.IntRange(min=1), default=2048, show_default=True, help="Of the served model.")
@click.option("--page-size", type=click.IntRange(min=1), default=64, show_default=True, help="Of the served model.")
@click.option("--max-prompt-tokens", type=click.IntRange(min=2), metavar="N", help="Cut longer prompts in the middle.")
@click.option("--needle-tokens", type=Numbers(1), metavar="N,N,...", help="Lengths of the needle grid's prompts.")
@click.option(
    "--gsm8k-tokens", type=click.IntRange(min=1), metavar="N", help="Of prompts of gsm8k_long.  [default: 7000]"
)
@click.option(
    "--tokenizer", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="tokenizer.json to cut by."
)
@click.option("--concurrency", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=300.0, help="Seconds for one attempt.")
@click.option(
    "--patience", type=click.FloatRange(min=0), default=900.0, help="Seconds to wait for a server that is away."
)
@click.option("--repeats", type=click.IntRange(min=1), default=1, show_default=True, help="Answers to each document.")
@click.option("--work", type=_FOLDER, metavar="DIR", help="Journals, from which a killed run resumes.")
@click.option("--controls/--no-controls", default=None, help="Dense against itself, and an arm that must not pass.")
@click.option("--trust-sparse", is_flag=True, help="Believe that the sparse arm is sparse where its server cannot say.")
@click.option("--differs", multiple=True, metavar="NAME", help="Another variable that the arms are meant to differ in.")
@click.option("--alpha", type=_SHARE, help="One-sided error.  [default: 0.05]")
@click.option("--macro-margin", type=_SHARE, help="[default: 0.015]")
@click.option("--group-margin", type=_SHARE, help="[default: 0.05]")
@click.option("--task-margin", type=_SHARE, help="[default: 0.05]")
@click.option("--seed", type=click.IntRange(min=0), help="Of the order of documents.")
@click.option("--mutant", metavar="NAME", help="Break the embedded sparse arm on purpose, to see the gate fail.")
@click.option("--kernels", type=click.Choice(["jnp", "pallas"]), default="jnp", help="Of the embedded arms.")
@click.option("--report", type=_FOLDER, metavar="DIR", help="Write gate.html, gate.json, gate.md and gate.xml.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
@click.pass_context
def gate(ctx: click.Context, as_json: bool, report: Path | None, **options: Any) -> None:
    """Decide whether sparse prefill may become the default.

    Without arms it runs the built-in model on documents made here, offline. With --dense-url and --sparse-url, with
    --server-cmd, or with recorded samples it runs LongBench.
    """
    if ctx.invoked_subcommand is not None:
        return
    from dsa_verify.gates import arrange
    from dsa_verify.gates import report as reports
    from dsa_verify.gates.options import GateOptions
    from dsa_verify.gates.run import run

    start = time.perf_counter()
    _demand_packages()
    if report is not None:
        _demand_writable(report)
    arranged = arrange.arrange(GateOptions(**options))
    with _progress(arranged) as tell:
        outcome = run(arranged, tell)
    command = output.command_line()
    content = reports.document(outcome, command, time.perf_counter() - start, arrange.provenance())
    if report is not None:
        for path in reports.write(content, report):
            click.echo(f"wrote {path}", err=True)
    click.echo(json.dumps(content, indent=1, allow_nan=False) if as_json else _table(content))
    ctx.exit(Exit[content["verdict"]])


def _demand_packages() -> None:
    from dsa_verify.errors import ConfigError
    from dsa_verify.gates.options import PACKAGES

    absent = [name for name in PACKAGES if find_spec(name) is None]
    if absent:
        raise ConfigError(f"the gate needs the package {absent[0]}; pip install 'dsa-verify[gate]'")


def _demand_writable(folder: Path) -> None:
    """Before the run, which may take hours."""
    from dsa_verify.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error}; give another folder with --report") from None


gate.add_command(plan)
gate.add_command(operating)


def _table(content: dict[str, Any]) -> str:
    """The verdict, why, and the numbers, for a terminal."""
    from io import StringIO

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("points", "n", "dense", "sparse", "difference", "lower", "upper", "margin"):
        table.add_column(name, justify="left" if name == "points" else "right")
    for one in ([content["macro"]] if content["macro"] else []) + content["groups"] + content["tasks"]:
        values = (one[key] for key in ("mean_dense", "mean_sparse", "difference", "lower", "upper"))
        cells = ["none" if value is None else f"{100 * value:.2f}" for value in values]
        table.add_row(one["name"], str(one["n"]), *cells, f"{-100 * one['margin']:.2f}")
    text = StringIO()
    Console(file=text, width=max(100, len(content["sentence"]))).print(table)
    said = [text.getvalue().rstrip(), ""]
    said += [
        f"control {name}: {c['verdict']}, {'as due' if c['sound'] else 'NOT as due'}"
        for name, c in content["controls"].items()
    ]
    said += [f"note: {note}" for note in content["notes"]]
    said += [f"reason: {reason}" for reason in content["reasons"]]
    return "\n".join([*said, "", f"{content['sentence']} ({content['seconds']:.0f} s)"])


def _progress(arranged: Any):
    """How far each arm is, on stderr: bars on a terminal, otherwise a line now and then."""
    from dsa_verify.gates.arms.progress import progress

    total = sum(len(task.documents) for task in arranged.tasks) * arranged.repeats
    arms = [arm.name for arm in (arranged.dense, arranged.sparse, arranged.same, arranged.degraded) if arm is not None]
    return progress(arms, total)
