"""Documents of runs: read back as they were written, merged only where they were parts of one run."""

import dataclasses
import json

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import Heatmap, HeatmapRow, KnownFailure, Result, Verdict
from dsa_verify.report.merge import merge
from dsa_verify.report.outcome import Outcome
from dsa_verify.report.reading import outcome, read
from dsa_verify.run.partition import Shard

GOOD, BAD = Verdict.accepted(0.5), Verdict.rejected("far off", 3.0)
DRAWN = Heatmap("selection", "page", 1, 1, 14, (HeatmapRow(0, 141, "..==-.=..+", "1 expected and missing"),))
ENTRY = KnownFailure("dense_mla/single-*/parity", "rounds twice", "one token", provider="jnp")
PROVENANCE = {"jax": "1", "providers": {"jnp": "0", "builtin": "0"}}


def result(scenario="single-prefill-p16-f32", verdict=GOOD, surface="dense_mla", provider="jnp", **more):
    return Result(provider, surface, scenario, "parity", verdict, 0.25, "dsa-verify parity", **more)


def run(*results, **changes):
    return dataclasses.replace(Outcome("dsa-verify parity", 1.0, PROVENANCE, results), **changes)


FORGIVEN = result(verdict=Verdict.not_verified("known failure: rounds twice"), known=ENTRY, found="far off")


@pytest.mark.parametrize(
    "one",
    [
        run(),
        run(result(), result(verdict=BAD), FORGIVEN, seen={ENTRY: True}),
        run(FORGIVEN),
        run(result(), stale=(ENTRY,), seen={ENTRY: False}),
        run(result(verdict=BAD, broke="Traceback")),
        run(result(verdict=dataclasses.replace(BAD, heatmap=DRAWN))),
        run(result(verdict=Verdict.rejected("nan", float("nan"))), shard=Shard(2, 3, "abc")),
    ],
)
def test_a_document_is_read_back_as_it_was_written(tmp_path, one):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(one.document(), allow_nan=False))
    back = read(path)
    assert back.document() == one.document()
    assert [each.verdict.heatmap for each in back.results] == [each.verdict.heatmap for each in one.results]
    assert back.exit_code == one.exit_code
    assert back.known == one.known


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "cannot read"),
        ("[]", "holds no parity run"),
        ('{"schema": 1, "mutants": []}', "holds no parity run"),
        (json.dumps({**run().document(), "schema": 2}), "has schema 2, expected 1"),
        (json.dumps({**run().document(), "results": [{"provider": "jnp"}]}), "is damaged: KeyError 'verdict'"),
        (json.dumps({**run().document(), "stale": ["an unknown one"]}), "is damaged"),
    ],
)
def test_what_is_no_document_of_a_run_is_refused(tmp_path, text, message):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("change", [{"kind": "weather"}, {"depth": 3}, {"rows": [{"request": 0}]}])
def test_a_heatmap_that_cannot_be_drawn_is_damage(tmp_path, change):
    document = run(result(verdict=dataclasses.replace(BAD, heatmap=DRAWN))).document()
    document["results"][0]["heatmap"] |= change  # pyright: ignore[reportIndexIssue]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match="is damaged"):
        read(path)


def test_a_heatmap_stays_when_runs_are_merged():
    bad = result("several-unequal-p16-f32", dataclasses.replace(BAD, heatmap=DRAWN))
    whole = merge({"a": run(result()), "b": run(bad)}, "merge")
    assert {one.scenario: one.verdict.heatmap for one in whole.results}[bad.scenario] == DRAWN


def test_a_verdict_that_does_not_exist_is_no_document():
    document = run(result()).document()
    document["results"][0]["verdict"] = "fine"  # pyright: ignore[reportIndexIssue]
    with pytest.raises(ValueError, match="fine"):
        outcome(document)


