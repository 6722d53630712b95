"""Activation memory: worked by hand, and compared with an oracle on random graphs."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import oracle
import pytest
from graphs import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from paths import LIGHT

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Shape
from onnxmem.program.program import Allocation, Category
from onnxmem.runtimes.ideal.activation_memory import ActivationMemory, activation_memory

# Definitions 2 to 5 on whole graphs, subgraphs and unknown sizes included, and known models.


def graph(text: str) -> Graph:
    return graph_of('<ir_version: 10, opset_import: ["": 21, "own": 1]>' + text)


def memory(text: str) -> ActivationMemory:
    return activation_memory(graph(text))


def live(tensor: str, size_bytes: int) -> Allocation:
    return Allocation(tensor, Category.ACTIVATION, size_bytes)


def figures(text: str) -> tuple[int | None, int | None, int | None, int | None]:
    """Naive, naive in index, peak, in-index peak."""
    found = memory(text)
    sums = (found.naive_bytes, found.naive_in_place_bytes)
    return *sums, found.peak_bytes, found.in_place_peak_bytes


# x 2 -> a 3 -> b 5 (dead) and r = Relu(a) 3 -> y 7
CHAIN = """agraph (float[2] x) => (float[7] y) <float[3] a, float[5] b, float[7] y>
{ a = own.F(x)  b = own.F(x)  r = Relu(a)  y = own.F(r) }"""


def test_the_four_figures_of_a_chain() -> None:
    assert figures(CHAIN) == (4 * (3 + 5 + 3 + 7), 4 * (3 + 5 + 7), 4 * (3 + 7), 4 * (3 + 7))


def test_the_peak_has_a_node_and_a_live_set() -> None:
    found = memory(CHAIN)
    assert (found.peak_node, found.peak_step) == ("F_3", 3)
    assert found.live_at_peak == (live("y", 28), live("a", 12))
    assert found.live_bytes == (12, 32, 12, 40)
    assert (found.arena_bytes, found.packing.is_optimal) == (40, True)


def test_an_output_that_nothing_reads_counts() -> None:
    text = "agraph (float[7] x) => (float[7] y) { y, mask = Dropout(x) }"
    assert figures(text) == (28 + 7, 28 + 7, 28 + 7, 28 + 7)


def test_what_a_node_computes_from_weights_is_an_activation() -> None:
    text = """agraph (float[2] x) => (float[2] y) <float[7,3] w, float[2] y>
    { t = Transpose(w)  k = Constant <value_floats = [1.0]> ()  y = own.F(x, t, k) }"""
    assert figures(text)[0] == 4 * (21 + 2)


def test_a_graph_without_activations_takes_nothing() -> None:
    found = memory("agraph (float[2] x) => (float[3] w) <float[3] w> { }")
    assert figures("agraph (float[2] x) => (float[3] w) <float[3] w> { }") == (0, 0, 0, 0)
    assert (found.peak_node, found.peak_step, found.live_at_peak) == (None, None, ())
    assert found.packing.size_bytes == 0


def test_views_of_inputs_take_no_bytes_in_place() -> None:
    found = memory("agraph (float[7] x) => (float[7] y) { y = Identity(x) }")
    assert (found.naive_bytes, found.peak_bytes) == (28, 28)
    assert (found.naive_in_place_bytes, found.in_place_peak_bytes) == (0, 0)
    assert (found.peak_node, found.live_at_peak) == (None, ())


# Unknown sizes


def test_unknown_tensors_are_listed_and_left_out() -> None:
    text = """agraph (float[2] x) => (float[7] y) <float[3] a, float[7] y>
    { a = own.F(x)  b = own.F(a)  y = own.F(b, a) }"""
    assert figures(text) == (40, 40, 40, 40)
    assert memory(text).unknown_tensors == ("b",)


def test_a_figure_without_any_known_size_is_none() -> None:
    text = "agraph (float[2] x) => (float[N] y) { a = own.F(x)  y = own.F(a) }"
    found = memory(text.replace("float[N] y", "seq(float[2]) y"))
    assert found.unknown_tensors == ("a", "y")
    assert (found.naive_bytes, found.naive_in_place_bytes) == (None, None)
    assert (found.peak_bytes, found.in_place_peak_bytes, found.arena_bytes) == (None, None, None)
    assert (found.peak_node, found.peak_step, found.live_at_peak) == (None, None, ())


def test_the_peak_is_never_below_the_in_place_peak() -> None:
    # Of a, only its view's size is known: as tensors, a and r are unknown until v.
    text = """agraph (float[3] x) => (float[5] y) <int64[1] shape = {7}, float[11] b, float[5] y>
    { a = NonZero(x)  b = own.F(x)  c = own.F(b)  v = Reshape(a, shape)  y = own.F(v) }"""
    found = memory(text)
    assert found.in_place_peak_bytes == 44 + 56
    assert found.peak_bytes == 44 + 56


# If

BRANCHES = """agraph (uint8[2] x, bool c) => (uint8[19] z) <uint8[3] a, uint8[19] z>
{ a = own.F(x)
  y = If (c) <
    then_branch = t () => (uint8[11] o) <uint8[13] i> { i = own.F(a)  o = own.F(i) },
    else_branch = e () => (uint8[11] p) <uint8[5] j> { j = own.F(a)  p = own.F(j) }>
  z = own.F(y) }"""


def test_an_if_adds_its_larger_branch_at_its_step() -> None:
    assert memory(BRANCHES).live_bytes == (3, 3 + 11 + 13, 11 + 19)
    assert figures(BRANCHES)[2:] == (11 + 19, 11 + 19)


def test_the_naive_sum_of_an_if_counts_the_larger_branch() -> None:
    assert figures(BRANCHES)[0] == 3 + 13 + 11 + 19


def test_a_branchs_output_and_the_ifs_count_once() -> None:
    text = BRANCHES.replace("uint8[13] i", "uint8[29] i")
    found = memory(text)
    assert (found.peak_node, found.in_place_peak_bytes) == ("If_1", 3 + 11 + 29)
    assert found.live_at_peak == (
        live("If_1/then_branch/i", 29),
        live("y", 11),
        live("a", 3),
    )


def test_a_branchs_output_counts_inside_if_the_ifs_size_is_unknown() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[19] z) <uint8[19] z>
    { y = If (c) <then_branch = t () => (uint8[11] o) { o = own.F(x) },
                  else_branch = e () => (uint8[5] p) { p = own.F(x) }>
      z = own.F(y) }"""
    found = memory(text)
    assert found.live_bytes == (11, 19)
    assert (found.naive_bytes, found.unknown_tensors) == (11 + 19, ("y",))


