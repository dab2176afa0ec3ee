"""The house in numbers: rooms, arrows, circles, names in two places, long functions; `python -m tests.repo.house`."""

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsa_verify"
LONG = 40
"""Lines of a function, its signature and docstring included, above which it is counted."""

ROOMS_BELOW = ("gates", "kernels")
"""Folders that are no room themselves: what lies in them are rooms."""
ONE_ROOM = {"gates/arrange", "gates/decision", "gates/reasons", "gates/report", "gates/run", "gates/__init__"}
"""Modules that are the room `gates`: from options and records to a verdict."""

SAME_NAME = {
    "Finding": "the protocol that checks read, in evidence.py, and the dataclass of the runtime that fulfils it",
}
"""Class names that stand in two places, each with its reason."""


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(PACKAGE.rglob("*.py"))


def room_of(path: Path) -> str:
    """The room of a module: its folder, or itself if it stands alone."""
    name = str(path.relative_to(PACKAGE).with_suffix(""))
    first, _, rest = name.partition("/")
    if name in ONE_ROOM or not rest or first not in ROOMS_BELOW or rest == "__init__":
        return first
    return f"{first}/{rest.partition('/')[0]}"


def imports(path: Path) -> Iterator[tuple[Path | None, str]]:
    """What a module imports, anywhere in it: a module of this package, or (None) the name of another package."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            first, *rest = name.split(".")
            if first == PACKAGE.name:
                yield _module(rest), name
            elif first not in sys.stdlib_module_names:
                yield None, first


def _module(parts: list[str]) -> Path:
    """The module that a dotted name within the package is, or is defined in."""
    for length in range(len(parts), 0, -1):
        path = PACKAGE.joinpath(*parts[:length])
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py")
        if (path / "__init__.py").is_file():
            return path / "__init__.py"
    return PACKAGE / "__init__.py"


def arrows() -> dict[str, set[str]]:
    """Each room with the rooms that it imports."""
    found: dict[str, set[str]] = {}
    for path in modules():
        room = room_of(path)
        targets = {room_of(target) for target, _ in imports(path) if target is not None}
        found.setdefault(room, set()).update(targets - {room})
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The rooms of a circle of imports, in order; empty if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def classes_in_two_places() -> dict[str, list[str]]:
    """Public class names that occur in several modules."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def long_functions() -> dict[str, int]:
    """Functions of more than `LONG` lines."""
    found = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > LONG:
                    found[f"{path.relative_to(PACKAGE)}:{node.name}"] = lines
    return found


def unannotated() -> list[str]:
    """Public functions, and methods of public classes, that leave a parameter or what they return without a type."""
    found = []
    for path in modules():
        for owner in _public_owners(ast.parse(path.read_text("utf-8"))):
            for node in owner.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                    given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                    given += [extra for extra in (node.args.vararg, node.args.kwarg) if extra]
                    bare = [one for one in given if one.annotation is None and one.arg not in ("self", "cls")]
                    if bare or node.returns is None:
                        found.append(f"{path.relative_to(PACKAGE)}:{node.name}")
    return found


def _public_owners(tree: ast.Module) -> list[ast.Module | ast.ClassDef]:
    classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    return [tree, *classes]


def report() -> str:
    """All of it for a reader."""
    graph, doubles, long = arrows(), classes_in_two_places(), long_functions()
    readme = len((ROOT / "README.md").read_text("utf-8").splitlines())
    there_and_back = circle(graph)
    return "\n".join(
        [
            f"rooms                      {len(graph)}",
            f"arrows                     {sum(map(len, graph.values()))}",
            f"circles                    {' -> '.join(there_and_back) or 0}",
            f"class names in two places  {len(doubles)}",
            *(f"    {name}: {', '.join(where)}: {SAME_NAME.get(name, 'no reason')}" for name, where in doubles.items()),
            f"functions over {LONG} lines     {len(long)}",
            *(f"    {name}: {lines}" for name, lines in sorted(long.items(), key=lambda item: -item[1])),
            f"functions without types    {len(unannotated())}",
            f"README lines               {readme}",
        ]
    )


if __name__ == "__main__":
    print(report())
