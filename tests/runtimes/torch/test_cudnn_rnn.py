"""Recurrent layers in one call of cuDNN: T 3 steps, B 2 samples, I 5 inputs, H 7 hidden."""

import csv
from collections.abc import Iterator
from dataclasses import replace

import pytest
from graphs import graph_of
from paths import DATA
from runtimes.torch.training_steps import happenings, network, operators, sizes, step

from onnxmem.runtimes.torch.framework import CUDNN_RNN
from onnxmem.runtimes.torch.memory import Phase
from onnxmem.runtimes.torch.network import as_run
from onnxmem.runtimes.torch.recurrent import FusedLayers

T, B, I, H = 3, 2, 5, 7  # noqa: E741 - as ONNX calls them
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
KINDS = tuple(GATES)
BITS = {"fp32": 32, "fp16": 16, "bf16": 16}
MIB = 2**20


def measured() -> Iterator[tuple[dict[str, str], FusedLayers]]:
    """Each measured layer, and what its sizes are."""
    with (DATA / "training" / "cudnn_rnn.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            inputs, hidden, layers = (int(row[name]) for name in ("inputs", "hidden", "layers"))
            directions = 1 + int(row["is_bidirectional"])
            gates = directions * GATES[row["kind"]] * hidden
            widths = (inputs, *(directions * hidden,) * (layers - 1))
            num_biases = 2 * gates * layers
            num_weights = num_biases + sum(gates * (width + hidden) for width in widths)
            sizes = (int(row["steps"]), int(row["samples"]), inputs, hidden, layers, directions)
            found = FusedLayers(
                *(row["kind"], *sizes, float(row["dropout"]) > 0, num_weights, num_biases),
                bits=BITS[row["precision"]],
                is_bfloat16=row["precision"] == "bf16",
            )
            assert found.weights_bytes == int(row["weights_bytes"])
            yield row, found


def test_the_reserve_space_is_the_measured_one() -> None:
    """CuDNN aligns each of its parts."""
    missing = [int(row["reserve_bytes"]) - layers.reserve_bytes for row, layers in measured()]
    assert len(missing) == 801
    assert min(missing) == 0
    assert max(missing) < 288


def test_the_workspaces_are_the_measured_ones() -> None:
    percents = []
    for row, layers in measured():
        forward = layers.workspace_bytes(is_forward=True) / int(row["forward_workspace_bytes"])
        backward_bytes = layers.input_bytes + layers.weights_bytes + layers.states_bytes
        backward_bytes += layers.workspace_bytes(is_forward=False)
        backward = backward_bytes / int(row["backward_peak_bytes"])
        percents += [100 * abs(forward - 1), 100 * abs(backward - 1)]
    assert sum(percent <= 1 for percent in percents) >= 1534
    assert max(percents) < 5.2


@pytest.mark.parametrize(
    ("mode", "samples", "hidden", "is_one_kernel"),
    [
        ("RNN", 88, 1024, True),
        ("RNN", 96, 768, True),
        ("RNN", 96, 896, False),
        ("RNN", 128, 1024, False),
        ("LSTM", 128, 1024, True),
    ],
)
def test_large_layers_of_float16_run_as_one_kernel(
    mode: str, samples: int, hidden: int, is_one_kernel: bool
) -> None:
    """As ``use_persist_device_heuristics`` of RNN.cpp decides, which bfloat16 never passes."""
    sizes = (T, samples, 128, hidden, 1, 1)
    float16, bfloat16 = (
        FusedLayers(*(mode, *sizes, False, 0, 0), bits=16, is_bfloat16=each)
        for each in (False, True)
    )
    buffers = {"RNN": 9, "LSTM": 16}[mode] * T * samples * hidden * 2
    for is_forward in (True, False):
        more_bytes = float16.workspace_bytes(is_forward=is_forward) - bfloat16.workspace_bytes(
            is_forward=is_forward
        )
        assert more_bytes == (buffers if is_one_kernel else 0)


def layer(index: int, source: str, *, kind: str = "LSTM", directions: int = 1) -> str:
    """A layer as exporters write it: its output is joined to [T, B, D x H]."""
    way = "bidirectional" if directions == 2 else "forward"
    more = ", linear_before_reset = 1" if kind == "GRU" else ""
    return f"""
        y{index}, h{index} = {kind} <hidden_size = {H}, direction = "{way}"{more}>
            ({source}, w{index}, r{index}, b{index})
        t{index} = Transpose <perm = [0, 2, 1, 3]> (y{index})
        j{index} = Reshape(t{index}, joined)"""


def weights(*widths: int, kind: str = "LSTM", directions: int = 1) -> str:
    gates = GATES[kind] * H
    return ", ".join(
        f"float[{directions},{gates},{width}] w{index}, float[{directions},{gates},{H}] r{index}, "
        f"float[{directions},{2 * gates}] b{index}"
        for index, width in enumerate(widths)
    )


def one(kind: str = "LSTM", directions: int = 1, data: str = "x") -> str:
    return f"""
        agraph (float[{T},{B},{I}] x) => (float[{T},{B},{directions * H}] j0)
        <{weights(I, kind=kind, directions=directions)}, float[{I}] g,
         int64[3] joined = {{{T}, {B}, {directions * H}}}> {{
            i = Mul(x, g)
            {layer(0, "i" if data == "x" else data, kind=kind, directions=directions)}
        }}"""


def stacked(between: str = "", source: str = "j0", last: str = "j1", more: str = "") -> str:
    return f"""
        agraph (float[{T},{B},{I}] x) => (float[{T},{B},{H}] {last})
        <{weights(I, H)}, int64[3] joined = {{{T}, {B}, {H}}}, float keep = {{0.5}},
         bool train = {{1}}> {{
            {layer(0, "x")}
            {between}
            {layer(1, source)}
            {more}
        }}"""


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_saves_its_input_its_output_and_the_reserve_space(
    kind: str, directions: int
) -> None:
    found = step(one(kind, directions))
    states = T * B * directions * H
    reserve = 4 * {"LSTM": 5, "GRU": 6, "RNN": 1}[kind] * states + 256
    assert sizes(found)["reserve space of Reshape_3"] == [reserve]
    assert found.saved_activation_bytes == 4 * T * B * I + 4 * states + reserve
    assert (found.assumed_nodes, found.unknown) == ((), ())


def test_a_layer_runs_in_a_workspace_in_each_pass() -> None:
    """And twice in the backward pass: for the input's gradient, then for the weights'."""
    found = step(one())
    steps, states, matrices = T * B, T * B * H, 4 * H * (I + H)
    persistent = 16 * states
    workspace = 8 * MIB + 4 * (
        3 * states + steps * I + 2 * steps * H + 10 * B * H + persistent + matrices
    )
    of_states = 4 * 4 * B * H
    assert sizes(found)["workspace of Reshape_3"] == [workspace, *[workspace + of_states] * 2]
    backward = happenings(found)
    run = ["+workspace of Reshape_3", "-workspace of Reshape_3"]
    gradients = [f"+gradient of {name}" for name in ("w0", "r0", "b0")]
    assert backward[1:10] == ["+gradient of i", *run, *gradients, *run, "-gradient of j0"]
    assert "-reserve space of Reshape_3" in backward
    assert happenings(found, Phase.FORWARD)[-2:] == run


def test_the_input_has_a_gradient_even_if_nothing_reads_it() -> None:
    """`_cudnn_rnn_backward` computes it always, for that changes the reserve space."""
    found = step(one(data="x").replace("i = Mul(x, g)", "").replace("(i,", "(x,"))
    backward = happenings(found)
    assert backward.index("-gradient of x") > backward.index("+gradient of b0")


@pytest.mark.parametrize("between", ["", "d = Dropout(j0, keep, train)"])
def test_the_layers_of_a_module_are_one_call(between: str) -> None:
    text = stacked(between, "d" if between else "j0")
    assert operators(network(text).graph) == ["_cudnn_rnn"]
    found = step(text)
    states = T * B * H
    masks = states // 8 if between else 0
    (reserve,) = sizes(found)["reserve space of " + network(text).graph.nodes[-1].name]
    assert reserve == 4 * 11 * states + masks + 256
    assert found.gradient_bytes == 4 * 4 * H * (I + H + 2 + H + H + 2)


def test_a_state_that_is_read_is_an_output_of_the_call() -> None:
    text = stacked(more="z = Concat <axis = 0> (h0, h1)").replace(
        f"(float[{T},{B},{H}] j1)", f"(float[{T},{B},{H}] j1, float[2,{B},{H}] z)"
    )
    (node,) = (each for each in network(text).graph.nodes if each.operator is CUDNN_RNN)
    assert node.outputs == ("j1", "h0", "h1")
    assert step(text).unknown == ()


@pytest.mark.parametrize(
    "between",
    [
        "e = Exp(j0)",  # not a module's own
        "d = Dropout(j0, keep, train)  e = Identity(d)  f = Exp(d)",  # read twice
        "f = Exp(h0)  e = Identity(j0)",
    ],
)
def test_layers_with_something_between_are_several_calls(between: str) -> None:
    text = stacked(between, "e")
    found = operators(network(text).graph)
    assert found.count("_cudnn_rnn") == 2


def test_a_state_that_is_read_between_layers_keeps_them_apart() -> None:
    text = stacked("f = Exp(h0)", more="z = Add(j1, f)", last="z")
    assert operators(network(text).graph).count("_cudnn_rnn") == 2


def test_layers_of_other_modules_are_other_calls() -> None:
    graph = graph_of(stacked())
    for scopes, count in ((("/lstm", "/lstm"), 1), (("/encoder", "/decoder"), 2)):
        scope = {"y0": scopes[0], "y1": scopes[1]}
        nodes = tuple(
            replace(node, name=f"{scope.get(node.outputs[0], '')}/{node.name}")
            for node in graph.nodes
        )
        run = as_run(replace(graph, nodes=nodes))
        assert operators(run).count("_cudnn_rnn") == count


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("LSTM", 'activations = ["Sigmoid", "Tanh", "Relu"]'),
        ("LSTM", "clip = 3.0"),
        ("LSTM", "input_forget = 1"),
        ("RNN", 'activations = ["Affine"]'),
    ],
)
def test_what_cudnn_does_not_run_remains_cells(kind: str, given: str) -> None:
    text = one(kind).replace(f"hidden_size = {H}", f"hidden_size = {H}, {given}")
    assert kind in operators(network(text).graph)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('direction = "forward"', 'direction = "reverse"'),
        (", b0)", ", b0, lengths)"),
        (", b0)", ", b0, , , , peep)"),
    ],
)
def test_layers_that_no_module_has_remain_cells(before: str, after: str) -> None:
    text = one().replace(before, after)
    text = text.replace(f"float[{I}] g", f"float[{I}] g, int32[{B}] lengths, float[1,{3 * H}] peep")
    assert "LSTM" in operators(network(text).graph)


