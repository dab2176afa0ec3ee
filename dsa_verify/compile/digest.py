"""Digest of everything that a compile's outcome depends on: sources, versions, shape, limits."""

import hashlib
import json
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from dsa_verify.compile.cases import CompileCase
from dsa_verify.kernels.providers import provider_names

_ROOT = Path(__file__).parents[1]
_OURS = (
    "compile",
    "kernels",
    "contract.py",
    "model/backend.py",
    "model/backend_config.py",
    "shapes.py",
    "errors.py",
    "evidence.py",
)
_PACKAGES = {"sglang_jax": "sgl_jax", "tpu_inference": "tpu_inference"}
"""Packages whose kernels a provider adapts."""
VERSIONED = ("jax", "jaxlib", "libtpu")


def versions() -> dict[str, str | None]:
    """Versions of what compiles; None for what is not installed."""
    return {"python": platform.python_version(), **{name: _version(name) for name in VERSIONED}}


def key(case: CompileCase, arrays: object, limits: object, path: Path | None) -> str:
    """A name for a result that changes when anything it depends on does."""
    code = (*(_tree(_ROOT / part) for part in _OURS), *map(_tree, _foreign(case.provider, path)))
    parts = [repr(case), repr(arrays), repr(limits), json.dumps(versions()), *code]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _foreign(provider: str, path: Path | None) -> list[Path]:
    """Folders or files of a provider's own code."""
    if provider in _PACKAGES:
        found = find_spec(_PACKAGES[provider])
        if found is not None and found.submodule_search_locations:
            return [Path(place) for place in found.submodule_search_locations]
    module = provider_names().get(provider, provider).partition(":")[0].split(".")
    if module[0] == "dsa_verify":
        return []
    source = sys.modules.get(".".join(module))  # whoever asks has loaded the provider
    origin = getattr(source, "__file__", None)
    if origin is None:
        return [path] if path else []
    return [Path(origin).parent]


@cache
def _tree(path: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
        digest.update(f"{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()
