"""Recurrent layers, cell by cell: T 3 steps, B 2 samples, I 5 inputs, H 7 hidden."""

from dataclasses import replace
from functools import partial

import pytest
from graphs import graph_of
from runtimes.torch import training_steps
from runtimes.torch.training_steps import happenings, sizes

from onnxmem.runtimes.torch import recurrent
from onnxmem.runtimes.torch.memory import Phase
from onnxmem.runtimes.torch.recurrent import is_recurrent, layer_of, packed_weights

T, B, I, H = 3, 2, 5, 7  # noqa: E741 - as ONNX calls them
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
KEPT = {"LSTM": 7, "GRU": 7, "RNN": 1}
KINDS = tuple(GATES)
network = partial(training_steps.network, recurrent="cells")
step = partial(training_steps.step, recurrent="cells")


def layer(
    kind: str, directions: int = 1, *, more: str = "", outputs: str = "y", num_steps: int = T
) -> str:
    """One recurrent layer with a bias, and what is done to its input before."""
    gates = GATES[kind] * H
    way = "bidirectional" if directions == 2 else "forward"
    return f"""
        agraph (float[{num_steps},{B},{I}] x) => (float[{num_steps},{directions},{B},{H}] y)
        <float[{directions},{gates},{I}] w, float[{directions},{gates},{H}] r,
         float[{directions},{2 * gates}] b, float[{I}] g> {{
            {more or "i = Identity(x)"}
            {outputs} = {kind} <hidden_size = {H}, direction = "{way}"> (i, w, r, b)
        }}"""


def y_bytes(directions: int) -> int:
    return 4 * T * directions * B * H


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_each_step_saves_its_gates_and_states(kind: str, directions: int) -> None:
    found = step(layer(kind, directions))
    per_step = KEPT[kind] * 4 * B * H
    assert sizes(found)[f"a step of {kind}_1"] == [per_step] * (T * directions)
    assert found.saved_activation_bytes == y_bytes(directions) + T * directions * per_step
    assert (found.assumed_nodes, found.unknown) == ((), ())


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gates_of_all_steps_are_computed_at_once(kind: str, directions: int) -> None:
    """And gone with the layer, as is each direction's output before they are joined."""
    found = step(layer(kind, directions))
    parts = y_bytes(2) if directions == 2 else 0
    gates = T * GATES[kind] * 4 * B * H
    assert sizes(found)[f"gates of {kind}_1"] == [gates + parts]
    assert happenings(found, Phase.FORWARD)[-2:] == [f"+gates of {kind}_1", f"-gates of {kind}_1"]