def test_a_view_that_is_a_branchs_output_is_in_the_ifs_buffer() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[7] y) {
      y = If (c) <then_branch = t () => (uint8[7] o) <uint8[7] i> { i = own.F(x)  o = Identity(i) },
                  else_branch = e () => (uint8[7] p) { p = own.F(x) }> }"""
    assert figures(text) == (7 + 7, 7, 7 + 7, 7)


def test_a_branch_does_not_overwrite_outer_tensors_and_views_of_them_take_no_bytes() -> None:
    text = """agraph (float[2] x, bool c) => (float[3] z) <float[7] a, float[3] z>
    { a = own.F(x)
      z = If (c) <then_branch = t () => (float[3] o)
                    { v = Identity(a)  r = Relu(v)  s = Relu(a)  o = own.F(r, s) },
                  else_branch = e () => (float[3] p) { p = own.F(x) }> }"""
    assert memory(text).live_bytes == (28, 28 + 12 + 28 + 28)


def test_a_branch_that_returns_an_outer_tensor_adds_no_bytes() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[7] y) <uint8[7] a>
    { a = own.F(x)
      y = If (c) <then_branch = t () => (uint8[7] a) { },
                  else_branch = e () => (uint8[7] p) { p = own.F(x) }> }"""
    assert memory(text).live_bytes == (7, 7 + 7)


