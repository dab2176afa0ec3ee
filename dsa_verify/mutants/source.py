"""Broken copies of packages: import one anew with a few lines of its source replaced."""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Protocol, TypeVar

from dsa_verify.errors import DsaVerifyError

T = TypeVar("T")
_ROOT = Path(__file__).parents[2]


class StaleMutant(DsaVerifyError):
    """The source that a mutant replaces is no longer there, so the mutant proves nothing."""


class SourceChange(Protocol):
    """Changes the source of one module, named within its package, or raises `StaleMutant`."""

    @property
    def module(self) -> str: ...

    def apply(self, source: str) -> str: ...


@dataclass(frozen=True)
class SourceEdit:
    """Replace `old`, which must occur exactly once in the source of `module` of some package, by `new`."""

    module: str
    old: str
    new: str

    @property
    def fingerprint(self) -> str:
        """Changes when the edit does."""
        return "\0".join((self.module, self.old, self.new))

    def apply(self, source: str) -> str:
        """The edited source. Raises `StaleMutant` when `old` does not occur exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise StaleMutant(
                f"{self.old!r} occurs {found} times in {self.module}, expected once; the source moved on: "
                f"point the mutant at the line that does this now"
            )
        return source.replace(self.old, self.new)


def source_of(package: str, module: str) -> str:
    """Source of a module of dsa_verify, found without importing anything. Raises `StaleMutant` if there is none."""
    path = _ROOT.joinpath(*package.split("."), *module.split(".")).with_suffix(".py")
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        raise StaleMutant(f"{package}.{module} does not exist; point the mutant at the module that does") from None


def with_changes(package: str, changes: Iterable[SourceChange], call: Callable[[], T]) -> T:
    """What `call` returns when it imports a package, now forgotten, anew with its source changed.

    What it returns keeps the broken copy; afterwards the real package is imported as before, untouched.
    Raises `StaleMutant` when a change does not apply, or when `call` never imports its module.
    """
    by_module: dict[str, list[SourceChange]] = {}
    for change in changes:
        by_module.setdefault(f"{package}.{change.module}", []).append(change)
    with _forgotten(package), _changing(by_module) as applied:
        result = call()
    unused = set(by_module) - applied
    if unused:
        raise StaleMutant(f"nothing imports {', '.join(sorted(unused))}; the mutant changes nothing")
    return result


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
def _changing(changes: Mapping[str, Sequence[SourceChange]]) -> Iterator[set[str]]:
    finder = _ChangingFinder(changes)
    sys.meta_path.insert(0, finder)
    try:
        yield finder.applied
    finally:
        sys.meta_path.remove(finder)


class _ChangingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules that have changes, and gives them a loader that applies these."""

    def __init__(self, changes: Mapping[str, Sequence[SourceChange]]) -> None:
        self.changes = changes
        self.applied: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None:
            return None
        self.applied.add(fullname)
        loader = _ChangingLoader(fullname, spec.origin, self.changes[fullname])
        return importlib.util.spec_from_file_location(fullname, spec.origin, loader=loader)


class _ChangingLoader(importlib.machinery.SourceFileLoader):
    """Loads a module from its changed source."""

    def __init__(self, fullname: str, path: str, changes: Sequence[SourceChange]) -> None:
        super().__init__(fullname, path)
        self.changes = changes

    def get_code(self, fullname: str) -> CodeType:
        """Compile the changed source; the bytecode cache of the real module is neither read nor written."""
        source = self.get_source(fullname) or ""
        for change in self.changes:
            try:
                source = change.apply(source)
            except StaleMutant as error:
                raise StaleMutant(f"{fullname}: {error}") from None
        return self.source_to_code(source.encode(), self.path)
