"""Formulas that many operators share, and combinations of formulas.

A formula returns ``None`` if a shape that it needs is unknown. Elements are those of the first
output or the first input, unless its docstring names another.
"""

from math import prod

from onnxmem.ops.spec import Attribute, Call, Dims, Formula, Operand, Shape, known_dims
from onnxmem.units import sum_if_known


def num_elements(operand: Operand | None) -> int | None:
    """Elements of an operand; unknown if it is omitted."""
    return None if operand is None else operand.num_elements


def per_element(count: int, output: int = 0) -> Formula:
    """``count`` for each element of an output."""
    return lambda call: times(count, num_elements(call.output_at(output)))


def per_input_element(count: int) -> Formula:
    """``count`` for each element of the first input."""
    return lambda call: times(count, num_elements(call.input_at(0)))


one_per_element = per_element(1)
"""One for each element of the first output: an elementwise operator."""

one_per_input_element = per_input_element(1)
"""One for each element of the first input: a reduction."""


def bytes_of_output(count: int = 1) -> Formula:
    """Bytes of ``count`` tensors as large as the first output."""

    def formula(call: Call) -> int | None:
        operand = call.output_at(0)
        return None if operand is None else times(count, operand.size_bytes)

    return formula


def bytes_of_input(count: int = 1) -> Formula:
    """Bytes of ``count`` tensors as large as the first input."""

    def formula(call: Call) -> int | None:
        operand = call.input_at(0)
        return None if operand is None else times(count, operand.size_bytes)

    return formula


def product(dims: Shape | None) -> int | None:
    """Multiply dims; unknown if any is."""
    known = known_dims(dims)
    return None if known is None else prod(known)


def shape_at(call: Call, input_: int = 0) -> Shape | None:
    """Shape of an input; unknown where it is left out."""
    operand = call.input_at(input_)
    return None if operand is None else operand.shape


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


def total(*terms: Formula) -> Formula:
    """Sum of the terms; unknown if one is."""

    def formula(call: Call) -> int | None:
        return sum_if_known(term(call) for term in terms)

    return formula


def if_input(index: int, term: Formula) -> Formula:
    """Count the term if an optional input is present."""
    return lambda call: 0 if call.input_at(index) is None else term(call)


def if_set(attribute: str, term: Formula) -> Formula:
    """Count the term if an attribute is set and is neither zero nor empty."""
    return lambda call: term(call) if call.attributes.get(attribute) else 0


def multiply_add(macs: Formula, *others: Formula) -> Formula:
    """FLOPs of multiply-adds, two each, and of other terms."""
    return total(lambda call: times(2, macs(call)), *others)


def dims(operand: Operand | None, *ranks: int) -> Dims | None:
    """All dims of an operand, if they are known and, with ``ranks``, its rank is one of these."""
    if operand is None or operand.shape is None or (ranks and len(operand.shape) not in ranks):
        return None
    return known_dims(operand.shape)


def positive(call: Call, attribute: str, default: int = 0) -> int | None:
    """Read an integer attribute that must be above zero, as a number of heads or groups."""
    value = call.attributes.get(attribute, default)
    return value if isinstance(value, int) and value > 0 else None


def integers(value: Attribute | None) -> Dims | None:
    """Read an attribute as integers, all above zero, as a kernel's shape."""
    if not isinstance(value, tuple):
        return None
    known = tuple(item for item in value if isinstance(item, int) and item > 0)
    return known if len(known) == len(value) else None


def constant(operand: Operand | None) -> int | None:
    """The value of a constant of one integer; unknown if it is computed."""
    if operand is None or operand.value is None or num_elements(operand) != 1:
        return None
    value = operand.value[0] if operand.value else None
    return value if isinstance(value, int) else None
