"""Whether a graph computes dims, of which its two ends alone tell too little.

What is no polynomial may look like one at two ends: at two odd numbers ``n % 2`` is 1, and a
maximum is the symbol that is larger at both.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from onnxmem.runtimes.ideal.sizes import Ends

_READ_SHAPES: Final = frozenset({"Shape", "Size"})

Growing = frozenset[tuple[int, int]]
"""Both numbers of dims that are not the same at both ends."""

_NONE: Final[Growing] = frozenset()


def computes_dims(ends: Ends) -> bool:
    """Whether a dim may be anything but a number or a symbol that nodes hand on.

    It may where a node reads a shape as numbers, to compute with; where a node makes a dim that
    grows and that none of its inputs has, as a sum, a product or a stride does; where an input
    declares such a dim; and where a weight has another shape at the far end.
    """
    far = ends.far.tensors
    if any(node.onnx_op in _READ_SHAPES for node in ends.one.nodes):
        return True
    if any(weight.shape != far[weight.name].shape for weight in ends.one.weights):
        return True
    symbols = {(1, prime) for prime in ends.growth.primes}
    return not all(_growing(ends, name) <= symbols for name in ends.one.inputs) or _makes_dims(ends)


def _makes_dims(ends: Ends) -> bool:
    """Whether a node makes a dim that grows and that none of its inputs has."""
    far = ends.far.tensors
    known: dict[tuple[object, object], Growing] = {}
    growing: dict[str, Growing] = {}
    for name, tensor in ends.one.tensors.items():
        # A large graph has few shapes.
        shapes = tensor.shape, far[name].shape
        if shapes not in known:
            known[shapes] = _growing(ends, name)
        if known[shapes]:
            growing[name] = known[shapes]
    for node in ends.one.nodes:
        for name in node.outputs:
            made = growing.get(name)
            if made and not made <= _of_all(growing, node.reads):
                return True
    return False


def _of_all(growing: Mapping[str, Growing], names: Iterable[str]) -> Growing:
    """The dims of several tensors that grow."""
    found = [growing[name] for name in names if name in growing]
    return found[0] if len(found) == 1 else _NONE.union(*found)


def _growing(ends: Ends, name: str) -> Growing:
    one, far = ends.shapes_of(name)
    return frozenset(dims for dims in zip(one, far, strict=True) if dims[0] != dims[1])
