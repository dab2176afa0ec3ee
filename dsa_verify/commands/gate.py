"""`dsa-verify gate`: may sparse prefill become the default? Paired answers of a dense and a sparse arm decide."""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsa_verify.commands import output
from dsa_verify.commands.gate_plan import operating, plan
from dsa_verify.commands.numbers import Numbers
from dsa_verify.commands.output import COUNT
from dsa_verify.commands.sections import HelpSection, SectionedGroup
from dsa_verify.errors import Exit
from dsa_verify.gates.options import DENSE, GSM8K_TOKENS, SPARSE, GateOptions
from dsa_verify.gates.statistics.rule import Rule

# What a command needs is imported inside it: `--help` imports no NumPy and no JAX.
if TYPE_CHECKING:
    from dsa_verify.gates.arms.progress import OnAnswerOf
    from dsa_verify.gates.run import Gate

_TASKS = (
    "english (16 of LongBench), all (21), one of them, longbench2, gsm8k_long, needle.  [default: as the arms need]"
)
_SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)
_DEFAULTS = GateOptions()
_EXISTING = click.Path(exists=True, path_type=Path)


def _variable(environment: Mapping[str, str]) -> str:
    return f"Repeatable.  [default: {' '.join(f'{name}={value}' for name, value in environment.items())}]"


_built_in = HelpSection("Arms: the built-in model, where no others are given", "dsa-verify gate --mutant causal-bound")
_servers = HelpSection(
    "Arms: servers that run", "dsa-verify gate --dense-url http://a:8000 --sparse-url http://b:8000 --data longbench/"
)
_started = HelpSection(
    "Arms: servers that the gate starts", "dsa-verify gate --server-cmd 'serve.sh --port {port}' --data longbench/"
)
_served = HelpSection(
    "Servers, running or started",
    "dsa-verify gate --server-cmd 'serve.sh --port {port}' --index-topk 2048 --page-size 128",
)
_recorded = HelpSection(
    "Arms: samples that lm_eval --log_samples recorded",
    "dsa-verify gate --dense-samples dense/ --sparse-samples sparse/",
)
_asked = HelpSection("Documents and tasks", "dsa-verify gate --task qasper --task needle --documents 50")
_rule = HelpSection("The rule", "dsa-verify gate --macro-margin 0.02 --alpha 0.025")
_run = HelpSection(
    "The run",
    "dsa-verify gate --server-cmd 'serve.sh --port {port}' --concurrency 8 --work night/",
)
_output = HelpSection("Output", "dsa-verify gate --report gate/ --json > gate.json")