def test_nested_ifs_write_into_the_outermost_output() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[7] y) {
      y = If (c) <
        then_branch = t () => (uint8[7] o) {
          o = If (c) <
            then_branch = tt () => (uint8[7] p) <uint8[3] i> { i = own.F(x)  p = own.F(i) },
            else_branch = te () => (uint8[7] q) { q = own.F(x) }> },
        else_branch = e () => (uint8[7] r) { r = own.F(x) }> }"""
    found = memory(text)
    assert (found.naive_bytes, found.peak_bytes, found.in_place_peak_bytes) == (10, 10, 10)
    assert [each.label for each in found.live_at_peak] == [
        "y",
        "If_0/then_branch/If_0/then_branch/i",
    ]


def test_the_larger_branch_is_chosen_for_each_figure() -> None:
    # then: 3 tensors of 5, 15 in sum, two live; else: one of 11, then its output.
    text = """agraph (uint8[2] x, bool c) => (uint8[2] y) {
      y = If (c) <
        then_branch = t () => (uint8[2] o) <uint8[5] i, uint8[5] j, uint8[5] k>
          { i = own.F(x)  j = own.F(x)  k = own.F(x)  o = own.F(x) },
        else_branch = e () => (uint8[2] p) <uint8[11] l> { l = own.F(x)  p = own.F(l) }> }"""
    assert figures(text) == (15 + 2, 15 + 2, 11 + 2, 11 + 2)


def test_unknown_tensors_of_both_branches_are_listed() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[2] y) {
      y = If (c) <then_branch = t () => (uint8[2] o) { i = own.F(x)  o = own.F(i) },
                  else_branch = e () => (uint8[2] p) { j = own.F(x)  p = own.F(j) }> }"""
    assert memory(text).unknown_tensors == ("If_0/then_branch/i", "If_0/else_branch/j")


# Loop and Scan

LOOP = """agraph (uint8[2] x, int64 n, bool c) => (uint8[3] y) <uint8[3] a>
{ a = own.F(x)
  y = Loop (n, c, a) <body = b (int64 i, bool go, uint8[3] h) => (bool on, uint8[3] g) <uint8[13] t>
    { on = Identity(go)  t = own.F(h)  g = own.F(t) }> }"""


def test_a_loop_adds_its_body_once_with_the_bodys_outputs() -> None:
    outer, inner = 3 + 3, 13 + 3
    assert figures(LOOP) == (outer + 1 + inner, outer + inner, outer + 1 + inner, outer + inner)


def test_formal_inputs_of_a_body_are_not_overwritten() -> None:
    text = """agraph (float[2] x, int64 n, bool c) => (float[7] y) <float[7] a>
    { a = own.F(x)
      y = Loop (n, c, a) <body = b (int64 i, bool go, float[7] h) => (bool on, float[7] g)
        { on = own.F(go)  r = Relu(h)  s = Relu(r)  g = own.F(s) }> }"""
    # In the body: on, then r over nothing, s over r, and g.
    assert memory(text).live_bytes == (28, 28 + 28 + 1 + 28 + 28)


def test_a_scan_counts_its_body_once() -> None:
    text = """agraph (uint8[2] x, uint8[5,7] s) => (uint8[3] y, uint8[5,11] ys) <uint8[3] a>
    { a = own.F(x)
      y, ys = Scan <num_scan_inputs = 1,
        body = b (uint8[3] h, uint8[7] e) => (uint8[3] g, uint8[11] o) <uint8[13] t>
        { t = own.F(h, e)  g = own.F(t)  o = own.F(t) }> (a, s) }"""
    inner = 13 + 3 + 11
    assert figures(text)[0] == 3 + 3 + 55 + inner
    assert figures(text)[3] == 3 + 3 + 55 + inner


def test_the_live_set_of_a_loop_is_packed_as_one() -> None:
    found = memory(LOOP)
    assert found.packing.size_bytes == found.in_place_peak_bytes == 3 + 3 + 13 + 3
    program, offsets = found.replay.program, found.packing.offsets
    assert program.labels == ("a", "y", "Loop_1/body/t", "Loop_1/body/g")
    assert found.nested == (range(2, 4),)
    assert offsets[3] == offsets[2] + 13