def test_gradients_of_a_layer_step_by_step() -> None:
    """A step's share of the recurrent matrix is added out of place once, then in place."""
    found = step(layer("LSTM"))
    of_step, gate, kept = "gradient of r, of one step", "gates' gradients", "a step of LSTM_1"
    assert happenings(found) == [
        *("+gradient of y", "+gradient of r"),
        *(f"-{kept}", f"+{gate}"),
        *(f"+{of_step}", f"-{of_step}", f"-{kept}", f"+{gate}"),
        *(f"+{of_step}", f"-{of_step}", f"-{kept}", f"+{gate}"),
        *(f"+{gate}", f"-{gate}", f"-{gate}", f"-{gate}"),  # stacked
        *("+gradient of w", f"-{gate}"),
        *("+gradient of b", "-gradient of y"),
    ]
    share = 4 * 4 * H * H
    assert sizes(found)[of_step] == [2 * share, share]
    assert sizes(found)[gate] == [4 * B * 4 * H] * T + [4 * B * 4 * H * T]


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_one_block_for_the_middle_of_a_long_sequence_changes_no_figure(
    kind: str, directions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = layer(kind, directions, num_steps=1031)
    at_once = step(text)
    assert f"1023 steps of {kind}_1" in sizes(at_once)
    monkeypatch.setattr(recurrent, "_MOST_SINGLE_STEPS", 2000)
    one_by_one = step(text)
    assert len(one_by_one.replay.program.events) > len(at_once.replay.program.events) + 2000
    for phase, peak in one_by_one.replay.phase_peaks.items():
        found = at_once.replay.phase_peaks[phase]
        assert (found.size_bytes, found.node) == (peak.size_bytes, peak.node)
    assert at_once.saved_activation_bytes == one_by_one.saved_activation_bytes
    assert at_once.live_by_category() == one_by_one.live_by_category()


def test_no_sequence_is_too_long_or_too_short() -> None:
    assert step(layer("LSTM", num_steps=2**40)).peak_bytes > 2**40
    assert step(layer("LSTM", 2, num_steps=0)).unknown == ()


def test_a_recurrent_node_with_a_subgraph_is_not_a_layer() -> None:
    """No exporter writes one, but a broken file may."""
    text = layer("LSTM").replace("hidden_size = 7,", "hidden_size = 7, odd = b () => () {},")
    assert step(text).assumed_nodes == ("LSTM_1",)


def test_the_last_direction_goes_first_in_backward() -> None:
    """The packed matrices' gradients come with one of them."""
    found = step(layer("GRU", 2))
    steps = [each for each in happenings(found) if each.startswith("-a step")]
    assert len(steps) == 2 * T
    assert sizes(found)["gradient of w"] == [4 * 2 * 3 * H * I]
    assert sizes(found)["gradient of r"] == [4 * 2 * 3 * H * H]


def test_the_inputs_gradient_is_passed_on() -> None:
    found = step(layer("LSTM", more="i = Mul(x, g)"))
    assert sizes(found)["gradient of i"] == [4 * T * B * I]
    assert sizes(found)["gradient of g"] == [4 * I]


def test_an_input_of_another_layout_is_copied_for_each_direction() -> None:
    """As in a batch-first network."""
    text = layer("LSTM", 2, more="m = Mul(t, g)  i = Transpose <perm = [1, 0, 2]> (m)")
    text = text.replace(f"float[{T},{B},{I}] x", f"float[{B},{T},{I}] t")
    found = step(text)
    assert sizes(found)["input of LSTM_2"] == [4 * T * B * I] * 2


def test_a_layer_of_which_only_the_last_state_is_read() -> None:
    """Its output is allocated all the same, and freed with it."""
    text = layer("GRU", outputs="_, y").replace(f"float[{T},1,{B},{H}] y", f"float[1,{B},{H}] y")
    text = text.replace("_, y", ", y")
    found = step(text)
    gates = T * 3 * 4 * B * H
    assert sizes(found)["gates of GRU_1"] == [gates + y_bytes(1)]


def packed(kind: str = "LSTM", *, between: str = "") -> str:
    """As the exporter does it: each matrix of the framework sliced, reordered and unsqueezed."""
    gates = GATES[kind] * H
    return f"""
        agraph (float[{T},{B},{I}] x) => (float[{T},1,{B},{H}] y)
        <float[{gates},{I}] wi, float[{gates},{H}] wh, float[{gates}] bi, float[{gates}] bh,
         int64[1] zero = {{0}}, int64[1] seven = {{7}}, int64[1] end = {{{gates}}}> {{
            first = Slice(wi, zero, seven, zero)
            rest = Slice(wi, seven, end, zero)
            ordered = Concat <axis = 0> (rest, first)
            w = Unsqueeze(ordered, zero)
            {between or "r = Unsqueeze(wh, zero)"}
            both = Concat <axis = 0> (bi, bh)
            b = Unsqueeze(both, zero)
            y = {kind} <hidden_size = {H}> (x, w, r, b)
        }}"""


def test_weights_that_nodes_pack_are_read_unpacked() -> None:
    """Nothing of the packing takes memory, and each parameter gets its gradient."""
    found = step(packed())
    forward = happenings(found, Phase.FORWARD)
    assert forward[0] == "+y"
    assert not [each for each in forward if "ordered" in each or "both" in each]
    for name, count in (("wi", 28 * I), ("wh", 28 * H), ("bi", 28), ("bh", 28)):
        assert sizes(found)[f"gradient of {name}"] == [4 * count]
    assert "gradient of ordered" not in sizes(found)
    assert found.gradient_bytes == 4 * 28 * (I + H + 2)


def test_packed_tensors_by_their_parameters() -> None:
    found = network(packed())
    wanted = {"w": ("wi",), "ordered": ("wi",), "b": ("bh", "bi"), "r": ("wh",)}
    packs = packed_weights(found.graph, found.parameters)
    assert {name: tuple(sorted(packs[name])) for name in wanted} == wanted


def test_a_piece_that_is_left_out_is_passed_over() -> None:
    found = network(packed())
    nodes = tuple(
        replace(node, inputs=(*node.inputs, "")) if node.onnx_op == "Concat" else node
        for node in found.graph.nodes
    )
    packs = packed_weights(replace(found.graph, nodes=nodes), found.parameters)
    assert packs == packed_weights(found.graph, found.parameters)


@pytest.mark.parametrize(
    "between",
    [
        "e = Exp(wh)  r = Unsqueeze(e, zero)",
        (
            "f = Slice(wh, zero, seven, zero)  g = Slice(wh, seven, end, zero)  e = Exp(g)"
            "  c = Concat <axis = 0> (f, e)  r = Unsqueeze(c, zero)"
        ),
        "k = ReduceMax <keepdims = 0> (x)  c = Mul(wh, k)  r = Unsqueeze(c, zero)",
    ],
)
def test_what_is_computed_is_not_packed(between: str) -> None:
    """Then the layer's matrix is an activation, with a gradient of its own."""
    found = network(packed(between=between))
    assert "r" not in packed_weights(found.graph, found.parameters)


def test_a_packed_input_is_not_a_weight() -> None:
    text = f"""
        agraph (float[{T},{B},{I}] x, float[28,{H}] v) => (float[{T},1,{B},{H}] y)
        <float[1,28,{I}] w, int64[1] zero = {{0}}> {{
            r = Unsqueeze(v, zero)
            y = LSTM <hidden_size = {H}> (x, w, r)
        }}"""
    found = network(text)
    assert packed_weights(found.graph, found.parameters) == {}
    assert found.parameters.trained == ("w",)


def test_sizes_that_are_unknown_make_no_layer() -> None:
    text = f"""
        agraph (float[{T},{B},{I}] x, int64[3] s) => (float y)
        <float[1,28,{I}] w, float[1,28,{H}] r> {{
            i = Reshape(x, s)
            y = LSTM <hidden_size = {H}> (i, w, r)
        }}"""
    graph = graph_of(text)
    node = graph.nodes[-1]
    assert layer_of("LSTM", graph.call(node)) is None
    assert layer_of("MatMul", graph.call(node)) is None
    assert [is_recurrent(each) for each in graph.nodes] == [False, True]
    assert step(text).gradient_bytes == 4 * 28 * (I + H)


def test_matrices_of_another_rank_make_no_layer() -> None:
    text = layer("RNN")
    graph = graph_of(text)
    call = graph.call(graph.nodes[-1])
    assert layer_of("RNN", call) is not None
    flat = type(call)((*call.inputs[:2], call.inputs[3]), call.outputs)
    assert layer_of("RNN", flat) is None
    without = type(call)(call.inputs[:2], call.outputs)
    assert layer_of("RNN", without) is None
