"""Linear layers that a file holds as a product and a sum."""

from collections.abc import Iterator

from onnxmem.runtimes.torch.composites.framework import LINEAR
from onnxmem.runtimes.torch.composites.rewriting import Match, Sight

_MATRIX_RANK = 2


def linears(sight: Sight) -> Iterator[Match]:
    """Find the Add of a bias vector to a MatMul by a matrix: the framework's one addmm."""
    for node in sight.graph.nodes:
        if node.onnx_op != "Add":
            continue
        for name, bias in sight.operands(node):
            product = sight.maker(name, "MatMul")
            if product is None or not sight.is_weight(bias) or len(sight.dims(bias) or ()) != 1:
                continue
            if any(len(sight.dims(each) or ()) == _MATRIX_RANK for each in product.inputs):
                yield Match((product, node), LINEAR, (*product.inputs, bias))
