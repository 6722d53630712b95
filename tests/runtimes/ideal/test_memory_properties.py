"""Laws that hold for every graph, and the brute force of ``oracle.py``, on random graphs."""

from collections.abc import Mapping
from dataclasses import replace

import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Shape
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory, activation_memory

SHAPES: tuple[Shape, ...] = ((2,), (3,), (5, 7), (1, 11), (), (0,))
DTYPES = (DType.FLOAT32, DType.INT32, DType.FLOAT16, DType.UINT4)
OP_TYPES = ("Relu", "Sigmoid", "Identity", "Clip", "Cast", "Add", "Split", "Constant", "Mystery")
VIEWS = ("Identity", "Reshape")
SAME_SHAPE = ("Relu", "Sigmoid", "Clip", "Cast")


class Sketch:
    """Draws a graph's records, subgraphs and all; every name is used once."""

    def __init__(self, draw: st.DrawFn, *, with_unknown: bool) -> None:
        self.draw = draw
        self.with_unknown = with_unknown
        self.tensors: dict[str, Tensor] = {}

    def graph(self, prefix: str, outer: list[str], depth: int) -> Graph:
        """Draw a graph whose nodes may read what enclosing graphs have made so far."""
        role = Role.BODY_INPUT if prefix else Role.INPUT
        inputs = [self.tensor(f"{prefix}x{place}", role) for place in range(2)]
        weights = [self.tensor(f"{prefix}w", Role.WEIGHT)]
        visible = [*outer, *inputs, *weights]
        nodes: list[Node] = []
        made: list[str] = []
        for place in range(self.draw(st.integers(0 if prefix else 1, 7))):
            node = self.node(f"{prefix}n{place}", visible, depth)
            nodes.append(node)
            visible += node.writes
            made += node.writes
        outputs = self.draw(st.lists(st.sampled_from([*made, *inputs]), max_size=2, unique=True))
        return Graph(prefix, tuple(nodes), tuple(inputs), tuple(outputs), self.tensors)

    def tensor(self, name: str, role: Role = Role.ACTIVATION, like: str | None = None) -> str:
        """Add a tensor of a drawn type, or of another's where it is ``like`` that."""
        model = self.tensors.get(like or "")
        shape = model.shape if model else self.draw(st.sampled_from(SHAPES))
        dtype = model.dtype if model else self.draw(st.sampled_from(DTYPES))
        if self.with_unknown and role is Role.ACTIVATION and self.draw(st.integers(0, 4)) == 0:
            shape = self.draw(st.sampled_from([None, (None, 3)]))
        self.tensors[name] = Tensor(name, dtype, shape, role)
        return name

    def node(self, name: str, visible: list[str], depth: int) -> Node:
        """Draw a node: one of ``OP_TYPES``, or an If or a Loop while ``depth`` lasts."""
        kinds = (*OP_TYPES, *(("If", "Loop") if depth else ()))
        op_type = self.draw(st.sampled_from(kinds))
        if op_type in {"If", "Loop"}:
            return self.control(name, op_type, visible, depth - 1)
        num_inputs = {"Constant": 0, "Clip": 3, "Add": 2, "Mystery": 2}.get(op_type, 1)
        # Late tensors first: chains are more telling than stars.
        recent = st.sampled_from(visible[-4:]) | st.sampled_from(visible)
        inputs = tuple(self.draw(recent) for _ in range(num_inputs))
        num_outputs = 2 if op_type in {"Split", "Mystery"} else 1
        role = Role.WEIGHT if op_type == "Constant" else Role.ACTIVATION
        like = inputs[0] if op_type in {*VIEWS, *SAME_SHAPE} else None
        outputs = tuple(self.tensor(f"{name}_y{i}", role, like) for i in range(num_outputs))
        return Node(name, op_type, "", inputs, outputs, lookup(op_type, opset=21))

    def control(self, name: str, op_type: str, visible: list[str], depth: int) -> Node:
        """Draw the bodies first, then an If's outputs after its branches'."""
        attributes = ("then", "else") if op_type == "If" else ("body",)
        bodies = [(kind, self.graph(f"{name}/{kind}/", visible, depth)) for kind in attributes]
        num_outputs = min(len(body.outputs) for _, body in bodies)
        bodies = [(kind, replace(g, outputs=g.outputs[:num_outputs])) for kind, g in bodies]
        outputs = tuple(
            self.tensor(f"{name}_y{i}", like=bodies[0][1].outputs[i]) for i in range(num_outputs)
        )
        inside = {out for _, body in bodies for node in body.all_nodes() for out in node.outputs}
        names = {name for _, body in bodies for node in body.all_nodes() for name in node.reads}
        names |= {name for _, body in bodies for name in body.outputs}
        reads = tuple(sorted(name for name in names - inside if name in visible))
        operator = lookup(op_type)
        inputs = (self.draw(st.sampled_from(visible)),)
        subgraphs = tuple(bodies)
        return Node(name, op_type, "", inputs, outputs, operator, {}, subgraphs, reads)


@st.composite
def graphs(draw: st.DrawFn, *, with_unknown: bool = False, depth: int = 2) -> Graph:
    return Sketch(draw, with_unknown=with_unknown).graph("", [], depth)


