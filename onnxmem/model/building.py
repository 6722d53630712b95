"""The stages of this package in order: inline functions, sort, bind dims, infer shapes, read."""

from collections import Counter
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final

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
from onnxmem.model.constants import constant_tensor, constant_value
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.reading import named_parameters, read_graph, retyped
from onnxmem.model.shapes.inference import CONTRADICTORY, Shaped, Shapes, with_shapes
from onnxmem.model.traversal import Columns, columns_of, nodes_in
from onnxmem.model.value_types import Known, known_types

if TYPE_CHECKING:
    from onnxmem.model.shapes.type_memo import TypeMemo

MIN_NODES: Final = 200
"""The types of smaller graphs are not memoized: inferring the whole graph is faster."""
_MAX_RANK: Final = 8
"""The longest list that is taken for a shape."""
_MAX_TRACED: Final = 4
"""Candidates for the batch of a trace that are tried, each with a whole inference."""


@dataclass(frozen=True)
class Prepared:
    """A model with inlined functions and sorted nodes; it does not depend on dims."""

    proto: onnx.ModelProto
    batch_symbols: frozenset[str]
    findings: tuple[Finding, ...]
    columns: Columns = field(repr=False, compare=False)
    """The nodes of the graph."""
    of_parameters: frozenset[str] = frozenset()
    """See ``Graph.of_parameters``."""
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
        graph = read_graph(self.proto, types={}, columns=self.columns)
        known = self.of_parameters
        return replace(graph, of_parameters=known) if known else graph

    @cached_property
    def type_memo(self) -> "TypeMemo | None":
        """The memo of distinct nodes; ``None`` if the graph is small or not suited to one."""
        # What a whole inference copies and walks again includes the nodes of subgraphs.
        if sum(1 for _ in islice(nodes_in(self.columns.nodes), MIN_NODES)) < MIN_NODES:
            return None
        from onnxmem.model.shapes.type_memo import type_memo_of

        return type_memo_of(self.proto, lambda: self.records, self.columns, self.inputs)

    @cached_property
    def traced(self) -> "Prepared | None":
        """The model with the one batch that its constants fit, in place of a symbolic one.

        A trace makes a constant of ``len(x)`` and ``int(x.shape[0])``, whatever axes are dynamic.
        ``None`` if no batch that a constant begins with fits.
        """
        for batch in islice(_leading_numbers(self.proto.graph), _MAX_TRACED):
            if not _is_refused(_shaped(self, bind(self.inputs, Request(batch=batch)))):
                proto = onnx.ModelProto()
                proto.CopyFrom(self.proto)
                _fix_batch(proto.graph, self.batch_symbols, batch)
                columns = columns_of(proto.graph)
                return replace(self, proto=proto, batch_symbols=frozenset(), columns=columns)
        return None

    def memoized_types(self, binding: Binding) -> Mapping[str, Known] | None:
        """The types of all tensors by the memo; ``None`` on a miss."""
        if self.type_memo is None or self.type_memo.is_disabled:
            return None
        from onnxmem.model.shapes.type_memo import MemoMissError

        try:
            if binding.old_batch is None or binding.batch is None:
                return self.type_memo.types_at(binding)
            from onnxmem.model.shapes.batch_memo import BatchMemo

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
    known = named_parameters(model.proto.graph) if model.proto.graph.metadata_props else frozenset()
    return Prepared(proto, symbols, tuple(findings), columns, known, with_calls)


def build(prepared: Prepared, request: Request) -> BoundModel:
    """Bind the dims, infer the shapes and make the graph.

    :raises ShapeError: the requested dims do not fit the model.
    """
    binding = bind(prepared.inputs, request)
    has_effect = request.batch is None or binding.batch is not None
    # The memo infers each distinct node once; what it cannot infer is left to the whole inference,
    # whose findings a memo would not have.
    types = prepared.memoized_types(binding)
    if types is not None:
        graph = retyped(prepared.records, types, frozenset())
        return BoundModel(graph, binding, has_effect, (*prepared.findings, *binding.findings))
    shaped = _shaped(prepared, binding)
    if _is_refused(shaped) and prepared.batch_symbols and request.batch is not None:
        moved = None if prepared.traced is None else build(prepared.traced, request)
        if moved is not None and moved.follows_batch:
            text = (
                "constants fit one batch alone, that of the trace, though the file has it symbolic;"
                f" they are changed to that of {request.batch}"
            )
            return replace(moved, findings=(*moved.findings, Finding("batch_of_trace", text)))
    findings = (*prepared.findings, *binding.findings, *shaped.findings)
    graph = _graph(prepared, shaped)
    return BoundModel(graph, binding, shaped.follows_batch and has_effect, findings)


def _shaped(prepared: Prepared, binding: Binding) -> Shaped:
    return with_shapes(prepared.proto, binding, shaped_at_old=prepared.shaped_at_old)


def _is_refused(shaped: Shaped) -> bool:
    """Whether the inputs of some nodes do not fit together."""
    return any(finding.code == CONTRADICTORY for finding in shaped.findings)


def _leading_numbers(graph: onnx.GraphProto) -> Iterator[int]:
    """What constants that may be shapes begin with, the most frequent number first."""
    of_nodes = (constant_tensor(node) for node in graph.node)
    # A trace writes the batch of its example first in the targets of its Reshape and Expand nodes,
    # so the most frequent first number is tried first.
    constants = (*graph.initializer, *(each for each in of_nodes if each is not None))
    found: Counter[int] = Counter()
    for constant in constants:
        is_shape = constant.data_type == onnx.TensorProto.INT64 and len(constant.dims) == 1
        value = constant_value(constant) if is_shape else None
        if value is not None and 1 < value.size <= _MAX_RANK and value[0] > 0:
            found[int(value[0])] += 1
    return (number for number, _ in found.most_common())


def _fix_batch(graph: onnx.GraphProto, symbols: Container[str], batch: int) -> None:
    """Give a symbolic batch a number."""
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = batch


def _graph(prepared: Prepared, shaped: Shaped) -> Graph:
    """Make the graph; what does not depend on dims is read only once."""
    if prepared.columns.bodies or shaped.has_new_constants:
        # Subgraphs have types of their own, and rewritten constants are not in ``records``.
        graph = read_graph(shaped.proto, shaped.assumed, shaped.types)
        return replace(graph, of_parameters=prepared.of_parameters)
    types = shaped.types or known_types(shaped.proto.graph)
    return retyped(prepared.records, types, shaped.assumed)
