"""The campaign: kills, survivors, dead loops, what is kept, what is explained; with mutants of its own."""

import json
from dataclasses import dataclass, replace

import pytest
from click.testing import CliRunner

from dsa_verify.batch.table import SCENARIOS
from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.mutants import campaign
from dsa_verify.mutants.campaign import MutantJob, MutantResult, try_mutant
from dsa_verify.mutants.digest import _meaning, code_digest
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.mutants.score import Score, explanations
from dsa_verify.mutants.systematic import systematic_mutants
from dsa_verify.run import suite, workers


def result_of(name, *killed_by, kind="operator"):
    return MutantResult(name, kind, "builtin", "dense_mla", killed_by)


def test_all_handwritten_mutants_are_shown_by_the_quick_tier():
    assert {SCENARIOS[mutant.scenario].tier for mutant in KERNEL_MUTANTS.values()} == {"quick"}


def test_killed_where_it_is_expected_to_be():
    found = try_mutant(MutantJob("no-relu"), "quick", deep=False)
    assert found.killed_by == ("selection",)
    assert (found.surface, found.scenario) == ("index_topk", "single-extend-p16-f32")
    assert "rounding band" in found.reason


def test_systematic_mutant_is_killed_on_the_first_surface_that_shows_it():
    name = next(
        name for name in systematic_mutants() if name.startswith("cache_write.TileWriter.wait_write/wait dropped")
    )
    found = try_mutant(MutantJob(name), "quick", deep=False)
    assert found.killed and found.surface == "cache_write"


@dataclass(frozen=True)
class Right:
    """A mutant that is none: nothing may kill it."""

    name = "right"
    kind = "none"
    provider = "jnp"
    surfaces = ("cache_write",)
    scenario = None
    fingerprint = ""

    def load(self):
        from dsa_verify.kernels.providers import load_provider

        return load_provider("jnp")


@dataclass(frozen=True)
class Unloadable(Right):
    def load(self):
        raise TypeError("no such thing")


def test_kernel_that_is_right_survives(monkeypatch):
    monkeypatch.setattr(campaign, "named", lambda name: Right())
    monkeypatch.setattr(campaign, "_by_bucket", lambda *_: (("single-extend-p16-f32",), ("decode-one-d16-bf16",)))
    assert not try_mutant(MutantJob("right"), "quick", deep=True).killed


def test_mutant_that_cannot_be_imported_is_killed_by_that(monkeypatch):
    monkeypatch.setattr(campaign, "named", lambda name: Unloadable())
    assert try_mutant(MutantJob("right"), "quick", deep=True).killed_by == ("import",)


def test_attempts_begin_where_it_was_killed_before_and_grow_dearer():
    mutant = replace(KERNEL_MUTANTS["scale-one-percent"], scenario="decode-one-d16-bf16")
    places = list(campaign._cheap_attempts(mutant, ("dense_mla", "masked-rows-p16-f32", ("parity",)), "quick"))
    assert places[0] == ("dense_mla", "masked-rows-p16-f32", ("parity",))
    assert places[1][:2] == ("sparse_mla_decode", "decode-one-d16-bf16")
    assert set(places[2][2]) == set(campaign.CHEAP)
    places += campaign._dear_attempts(mutant, "quick")
    assert {SCENARIOS[scenario].tier for _, scenario, _ in places} == {"quick"}
    quick = {case.scenario for case in suite.plan(["builtin"], ["sparse_mla_decode"])}
    assert {scenario for _, scenario, checks in places if set(checks) >= set(campaign.PLAIN)} >= quick


@pytest.mark.parametrize(
    ("deaths", "killed_by"), [((-14,), ("timeout",)), ((-15, -9), ("crash",)), ((-15, None), ("selection",))]
)
def test_dead_loop_counts_as_killed_and_a_crash_only_if_it_repeats(monkeypatch, tmp_path, deaths, killed_by):
    right = MutantResult("no-relu", "03", "jnp", "index_topk", ("selection",))
    answers = iter([right if code is None else workers.WorkerDied(code) for code in deaths])
    monkeypatch.setattr(campaign.workers, "run_groups", lambda groups, *_: ((g[0], next(answers)) for g in groups))
    (found,) = campaign.run([KERNEL_MUTANTS["no-relu"]], "quick", 1, tmp_path)
    assert found.killed_by == killed_by


