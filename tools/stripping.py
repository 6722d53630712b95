"""Take the weights out of a model and keep all that says how large they were.

A stripped model refers each large tensor to a file that does not exist, by offset and length, as a
model with external data does. Its shapes, types and names are those of the full model.
"""

import math
import re
from collections.abc import Iterable, Iterator

import onnx
import onnx_ir as ir

LARGEST_INLINE_BYTES = 1024
"""Tensors up to this size keep their values: shapes, axes, scales, short vectors."""

OFFSET_ALIGNMENT = 64
"""Bytes to which the offset of each absent tensor is rounded up."""

_PAYLOAD_FIELDS = (
    "raw_data",
    "float_data",
    "double_data",
    "int32_data",
    "int64_data",
    "uint64_data",
)

_ORIGIN = frozenset(
    {
        *(f"pkg.torch.onnx.{name}" for name in ("class_hierarchy", "fx_node", "name_scopes")),
        "pkg.torch.onnx.stack_trace",
        "pkg.torch.export.ExportedProgram.graph_signature",
        "pkg.onnxscript.optimizer.folded_from",
    }
)
"""What a training step is predicted from, where it is there: module, operator and line of code of a
node, the parameters of the network, and what the exporter computed of them."""
_FOLDER = re.compile(r'(?<=File ")[^"]*/')


def strip_weights(model: onnx.ModelProto, location: str) -> int:
    """Bytes taken out of `model`, which from here on says they lie in the file `location`."""
    end = 0
    for tensor in _tensors(model):
        size_bytes = _payload_bytes(tensor)
        if size_bytes <= LARGEST_INLINE_BYTES:
            continue
        offset = math.ceil(end / OFFSET_ALIGNMENT) * OFFSET_ALIGNMENT
        _refer_to_file(tensor, location, offset, size_bytes)
        end = offset + size_bytes
    return end


def drop_annotations(model: onnx.ModelProto) -> None:
    """Remove documentation and metadata, but for where nodes and constants come from."""
    model.ClearField("doc_string")
    model.ClearField("metadata_props")
    for function in model.functions:
        _drop(function)
        _drop_from_nodes(function.node)
        _drop_from_values(function.value_info)
    for graph in _graphs(model):
        _drop_all_but_origin(graph)
        _drop_from_nodes(graph.node)
        _drop_from_values((*graph.input, *graph.output, *graph.value_info))
    for tensor in _tensors(model):
        _drop(tensor)


def _drop(proto: onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto | onnx.TensorProto) -> None:
    proto.ClearField("doc_string")
    proto.ClearField("metadata_props")


def _drop_from_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        _drop_all_but_origin(node)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")


def _drop_from_values(values: Iterable[onnx.ValueInfoProto]) -> None:
    for value in values:
        _drop_all_but_origin(value)


def _drop_all_but_origin(proto: onnx.GraphProto | onnx.NodeProto | onnx.ValueInfoProto) -> None:
    origin = [
        # Lines of code without the folders of the machine that they lie on.
        onnx.StringStringEntryProto(key=entry.key, value=_FOLDER.sub("", entry.value))
        for entry in proto.metadata_props
        if entry.key in _ORIGIN
    ]
    proto.ClearField("doc_string")
    proto.ClearField("metadata_props")
    proto.metadata_props.extend(origin)


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph, then every subgraph of it and of the functions, outermost first."""
    yield from _nested_graphs(model.graph)
    for function in model.functions:
        for graph in _attribute_graphs(function.node):
            yield from _nested_graphs(graph)


def _nested_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for inner in _attribute_graphs(graph.node):
        yield from _nested_graphs(inner)


def _attribute_graphs(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.g
            yield from attribute.graphs


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor with values: initializers, then attributes, in file order."""
    for graph in _graphs(model):
        yield from graph.initializer
        yield from _attribute_tensors(graph.node)
    for function in model.functions:
        yield from _attribute_tensors(function.node)


def _attribute_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def _payload_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of the values, sub-byte types packed; 0 for text, which stays where it is."""
    data_type = ir.DataType(tensor.data_type)
    if data_type == ir.DataType.STRING:
        return 0
    num_bits: int = math.prod(tensor.dims) * data_type.bitwidth
    return math.ceil(num_bits / 8)


def _refer_to_file(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    for field in _PAYLOAD_FIELDS:
        tensor.ClearField(field)
    tensor.ClearField("external_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))
