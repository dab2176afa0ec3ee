"""The gate's verdict is made in `decision.py` alone: no other module of the gate builds, replaces or names one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.repo.house import PACKAGE

VERDICTS = {"PASS", "FAIL", "INCONCLUSIVE", "INVALID"}
MADE_BY = {"Decision", "Control"}
DECISION = PACKAGE / "gates" / "decision.py"
OTHERS = sorted(set((PACKAGE / "gates").rglob("*.py")) - {DECISION})


def verdicts(source: str) -> Iterator[str]:
    """Where a module makes a verdict: it builds a decision, gives a field `verdict` a value, or names a verdict other
    than to compare with it, as the key of a table, or to define the four words."""
    tree = ast.parse(source)
    read: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            read |= {*ast.walk(node)}
        if isinstance(node, ast.Dict):
            read |= {key for key in node.keys if key is not None}
        if (
            isinstance(node, ast.Assign)
            and {name.id for name in ast.walk(node.targets[0]) if isinstance(name, ast.Name)} == VERDICTS
        ):
            read |= {*ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if isinstance(node.func, ast.Name | ast.Attribute):
                name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                if name in MADE_BY:
                    yield f"line {node.lineno} builds a {name}"
            if any(given.arg == "verdict" for given in node.keywords):
                yield f"line {node.lineno} gives a verdict"
        word = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if isinstance(word, str) and word in VERDICTS and node not in read:
            yield f"line {node.lineno} names {word}"


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_module_makes_no_verdict(path: Path):
    assert list(verdicts(path.read_text("utf-8"))) == []


def test_the_decision_makes_it():
    found = " ".join(verdicts(DECISION.read_text("utf-8")))
    assert all(f"names {verdict}" in found for verdict in VERDICTS) and "builds a Decision" in found


@pytest.mark.parametrize(
    "source",
    [
        "def late(decision):\n    return dataclasses.replace(decision, verdict='INVALID')",
        "def judge(harm):\n    return FAIL if harm else other",
        "def judge(harm):\n    return decision.Decision('?', harm)",
        "verdict = 'PASS'",
    ],
)
def test_a_second_place_would_be_found(source: str):
    assert list(verdicts(source))


def test_reading_a_verdict_is_free():
    assert (
        list(verdicts("PASS, FAIL, INCONCLUSIVE, INVALID = words\nok = found.verdict == PASS\nkinds = {FAIL: 1}")) == []
    )
