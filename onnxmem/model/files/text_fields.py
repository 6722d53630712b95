"""Names that are text: protobuf hands out as ``bytes`` what is no UTF-8, and no name may be that.

The format's strings are UTF-8 (https://protobuf.dev/programming-guides/proto2/#scalar); a file in
which one is not was damaged or made by hand.
"""

from collections.abc import Iterable, Iterator
from itertools import chain

import onnx

from onnxmem.errors import ModelFileError
from onnxmem.model.traversal import graphs_in

_Message = onnx.NodeProto | onnx.TensorProto | onnx.ValueInfoProto


def refuse_names_that_are_no_text(model: onnx.ModelProto) -> None:
    """Check every name that is ever read.

    :raises ModelFileError: one is no UTF-8; it is shown.
    """
    for name in chain(
        (entry.domain for entry in model.opset_import),
        *(_names_of_function(function) for function in model.functions),
        *(_names_in(graph) for graph in _all_graphs(model)),
    ):
        if isinstance(name, bytes):
            message = f"no ONNX model: the name {name[:40]!r} is no UTF-8 text; download it again"
            raise ModelFileError(message)


def _all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    yield from graphs_in(model.graph)
    for function in model.functions:
        yield from graphs_in(onnx.GraphProto(node=function.node))


def _names_of_function(function: onnx.FunctionProto) -> Iterator[str]:
    yield from (function.name, function.domain, function.overload)
    yield from chain(function.input, function.output, function.attribute)
    yield from (entry.name for entry in function.attribute_proto)
    yield from (entry.domain for entry in function.opset_import)


def _names_in(graph: onnx.GraphProto) -> Iterator[str]:
    yield graph.name
    for value in filter(_may_be_no_text, chain(graph.input, graph.output, graph.value_info)):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    yield from _names_of_tensors(graph.initializer)
    yield from _names_of_tensors(sparse.values for sparse in graph.sparse_initializer)
    for node in filter(_has_bytes, filter(_may_be_no_text, graph.node)):
        yield node.name
        yield node.op_type
        yield node.domain
        yield from node.input
        yield from node.output
        for attribute in node.attribute:
            yield attribute.name
            yield attribute.ref_attr_name


def _names_of_tensors(tensors: Iterable[onnx.TensorProto]) -> Iterator[str]:
    for tensor in filter(_may_be_no_text, tensors):
        yield tensor.name
        for entry in tensor.external_data:
            yield entry.key
            yield entry.value


def _has_bytes(node: onnx.NodeProto) -> bool:
    """Whether a name of a node is no text: to join them is far quicker than to look at each.

    A node is no ASCII as a whole where it has a number from 128 on.
    """
    attributes = [text for a in node.attribute for text in (a.name, a.ref_attr_name)]
    try:
        "".join([node.name, node.op_type, node.domain, *node.input, *node.output, *attributes])
    except TypeError:
        return True
    return False


def _may_be_no_text(message: _Message) -> bool:
    """Whether a byte of a message is no ASCII: where none is, every name in it is text.

    To write a small message again is far quicker than to read its fields one by one.
    """
    return not message.SerializeToString().isascii()