def test_a_subgraph_allocates_and_releases_within_the_step_of_its_node() -> None:
    program = memory(BRANCHES).replay.program
    a, y, z, i = range(4)
    assert program.labels == ("a", "y", "z", "If_1/then_branch/i")
    assert program.events.tolist() == [a, y, i, ~a, ~i, z, ~y]
    assert [program.node_at(event) for event in range(7)] == [
        "F_0",
        *["If_1"] * 4,
        *["F_2"] * 2,
    ]


def test_a_node_that_allocates_nothing_is_a_step_too() -> None:
    text = "agraph (float[7] x) => (float[7] z) { v = Identity(x)  y = Exp(v)  z = Identity(y) }"
    found = memory(text)
    assert found.replay.program.steps == ("", "Identity_0", "Exp_1", "Identity_2")
    assert found.live_bytes == (0, 28, 28)
    assert (found.peak_step, found.peak_node) == (1, "Exp_1")
    assert found.replay.program.tensors_of(0) == ("y", "z")


def test_a_buffer_of_unknown_size_is_marked() -> None:
    text = """agraph (float[2] x) => (float[7] y) <float[3] a, float[7] y>
    { a = own.F(x)  b = own.F(a)  y = own.F(b, a) }"""
    sizes = memory(text).replay.sizes
    assert sizes.fixed_bytes.tolist() == [12, 0, 28]
    assert sizes.known is not None
    assert sizes.known.tolist() == [True, False, True]


# Known models, as other tools count them


@pytest.mark.parametrize(
    ("name", "peak_bytes", "weight_bytes"),
    [
        ("resnet50", 9_633_792, 102_440_624),
        ("densenet121", 8_430_464, 32_584_608),
        ("inception_v2", 6_422_784, 44_939_184),
        ("shufflenet", 3_110_912, 5_681_776),
        ("squeezenet", 6_308_352, 4_941_984),
        ("vgg19", 25_690_112, 574_668_976),
    ],
)
def test_liveness_peak_and_weights_of_known_models(
    name: str, peak_bytes: int, weight_bytes: int
) -> None:
    known = light(name)
    found = activation_memory(known)
    assert found.peak_bytes == peak_bytes
    assert sum(tensor.size_bytes or 0 for tensor in known.weights) == weight_bytes
    assert found.unknown_tensors == ()
    assert found.packing.is_optimal


def test_the_masks_of_squeezenet_count_in_the_naive_sum() -> None:
    found = activation_memory(light("squeezenet"))
    assert found.naive_bytes == 28_537_728
    assert found.in_place_peak_bytes == 3_928_576


def light(name: str) -> Graph:
    file = load(LIGHT / f"light_{name}.onnx")
    return build(prepare(file), Request()).graph


# Properties of every graph, and the brute force of ``oracle.py``, on random graphs.


SHAPES: tuple[Shape, ...] = ((2,), (3,), (5, 7), (1, 11), (), (0,))


DTYPES = (DType.FLOAT32, DType.INT32, DType.FLOAT16, DType.UINT4)


# One draw for each tensor: drawing takes most of the time.
TYPES = st.sampled_from([*product(SHAPES, DTYPES)])


