"""The pytest plugin: cases are tests, rejections come without tracebacks, and nothing verified is not green."""

import xml.etree.ElementTree as ElementTree
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
SINGLE = "single-prefill-p16-f32"
PLUGIN = [] if entry_points(group="pytest11", name="dsa_verify") else ["-p", "dsa_verify.plugin"]


@pytest.fixture
def run(pytester, monkeypatch):
    """Run the real parity test file in a process of its own."""
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{Path(__file__).parent}")
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeini("[pytest]\nmarkers = parity: as in this repository")
    pytester.makepyfile(test_parity=(ROOT / "tests/parity/test_parity.py").read_text())

    def run(*arguments, providers=("jnp",), scenarios=(SINGLE,)):
        chosen = [f"--dsa-provider={name}" for name in providers] + [f"--dsa-scenario={name}" for name in scenarios]
        settings = ["--strict-markers", "-W", "error", "--dsa-surface=cache_write", "-v"]
        return pytester.runpytest_subprocess(*PLUGIN, *settings, *chosen, *arguments)

    return run


def test_ids_versions_and_junit(run, pytester):
    result = run("-m", "parity", "--junitxml=junit.xml", scenarios=[SINGLE, "decode-one-d16-bf16"])
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            f"*test_parity[[]jnp-cache_write-{SINGLE}[]] PASSED*",
            "*test_parity[[]jnp-cache_write-decode-one-d16-bf16[]] PASSED*",
            "dsa-verify *: jax *; provider=*jnp*, surface=*cache_write*, *tier=quick",
        ]
    )
    properties = ElementTree.parse(pytester.path / "junit.xml").iterfind(".//property[@name='check']")
    assert "cache: accepted" in {item.get("value") for item in properties}


def test_rejection_fails_in_full_without_a_traceback(run):
    result = run(providers=["broken_providers:nan", "broken_providers:raises"])
    assert result.ret == 1
    result.assert_outcomes(failed=2)
    lines = result.outlines
    assert any("request 0, position 0" in line for line in lines)
    assert f"dsa-verify parity --provider broken_providers:nan --surface cache_write --scenario {SINGLE}" in lines
    assert any("the kernel raised ValueError: no such layout" in line for line in lines)
    assert not any("plugin.py" in line or "Traceback" in line for line in lines)


def test_nothing_verified_is_not_green(run):
    result = run("-rs", providers=["broken_providers:empty"])
    assert result.ret == 4
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(
        ["*not verified, and why*", "     1  its kernels need a SparseCore", "nothing was verified"]
    )
    assert any("not verified: its kernels need a SparseCore" in line for line in result.outlines)


def test_other_tests_that_ran_keep_their_exit_status(run, pytester):
    pytester.makepyfile(test_other="def test_other(): pass")
    result = run(providers=["broken_providers:empty"])
    assert result.ret == 0
    result.assert_outcomes(skipped=1, passed=1)


def test_known_failures_skip_and_stale_ones_end_the_session_rejected(run, pytester):
    entry = '[[failure]]\nid = "cache_write/{}/cache"\nreason = "writes nothing"\nsmallest = "one token"\n'
    pytester.makefile(".toml", known=entry.format("single-*") + entry.format("decode-one-*"))
    result = run("--dsa-known-failures=known.toml", providers=["broken_providers:nan"])
    assert result.ret == 0
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["     1  known failure: writes nothing"])
    result = run("--dsa-known-failures=known.toml", "-n2", providers=["jnp"])
    assert result.ret == 1
    result.stdout.fnmatch_lines(["stale known failure: cache_write/single-[*]/cache matches no rejection any more*"])


@pytest.mark.parametrize("distribute", [["-n2"], ["-p", "no:xdist"]])
def test_cases_of_one_shape_share_a_worker(run, distribute):
    scenarios = ["single-*-p16-f32", "decode-page-edges-d16-bf16", "decode-one-d16-bf16", "padding-tokens-p16-f32"]
    result = run(*distribute, scenarios=scenarios)
    result.assert_outcomes(passed=5)
    workers: dict[str, set[str]] = {}
    for line in result.outlines:
        if "PASSED" in line and line.startswith("[gw"):
            workers.setdefault(line.rsplit("-", 2)[1], set()).add(line[:5])
    assert all(len(names) == 1 for names in workers.values())
    assert len(workers) == (0 if "no:xdist" in distribute else 2)


def test_unknown_name_is_one_clear_error(run):
    result = run(scenarios=["single-prefil-p16-f32"])
    assert result.ret == 2
    result.stdout.fnmatch_lines(["unknown scenario 'single-prefil-p16-f32'. Did you mean *"])
    assert not any("plugin.py" in line for line in result.outlines)


def test_provider_that_cannot_be_loaded_fails_with_its_reason(run):
    result = run(providers=["broken_at_import:provider"])
    assert result.ret == 1
    assert any("built for another JAX" in line for line in result.outlines)
    assert not any("Traceback" in line for line in result.outlines)


FOREIGN = """
import pytest

def pytest_addoption(parser):
    for name in ("tier", "provider", "surface", "scenario", "document", "provider-path", "known-failures"):
        parser.addoption(f"--{name}", default="theirs")
    parser.addini("tier", "a setting of theirs", default="theirs")

def pytest_configure(config):
    config.addinivalue_line("markers", "parity: even and odd")

@pytest.fixture(params=[0, 1])
def parity_case(request):
    return request.param
"""
FOREIGN_TEST = """
import sys
import pytest

@pytest.mark.parity
def test_even(parity_case, pytestconfig):
    assert pytestconfig.getoption("--tier") == "mine"
    assert parity_case in (0, 1)

def test_nothing_of_the_suite_was_imported():
    assert not {name for name in sys.modules if name in ("jax", "numpy") or name.startswith("dsa_verify.")} - {
        "dsa_verify.plugin", "dsa_verify.errors"
    }
"""


@pytest.mark.parametrize("distribute", [["-p", "no:xdist"], ["-n2"], ["-n2", "--dist", "loadgroup"]])
def test_foreign_project_is_left_as_it_is(pytester, monkeypatch, distribute):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makeconftest(FOREIGN)
    pytester.makepyfile(FOREIGN_TEST)
    result = pytester.runpytest_subprocess(*PLUGIN, "--strict-markers", "-W", "error", "--tier=mine", *distribute)
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    assert not any("dsa" in line for line in result.outlines if not line.startswith(("plugins:", "rootdir:")))
