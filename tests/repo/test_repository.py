"""Facts about the repository: the tree of its files, sizes, what may not be written down."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.repo.tree import PAGE, refresh

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsa_verify"
MODULES = sorted(PACKAGE.rglob("*.py"))
README = (ROOT / "README.md").read_text("utf-8")

# Longer than 300 lines, each with its reason.
LONG_FILES = {
    "batch/table.py": "a table: one entry a scenario",
    "mutants/kernel_table.py": "a table: one entry a mutant",
    "kernels/pallas/indexing.py": "the ring of key buffers and the scorer are one mechanism, read together",
}
# Longer than 40 lines of code, each with its reason.
LONG_FUNCTIONS: dict[str, str] = {}


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


def tracked() -> list[Path]:
    """Files under version control, or all source files where there is no version control."""
    try:
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [ROOT / line for line in listed.splitlines() if (ROOT / line).is_file()]
    except (OSError, subprocess.CalledProcessError):
        return [*MODULES, *ROOT.glob("*.*"), *(ROOT / "tests").rglob("*.py")]


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_module_opens_with_one_sentence(path):
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert doc, f"{relative(path)} has no docstring"
    first = doc.split("\n\n")[0]
    assert first.endswith("."), f"the first paragraph of {relative(path)} is not a sentence: {first!r}"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_file_fits_its_size(path):
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= 320 or relative(path) in LONG_FILES, f"{relative(path)} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_functions_fit_on_a_screen(path):
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = len((ast.get_docstring(node) or "").splitlines())
            signature = node.body[0].lineno - node.lineno
            length = (node.end_lineno or 0) - node.lineno - doc - signature
            name = f"{relative(path)}:{node.name}"
            assert length <= 45 or name in LONG_FUNCTIONS, f"{name} has {length} lines of code"


def test_tree_in_the_architecture_is_the_tree():
    page = PAGE.read_text("utf-8")
    assert refresh(page) == page, f"the tree in {PAGE.name} is stale; refresh it with: python -m tests.repo.tree"


def test_every_module_stands_in_the_tree():
    page = PAGE.read_text("utf-8")
    assert [path.name for path in MODULES if path.name != "__init__.py" and f" {path.name} " not in page] == []


def test_exceptions_still_exist():
    for name in LONG_FILES:
        assert (PACKAGE / name).is_file()
    for name in LONG_FUNCTIONS:
        path, function = name.split(":")
        assert f"def {function}(" in (PACKAGE / path).read_text("utf-8")


def test_no_path_of_a_machine_and_no_registry_host_is_written_down():
    hosts = "|".join(("python" + "hosted", "pypi" + "[.]org", "deb[.]" + "debian"))
    pattern = re.compile("/(work|home|tmp)" + "/[a-z]|" + hosts)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".toml", ".txt", ".yml", ".json", ""} and path.name != "LICENSE"
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not found


def test_constraints_pin_every_direct_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [
        *project["dependencies"],
        *(name for extra in ("tpu", "dev", "gate", "profile", "pytest") for name in extras[extra]),
    ]

    def canonical(requirement: str) -> str:
        return re.split(r"[<>=;\[]", requirement)[0].lower().replace("_", "-")

    pinned = {canonical(line) for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines()}
    missing = {canonical(name) for name in wanted} - pinned
    assert missing == {"dsa-verify"}  # dev takes the other extras


def test_golden_records_stay_small():
    records = [path for path in (ROOT / "golden").rglob("*.json")]
    assert records
    assert all(path.stat().st_size <= 8192 for path in records)
    assert sum(path.stat().st_size for path in records) <= 2 * 1024**2


def test_ci_calls_the_readmes_test_command():
    assert "make test" in README
    assert "make test" in (ROOT / ".ci" / "run").read_text("utf-8")
