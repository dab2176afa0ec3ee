"""The handwritten mutants in SGLang-JAX's kernels, under that project's own CPU tests and under this suite."""

import ast
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import click

from dsa_verify.kernels.providers import sglang_jax
from dsa_verify.mutants.digest import code_digest
from dsa_verify.mutants.kinds import title
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.mutants.systematic import places_of
from tools.peer_mutants.table import TEMPLATE, PeerMutant, Table, digest, load_table, raising_function

R = TypeVar("R")
BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"
SCENARIO_LIMIT = 240
"""Seconds for one scenario under this suite; a mutated kernel may wait for ever. The whole tier has ten times that."""


@dataclass(frozen=True)
class PeerResult:
    """What became of one peer mutant: `killed`, `survived` or `not run`, and by what."""

    theirs: str
    theirs_by: str
    ours: str
    ours_by: str


class Peer:
    """A copy of the peer's checkout in which one file at a time is changed."""

    def __init__(self, copy: Path, table: Table, folder: Path) -> None:
        self.copy, self.table, self.folder = copy, table, folder

    @contextmanager
    def changed(self, file: str, source: str) -> Iterator[None]:
        path = self.copy / file
        original = path.read_text("utf-8")
        path.write_text(source, "utf-8")
        try:
            yield
        finally:
            path.write_text(original, "utf-8")

    def run(self, words: Sequence[str], limit: float, cwd: Path | None = None) -> tuple[int | None, str]:
        """Exit code and stdout of a Python process; None when it took longer than `limit` seconds."""
        inherited = os.environ.get("PYTHONPATH", "")
        paths = [str(self.copy / "python"), *inherited.split(os.pathsep)]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONDONTWRITEBYTECODE": "1"}
        env["JAX_PLATFORMS"] = "cpu"
        command, pipe, null = [sys.executable, *words], subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, cwd=cwd, env=env, stdout=pipe, stderr=null, start_new_session=True) as process:
            try:
                out = process.communicate(timeout=limit)[0].decode()
                return process.returncode, out
            except subprocess.TimeoutExpired:
                return None, ""
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def kept(self, name: str, compute: Callable[[], R], *parts: str) -> R:
        """What `compute` returns, from an earlier run if nothing that it depends on has changed; kept as JSON."""
        file = (
            self.folder / f"{code_digest('jnp', Path(sglang_jax.__file__).read_text('utf-8'), name, *parts)[:24]}.json"
        )
        if not file.is_file():
            result = compute()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_suffix(".new").write_text(json.dumps({"name": name, "result": result}), "utf-8")
            file.with_suffix(".new").replace(file)
        return json.loads(file.read_text("utf-8"))["result"]

    # Theirs.

    def tests(self, files: Sequence[str], limit: float, *options: str) -> tuple[int | None, list[str]]:
        """Exit code of some of the peer's tests, and the names of those that failed."""
        quiet = ("-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "-p", "no:dsa_verify")
        code, out = self.run(["-m", "pytest", *quiet, *options, *files], limit, self.copy)
        return code, re.findall(r"^(?:FAILED|ERROR) (\S+)", out, re.MULTILINE)

    def baseline(self) -> dict[str, Any]:
        """How long the peer's unchanged tests take, and those that fail and so cannot count."""

        def run_tests() -> dict[str, Any]:
            start = time.monotonic()
            failed = self.tests(self.table.tests, 1800)[1]
            return {"seconds": round(time.monotonic() - start, 1), "failed": failed}

        return self.kept(
            "their tests, unchanged", run_tests, *((self.copy / file).read_text() for file in self.table.tests)
        )

    def rejects(self, mutant: PeerMutant, changed: str, files: Sequence[str]) -> tuple[int | None, list[str]]:
        """What some of the peer's tests say of a changed file, up to the first failure."""
        base = self.baseline()
        options = ["-x", *(f"--deselect={name}" for name in base["failed"])]
        with self.changed(mutant.file, changed):
            return self.tests(files, 3 * base["seconds"] + 60, *options)

    def theirs(self, mutant: PeerMutant) -> tuple[str, str]:
        """Whether the peer's tests kill a mutant, and which file does; or whether none of them comes to its place."""
        source, outer = (self.copy / mutant.file).read_text("utf-8"), mutant.function.partition(".")[0]

        def calling() -> list[str]:
            broken = raising_function(source, outer)
            return [file for file in self.table.tests if self.rejects(mutant, broken, [file])[0] != 0]

        files = self.kept(f"tests that call {outer} of {mutant.file}", calling, source)
        if not files:
            return "not run", ""
        code, failed = self.rejects(mutant, mutant.apply(source), files)
        if code == 0:
            reached = self.rejects(mutant, mutant.apply(source, probe=True), files)[0] != 0
            return ("survived" if reached else "not run"), ""
        where = Path(failed[0].partition("::")[0]).name if failed else ""
        return "killed", where if code == 1 else "timeout" if code is None else f"crash ({code}) {where}".strip()

    # Ours.

    def parity(self, surface: str, scenarios: Sequence[str], limit: float) -> dict[str, Any]:
        """What this suite says of the copy as it is now: how it ended, and each check by scenario."""
        words = ["-m", "dsa_verify", "parity", "--provider", "sglang_jax", "--provider-path", str(self.copy)]
        words += [word for scenario in scenarios for word in ("--scenario", scenario)]
        code, out = self.run([*words, "--surface", surface, "--jobs", "1", "--json"], limit)
        results = json.loads(out)["results"] if out.startswith("{") else []
        return {"code": code, "checks": {f"{r['check']} {r['scenario']}": r["verdict"] for r in results}}

    def ours(self, mutant: PeerMutant) -> tuple[str, str]:
        """Whether this suite rejects what it accepts of the unchanged peer, and by which check on which scenario."""
        source = (self.copy / mutant.file).read_text("utf-8")
        verified = False
        rounds = [((scenario,), SCENARIO_LIMIT) for scenario in mutant.scenarios] + [(("*",), 10 * SCENARIO_LIMIT)]
        for scenarios, limit in rounds:
            name = f"{mutant.surface} {scenarios[0]}"
            kernels = "".join(path.read_text("utf-8") for path in sorted((self.copy / mutant.file).parent.glob("*.py")))
            right = self.kept(name, lambda s=scenarios, t=limit: self.parity(mutant.surface, s, t), kernels)
            accepted = {check for check, verdict in right["checks"].items() if verdict == "accepted"}
            if not accepted:
                continue
            verified = True
            with self.changed(mutant.file, mutant.apply(source)):
                wrong = self.parity(mutant.surface, scenarios, limit)
            if not wrong["checks"]:
                how = "timeout" if wrong["code"] is None else f"cannot be loaded (exit {wrong['code']})"
                return "killed", f"{how}, {name}"
            for check, verdict in wrong["checks"].items():
                if check in accepted and verdict == "rejected":
                    return "killed", check
        return ("survived" if verified else "not run"), ""

    def result(self, mutant: PeerMutant) -> PeerResult:
        """What becomes of a mutant, as kept or anew."""
        entry = json.dumps({k: v for k, v in asdict(mutant).items() if k != "remark"})
        source = (self.copy / mutant.file).read_text("utf-8")
        theirs = self.kept(f"{mutant.name} theirs", lambda: self.theirs(mutant), entry, source)
        ours = self.kept(f"{mutant.name} ours", lambda: self.ours(mutant), entry, source)
        return PeerResult(*theirs, *ours)


def _in_words(mutant: PeerMutant, result: PeerResult) -> tuple[str, str]:
    """A result as the table says it, for either side."""
    theirs = ": ".join(filter(None, (result.theirs, result.theirs_by)))
    return theirs, ": ".join(filter(None, (result.ours, result.ours_by or mutant.remark)))


def markdown(table: Table, results: Mapping[PeerMutant, PeerResult]) -> str:
    """Kills and totals, and what is left out and why."""
    lines = ["| mutant | kind | their function | change | their CPU tests | this suite |", "|---|---|---|---|---|---|"]
    for mutant, result in results.items():
        change = (
            f"`{mutant.to}`" if mutant.to else "argument dropped" if mutant.operator == TEMPLATE else mutant.operator
        )
        what = [
            mutant.name,
            title(KERNEL_MUTANTS[mutant.name].kind),
            f"`{mutant.place}`",
            change,
            *_in_words(mutant, result),
        ]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in what)} |")
    for side, who in (("theirs", "their tests that run on a CPU"), ("ours", "this suite")):
        counts = {
            how: sum(getattr(r, side) == how for r in results.values()) for how in ("killed", "survived", "not run")
        }
        lines += ["", f"{len(results)} mutants under {who}: {', '.join(f'{n} {how}' for how, n in counts.items())}."]
    lines += ["", "| left out | reason |", "|---|---|"]
    lines += [f"| {name} | {table.left_out[name]} |" for name in KERNEL_MUTANTS if name in table.left_out]
    return "\n".join(lines)


