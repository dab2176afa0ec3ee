"""Golden records: every kind of change fails with its place, nothing else does, and none is made by accident."""

import dataclasses
import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from dsa_verify import oracle
from dsa_verify.batch.requests import Request
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.checks import tolerance
from dsa_verify.cli import main
from dsa_verify.contract import SURFACES
from dsa_verify.errors import GoldenError
from dsa_verify.evidence import Result, Verdict
from dsa_verify.golden import canonical, measure, review, snapshot, store
from dsa_verify.golden.compare import differences, grown, provider_differences
from dsa_verify.golden.fingerprint import fingerprint, signs
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.run import suite
from dsa_verify.run.verify import batch_of

pytest_plugins = ["pytester"]

SINGLE = "several-unequal-p16-f32"
SURFACE = "sparse_mla_prefill_qblock"
SELECTING = "index_topk"
METRICS = {"promise": {}, "share": {"element": 0.4, "rms": 0.1}}
PROVIDERS = {"builtin": METRICS, "jnp": METRICS}


@pytest.fixture(scope="module")
def records():
    """A complete record of every surface for one scenario; kernels' metrics are made up."""
    names = review.wanted(scenarios=[SINGLE])
    return {name: review.complete(review.compute(name), PROVIDERS, {}, {"jnp": "made up"}) for name in names}


@pytest.fixture
def folder(tmp_path, records, monkeypatch):
    """`golden/` in a git repository of its own, committed; not in CI."""
    monkeypatch.delenv("CI", raising=False)
    golden = tmp_path / "golden"
    golden.mkdir()
    snapshot.write(golden, *records.values())
    git(golden, "init", "-q")
    commit(golden)
    return golden


