"""What a run of onnxruntime accounts to each of its nodes, and the key that it does so under.

Source: ``ExecuteKernel`` of ``core/framework/sequential_executor.cc`` of onnxruntime 1.31. After
its kernel has run, a node is accounted

* ``input_sizes``: its explicit inputs that are there and that nobody was accounted before; a weight
  that its kernels have packed and dropped is not there. ``initializers_sizes`` stays 0;
* ``total_dynamic_sizes``: its outputs that were given a buffer of their own by this frame, rounded
  up, and that nobody was accounted before;
* ``total_temp_allocations``: what its kernel asked for itself.

Tensors are told apart by their names in the file, of all graphs together.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from onnxmem.export.murmur import murmur3_x86_128
from onnxmem.model import Graph
from onnxmem.runtimes.onnxruntime.allocation.pattern import rounded_up
from onnxmem.runtimes.onnxruntime.allocation.planning import Plan, Step
from onnxmem.runtimes.onnxruntime.session_graph.placing import (
    body_place,
    body_prefix,
    placed_graphs,
)

_WRITES_OUTSIDE = frozenset({"If", "Scan"})
"""Operators whose bodies put their outputs into the node's."""


@dataclass(frozen=True, slots=True)
class NodeStats:
    """What one node is accounted, in bytes."""

    key: str
    input_bytes: int
    output_bytes: int
    scratch_bytes: int


def node_key(node: onnx.NodeProto, name: str) -> str:
    """The name by which a node is found again (``MakeUniqueNodeName``): its name and a hash.

    An unnamed one goes by its operator. The hash is of the names of all inputs, left-out ones too,
    then all outputs, each hashed with the lowest 32 bits of the hash before as the seed.
    """
    hashed: tuple[int, ...] = (0, 0)
    for tensor in (*node.input, *node.output):
        hashed = murmur3_x86_128(tensor.encode(), hashed[0])
    return f"{name or node.op_type}_{hashed[0] | hashed[1] << 32}"


@dataclass(slots=True)
class Accounting:
    """Mutable: who has been accounted so far."""

    file: onnx.GraphProto
    """The graph that runs, as its optimiser saved it."""
    scratch_bytes: Mapping[str, int]
    """By the name of the node."""
    dropped: frozenset[str]
    """Weights that are not there."""
    own_names: Mapping[str, str]
    """What the model's file calls the nodes that were named for the optimiser."""
    _seen: set[str] = field(default_factory=set)
    _nodes: dict[tuple[str, str], onnx.NodeProto] = field(default_factory=dict)
    """By the place of their graph and their first output."""

    def of(self, plan: Plan) -> Iterator[NodeStats]:
        """Every node in the order in which they end, one whose bytes are unknown left out."""
        for place, graph in placed_graphs(self.file):
            self._nodes.update(
                ((place, next(filter(None, node.output))), node)
                for node in graph.node
                if any(node.output)
            )
        yield from self._of(plan, "", "", frozenset())

    def _of(
        self, plan: Plan, place: str, prefix: str, provided: frozenset[str]
    ) -> Iterator[NodeStats]:
        for step in plan.steps:
            node = step.node
            for body, (attribute, graph) in zip(step.bodies, node.subgraphs, strict=True):
                outside = frozenset(graph.outputs) if node.onnx_op in _WRITES_OUTSIDE else ()
                yield from self._of(
                    body,
                    body_place(place, prefix, node, attribute),
                    body_prefix(node, attribute, graph),
                    frozenset(outside),
                )
            in_file = self._nodes.get((place, next(iter(node.writes), "").removeprefix(prefix)))
            if in_file is not None:
                yield from self._accounted(plan.graph, step, in_file, provided)

    def _accounted(
        self, graph: Graph, step: Step, node: onnx.NodeProto, provided: frozenset[str]
    ) -> Iterator[NodeStats]:
        inputs = [
            graph.tensors[name].size_bytes
            for name, own in zip(step.node.inputs, node.input, strict=False)
            if name and name not in self.dropped and self._is_first(own)
        ]
        outputs = [
            graph.tensors[name].size_bytes
            for name, own in zip(step.node.outputs, node.output, strict=False)
            if name in step.allocates and name not in provided and self._is_first(own)
        ]
        if None not in inputs and None not in outputs:
            yield NodeStats(
                node_key(node, self.own_names.get(node.name, node.name)),
                sum(size or 0 for size in inputs),
                sum(rounded_up(size or 0) for size in outputs),
                self.scratch_bytes.get(step.node.name, 0),
            )

    def _is_first(self, name: str) -> bool:
        if name in self._seen:
            return False
        self._seen.add(name)
        return True
