"""The stages of this package in order: inline functions, sort, bind dims, infer shapes, read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import onnx

from onnxmem.errors import Finding
from onnxmem.model.binding import Binding, Request, batch_symbols, bind, required_inputs
from onnxmem.model.canonical import (
    can_be_inlined_as_they_are,
    normalized,
    refuse_partial_nodes,
    sort_columns,
    with_functions_inlined,
)
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.reading import read_graph, retyped
from onnxmem.model.shapes.inference import Shaped, Shapes, with_shapes
from onnxmem.model.shapes.type_memo import BatchMemo, MemoMissError, TypeMemo, type_memo_of
from onnxmem.model.traversal import Columns, columns_of
from onnxmem.model.value_types import Known, known_types


@dataclass(frozen=True)
class Prepared:
    """A model with inlined functions and sorted nodes; it does not depend on dims."""

    proto: onnx.ModelProto
    batch_symbols: frozenset[str]
    findings: tuple[Finding, ...]
    columns: Columns = field(repr=False, compare=False)
    """The nodes of the graph."""
    with_calls: onnx.ModelProto | None = field(default=None, repr=False, compare=False)
    """The model before inlining, if inlining needs no other change of it."""
    shaped_at_old: dict[Shapes, onnx.ModelProto] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The model with the shapes of its fixed batch, if another batch was requested."""

    @cached_property
    def inputs(self) -> tuple[onnx.ValueInfoProto, ...]:
        """The inputs that the caller passes."""
        return required_inputs(self.proto.graph)

    @cached_property
    def records(self) -> Graph:
        """The graph without the types of activations.

        :raises GraphError: a weight has a negative dim.
        """
        return read_graph(self.proto, types={}, columns=self.columns)

    @cached_property
    def type_memo(self) -> TypeMemo | None:
        """The memo of distinct nodes; ``None`` if the graph is small or not suited to one."""
        return type_memo_of(self.proto, lambda: self.records, self.columns, self.inputs)

    def memoized_types(self, binding: Binding) -> Mapping[str, Known] | None:
        """The types of all tensors by the memo; ``None`` on a miss."""
        if self.type_memo is None or self.type_memo.is_disabled:
            return None
        try:
            if binding.old_batch is None or binding.batch is None:
                return self.type_memo.types_at(binding)
            moved = BatchMemo(self.type_memo, binding.old_batch, binding.batch)
            return moved.types(binding.shapes_at_old_batch, binding.shapes)
        except MemoMissError:
            return None


@dataclass(frozen=True, slots=True)
class BoundModel:
    """A graph with a number for every dim that can be inferred."""

    graph: Graph
    binding: Binding
    follows_batch: bool
    """False: some tensors do not have the requested batch."""
    findings: tuple[Finding, ...]


def prepare(model: ModelFile) -> Prepared:
    """Inline local functions and sort the nodes; nothing here depends on dims.

    :raises GraphError: a cycle, a tensor that is defined twice or never, or too many nodes.
    """
    # The order matters: inlining needs canonical domains, the check of nodes needs inlined ones,
    # and sorting needs all inputs and outputs to be there.
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    columns = columns_of(proto.graph)
    findings = [*normalized(proto, columns)]
    inlined, with_calls = with_functions_inlined(proto), None
    if inlined is not proto:
        with_calls = proto if can_be_inlined_as_they_are(proto) else None
        proto, columns = inlined, columns_of(inlined.graph)
    version = next(entry.version for entry in proto.opset_import if not entry.domain)
    refuse_partial_nodes(columns, version)
    if sort_columns(proto.graph, columns):
        text = "the nodes are not in topological order; they were sorted"
        findings.append(Finding("unsorted_nodes", text))
        columns = columns_of(proto.graph)
    symbols = batch_symbols(required_inputs(proto.graph))
    return Prepared(proto, symbols, tuple(findings), columns, with_calls)


def build(prepared: Prepared, request: Request) -> BoundModel:
    """Bind the dims, infer the shapes and make the graph.

    :raises ShapeError: the requested dims do not fit the model.
    """
    binding = bind(prepared.inputs, request)
    has_effect = request.batch is None or binding.batch is not None
    types = prepared.memoized_types(binding)
    if types is not None:
        graph = retyped(prepared.records, types, frozenset())
        return BoundModel(graph, binding, has_effect, (*prepared.findings, *binding.findings))
    shaped = with_shapes(prepared.proto, binding, shaped_at_old=prepared.shaped_at_old)
    findings = (*prepared.findings, *binding.findings, *shaped.findings)
    graph = _graph(prepared, shaped)
    return BoundModel(graph, binding, shaped.follows_batch and has_effect, findings)


def _graph(prepared: Prepared, shaped: Shaped) -> Graph:
    """Make the graph; what does not depend on dims is read only once."""
    if prepared.columns.bodies or shaped.has_new_constants:
        # Subgraphs have types of their own, and rewritten constants are not in ``records``.
        return read_graph(shaped.proto, shaped.assumed, shaped.types)
    types = shaped.types or known_types(shaped.proto.graph)
    return retyped(prepared.records, types, shaped.assumed)
