"""Who may import whom: the wall between rooms, read from the source of every module."""

import ast
import subprocess
import sys

import pytest

from tests.repo.house import PACKAGE, ROOT, arrows, circle, imports, modules, room_of

# What every room may import: names and refusals, shapes, and what crosses rooms.
SHARED = {"__init__", "errors", "shapes"}
SUITE = {"batch", "contract", "run"}
# Room -> rooms and other packages that it may import, anywhere in its files. The standard library is free.
WALL: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "shapes": set(),
    "contract": set(),
    "evidence": {"numpy", "batch", "contract"},
    "batch": {"numpy", "ml_dtypes"},
    "oracle": {"numpy", "batch", "evidence"},
    "checks": {"numpy", "batch", "contract", "evidence"},
    "runtime": {"numpy", "jax"},
    "kernels": set(),
    "kernels/jnp": {"jax", "contract"},
    "kernels/pallas": {"jax", "contract"},
    "kernels/providers": {
        "numpy", "ml_dtypes", "jax", "sgl_jax", "tpu_inference", "batch", "contract", "kernels/jnp", "kernels/pallas",
    },
    "run": {"numpy", "jax", "batch", "checks", "contract", "evidence", "kernels/providers", "oracle", "runtime"},
    "engine": {"numpy", "batch"},
    "model": {"numpy", "jax", "ml_dtypes", "safetensors", "batch", "engine", "kernels/jnp", "kernels/providers"},
    "serve": {"jax", "starlette", "tokenizers", "uvicorn", "batch", "engine", "model"},
    "system": {"numpy", "jax", "batch", "engine", "model", "runtime"},
    "compile": {"numpy", "jax", "contract", "kernels/pallas", "kernels/providers", "model", "run"},
    "golden": {"numpy", "syrupy", "checks", "evidence", "oracle", *SUITE},
    "mutants": {"numpy", "jax", "checks", "engine", "kernels/providers", "model", "system", *SUITE},
    "profile": {"numpy", "scipy", "jax", "matplotlib", "tokenizers", "model", "report"},
    "report": {"jinja2", "rich", "checks", "evidence", *SUITE},
    "gates/options": set(),
    "gates/records": {"numpy"},
    "gates/statistics": {"numpy", "scipy", "gates/records"},
    "gates/tasks": {
        "numpy", "datasets", "fuzzywuzzy", "jinja2", "lm_eval", "tokenizers", "gates/options", "gates/records",
    },
    "gates/arms": {
        "httpx", "rich", "engine", "mutants", "gates/options", "gates/records", "gates/tasks", "runtime", "serve",
    },
    "gates": {
        "numpy", "mutants", "gates/arms", "gates/options", "gates/records", "gates/statistics", "gates/tasks", "report",
    },
    "commands": {
        "click", "numpy", "rich", "checks", "compile", "gates", "gates/arms", "gates/options", "gates/statistics",
        "golden", "kernels/providers", "mutants", "profile", "report", "runtime", "serve", *SUITE,
    },
    "cli": {"click", "commands"},
    "plugin": {"pytest", "xdist", "run"},
}  # fmt: skip
# Modules that may import more than their room, each with its reason; there are to be at most five.
EXCEPTIONS: dict[str, tuple[set[str], str]] = {}


def forbidden(name: str, room: str, found: set[str]) -> set[str]:
    """Of what a module of a room imports, what it may not."""
    more, _ = EXCEPTIONS.get(name, (set(), ""))
    return found - WALL[room] - SHARED - {room} - more


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_only_what_its_room_may(path):
    found = {other if target is None else room_of(target) for target, other in imports(path)}
    assert not forbidden(str(path.relative_to(PACKAGE)), room_of(path), found)


def test_the_wall_has_a_row_for_every_room_and_no_other():
    assert set(WALL) == {room_of(path) for path in modules()}


def test_the_wall_allows_no_more_than_is_used():
    used = arrows()
    allowed = {room: row & set(WALL) - SHARED for room, row in WALL.items()}
    assert {room: row - used[room] for room, row in allowed.items() if row - used[room]} == {}


def test_rooms_stand_in_no_circle():
    assert circle(arrows()) == []


def test_a_circle_would_be_found():
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}})) == {"a", "b", "c"}


def test_the_wall_rejects_a_kernel_in_the_oracle():
    assert forbidden("oracle/scores.py", "oracle", {"kernels/pallas", "numpy"}) == {"kernels/pallas"}
    assert forbidden("checks/parity.py", "checks", {"oracle", "scipy"}) == {"oracle", "scipy"}


def test_an_import_inside_a_function_counts(tmp_path):
    module = tmp_path / "late.py"
    module.write_text("def judge():\n    from dsa_verify.oracle.scores import value\n    import torch, json")
    assert list(imports(module)) == [
        (PACKAGE / "oracle" / "scores.py", "dsa_verify.oracle.scores.value"),
        (None, "torch"),
    ]


def test_exceptions_are_few_and_have_reasons():
    assert len(EXCEPTIONS) <= 5
    assert all((PACKAGE / name).is_file() and reason for name, (_, reason) in EXCEPTIONS.items())


@pytest.mark.parametrize(
    "statement",
    [
        "import dsa_verify",
        "import dsa_verify.cli",
        "import dsa_verify.plugin",
        "import dsa_verify.oracle, dsa_verify.checks, dsa_verify.batch.table",
        "import dsa_verify.runtime, dsa_verify.kernels.providers",
        "import dsa_verify.engine",
        "import dsa_verify.commands.compile, dsa_verify.compile.run, dsa_verify.compile.child",
        "import dsa_verify.gates.arms.client, dsa_verify.gates.arms.server_command, dsa_verify.serve.run",
        "import dsa_verify.system.scenarios, dsa_verify.system.survey",
        "import dsa_verify.report.merge, dsa_verify.report.page, dsa_verify.report.trend, dsa_verify.commands.report",
        "import dsa_verify.profile.analysis, dsa_verify.profile.page, dsa_verify.profile.recorder",
    ],
)
def test_import_does_not_load_jax(statement):
    check = f"{statement}; import sys; assert 'jax' not in sys.modules, 'jax was imported'"
    subprocess.run([sys.executable, "-c", check], check=True, cwd=ROOT)


def test_the_check_for_jax_can_fail():
    check = "import jax; import sys; assert 'jax' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True).returncode != 0


@pytest.mark.parametrize("provider", ["sglang_jax", "tpu_inference"])
def test_adapter_imports_its_package_only_inside_functions(provider):
    tree = ast.parse((PACKAGE / "kernels" / "providers" / f"{provider}.py").read_text("utf-8"))
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in top if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in top if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name and name.split(".")[0] in ("sgl_jax", "tpu_inference")}
