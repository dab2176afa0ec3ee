"""Shards: every case is in one, they are even, and what they find together is what one run finds."""

import json

import pytest
from click.testing import CliRunner

from dsa_verify.cli import main
from dsa_verify.errors import ConfigError
from dsa_verify.evidence import KnownFailure, Result, Verdict
from dsa_verify.run import partition, suite

PLAN = suite.plan()
CHOSEN = [
    "--surface",
    "cache_write",
    "--scenario",
    "single-*-p16-*",
    "--scenario",
    "decode-one-d16-bf16",
    "--jobs",
    "1",
]


def parity(*arguments, provider="jnp"):
    return CliRunner().invoke(main, ["parity", "--provider", provider, *CHOSEN, "--json", *arguments])


def merged(tmp_path, *documents, arguments=("--json",)):
    paths = []
    for index, text in enumerate(documents):
        paths.append(tmp_path / f"{index}.json")
        paths[-1].write_text(text)
    return CliRunner().invoke(main, ["report", "merge", *map(str, paths), *arguments])


def comparable(document):
    """A document without what differs between any two runs: how long things took, and what was typed."""
    results = [{key: value for key, value in record.items() if key != "seconds"} for record in document["results"]]
    rest = {key: value for key, value in document.items() if key not in ("seconds", "command", "shard")}
    return {**rest, "results": results}


@pytest.mark.parametrize("of", [1, 2, 3, 7, 50])
def test_every_case_is_in_one_shard_in_plan_order(of):
    dealt = partition.divide(PLAN, of)
    assert sorted((case for one in dealt for case in one), key=PLAN.index) == list(PLAN)
    assert all(list(one) == sorted(one, key=PLAN.index) for one in dealt)
    assert all(dealt)


@pytest.mark.parametrize("of", [2, 4, 8])
def test_shards_are_even_by_what_cases_took(of):
    seconds = {case.name: 0.1 + (index * 7919 % 101) / 10 for index, case in enumerate(PLAN)}
    loads = [sum(seconds[case.name] for case in one) for one in partition.divide(PLAN, of, seconds)]
    # A piece is at most half of a fair share, and the shard that gets the last piece was the lightest.
    assert max(loads) <= 1.5 * sum(loads) / of


def test_one_slow_case_gets_a_shard_of_its_own():
    cases = suite.plan(["jnp"], ["cache_write"])
    seconds = {case.name: 1.0 for case in cases} | {cases[3].name: 1000.0}
    dealt = partition.divide(cases, 2, seconds)
    assert (cases[3],) in dealt


def test_a_group_that_is_light_stays_together():
    dealt = partition.divide(PLAN, 4)
    homes: dict[tuple, set[int]] = {}
    for index, one in enumerate(dealt):
        for case in one:
            homes.setdefault(case.group, set()).add(index)
    assert all(len(home) == 1 for home in homes.values())


def test_as_many_shards_as_cases_have_one_each():
    cases = suite.plan(["jnp"], ["cache_write"], ["single-*"])
    assert [len(one) for one in partition.divide(cases, len(cases))] == [1] * len(cases)
    with pytest.raises(ConfigError, match=f"ask for at most {len(cases)}"):
        partition.divide(cases, len(cases) + 1)


def test_the_digest_tells_cuts_apart():
    cases = suite.plan(["jnp"], ["cache_write"])
    uneven = {case.name: float(index + 1) ** 2 for index, case in enumerate(cases)}
    one, two, other = (
        partition.take(cases, 1, 2)[0],
        partition.take(cases, 2, 2)[0],
        partition.take(cases, 1, 2, uneven)[0],
    )
    assert one.plan == two.plan != other.plan


def test_durations_are_the_sum_over_the_checks_of_a_case():
    results = [Result("jnp", "dense_mla", "a", check, Verdict.accepted(), seconds) for check, seconds in
               [("parity", 1.5), ("cache", 0.25)]]  # fmt: skip
    assert partition.durations(results) == {"jnp-dense_mla-a": 1.75}