@click.group(cls=SectionedGroup, invoke_without_command=True, epilog=output.GATE_EXITS)
@_built_in("--mutant", metavar="NAME", help="Break the embedded sparse arm on purpose, to see the gate fail.")
@_built_in(
    "--kernels",
    type=click.Choice(["jnp", "pallas"]),
    default=_DEFAULTS.kernels,
    show_default=True,
    help="Of the embedded arms.",
)
@_servers("--dense-url", metavar="URL", help="An OpenAI-compatible server with dense prefill.")
@_servers("--sparse-url", metavar="URL", help="The same model with sparse prefill.")
@_servers("--degraded-url", metavar="URL", help="The same model broken on purpose, which must not pass.")
@_started("--server-cmd", metavar="COMMAND", help="Starts a server on {port}; run once an arm.")
@_started("--dense-env", multiple=True, metavar="NAME=VALUE", help=_variable(DENSE))
@_started("--sparse-env", multiple=True, metavar="NAME=VALUE", help=_variable(SPARSE))
@_served("--model", metavar="NAME", help="The model's name at the endpoints.  [default: the one they list]")
@_served("--api", type=click.Choice(["completions", "chat"]), default=_DEFAULTS.api, show_default=True)
@_served("--token-env", metavar="NAME", help="The environment variable that holds the servers' bearer token.")
@_served("--index-topk", type=COUNT, metavar="N", default=_DEFAULTS.index_topk, show_default=True, help="Of the model.")
@_served("--page-size", type=COUNT, metavar="N", default=_DEFAULTS.page_size, show_default=True, help="Of the model.")
@_served("--trust-sparse", is_flag=True, help="Believe that the sparse arm is sparse where its server cannot say.")
@_served("--differs", multiple=True, metavar="NAME", help="Another variable that the arms are meant to differ in.")
@_recorded("--dense-samples", type=_EXISTING, help="lm-eval's output of an earlier run.")
@_recorded("--sparse-samples", type=_EXISTING, help="The same, of the sparse arm.")
@_asked("--task", "tasks", multiple=True, metavar="NAME", help=_TASKS)
@_asked("--data", type=output.NEW_FOLDER, metavar="DIR", help="Official LongBench JSONL files, one a task.")
@_asked("--documents", type=COUNT, metavar="N", help="At most N of each task.")
@_asked("--max-prompt-tokens", type=click.IntRange(min=2), metavar="N", help="Cut longer prompts in the middle.")
@_asked("--tokenizer", type=output.FILE, help="tokenizer.json to cut by.")
@_asked("--needle-tokens", type=Numbers(1), metavar="N,N,...", help="Lengths of the needle grid's prompts.")
@_asked("--gsm8k-tokens", type=COUNT, metavar="N", help=f"Of prompts of gsm8k_long.  [default: {GSM8K_TOKENS}]")
@_rule("--baseline", type=click.Choice(["dense"]), default=_DEFAULTS.baseline, help="What sparse is held against.")
@_rule("--controls/--no-controls", default=None, help="Dense against itself, and an arm that must not pass.")
@_rule("--alpha", type=_SHARE, metavar="SHARE", help=f"One-sided error.  [default: {Rule.alpha:g}]")
@_rule("--macro-margin", type=_SHARE, metavar="SHARE", help=f"[default: {Rule.macro_margin:g}]")
@_rule("--group-margin", type=_SHARE, metavar="SHARE", help=f"[default: {Rule.group_margin:g}]")
@_rule("--task-margin", type=_SHARE, metavar="SHARE", help=f"[default: {Rule.task_margin:g}]")
@_rule("--seed", type=click.IntRange(min=0), metavar="N", help=f"Of the order of documents.  [default: {Rule.seed}]")
@_run(
    "--concurrency", type=COUNT, metavar="N", default=_DEFAULTS.concurrency, show_default=True, help="Requests at once."
)
@_run(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    default=_DEFAULTS.timeout,
    show_default=True,
    help="For one attempt.",
)
@_run(
    "--patience",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=_DEFAULTS.patience,
    show_default=True,
    help="To wait for a server that is away.",
)
@_run(
    "--repeats", type=COUNT, metavar="N", default=_DEFAULTS.repeats, show_default=True, help="Answers to each document."
)
@_run("--work", type=output.NEW_FOLDER, metavar="DIR", help="Journals, from which a killed run resumes.")
@_output("--report", type=output.NEW_FOLDER, metavar="DIR", help="Write gate.html, gate.json, gate.md and gate.xml.")
@_output("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
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
    from dsa_verify.gates.run import run

    start = time.perf_counter()
    _demand_packages()
    if report is not None:
        _demand_writable(report)
    arranged = arrange.arrange(GateOptions(**options))
    with _progress(arranged) as tell:
        outcome = run(arranged, tell)
    content = reports.document(outcome, output.head(time.perf_counter() - start, arrange.provenance()))
    if report is not None:
        for path in reports.write(content, report):
            click.echo(f"wrote {path}", err=True)
    if as_json:
        output.print_json(content)
    else:
        click.echo(_table(content))
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

    from dsa_verify.report.formats import points

    table = Table(box=None, pad_edge=False)
    for name in ("points", "n", "dense", "sparse", "difference", "lower", "upper", "margin"):
        table.add_column(name, justify="left" if name == "points" else "right")
    for one in ([content["macro"]] if content["macro"] else []) + content["groups"] + content["tasks"]:
        values = (one[key] for key in ("mean_dense", "mean_sparse", "difference", "lower", "upper"))
        table.add_row(one["name"], str(one["n"]), *map(points, values), points(-one["margin"]))
    text = StringIO()
    Console(file=text, width=max(100, len(content["sentence"]))).print(table)
    lines = [text.getvalue().rstrip(), ""]
    lines += [
        f"control {name}: {c['verdict']}, {'as due' if c['sound'] else 'NOT as due'}"
        for name, c in content["controls"].items()
    ]
    lines += [f"note: {note}" for note in content["notes"]]
    lines += [f"reason: {reason}" for reason in content["reasons"]]
    return "\n".join([*lines, "", f"{content['sentence']} ({content['seconds']:.0f} s)"])


def _progress(arranged: "Gate") -> "AbstractContextManager[OnAnswerOf]":
    """How far each arm is, on stderr: bars on a terminal, otherwise a line now and then."""
    from dsa_verify.gates.arms.progress import progress

    total = sum(len(task.documents) for task in arranged.tasks) * arranged.repeats
    arms = [arm.name for arm in (arranged.dense, arranged.sparse, arranged.same, arranged.degraded) if arm is not None]
    return progress(arms, total)
