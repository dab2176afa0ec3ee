"""Broken copies of kernels: re-import a package with a few lines of its source replaced."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from dsa_verify.errors import DsaVerifyError

T = TypeVar("T")


class StaleMutant(DsaVerifyError):
    """The source that a mutant replaces is no longer there, so the mutant proves nothing."""


class SourceChange(Protocol):
    """Something that changes the source of one module, or raises `StaleMutant`."""

    @property
    def module(self) -> str: ...

    def apply(self, source: str) -> str: ...


@dataclass(frozen=True)
class Patch:
    """Replace `old`, which must occur exactly once in the source of `module`, by `new`."""

    module: str
    old: str
    new: str

    def apply(self, source: str) -> str:
        """The patched source. Raises `StaleMutant` when `old` does not occur exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise StaleMutant(
                f"{self.module} holds {self.old!r} {found} times, expected once; the kernel moved on: "
                f"point the mutant at the line that does this now"
            )
        return source.replace(self.old, self.new)


def with_patches(package: str | tuple[str, ...], patches: Iterable[SourceChange], load: Callable[[], T]) -> T:
    """Call `load` while a package, or several that import each other, imports anew with patched source.

    What `load` returns keeps the broken copy; afterwards the real packages are imported as before, untouched.
    Raises `StaleMutant` when a patch does not apply, or when `load` never imports its module.
    """
    by_module: dict[str, list[SourceChange]] = {}
    for patch in patches:
        by_module.setdefault(patch.module, []).append(patch)
    with ExitStack() as stack:
        for each in (package,) if isinstance(package, str) else package:
            stack.enter_context(_forgotten(each))
        applied = stack.enter_context(_patching(by_module))
        loaded = load()
    unused = set(by_module) - applied
    if unused:
        raise StaleMutant(f"nothing imports {', '.join(sorted(unused))}; the mutant changes nothing")
    return loaded


@contextmanager
def _forgotten(package: str) -> Iterator[None]:
    """Take a package out of the module table, and put back what was there."""

    def belongs(name: str) -> bool:
        return name == package or name.startswith(package + ".")

    saved = {name: module for name, module in sys.modules.items() if belongs(name)}
    parent_name, _, leaf = package.rpartition(".")
    parent = importlib.import_module(parent_name)
    attribute = vars(parent).pop(leaf, None)
    for name in saved:
        del sys.modules[name]
    try:
        yield
    finally:
        for name in [name for name in sys.modules if belongs(name)]:
            del sys.modules[name]
        sys.modules.update(saved)
        vars(parent).pop(leaf, None)
        if attribute is not None:
            setattr(parent, leaf, attribute)


@contextmanager
def _patching(patches: Mapping[str, list[SourceChange]]) -> Iterator[set[str]]:
    finder = _PatchingFinder(patches)
    sys.meta_path.insert(0, finder)
    try:
        yield finder.applied
    finally:
        sys.meta_path.remove(finder)


class _PatchingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that have patches, and gives them a loader that applies these."""

    def __init__(self, patches: Mapping[str, list[SourceChange]]) -> None:
        self.patches, self.applied = patches, set()

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.patches:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        self.applied.add(fullname)
        loader = _PatchingLoader(fullname, spec.origin, self.patches[fullname])
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


class _PatchingLoader(importlib.machinery.SourceFileLoader):
    def __init__(self, fullname: str, path: str, patches: list[SourceChange]) -> None:
        super().__init__(fullname, path)
        self.patches = patches

    def get_code(self, fullname):
        """Compile the patched source; the bytecode cache of the real module is neither read nor written."""
        source = self.get_source(fullname) or ""
        for patch in self.patches:
            source = patch.apply(source)
        return self.source_to_code(source.encode(), self.path)
