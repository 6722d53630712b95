"""Find the batch, and bind every dim of the inputs to a number (docs/definitions.md).

The batch is the symbol named like batch, N or bs; else the leading symbol that most inputs share;
else their common leading number. A symbol is bound wherever it occurs, ``dims`` and ``shapes`` win
over ``batch``, and a dim without a value is 1. A dim without a name is named after its axis,
``x[0]``.

Exporters with symbolic shapes write sums and products of other dims as a name (``past + sequence``,
``2*batch``). Such an expression is parsed and evaluated here, never run as code; only integers and
known names are allowed in it.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import add, floordiv, mul, sub
from typing import Final

import onnx

from onnxmem.errors import Finding, ShapeError, listed, nearest
from onnxmem.model.traversal import initializer_names

_MAX_LENGTH = 200
"""Longer names are not parsed: no exporter writes one, and parsing stays cheap."""
_MAX_DIM = 2**63 - 1

# Possessive quantifiers: a long name that does not match is given up without trying other splits.
_ARITHMETIC = re.compile(r"(?:\s*+(?:[A-Za-z_]\w*+|\d++(?!\w)|[-+*/()]))+\s*", re.ASCII)
"""Names, integers and operators. Python's parser may print a warning about anything else."""

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add,
    ast.Sub: sub,
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
}


def names_in(expression: str) -> frozenset[str]:
    """The names in an expression; empty if it is a single name or number."""
    tree = _parsed(expression)
    if tree is None or isinstance(tree, ast.Name | ast.Constant):
        return frozenset()
    return frozenset(node.id for node in ast.walk(tree) if isinstance(node, ast.Name))


def evaluated(expression: str, dims: Mapping[str, int]) -> int | None:
    """The number of a dim; ``None`` if it cannot be parsed or has an unknown name."""
    if expression in dims:
        return dims[expression]
    tree = _parsed(expression)
    value = None if tree is None else _value(tree, dims)
    return value if value is not None and 0 <= value <= _MAX_DIM else None


@lru_cache(maxsize=1024)
def _parsed(expression: str) -> ast.expr | None:
    # Every walk reads the same few dims again, and so do the files of a collection.
    if len(expression) > _MAX_LENGTH or not _ARITHMETIC.fullmatch(expression):
        return None
    try:
        return ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


# Neither the depth of a tree nor a product in it is large: the text has at most ``_MAX_LENGTH``.
def _value(tree: ast.expr, dims: Mapping[str, int]) -> int | None:
    if isinstance(tree, ast.Constant):
        # ``True`` is a constant too, and an instance of int.
        return tree.value if type(tree.value) is int else None
    if isinstance(tree, ast.Name):
        return dims.get(tree.id)
    if not isinstance(tree, ast.BinOp) or type(tree.op) not in _OPERATIONS:
        return None
    left, right = _value(tree.left, dims), _value(tree.right, dims)
    if left is None or right is None or (isinstance(tree.op, ast.FloorDiv) and right == 0):
        return None
    return _OPERATIONS[type(tree.op)](left, right)


_TOKEN_NAME: Final = re.compile(r"(?:^|[_./])(?:ids|mask|tokens?|sequences?)$", re.IGNORECASE)
_TOKEN_TYPES: Final = frozenset({onnx.TensorProto.INT32, onnx.TensorProto.INT64})
_TOKEN_RANK: Final = 2
"""``[batch, sequence]``."""
_BATCH_NAME = re.compile(r"n|bs|.*batch.*", re.IGNORECASE)

Dims = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """The dims that the user requests."""

    batch: int | None = None
    dims: Mapping[str, int] = field(default_factory=dict)
    """Symbol -> number."""
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    """Graph input -> its whole shape; a symbol that the file has there stays one."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The batch: symbols, or the leading number that all inputs share."""

    symbols: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True, slots=True)
