"""The committed table of operating characteristics: it keeps the promises of the rule, and a rerun finds the same."""

import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dsa_verify.commands.gate_plan import operating as command
from dsa_verify.gates.statistics import truths
from dsa_verify.gates.statistics.bounds import LARGE
from dsa_verify.gates.statistics.operating import MACRO_MARGINS, Simulations, bound_sizes, fixed, sequential
from dsa_verify.gates.statistics.rule import Rule

PAGE = Path(__file__).parents[2] / "docs" / "gate-operating.md"
TEXT = PAGE.read_text("utf-8")
SIMULATIONS = int(re.findall(r"--simulations (\d+)", TEXT)[0])
LEVEL = 0.055
"""The target is 0.05; what terms of order 1/n and two standard errors of the simulation may add."""


def rows(heading: str) -> dict[str, list[list[float]]]:
    """Cells of numbers by the first cell of each row, of the table below a heading."""
    section = TEXT.split(heading)[1].split("\n## ")[0]
    found = {}
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        numbers = [re.findall(r"\d+\.\d+", cell) for cell in cells[1:]]
        if line.startswith("| ") and cells[0] != "truth" and all(numbers):
            found[cells[0]] = [[float(number) for number in cell] for cell in numbers]
    return found


WHOLE, LOOKS, MOST = rows("## The whole rule"), rows("## With looks"), rows("## The most")


def bounds_table() -> list[tuple[str, int, float, float, float, float]]:
    pattern = r"^\| (.+?) \| (\d+) \| (\d\.\d+) \| (\d\.\d+) \| (\d\.\d+) \| (\d\.\d+) \|$"
    found = re.findall(pattern, TEXT, re.MULTILINE)
    return [(m[0], int(m[1]), float(m[2]), float(m[3]), float(m[4]), float(m[5])) for m in found]


def at_default(truth: str) -> list[float]:
    return WHOLE[truth][1]


def test_the_table_has_simulations_enough_and_all_its_rows():
    assert SIMULATIONS >= 2000
    assert set(WHOLE) == {truth.name for truth in truths.TRUTHS} | {"uniform at the margin"}
    assert len(bounds_table()) == 4 * 6 * 2
    assert LARGE in {documents for _, documents, *_ in bounds_table()}, "where the approximation begins"


def test_at_each_macro_margin_the_rule_passes_and_fails_at_most_at_its_level():
    for passed, failed, _ in WHOLE["uniform at the margin"]:
        assert passed <= LEVEL and failed <= LEVEL
    assert WHOLE["multi-document QA -.05"][1][0] <= LEVEL


def test_stopping_early_costs_no_level():
    (passed, failed, _), _ = LOOKS["uniform at the margin"]
    assert passed <= LEVEL and failed <= LEVEL


def test_every_bound_holds_its_level_for_every_shape_and_size():
    for shape, documents, margin, passed, failed, _ in bounds_table():
        assert max(passed, failed) <= LEVEL, (shape, documents, margin)


def test_no_loss_passes():
    assert at_default("no loss")[0] >= 0.96 and at_default("no loss")[1] <= 0.001
    assert at_default("uniform -.005")[0] >= 0.79


def test_the_rule_passes_nearly_as_much_as_bounds_of_its_level_can():
    """The demands on single tasks and the estimated variances cost no more than two points of PASS."""
    for truth in ("no loss", "uniform -.005"):
        (macro,), (groups,) = MOST[truth]
        assert at_default(truth)[0] <= groups <= macro
        assert groups - at_default(truth)[0] <= 0.02


def test_harm_fails():
    assert at_default("uniform -.03")[1] >= 0.98
    assert at_default("passage_retrieval_en -.20")[1] >= 0.99
    assert at_default("multi-document QA -.10")[1] >= 0.94


def test_a_loss_in_one_task_does_not_slip_through_and_closing_that_hole_costs_little():
    passed, free = at_default("one QA task -.10")[0], WHOLE["one QA task -.10"][3][0]
    assert passed <= 0.03 < 0.25 < free
    assert WHOLE["no loss"][3][0] - at_default("no loss")[0] <= 0.01
    assert WHOLE["uniform -.005"][3][0] - at_default("uniform -.005")[0] <= 0.01


def test_stopping_early_saves_documents_when_the_answer_is_clear():
    (passed, *_), (share,) = LOOKS["no loss"]
    assert passed >= 0.95 and share <= 0.8
    (_, failed, _), (share,) = LOOKS["uniform -.05"]
    assert failed >= 0.99 and share <= 0.25
    assert LOOKS["one QA task -.10"][0][0] <= 0.03


def agrees(found: float, committed: float, simulations: int) -> bool:
    """Within five standard errors of both, and the rounding of the page."""
    spread = math.sqrt(max(committed * (1 - committed), 1e-3) * (1 / simulations + 1 / SIMULATIONS))
    return abs(found - committed) <= 5 * spread + 0.0005


def test_a_rerun_with_another_seed_finds_the_committed_numbers():
    plan = Simulations(500, 1)
    for truth in truths.TRUTHS:
        (rates,) = fixed(truth, [Rule()], plan)
        assert agrees(rates.passed, at_default(truth.name)[0], 500), truth.name
        assert agrees(rates.failed, at_default(truth.name)[1], 500), truth.name
    rates = sequential(truths.TRUTHS[0], Rule(), plan)
    assert agrees(rates.passed, LOOKS["no loss"][0][0], 500)


def test_a_rerun_of_the_bounds_finds_the_committed_sizes():
    for size, committed in zip(bound_sizes(Simulations(40, 1)), bounds_table(), strict=True):
        assert (size.shape, size.documents, size.margin) == committed[:3]
        for found, expected in zip((size.passed, size.failed, size.power), committed[3:], strict=True):
            assert agrees(found, expected, 200), committed


@pytest.mark.parametrize(
    "draw", [truths.f1_like, truths.lost_answers, truths.rouge_like, truths.zero_or_one, truths.losses_only]
)
@pytest.mark.parametrize("loss", [0.0, 0.05, 0.15])
def test_every_assumed_shape_has_the_mean_it_promises(draw, loss):
    drawn = draw(np.random.default_rng(4), (1000, 1000), loss)
    assert np.abs(drawn).max() <= 1
    # Five standard errors of the mean of a million differences.
    assert drawn.mean() == pytest.approx(-loss, abs=5 * drawn.std() / 1000 + 1e-12)


def test_the_assumed_spreads_are_those_of_the_note():
    rng = np.random.default_rng(4)
    sds = [draw(rng, (1000, 1000), 0.0).std() for draw in (truths.f1_like, truths.rouge_like, truths.zero_or_one)]
    assert sds == pytest.approx([0.4 * 0.4**0.5, 0.08, 0.25], rel=0.01)


def test_the_seed_decides_and_the_order_of_the_rows_does_not():
    rules = [Rule(macro_margin=margin) for margin in MACRO_MARGINS]
    truth, other = truths.TRUTHS[2], truths.TRUTHS[0]
    first = fixed(truth, rules, Simulations(60, 5))
    fixed(other, rules, Simulations(60, 5))
    assert fixed(truth, rules, Simulations(60, 5)) == first
    assert fixed(truth, rules, Simulations(60, 6)) != first


def test_the_command_writes_what_it_prints(tmp_path):
    said = CliRunner().invoke(command, ["--simulations", "4", "--markdown", str(tmp_path / "page.md")])
    assert said.exit_code == 0, said.output
    assert (tmp_path / "page.md").read_text("utf-8") == said.stdout
    assert "one QA task -.10" in said.stdout and "gate operating: " in said.stderr
