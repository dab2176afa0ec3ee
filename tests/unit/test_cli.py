"""The command line: stdout is the result and nothing else, every exit code is reached, refusals are one line."""

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsa_verify.batch.table import FAMILIES, SCENARIOS
from dsa_verify.checks import CHECKS
from dsa_verify.cli import main
from dsa_verify.commands import machine
from dsa_verify.contract import SURFACES
from dsa_verify.evidence import KnownFailure, Result, Verdict
from dsa_verify.mutants.registry import HANDWRITTEN
from dsa_verify.report.outcome import Outcome
from dsa_verify.run import suite

SINGLE = "single-prefill-p16-f32"
STALE = """
[[failure]]
id = "cache_write/single-*/cache"
reason = "writes nothing"
smallest = "one token"
"""


def parity(*arguments, provider="jnp", **options):
    """The command on one scenario of one surface, in this process."""
    chosen = ["--provider", provider, "--surface", "cache_write", "--scenario", SINGLE, "--jobs", "1"]
    return CliRunner().invoke(main, ["parity", *chosen, *arguments], **options)


def in_process(*arguments, **options):
    """The command as a user starts it, in a process of its own."""
    paths = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    command = [sys.executable, "-m", "dsa_verify", *arguments]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, text=True, **options)


@pytest.mark.parametrize("arguments", [["--help"], ["parity", "--help"], ["--version"]])
def test_help_imports_neither_jax_nor_numpy(arguments):
    code = (
        f"import sys, dsa_verify.cli\ntry: dsa_verify.cli.main({arguments!r})\n"
        "except SystemExit as end: code = end.code\n"
        "assert code == 0 and not {'jax', 'numpy'} & set(sys.modules), code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_accepted_run_exits_0_and_says_what_it_counted():
    result = parity()
    assert result.exit_code == 0, result.output
    assert "accepted: 6 accepted, 0 rejected, 0 not verified checks of 1 case in" in result.stdout
    assert "slowest cases" in result.stdout
    assert result.stderr == ""


def test_rejected_run_exits_1_with_the_reproduction_alone_on_its_line():
    result = parity(provider="broken_providers:nan")
    assert result.exit_code == 1
    assert "request 0, position 0" in result.stdout
    command = f"dsa-verify parity --provider broken_providers:nan --surface cache_write --scenario {SINGLE}"
    assert command in result.stdout.splitlines()
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--provider", "nope"], "unknown provider 'nope'"),
        (["--surface", "nope"], "unknown surface 'nope'"),
        (["--scenario", "nope"], "unknown scenario 'nope'"),
        (["--tier", "nope"], "unknown tier 'nope'"),
        (["--provider", "broken_at_import:provider"], "built for another JAX"),
        (["--document", "/absent.txt"], "does not exist"),
        (["--jobs", "0"], "0 is not in the range"),
    ],
)
def test_usage_errors_exit_2_with_nothing_on_stdout(arguments, message):
    result = parity(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if result.stderr.startswith("dsa-verify"):
        assert len(result.stderr.splitlines()) == 1


def test_page_size_of_24_exits_2(monkeypatch):
    scenario = SCENARIOS[SINGLE]
    odd = scenario.at(dataclasses.replace(scenario.bucket, page_size=24))
    monkeypatch.setattr(suite, "scenario_table", lambda document: {SINGLE: odd})
    result = parity("--json")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "page size 24 is not a multiple of 16" in result.stderr


def test_fault_of_the_suite_exits_3_with_its_traceback_on_stderr(monkeypatch):
    def broken(*_, **__):
        raise AssertionError("an oracle without an answer")

    monkeypatch.setattr("dsa_verify.run.verify.verify", broken)
    result = parity()
    assert result.exit_code == 3
    assert "the suite broke: AssertionError" in result.stdout
    assert result.stderr.count("Traceback") == 1
    monkeypatch.setattr(suite, "plan", broken)
    result = parity()
    assert result.exit_code == 3
    assert result.stdout == ""


def test_run_that_verified_nothing_exits_4_and_says_why():
    result = parity(provider="broken_providers:empty")
    assert result.exit_code == 4
    assert "7  its kernels need a SparseCore (broken_providers:empty cache_write)" in result.stdout
    assert "nothing was verified" in result.stdout


def test_json_is_one_document_even_when_kernels_print():
    process = in_process(
        *("parity", "--provider", "broken_providers:prints", "--surface", "cache_write", "--jobs", "2", "--json"),
        *("--scenario", SINGLE, "--scenario", "decode-one-d16-bf16"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    document = json.loads(stdout)
    assert document["schema"] == 1
    assert document["counts"] == {"accepted": 10, "rejected": 0, "not_verified": 0}
    assert document["command"].startswith("dsa-verify parity --provider broken_providers:prints")
    assert document["provenance"]["providers"] == {"broken_providers:prints": "0"}
    assert set(document["results"][0]) == set(
        ["provider", "surface", "scenario", "check", "verdict", "share", "seconds", "reason", "reproduce"]
    )
    assert "printed by a kernel" in stderr
    assert "written by native code" in stderr


def test_share_that_is_not_finite_is_null_with_a_reason():
    verdicts = [
        Verdict.rejected("out is nan", float("inf")),
        Verdict.accepted(0.5),
        Verdict("rejected", "", float("nan")),
    ]
    results = tuple(Result("jnp", "dense_mla", SINGLE, "parity", verdict) for verdict in verdicts)
    document = Outcome("", 1.0, {}, results).document()
    records = json.loads(json.dumps(document, allow_nan=False))["results"]
    assert [record["share"] for record in records] == [None, 0.5, None]
    assert [record["reason"] for record in records] == ["out is nan", "", "the share of the budget is nan"]


def test_known_failure_is_listed_and_forgiven_unless_asked_otherwise(tmp_path):
    file = tmp_path / "known.toml"
    file.write_text(STALE)
    run = {"provider": "broken_providers:nan"}
    result = parity("--known-failures", str(file), **run)
    assert result.exit_code == 0, result.output
    assert "1  writes nothing (broken_providers:nan cache_write)" in result.stdout
    assert "not verified (1 known failure) checks of 1 case in" in result.stdout
    assert "smallest input: one token" not in result.stdout
    result = parity("--known-failures", str(file), "-v", **run)
    assert "1  writes nothing (broken_providers:nan cache_write)" in result.stdout
    assert "1  cache_write/single-*/cache" in result.stdout
    assert "smallest input: one token" in result.stdout
    document = json.loads(parity("--known-failures", str(file), "--json", **run).stdout)
    assert [entry["id"] for entry in document["known_failures"]] == ["cache_write/single-*/cache"]
    assert document["counts"]["not_verified"] == 1
    assert parity("--known-failures", str(file), "--no-known-failures", **run).exit_code == 1


def test_known_failure_that_is_gone_ends_the_run_rejected(tmp_path):
    file = tmp_path / "known.toml"
    file.write_text(STALE)
    result = parity("--known-failures", str(file))
    assert result.exit_code == 1
    assert "stale known failure: cache_write/single-*/cache (writes nothing) matches no rejection" in result.stdout


def test_document_reaches_the_workers(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("too short a text")
    chosen = ["--provider", "jnp", "--surface", "cache_write", "--scenario", "document-*", "--jobs", "2"]
    result = CliRunner().invoke(main, ["parity", *chosen, "--document", str(text)])
    assert result.exit_code == 2
    assert "has 4 words" in result.stderr


def test_no_color_is_honoured():
    coloured = parity(env={"FORCE_COLOR": "1"}).stdout
    plain = parity(env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout
    assert "\x1b[32m" in coloured
    assert "\x1b[32m" not in plain


def test_ctrl_c_ends_the_run_and_its_workers():
    arguments = ["parity", "--provider", "broken_providers:sleeps", "--surface", "cache_write", "--jobs", "2"]
    process = in_process(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if "a kernel sleeps" in line:
            break
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    try:
        stdout, stderr = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:  # else what is left of it disturbs the tests behind this one
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert time.monotonic() - start < 30
    assert process.returncode == 130
    assert stdout == ""
    assert "interrupted; nothing is decided" in stderr
    assert "Traceback" not in seen + stderr
    assert _group_is_gone(process.pid, seconds=30)


def _group_is_gone(group: int, seconds: float) -> bool:
    """Whether no process of the group is left; the dead linger until init has seen them."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_names_are_listed_one_a_line():
    runner = CliRunner()
    tables = {"surfaces": SURFACES, "scenarios": SCENARIOS, "checks": [*CHECKS, "sharding"], "families": FAMILIES}
    tables["mutants"] = HANDWRITTEN
    for kind, names in tables.items():
        assert runner.invoke(main, ["list", kind]).stdout.splitlines() == list(names)
    assert {"builtin", "jnp"} <= set(runner.invoke(main, ["list", "providers"]).stdout.split())
    assert "surfaces\tcache_write" in runner.invoke(main, ["list"]).stdout.splitlines()
    assert runner.invoke(main, ["list", "nothing"]).exit_code == 2


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (SINGLE, ["discriminates", "kv_len 15, q_len 15", "16 tokens each", "tier quick"]),
        ("cache_write", [SURFACES["cache_write"].summary, "out_cache_loc [tokens]"]),
        ("sparse_mla_decode", ["sm_scale (static, no default)", "decode batches only"]),
        ("parity", ["What it demands", "Why it matters", "How it could be fooled"]),
        ("prefix", ["prefix-aligned-p16-f32"]),
        ("causal-bound-strict", ["sparse_mla_prefill", "check parity", "- 1, step, page_size) <= position"]),
        ("page-budget-ignored", ["system: backend", "by_pages = False"]),
    ],
)
def test_show_explains_a_name(name, words):
    result = CliRunner().invoke(main, ["show", name])
    assert result.exit_code == 0
    for word in words:
        assert word in result.stdout


def test_show_refuses_what_does_not_exist():
    result = CliRunner().invoke(main, ["show", "pariti"])
    assert result.exit_code == 2
    assert "unknown name 'pariti'. Did you mean 'parity'?" in result.stderr


def test_doctor_says_versions_backend_and_which_providers_load():
    result = CliRunner().invoke(main, ["doctor"])
    assert result.exit_code == 0
    for word in ("jaxlib", "backend", "jnp", "what can be verified here (TPU interpret mode on a CPU)"):
        assert word in result.stdout


def test_doctor_says_what_cannot_be_verified_here_why_and_what_to_do(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(machine, "find_spec", lambda name: None if name in ("libtpu", "rouge") else found(name))
    told = {one.what.rpartition("(")[2].rstrip(")"): str(one) for one in machine.abilities("cpu")}
    assert told["compile"].startswith("no ") and told["compile"].endswith("pip install 'dsa-verify[tpu]'")
    assert "rouge not installed" in told["gate"] and told["serve"].startswith("yes")
    assert told["parity, mutants"].startswith("yes") and "no TPU" in told["parity, golden check"]
    native = {one.what.rpartition("(")[2].rstrip(")"): str(one) for one in machine.abilities("tpu")}
    assert native["parity, mutants"].startswith("no ") and native["parity, golden check"].startswith("yes")


def test_exit_code_of_a_crash_outranks_rejections_and_stale_entries():
    ok, bad = Verdict.accepted(), Verdict.rejected("far off")
    stale = (KnownFailure("dense_mla/*/parity", "r", "s"),)
    result = Result("jnp", "dense_mla", SINGLE, "parity", bad)
    crashed = dataclasses.replace(result, broke="the worker process died")
    fine = dataclasses.replace(result, verdict=ok)
    for results, code in [((fine,), 0), ((fine, result), 1), ((result, crashed), 3), ((), 4)]:
        assert Outcome("", 0.0, {}, results).exit_code == code
    assert Outcome("", 0.0, {}, (fine,), stale).exit_code == 1