def test_results_stand_in_plan_order_whatever_the_order_of_the_files():
    wanted = [
        result("single-prefill-p16-f32"),
        result("decode-one-d16-bf16"),
        result("single-prefill-p16-f32", surface="cache_write"),
        result("single-prefill-p16-f32", provider="builtin"),
        result("single-prefill-p16-f32", provider="builtin", surface="cache_write"),
        result("soak:1:2", provider="builtin", surface="cache_write"),
    ]
    for order in ([0, 3, 5], [5, 3, 0]), ([4, 1, 2], [2, 4, 1]):
        others = [i for i in range(6) if i not in order[0]]
        one, two = run(*(wanted[i] for i in order[1])), run(*(wanted[i] for i in others))
        assert merge({"b": one, "a": two}, "").results == tuple(wanted)


def test_checks_of_a_case_keep_their_order():
    names = ["races", "parity", "cache"]
    first = run(*(dataclasses.replace(result(), check=name) for name in names))
    assert [r.check for r in merge({"a": run(result(surface="cache_write")), "b": first}, "").results[:3]] == names


def test_counts_seconds_and_exit_code_are_those_of_all():
    one, two, three = run(result()), run(result("decode-one-d16-bf16", BAD)), run(FORGIVEN)
    whole = merge({"a": one, "b": two}, "dsa-verify report merge")
    assert whole.counts == {"accepted": 1, "rejected": 1, "not verified": 0}
    assert (whole.seconds, whole.exit_code, whole.command) == (2.0, 1, "dsa-verify report merge")
    assert merge({"a": three}, "").exit_code == 4
    assert merge({"b": two, "c": three}, "").known == {ENTRY: [FORGIVEN]}
    crashed = run(result("decode-one-d16-bf16", BAD, broke="Traceback"))
    assert merge({"a": one, "b": crashed}, "").exit_code == 3


@pytest.mark.parametrize(("shown", "code"), [(True, 0), (False, 1)])
def test_a_failure_is_stale_only_if_no_run_shows_it(shown, code):
    one = run(result(), stale=(ENTRY,), seen={ENTRY: False})
    two = run(result("decode-one-d16-bf16"), seen={ENTRY: shown})
    for runs in ({"a": one, "b": two}, {"b": two, "a": one}):
        assert merge(runs, "").exit_code == code
        assert merge(runs, "").stale == (() if shown else (ENTRY,))


OTHER = result("decode-one-d16-bf16")


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ({"a": run(result()), "b": run(OTHER, provenance={**PROVENANCE, "jax": "2"})}, "jax is '2' in b and '1' in a"),
        ({"a": run(result()), "b": run(OTHER, provenance={})}, "jax is None in b and '1' in a"),
        ({"a": run(result()), "b": run(OTHER, result())}, "single-prefill-p16-f32 is in a and in b"),
        ({"a": run(result(), shard=Shard(1, 2, "x"))}, "shard 2 of 2 is missing"),
        ({"a": run(result(), shard=Shard(1, 2, "x")), "b": run(OTHER)}, "b is not a shard of the plan of a"),
        (
            {"a": run(result(), shard=Shard(1, 2, "x")), "b": run(OTHER, shard=Shard(2, 2, "y"))},
            "b is not a shard of the plan of a",
        ),
        (
            {"a": run(result(), shard=Shard(1, 2, "x")), "b": run(OTHER, shard=Shard(2, 3, "x"))},
            "b is not a shard of the plan of a",
        ),
    ],
)
def test_what_was_not_one_run_is_refused(runs, message):
    with pytest.raises(ConfigError, match=message):
        merge(runs, "")


def test_the_command_refuses_in_one_line_with_exit_2(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(run(result()).document()))
    for arguments in (["merge", str(path), str(path)], ["merge", str(path), __file__], ["merge"]):
        found = CliRunner().invoke(main, ["report", *arguments])
        assert (found.exit_code, found.stdout) == (2, "")
        assert "Traceback" not in found.stderr
