"""One way to write a model: its domains, the versions that it leaves out, nodes that are whole."""

from collections.abc import Iterable, Iterator

import onnx
import onnx.defs

from onnxmem.findings import Finding
from onnxmem.model.arity import refuse_unless_whole
from onnxmem.model.traversal import nodes_in, onnx_op

_ALIAS = "ai.onnx"
"""Another name of ONNX's own domain, ``""``."""

_LARGEST_VERSION = 2**31 - 1


def normalised(model: onnx.ModelProto) -> tuple[Finding, ...]:
    """Write ONNX's own domain in one way and import it where the model forgets to, in place.

    :raises GraphError: a node lacks an input, an output or a graph that its operator needs.
    """
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        entry.domain = _canonical(entry.domain)
        # onnx keeps versions as C's int and knows none that are near its ends.
        entry.version = min(max(entry.version, -_LARGEST_VERSION), _LARGEST_VERSION)
    for node in nodes_in(node for nodes in _roots(model) for node in nodes):
        if node.domain == _ALIAS:
            node.domain = ""
    findings = _with_version(model)
    version = next(entry.version for entry in model.opset_import if not entry.domain)
    for node in nodes_in(model.graph.node):
        refuse_unless_whole(node, version)
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