def activations(graph: Graph) -> list[Tensor]:
    return [
        graph.tensors[name]
        for node in graph.all_nodes()
        for name in node.writes
        if graph.tensors[name].role is Role.ACTIVATION
    ]


@given(graphs())
def test_the_figures_are_in_order(graph: Graph) -> None:
    found = activation_memory(graph)
    assert found.naive_bytes is not None
    assert found.peak_bytes is not None
    assert found.naive_in_place_bytes is not None
    assert found.in_place_peak_bytes is not None
    sizes = [
        graph.tensors[n].size_bytes or 0
        for node in graph.nodes
        for n in node.writes
        if graph.tensors[n].role is Role.ACTIVATION
    ]
    assert max(sizes, default=0) <= found.peak_bytes <= found.naive_bytes
    assert found.in_place_peak_bytes <= found.peak_bytes
    assert found.in_place_peak_bytes <= found.naive_in_place_bytes <= found.naive_bytes
    assert found.packing.size_bytes >= found.packing.lower_bound_bytes == found.in_place_peak_bytes
    assert found.unknown_tensors == ()


@given(graphs(with_unknown=True))
def test_the_figures_are_in_order_also_where_sizes_are_unknown(graph: Graph) -> None:
    found = activation_memory(graph)
    assert (found.in_place_peak_bytes or 0) <= (found.peak_bytes or 0) <= (found.naive_bytes or 0)
    assert (found.naive_in_place_bytes or 0) <= (found.naive_bytes or 0)
    assert found.packing.size_bytes >= (found.in_place_peak_bytes or 0)
    tensors = activations(graph)
    assert set(found.unknown_tensors) <= {t.name for t in tensors if t.size_bytes is None}
    if tensors and not any(oracle.is_known(tensor) for tensor in tensors):
        assert (found.naive_bytes, found.peak_bytes) == (None, None)
        assert not found.in_place_peak_bytes


@settings(max_examples=300)
@given(graphs() | graphs(with_unknown=True))
def test_the_figures_are_the_oracles(graph: Graph) -> None:
    found = activation_memory(graph)
    alone = oracle.live_bytes(graph, in_place=False)
    shared = oracle.live_bytes(graph, in_place=True)
    assert found.live_bytes == tuple(shared)
    assert (found.naive_bytes or 0) == oracle.naive(graph, in_place=False)
    assert (found.naive_in_place_bytes or 0) == oracle.naive(graph, in_place=True)
    assert (found.peak_bytes or 0) == max([*alone, *shared])
    assert (found.in_place_peak_bytes or 0) == max(shared)
    assert_live_at_peak_adds_up(graph, found)
    # No two live buffers share an address, those of subgraphs included.
    program, sizes = found.replay.program, found.replay.sizes
    starts, stops = program.lifetimes
    blocks = {n: (sizes.bytes_of(n), starts[n], stops[n]) for n in range(program.num_allocations)}
    assert oracle.overlaps(blocks, found.packing.offsets) == []


def assert_live_at_peak_adds_up(graph: Graph, found: ActivationMemory) -> None:
    assert sum(live.size_bytes for live in found.live_at_peak) == (found.in_place_peak_bytes or 0)
    assert len({live.label for live in found.live_at_peak}) == len(found.live_at_peak)
    assert all(live.label in graph.tensors for live in found.live_at_peak)
    if found.peak_step is not None:
        assert found.peak_node == graph.nodes[found.peak_step].name


@given(graphs() | graphs(with_unknown=True))
def test_names_mean_nothing(graph: Graph) -> None:
    names = {name: f"t{len(graph.tensors) - place}" for place, name in enumerate(graph.tensors)}
    tensors = {new: replace(graph.tensors[old], name=new) for old, new in names.items()}
    before = activation_memory(graph)
    after = activation_memory(renamed(graph, names, tensors))
    assert numbers(after) == numbers(before)
    assert after.unknown_tensors == tuple(names[name] for name in before.unknown_tensors)
    assert [live.label for live in after.live_at_peak] == [
        names[live.label] for live in before.live_at_peak
    ]


def renamed(graph: Graph, names: Mapping[str, str], tensors: Mapping[str, Tensor]) -> Graph:
    """The same graph, each tensor and each node by another name."""

    def each(old: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(name, name) for name in old)

    nodes = tuple(
        replace(
            node,
            name=f"node{place}",
            inputs=each(node.inputs),
            outputs=each(node.outputs),
            outer_reads=each(node.outer_reads),
            subgraphs=tuple((k, renamed(body, names, tensors)) for k, body in node.subgraphs),
        )
        for place, node in enumerate(graph.nodes)
    )
    return Graph(graph.name, nodes, each(graph.inputs), each(graph.outputs), tensors)


def numbers(found: ActivationMemory) -> tuple[object, ...]:
    return (
        found.naive_bytes,
        found.naive_in_place_bytes,
        found.peak_bytes,
        found.in_place_peak_bytes,
        found.peak_step,
        found.live_bytes,
        found.packing.offsets,
    )
