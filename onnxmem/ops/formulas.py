"""Small formulas that many operators share, ``None`` where a shape that they need is unknown.

Elements are those of the first output or the first input, unless a formula says otherwise.
"""

from math import prod

from onnxmem.ops.spec import Call, Formula, Operand, Shape, known_dims


def num_elements(operand: Operand | None) -> int | None:
    """Elements of an operand; unknown where it is left out."""
    return None if operand is None else operand.num_elements


def per_element(count: int, output: int = 0) -> Formula:
    """``count`` for each element of an output."""
    return lambda call: times(count, num_elements(call.output_at(output)))


def per_input_element(count: int, input_: int = 0) -> Formula:
    """``count`` for each element of an input."""
    return lambda call: times(count, num_elements(call.input_at(input_)))


one_per_element = per_element(1)
"""One for each element of the first output: an elementwise operator."""

one_per_input_element = per_input_element(1)
"""One for each element of the first input: a reduction."""


def bytes_of_output(count: int = 1, output: int = 0) -> Formula:
    """Bytes of ``count`` tensors as large as an output."""

    def formula(call: Call) -> int | None:
        operand = call.output_at(output)
        return None if operand is None else times(count, operand.size_bytes)

    return formula


def bytes_of_input(count: int = 1, input_: int = 0) -> Formula:
    """Bytes of ``count`` tensors as large as an input."""

    def formula(call: Call) -> int | None:
        operand = call.input_at(input_)
        return None if operand is None else times(count, operand.size_bytes)

    return formula


def added(*formulas: Formula) -> Formula:
    """The sum of counts; unknown if one of them is."""

    def formula(call: Call) -> int | None:
        total = 0
        for each in formulas:
            count = each(call)
            if count is None:
                return None
            total += count
        return total

    return formula


def product(dims: Shape | None) -> int | None:
    """Multiply dims; unknown if any is."""
    known = known_dims(dims)
    return None if known is None else prod(known)


def shape_at(call: Call, input_: int = 0) -> Shape | None:
    """Shape of an input; unknown where it is left out."""
    operand = call.input_at(input_)
    return None if operand is None else operand.shape


def twice(macs: Formula) -> Formula:
    """FLOPs of multiply-adds alone: two each."""
    return lambda call: times(2, macs(call))


def int_attribute(call: Call, name: str, default: int) -> int:
    """Read an integer attribute; its default where it is absent or of another type."""
    value = call.attributes.get(name, default)
    return value if isinstance(value, int) else default


def str_attribute(call: Call, name: str, default: str) -> str:
    """Read a string attribute; its default where it is absent or of another type."""
    value = call.attributes.get(name, default)
    return value if isinstance(value, str) else default


def times(count: int | None, known: int | None) -> int | None:
    """Multiply two counts; unknown if either is."""
    return None if count is None or known is None else count * known
