"""Systematic mutants: what each operator does to a line, what is excluded, names that last, loud failure."""

import ast
import warnings

import pytest

from dsa_verify.contract import SURFACES
from dsa_verify.mutants import systematic
from dsa_verify.mutants.kinds import KINDS, NOT_EXPRESSIBLE, OTHER
from dsa_verify.mutants.operators import OPERATORS
from dsa_verify.mutants.registry import HANDWRITTEN
from dsa_verify.mutants.source import StaleMutant, source_of
from dsa_verify.mutants.systematic import MODULES, PACKAGE, systematic_mutants


def mutated(operator: str, line: str) -> list[str]:
    """What an operator makes of the expression or statement `line`, anywhere in it."""
    tree = ast.parse(f"def f():\n    {line}\n")
    return [ast.unparse(change.after) for _, change in systematic._named("m", tree) if change.operator == operator]


@pytest.mark.parametrize(
    ("operator", "line", "expected"),
    [
        ("comparison flipped", "a < b", ["a <= b"]),
        ("comparison flipped", "a == b", ["a != b"]),
        ("off by one", "at + 1", ["at", "at + 2"]),
        ("off by one", "first + row", ["first - row"]),
        ("index shifted", "table[seq, 0]", ["table[seq + 1, 0]"]),
        ("index shifted", "x.shape[axis]", []),
        ("index shifted", "pl.ds(start, 8)", ["pl.ds(start + 1, 8)"]),
        ("index shifted", "lambda b: (b, 0)", ["lambda b: (b + 1, 0)"]),
        ("mask term dropped", "a & b", ["a", "b"]),
        ("mask term dropped", "jnp.where(mask, a, b)", ["a"]),
        ("mask term dropped", "pl.when(c)", ["pl.when(True)"]),
        ("start dropped", "copy(a).start()", ["None"]),
        ("wait dropped", "copy(a).wait()", ["None"]),
        ("slot frozen", "1 - slot", ["slot"]),
        ("slot frozen", "lax.rem(at, 2)", ["lax.rem(at, 2) * 0"]),
        ("accumulator narrowed", "jnp.sum(x)", ["__import__('jax').lax.reduce_precision(jnp.sum(x), 8, 7)"]),
        ("accumulator narrowed", "jnp.sum(x, dtype=jnp.int32)", []),
        ("factor dropped", "logits * sm_scale", ["logits", "sm_scale"]),
        ("extreme swapped", "jnp.minimum(a, b)", ["jnp.maximum(a, b)", "a", "b"]),
        ("extreme swapped", "jnp.max(x, axis=1)", ["jnp.min(x, axis=1)"]),
        ("division rounded up", "a // b", ["(a + b - 1) // b"]),
        ("division rounded up", "pl.cdiv(a, b)", ["a // b"]),
        ("fill changed", "jnp.where(c, a, -1)", ["jnp.where(c, a, 0)"]),
        ("fill changed", "x.reshape(4, -1)", []),
        ("search side swapped", "f(x, side='left')", ["side='right'"]),
        ("loop shortened", "pl.loop(0, n)", ["pl.loop(0, n - 1)", "pl.loop(0 + 1, n)"]),
        ("statement dropped", "softmax.clear()", ["pass"]),
        ("statement dropped", "copy.start()", []),
    ],
)
def test_operator(operator, line, expected):
    assert mutated(operator, line) == expected


@pytest.mark.parametrize(
    "line",
    [
        '"a docstring: a < b"',
        'check_call(SURFACES["x"], arrays, {"a": b < c})',
        "arrays = dict(a=b + 1)",
        "if a < 1:\n        raise ValueError(a + 1)",
        "f(name=a + 1)",
        "f(compiler_params=g(a + 1))",
        "step = given or max(1, a // b)",
        "def g(x: Literal[a + 1] = 1) -> f(a + 1): pass",
    ],
)
def test_what_decides_nothing_is_excluded(line):
    tree = ast.parse(f"def f():\n    {line}\n")
    expected = {"statement dropped"} if line.startswith("f(") else set()
    assert {change.operator for _, change in systematic._named("m", tree)} == expected


def test_every_operator_finds_work_and_every_module_has_mutants():
    found = systematic_mutants().values()
    assert {mutant.kind for mutant in found} == set(OPERATORS)
    assert {mutant.module for mutant in found} == set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_every_mutant_is_another_program(module):
    source = source_of(PACKAGE, module)
    seen = {ast.unparse(ast.parse(source))}
    for mutant in systematic_mutants().values():
        if mutant.module == module:
            changed = mutant.apply(source)
            assert changed not in seen, f"{mutant.name} changes nothing, or the same as another"
            seen.add(changed)
            with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # 0[0] is one that raises
                compile(changed, mutant.name, "exec")


def test_every_module_of_the_kernels_is_in_the_table():
    from importlib.util import find_spec
    from pathlib import Path

    folder = Path(find_spec(systematic.PACKAGE).origin).parent
    assert {path.stem for path in folder.glob("*.py")} - {"__init__"} == set(MODULES)
    assert {surface for surfaces in MODULES.values() for surface in surfaces} == set(SURFACES)


def test_name_survives_lines_that_move_and_fails_loudly_when_its_place_is_gone():
    mutant = next(m for m in systematic_mutants().values() if m.name.startswith("flash.softmax_step/factor dropped"))
    source = source_of(PACKAGE, "flash")
    moved = source.replace("    shrink =", "    # moved\n\n    shrink =")
    assert mutant.apply(moved) == mutant.apply(source)
    with pytest.raises(StaleMutant, match="moved on"):
        mutant.apply(source.replace("shrink", "factor"))


def test_every_kind_of_the_log_is_covered_or_has_a_reason():
    covered = {mutant.kind for mutant in HANDWRITTEN.values()}
    assert covered <= set(KINDS) | set(OTHER)
    assert set(KINDS) - covered == set(NOT_EXPRESSIBLE), "a kind is neither covered nor excused, or both"
    assert all(1 <= int(kind) <= 61 for kind in KINDS)
    assert all(NOT_EXPRESSIBLE.values())
