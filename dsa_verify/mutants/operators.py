"""Operators: the small changes that systematic mutants make, each from a node to what takes its place."""

# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
# Nodes are told apart by what they are at run time; the stubs of `ast` know only their common root.

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FLIPS = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_EXTREMES = {"minimum": "maximum", "maximum": "minimum", "min": "max", "max": "min"}
_SENTINELS = {"NO_ENTRY", "NOBODY", "UNREACHABLE"}

NARROW = "__import__('jax').lax.reduce_precision"
"""Rounds to bfloat16 in float32; a cast there and back is what compilers remove."""


@dataclass(frozen=True, eq=False)
class Change:
    """Node `after` in the place of node `before`."""

    operator: str
    before: ast.AST
    after: ast.AST


def _parse(template: str, **parts: ast.AST) -> ast.expr:
    """An expression from a template in which names stand for nodes."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.AST:
            return parts.get(node.id, node)

    return Fill().visit(ast.parse(template, mode="eval").body)


def _called(node: ast.AST) -> tuple[str, list[ast.expr]]:
    """Last name of what is called, and the positional arguments; ("", []) for anything but a call."""
    if not isinstance(node, ast.Call):
        return "", []
    function = node.func
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    return name, node.args


def _binary(node: ast.AST, *operators: type[ast.operator]) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, operators)


def _is_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value == 1 and not isinstance(node.value, bool)


def flip_comparison(node: ast.AST) -> Iterator[ast.AST]:
    """< to <=, > to >=, == to != and back."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in _FLIPS:
        yield ast.Compare(node.left, [_FLIPS[type(node.ops[0])]()], node.comparators)


def off_by_one(node: ast.AST) -> Iterator[ast.AST]:
    """`x + 1` without its one and with two; without a one, + for - and back."""
    if not _binary(node, ast.Add, ast.Sub):
        return
    if _is_one(node.right):
        yield node.left
        yield ast.BinOp(node.left, node.op, ast.Constant(2))
    elif _is_one(node.left):
        yield ast.BinOp(ast.Constant(2), node.op, node.right)
    else:
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)


def shift_index(node: ast.AST) -> Iterator[ast.AST]:
    """Each computed index of a subscript, each start of a slice, and each axis of a block's place, one further."""
    if isinstance(node, ast.Subscript) and not _is_static(node):
        single = not isinstance(node.slice, ast.Tuple)
        items = [node.slice] if single else node.slice.elts
        for at, item in enumerate(items):
            moved = _moved(item)
            if moved is not None:
                changed = [*items[:at], moved, *items[at + 1 :]]
                index = changed[0] if single else ast.Tuple(changed, ast.Load())
                yield ast.Subscript(node.value, index, node.ctx)
    name, args = _called(node)
    if name == "ds":
        yield ast.Call(node.func, [_parse("x + 1", x=args[0]), *args[1:]], node.keywords)
    if isinstance(node, ast.Lambda) and isinstance(node.body, ast.Tuple):  # the index map of a BlockSpec
        for at, item in enumerate(node.body.elts):
            if not isinstance(item, ast.Constant):
                items = [*node.body.elts[:at], _parse("x + 1", x=item), *node.body.elts[at + 1 :]]
                yield ast.Lambda(node.args, ast.Tuple(items, ast.Load()))


def _is_static(node: ast.Subscript) -> bool:
    """A length of an axis, or an entry of a table of names: what a wrong index of these does is raise."""
    if isinstance(node.value, ast.Name):
        return node.value.id.isupper()
    return _is_length(node)


def _moved(item: ast.expr) -> ast.expr | None:
    """An index one further. Constants from 0 up stay: they name the only row of an axis of length one."""
    if isinstance(item, ast.Slice):
        if item.lower is None or item.upper is None:
            return None
        return ast.Slice(_parse("x + 1", x=item.lower), _parse("x + 1", x=item.upper), item.step)
    if isinstance(item, ast.UnaryOp) and isinstance(item.operand, ast.Constant):
        return _parse("x - 1", x=item)
    if isinstance(item, ast.Constant) or _called(item)[0] == "ds":
        return None
    return _parse("x + 1", x=item)


def drop_mask_term(node: ast.AST) -> Iterator[ast.AST]:
    """Each operand of &, and the condition of each `where` and `when`."""
    if _binary(node, ast.BitAnd):
        yield node.left
        yield node.right
    name, args = _called(node)
    if name == "where" and len(args) == 3:
        yield args[1]
    elif name == "when":
        yield ast.Call(node.func, [ast.Constant(True)], node.keywords)


def drop_start(node: ast.AST) -> Iterator[ast.AST]:
    """A DMA that never starts."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "start":
        yield ast.Constant(None)


def drop_wait(node: ast.AST) -> Iterator[ast.AST]:
    """A DMA that is not waited for."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "wait":
        yield ast.Constant(None)


def freeze_slot(node: ast.AST) -> Iterator[ast.AST]:
    """A remainder that is always 0 (buffer of a ring, offset in a page), and the other of two buffers that is this."""
    if _called(node)[0] == "rem" or _binary(node, ast.Mod):
        yield _parse("x * 0", x=node)
    if _binary(node, ast.Sub) and _is_one(node.left) and isinstance(node.right, ast.Name):
        yield node.right


