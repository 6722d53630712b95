"""One way to write a model: its domains, the versions that it leaves out, nodes that are whole."""

from collections.abc import Collection
from typing import NamedTuple

import onnx
import onnx.defs
import onnx.helper

from onnxmem.errors import Finding, GraphError
from onnxmem.model.arity import refuse_unless_whole
from onnxmem.model.bounds import BOUNDS, variable
from onnxmem.model.columns import Columns, columns_of
from onnxmem.model.traversal import nodes_in, onnx_op

_ALIAS = "ai.onnx"
"""Another name of ONNX's own domain, ``""``."""

_LARGEST_VERSION = 2**31 - 1
_STFT = "STFT"


def normalised(model: onnx.ModelProto, columns: Columns) -> tuple[Finding, ...]:
    """Write ONNX's own domain in one way and import it where the model forgets to, in place.

    ``columns`` are those of the model's graph.

    :raises GraphError: there are more nodes than are followed.
    """
    nodes = list(nodes_in(columns.nodes)) if columns.bodies else columns.nodes
    if len(nodes) > BOUNDS.nodes:
        message = (
            f"{len(nodes):,} nodes, over {BOUNDS.nodes:,} ({variable('nodes')}); set that higher"
        )
        raise GraphError(message)
    for entry in (*model.opset_import, *(e for f in model.functions for e in f.opset_import)):
        entry.domain = _canonical(entry.domain)
        # onnx keeps versions as C's int and knows none that are near its ends.
        entry.version = min(max(entry.version, -_LARGEST_VERSION), _LARGEST_VERSION)
    for body in (nodes, *(nodes_in(function.node) for function in model.functions)):
        for node in [node for node in body if node.domain == _ALIAS or node.op_type == _STFT]:
            node.domain = _canonical(node.domain)
            if node.op_type == _STFT and not node.domain:
                _write_default(node)
    return _with_version(model)


def refuse_partial_nodes(columns: Columns, version: int) -> None:
    """Check the nodes of a graph, those inside them included, at a version of ONNX's operators.

    The graph belongs to a model that is normalised and whose functions are written out.

    :raises GraphError: a node lacks an input, an output or a graph that its operator needs.
    """
    rows = zip(columns.nodes, columns.op_types, columns.inputs, columns.outputs, strict=True)
    for place, (node, op_type, inputs, outputs) in enumerate(rows):
        refuse_unless_whole(node, "" if node.domain else op_type, (inputs, outputs), version)
        for _, inner in columns.bodies.get(place, ()):
            refuse_partial_nodes(columns_of(inner), version)


def _write_default(node: onnx.NodeProto) -> None:
    """Half the frequencies come out unless a file says otherwise; onnx infers shapes of all."""
    if all(attribute.name != "onesided" for attribute in node.attribute):
        node.attribute.append(onnx.helper.make_attribute("onesided", 1))


def _canonical(domain: str) -> str:
    return "" if domain == _ALIAS else domain


def _with_version(model: onnx.ModelProto) -> tuple[Finding, ...]:
    if any(not entry.domain for entry in model.opset_import):
        return ()
    uses = {_use(node) for node in nodes_in(model.graph.node) if onnx_op(node)}
    version = _newest_fitting(uses)
    model.opset_import.add(domain="", version=version)
    if not uses:
        return ()
    text = f"the file names no version of ONNX's operators; {version} is taken, the newest they fit"
    return (Finding("missing_opset", text),)


class _Use(NamedTuple):
    """How a node uses its operator: what versions differ in."""

    op_type: str
    num_inputs: int
    num_outputs: int
    attributes: frozenset[str]

    def fits(self, version: int) -> bool:
        """Whether the operator can be used so; one that the version lacks is a later one's."""
        try:
            schema = onnx.defs.get_schema(self.op_type, version)
        except onnx.defs.SchemaError:
            return True
        return (
            schema.min_input <= self.num_inputs <= schema.max_input
            and schema.min_output <= self.num_outputs <= schema.max_output
            and self.attributes <= schema.attributes.keys()
        )


def _use(node: onnx.NodeProto) -> _Use:
    names = frozenset(attribute.name for attribute in node.attribute)
    return _Use(node.op_type, len(node.input), len(node.output), names)


def _newest_fitting(uses: Collection[_Use]) -> int:
    """The newest version under which all nodes are whole; the newest of all where there is none.

    An axis that was an attribute and is an input now tells an old file.
    """
    newest = onnx.defs.onnx_opset_version()
    versions = range(newest, 0, -1)
    return next((v for v in versions if all(use.fits(v) for use in uses)), newest)