def test_a_gru_that_resets_before_the_product_remains_cells() -> None:
    text = one("GRU").replace("linear_before_reset = 1", "linear_before_reset = 0")
    assert "GRU" in operators(network(text).graph)


@pytest.mark.parametrize(
    "activations", ['["Sigmoid", "Tanh", "Tanh"]', '["sigmoid","tanh","tanh"]']
)
def test_named_defaults_are_of_cudnn(activations: str) -> None:
    text = one().replace(f"hidden_size = {H}", f"hidden_size = {H}, activations = {activations}")
    assert "_cudnn_rnn" in operators(network(text).graph)


def test_in_bfloat16_each_call_gathers_the_weights() -> None:
    count = 4 * H * (I + H + 2)
    assert sizes(step(one(), precision="bf16"))["weights of Reshape_3"] == [2 * count]
    assert "weights of Reshape_3" not in sizes(step(one(), precision="fp16-master"))
    # Autocast casts them in each step, into a buffer that the call saves.
    mixed = sizes(step(one(), precision="mixed-bf16"))
    assert "weights of Reshape_3" not in mixed
    assert mixed["copy of w0"] == [2 * 4 * H * I]


def test_a_sequence_that_does_not_begin_with_its_steps_is_copied() -> None:
    """As in a batch-first module: its input, and its output's gradient."""
    text = one().replace("i = Mul(x, g)", "m = Mul(x, g)  i = Transpose <perm = [1, 0, 2]> (m)")
    text = text.replace(f"float[{T},{B},{I}] x", f"float[{B},{T},{I}] x")
    text = text.replace("j0) \n", "j0)\n").replace(
        f"(float[{T},{B},{H}] j0)", f"(float[{B},{T},{H}] z)"
    )
    text = text.replace("(t0, joined)", "(t0, joined)  z = Transpose <perm = [1, 0, 2]> (j0)")
    plain = sizes(step(one()))["workspace of Reshape_3"]
    found = sizes(step(text))["workspace of Reshape_4"]
    data, output = 4 * T * B * I, 4 * T * B * H
    assert found == [plain[0] + data, plain[1] + data + output, plain[2] + data]


