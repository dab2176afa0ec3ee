"""A history: runs are appended whole, and it says since when, between which versions, and what flips by itself."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Result, Verdict
from dsa_verify.report import history, trend
from dsa_verify.report.outcome import Outcome
from dsa_verify.run.partition import Shard

DAY = datetime(2026, 1, 1, tzinfo=UTC)
VERDICTS = {"a": Verdict.accepted, "r": lambda share: Verdict.rejected("far off", share)}


def run(verdict="a", share=0.25, jax="0.1", check="parity", seconds=1.0, **more):
    made = Verdict.not_verified("no chip") if verdict == "n" else VERDICTS[verdict](share)
    provenance = {"jax": jax, "providers": {"jnp": "0"}}
    return Outcome("", seconds, provenance, (Result("jnp", "dense_mla", "single", check, made),), **more)


def written(path, verdicts, versions=None, shares=None):
    """A history of one check, one letter a run; returns its line."""
    for index, letter in enumerate(verdicts):
        share = shares[index] if shares else 0.25
        version = versions[index] if versions else "0"
        history.append(path, run(letter, share, f"0.{version}", seconds=index), DAY.replace(day=index + 1))
    (line,) = history.lines(path)
    return line


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.db"


def command(*arguments):
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def test_a_run_is_read_back_as_it_was_appended(path):
    assert history.append(path, run("a", 0.125), DAY) == 1
    assert history.append(path, run("n"), DAY) == 2
    (place, points), first = next(history.lines(path)), history.runs(path)[0]
    assert str(place) == "jnp dense_mla single parity"
    assert [(p.run.id, p.status, p.share, p.reason) for p in points] == [
        (1, "accepted", 0.125, ""), (2, "not verified", None, "no chip"),
    ]  # fmt: skip
    assert first.versions == {"jax": "0.1", "providers.jnp": "0"}
    assert (first.at, first.exit_code) == ("2026-01-01T00:00:00+00:00", 0)
    assert history.runs(path)[1].exit_code == 4


def test_the_same_run_is_appended_once(path):
    assert history.append(path, run()) == history.append(path, run()) == 1
    assert history.append(path, run(seconds=2.0)) == 2
    assert len(history.runs(path)) == 2


def test_a_run_that_cannot_be_written_whole_is_not_written_at_all(path):
    twice = run()
    twice = Outcome("", 0.0, twice.provenance, twice.results * 2)
    with pytest.raises(ConfigError, match="UNIQUE constraint failed"):
        history.append(path, twice)
    history.prepare(path)
    assert history.runs(path) == []
    assert list(history.lines(path)) == []


def test_shards_and_soaks_have_no_history(path):
    with pytest.raises(ConfigError, match="report merge --history"):
        history.append(path, run(shard=Shard(1, 2, "x")))
    with pytest.raises(ConfigError, match="a soak has no history"):
        history.append(path, Outcome("", 0.0, {"seed": 1}, ()))
    assert not path.exists()


@pytest.mark.parametrize("arguments", [["--tier", "soak"], ["--shard", "1/2"]])
def test_they_are_refused_before_they_run(path, arguments):
    found = CliRunner().invoke(main, ["parity", "--provider", "jnp", *arguments, "--history", str(path)])
    assert (found.exit_code, found.stdout) == (2, "")
    assert "neither a soak nor a shard has a history" in found.stderr
    assert not path.exists()


def test_other_files_are_refused_and_left_as_they_are(path):
    path.write_text("a text that is no database, and long enough to have no header of one")
    with pytest.raises(ConfigError, match="file is not a database"):
        history.append(path, run())
    path.unlink()
    with closing(sqlite3.connect(path)) as file:
        file.execute("CREATE TABLE precious (x)")
    with pytest.raises(ConfigError, match="another program's database"):
        history.append(path, run())
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT name FROM sqlite_master").fetchall() == [("precious",)]


def test_another_version_of_the_schema_is_refused(path):
    history.append(path, run())
    with closing(sqlite3.connect(path)) as file:
        file.execute("PRAGMA user_version = 2")
    with pytest.raises(ConfigError, match="is version 2, expected a history of version 1"):
        history.runs(path)


@pytest.mark.parametrize("asked", ["trend", "bisect"])
def test_a_history_that_is_not_there_exits_2_and_is_not_made(path, asked):
    found = command(asked, "--history", path)
    assert found.exit_code == 2
    assert "there is no history at" in found.stderr
    assert not path.exists()


@pytest.mark.parametrize(
    ("verdicts", "good", "bad"),
    [("aar", 2, 3), ("aarrr", 2, 3), ("ranr", 2, 4), ("arnr", 1, 2), ("rr", None, 1), ("nr", None, 2)],
)
def test_a_fall_lies_between_the_last_good_and_the_first_bad_run(path, verdicts, good, bad):
    fall = trend.fall(written(path, verdicts))
    assert fall is not None
    assert (fall.last_good.id if fall.last_good else None, fall.first_bad.id) == (good, bad)


@pytest.mark.parametrize("verdicts", ["a", "ra", "arn"])
def test_what_the_last_run_does_not_reject_has_not_fallen(path, verdicts):
    assert trend.fall(written(path, verdicts)) is None


@pytest.mark.parametrize(
    ("verdicts", "versions", "flips"),
    [
        ("ara", "000", True),
        ("ana", "000", True),
        ("ara", "010", False),
        ("ar", "00", False),
        ("arar", "0101", False),
        ("aarrr", "00000", False),
        ("arara", "01001", False),
        ("ararr", "00011", True),
    ],
)
def test_flaky_is_back_and_forth_under_equal_versions(path, verdicts, versions, flips):
    assert (trend.flaky(written(path, verdicts, versions)) is not None) == flips


def test_a_share_moved_when_it_last_changed(path):
    moved = trend.move(written(path, "aaaa", shares=[0.25, 0.5, 0.75, 0.75]))
    assert moved is not None
    assert (moved.before.run.id, moved.after.run.id, moved.size) == (2, 3, 0.25)


def test_a_share_that_is_equal_to_the_last_bit_did_not_move(path):
    assert trend.move(written(path, "anan", shares=[0.25] * 4)) is None


def test_trend_prints_first_bad_run_flaky_checks_and_moves(path):
    written(path, "ara" + "r", "0001", shares=[0.25, 2.0, 0.25, 4.0])
    found = command("trend", "--history", path)
    assert found.exit_code == 0, found.output
    lines = found.stdout.splitlines()
    assert "run 2: 1 check accepted -> rejected" in lines
    place = "jnp dense_mla single parity"
    since = "last accepted in run 3 (2026-01-03T00:00:00+00:00), rejected since run 4 (2026-01-04T00:00:00+00:00)"
    assert f"rejected: {place}: {since}" in lines
    assert f"flaky: {place}: equal versions, runs 1 accepted, 2 rejected, 3 accepted" in lines
    assert f"share: {place}: 0.25 in run 3 -> 4 in run 4 (2026-01-04T00:00:00+00:00)" in lines
    document = json.loads(command("trend", "--history", path, "--json").stdout)
    assert document["schema"] == 1
    assert document["rejected"][0]["last_good"] == {"run": 3, "at": "2026-01-03T00:00:00+00:00"}
    assert [one["count"] for one in document["verdicts"]] == [1, 1, 1]
    assert len(document["flaky"]) == len(document["moved"]) == 1


def test_a_share_of_bytes_is_not_called_one_of_an_error_budget(path):
    for day, share in ((1, 0.5), (2, 1.0)):
        history.append(path, run("a", share, check="traffic", seconds=day), DAY.replace(day=day))
    lines = command("trend", "--history", path).stdout.splitlines()
    assert lines[0].startswith("share of the bytes needed: jnp dense_mla single traffic: 0.5 in run 1 -> 1 in run 2")


def test_bisect_names_what_changed_between_good_and_bad(path):
    written(path, "aar", "001")
    found = command("bisect", "--history", path)
    assert found.stdout.splitlines()[1:] == [
        "  jax 0.0 -> 0.1", "  rejected: jnp dense_mla single parity: far off"
    ]  # fmt: skip
    document = json.loads(command("bisect", "--history", path, "--json").stdout)
    assert document["intervals"][0]["changed"] == ["jax 0.0 -> 0.1"]


def test_bisect_says_when_no_version_changed_and_when_nothing_is_rejected(path):
    written(path, "ar")
    assert "no version changed" in command("bisect", "--history", path).stdout
    history.append(path, run("a", jax="0.0", seconds=9.0))
    assert command("bisect", "--history", path).stdout == "bisect: no check is rejected in its last run\n"


def test_falls_between_the_same_runs_stand_together(path):
    for index, letters in enumerate(["aa", "rr", "rr"]):
        results = tuple(
            Result("jnp", "dense_mla", "single", check, VERDICTS[letter](None))
            for check, letter in zip(("parity", "cache"), letters, strict=True)
        )
        history.append(path, Outcome("", float(index), {"jax": "1"}, results))
    falls = [fall for line in history.lines(path) if (fall := trend.fall(line))]
    ((good, bad, some),) = trend.by_interval(falls)
    assert good is not None
    assert (good.id, bad.id, len(some)) == (1, 2, 2)


def test_parity_appends_its_run_and_refuses_a_bad_file_before_it_runs(path, tmp_path):
    chosen = ["--provider", "jnp", "--surface", "cache_write", "--scenario", "single-prefill-p16-f32", "--jobs", "1"]
    found = CliRunner().invoke(main, ["parity", *chosen, "--history", str(path)])
    assert found.exit_code == 0, found.output
    assert "run 1 of" in found.stderr
    assert len(list(history.lines(path))) == 6
    other = tmp_path / "text"
    other.write_text("a text that is no database, and long enough to have no header of one")
    found = CliRunner().invoke(main, ["parity", *chosen, "--history", str(other)])
    assert (found.exit_code, found.stdout) == (2, "")
