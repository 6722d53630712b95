"""Element-wise operators with three or more inputs: the kernels broadcast two at a time."""

from collections.abc import Iterator
from itertools import accumulate, zip_longest

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernel_use import UnknownError, Use, product
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule, Scratch


def broadcast(left: Dims, right: Dims) -> Dims:
    """The shape that two shapes broadcast to."""
    pairs = zip_longest(reversed(left), reversed(right), fillvalue=1)
    return tuple(b if a == 1 else a for a, b in pairs)[::-1]


def _variadic(use: Use) -> Scratch:
    """in_0, ..., in_n: every partial result but the last, which is the output.

    A partial result is freed when the next one is made, which comes before the output.
    """
    places = range(len(use.call.inputs))
    partial = tuple(accumulate((use.dims(place) for place in places), broadcast))[1:-1]
    blocks = tuple(product(dims) * use.element_bytes() for dims in partial)
    stops = (*range(2, len(blocks) + 1), *(None,) * (len(blocks) > 0))
    return Scratch(blocks, len(blocks), stops)


def _where(use: Use) -> Scratch:
    """C, X, Y: what the condition selects of X, then of Y, before the output is allocated.

    X of strings is unknown: its elements have no size here.
    """
    if use.call.inputs[1] is None:
        raise UnknownError
    blocks = tuple(_selections(use, 1, 2))
    return Scratch(blocks, len(blocks))


def _quantised_where(use: Use) -> tuple[int, ...]:
    """C, X, x_scale, x_zero, Y, y_scale, y_zero: two look-up tables and the two selections."""
    tables = tuple(_TABLE_BYTES for place in (2, 5) if not use.is_constant(place))
    return (*tables, *_selections(use, 1, 4))


def _selections(use: Use, *places: int) -> Iterator[int]:
    for place in places:
        yield product(broadcast(use.dims(0), use.dims(place))) * use.element_bytes(place)


_TABLE_BYTES = 256

RULES = (
    *(
        Rule(
            op_type,
            "",
            _variadic,
            "core/providers/cpu/math/element_wise_ops.cc: UntypedBroadcastVariadic",
        )
        for op_type in ("Max", "Mean", "Min", "Sum")
    ),
    Rule("Where", "", _where, "core/providers/cpu/tensor/where_op.cc: Compute, Select"),
    Rule(
        "QLinearWhere",
        "com.microsoft",
        _quantised_where,
        "contrib_ops/cpu/quantization/qlinear_where.cc: Compute",
    ),
)
