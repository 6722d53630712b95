"""Parameters that a hook of torch.nn.utils computes before each forward pass of their module.

``spectral_norm``, ``weight_norm`` and ``prune`` keep ``weight_orig`` (or ``weight_g`` and
``weight_v``) as parameters and assign what they compute of them to ``module.weight``, where it
stays until the next forward pass assigns another. ``spectral_norm`` computes its vectors without a
gradient.
"""

import re
from collections.abc import Iterator

from onnxmem.model.graph import Graph, Node
from onnxmem.model.parameters import is_of_hook
from onnxmem.runtimes.torch.framework import FRAMEWORK

_ORIGINAL = re.compile(r"(.*)_(orig|v)$")
_COMPUTING = frozenset({"Div", "Mul", "function_of_parameter", "weight_norm"})
_READ_WEIGHTS = frozenset(
    {"Cast", "Conv", "ConvTranspose", "Gemm", "MatMul", "Transpose", "linear"}
)


def hooked_weights(graph: Graph) -> tuple[str, ...]:
    """Name the weights that hooks assign to modules."""
    originals = {name for name in graph.tensors if _is_original(graph, name)}
    if not originals:
        return ()
    computed = {
        node.outputs[0]
        for node in graph.nodes
        if node.op_type in _COMPUTING and not originals.isdisjoint(node.inputs)
    }
    reads = (node for node in graph.nodes if node.op_type in _READ_WEIGHTS)
    known = (node for node in reads if node.domain in {"", FRAMEWORK})
    return tuple(dict.fromkeys(name for node in known for name in node.reads if name in computed))


def _is_original(graph: Graph, name: str) -> bool:
    found = _ORIGINAL.match(name)
    if found is None:
        return False
    return found[2] == "orig" or f"{found[1]}_g" in graph.tensors


def vectors_without_gradient(graph: Graph) -> frozenset[str]:
    """Name the vectors that ``spectral_norm`` iterates: it computes them under ``no_grad``.

    ``v = normalize(W' u)``, then ``u = normalize(W v)``, from the buffer ``u`` on.
    """
    reached = {name for name in graph.tensors if is_of_hook(name, graph.tensors)}
    found: set[str] = set()
    for node in graph.nodes if reached else ():
        if any(name in reached for name in _vectors_of(node)):
            reached.update(node.writes)
            if node.onnx_op == "Div":
                found.update(node.writes)
    return frozenset(found)


def _vectors_of(node: Node) -> Iterator[str]:
    """What a node multiplies by a matrix, or divides by a norm."""
    if node.onnx_op == "MatMul":
        yield from node.inputs
    elif node.onnx_op in {"Cast", "Div"}:
        yield node.inputs[0]
