"""Mixed precision as autocast does it: worked by hand with primes, and against measured steps."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from graphs import graph_of
from paths import DATA
from runtimes.torch.training_steps import CHAIN, happenings, recipe_of, sizes, step

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.model.parameters import parameters
from onnxmem.runtimes.torch import step as step_module
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.network import network_of
from onnxmem.runtimes.torch.precision import precision_named
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.runtimes.torch.tape import tape_of
from onnxmem.settings import TrainingConfig

ROWS: list[dict[str, Any]] = json.loads((DATA / "training_autocast.json").read_text())["rows"]
EXPORTERS = {"training": ("train",), "training_new": ("legacy", "dynamo_plain")}
LAYER = """
    agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[5] b> { y = Gemm(x, w, b) }"""


@contextmanager
def lists_of(device: str) -> Iterator[None]:
    """Have autocast go by the lists of a device inside."""
    with pytest.MonkeyPatch.context() as patch:
        known = replace(precision_named("mixed-bf16"), autocast_device=device)
        patch.setattr(step_module, "precision_named", lambda *_: known)
        yield


@cache
def network(file: str, batch: int) -> Graph:
    return build(prepare(load(str(DATA / file))), Request(batch=batch)).graph


def measured(row: dict[str, Any], exporter: str) -> TrainingMemory:
    graph = network(f"{row['folder']}/{row['model']}.{exporter}.onnx", row["batch"])
    with lists_of(row["lists"]):
        recipe = TrainingConfig(optimizer="adam", precision="mixed-bf16", loss=row["loss"])
        return training_memory(graph, recipe)


CASES = [(row, name) for row in ROWS for name in EXPORTERS[row["folder"]]]


def name_of(value: dict[str, Any] | str) -> str:
    return (
        value if isinstance(value, str) else "-".join(value[k] for k in ("model", "loss", "lists"))
    )


@pytest.mark.parametrize(("row", "exporter"), CASES, ids=name_of)
def test_peaks_are_within_two_percent_of_the_measured_step(
    row: dict[str, Any], exporter: str
) -> None:
    found = measured(row, exporter)
    for term in ("weight", "gradient"):
        assert getattr(found, f"{term}_bytes") == row[f"{term}_bytes"]
    for term in ("saved_activation", "backward_peak", "optimizer_peak", "peak"):
        assert getattr(found, f"{term}_bytes") == pytest.approx(row[f"{term}_bytes"], rel=0.02)
    assert found.forward_peak_bytes == pytest.approx(row["forward_peak_bytes"], rel=0.022)


EXACT = ("mlp", "tiny_transformer", "gpt2_small")


@pytest.mark.parametrize(
    ("row", "exporter"), [case for case in CASES if case[0]["model"] in EXACT], ids=name_of
)
def test_peaks_of_networks_without_convolutions_are_exact(
    row: dict[str, Any], exporter: str
) -> None:
    """The others save the first layer's copy, and their measured statistics have 16 bits."""
    found = measured(row, exporter)
    terms = ("saved_activation", "forward_peak", "backward_peak", "optimizer_peak", "peak")
    figures = {f"{term}_bytes": getattr(found, f"{term}_bytes") for term in terms}
    assert figures == {key: row[key] for key in figures}


def types(text: str, precision: str = "mixed-fp16") -> dict[str, int]:
    """Bits of every tensor that the nodes of a graph write, copies left out."""
    graph = network_of(graph_of(text), TrainingConfig(optimizer="sgd")).graph
    tape = tape_of(graph, parameters(graph), precision_named(precision), graph.outputs)
    written = {name for node in graph.nodes for name in node.writes}
    return {name: tape.bits(name) for name in tape.views if name in written}