def git(folder, *arguments):
    settings = ["-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *settings, *arguments], cwd=folder, check=True, capture_output=True)


def commit(folder):
    git(folder, "add", "-A", ".")
    git(folder, "commit", "-q", "--allow-empty", "-m", "records")


def golden(command, folder, *arguments, surface=SURFACE, scenario=SINGLE):
    chosen = [f"--surface={surface}"] * bool(surface) + [f"--scenario={scenario}"] * bool(scenario)
    return CliRunner().invoke(main, ["golden", command, "--folder", str(folder), *chosen, *arguments])


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*.json")}


def answering(monkeypatch, change):
    """Let the oracle's answers pass through `change(expected, batch)`."""
    real = oracle.expected
    monkeypatch.setattr(oracle, "expected", lambda surface, batch: change(real(surface, batch), batch))


# What is pinned -----------------------------------------------------------------------------------------------------


def test_unchanged_code_passes_and_an_update_changes_no_byte(folder):
    before = contents(folder)
    result = golden("check", folder, surface=None)
    assert result.exit_code == 0, result.output
    assert f"golden: {len(before)} records, 0 failing" in result.stdout
    assert golden("diff", folder, surface=None).exit_code == 0
    result = golden("update", folder, surface=None)
    assert (result.exit_code, result.stdout) == (0, "")
    assert contents(folder) == before


def test_one_bit_of_a_selection_is_reported_with_its_token_and_position(folder, monkeypatch):
    def swap(expected, batch):
        best = expected.selection.best.copy()
        left = np.setdiff1d(np.arange(batch.positions[7]), best[7])
        swap.pair = int(best[7, 3]), int(left[0])
        best[7, 3] = left[0]
        return dataclasses.replace(expected, selection=dataclasses.replace(expected.selection, best=best))

    answering(monkeypatch, swap)
    result = golden("check", folder, surface=SELECTING)
    assert result.exit_code == 1
    kept, left = swap.pair
    position = batch_of(SCENARIOS[SINGLE]).positions[7]
    place = f"selection of token 7 (request 2, position {position})"
    assert f"{place}: expected {kept}, found {left} (63 choices agree)" in result.stdout
    accept = f"dsa-verify golden update --surface {SELECTING} --scenario {SINGLE} --provider builtin --provider jnp"
    assert accept in result.stdout.splitlines()


@pytest.mark.parametrize("place", [(0, 0, 0), (7, 2, 45), (14, 3, 127)])
def test_one_output_element_by_its_budget_is_reported_with_its_token(folder, monkeypatch, place):
    def shift(expected, batch):
        exact = expected.attention
        width = batch.ql_nope.shape[-1] + batch.q_pe.shape[-1]
        out = exact.out.copy()
        out[place] += tolerance.attention_budget(exact, "float32", width, tolerance.Promise()).element[place]
        return dataclasses.replace(expected, attention=dataclasses.replace(exact, out=out))

    answering(monkeypatch, shift)
    result = golden("check", folder)
    assert result.exit_code == 1
    assert f"out of token {place[0]} (request " in result.stdout
    assert "signed sum" in result.stdout and "is allowed" in result.stdout
    assert "tokens moved" not in result.stdout


def test_a_sampled_element_is_reported_with_its_coordinates(records):
    name = SURFACE, SINGLE
    batch = batch_of(SCENARIOS[SINGLE])
    before = oracle.expected(SURFACE, batch).attention.out
    at = next(iter(records[name]["outputs"]["out"]["samples"]))
    found = json.loads(json.dumps(records[name]))
    found["outputs"]["out"]["samples"][at] += 1e-6
    (difference,) = differences(records[name], found)
    assert difference.field == f"out[{at}]"
    assert float(difference.expected) == pytest.approx(before[tuple(map(int, at.split(",")))], rel=1e-11)


def test_another_seed_is_reported_by_recipe_and_inputs(folder, monkeypatch):
    monkeypatch.setitem(SCENARIOS, SINGLE, dataclasses.replace(SCENARIOS[SINGLE], seed=7))
    result = golden("check", folder)
    assert result.exit_code == 1
    assert f"recipe seed: expected {1000 + 2}, found 7" in result.stdout
    assert "input ql_nope: expected float32[16,4,128] " in result.stdout
    assert "signed sum" not in result.stdout  # a consequence, not a second finding


def test_another_scenario_is_reported_by_its_requests(folder, monkeypatch):
    scenario = SCENARIOS[SINGLE]
    requests = (Request(scenario.requests[0].kv_len + 1, 4), *scenario.requests[1:])
    monkeypatch.setitem(SCENARIOS, SINGLE, dataclasses.replace(scenario, requests=requests))
    result = golden("check", folder)
    assert result.exit_code == 1
    assert "recipe requests: expected 153:4 " in result.stdout and "found 154:4 " in result.stdout


def test_another_cache_is_reported_by_its_page(folder, monkeypatch):
    slots = []

    def flip(expected, batch):
        pool = expected.cache_kv.copy()
        slots.append(int(batch.out_cache_loc[3]))
        pool.reshape(-1, pool.shape[-1]).view(np.uint32)[slots[0], 5] ^= 1
        return dataclasses.replace(expected, cache_kv=pool)

    answering(monkeypatch, flip)
    result = golden("check", folder, surface="cache_write")
    assert result.exit_code == 1
    assert f"(written pages {slots[0] // 16} differ)" in result.stdout


def test_a_loosened_budget_is_reported(folder, monkeypatch):
    monkeypatch.setattr(tolerance, "MARGIN", 1.6)
    result = golden("check", folder)
    assert result.exit_code == 1
    assert "budget element: expected" in result.stdout


def test_noise_of_float64_passes(folder, monkeypatch):
    def noisy(expected, batch):
        exact = expected.attention
        noise = np.random.default_rng(0).uniform(-1, 1, exact.out.shape)
        width = batch.ql_nope.shape[-1] + batch.q_pe.shape[-1]
        budget = tolerance.attention_budget(exact, "float32", width, tolerance.Promise()).element * 2.0**-29
        return dataclasses.replace(expected, attention=dataclasses.replace(exact, out=exact.out + noise * budget))

    answering(monkeypatch, noisy)
    before = contents(folder)
    assert golden("check", folder).exit_code == 0
    assert golden("update", folder).exit_code == 0
    assert contents(folder) == before


# The guarantee of the signed sums -----------------------------------------------------------------------------------


def test_signs_are_the_same_for_ever():
    drawn = "".join("+" if sign > 0 else "-" for sign in signs("token", 1, 32)[0])
    assert drawn == "+++---++-++-++--++++++--+----+--"
    assert abs(signs("whole", 16, 8192).mean()) < 0.01


def sums_moved(change):
    found = fingerprint(change, np.full(change.shape, 1e-7))
    sums = np.array([*np.ravel(found["rows"]), *found["whole"]])
    return (np.abs(sums) > 2 * found["tolerance"]).sum()


def test_a_change_of_one_element_moves_every_sum_over_it():
    for token, lane in [(0, 0), (5, 77), (15, 511)]:
        change = np.zeros((16, 512))
        change[token, lane] = 1e-6
        assert sums_moved(change) == 2 + 16


def test_changes_that_cancel_in_one_sum_move_another():
    rng = np.random.default_rng(1)
    for _ in range(200):
        change = np.zeros((16, 512))
        lanes = rng.choice(512, 2, replace=False)
        change[3, lanes] = 1e-6 * rng.choice([-1, 1], 2)
        assert sums_moved(change) > 0


# Selections as text -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "row"),
    [([], ""), ([0, 1, 2, 3], "0000"), ([6, 0, 2, 1, -1, -1], "0003"), ([61], "z"), ([62], ".0"), ([130, 0], "0..5")],
)
def test_selection_round_trips(chosen, row):
    assert canonical.gaps(chosen) == row
    assert canonical.candidates(row) == sorted(c for c in chosen if c >= 0)


