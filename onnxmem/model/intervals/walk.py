"""Walk a graph for the intervals of its dims, and return it with their upper ends.

Nodes are in topological order, so one pass knows the intervals of all inputs of a node before its
outputs. An operator with a rule (``dims``) has its intervals by it; any other one is inferred
(``inferred``). An If whose condition may be both has the wider of its branches' outputs.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import onnx
import onnx.helper

from onnxmem.model.control_flow import trip_count
from onnxmem.model.graph import DType, Graph, Node, Tensor
from onnxmem.model.intervals.dims import ALL_ELEMENTS, GENERATING, REDUCING, SEARCHING, rule_of
from onnxmem.model.intervals.inferred import inferred
from onnxmem.model.intervals.interval import (
    DimIntervals,
    Known,
    ValueInterval,
    joined,
    least,
    numbered,
    product,
    renamed,
    times,
)
from onnxmem.model.intervals.limits import Limits
from onnxmem.model.intervals.loops import Iterations
from onnxmem.model.intervals.sequences import SEQUENCES
from onnxmem.model.intervals.site import Site
from onnxmem.model.intervals.sizing import number, reduced_elements
from onnxmem.model.intervals.tensors import TensorIntervals
from onnxmem.model.intervals.values import value_of
from onnxmem.model.shapes.microsoft import MICROSOFT
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.settings import Values


@dataclass(frozen=True, slots=True)
class UpperGraph:
    """A graph with the upper end of each dim."""

    graph: Graph
    """The same nodes; tensors of data-dependent shape have the upper ends of their dims."""
    least: Mapping[str, int]
    """The least of the dims that data decide, by ``TENSOR:AXIS`` where each first occurs."""
    unbounded: tuple[str, ...]
    """Those without an upper end, without those that follow from others."""
    iterations: Mapping[str, int | None]
    """The most of each Loop whose count the data may decide, by its name; ``None``: unbounded."""
    applied: frozenset[str]
    """Limits of the user within which a dim was put."""
    beyond: Mapping[str, int]
    """Limits of the user that no run keeps, and the least of what they limit."""

    @property
    def data_dims(self) -> tuple[str, ...]:
        """The dims that data decide, as ``TENSOR:AXIS`` where each first occurs."""
        return tuple(self.least)


def with_upper_dims(
    graph: Graph,
    model: onnx.ModelProto,
    limits: Limits = MappingProxyType({}),
    values: Mapping[str, Values] = MappingProxyType({}),
) -> UpperGraph | None:
    """The graph with the upper ends of its dims; ``None``: all dims are known.

    ``model`` has the versions of the operators, ``values`` known elements of inputs.
    """
    if not any(tensor.is_open for tensor in graph.tensors.values()):
        return None
    inference = NodeInference(model)
    # Each further walk knows a limit more, of a dim that had none, so this ends.
    while True:
        found = TensorIntervals(graph, limits, values)
        _Walk(inference, found).graph(graph)
        if found.learned.keys() <= limits.keys():
            break
        # What limits a dim limits all that equal it, the first of them included.
        limits = {**found.learned, **limits}
    tensors = {
        name: _upper(graph.tensors[name], known)
        for name, known in found.known.items()
        if graph.tensors[name].is_open or name in found.changing
    }
    return UpperGraph(
        graph.with_tensors({**graph.tensors, **tensors}),
        found.data_dims,
        tuple(found.unbounded) or tuple(dict.fromkeys(_open_dims(tensors.values()))),
        found.iterations,
        frozenset(found.applied),
        found.beyond,
    )


def loop_bounds(
    graph: Graph, model: onnx.ModelProto, limits: Limits, values: Mapping[str, Values]
) -> Mapping[str, int | None]:
    """The most iterations of each Loop whose count the data may decide, by its name; ``None``:
    unbounded.
    """
    found = TensorIntervals(graph, limits, values)
    _Walk(NodeInference(model), found).graph(graph)
    return found.iterations


def with_loop_dims(
    graph: Graph, model: onnx.ModelProto, values: Mapping[str, Values] = MappingProxyType({})
) -> Graph:
    """The graph with the dims that follow from the iterations of its Loops, where their number is
    known; a tensor of a body has the dims of the last one.
    """
    loops = [each for each in graph.all_nodes() if each.onnx_op == "Loop"]
    if not any(
        graph.tensors[name].is_open and trip_count(graph, node)
        for node in loops
        for name in node.writes
    ):
        return graph
    found = TensorIntervals(graph, MappingProxyType({}), values)
    _Walk(NodeInference(model), found).graph(graph)
    if not found.followed:
        return graph
    tensors = {
        name: _upper(graph.tensors[name], known)
        for name, known in found.known.items()
        if known.count is None
        and known.exact_dims is not None
        and (graph.tensors[name].is_open or name in found.changing)
    }
    return graph.with_tensors({**graph.tensors, **tensors})


def _open_dims(tensors: Iterable[Tensor]) -> Iterator[str]:
    """The dims of bodies that have no upper end although all that a Loop returns has one."""
    for tensor in tensors:
        if tensor.num_elements is None:
            rows = zip(tensor.shape or (), tensor.dynamic, strict=False)
            yield from (name for dim, name in rows if dim is None and name)


def _upper(tensor: Tensor, known: Known) -> Tensor:
    """A tensor with the upper ends of its dims; of unknown rank, or a sequence, with one dim of all
    its elements.
    """
    most = known.most_in_all
    dtype = tensor.dtype or known.dtype
    if known.dims is None or known.count is not None:
        shape = None if most is None else (most,)
        return replace(tensor, dtype=dtype, shape=shape, dynamic=(f"{tensor.name}:elements",))
    return replace(
        tensor,
        dtype=dtype,
        shape=tuple(dim.high for dim in known.dims),
        dynamic=tuple("" if dim.number is not None else dim.name for dim in known.dims),
        max_elements=None if most == product(known.dims) else most,
    )


_MALFORMED: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors of a rule that reads what a node lacks."""