@pytest.mark.parametrize("precision", ["mixed-fp16", "mixed-bf16"])
def test_a_layer_reads_copies_which_are_freed_unless_they_are_saved(precision: str) -> None:
    """Operands are cast from the last to the first; the cache is cleared when autocast ends."""
    found = step(LAYER, precision=precision)
    assert happenings(found, Phase.FORWARD) == [
        *("+copy of b", "+copy of w", "+x as Gemm_0 reads it", "+y"),
        *("-copy of b", "-copy of w"),  # x needs no gradient, so w is not kept
    ]
    made = sizes(found)
    assert (made["copy of b"], made["copy of w"], made["y"]) == ([10], [30], [20])
    assert made["x as Gemm_0 reads it"] == [12]
    assert found.saved_activation_bytes == 12 + 20
    assert (found.weight_bytes, found.gradient_bytes) == (4 * 20, 4 * 20)


def test_a_transposed_parameters_copy_is_transposed_and_its_gradient_is_cast_last() -> None:
    """So `linear` runs, where the file transposes first; a second gradient is added in place.

    A table [11,5] that embeds 2 x 3 words and is the output's matrix: its gradient of the output is
    cast, that of the words is added to it and freed.
    """
    found = step(
        """
        agraph (int64[2,3] words, float[2,3] x) => (float[2,3,11] y) <float[11,5] t, float[5] s> {
            e = Gather(t, words)
            a = Mul(e, s)
            turned = Transpose <perm = [1, 0]> (t)
            y = MatMul(a, turned)
        }""",
        precision="mixed-bf16",
    )
    made = sizes(found)
    assert made["copy of t"] == [2 * 11 * 5]
    assert "copy of turned" not in made
    events = [each for each in happenings(found) if each[1:] == "gradient of t"]
    assert events == ["+gradient of t", "+gradient of t", "-gradient of t"]


def test_a_parameters_gradient_is_computed_in_16_bits_and_cast() -> None:
    found = step(LAYER, precision="mixed-bf16")
    assert happenings(found) == [
        *("+gradient of y", "+gradient of copy of b", "+gradient of copy of w"),
        *("-gradient of y", "-x as Gemm_0 reads it"),
        *("+gradient of w", "-gradient of copy of w"),
        *("+gradient of b", "-gradient of copy of b"),
    ]
    made = sizes(found)
    assert (made["gradient of copy of w"], made["gradient of w"]) == ([30], [60])


def test_a_saved_copy_is_freed_after_its_nodes_backward() -> None:
    found = step(CHAIN, precision="mixed-fp16")
    assert found.saved_activation_bytes == 2 * (6 + 10 + 35 + 14)  # x, r, v; y is the output
    backward = happenings(found)
    assert backward.index("-copy of v") < backward.index("+gradient of v")


def test_a_parameter_has_one_copy_and_an_activation_one_for_each_reader() -> None:
    found = step(
        """
        agraph (float[2,3] x) => (float[2,3] y)
        <float[3] s, float[3] t, float[3,3] w> {
            n = LayerNormalization(x, s, t)
            a = MatMul(n, w)
            b = MatMul(n, w)
            y = Add(a, b)
        }""",
        precision="mixed-fp16",
    )
    made = sizes(found)
    assert made["copy of w"] == [18]
    assert (made["n as MatMul_1 reads it"], made["n as MatMul_2 reads it"]) == ([12], [12])
    assert made["n"] == [24]
    assert not [label for label in made if label in {"copy of s", "copy of t"}]


def test_a_frozen_weight_is_cast_for_each_reader() -> None:
    made = sizes(step(CHAIN, precision="mixed-fp16", freeze=("v",)))
    assert "copy of v" not in made
    assert made["v as MatMul_2 reads it"] == [70]