def test_any_selection_round_trips():
    rng = np.random.default_rng(0)
    for size in (1, 64, 512):
        chosen = np.sort(rng.choice(9000, size, replace=False)).tolist()
        assert canonical.candidates(canonical.gaps(chosen)) == chosen


def test_ranges():
    assert canonical.ranges([0, 1, 2, 7, 9, 10]) == "0-2, 7, 9-10"


# Metrics ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "before", "after", "drifts"),
    [
        ("element", 0.4, 0.59, False),
        ("element", 0.4, 0.62, True),
        ("element", 0.01, 0.10, False),
        ("element", 0.01, 0.12, True),
        ("missed", 0.0, 0.009, False),
        ("missed", 0.0, 0.02, True),
    ],
)
def test_metric_drifts_beyond_factor_and_floor(name, before, after, drifts):
    assert grown(name, before, after) is drifts


def test_eroded_metric_fails_and_a_better_one_is_only_written():
    (worse,) = provider_differences("jnp", METRICS, {**METRICS, "share": {"element": 0.8, "rms": 0.1}})
    assert (worse.kind, worse.field, worse.expected, worse.found) == ("drift", "jnp element", "0.4", "0.8")
    (better,) = provider_differences("jnp", METRICS, {**METRICS, "share": {"element": 0.2, "rms": 0.1}})
    assert better.kind == "better"


def test_bytes_moved_in_vain_are_a_drift_and_saved_ones_are_only_written():
    mutant = KERNEL_MUTANTS["pages-behind-the-block"]

    def entry(provider):
        results = measure.measure(SURFACES[mutant.surface], provider, SCENARIOS[mutant.scenario])
        return results[0].measured

    right, wasteful = entry(suite.load("builtin")), entry(mutant.load())
    assert 1.0 <= right["moved"]["least"] < wasteful["moved"]["least"]
    (worse,) = provider_differences("builtin", right, wasteful)
    assert (worse.kind, worse.field) == ("drift", "builtin moves") and "times the least possible" in worse.found
    (better,) = provider_differences("builtin", wasteful, right)
    assert better.kind == "better"
    (new,) = provider_differences("builtin", {**right, "moved": None}, right)
    assert new.kind == "new"


def test_sparse_attention_moves_less_than_dense_would():
    """Three of eight pages a token: less than half of what dense would move, and little more than must be."""
    results = measure.measure(
        SURFACES["sparse_mla_prefill"], suite.load("builtin"), SCENARIOS["single-extend-p64-bf16"]
    )
    moved = results[0].measured["moved"]
    assert moved["dense"] < 0.5 <= 1.0 <= moved["least"] < 1.5


def test_a_device_counts_no_bytes_and_is_not_held_against_them():
    counted = {**METRICS, "moved": {"bytes": 10, "least": 1.0}}
    assert list(provider_differences("builtin", counted, METRICS)) == []


def test_changed_promise_and_lost_kernel_fail():
    (difference,) = provider_differences("jnp", METRICS, {**METRICS, "promise": {"logit_dtype": "bfloat16"}})
    assert (difference.kind, difference.field) == ("drift", "jnp promises logit_dtype")
    (difference,) = provider_differences("jnp", METRICS, {"not_verified": "no such kernel"})
    assert difference.kind == "drift" and "no such kernel" in difference.found


