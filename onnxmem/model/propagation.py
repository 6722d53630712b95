"""A walk over the nodes that infers what the whole-graph inference left open.

Each node is asked again (``onnx.shape_inference.infer_node_outputs``), this time with the values
of its small inputs at hand, and its own value is worked out where it is shape arithmetic. One walk
suffices, since nodes stand in running order.
"""

from collections import ChainMap
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

import onnx
import onnx.defs
import onnx.helper
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.folding import MAX_ELEMENTS, Array, Folder
from onnxmem.model.order import outer_reads, subgraphs
from onnxmem.model.own_shapes import own_types
from onnxmem.model.reading import constant_tensor, constant_value
from onnxmem.model.types import dense_type, is_complete, merged

Types = MutableMapping[str, onnx.TypeProto]
Values = MutableMapping[str, Array]


def propagate(model: onnx.ModelProto) -> None:
    """Complete the ``value_info`` of a model and its subgraphs, in place, as far as it goes."""
    walk = _Walk(model)
    walk.graph(model.graph, ChainMap(), ChainMap())


@dataclass(slots=True)
class _Walk:
    model: onnx.ModelProto
    folder: Folder = field(init=False)
    opsets: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.folder = Folder(self.model.opset_import)
        self.opsets = {entry.domain: entry.version for entry in self.model.opset_import}

    def graph(
        self,
        graph: onnx.GraphProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> None:
        """Walk one graph; the chains' later maps hold what enclosing graphs know."""
        _add_known(graph, types, values)
        for node in graph.node:
            self._node(node, types, values)
        made = [name for node in graph.node for name in node.output if name in types.maps[0]]
        outputs = {value.name: value for value in graph.output}
        del graph.value_info[:]
        for name in made:
            if name in outputs:
                outputs[name].type.CopyFrom(types[name])
            else:
                graph.value_info.add(name=name).type.CopyFrom(types[name])

    def _node(
        self,
        node: onnx.NodeProto,
        types: "ChainMap[str, onnx.TypeProto]",
        values: "ChainMap[str, Array]",
    ) -> None:
        for _, inner in subgraphs(node):
            self.graph(inner, types.new_child(), values.new_child())
        if not all(is_complete(types.get(name)) for name in node.output if name):
            for name, derived in self._inferred(node, types, values).items():
                types[name] = merged(types.get(name), derived)
            for name, derived in own_types(node, types, values, self.opsets).items():
                types[name] = merged(types.get(name), derived)
        for name, value in self.folder.values_of(node, values, types).items():
            values[name] = value
            if not is_complete(types.get(name)):
                elem_type = onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                types[name] = dense_type(elem_type, value.shape)

    def _inferred(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        """What onnx says of one node; nothing where it knows no such operator or refuses it."""
        domain = "" if node.domain == "ai.onnx" else node.domain
        read = {*node.input, *(name for _, inner in subgraphs(node) for name in outer_reads(inner))}
        try:
            schema = onnx.defs.get_schema(node.op_type, self.opsets.get(domain, 1), domain)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                {name: types[name] for name in read if name in types},
                {
                    name: onnx.numpy_helper.from_array(values[name])
                    for name in node.input
                    if name in values
                },
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except Exception:  # noqa: BLE001 - a refusal costs this node's shapes alone
            return {}
        return {name: proto for name, proto in inferred.items() if proto.WhichOneof("value")}


def _add_known(graph: onnx.GraphProto, types: Types, values: Values) -> None:
    """Enter what a graph says before its first node runs."""
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.WhichOneof("value"):
            types[value.name] = value.type
    constants = [(tensor.name, tensor) for tensor in graph.initializer]
    for node in graph.node:
        tensor = constant_tensor(node)
        if tensor is not None:
            constants.append((node.output[0], tensor))
    for name, tensor in constants:
        types[name] = dense_type(tensor.data_type, tensor.dims)
        value = constant_value(tensor)
        if value is not None and value.size <= MAX_ELEMENTS and value.dtype.kind in "biuf":
            values[name] = value
