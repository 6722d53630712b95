"""What lies in sequences of tensors, as far as the nodes say that make them.

onnx keeps what all elements of a sequence have in common; here each has its own type, so that the
one that is taken out, or all of them joined, have shapes. Followed are the operators of ONNX's
``defs/sequence/defs.cc``; a sequence of anything else, or longer than a bound, is unknown.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.bounds import BOUNDS
from onnxmem.model.shapes.node_facts import Found, NodeFacts
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of
from onnxmem.ops.spec import Dims

_Elements = tuple[onnx.TypeProto, ...]


@dataclass(slots=True)
class Sequences:
    """The elements of the sequences that have been met, by name."""

    elements: dict[str, _Elements] = field(default_factory=dict)

    def forget(self, names: Iterable[str]) -> None:
        """Names that are defined anew, as in another body: what they held does not hold."""
        if self.elements:
            for name in names:
                self.elements.pop(name, None)

    def follow(self, facts: NodeFacts) -> Found:
        """Note what a followed node puts into a sequence; the type of what it takes out of one."""
        operator = onnx_op(facts.node)
        if operator in _READERS:
            held = self.elements.get(facts.node.input[0])
            return _READERS[operator](facts, held) if held else {}
        made = _MAKERS[operator](facts, self.elements)
        if made is not None and len(made) <= BOUNDS.elements:
            self.elements[facts.node.output[0]] = made
        return {}


def is_followed(node: onnx.NodeProto) -> bool:
    """Whether an operator works on sequences, and is one that is followed."""
    return onnx_op(node) in _MAKERS or onnx_op(node) in _READERS


def _constructed(facts: NodeFacts, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001
    types = [facts.input_type(place) for place in range(len(facts.node.input))]
    known = tuple(proto for proto in types if proto is not None)
    return known if len(known) == len(types) else None


def _inserted(facts: NodeFacts, elements: Mapping[str, _Elements]) -> _Elements | None:
    held, made = elements.get(facts.node.input[0]), facts.input_type(1)
    if held is None or made is None:
        return None
    place = _place(facts, 2, len(held)) if facts.has(2) else len(held)
    return None if place is None else (*held[:place], made, *held[place:])


def _erased(facts: NodeFacts, elements: Mapping[str, _Elements]) -> _Elements | None:
    held = elements.get(facts.node.input[0])
    if not held:
        return None
    place = _place(facts, 1, len(held)) if facts.has(1) else len(held) - 1
    return None if place is None else (*held[:place], *held[place + 1 :])


def _split(facts: NodeFacts, elements: Mapping[str, _Elements]) -> _Elements | None:  # noqa: ARG001
    """Pieces of the lengths asked for, of one length, or of 1, whose axis may be dropped."""
    dims, axis = facts.dims(0), facts.integer("axis")
    if not dims or not -len(dims) <= axis < len(dims):
        return None
    axis %= len(dims)
    lengths = _lengths(facts, dims[axis])
    if lengths is None or sum(lengths) != dims[axis]:
        return None
    is_kept = facts.has(1) or facts.integer("keepdims", 1)
    return tuple(
        dense_type(
            facts.elem_type(0), (*dims[:axis], *((length,) if is_kept else ()), *dims[axis + 1 :])
        )
        for length in lengths
    )


def _lengths(facts: NodeFacts, whole: int) -> Dims | None:
    asked = facts.whole_numbers(1) if facts.has(1) else (1,)
    if asked is None or (facts.has(1) and facts.dims(1)):
        return asked
    if len(asked) != 1 or asked[0] < 1 or whole > BOUNDS.elements * asked[0]:
        return None
    full, rest = divmod(whole, asked[0])
    return (asked[0],) * full + ((rest,) if rest else ())


def _taken(facts: NodeFacts, held: _Elements) -> Found:
    """SequenceAt: the element at a place, or any where all are alike."""
    place = _place(facts, 1, len(held))
    if place is None:
        place = 0 if all(proto == held[0] for proto in held) else len(held)
    return {facts.node.output[0]: held[place]} if place < len(held) else {}


def _joined(facts: NodeFacts, held: _Elements) -> Found:
    """ConcatFromSequence: side by side along an axis, or stacked along a new one."""
    shapes = [dims for proto in held if (dims := dims_of(proto)) is not None]
    axis, is_new = facts.integer("axis"), facts.integer("new_axis")
    rank = len(shapes[0]) + bool(is_new) if shapes else 0
    if len(shapes) < len(held) or not -rank <= axis < rank:
        return {}
    axis %= rank
    first, elem_type = shapes[0], held[0].tensor_type.elem_type
    if is_new:
        is_alike = all(dims == first for dims in shapes)
        made = (*first[:axis], len(shapes), *first[axis:]) if is_alike else None
        return facts.outputs(made, elem_type=elem_type)
    around = {(dims[:axis], dims[axis + 1 :]) for dims in shapes}
    lengths = sum(dims[axis] for dims in shapes if len(dims) == rank)
    made = (*first[:axis], lengths, *first[axis + 1 :]) if len(around) == 1 else None
    return facts.outputs(made, elem_type=elem_type)


def _place(facts: NodeFacts, index: int, length: int) -> int | None:
    """A place from the front, told by an input; unknown where its value is, or out of bounds."""
    asked = facts.whole_numbers(index)
    if asked is None or len(asked) != 1 or not -length <= asked[0] <= length:
        return None
    return asked[0] + length if asked[0] < 0 else asked[0]


_MAKERS: Final[Mapping[str, Callable[[NodeFacts, Mapping[str, _Elements]], _Elements | None]]] = {
    "SequenceConstruct": _constructed,
    "SequenceEmpty": lambda facts, elements: (),  # noqa: ARG005
    "SequenceErase": _erased,
    "SequenceInsert": _inserted,
    "SplitToSequence": _split,
}
_READERS: Final[Mapping[str, Callable[[NodeFacts, _Elements], Found]]] = {
    "ConcatFromSequence": _joined,
    "SequenceAt": _taken,
}