def narrow_accumulator(node: ast.AST) -> Iterator[ast.AST]:
    """Sums of float32 rounded to bfloat16."""
    name, _ = _called(node)
    keywords = {keyword.arg for keyword in node.keywords} if isinstance(node, ast.Call) else set()
    sums = name == "dot_general" or (name == "sum" and "dtype" not in keywords)
    if sums or (_binary(node, ast.Add) and any("shrink" in ast.unparse(side) for side in (node.left, node.right))):
        yield _parse(f"{NARROW}(x, 8, 7)", x=node)


def drop_factor(node: ast.AST) -> Iterator[ast.AST]:
    """One factor of a product; a divisor."""
    if _binary(node, ast.Mult) and not isinstance(node.left, ast.List):
        yield node.left
        if ast.dump(node.left) != ast.dump(node.right):  # of a square, one is the other
            yield node.right
    elif _binary(node, ast.Div):
        yield node.left


def swap_extreme(node: ast.AST) -> Iterator[ast.AST]:
    """Minimum for maximum and back, and only one of the two that are compared; a clip that clips nothing."""
    name, args = _called(node)
    if name in _EXTREMES and not isinstance(node.func, ast.Name):
        yield ast.Call(ast.Attribute(node.func.value, _EXTREMES[name], ast.Load()), args, node.keywords)
        if len(args) == 2:
            yield from args
    elif name in _EXTREMES and len(args) == 2:
        yield from args
    elif name == "clip":
        yield args[0]


def _is_length(node: ast.AST) -> bool:
    """The length of an axis, which what it holds divides exactly."""
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def round_up(node: ast.AST) -> Iterator[ast.AST]:
    """Division that rounds up instead of down, and back."""
    name, args = _called(node)
    if _binary(node, ast.FloorDiv) and not isinstance(node.left, ast.UnaryOp) and not _is_length(node.left):
        yield _parse("(a + b - 1) // b", a=node.left, b=node.right)
    elif name == "div":
        yield _parse("(a + b - 1) // b", a=args[0], b=args[1])
    elif name == "cdiv":
        yield _parse("a // b", a=args[0], b=args[1])
    elif isinstance(node, ast.UnaryOp) and _binary(node.operand, ast.FloorDiv):
        yield _parse("a // b", a=node.operand.left.operand, b=node.operand.right)
    elif name == "align":
        yield args[0]


def other_fill(node: ast.AST) -> Iterator[ast.AST]:
    """A sentinel (-1, -inf, a name) that is 0: for padding, for what is masked, for the start of a maximum."""
    name, args = _called(node)
    if isinstance(node, ast.keyword) and node.arg in ("value", "fill_value") and _zero_for(node.value):
        yield ast.keyword(node.arg, _zero_for(node.value))
    elif isinstance(node, ast.Compare) and _zero_for(node.comparators[0]):
        yield ast.Compare(node.left, node.ops, [_zero_for(node.comparators[0])])
    elif name != "reshape":  # whose -1 is no value
        for at, arg in enumerate(args):
            zero = _zero_for(arg)
            if zero:
                yield ast.Call(node.func, [*args[:at], zero, *args[at + 1 :]], node.keywords)


def _zero_for(node: ast.expr) -> ast.Constant | None:
    """0 in the type of a sentinel; None for anything else."""
    if isinstance(node, ast.Name) and node.id in _SENTINELS:
        return ast.Constant(0)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        if _is_one(node.operand):
            return ast.Constant(0)
        if isinstance(node.operand, ast.Attribute) and node.operand.attr == "inf":
            return ast.Constant(0.0)
    return None


def other_side(node: ast.AST) -> Iterator[ast.AST]:
    """A binary search that ends on the other side of equals."""
    if isinstance(node, ast.keyword) and node.arg == "side" and isinstance(node.value, ast.Constant):
        yield ast.keyword("side", ast.Constant({"left": "right", "right": "left"}[node.value.value]))


def short_loop(node: ast.AST) -> Iterator[ast.AST]:
    """A loop without its last turn, or without its first."""
    name, args = _called(node)
    if name in ("loop", "fori_loop"):
        yield ast.Call(node.func, [args[0], _parse("x - 1", x=args[1]), *args[2:]], node.keywords)
        yield ast.Call(node.func, [_parse("x + 1", x=args[0]), *args[1:]], node.keywords)
    elif name == "range" and len(args) == 1:
        yield ast.Call(node.func, [_parse("x - 1", x=args[0])], [])


def drop_statement(node: ast.AST) -> Iterator[ast.AST]:
    """A call made for its effect, or a store, left out. Starts and waits have operators of their own."""
    effect = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if (effect and not any(True for _ in (*drop_start(node.value), *drop_wait(node.value)))) or (
        isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
    ):
        yield ast.Pass()


OPERATORS: dict[str, Callable[[ast.AST], Iterator[ast.AST]]] = {
    "comparison flipped": flip_comparison,
    "off by one": off_by_one,
    "index shifted": shift_index,
    "mask term dropped": drop_mask_term,
    "start dropped": drop_start,
    "wait dropped": drop_wait,
    "slot frozen": freeze_slot,
    "accumulator narrowed": narrow_accumulator,
    "factor dropped": drop_factor,
    "extreme swapped": swap_extreme,
    "division rounded up": round_up,
    "fill changed": other_fill,
    "search side swapped": other_side,
    "loop shortened": short_loop,
    "statement dropped": drop_statement,
}
"""By name, in the order in which a node's mutants are generated."""
