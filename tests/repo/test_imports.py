"""Who may import whom: the table of design section 3, read from the source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsa_verify"
NUMERIC = {"numpy", "scipy", "ml_dtypes"}

# Room -> rooms and third-party packages it may import, anywhere in its files. The standard library is free, and so are
# `errors`, `evidence` and `shapes`, which all rooms share.
SHARED = {"errors", "evidence", "shapes"}
ALLOWED = {
    "errors": set(),
    "shapes": set(),
    "evidence": {"numpy", "batch"},
    "batch": NUMERIC,
    "oracle": {"numpy", "batch"},
    "checks": {"numpy", "scipy", "batch"},
    "kernels": {"numpy", "ml_dtypes", "jax", "sgl_jax", "tpu_inference", "batch"},
    "runtime": {"numpy", "jax"},
    "compile": {"numpy", "jax", "backend", "config", "kernels", "workers"},
    "config": set(),
    "backend": {"jax", "kernels", "config"},
    "model": {"numpy", "jax", "ml_dtypes", "kernels", "backend", "config", "engine", "safetensors"},
    "verify": {"numpy", "jax", "oracle", "batch", "checks", "kernels", "runtime"},
    "engine": {"numpy", "batch"},
    "golden": {"numpy", "syrupy", "oracle", "batch", "checks", "kernels", "verify", "suite", "known", "__init__"},
    "profile": {"numpy", "scipy"},
    "mutants": {
        "kernels", "batch", "numpy", "jax", "verify", "checks", "suite", "workers", "system", "engine", "model",
    },
    "system": {"numpy", "jax", "batch", "engine", "model", "backend", "config", "runtime"},
    "gates": {"numpy", "scipy"},
    "report": {"jinja2", "rich", "batch", "kernels", "known", "shards", "suite"},
    "shards": {"known", "suite"},
    "hosts": {"jax", "workers"},
    "mesh": {"numpy", "jax", "batch", "kernels", "runtime", "verify"},
    "sharding": {"batch", "checks", "hosts", "kernels", "mesh", "oracle", "shards", "suite", "verify"},
    "serve": {"jax", "batch", "config", "engine", "model", "starlette", "uvicorn", "__init__"},
}  # fmt: skip
# Files within a room that may import more.
EXCEPTIONS: dict[str, set[str]] = {
    "mutants/peers.py": {"click"},
    "gates/arms.py": {"engine", "httpx", "runtime", "serve"},
    "gates/broken.py": {"jax", "mutants"},
    "gates/client.py": {"httpx"},
    "gates/cut.py": {"tokenizers"},
    "gates/progress.py": {"rich"},
    "gates/report.py": {"jinja2"},
    "gates/servercmd.py": {"httpx"},
    "gates/gsm8k_long.py": {"lm_eval"},
    "gates/longbench2.py": {"jinja2"},
    "gates/tasks.py": {"datasets", "fuzzywuzzy", "lm_eval"},
    "kernels/providers/builtin.py": {"__init__"},
    "kernels/providers/jnp.py": {"__init__"},
    "profile/heatmap.py": {"matplotlib"},
    "profile/plots.py": {"matplotlib"},
    "profile/prefill.py": {"model", "tokenizers"},
    "profile/recorder.py": {"jax"},
    "serve/model.py": {"tokenizers"},
}


def imports(path: Path) -> set[str]:
    """Rooms of this package and top-level third-party packages that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "dsa_verify":
                room = (
                    parts[1] if (PACKAGE / parts[1]).exists() or (PACKAGE / f"{parts[1]}.py").exists() else "__init__"
                )
                found.add(room)
            elif parts[0] not in sys.stdlib_module_names:
                found.add(parts[0])
    return found


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if room_of(path) in ALLOWED]


def forbidden(room: str, relative: str, found: set[str]) -> set[str]:
    return found - ALLOWED[room] - SHARED - {room} - EXCEPTIONS.get(relative, set())


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_file_imports_only_what_its_room_may(path):
    assert not forbidden(room_of(path), str(path.relative_to(PACKAGE)), imports(path))


def test_the_table_rejects_a_kernel_in_the_oracle():
    assert forbidden("oracle", "oracle/scores.py", {"kernels", "numpy"}) == {"kernels"}
    assert forbidden("checks", "checks/parity.py", {"oracle"}) == {"oracle"}


def test_every_room_that_judges_or_defines_is_in_the_table():
    assert {"batch", "oracle", "checks", "kernels", "runtime", "verify"} <= {room_of(path) for path in FILES}


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
        "import dsa_verify.gates.client, dsa_verify.gates.servercmd, dsa_verify.commands.serve, dsa_verify.serve.run",
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
