"""Formulas made of formulas, and shapes of which every dim is known."""

from onnxmem.ops.formulas import num_elements, times
from onnxmem.ops.spec import Attribute, Call, Dims, Formula, Operand, known_dims
from onnxmem.units import sum_if_known


def total(*terms: Formula) -> Formula:
    """Sum of the terms; unknown if one is."""

    def formula(call: Call) -> int | None:
        return sum_if_known(term(call) for term in terms)

    return formula


def if_input(index: int, term: Formula) -> Formula:
    """Count the term where an optional input is given."""
    return lambda call: 0 if call.input_at(index) is None else term(call)


def if_set(attribute: str, term: Formula) -> Formula:
    """Count the term where an attribute is given and is neither zero nor empty."""
    return lambda call: term(call) if call.attributes.get(attribute) else 0


def multiply_add(macs: Formula, *others: Formula) -> Formula:
    """FLOPs of multiply-adds, two each, and of what comes beside them."""
    return total(lambda call: times(2, macs(call)), *others)


def dims(operand: Operand | None, *ranks: int) -> Dims | None:
    """Every dim of an operand, of one of the given ranks where any are given."""
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
    """Read the one integer that a small constant holds; unknown where it is computed."""
    if operand is None or operand.value is None or num_elements(operand) != 1:
        return None
    value = operand.value[0] if operand.value else None
    return value if isinstance(value, int) else None
