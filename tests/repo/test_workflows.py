"""The workflows: they parse, may only read, end, are pinned, run what the docs show, and hide no failure."""

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from dsa_verify.cli import main

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.stem: yaml.load(path.read_text("utf-8"), yaml.BaseLoader) for path in sorted(FOLDER.glob("*.yml"))}
DOCS = "\n".join(path.read_text("utf-8") for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
JOBS = [(name, job) for name, workflow in WORKFLOWS.items() for job in workflow["jobs"].values()]
STEPS = [(name, step) for name, job in JOBS for step in job["steps"]]


def commands(step: dict) -> list[str]:
    """The shell commands of a step, without where a CI page wants their output."""
    lines = step.get("run", "").splitlines()
    return [line.replace(' >> "$GITHUB_STEP_SUMMARY"', "").strip() for line in lines if line.strip()]


COMMANDS = [(name, command) for name, step in STEPS for command in commands(step)]


def test_both_are_there_and_parse():
    assert set(WORKFLOWS) == {"ci", "nightly-tpu"}
    assert all(job["steps"] for _, job in JOBS)


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_may_only_read(name):
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}
    assert not any("permissions" in job for job in WORKFLOWS[name]["jobs"].values())
    assert "secrets." not in (FOLDER / f"{name}.yml").read_text("utf-8")


def test_no_credential_is_left_behind_by_a_checkout():
    checkouts = [step for _, step in STEPS if step.get("uses", "").startswith("actions/checkout@")]
    assert len(checkouts) == len(JOBS)
    assert all(step["with"]["persist-credentials"] == "false" for step in checkouts)


def test_every_action_is_pinned_to_a_commit_whose_tag_is_beside_it():
    used = [line for path in FOLDER.glob("*.yml") for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    assert len(used) == sum("uses" in step for _, step in STEPS)
    assert [line for line in used if not re.search(r"uses: [\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", line)] == []


def test_every_job_ends_and_every_workflow_runs_once_at_a_time():
    assert all(int(job["timeout-minutes"]) <= 720 for _, job in JOBS)
    assert all(workflow["concurrency"]["group"] for workflow in WORKFLOWS.values())
    assert WORKFLOWS["nightly-tpu"]["concurrency"]["cancel-in-progress"] == "false"


def test_a_stranger_reaches_no_machine_of_ours():
    for workflow in WORKFLOWS.values():
        if any("self-hosted" in job["runs-on"] for job in workflow["jobs"].values()):
            assert set(workflow["on"]) == {"schedule", "workflow_dispatch"}


@pytest.mark.parametrize(("name", "step"), STEPS)
def test_no_expression_is_pasted_into_a_shell_and_no_failure_is_forgiven(name, step):
    assert "${{" not in step.get("run", "")
    assert "continue-on-error" not in step
    assert "||" not in step.get("run", "")
    assert step.get("if", "${{ !cancelled() }}") == "${{ !cancelled() }}"


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[f"{name}:{command}" for name, command in COMMANDS])
def test_every_command_stands_in_the_docs(name, command):
    assert command in DOCS


def test_ci_runs_what_decides_whether_a_change_lands():
    script = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    start = next(index for index, line in enumerate(script) if line.startswith("export "))
    assert [command for name, command in COMMANDS if name == "ci"] == script[start + 1 :]
    exported = dict(word.split("=") for word in script[start].split()[1:])
    assert WORKFLOWS["ci"]["env"] == exported


def test_the_night_runs_natively_or_not_at_all():
    assert WORKFLOWS["nightly-tpu"]["env"]["JAX_PLATFORMS"].split(",")[0] == "tpu"


@pytest.mark.parametrize(
    "words", ["parity --tier full", "golden check", "compile --golden check", "gate --server-cmd", "report markdown"]
)
def test_the_night_judges_kernels_records_and_accuracy(words):
    assert any(words in command for name, command in COMMANDS if name == "nightly-tpu")


@pytest.mark.parametrize("command", sorted({c for _, c in COMMANDS if "bin/dsa-verify" in c}))
def test_commands_use_options_that_exist(command):
    words = command.split(" > ")[0].replace('"', "").split()[1:]
    group = [word for word in words[:2] if re.fullmatch("[a-z]+", word)]
    group = group if CliRunner().invoke(main, [*group, "--help"]).exit_code == 0 else group[:1]
    text = CliRunner().invoke(main, [*group, "--help"]).stdout
    assert text
    assert [word for word in words if word.startswith("--") and word not in text] == []
