"""The table of peer mutants: changes of another project's kernels, each named by place and operator."""

import ast
import hashlib
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from dsa_verify.mutants.kernel import KernelWrapper
from dsa_verify.mutants.operators import OPERATORS, Change
from dsa_verify.mutants.registry import KERNEL_MUTANTS
from dsa_verify.mutants.source import StaleMutant
from dsa_verify.mutants.systematic import ReplaceNode, places_of

TABLE = Path(__file__).with_name("peers.toml")
TEMPLATE = "template"


@dataclass(frozen=True)
class PeerMutant:
    """One change in a peer's source, without a word of it.

    name: the handwritten mutant it corresponds to. function: qualified name within `file`.
    operator: a key of `OPERATORS`, or `template`: `to` in the place of the node, where `x` is the node and `x.left`,
      `x.args[0]` and the like are its parts; an empty `to` takes an argument out.
    node: digest of the changed node's text, so that a peer that moved on fails loudly.
    choice: which of the changes that the operator makes at nodes of that text in `function`, from 1.
    surface, scenarios: where this suite looks first; what survives these is shown the whole quick tier.
    remark: why this suite cannot see it, if that is known.
    """

    name: str
    file: str
    function: str
    operator: str
    node: str
    surface: str
    scenarios: tuple[str, ...]
    to: str = ""
    choice: int = 1
    remark: str = ""

    @property
    def place(self) -> str:
        return f"{Path(self.file).stem}.{self.function}"

    def changes(self, tree: ast.Module) -> Iterator[Change]:
        for function, node in places_of(tree):
            if function == self.function and digest(node) == self.node:
                if self.operator != TEMPLATE:
                    yield from (Change(self.operator, node, after) for after in OPERATORS[self.operator](node))
                elif isinstance(node, ast.expr | ast.keyword):
                    yield Change(TEMPLATE, node, rewritten(self.to, node))  # pyright: ignore[reportArgumentType]

    def apply(self, source: str, probe: bool = False) -> str:
        """The changed source; with `probe`, source that raises where the change would be. Raises `StaleMutant`."""
        tree = ast.parse(source)
        found = list(self.changes(tree))
        if len(found) < self.choice:
            raise StaleMutant(
                f"{self.name}: {self.file} has {len(found)} changes {self.operator!r} at nodes {self.node} of "
                f"{self.function}, expected {self.choice} or more; the peer moved on: point the mutant at the node "
                f"that does this now (--places lists them)"
            )
        change = found[self.choice - 1]
        ReplaceNode(change.before, raising(change.before) if probe else change.after).visit(tree)
        return ast.unparse(tree)


@dataclass(frozen=True)
class Table:
    """The peer mutants, the peer's tests that run on a CPU and those that do not, and what is left out and why."""

    revision: str
    date: str
    tests: tuple[str, ...]
    not_on_cpu: Mapping[str, str]
    mutants: tuple[PeerMutant, ...]
    left_out: Mapping[str, str]


def load_table(path: Path = TABLE) -> Table:
    """Read the table; handwritten mutants that spoil metadata, and those of surfaces the peer lacks, are left out."""
    document = tomllib.loads(path.read_text("utf-8"))
    mutants = tuple(PeerMutant(**{**entry, "scenarios": tuple(entry["scenarios"])}) for entry in document["mutant"])
    wrong = {m.name: document["caller"] for m in KERNEL_MUTANTS.values() if isinstance(m.change, KernelWrapper)}
    lacking = document["no_surface"]
    wrong |= {m.name: lacking[m.surface] for m in KERNEL_MUTANTS.values() if m.surface in lacking}
    head = {key: document[key] for key in ("revision", "date", "not_on_cpu")}
    return Table(**head, tests=tuple(document["tests"]), mutants=mutants, left_out=document["left_out"] | wrong)


def digest(node: ast.AST) -> str:
    """Names a node by its text."""
    return hashlib.sha256(ast.unparse(node).encode()).hexdigest()[:12]


def rewritten(template: str, node: ast.AST) -> ast.AST | None:
    """A template with a node and its parts filled in; None for an empty one."""

    def part(path: ast.AST) -> object:
        match path:
            case ast.Name(id="x"):
                return node
            case ast.Attribute(value=value, attr=attr):
                whole = part(value)
                return getattr(whole, attr) if isinstance(whole, ast.AST) and attr in whole._fields else None
            case ast.Subscript(value=value, slice=ast.Constant(value=int(at))):
                whole = part(value)
                return whole[at] if isinstance(whole, list) else None
        return None

    class Fill(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            found = part(node)
            return found if isinstance(found, ast.AST) else self.generic_visit(node)

    return Fill().visit(ast.parse(template, mode="eval").body) if template else None


def raising(node: ast.AST) -> ast.AST:
    """What raises in the place of a node, as soon as it is evaluated."""
    fails = ast.parse("1 // 0", mode="eval").body
    if isinstance(node, ast.keyword):
        return ast.keyword(node.arg, fails)
    return fails if isinstance(node, ast.expr) else ast.Expr(fails)


def raising_function(source: str, name: str) -> str:
    """Source in which a function of the module raises when it is called."""
    tree = ast.parse(source)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            node.body.insert(0, ast.Expr(ast.parse("1 // 0", mode="eval").body))
    return ast.unparse(tree)