@pytest.mark.parametrize(
    ("body", "bits"),
    [
        ("y = Relu(h)", {"y": 16}),
        ("y = Exp(h)", {"y": 32}),
        ("e = Exp(h)  y = Add(e, h)", {"e": 32, "y": 32}),
        ("y = Mul(h, number)", {"y": 16}),
        ("y = Mul(h, table)", {"y": 32}),
        ("y = BatchNormalization(h, table, table, table, table)", {"y": 16}),
        ("y = LayerNormalization(h, table, table)", {"y": 32}),
        ("y = Softmax(h)", {"y": 32}),
        ("y = ReduceSum(h)", {"y": 32}),
        ("y = ReduceMean(h)", {"y": 16}),
        ("e = Exp(h)  y = Concat<axis = 0>(e, h)", {"e": 32, "y": 32}),
        ("e = Exp(h)  z = MatMul(e, square)  y = Tanh(z)", {"e": 32, "z": 16, "y": 16}),
        ("e = Exp(h)  y = CastLike(e, h)", {"e": 32, "y": 16}),
        ("y = Cast<to = 1>(h)", {"y": 16}),
    ],
)
def test_types_follow_the_lists_and_what_operands_promote_to(
    body: str, bits: dict[str, int]
) -> None:
    """A number of the program and a tensor of no dims promote nothing."""
    text = f"""
        agraph (float[2,3] x) => (float[2,5] y)
        <float[3,5] w, float[5] table, float[5,5] square, float number = {{3}}> {{
            h = MatMul(x, w)
            {body}
        }}"""
    found = types(text)
    assert {name: found[name] for name in bits} == bits
    assert found["h"] == 16


def test_a_file_of_16_bits_trains_as_one_of_32() -> None:
    half = CHAIN.replace("float[", "float16[")
    assert types(half) == types(CHAIN) == {"h": 16, "r": 16, "y": 16}


NORMALIZED = """
    agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[5] s, float[5] t> {
        h = MatMul(x, w)
        y = LayerNormalization(h, s, t)
    }"""


def test_an_operand_cast_to_float32_is_copied_and_the_copy_saved() -> None:
    found = step(NORMALIZED, precision="mixed-fp16")
    forward = happenings(found, Phase.FORWARD)
    assert sizes(found)["h as LayerNormalization_1 reads it"] == [40]
    assert forward.index("-h") > forward.index("+y")  # the caller holds it till then
    assert sizes(found)["gradient of h"] == [20]
    assert found.saved_activation_bytes == 12 + 40 + 2 * 2 * 4 + 40  # x, h, statistics, y


@pytest.mark.parametrize(("precision", "copies"), [("mixed-fp16", []), ("mixed-bf16", [40])])
def test_softmax_reads_float16_as_it_is(precision: str, copies: list[int]) -> None:
    found = step(
        """
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> {
            h = MatMul(x, w)
            y = Softmax(h)
        }""",
        precision=precision,
    )
    made = sizes(found)
    assert made.get("h as Softmax_1 reads it", []) == copies
    assert made["gradient of h"] == [20]
    assert found.saved_activation_bytes == 12 + 40


def test_a_wider_gradient_is_cast_to_its_tensors_type() -> None:
    """Of a sum of 16 and 32 bits, one operand takes the gradient over, the other a cast of it."""
    found = step(
        """
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[2,5] p> {
            h = MatMul(x, w)
            y = Add(h, p)
        }""",
        precision="mixed-bf16",
    )
    assert sizes(found)["gradient of h"] == [20]
    assert sizes(found)["y"] == [40]
    assert happenings(found)[:2] == ["+gradient of p", "+gradient of h"]  # y's is p's own


@pytest.mark.parametrize(("product", "is_cast_beside"), [("Mul(h, g)", True), ("Mul(g, h)", False)])
def test_gradients_are_summed_and_cast_in_the_order_of_the_inputs(
    product: str, *, is_cast_beside: bool
) -> None:
    """A wider factor's full gradient is alive while an earlier input's gradient is cast."""
    found = step(
        f"""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w, float[5] g> {{
            h = MatMul(x, w)
            y = {product}
        }}""",
        precision="mixed-bf16",
    )
    assert sorted(sizes(found)["gradient of h"]) == [20, 40]
    seen = happenings(found)
    cast = len(seen) - 1 - seen[::-1].index("+gradient of h")
    freed = seen.index("-gradient of g before reduction")
    assert (cast < freed) is is_cast_beside