def test_kernels_are_measured_and_compared_with_the_record(folder):
    """The made-up share of 0.4 is far above what the kernel uses: better, so a check passes and an update writes."""
    result = golden("check", folder, "--provider", "jnp", "--jobs", "1", surface="dense_mla")
    assert result.exit_code == 1
    assert "jnp promises probability_dtype: expected nothing, found float32" in result.stdout
    before = contents(folder)
    assert golden("update", folder, "--provider", "jnp", "--jobs", "1", surface="dense_mla").exit_code == 0
    (changed,) = [path for path, text in contents(folder).items() if before[path] != text]
    after = json.loads(changed.read_bytes())
    assert set(after["providers"]["jnp"]["share"]) == {"element", "gain", "rms"}
    assert after["providers"]["builtin"] == METRICS
    assert "jax" in after["provenance"]["jnp"]
    commit(folder)
    assert golden("check", folder, "--provider", "jnp", "--jobs", "1", surface="dense_mla").exit_code == 0
    assert golden("update", folder, "--provider", "jnp", "--jobs", "1", surface="dense_mla").stdout == ""


def test_a_step_of_padding_alone_has_a_record(folder):
    result = golden("update", folder, scenario="padding-everything-p16-f32")
    assert result.exit_code == 0, result.output
    record = store.read(folder, (SURFACE, "padding-everything-p16-f32"))
    assert record["outputs"]["out"]["least_budget"] is None and set(record["outputs"]["out"]["whole"]) == {0.0}


def test_a_step_with_nothing_to_choose_misses_nothing():
    scenario = SCENARIOS["padding-everything-p16-f32"]
    results = measure.measure(SURFACES[SELECTING], suite.load("jnp"), scenario)
    assert results[0].measured["share"] == {"missed": 0.0, "score": 0.0}


def test_rejected_kernel_fails_a_check_and_stops_an_update(folder):
    chosen = ["--provider", "broken_providers:nan", "--jobs", "1"]
    before = contents(folder)
    result = golden("check", folder, *chosen, surface="cache_write")
    assert result.exit_code == 1 and "REJECTED broken_providers:nan cache_write" in result.stdout
    result = golden("update", folder, *chosen, surface="cache_write")
    assert result.exit_code == 1 and "nothing was recorded" in result.stdout
    rejection = Result("x", "cache_write", SINGLE, "cache", Verdict.rejected("rows are lost"))
    with pytest.raises(GoldenError, match="rows are lost"):
        review.update(folder, review.Review((), (rejection,)))
    assert contents(folder) == before


def test_provider_that_verified_nothing_exits_4(folder):
    result = golden("check", folder, "--provider", "broken_providers:empty", "--jobs", "1", surface="cache_write")
    assert result.exit_code == 4, result.output


def test_provider_without_recorded_metrics_is_not_verified(folder):
    chosen = ["--provider", "broken_providers:prints", "--jobs", "1"]
    result = golden("check", folder, *chosen, surface="cache_write")
    assert result.exit_code == 4 and "no metrics of broken_providers:prints are recorded" in result.stdout
    assert golden("update", folder, *chosen, surface="cache_write").exit_code == 0
    assert golden("check", folder, *chosen, surface="cache_write").exit_code == 0


def test_missing_metrics_fail_with_the_command_that_measures_them(folder, records):
    record = {key: value for key, value in records[SURFACE, SINGLE].items() if key != "providers"}
    snapshot.write(folder, record)
    result = golden("check", folder)
    assert result.exit_code == 1
    assert "builtin: expected its metrics, found none recorded" in result.stdout
    assert f"--surface {SURFACE} --scenario {SINGLE} --provider builtin --provider jnp" in result.stdout


def test_metrics_of_an_old_answer_are_dropped(folder, monkeypatch):
    monkeypatch.setitem(SCENARIOS, SINGLE, dataclasses.replace(SCENARIOS[SINGLE], seed=7))
    assert golden("update", folder).exit_code == 0
    assert "providers" not in json.loads(store.path_of(folder, (SURFACE, SINGLE)).read_bytes())


# Records that cannot be trusted -------------------------------------------------------------------------------------


