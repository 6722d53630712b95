"""Dims that a file writes as sums and products of other dims: ``past + sequence``, ``2*batch``.

Exporters with symbolic shapes name a dim by such an expression. It is parsed, never evaluated as
code, and only as far as whole numbers and known names go.
"""

import ast
import re
from collections.abc import Callable, Mapping
from operator import add, floordiv, mul, sub

_MAX_LENGTH = 200
"""A longer name is opaque: no exporter writes one, and parsing stays cheap."""
_MAX_DIM = 2**63 - 1

_ARITHMETIC = re.compile(r"(?:\s*+(?:[A-Za-z_]\w*+|\d++(?!\w)|[-+*/()]))+\s*", re.ASCII)
"""Names, whole numbers and their operators: on anything else Python's parser may warn."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
}


def names_in(expression: str) -> frozenset[str]:
    """The names of an expression of more than one term; none where it is a mere name."""
    tree = _parsed(expression)
    if tree is None or isinstance(tree, ast.Name | ast.Constant):
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def evaluated(expression: str, dims: Mapping[str, int]) -> int | None:
    """The number of a dim; ``None`` where it is no such expression or a name is unknown."""
    if expression in dims:
        return dims[expression]
    tree = _parsed(expression)
    value = None if tree is None else _value(tree, dims)
    return value if value is not None and 0 <= value <= _MAX_DIM else None


def _parsed(expression: str) -> ast.expr | None:
    if len(expression) > _MAX_LENGTH or not _ARITHMETIC.fullmatch(expression):
        return None
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(tree: ast.expr, dims: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Constant):
        return tree.value if type(tree.value) is int else None
    if isinstance(tree, ast.Name):
        return dims.get(tree.id)
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _OPERATIONS:
        return None
    left, right = _value(tree.left, dims), _value(tree.right, dims)
    if left is None or right is None or (isinstance(tree.op, ast.FloorDiv) and right == 0):
        return None
    return _OPERATIONS[type(tree.op)](left, right)