def test_an_output_that_nothing_reads_is_saved_all_the_same() -> None:
    """Where the exporter left it out, as of a layer of which the last state is read alone."""
    text = f"""
        agraph (float[{T},{B},{I}] x) => (float[1,{B},{H}] h0) <{weights(I)}> {{
            , h0 = LSTM <hidden_size = {H}> (x, w0, r0, b0)
        }}"""
    found = step(text)
    assert operators(network(text).graph) == ["_cudnn_rnn"]
    assert sizes(found)["output of LSTM_0"] == [4 * T * B * H]
    assert found.gradient_bytes == 4 * 4 * H * (I + H + 2)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"float[{T},{B},{I}] x", f"float[{T * B},{I}] x"),
        (f"float[1,{4 * H},{H}] r0", f"float[{4 * H},{H}] r0"),
    ],
)
def test_operands_of_another_rank_make_no_call(before: str, after: str) -> None:
    """As a broken file may have."""
    text = one().replace(before, after)
    assert text != one()
    assert "reserve space of Reshape_3" not in sizes(step(text))


def test_a_size_that_is_unknown_makes_no_call() -> None:
    text = one().replace("i = Mul(x, g)", "i = Reshape(x, s)").replace("] x)", "] x, int64[3] s)")
    found = step(text)
    assert "reserve space of Reshape_3" not in sizes(found)
