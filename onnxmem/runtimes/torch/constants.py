"""Which tensors a framework has before a step, or never makes: shapes, and what constants give."""

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.parameters import Parameters

_OF_SHAPE_OR_TYPE = frozenset({"CastLike", "Shape", "Size"})
_RANDOM = frozenset({"RandomNormal", "RandomUniform"})


def constant_tensors(graph: Graph, parameters: Parameters) -> frozenset[str]:
    """Name the tensors that neither an input's data nor a trained parameter goes into.

    Exporters write a mask, a table of positions or a number cast to a type as nodes on constants;
    the framework holds a constant, or a number of the program.
    """
    trained = {graph.tensors[name].storage_key for name in parameters.trained}
    found = {
        name
        for name, tensor in graph.tensors.items()
        if tensor.role is Role.WEIGHT and tensor.storage_key not in trained
    }
    for node in graph.nodes:
        is_fixed = found.issuperset(data_reads(node))
        if is_fixed and node.onnx_op not in _RANDOM and not node.subgraphs:
            found.update(node.writes)
    return frozenset(found)


def data_reads(node: Node) -> tuple[str, ...]:
    """Name what a node reads the data of, not the shape or the type alone."""
    if node.op_type not in _OF_SHAPE_OR_TYPE or node.domain:
        return node.reads
    return node.inputs[:1] if node.op_type == "CastLike" else ()
