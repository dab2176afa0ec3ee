"""A run on the terminal: shares are those of error budgets, no word breaks, known failures are counted by kind."""

import json
import re

import pytest
from click.testing import CliRunner

from dsa_verify.checks import CHECKS, ERROR_BUDGET, share_of
from dsa_verify.cli import main
from dsa_verify.contract import SURFACES
from dsa_verify.evidence import KnownFailure, Result, Verdict
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.terminal import print_outcome

SCENARIO = "single-prefill-p16-f32"
REASON, OTHER = "reads one word past the buffer", "writes no padding"
ENTRIES = (
    KnownFailure("dense_mla/single-*/parity", REASON, "one token", link="the tracker, number 7"),
    KnownFailure("dense_mla/decode-*/parity", REASON, "one token"),
    KnownFailure("cache_write/single-*/cache", OTHER, "a step of three"),
)


def result(verdict, check="parity", surface="dense_mla", scenario=SCENARIO, provider="jnp", **more):
    return Result(provider, surface, scenario, check, verdict, 0.25, "dsa-verify parity", **more)


def forgiven(entry, **place):
    verdict = Verdict.not_verified(f"known failure: {entry.reason}")
    return result(verdict, known=entry, found="row 3 differs", **place)


def printed(capsys, *results, verbose=False):
    print_outcome(Outcome("dsa-verify parity", 1.25, {}, results), 5, verbose=verbose)
    return capsys.readouterr().out


KNOWN = (
    result(Verdict.accepted(0.5)),
    result(Verdict.not_verified("no chip"), "races"),
    forgiven(ENTRIES[2], surface="cache_write", check="cache"),
    forgiven(ENTRIES[0]),
    forgiven(ENTRIES[1], scenario="decode-one-d16-bf16"),
    forgiven(ENTRIES[1], scenario="decode-one-d16-bf16", check="lse"),
    forgiven(ENTRIES[0], provider="mine"),
)


def test_the_worst_share_is_that_of_error_budgets(capsys):
    text = printed(capsys, result(Verdict.accepted(0.25)), result(Verdict.accepted(1.0), "traffic"))
    assert "2/0/0 0.25" in text
    assert "1.00" not in text
    assert "1/0/0 \n" in printed(capsys, result(Verdict.accepted(1.0), "traffic"))


def test_bytes_are_the_only_share_of_something_else():
    assert {name for name in CHECKS if share_of(name) != ERROR_BUDGET} == {"traffic"}
    assert share_of("sharding") == ERROR_BUDGET


@pytest.mark.parametrize("columns", ["60", "80", "100", "120", "200"])
@pytest.mark.parametrize("checks", [1, 1234])
def test_no_word_and_no_number_is_broken_whatever_the_screen(capsys, monkeypatch, columns, checks):
    monkeypatch.setenv("COLUMNS", columns)
    scenarios = (SCENARIO, "document-long-p16-f32", "chunk-off-page-p16-f32")
    results = [result(Verdict.accepted(0.125), surface=s, scenario=name) for s in SURFACES for name in scenarios]
    text = printed(capsys, *results * checks)
    table = text[: text.index("cells:")]
    assert "…" not in table
    assert max(map(len, table.splitlines())) <= int(columns)
    words = set(re.findall(r"[a-z_]+", table)) - {"provider", "jnp"}
    assert words == {part for name in SURFACES for part in name.split("_")} | {
        "family", "all", "single", "document", "chunked",
    }  # fmt: skip
    assert len(re.findall(rf"\b{checks}/0/0 0\.12", table)) == len(SURFACES) * len(scenarios)
    assert len(re.findall(rf"\b{3 * checks}/0/0 0\.12", table)) == len(SURFACES)


def test_the_last_line_counts_known_failures(capsys):
    last = printed(capsys, *KNOWN).splitlines()[-1]
    assert last == "accepted: 1 accepted, 0 rejected, 6 not verified (5 known failures) checks of 4 cases in 1.2 s"
    last = printed(capsys, result(Verdict.accepted(0.5))).splitlines()[-1]
    assert last == "accepted: 1 accepted, 0 rejected, 0 not verified checks of 1 case in 1.2 s"


def test_each_kind_of_known_failure_is_one_line(capsys):
    lines = printed(capsys, *KNOWN).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("known failures"))
    assert "-v" in lines[at]
    assert lines[at + 1 : at + 5] == [
        f"     3  {REASON} (jnp dense_mla)",
        f"     1  {OTHER} (jnp cache_write)",
        f"     1  {REASON} (mine dense_mla)",
        "",
    ]


def test_verbose_tells_where_each_known_failure_shows(capsys):
    lines = printed(capsys, *KNOWN, verbose=True).splitlines()
    at = lines.index(f"     3  {REASON} (jnp dense_mla)")
    assert lines[at + 1 : at + 7] == [
        "        smallest input: one token",
        "        the tracker, number 7",
        "           1  dense_mla/single-*/parity",
        "              found: row 3 differs",
        "           2  dense_mla/decode-*/parity",
        "              found: row 3 differs",
    ]


def test_merge_prints_the_same_with_its_own_option(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(Outcome("dsa-verify parity", 1.25, {}, KNOWN).document()))
    short, long = (CliRunner().invoke(main, ["report", "merge", *more, str(path)]) for more in ([], ["--verbose"]))
    assert (short.exit_code, long.exit_code) == (0, 0), short.output + long.output
    assert "smallest input" not in short.stdout
    assert "smallest input: a step of three" in long.stdout
    assert short.stdout.splitlines()[-1] == long.stdout.splitlines()[-1]