def with_block(text: str, block: str) -> str:
    """A document with what stands between the two comments replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise click.UsageError(f"the document has no {BEGIN} and {END} to put the table between")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


@click.command()
@click.argument("checkout", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--mutant", "globs", multiple=True, metavar="GLOB", help="Only mutants of this name; no document changes."
)
@click.option("--markdown", "document", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Replace the generated part of this file instead of printing it.")  # fmt: skip
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), default=Path(".dsa-verify-cache/peers"),
              show_default=True, help="Where results are kept.")  # fmt: skip
@click.option("--places", metavar="FILE::FUNCTION", help="Only list the nodes of a function, with their digests.")
def main(checkout: Path, globs: tuple[str, ...], document: Path | None, cache: Path, places: str | None) -> None:
    """Apply every peer mutant to a copy of CHECKOUT, a clone of sglang-jax, and print who notices.

    Its tests need its own requirements; what fails unchanged is left out. Goes on where it was interrupted.
    """
    if places:
        file, _, function = places.partition("::")
        for found, node in places_of(ast.parse((checkout / file).read_text("utf-8"))):
            if found == function and not isinstance(node, ast.Name | ast.Constant):
                click.echo(f"{digest(node)} {type(node).__name__}: {' '.join(ast.unparse(node).split())[:120]}")
        return
    table, results = load_table(), {}
    with tempfile.TemporaryDirectory() as temporary:
        for part in ("python", "test"):
            shutil.copytree(checkout / part, Path(temporary, part), ignore=shutil.ignore_patterns("__pycache__"))
        peer = Peer(Path(temporary), table, cache)
        for mutant in table.mutants:
            if not globs or any(fnmatchcase(mutant.name, glob) for glob in globs):
                results[mutant] = peer.result(mutant)
                theirs, ours = _in_words(mutant, results[mutant])
                click.echo(f"{mutant.name} in {mutant.place}: theirs {theirs}; ours {ours}", err=True)
    block = markdown(table, results)
    if document and not globs:
        document.write_text(with_block(document.read_text("utf-8"), block), "utf-8")
    else:
        click.echo(block)
