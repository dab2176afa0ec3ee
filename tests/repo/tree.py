"""The tree in docs/architecture.md, made from the first sentence of every module; run as a module to refresh it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "architecture.md"
HEADING = "## Every file"


def sentence(path: Path) -> str:
    """First sentence of a module's docstring, on one line."""
    doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return " ".join(doc.split("\n\n")[0].split())


def tree(folder: Path = ROOT / "dsa_verify", depth: int = 0) -> list[str]:
    """One line a folder and a module, indented; a folder shows its `__init__`'s sentence."""
    indent = "  " * depth
    lines = [f"{indent}{folder.name + '/':<{36 - len(indent)}}{sentence(folder / '__init__.py')}"]
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            lines.append(f"{indent}  {path.name:<{34 - len(indent)}}{sentence(path)}")  # noqa: PERF401
    for child in sorted(folder.iterdir()):
        if (child / "__init__.py").exists():
            lines.extend(tree(child, depth + 1))
    return lines


def refresh(page: str) -> str:
    """The page with today's tree in it."""
    block = "\n".join(tree())
    return re.sub(rf"({HEADING}.*?```\n).*?(\n```)", lambda m: m[1] + block + m[2], page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(refresh(PAGE.read_text("utf-8")), "utf-8")
