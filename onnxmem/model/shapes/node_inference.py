"""The output types of one node, from what is known of its inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx
import onnx.defs
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.model.constants import Array
from onnxmem.model.shapes.control_flow import control_flow_types
from onnxmem.model.shapes.microsoft import (
    NCHWC,
    as_onnx,
    blocked_types,
    channel_block,
    microsoft_types,
)
from onnxmem.model.shapes.native_faults import ends_the_process
from onnxmem.model.shapes.node_context import NodeSignature, node_signature
from onnxmem.model.shapes.onnx_rules import onnx_rule_types
from onnxmem.model.traversal import outer_reads, subgraphs
from onnxmem.model.value_types import is_complete, merged


@dataclass(slots=True)
class NodeInference:
    """Asks onnx about single nodes of one model, and then our own shape functions."""

    model: onnx.ModelProto
    opsets: Mapping[str, int] = field(init=False)
    block: int = 0
    """Channels in a block of onnxruntime's image operators; 0 until it is needed."""
    refused: dict[str, str] = field(default_factory=dict)
    """First outputs of nodes whose inputs are known and do not fit, with onnx's reason."""
    memo: dict[NodeSignature | None, Sequence[onnx.TypeProto | None]] = field(default_factory=dict)
    """What is known of the outputs, by signature: a large model is one block many times over."""

    def __post_init__(self) -> None:
        self.opsets = {entry.domain: entry.version for entry in self.model.opset_import}

    def output_types(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        """What is known of a node's outputs; an output of which nothing is known is left out."""
        key = node_signature(node, types, values)
        if key in self.memo:
            pairs = zip(node.output, self.memo[key], strict=True)
            return {name: proto for name, proto in pairs if proto is not None}
        found = self._inferred(node, types, values)
        # A refusal is a finding of each node by itself.
        if key is not None and self.refused.keys().isdisjoint(node.output[:1]):
            self.memo[key] = [found.get(name) for name in node.output]
        return found

    def _inferred(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        found = self.onnx_types(node, types, values)
        if node.domain == NCHWC and not self.block:
            self.block = channel_block(self.model)
        for own in (
            control_flow_types(node, types, values),
            blocked_types(node, types, self.block),
            onnx_rule_types(node, types, values, self.opsets.get("", 1)),
            microsoft_types(node, types, values),
        ):
            for name, derived in own.items():
                found[name] = merged(found.get(name), derived)
        return found

    def onnx_types(
        self,
        node: onnx.NodeProto,
        types: Mapping[str, onnx.TypeProto],
        values: Mapping[str, Array],
    ) -> dict[str, onnx.TypeProto]:
        """What onnx alone says.

        Nothing where it knows no such operator, refuses or would not return.
        """
        node = as_onnx(node, self.opsets.get("", 1))
        read = {*node.input, *(name for _, inner in subgraphs(node) for name in outer_reads(inner))}
        known = {name: types[name] for name in read if name in types}
        if ends_the_process([node], self.opsets, known):
            return {}
        data = {n: onnx.numpy_helper.from_array(values[n]) for n in node.input if n in values}
        try:
            version = self.opsets.get(node.domain, 1)
            schema = onnx.defs.get_schema(node.op_type, version, node.domain)
            inferred = onnx.shape_inference.infer_node_outputs(
                schema,
                node,
                known,
                data,
                opset_imports=list(self.model.opset_import),
                ir_version=self.model.ir_version,
            )
        except onnx.shape_inference.InferenceError as refusal:
            if all(is_complete(types.get(name)) for name in node.input if name):
                self.refused[node.output[0]] = str(refusal).strip().splitlines()[0]
            return {}
        except Exception:  # noqa: BLE001 - whatever else it raises costs this node's shapes alone
            return {}
        return {name: proto for name, proto in inferred.items() if proto.WhichOneof("value")}