def test_alarm_ends_a_worker_that_does_not_come_back():
    ((_, answer),) = workers.run_groups([[0]], _never_returns, 1)
    assert isinstance(answer, workers.WorkerDied) and answer.exit_code == -14


def _never_returns(_):
    import signal
    import time

    signal.setitimer(signal.ITIMER_REAL, 0.2)
    time.sleep(60)


def test_what_is_known_is_not_tried_again_until_something_changes(monkeypatch, tmp_path):
    mutant, tried = KERNEL_MUTANTS["no-relu"], []

    def run_groups(groups, work, jobs):
        for ((order,),) in [(group,) for group in groups]:
            tried.append(order)
            yield order, MutantResult("no-relu", "03", "jnp", "index_topk", ("selection",), "single-extend-p16-f32")

    monkeypatch.setattr(campaign.workers, "run_groups", run_groups)
    first = campaign.run([mutant], "quick", 1, tmp_path)
    assert campaign.run([mutant], "quick", 1, tmp_path) == first
    assert len(tried) == 1
    campaign.run([mutant], "full", 1, tmp_path)
    assert tried[1].hint == ("index_topk", "single-extend-p16-f32", ("selection",))


def test_torn_record_is_as_good_as_none(tmp_path):
    campaign._keep(tmp_path, "key", result_of("x", "parity"))
    campaign._file(tmp_path, "x").write_text("{", "utf-8")
    assert campaign._kept(tmp_path, "x", "key") == (None, None)


def test_digest_sees_code_and_not_prose():
    assert _meaning('def f():\n    """One."""\n    return 1') == _meaning("def f():\n    return 1  # two")
    assert _meaning("x = 1") != _meaning("x = 2")
    assert code_digest("jnp", "a") != code_digest("jnp", "b") != code_digest("builtin", "b")


def test_score_counts_explained_survivors_as_not_killed():
    killed = [result_of(str(n), "parity") for n in range(19)]
    score = Score([], [*killed, result_of("same")], {"same": "because"}, {"same"})
    assert score.accepted and score.share == 0.95
    assert score.document()["systematic"] == {"killed": 19, "total": 20, "equivalent": 1}
    assert not Score([], [*killed[1:], result_of("same")], {"same": "because"}, {"same"}).accepted


def test_unexplained_survivor_and_stale_explanation_fail():
    assert not Score([result_of("alive")], [], {}, {"alive"}).accepted
    assert not Score([result_of("dead", "parity")], [], {"dead": "because"}, {"dead"}).accepted
    assert not Score([result_of("dead", "parity")], [], {"gone": "because"}, {"dead"}).accepted


def test_shipped_explanations_are_of_mutants_that_exist(tmp_path):
    assert set(explanations()) <= set(systematic_mutants())
    bad = tmp_path / "e.toml"
    bad.write_text('a = " "', "utf-8")
    with pytest.raises(ConfigError, match="no reason"):
        explanations(bad)


def test_command_prints_the_document_of_the_design():
    arguments = ["mutants", "--mutant", "no-relu", "--mutant", "padding-wraps", "--jobs", "1", "--no-cache", "--json"]
    result = CliRunner().invoke(main, arguments)
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert {"schema", "command", "seconds", "provenance"} <= set(document)
    assert document["handwritten"] == {"killed": 2, "total": 2}
    assert document["systematic"] == {"killed": 0, "total": 0, "equivalent": 0}
    for record in document["mutants"]:
        assert {"name", "kind", "provider", "surface", "killed_by", "scenario"} <= set(record)


def test_command_refuses_what_matches_nothing():
    assert CliRunner().invoke(main, ["mutants", "--mutant", "nope"]).exit_code == 2
    assert CliRunner().invoke(main, ["mutants", "--surface", "nope"]).exit_code == 2
