"""The stages of this room in order: functions, order, binding, shapes, records."""

from dataclasses import dataclass, field

import onnx

from onnxmem.collecting import without_collection
from onnxmem.findings import Finding
from onnxmem.model.binding import Binding, Request, batch_symbols, bind
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.inlining import with_functions_inlined
from onnxmem.model.normalising import normalised, refuse_partial_nodes
from onnxmem.model.order import sort_nodes
from onnxmem.model.reading import read_graph
from onnxmem.model.retyping import is_retypable, retyped
from onnxmem.model.shapes import Shaped, Shapes, with_shapes
from onnxmem.model.shapes.alike import Told
from onnxmem.model.value_types import known_types


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model whose nodes can run in order and whose functions are written out."""

    proto: onnx.ModelProto
    batch_symbols: frozenset[str]
    findings: tuple[Finding, ...]
    read: list[Graph] = field(default_factory=list, init=False, repr=False, compare=False)
    """The first graph that was read of it, if another batch of it differs in types alone."""
    at_olds: dict[Shapes, onnx.ModelProto] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The model with its shapes at the batch that it fixes, if another was asked for."""
    told: list[Told] = field(default_factory=list, init=False, repr=False, compare=False)
    """That first graph, if onnx alone has told its types."""


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A graph of which every dim that can be known is a number."""

    graph: Graph
    binding: Binding
    follows_batch: bool
    """False: the batch asked for is not, or not everywhere, the batch of the graph."""
    findings: tuple[Finding, ...]


@without_collection()
def prepare(model: ModelFile) -> Prepared:
    """Write the local functions out and sort the nodes; nothing here depends on a batch.

    :raises GraphError: a cycle, a tensor defined twice or not at all, too many nodes.
    """
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    findings = [*normalised(proto)]
    proto = with_functions_inlined(proto)
    refuse_partial_nodes(proto)
    if sort_nodes(proto.graph):
        text = "the nodes stand in no order that can run; they were sorted"
        findings.append(Finding("unsorted_nodes", text))
    return Prepared(proto, batch_symbols(proto.graph), tuple(findings))


@without_collection()
def build(prepared: Prepared, request: Request) -> BoundModel:
    """Bind the dims, infer the shapes and read the records.

    :raises ShapeError: the dims asked for do not fit the model.
    """
    binding = bind(prepared.proto.graph, request)
    has_effect = request.batch is None or binding.batch is not None
    if prepared.told and binding.old_batch is None:
        types = prepared.told[0].types_at(binding)
        if types is not None:
            graph = retyped(prepared.read[0], types, frozenset())
            return BoundModel(graph, binding, has_effect, (*prepared.findings, *binding.findings))
    shaped = with_shapes(prepared.proto, binding, at_olds=prepared.at_olds)
    findings = (*prepared.findings, *binding.findings, *shaped.findings)
    graph = _graph(prepared, binding, shaped)
    return BoundModel(graph, binding, shaped.follows_batch and has_effect, findings)


def _graph(prepared: Prepared, binding: Binding, shaped: Shaped) -> Graph:
    """Read the records; those that no batch changes are read once."""
    if binding.old_batch is not None:
        # Its constants were written anew.
        return read_graph(shaped.proto, shaped.assumed)
    if prepared.read:
        types = shaped.types or known_types(shaped.proto.graph)
        return retyped(prepared.read[0], types, shaped.assumed)
    graph = read_graph(shaped.proto, shaped.assumed, shaped.types)
    if is_retypable(graph):
        prepared.read.append(graph)
        if shaped.is_onnxs and shaped.types is not None:
            prepared.told.append(Told(prepared.proto, graph, shaped.types))
    return graph
