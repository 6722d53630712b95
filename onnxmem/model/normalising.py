"""One way to write a model: its domains, the versions that it leaves out, nodes that are whole."""

from collections.abc import Iterable, Iterator
from functools import cache

import onnx
import onnx.defs

from onnxmem.errors import GraphError
from onnxmem.findings import Finding
from onnxmem.model.traversal import node_label, nodes_in, onnx_op

_ALIAS = "ai.onnx"
"""Another name of ONNX's own domain, ``""``."""


def normalised(model: onnx.ModelProto) -> tuple[Finding, ...]:
    """Write ONNX's own domain in one way and import it where the model forgets to, in place.

    :raises GraphError: a node lacks an input that its operator cannot be without.
    """
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        entry.domain = _canonical(entry.domain)
    for node in nodes_in(node for nodes in _roots(model) for node in nodes):
        node.domain = _canonical(node.domain)
    findings = _with_version(model)
    version = next(entry.version for entry in model.opset_import if not entry.domain)
    for node in nodes_in(model.graph.node):
        _refuse_missing_inputs(node, version)
    return findings


def _roots(model: onnx.ModelProto) -> Iterator[Iterable[onnx.NodeProto]]:
    yield model.graph.node
    yield from (function.node for function in model.functions)


def _canonical(domain: str) -> str:
    return "" if domain == _ALIAS else domain


def _with_version(model: onnx.ModelProto) -> tuple[Finding, ...]:
    if any(not entry.domain for entry in model.opset_import):
        return ()
    version = onnx.defs.onnx_opset_version()
    model.opset_import.add(domain="", version=version)
    if not any(onnx_op(node) for node in nodes_in(model.graph.node)):
        return ()
    text = f"the file names no version of ONNX's operators; the newest, {version}, is taken"
    return (Finding("missing_opset", text),)


def _refuse_missing_inputs(node: onnx.NodeProto, version: int) -> None:
    least = _least_inputs(onnx_op(node), version)
    if len(node.input) < least:
        message = (
            f"node {node_label(node)} has {len(node.input)} inputs, and {node.op_type} needs "
            f"{least}; export the model again"
        )
        raise GraphError(message)


@cache
def _least_inputs(op_type: str, version: int) -> int:
    """The inputs that an operator needs at a version; 0 where it is not known."""
    try:
        return onnx.defs.get_schema(op_type, version, "").min_input
    except onnx.defs.SchemaError:
        return 0
