"""Digest of the code that a mutant's result depends on, without comments and docstrings: prose costs no rerun."""

import ast
import hashlib
from functools import cache
from importlib.metadata import version
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SUITE = (
    "batch", "checks", "oracle", "runtime", "run/verify.py", "evidence.py", "shapes.py", "contract.py",
    "kernels/providers/layout.py", "mutants/adapters.py",
)  # fmt: skip
_PROVIDER = {
    "builtin": ("kernels/pallas", "kernels/providers/builtin.py"),
    "jnp": ("kernels/jnp", "kernels/providers/jnp.py"),
    "system": ("engine", "model", "system", "kernels/jnp", "kernels/providers/jnp.py", "mutants/system.py"),
}


def code_digest(provider: str, *parts: str) -> str:
    """A key that changes when the suite, a provider's kernels, JAX, or one of `parts` does."""
    return hashlib.sha256("\0".join((_of_code(provider), *parts)).encode()).hexdigest()


@cache
def _of_code(provider: str) -> str:
    digest = hashlib.sha256(version("jax").encode())
    for entry in (*_SUITE, *_PROVIDER[provider]):
        path = _ROOT / entry
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(_ROOT)}\0{_meaning(file.read_text('utf-8'))}\0".encode())
    digest.update((_ROOT / "batch" / "document.txt").read_bytes())
    return digest.hexdigest()


def _meaning(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):  # a lambda's is an expression
            body[:] = [s for s in body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return ast.dump(tree)