def truncated(text):
    return text[: len(text) // 2]


def edited(text):
    return text.replace('"seed": 1002', '"seed": 1003')


def reformatted(text):
    return json.dumps(json.loads(text), indent=2)


def from_the_future(text):
    return text.replace('"schema": 1', '"schema": 2')


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncated, "is not JSON"),
        (edited, "was changed by hand"),
        (reformatted, "not in canonical form"),
        (from_the_future, "has schema 2, expected 1"),
        (lambda text: "{}\n", "has no digest"),
        (lambda text: text.replace("\n", "\r\n"), "not in canonical form"),
        (lambda text: "\udcff" + text, "is not UTF-8"),
    ],
)
def test_damaged_record_is_refused_by_file_and_reason(folder, damage, message):
    path = store.path_of(folder, (SURFACE, SINGLE))
    damaged = damage(path.read_bytes().decode())
    assert damaged != path.read_bytes().decode()
    path.write_bytes(damaged.encode("utf-8", "surrogateescape"))
    with pytest.raises(GoldenError, match=message):
        store.read(folder, (SURFACE, SINGLE))
    for command in (["check"], ["show"]):
        arguments = [] if command == ["check"] else [f"{SURFACE}/{SINGLE}"]
        result = CliRunner().invoke(main, ["golden", *command, "--folder", str(folder), *arguments])
        assert result.exit_code == 3, result.output
        assert str(path) in result.stderr and message in result.stderr
    commit(folder)
    assert golden("update", folder).exit_code == 0
    assert golden("diff", folder).exit_code == 0


def test_moved_record_is_refused(folder):
    path = store.path_of(folder, (SURFACE, SINGLE))
    path.rename(path.with_name("masked-rows-p16-f32.json"))
    with pytest.raises(GoldenError, match="moved by hand"):
        store.read(folder, (SURFACE, "masked-rows-p16-f32"))


def test_missing_record_fails(folder):
    store.path_of(folder, (SURFACE, SINGLE)).unlink()
    result = golden("check", folder)
    assert result.exit_code == 1
    assert f"MISSING {SURFACE}/{SINGLE}" in result.stdout


def test_orphan_fails_and_is_removed_by_an_update(folder, monkeypatch):
    monkeypatch.setattr(review, "wanted", lambda *_: ((SURFACE, SINGLE),))
    result = golden("check", folder, surface=None, scenario=None)
    assert result.exit_code == 1
    assert result.stdout.count("ORPHAN") == len(SURFACES) - 2  # the decode surface has no record of this scenario
    assert golden("update", folder, surface=None, scenario=None).exit_code == 0
    assert list(contents(folder)) == [store.path_of(folder, (SURFACE, SINGLE))]


def test_record_beyond_its_size_is_not_written(folder, records):
    record = {**records[SELECTING, SINGLE], "selection": ["0" * 512] * 16}
    before = contents(folder)
    with pytest.raises(GoldenError, match="at most 8192"):
        snapshot.write(folder, {**records[SURFACE, SINGLE], "recipe": {}}, record)
    assert contents(folder) == before


# Who may change a record --------------------------------------------------------------------------------------------


def test_update_is_refused_in_ci(folder, monkeypatch):
    monkeypatch.setenv("CI", "true")
    result = golden("update", folder)
    assert result.exit_code == 2 and "not updated in CI" in result.stderr


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("file", ["new.json", f"{SINGLE}.json"])
def test_update_is_refused_over_changes_that_are_not_committed(folder, file, staged):
    path = folder / "surfaces" / SURFACE / file
    path.write_text("changed\n")
    if staged:
        git(folder, "add", "-A")
    result = golden("update", folder)
    assert result.exit_code == 2 and "not committed" in result.stderr and file in result.stderr