UNKNOWN_SHAPES: st.SearchStrategy[tuple[Shape | None, ...]] = st.sampled_from(
    [*[()] * 8, (None,), ((None, 3),)]
)
"""What replaces a shape: mostly nothing."""


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
        """Draw a graph whose nodes may read what enclosing graphs have written so far."""
        role = Role.BODY_INPUT if prefix else Role.INPUT
        inputs = [self.tensor(f"{prefix}x{index}", role) for index in range(2)]
        weights = [self.tensor(f"{prefix}w", Role.WEIGHT)]
        visible = [*outer, *inputs, *weights]
        nodes: list[Node] = []
        written: list[str] = []
        for index in range(self.draw(st.integers(0 if prefix else 1, 7))):
            node = self.node(f"{prefix}n{index}", visible, depth)
            nodes.append(node)
            visible += node.writes
            written += node.writes
        outputs = self.draw(st.lists(st.sampled_from([*written, *inputs]), max_size=2, unique=True))
        return Graph(prefix, tuple(nodes), tuple(inputs), tuple(outputs), self.tensors)

    def tensor(self, name: str, role: Role = Role.ACTIVATION, like: str | None = None) -> str:
        """Add a tensor of a drawn type, or of another's where it is ``like`` that."""
        model = self.tensors.get(like or "")
        shape, dtype = (model.shape, model.dtype) if model else self.draw(TYPES)
        if self.with_unknown and role is Role.ACTIVATION:
            shape = (shape, *self.draw(UNKNOWN_SHAPES))[-1]
        self.tensors[name] = Tensor(name, dtype, shape, role)
        return name

    def node(self, name: str, visible: list[str], depth: int) -> Node:
        """Draw a node: one of ``OP_TYPES``, or an If or a Loop while ``depth`` lasts."""
        kinds = (*OP_TYPES, *(("If", "Loop") if depth else ()))
        op_type = self.draw(st.sampled_from(kinds))
        if op_type in {"If", "Loop"}:
            return self.control(name, op_type, visible, depth - 1)
        num_inputs = {"Constant": 0, "Clip": 3, "Add": 2, "Mystery": 2}.get(op_type, 1)
        # Recent tensors twice: chains show more than stars.
        recent = st.sampled_from([*visible[-4:], *visible])
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


@settings(max_examples=60)
@given(graphs() | graphs(with_unknown=True))
def test_figures_equal_the_oracles(graph: Graph) -> None:
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
    assert_figures_are_in_order(graph, found)


def assert_figures_are_in_order(graph: Graph, found: ActivationMemory) -> None:
    in_place_peak, naive_in_place = found.in_place_peak_bytes or 0, found.naive_in_place_bytes or 0
    peak, naive = found.peak_bytes or 0, found.naive_bytes or 0
    assert in_place_peak <= peak <= naive
    assert in_place_peak <= naive_in_place <= naive
    assert found.packing.size_bytes >= found.packing.lower_bound_bytes == in_place_peak
    tensors = activations(graph)
    outer = [graph.tensors[name] for node in graph.nodes for name in node.writes]
    sizes = [each.size_bytes or 0 for each in outer if each.role is Role.ACTIVATION]
    assert max(sizes, default=0) <= peak
    assert set(found.unknown_tensors) <= {t.name for t in tensors if t.size_bytes is None}
    if all(oracle.is_known(tensor) for tensor in tensors):
        assert None not in {found.naive_bytes, found.naive_in_place_bytes, found.peak_bytes}
        assert found.in_place_peak_bytes is not None
        assert found.unknown_tensors == ()
    elif not any(oracle.is_known(tensor) for tensor in tensors):
        assert (found.naive_bytes, found.peak_bytes) == (None, None)


def assert_live_at_peak_adds_up(graph: Graph, found: ActivationMemory) -> None:
    assert sum(live.size_bytes for live in found.live_at_peak) == (found.in_place_peak_bytes or 0)
    assert len({live.label for live in found.live_at_peak}) == len(found.live_at_peak)
    assert all(live.label in graph.tensors for live in found.live_at_peak)
    if found.peak_step is not None:
        assert found.peak_node == graph.nodes[found.peak_step].name


@given(graphs() | graphs(with_unknown=True))
def test_renaming_tensors_and_nodes_changes_no_figure(graph: Graph) -> None:
    names = {name: f"t{len(graph.tensors) - index}" for index, name in enumerate(graph.tensors)}
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
            name=f"node{index}",
            inputs=each(node.inputs),
            outputs=each(node.outputs),
            outer_reads=each(node.outer_reads),
            subgraphs=tuple((k, renamed(body, names, tensors)) for k, body in node.subgraphs),
        )
        for index, node in enumerate(graph.nodes)
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