@pytest.mark.parametrize("provider", ["jnp", "broken_providers:nan"])
def test_two_shards_merged_are_one_run(tmp_path, provider):
    whole = parity(provider=provider)
    parts = [parity("--shard", f"{index}/2", provider=provider) for index in (1, 2)]
    cases = [{record["scenario"] for record in json.loads(part.stdout)["results"]} for part in parts]
    assert all(cases) and not cases[0] & cases[1]
    together = merged(tmp_path, *(part.stdout for part in reversed(parts)))
    assert together.exit_code == whole.exit_code == (provider != "jnp")
    one, other = json.loads(whole.stdout), json.loads(together.stdout)
    assert comparable(one) == comparable(other)
    assert len(one["results"]) > 10
    assert "reproduce with" in merged(tmp_path, *(p.stdout for p in parts), arguments=()).stdout or provider == "jnp"


def test_a_known_failure_that_shows_in_one_shard_is_stale_in_none(tmp_path):
    file = tmp_path / "known.toml"
    file.write_text('[[failure]]\nid = "cache_write/*/cache"\nreason = "only in bfloat16"\nsmallest = "one token"\n')
    arguments = ("--known-failures", str(file))
    run = {"provider": "broken_providers:nan"}
    whole = parity(*arguments, **run)
    parts = [parity(*arguments, "--shard", f"{index}/2", **run) for index in (1, 2)]
    # One shard alone does not decide: make the first one see no rejection.
    first = json.loads(parts[0].stdout)
    for record in first["results"]:
        if record.pop("known", None):
            del record["found"]
            record.update(verdict="accepted", reason="")
    first["known_failures"], first["entries"][0]["shown"] = [], False
    assert first["stale"] == []
    together = merged(tmp_path, json.dumps(first), parts[1].stdout)
    assert together.exit_code == whole.exit_code == 0, together.output
    assert json.loads(together.stdout)["stale"] == []
    assert json.loads(together.stdout)["known_failures"][0]["id"] == "cache_write/*/cache"


def test_a_known_failure_that_shows_in_no_shard_is_stale_in_the_whole(tmp_path):
    file = tmp_path / "known.toml"
    file.write_text('[[failure]]\nid = "cache_write/*/cache"\nreason = "gone"\nsmallest = "one token"\n')
    parts = [parity("--known-failures", str(file), "--shard", f"{index}/2") for index in (1, 2)]
    assert [part.exit_code for part in parts] == [0, 0]
    together = merged(tmp_path, *(part.stdout for part in parts))
    whole = parity("--known-failures", str(file))
    assert together.exit_code == whole.exit_code == 1
    assert comparable(json.loads(together.stdout)) == comparable(json.loads(whole.stdout))


def test_may_show_looks_at_provider_surface_and_scenario():
    cases = suite.plan(["jnp"], ["cache_write"], ["single-*"])
    assert partition.may_show(KnownFailure("cache_write/single-*/*", "r", "s"), cases)
    assert not partition.may_show(KnownFailure("cache_write/decode-*/cache", "r", "s"), cases)
    assert not partition.may_show(KnownFailure("cache_write/single-*/cache", "r", "s", provider="builtin"), cases)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shard", "0/2"], "expects i/n with 1 <= i <= n"),
        (["--shard", "3/2"], "expects i/n with 1 <= i <= n"),
        (["--shard", "2"], "expects i/n with 1 <= i <= n"),
        (["--shard", "1/99999"], "are more than the plan's"),
        (["--durations", __file__], "--durations cuts shards"),
        (["--shard", "1/2", "--durations", __file__], "expected a document of `dsa-verify parity --json`"),
        (["--shard", "1/2", "--tier", "soak"], "a soak has no shards"),
    ],
)
def test_what_cannot_be_cut_exits_2(arguments, message):
    result = parity(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_a_case_that_is_new_weighs_as_the_median():
    cases = suite.plan(["jnp"], ["cache_write"])
    told = {case.name: 2.0 for case in cases[::2]}
    assert partition.divide(cases, 2, told) == partition.divide(cases, 2, {case.name: 2.0 for case in cases})


def test_earlier_durations_reach_the_cut(tmp_path):
    whole = json.loads(parity().stdout)
    for record in whole["results"]:
        record["seconds"] = 100.0 if record["scenario"] == "decode-one-d16-bf16" else 0.01
    path = tmp_path / "last.json"
    path.write_text(json.dumps(whole))
    parts = [json.loads(parity("--shard", f"{i}/2", "--durations", str(path)).stdout) for i in (1, 2)]
    assert {"decode-one-d16-bf16"} in [{record["scenario"] for record in part["results"]} for part in parts]


def test_durations_of_other_cases_are_refused():
    with pytest.raises(ConfigError, match="holds none of the cases"):
        partition.divide(PLAN, 2, {"other": 1.0})