def test_update_is_refused_without_git(folder, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    (folder / ".git").rename(folder / "git")
    result = golden("update", folder)
    assert result.exit_code == 2 and "not under git" in result.stderr


def test_other_tiers_and_unknown_names_are_usage_errors(folder):
    full = next(name for name, scenario in SCENARIOS.items() if scenario.tier == "full")
    for result in (golden("check", folder, scenario=full), golden("check", folder, scenario="nope")):
        assert result.exit_code == 2
    assert golden("check", folder / "nowhere").exit_code == 2
    assert CliRunner().invoke(main, ["golden", "show", "--folder", str(folder), "nope"]).exit_code == 2


def test_help_imports_neither_jax_nor_numpy():
    code = (
        "import sys, dsa_verify.cli\ntry: dsa_verify.cli.main(['golden', 'update', '--help'])\n"
        "except SystemExit as end: code = end.code\n"
        "assert code == 0 and not {'jax', 'numpy'} & set(sys.modules), code"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


# Other front ends ---------------------------------------------------------------------------------------------------


def test_show_prints_selections_as_ranges(folder):
    shown = CliRunner().invoke(main, ["golden", "show", "--folder", str(folder), f"{SELECTING}/{SINGLE}"])
    assert shown.exit_code == 0
    best = np.sort(oracle.expected(SELECTING, batch_of(SCENARIOS[SINGLE])).selection.best[4])
    assert f"token 4 (request 1, position 26): {canonical.ranges(best[best >= 0].tolist())}" in shown.stdout


def test_json_document(folder):
    document = json.loads(golden("check", folder, "--json").stdout)
    assert document["schema"] == 1 and document["counts"] == {"records": 1, "failing": 0, "rejected": 0}
    assert document["records"][0]["name"] == f"{SURFACE}/{SINGLE}"


# One way to accept a record, and what it needs ----------------------------------------------------------------------

SNAPSHOT_TEST = """
import dataclasses, pathlib
from dsa_verify.batch.table import SCENARIOS
from dsa_verify.golden import review
from dsa_verify.golden.snapshot import GoldenExtension

def test_record(snapshot):
    SCENARIOS[{scenario!r}] = dataclasses.replace(SCENARIOS[{scenario!r}], seed={seed})
    stored = snapshot.with_defaults(extension_class=GoldenExtension)
    assert review.compute(({surface!r}, {scenario!r})) == stored(name={path!r})
"""


@pytest.fixture
def snapshots(pytester, folder, monkeypatch):
    """Run one snapshot test, with a seed, in a process of its own."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID", "PYTEST_ADDOPTS"):
        monkeypatch.delenv(name, raising=False)

    def run(seed, *arguments):
        path = str(store.path_of(folder, (SURFACE, SINGLE)))
        content = SNAPSHOT_TEST.format(surface=SURFACE, scenario=SINGLE, seed=seed, path=path)
        pytester.makepyfile(test_records=content)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", "-W", "error", *arguments)

    return run


def test_syrupy_accepts_within_tolerance_and_tells_a_difference_as_the_command_does(snapshots):
    assert snapshots(1002).ret == 0
    result = snapshots(7)
    assert result.ret == 1
    assert any("recipe seed: expected 1002, found 7" in line for line in result.outlines)


@pytest.mark.parametrize("option", ["--snapshot-update", "--snapshot-update-new-only"])
@pytest.mark.parametrize("present", [True, False])
def test_pytest_writes_and_removes_no_record(snapshots, folder, option, present):
    if not present:
        store.path_of(folder, (SURFACE, SINGLE)).unlink()
    before = contents(folder)
    result = snapshots(7, option)
    assert result.ret == 1
    if not (present and option.endswith("new-only")):  # where syrupy does not try to write, it tells the difference
        assert any("golden records are accepted by `dsa-verify golden update`" in line for line in result.outlines)
    assert contents(folder) == before


def test_what_the_command_accepts_the_snapshot_test_accepts(snapshots, folder, monkeypatch):
    monkeypatch.setitem(SCENARIOS, SINGLE, dataclasses.replace(SCENARIOS[SINGLE], seed=7))
    assert snapshots(7).ret == 1
    assert golden("update", folder).exit_code == 0
    assert snapshots(7).ret == 0


WITHOUT = """
import sys
for name in ("pytest", "_pytest", "syrupy", "xdist"):
    sys.modules[name] = None
from dsa_verify.cli import main
main({arguments!r})
"""


def without_pytest(*arguments):
    """Run a command where pytest and what comes with it are not installed."""
    code = WITHOUT.format(arguments=list(map(str, arguments)))
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments",
    [
        *([name, "--help"] for name in main.commands),
        ["list", "scenarios"],
        ["doctor"],
        ["golden", "check", "--surface", "cache_write", "--scenario", "single-*"],
        ["parity", "--provider", "jnp", "--surface", "cache_write", "--scenario", SINGLE],
    ],
    ids=" ".join,
)
def test_commands_need_no_pytest(arguments):
    result = without_pytest(*arguments)
    assert result.returncode == 0, result.stderr


def test_only_an_update_needs_syrupy_and_says_so_before_it_computes(folder):
    before = contents(folder)
    result = without_pytest("golden", "update", "--folder", folder)
    assert result.returncode == 2
    assert result.stderr == "dsa-verify: golden update needs the package syrupy; pip install 'dsa-verify[pytest]'\n"
    assert contents(folder) == before