class Binding:
    """A number for every dim of the graph inputs."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape by graph input, without inputs of unknown rank."""
    dims: Mapping[str, int]
    """The number of every symbol of the inputs."""
    batch: int | None
    """The batch in effect; ``None`` if the model has none."""
    old_batch: int | None
    """The fixed batch of the file, if ``batch`` replaces it."""
    findings: tuple[Finding, ...]
    unbound: tuple[str, ...] = field(default=(), compare=False)
    """Symbols without a value, which count as 1, except for the batch, which may well be 1."""

    @property
    def shapes_at_old_batch(self) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs at the fixed batch of the file, with the other dims as bound."""
        old = self.old_batch
        return {
            name: dims if old is None or not dims else (old, *dims[1:])
            for name, dims in self.shapes.items()
        }


def bind(inputs: Iterable[onnx.ValueInfoProto], request: Request) -> Binding:
    """Bind every dim of the inputs to a number.

    :raises ShapeError: a shape names no input or has another rank, or a number is not positive.
    """
    # Order of precedence, the last wins: 1, the batch, symbols that follow from whole shapes, dims
    # by name; whole shapes replace what an input would have by its symbols.
    declared = {value.name: input_dims(value) for value in inputs}
    _check(request, declared)
    known = {name: dims for name, dims in declared.items() if dims is not None}
    batch = find_batch(known)
    numbers = {**_symbols_of_shapes(request, known), **request.dims}
    requested = request.batch
    if requested is not None and batch is not None:
        numbers = {**dict.fromkeys(batch.symbols, requested), **numbers}
    symbols = _symbols(known.values())
    dims, unbound = _numbered(symbols, numbers)
    shapes = {name: _bound(entry, dims, batch, requested) for name, entry in known.items()}
    for name, shape in request.shapes.items():
        shapes[name] = tuple(dims[dim] if isinstance(dim, str) else dim for dim in shape)
    in_effect = _batch_in_effect(batch, dims, shapes)
    old_batch = batch.number if batch and batch.number != in_effect else None
    findings = (
        *_dim_findings(request, symbols, unbound),
        *_batch_findings(request, batch, in_effect),
    )
    others = tuple(name for name in unbound if batch is None or name not in batch.symbols)
    return Binding(shapes, dims, in_effect, old_batch, findings, others)


def batch_symbols(inputs: Iterable[onnx.ValueInfoProto]) -> frozenset[str]:
    """The symbols that ``--batch`` binds; empty if the batch is a number."""
    batch = _declared_batch(inputs)
    return frozenset(batch.symbols if batch else ())


def fixed_batch(inputs: Iterable[onnx.ValueInfoProto]) -> int | None:
    """The batch that is a number in the file; ``None``: it is a symbol, or there is none."""
    batch = _declared_batch(inputs)
    return None if batch is None else batch.number


def _declared_batch(inputs: Iterable[onnx.ValueInfoProto]) -> Batch | None:
    declared = {value.name: input_dims(value) for value in inputs}
    return find_batch({name: dims for name, dims in declared.items() if dims is not None})


def fixed_sequence(inputs: Iterable[onnx.ValueInfoProto]) -> int | None:
    """The length of the sequences that the file fixes, by inputs ``[batch, sequence]`` of tokens.

    ``None``: it is a symbol, the inputs differ, or no name says that the integers are of tokens.
    """
    lengths = {
        dims[1]
        for value in inputs
        if value.type.tensor_type.elem_type in _TOKEN_TYPES
        and _TOKEN_NAME.search(value.name)
        and len(dims := input_dims(value) or ()) == _TOKEN_RANK
    }
    length = lengths.pop() if len(lengths) == 1 else None
    return length if isinstance(length, int) else None


def required_inputs(graph: onnx.GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    """The inputs without a default; an initializer with the name of an input is its default."""
    defaults = initializer_names(graph)
    return tuple(value for value in graph.input if value.name not in defaults)


def input_dims(value: onnx.ValueInfoProto) -> Dims | None:
    """The dims of an input, each a number or a symbol; ``None`` if the rank is unknown.

    A negative number counts as unknown: some exporters write -1 for a dynamic dim.
    """
    dense = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type" or not dense.HasField("shape"):
        return None
    return tuple(
        dim.dim_value
        if dim.HasField("dim_value") and dim.dim_value >= 0
        else dim.dim_param or f"{value.name}[{axis}]"
        for axis, dim in enumerate(dense.shape.dim)
    )


def input_symbols(inputs: Iterable[onnx.ValueInfoProto]) -> list[str]:
    """The symbols that ``--dim`` may bind."""
    return _symbols(dims for value in inputs if (dims := input_dims(value)) is not None)


def _symbols(dims_of_inputs: Iterable[Dims]) -> list[str]:
    """The symbols, each once, in order."""
    dims = (dim for dims in dims_of_inputs for dim in dims)
    return list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))


def find_batch(dims_by_input: Mapping[str, Dims]) -> Batch | None:
    """Find the batch among the dims of inputs, by the rule in the docstring of this module."""
    # Expressions such as ``2*batch`` follow from other symbols and are never the batch. Leading
    # dims without names are the batch together, since exporters that write no names give each input
    # a dynamic dim of its own.
    leading = {name: dims[0] for name, dims in dims_by_input.items() if dims}
    counts = Counter(dim for dims in dims_by_input.values() for dim in dims if isinstance(dim, str))
    anonymous = {
        f"{name}[{axis}]" for name, dims in dims_by_input.items() for axis in range(len(dims))
    }
    shared = Counter(dim for dim in leading.values() if isinstance(dim, str))
    named = [symbol for symbol in counts if symbol not in anonymous and not names_in(symbol)]
    batch_like = [symbol for symbol in named if _BATCH_NAME.fullmatch(symbol)]
    # A name says more than a position; of equal ones the symbol that leads most inputs wins, then
    # the one that occurs most.
    candidates = batch_like or [symbol for symbol in named if symbol in shared]
    if candidates:
        return Batch((max(candidates, key=lambda symbol: (shared[symbol], counts[symbol])),))
    nameless = tuple(symbol for symbol in shared if symbol in anonymous)
    if nameless:
        return Batch(nameless)
    numbers = set(leading.values())
    number = numbers.pop() if len(numbers) == 1 else None
    return Batch(number=number) if isinstance(number, int) and number > 0 else None


def _check(request: Request, declared: Mapping[str, Dims | None]) -> None:
    for name, shape in request.shapes.items():
        if name not in declared:
            hint = f"{nearest(name, list(declared))}the inputs are {listed(list(declared))}"
            message = f"--shape {name!r}: the model has no such input; {hint}"
            raise ShapeError(message)
        _check_shape(name, shape, declared[name])
    batch = () if request.batch is None else (("batch", request.batch),)
    for name, number in (*batch, *request.dims.items()):
        if number < 1:
            message = f"dim {name!r} is {number}; dims must be positive"
            raise ShapeError(message)
    dims_of_shapes = [dim for shape in request.shapes.values() for dim in _numbers(shape)]
    largest = max((*dims_of_shapes, *request.dims.values(), request.batch or 1))
    if largest > _MAX_DIM:
        message = f"dim {largest} is over {_MAX_DIM:,}, the largest dim of ONNX"
        raise ShapeError(message)


def _check_shape(name: str, shape: Dims, dims: Dims | None) -> None:
    if any(dim < 1 for dim in _numbers(shape)):
        message = f"--shape {name}: {shape} has a dim below 1; dims must be positive"
        raise ShapeError(message)
    if dims is not None and len(dims) != len(shape):
        message = f"--shape {name}: has {len(shape)} dims, but the input has {len(dims)}"
        raise ShapeError(message)
    for axis, dim in enumerate(shape):
        if isinstance(dim, str) and (dims is None or dim != dims[axis]):
            in_file = "an input of unknown rank" if dims is None else f"{dims[axis]} there"
            message = f"--shape {name}: {dim!r} is not a number, and the file has {in_file}"
            raise ShapeError(message)


def _numbers(shape: Dims) -> list[int]:
    return [dim for dim in shape if not isinstance(dim, str)]


def _numbered(
    symbols: Iterable[str], numbers: Mapping[str, int]
) -> tuple[dict[str, int], list[str]]:
    """A number for every symbol, and the symbols without a value.

    A symbol that is an expression of others (``past + sequence``) follows from them.
    """
    # Expressions are evaluated after all free symbols have numbers, so their order does not matter.
    symbols = list(symbols)
    derived = [symbol for symbol in symbols if names_in(symbol) and names_in(symbol) <= {*symbols}]
    free = [symbol for symbol in symbols if symbol not in derived]
    dims = {symbol: numbers.get(symbol, 1) for symbol in free}
    values = {symbol: evaluated(symbol, {**dims, **numbers}) for symbol in derived}
    # 0 is a number too: a past that is ``total - sequence`` may be empty.
    dims |= {symbol: number for symbol, number in values.items() if number is not None}
    unbound = [symbol for symbol in symbols if symbol not in numbers and values.get(symbol) is None]
    return {symbol: dims.get(symbol, 1) for symbol in symbols}, unbound


def _symbols_of_shapes(request: Request, known: Mapping[str, Dims]) -> dict[str, int]:
    """The numbers of symbols that follow from requested shapes of inputs."""
    return {
        symbol: number
        for name, shape in request.shapes.items()
        for symbol, number in zip(known.get(name, ()), shape, strict=False)
        if isinstance(symbol, str) and not isinstance(number, str)
    }


def _bound(
    entry: Dims, dims: Mapping[str, int], batch: Batch | None, requested: int | None
) -> tuple[int, ...]:
    shape = [dims[dim] if isinstance(dim, str) else dim for dim in entry]
    if shape and requested is not None and batch is not None and batch.number is not None:
        shape[0] = requested
    return tuple(shape)


def _batch_in_effect(
    batch: Batch | None, dims: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]
) -> int | None:
    if batch is None:
        return None
    if batch.symbols:
        return dims[batch.symbols[0]]
    leading = {shape[0] for shape in shapes.values() if shape}
    return leading.pop() if len(leading) == 1 else None


def _dim_findings(
    request: Request, symbols: Sequence[str], unbound: list[str]
) -> Iterator[Finding]:
    known = f"; the dims are {listed(symbols)}" if symbols else ""
    for name in request.dims:
        if name not in symbols:
            yield Finding("unused_dim", f"--dim {name}: no input has a dim of that name{known}")
    if unbound:
        text = f"dynamic dims without a value are set to 1: {listed(unbound)}; set each with --dim"
        yield Finding("unbound_dims", text)


def _batch_findings(
    request: Request, batch: Batch | None, in_effect: int | None
) -> Iterator[Finding]:
    if request.batch is None:
        return
    if batch is None:
        reason = "the inputs have no common leading dim"
        text = f"--batch {request.batch} has no effect: {reason}; use --dim or --shape"
        yield Finding("batch_fixed", text)
    elif in_effect != request.batch:
        text = f"--batch {request.batch} is overridden: --dim or --shape sets it to {in_effect}"
        yield Finding("overridden_batch", text)
