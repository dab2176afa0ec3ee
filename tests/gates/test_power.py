"""What a gate can show: the planning numbers, and the command that prints them."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from dsa_verify.commands.gate_plan import plan
from dsa_verify.errors import ConfigError
from dsa_verify.gates.statistics.power import Study, paired_sd, repeats_for

TABLE = {
    25: (0.124, 0.072, 0.031, 0.192),
    50: (0.088, 0.051, 0.022, 0.136),
    100: (0.062, 0.036, 0.016, 0.096),
    200: (0.044, 0.025, 0.011, 0.068),
    500: (0.028, 0.016, 0.007, 0.043),
}


@pytest.mark.parametrize("documents", TABLE)
def test_detectable_margins_are_those_of_the_planning_table(documents):
    assert tuple(round(margin, 3) for margin in Study().row(0.25, documents)) == TABLE[documents]


def test_documents_that_a_margin_needs_show_it_and_one_fewer_does_not():
    study = Study()
    assert study.documents(0.25, 0.05) == 155
    for margin, tasks in ((0.05, 1), (0.05, 3), (0.015, 16)):
        need = study.documents(0.25, margin, tasks)
        assert study.detectable(0.25, need, tasks) <= margin < study.detectable(0.25, need - 1, tasks)


def test_holm_and_spread_move_the_margin_as_computed():
    assert round(Study(alpha=0.05 / 16).detectable(0.25, 200), 3) == 0.063
    assert round(Study().detectable(0.10, 200), 3) == 0.018
    assert round(Study().detectable(0.35, 200), 3) == 0.062


def test_repeats_shrink_the_noise_of_both_arms_and_nothing_else():
    sds = [paired_sd(0.15, 0.20, repeats) for repeats in (1, 2, 4)]
    assert [round(sd, 2) for sd in sds] == [0.32, 0.25, 0.21]
    assert [round(Study().detectable(sd, 200), 3) for sd in sds] == [0.056, 0.044, 0.036]


def test_growth_makes_the_standard_error_fit():
    study = Study()
    growth = study.growth(-0.005, 0.02**2, 0.015)
    assert study.detectable(0.02, growth) == pytest.approx(0.010)
    assert study.growth(-0.02, 0.02**2, 0.015) == float("inf")
    assert study.growth(0.0, 1e-9, 0.015) == 1.0


def test_repeats_replace_documents_only_as_far_as_noise_goes():
    assert repeats_for(4.0, 2.0, 4 / 3) == 2  # 2 + 2 / 2 = 4 / (4 / 3)
    assert repeats_for(4.0, 2.0, 2.0) is None
    assert repeats_for(4.0, 4.0, 8.0) == 8


def test_the_command_prints_the_table():
    said = CliRunner().invoke(plan, [])
    assert said.exit_code == 0
    rows = [line.split() for line in said.output.splitlines()]
    for documents, margins in TABLE.items():
        assert [str(documents), *(f"{margin:.3f}" for margin in margins)] in rows
    assert ["macro", "0.015", "108"] in rows


def test_the_command_takes_the_parts_of_the_spread():
    said = CliRunner().invoke(plan, ["--between", ".15", "--noise", ".2", "--repeats", "4", "--documents", "200"])
    assert "0.036" in said.output.split()


@pytest.mark.parametrize("options", ["--sd .2 --between .1 --noise .1", "--noise .2", "--repeats 2"])
def test_parts_of_the_spread_that_do_not_fit_are_refused(options):
    said = CliRunner().invoke(plan, options.split())
    assert isinstance(said.exception, ConfigError)


def test_the_help_of_the_commands_imports_no_numpy():
    code = (
        "import sys; from dsa_verify.commands.gate_plan import plan, operating\n"
        "for one in (plan, operating): one.main(['--help'], standalone_mode=False)\n"
        "assert not {'numpy', 'scipy', 'jax'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