@pytest.mark.parametrize(
    ("loss", "precision", "copies", "gradients"),
    [
        ("none", "mixed-bf16", [], [20]),
        ("mse", "mixed-bf16", [40], [20, 40]),
        ("mse", "mixed-fp16", [40], [20, 40]),
        ("cross-entropy", "mixed-bf16", [], [20, 20]),
        ("cross-entropy", "mixed-fp16", [], [20, 20]),
    ],
)
def test_losses_read_what_the_lists_of_cuda_say(
    loss: str, precision: str, copies: list[int], gradients: list[int]
) -> None:
    found = step(LAYER, precision=precision, loss=loss)
    made = sizes(found)
    assert made.get("y as its loss reads it", []) == copies
    assert sorted(made["gradient of y"]) == gradients


def test_cross_entropy_keeps_log_softmax_in_16_bits_and_a_cast_of_it() -> None:
    """No list of CUDA's has `cross_entropy_loss`; `nll_loss` reads and saves float32."""
    found = step(LAYER, precision="mixed-bf16", loss="cross-entropy")
    made = sizes(found)
    assert (made["loss of y"], made["cast of the loss of y"]) == ([20], [40])
    assert found.saved_activation_bytes == 12 + 20 + 20 + 40 + 4 + 4  # x, y, two; sum and value
    assert happenings(found)[:8] == [
        "+gradient of the loss",
        *("+gradient inside the loss of y", "-sum of the class weights, loss of y"),
        *("-cast of the loss of y", "+gradient of y", "-gradient inside the loss of y"),
        *("+gradient of y", "-gradient of y"),
    ]


def test_cross_entropy_of_the_cpu_reads_a_cast_which_is_freed() -> None:
    with lists_of("cpu"):
        found = step(LAYER, precision="mixed-bf16", loss="cross-entropy")
    made = sizes(found)
    assert (made["y as its loss reads it"], made["loss of y"]) == ([40], [40])
    assert "-y as its loss reads it" in happenings(found, Phase.FORWARD)


def test_segments_that_share_a_parameter_are_recomputed() -> None:
    text = """
        agraph (float[2,3] x) => (float[2,3] y) <float[3,3] w> {
            a = MatMul(x, w)  b = Exp(a)  c = MatMul(b, w)  d = Exp(c)
            e = MatMul(d, w)  f = Exp(e)  g = MatMul(f, w)  y = Exp(g)
        }"""
    retained, again = (
        step(text, precision="mixed-fp16", checkpoint=c) for c in ("none", "every=2")
    )
    assert (again.saved_activation_bytes or 0) < (retained.saved_activation_bytes or 0)
    assert again.gradient_bytes == retained.gradient_bytes == 4 * 9


def test_recurrent_layers_save_copies_of_their_matrices() -> None:
    found = step(
        """
        agraph (float[2,3,5] x) => (float[2,1,3,7] y) <float[1,28,5] w, float[1,28,7] r> {
            y = LSTM<hidden_size = 7>(x, w, r)
        }""",
        precision="mixed-fp16",
        recurrent="cells",
    )
    made = sizes(found)
    assert (made["copy of w"], made["copy of r"], made["y"]) == ([280], [392], [168])
    backward = happenings(found)
    assert {"-copy of w", "-copy of r"} <= set(backward)
    assert sizes(found)["gradient of w"] == [560]


def test_gradients_of_packed_matrices_are_cast_to_the_type_of_the_parameters() -> None:
    found = step(
        """
        agraph (float[2,3,5] x) => (float[2,1,3,7] y)
        <float[28,5] w, float[28,7] r, int64[1] first = {0}> {
            v = Unsqueeze(w, first)
            s = Unsqueeze(r, first)
            y = LSTM<hidden_size = 7>(x, v, s)
        }""",
        precision="mixed-bf16",
        recurrent="cells",
    )
    made = sizes(found)
    assert (made["gradient of copy of w"], made["gradient of w"]) == ([2 * 28 * 5], [4 * 28 * 5])


