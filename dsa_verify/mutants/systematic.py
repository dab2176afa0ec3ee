"""Systematic mutants: every small change of a kind at every place of a kernel's syntax tree, by rule, none by hand."""

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache

from dsa_verify.contract import Provider
from dsa_verify.mutants.operators import NARROW, OPERATORS, Change
from dsa_verify.mutants.source import StaleMutant, source_of, with_changes

PROVIDER = "builtin"
PACKAGE = "dsa_verify.kernels.pallas"

_ATTENTION = ("sparse_mla_decode", "sparse_mla_prefill", "sparse_mla_prefill_qblock", "dense_mla")
MODULES: Mapping[str, tuple[str, ...]] = {
    "cache_write": ("cache_write",),
    "index_topk": ("index_topk", "indexer"),
    "index_page_topk": ("index_page_topk",),
    "indexing": ("index_topk", "index_page_topk", "indexer"),
    "sparse_mla_decode": ("sparse_mla_decode",),
    "sparse_mla_prefill": ("sparse_mla_prefill",),
    "query_attention": ("sparse_mla_decode", "sparse_mla_prefill"),
    "sparse_mla_prefill_qblock": ("sparse_mla_prefill_qblock",),
    "dense_mla": ("dense_mla",),
    "block_attention": ("sparse_mla_prefill_qblock", "dense_mla"),
    "flash": _ATTENTION,
    "layout": ("cache_write", "dense_mla", "sparse_mla_decode", "sparse_mla_prefill_qblock", "index_topk"),
    "indexer": ("indexer",),
}
"""Modules of the built-in kernels, and the surfaces whose scenarios may show a change in them, in order of trial."""

_LONGEST_EXCERPT = 70


@dataclass(frozen=True)
class SystematicMutant:
    """A built-in kernel with one node of its syntax tree changed.

    name: `module.function/operator: before -> after`; equal ones in a function are numbered in order, so a name
      stays what it is while other lines move. Knows its place by that name alone.
    kind: the operator. surfaces: where to look for a difference, in this order.
    fingerprint: the changed node in full.
    """

    name: str
    kind: str
    module: str
    surfaces: tuple[str, ...]
    fingerprint: str

    provider = PROVIDER
    package = PACKAGE
    scenario = None

    @property
    def edits(self) -> tuple["SystematicMutant"]:
        """Itself: it is a change of the source of `module`."""
        return (self,)

    def apply(self, source: str) -> str:
        """The changed source. Raises `StaleMutant` when the place no longer exists."""
        tree, changes = _enumerated(self.module, source)
        change = changes.get(self.name)
        if change is None:
            raise StaleMutant(f"{self.module} has no place {self.name!r}; the kernel moved on: generate mutants anew")
        ReplaceNode(change.before, change.after).visit(tree)
        changed = ast.unparse(tree)
        ReplaceNode(change.after, change.before).visit(tree)  # the tree is shared by all mutants of the module
        return changed

    def load(self) -> Provider:
        """The broken provider. Raises `StaleMutant` when the place no longer exists."""
        from dsa_verify.kernels.providers import load_provider

        return with_changes(self.package, self.edits, lambda: load_provider(PROVIDER))


@cache
def systematic_mutants() -> dict[str, SystematicMutant]:
    """Every mutant of every built-in kernel, by name, in the order of modules and source."""
    found = {}
    for module, surfaces in MODULES.items():
        for name, change in _enumerated(module, source_of(PACKAGE, module))[1].items():
            after = ast.unparse(change.after)
            found[name] = SystematicMutant(name, change.operator, module, surfaces, after)
    return found


@lru_cache(maxsize=32)
def _enumerated(module: str, source: str) -> tuple[ast.Module, dict[str, Change]]:
    tree = ast.parse(source)
    return tree, dict(_named(module, tree))


def _named(module: str, tree: ast.Module) -> Iterator[tuple[str, Change]]:
    seen: Counter[str] = Counter()
    for function, node in places_of(tree):
        for operator, generate in OPERATORS.items():
            for after in generate(node):
                what = f"{_excerpt(node)} -> {_excerpt(after)}"
                name = f"{module}.{function}/{operator}: {what}"
                seen[name] += 1
                numbered = name if seen[name] == 1 else f"{name} #{seen[name]}"
                yield numbered, Change(operator, node, after)


def _excerpt(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split()).replace(NARROW, "bf16")
    return text if len(text) <= _LONGEST_EXCERPT else f"{text[: _LONGEST_EXCERPT - 3]}..."


def places_of(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Every node inside functions that may be changed, with the function's name, in order of source."""

    def walk(node: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
        if _excluded(node):
            return
        if isinstance(node, ast.FunctionDef):
            function = f"{function}.{node.name}" if function else node.name
        elif isinstance(node, ast.ClassDef):
            function = node.name
        elif function:
            yield function, node
        for child in _children(node):
            yield from walk(child, function)

    return walk(tree, "")


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Children without what no run evaluates: arguments, annotations, docstrings, the alignment that is promised, and
    the addresses of a copy that is only waited for: a wait counts bytes on a semaphore."""
    match node:
        case ast.Call(func=ast.Attribute(attr="multiple_of")):
            yield node.args[0]
            return
        case ast.Call(
            func=ast.Attribute(attr="wait", value=ast.Call(func=ast.Attribute(attr="make_async_copy")) as copy)
        ):
            yield copy.args[2]
            return
    for name, value in ast.iter_fields(node):
        if name in ("args", "returns", "annotation") and not isinstance(value, list):
            continue
        if name == "bases":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


_SILENT_KEYWORDS = {
    "name": "a label",
    "compiler_params": "hints to the compiler; an interpreter ignores them",
    "memory_space": "where a block lives; an interpreter has one memory",
    "precision": "float32 products are exact enough on a CPU whatever it says; only a device shows it",
    "out_shape": "shape of the result; a wrong one is refused by Pallas before anything runs",
    "scratch_shapes": "more scratch memory than is used changes nothing, less is refused by the bounds check",
}
_SILENT_FUNCTIONS = {
    "_whole_tiles": "layout of device memory: an interpreter has no tiles; tests/unit/test_compile.py has",
    "_query_block": "validation, and the choice of a tile size: speed, not results",
    "_pages_per_step": "likewise",
    "scratch": "shapes of scratch memory",
}


def _excluded(node: ast.AST) -> bool:
    """Whether a subtree holds no decision of a kernel; each rule says why."""
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="check_call"))):  # contract validation has tests of its own
            return True
        case ast.Assign(targets=[ast.Name(id="arrays")]):  # gathers arguments for that validation
            return True
        case ast.Raise() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(body=[ast.Raise()]):  # contract validation
            return True
        case ast.keyword(arg=str(name)) if name in _SILENT_KEYWORDS:
            return True
        case ast.FunctionDef(name=name) if name in _SILENT_FUNCTIONS:
            return True
        case ast.BoolOp(op=ast.Or()):  # `given or default`: default tile sizes change speed; the suite gives its own
            return True
        case ast.Delete() | ast.Pass() | ast.JoinedStr() | ast.expr_context() | ast.operator() | ast.cmpop():
            return True
    return False


class ReplaceNode(ast.NodeTransformer):
    """Puts one node in the place of another, found by identity."""

    def __init__(self, before: ast.AST, after: ast.AST) -> None:
        self.before, self.after = before, after

    def visit(self, node: ast.AST) -> ast.AST:
        return self.after if node is self.before else self.generic_visit(node)