_RANK_OF_CACHE: Final = 5
_OPTIONAL: Final = frozenset({"Optional", "OptionalGetElement"})
"""Operators that pass on their input, a tensor or a sequence."""


def _of_step(tensor: Tensor, rows: int | None, length: int | None) -> Known:
    """An input of a decoder: a cache may be [2, rows, heads, tokens, size], all else has its rows
    first.
    """
    if tensor.shape is None:
        return Known.of(tensor)
    of_rows = int(len(tensor.shape) == _RANK_OF_CACHE)
    dims = tuple(
        replace(dim, high=rows if axis == of_rows else length) if dim.number is None else dim
        for axis, dim in enumerate(numbered(tensor.shape, tensor.name))
    )
    return Known(tensor.dtype, dims, ValueInterval.any_of(tensor.dtype))


@dataclass(frozen=True, slots=True)
class _Walk:
    inference: NodeInference
    tensors: TensorIntervals

    def graph(self, graph: Graph) -> None:
        """Find the intervals of all outputs of nodes."""
        if graph is not self.tensors.main:
            self.tensors.body_steps += len(graph.nodes)
        for node in graph.nodes:
            if node.onnx_op == "Constant":
                continue
            inputs = tuple(self.tensors.of(name) if name else None for name in node.inputs)
            distrusts = self.tensors.distrusts
            try:
                found = self._outputs(graph, node, inputs)
            except _MALFORMED:
                # No runtime accepts a node with other inputs or attributes than its operator has.
                # A walk of a body that failed half-way may have left the flag set.
                found, self.tensors.distrusts = (), distrusts
            self.tensors.add(node, found, inputs)

    def _outputs(
        self, graph: Graph, node: Node, inputs: tuple[Known | None, ...]
    ) -> Sequence[Known | None]:
        """What is known of the outputs of a node."""
        passed = self._passed(graph, node, inputs)
        if passed is not None:
            return passed
        # Shapes without an open dim are those of every run: rules and inference are for the others.
        tensors = [self.tensors.main.tensors.get(name) for name in node.outputs]
        is_known = all(each is None or not self._is_open(each) for each in tensors)
        site = Site(node, inputs)
        if is_known:
            shapes: Sequence[DimIntervals | None] = [
                None if each is None or each.shape is None else numbered(each.shape, each.name)
                for each in tensors
            ]
            dtypes: Sequence[DType | None] = [
                None if each is None else each.dtype for each in tensors
            ]
        else:
            shapes, dtypes = self._shapes(site)
        first = inputs[0] if inputs else None
        found: list[Known | None] = []
        for index, name in enumerate(node.outputs):
            dims = shapes[index] if index < len(shapes) else None
            dtype = dtypes[index] if index < len(dtypes) else None
            most = None
            if first is not None and (
                node.onnx_op in ALL_ELEMENTS or (dims and dims == first.dims)
            ):
                # Of an operator that keeps all elements, or the dims of its input, the bound on all
                # of them is tighter than the product of upper dims.
                most = first.most_elements
            if dims is None and node.onnx_op in REDUCING:
                most = reduced_elements(site)
            dtype = (self.tensors.main.tensors[name].dtype if name else None) or dtype
            known = Known(dtype, dims, ValueInterval.any_of(dtype), most)
            found.append(replace(known, value=self._value(site, index, known)))
        return found

    def _passed(
        self, graph: Graph, node: Node, inputs: tuple[Known | None, ...]
    ) -> Sequence[Known | None] | None:
        """The outputs of a node that passes on what bodies return, or other inputs than tensors;
        ``None``: it computes tensors.
        """
        if node.onnx_op == "If":
            return self._branches(node)
        if node.onnx_op in {"Loop", "Scan"} and node.subgraphs:
            return Iterations(self.tensors, self.graph, graph, node).outputs()
        if node.onnx_op == "SequenceMap" and node.subgraphs:
            return self._mapped(node, inputs)
        if node.onnx_op in SEQUENCES:
            return [SEQUENCES[node.onnx_op](Site(node, inputs))]
        if node.op_type in GENERATING and node.domain == MICROSOFT:
            self._generated(node, inputs)
        # A sequence passes as it is; the rules of tensors do not know its count.
        first = inputs[0] if inputs else None
        is_sequence = first is not None and first.count is not None
        is_same = node.onnx_op in _OPTIONAL or (node.onnx_op == "Identity" and is_sequence)
        return inputs if is_same and first is not None else None

    def _value(self, site: Site, index: int, known: Known) -> ValueInterval:
        """The elements of an output."""
        node = site.node
        operator = node.onnx_op
        if index:
            # Indices along an axis, or parts of the input.
            operator = {"TopK": "ArgMax", "Split": "Split", "Unique": "Size"}.get(operator, "")
        attributes = (
            {"axis": -1, **node.attributes} if operator == "ArgMax" and index else node.attributes
        )
        value = value_of(operator, site.inputs, attributes, known.dtype, known.exact_dims)
        if operator == "Size":
            return ValueInterval.of(0, value.most).shaped(known.exact_dims)
        return value

    def _is_open(self, tensor: Tensor) -> bool:
        return self.tensors.distrusts or tensor.num_elements is None

    def _shapes(self, site: Site) -> tuple[Sequence[DimIntervals | None], Sequence[DType | None]]:
        """The dims of the outputs by a rule, or by inference."""
        rule = rule_of(site.node)
        found = list(rule(site)) if rule is not None else []
        tensors = [self.tensors.main.tensors.get(name) for name in site.node.outputs]
        needs_dtype = any(each is not None and each.dtype is None for each in tensors)
        if found and not needs_dtype and None not in found[: len(tensors)]:
            return found, []
        # A rule knows which input a dim is equal to; inference, which costs a call of onnx, fills
        # what no rule says.
        by_onnx, dtypes = inferred(self.inference, site, uses_upper=rule is None)
        found += [None] * (len(by_onnx) - len(found))
        rows = zip(found, by_onnx, strict=False)
        return [other if one is None else one for one, other in rows], dtypes

    def _generated(self, node: Node, inputs: tuple[Known | None, ...]) -> None:
        """Walk the bodies of a node that generates text: of each dim the most of any step."""
        site = Site(node, inputs)
        texts, most_tokens = site.dims(0), number(site, 1)
        if not texts or most_tokens is None:
            return
        beams = number(site, 3) if node.op_type in SEARCHING else None
        rows = times(texts[0].high, 1 if beams is None else beams.high)
        _, limit = self.tensors.limits.get(
            f"{node.outputs[0]}:{1 if beams is None else 2}", (0, None)
        )
        # A cache has no more tokens than the text has in the end, or what was encoded.
        lengths = [least(most_tokens.high, limit), *(dim.high for dim in texts[1:])]
        known = [high for high in lengths if high is not None]
        length = max(known) if len(known) == len(lengths) else None
        for _, body in node.subgraphs:
            for name in body.inputs:
                self.tensors.known[name] = _of_step(self.tensors.main.tensors[name], rows, length)
                self.tensors.changing.add(name)
            self.graph(body)

    def _mapped(self, node: Node, inputs: Sequence[Known | None]) -> Sequence[Known | None]:
        """The sequences of what a body returns for the elements of others."""
        body, count = node.subgraphs[0][1], None if inputs[0] is None else inputs[0].count
        for name, known in zip(body.inputs, inputs, strict=False):
            if known is not None:
                each = (
                    known
                    if known.count is None
                    else renamed(replace(known, count=None, whole=None), name)
                )
                self.tensors.known[name] = each
        self.graph(body)
        if count is None:
            return []
        rows = zip(body.outputs, node.outputs, strict=False)
        return [replace(renamed(self.tensors.of(one), name), count=count) for one, name in rows]

    def _branches(self, node: Node) -> Sequence[Known | None]:
        """The outputs of an If: of the branch that runs, or the wider of both."""
        condition = self.tensors.of(node.inputs[0]).value
        found: list[list[Known]] = []
        for attribute, body in node.subgraphs:
            # Both are walked, whichever runs: the tensors of the other one have dims too.
            self.graph(body)
            # An unknown condition is from 0 to 1: then both run.
            runs = condition.most >= 1 if attribute == "then_branch" else condition.least <= 0
            if runs or len(node.subgraphs) == 1:
                found.append([self.tensors.of(name) for name in body.outputs])
        if not found:
            return []
        outputs = found[0]
        for other in found[1:]:
            rows = zip(node.outputs, outputs, other, strict=False)
            outputs = [joined(one, two, name) for name, one, two in rows]
        return outputs