@pytest.mark.parametrize(
    ("kind", "gates", "of_16_bits", "of_32_bits", "y_bits"),
    [("LSTM", 4, 5, 2, 32), ("GRU", 3, 6, 1, 32), ("RNN", 1, 1, 0, 16)],
)
def test_cells_compute_gates_in_16_bits_and_states_as_wide_as_the_input(
    kind: str, gates: int, of_16_bits: int, of_32_bits: int, y_bits: int
) -> None:
    """RNN.cpp: linear is cast; ``forgetgate * cx`` and ``hx - new_gate`` are not."""
    found = step(
        f"""
        agraph (float[2,3,5] x) => (float[2,1,3,7] y)
        <float[1,{7 * gates},5] w, float[1,{7 * gates},7] r> {{
            y = {kind}<hidden_size = 7>(x, w, r)
        }}""",
        precision="mixed-bf16",
        recurrent="cells",
    )
    made, states = sizes(found), 3 * 7
    # h is saved as the copy of 16 bits that the next product reads.
    assert made[f"a step of {kind}_0"] == [states * (2 * of_16_bits + 4 * of_32_bits)] * 2
    assert made["y"] == [2 * states * y_bits // 8]
    assert made[f"input of {kind}_0"] == [2 * 2 * 3 * 5]


def test_the_lists_of_2_0_leave_resized_tensors_in_16_bits() -> None:
    text = """
        agraph (float[2,3,5,7] x) => (float[2,11,10,14] y)
        <float[11,3,1,1] w, float[4] scales = {1, 1, 2, 2}> {
            h = Conv(x, w)
            y = Resize <mode = "nearest"> (h, , scales)
        }"""
    latest, old = (
        step(text, precision="mixed-fp16", torch=name, loss="none") for name in ("2.5", "2.0")
    )
    elements = 2 * 11 * 10 * 14
    assert (sizes(latest)["y"], sizes(old)["y"]) == ([4 * elements], [2 * elements])


def test_a_parameter_is_cast_to_the_type_of_what_it_is_multiplied_by() -> None:
    """`x * w.view(1, 11, 1, 1).to(x.dtype)`: the file casts from float32 to float32."""
    found = step(
        """
        agraph (float[2,3,5,7] x) => (float[2,11,5,7] z) <float[11,3,1,1] w, float[11] scale> {
            shape = Constant <value = int64[4] {1, 11, 1, 1}> ()
            y = Conv(x, w)
            column = Reshape(scale, shape)
            wide = Cast <to = 1> (column)
            z = Mul(y, wide)
        }""",
        precision="mixed-fp16",
    )
    assert sizes(found)["z"] == [2 * 2 * 11 * 5 * 7]
    assert sizes(found)["wide"] == [2 * 11]


def test_a_parameter_cast_without_an_operand_of_16_bits_stays_float32() -> None:
    """`w.float().exp()`, as state-space models have it."""
    found = step(
        """
        agraph (float[2,3] x) => (float[2,5] z) <float[3,5] w, float[5] scale> {
            y = MatMul(x, w)
            wide = Cast <to = 1> (scale)
            rate = Exp(wide)
            z = Mul(y, rate)
        }""",
        precision="mixed-fp16",
    )
    assert sizes(found)["z"] == [4 * 2 * 5]


TRIP = """
    agraph (float[2,3] x) => (float[2,5] z) <float[3,5] w> {
        y = MatMul(x, w)
        wide = Cast <to = 1> (y)
        root = Sigmoid(wide)
        back = Cast <to = 1> (root)
        z = Mul(y, back)
    }"""


def test_pairs_of_casts_go_to_float32_and_back() -> None:
    """`y * y.float().sigmoid().to(y.dtype)`."""
    found = sizes(step(TRIP, precision="mixed-fp16"))
    assert [found[name] for name in ("wide", "root", "back", "z")] == [[40], [40], [20], [20]]


def test_a_cast_without_its_pair_returns_the_type_of_its_input() -> None:
    text = TRIP.replace("back = Cast <to = 1> (root)", "back = Identity(root)")
    assert sizes(step(text, precision="mixed-fp16"))["root"] == [20]


ROOT_MEAN_SQUARE = """
    agraph (float[2,3] x) => (float[2,5] z) <float[3,5] w, float[5] floor> {
        y = MatMul(x, w)
        square = Mul(y, y)
        wide = Cast <to = 1> (square)
        root = Sqrt(wide)
        back = Cast <to = 1> (root)
        product = Mul(y, back)
        low = Cast <to = 1> (floor)
        z = Max(product, low)
    }"""


def test_a_square_runs_in_float32_and_the_cast_back_goes_to_its_operands_type() -> None:
    """`y * y.square().float().sqrt().to(y.dtype)`, then `maximum` with a cast parameter."""
    found = sizes(step(ROOT_MEAN_SQUARE, precision="mixed-fp16"))
    names = ("square", "back", "product", "low", "z")
    assert [found[name] for name in names] == [[40], [20], [20], [10], [20]]


def test_a_square_without_a_following_cast_stays_in_16_bits() -> None:
    text = ROOT_MEAN_SQUARE.replace("Cast <to = 1> (square)", "Identity(square)")
    assert sizes(step(text, precision="mixed-fp16"))["square"] == [20]


SUMMED = """
    agraph (float[7,3] x) => (float[5,2] z)
    <float[3,2] w, float[5,3] p, float[3,2] v, float[1] zero = {0}> {
        place = Constant <value = int64[7,1] {0, 1, 1, 2, 3, 4, 4}> ()
        rows = Constant <value = int64[2] {5, 2}> ()
        h = MatMul(p, v)
        shape = Shape(h)
        zeros = Expand(zero, shape)
        m = MatMul(x, w)
        e = Neg(m)
        z = ScatterND <reduction = "add"> (zeros, place, e)
    }"""


def test_index_add_saves_what_it_adds_in_the_type_of_zeros_like() -> None:
    found = step(SUMMED, precision="mixed-bf16")
    assert sizes(found)["z"] == [2 * 5 * 2]
    assert "-e" not in happenings(found, Phase.FORWARD)


def test_index_put_saves_indices_alone_and_zeros_of_given_dims_are_float32() -> None:
    text = SUMMED.replace('<reduction = "add">', "").replace("(zero, shape)", "(zero, rows)")
    found = step(text, precision="mixed-bf16")
    assert sizes(found)["z"] == [4 * 5 * 2]
    assert "-e" in happenings(found, Phase.FORWARD)


FIRST_STATE = """
    agraph (float[2,3] x) => (float[2,5] z) <float[3,5] w> {
        h = MatMul(x, w)
        dims = Constant <value = int64[2] {2, 5}> ()
        state = ConstantOfShape <value = float[1] {0}> (dims)
        gate = Sigmoid(h)
        z = Add(gate, state)
    }"""


@pytest.mark.parametrize(
    ("call", "arguments", "num_bytes"),
    [
        ("new_zeros", "(%h, [2, 5]), kwargs = {pin_memory: False}", 2),
        ("zeros_like", "(%h,), kwargs = {}", 2),
        ("new_zeros", "(%x, [2, 5]), kwargs = {}", 4),
        ("new_zeros", "(%h, [2, 5]), kwargs = {dtype: torch.float32}", 4),
        ("new_zeros", "(%gone, [2, 5]), kwargs = {}", 4),
        ("zeros", "([%h, 5],), kwargs = {}", 4),
    ],
)
def test_a_first_state_has_the_type_of_what_makes_it(
    call: str, arguments: str, num_bytes: int
) -> None:
    """``h.new_zeros`` has the type of h, as torch.export names it; ``torch.zeros`` is float32."""
    graph = graph_of(FIRST_STATE)
    text = f"[target=torch.ops.aten.{call}.default](args = {arguments})"
    nodes = tuple(
        replace(node, metadata={"pkg.torch.onnx.fx_node": text})
        if node.onnx_op == "ConstantOfShape"
        else node
        for node in graph.nodes
    )
    found = training_memory(replace(graph, nodes=nodes), recipe_of(precision="mixed-bf16"))
    assert sizes(found)["z"] == [num_bytes * 2 * 5]


COMPUTED = FIRST_STATE.replace(
    "dims = Constant <value = int64[2] {2, 5}> ()",
    """shape = Shape(x)
        first = Constant <value = int64 {0}> ()
        axis = Constant <value = int64[1] {0}> ()
        rows = Gather(shape, first)
        row = Unsqueeze(rows, axis)
        five = Constant <value = int64[1] {5}> ()
        dims = Concat <axis = 0> (row, five)""",
)


DEPTH = """
    agraph (float[2,3] x) => (float[2,7] y)
    <float[3,5] w, float[5,7] v, int64[2] each = {2, 1}, float p = {0.9}> {
        h = MatMul(x, w)
        e = ConstantOfShape(each)
        r = RandomUniformLike(e)
        CHOSEN
        d = Div(c, p)
        s = Mul(h, d)
        z = Add(s, h)
        y = MatMul(z, v)
    }"""
COMPARED = "l = Less(r, p)  c = Cast <to = 1> (l)"


@pytest.mark.parametrize("chosen", [COMPARED, "a = Add(r, p)  c = Floor(a)"])
def test_stochastic_depth_widens_nothing(chosen: str) -> None:
    """As timm and torchvision draw a number for each sample, and as transformers does."""
    found = step(DEPTH.replace("CHOSEN", chosen), precision="mixed-bf16")
    assert sizes(found)["s"] == [2 * 2 * 5]
    assert sizes(found)["z"] == [2 * 2 * 5]
    # Each step draws others, and the product saves them.
    assert sizes(found)["d"] == [2 * 2]


def test_a_comparison_of_activations_is_cast_as_the_file_has_it() -> None:
    text = DEPTH.replace("CHOSEN", COMPARED).replace("Less(r, p)", "Less(r, h)")
    found = step(text, precision="mixed-bf16")
    assert sizes(found)["s"] == [4 * 2 * 5]


def test_a_first_state_of_unknown_type_has_a_note() -> None:
    """As the script exporter writes both ``torch.zeros(n, 5)`` and ``h.new_zeros(n, 5)``."""
    found = step(COMPUTED, precision="mixed-bf16")
    (note,) = found.findings
    assert note.code == "constant_in_float32"
    assert "1 constant counted as float32 under autocast" in note.message
    assert sizes(found)["z"] == [4 * 2 * 5]
    assert step(COMPUTED).findings == ()
    alone = COMPUTED.replace("Add(gate, state)", "Add(gate, gate)")
    assert step(alone, precision="mixed-bf16").findings == ()


def test_a_first_state_may_be_cast_to_the_type_of_an_activation() -> None:
    """``CastLike``: what torch.export writes of ``new_zeros`` where nothing is optimized."""
    text = COMPUTED.replace("z = Add(gate, state)", "like = CastLike(state, h) z = Add(gate, like)")
    found = step(text, precision="mixed-bf16")
    assert sizes(found)["z"] == [2 * 2 * 5]
    assert found.findings == ()


RESIDUAL = """
    agraph (float[2,3,5,5] x) => (float[2,3,5,5] y)
    <float[3,3,1,1] w, float[3] scale, float[3] shift, float[3] mean, float[3] var> {{
        shortcut = Exp(x)
        h = Conv(x, w)
        n, m, v = BatchNormalization <training_mode = 1> (h, scale, shift, mean, var)
        s = {arithmetic}
        y = Relu(s)
    }}"""


def residual(line: str, arithmetic: str, requested: bool | None = None) -> TrainingMemory:
    """A step whose sum a line of code made; without one as the script exporter writes it."""
    graph = graph_of(RESIDUAL.format(arithmetic=arithmetic))
    trace = f'File "model.py", line 7, in forward\n    x = self.block(x)\n    {line}'
    metadata = {"pkg.torch.onnx.stack_trace": trace} if line else {}
    nodes = tuple(
        replace(node, metadata=metadata) if node.outputs[0] == "s" else node for node in graph.nodes
    )
    recipe = recipe_of(precision="mixed-bf16", in_place_activations=requested)
    return training_memory(replace(graph, nodes=nodes), recipe)


@pytest.mark.parametrize(
    ("line", "arithmetic", "num_bytes"),
    [
        ("x += shortcut", "Add(n, shortcut)", 2),
        ("x += self.downsample(shortcut)", "Add(n, shortcut)", 2),
        ("x += a + b", "Add(n, shortcut)", 4),
        ("x -= shortcut", "Add(n, shortcut)", 4),
        ("x *= gate", "Mul(n, shortcut)", 2),
        ("x = x + shortcut", "Add(n, shortcut)", 4),
        ("shortcut += x", "Add(shortcut, n)", 4),
    ],
)
def test_an_assignment_such_as_x_plus_equals_keeps_the_type_of_x(
    line: str, arithmetic: str, num_bytes: int
) -> None:
    """The line of code that torch.export names decides, whatever is requested of activations."""
    for requested in (None, True, False):
        found = residual(line, arithmetic, requested)
        assert sizes(found)["s"] == [num_bytes * 2 * 3 * 5 * 5]
        assert "sums_in_place" not in {each.code for each in found.findings}


def test_the_sum_that_ends_a_residual_block_is_assumed_to_be_in_place() -> None:
    """Where the file has no line of code: of a BatchNormalization, before an activation."""
    found = residual("", "Add(n, shortcut)")
    assert sizes(found)["s"] == [2 * 2 * 3 * 5 * 5]
    (note,) = (each for each in found.findings if each.code == "sums_in_place")
    assert "1 residual sum of 16 bits and float32" in note.message
    out_of_place = residual("", "Add(n, shortcut)", requested=False)
    assert sizes(out_of_place)["s"] == [4 * 2 * 3 * 5 * 5]
    assert "sums_in_place" not in {each.code for each in out_of_place.findings}
    for other in ("Add(shortcut, n)", "Add(h, shortcut)", "Mul(n, shortcut)"):
        assert sizes(residual("", other))["s"] == [4 * 2 * 3 * 5 * 5]


def test_a_sum_in_place_that_changes_no_type_has_no_note() -> None:
    codes = {each.code for each in residual("", "Add(n, h)").findings}
    assert "sums_in_place" not in codes


CALLED = """
    agraph (float[2,3] x) => (float[2,7] y) <float[3,5] w, float[2,5] p, float[5,7] v> {
        h = MatMul(x, w)
        s = Add(h, p)
        a = MatMul(s, v)
        b = Sigmoid(a)
        y = Neg(b)
    }"""


@pytest.mark.parametrize(
    ("names", "last"),
    [
        (("/m/MatMul", "/m/Sigmoid", "/Neg"), "b"),
        (("/m/n/MatMul", "/m/Sigmoid", "/m/Neg"), "y"),
        (("/m/n/MatMul", "/m/o/Sigmoid", "/m/o/Neg"), "y"),
        (("/m/MatMul", "/n/Sigmoid", "/m/Neg"), "a"),
        (("MatMul", "Sigmoid", "Neg"), "a"),
    ],
)
def test_an_argument_of_a_module_lives_until_the_module_returns(
    names: tuple[str, ...], last: str
) -> None:
    """The call holds ``s``, of which only a cast is saved, until after ``last``."""
    graph = graph_of(CALLED)
    renamed = zip(graph.nodes, ("/MatMul", "/Add", *names), strict=True)
    graph = replace(graph, nodes=tuple(replace(node, name=name) for node, name in renamed))
    found = training_memory(graph, recipe_of(precision="mixed-bf16"))
    forward = happenings(found, Phase.FORWARD)
    made = [each for each in forward[: forward.index("-s")] if each.startswith("+")]
    assert made[-1] == f"+{last}"
