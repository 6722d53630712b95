"""The forward pass: when storages appear, and with which reader they go."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import are_equal, happenings, recipe_of, sizes, step

from onnxmem.model.graph import Node
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.runtimes.torch.views import in_place_activations


def forward(found: TrainingMemory) -> list[str]:
    return happenings(found, Phase.FORWARD)


def test_a_storage_is_freed_after_its_last_reader() -> None:
    """Nothing is trained, so nothing is saved; ``b`` is read again by the last node."""
    found = step("""
        agraph (float[2,3] x) => (float[2,3] y) {
            a = Exp(x)
            b = Tanh(a)
            c = Exp(b)
            y = Add(b, c)
        }""")
    assert forward(found) == ["+a", "+b", "-a", "+c", "+y", "-b", "-c"]
    assert found.forward_peak_bytes == 4 * 6 * (1 + 3)
    assert found.saved_activation_bytes == 4 * 6


def test_an_unread_tensor_is_freed_at_once() -> None:
    found = step("agraph (float[2,3] x) => (float[2,3] y) { dead = Tanh(x)  y = Exp(x) }")
    assert forward(found) == ["+dead", "-dead", "+y"]


def test_a_view_keeps_its_storage_alive() -> None:
    """``h`` is read last by the reshape, whose result is read on."""
    found = step("""
        agraph (float[2,3] x) => (float[6] y) <int64[1] s = {6}> {
            h = Exp(x)
            v = Reshape(h, s)
            t = Tanh(v)
            y = Exp(t)
        }""")
    assert forward(found) == ["+h", "+t", "-h", "+y", "-t"]


def test_an_output_lives_to_the_end_with_the_storage_it_is_a_view_of() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,1] y)
        <int64[1] from = {0}, int64[1] to = {1}, int64[1] axis = {1}> {
            h = Exp(x)
            y = Slice(h, from, to, axis)
        }""")
    assert forward(found) == ["+h"]
    assert found.saved_activation_bytes == 4 * 6


def test_a_mask_that_only_the_backward_pass_reads_is_not_a_tensor() -> None:
    """It counts as extra bytes: one per element."""
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y)
        <float[3,5] w, float ratio = {0.5}, bool on = {1}> {
            h = MatMul(x, w)
            y, mask = Dropout(h, ratio, on)
        }""")
    assert forward(found) == ["+h", "+y", "+saved by Dropout_1", "-h"]
    assert sizes(found)["saved by Dropout_1"] == [10]


def test_a_mask_that_a_node_reads_is_a_tensor() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,5] y, bool[2,5] mask)
        <float[3,5] w, float ratio = {0.5}, bool on = {1}> {
            h = MatMul(x, w)
            y, mask = Dropout(h, ratio, on)
        }""")
    assert "+mask" in forward(found)


def test_shapes_and_constants_take_no_memory() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,3] y) <float two = {2.0}, int64[1] wide = {3}> {
            shape = Shape(x)
            row = Expand(two, wide)
            turned = Exp(row)
            h = Mul(x, turned)
            y = Reshape(h, shape)
        }""")
    assert forward(found) == ["+h"]


def test_random_numbers_are_allocated_in_the_step() -> None:
    found = step("""
        agraph (float[2,3] x) => (float[2,3] y) {
            noise = RandomNormal <shape = [2, 3]> ()
            y = Add(x, noise)
        }""")
    assert forward(found) == ["+noise", "+y", "-noise"]


def test_a_matmul_copies_an_operand_that_it_cannot_fold() -> None:
    """Only the right operand requires a gradient, which reads the left one: its copy is saved."""
    text = """
        agraph (float[2,3,5,7] x) => (float[2,5,3,11] y) <float[2,5,7,11] w> {
            t = Transpose <perm = [0, 2, 1, 3]> (x)
            y = MatMul(t, w)
        }"""
    found = step(text)
    assert forward(found) == ["+y", "+t as MatMul_1 reads it"]
    assert found.saved_activation_bytes == 4 * (2 * 5 * 3 * 11 + 2 * 3 * 5 * 7)


def test_an_unsaved_copy_is_freed_after_the_matmul() -> None:
    """The right operand is a constant, which requires no gradient."""
    text = """
        agraph (float[2,3,5,7] x) => (float[2,5,3,11] y) <float[2,3,5,7] g, float[2,5,7,11] c> {
            h = Mul(x, g)
            t = Transpose <perm = [0, 2, 1, 3]> (h)
            y = MatMul(t, c)
        }"""
    copy = "t as MatMul_2 reads it"
    found = step(text, freeze=("c",))
    assert forward(found) == ["+h", "+y", f"+{copy}", f"-{copy}", "-h"]
    assert sizes(found)[copy] == [4 * 2 * 3 * 5 * 7]


def test_the_loss_is_the_end_of_the_pass() -> None:
    """Cross-entropy saves log-probabilities and the sum of weights; its value lives on."""
    found = step(
        "agraph (float[2,3] x) => (float[2,5] y) <float[3,5] w> { y = MatMul(x, w) }",
        loss="cross-entropy",
    )
    assert forward(found) == [
        *("+y", "+loss of y", "+sum of the class weights, loss of y"),
        "+value of the loss of y",
    ]
    assert found.forward_peak_bytes == 4 * (6 + 15 + 10 + 10 + 1 + 1) + 2 * 8


IN_PLACE = """
    agraph (float[2,3] x) => (float[2,7] y) <float[3,5] w, float[5,7] v> {{
        h = MatMul(x, w)
        {between}
        r = {op_type}({data})
        y = MatMul(r, v)
    }}"""


@pytest.mark.parametrize("op_type", ["Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Sigmoid", "Tanh"])
def test_an_activation_in_place_overwrites_its_input(op_type: str) -> None:
    text = IN_PLACE.format(op_type=op_type, data="h", between="")
    found = step(text, in_place_activations=True)
    assert forward(found) == ["+h", "+y"]
    assert found.saved_activation_bytes == 4 * (10 + 14)
    assert found.saved_activation_bytes < 1 + (step(text).saved_activation_bytes or 0)


@pytest.mark.parametrize("op_type", ["Gelu", "Softplus", "Clip"])
def test_other_activations_gain_nothing_in_place(op_type: str) -> None:
    text = IN_PLACE.format(op_type=op_type, data="h", between="")
    assert are_equal(step(text, in_place_activations=True), step(text))


@pytest.mark.parametrize(
    ("between", "data", "why"),
    [
        ("a = Exp(h)", "a", "Exp reads its output in its own formula"),
        ("a = Reshape(h, s)", "a", "a view of what something else may read"),
        ("a = Add(h, h)  b = Exp(a)  z = Neg(b)", "a", "read twice"),
    ],
)
def test_a_tensor_that_is_still_needed_is_not_overwritten(
    between: str, data: str, why: str
) -> None:
    text = IN_PLACE.format(op_type="Relu", data=data, between=between)
    text = text.replace("float[5,7] v>", "float[5,7] v, int64[2] s = {2, 5}>")
    assert are_equal(step(text, in_place_activations=True), step(text)), why


def test_an_input_of_the_graph_is_not_overwritten() -> None:
    text = "agraph (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
    assert are_equal(step(text, in_place_activations=True), step(text))


@pytest.mark.parametrize(
    ("op_type", "is_said"),
    [("Elu", True), ("LeakyRelu", True), ("Selu", True), ("Relu", False), ("Tanh", False)],
)
def test_inputs_that_would_not_be_saved_in_place_are_reported(
    op_type: str, *, is_said: bool
) -> None:
    """ReLU and the like save their output either way: saved bytes are the same."""
    text = IN_PLACE.format(op_type=op_type, data="h", between="")
    found = step(text)
    codes = [finding.code for finding in found.findings]
    assert codes == ["activations_out_of_place"] * is_said
    in_place = step(text, in_place_activations=True)
    assert in_place.findings == ()
    assert step(text, in_place_activations=False).findings == ()
    saved, saved_in_place = found.saved_activation_bytes, in_place.saved_activation_bytes
    assert saved is not None
    assert saved_in_place == saved - 40 * is_said


BLOCK = """
    agraph (float[2,3,5,7] x) => (float[2,3,5,7] y)
    <float[3,3,1,1] w, float[3] scale, float[3] bias, float[3] mean, float[3] var,
     float[3,3,1,1] v> {{
        c = Conv(x, w)
        n = BatchNormalization(c, scale, bias, mean, var)
        r = {op_type}(n)
        y = Conv(r, v)
    }}"""


@pytest.mark.parametrize("op_type", ["LeakyRelu", "Elu", "Celu", "Selu"])
def test_after_a_norm_an_activation_that_would_save_its_input_is_in_place(op_type: str) -> None:
    """No file shows it: the warning has the bytes that it would save otherwise, and the flag."""
    one = 4 * 2 * 3 * 5 * 7
    found = step(BLOCK.format(op_type=op_type))
    retained = step(BLOCK.format(op_type=op_type), in_place_activations=False)
    assert retained.saved_activation_bytes == (found.saved_activation_bytes or 0) + one
    (finding,) = found.findings
    assert finding.code == "activations_in_place"
    assert "they save 840 B more: --no-in-place-activations" in finding.message
    assert retained.findings == ()


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh", "HardSwish", "Softplus"])
def test_after_a_norm_other_activations_are_not_in_place(op_type: str) -> None:
    text = BLOCK.format(op_type=op_type)
    found = step(text)
    assert are_equal(found, step(text, in_place_activations=False))
    assert found.findings == ()


def test_nodes_without_inputs_are_not_activations() -> None:
    """A node that reads nothing at all is looked at like any other."""
    node = Node("n", "Relu", "", (), ("y",), lookup("Relu"))
    graph = type("G", (), {"nodes": (node,), "outputs": ("y",)})()
    assert in_place_activations(graph, requested=True) == {}


def test_pieces_of_a_split_live_until_their_module_returns() -> None:
    """``a, b = x.chunk(2, -1)`` are variables: the base of both is alive while ``c`` is made."""
    text = """
        agraph (float[2,6] x) => (float[2,3] y) <float[6,6] v, float[3,3] w> {
            s = MatMul(x, v)
            a, b = Split <axis = 1, num_outputs = 2> (s)
            p = Add(a, b)
            c = MatMul(p, w)
            y = Neg(c)
        }"""
    graph = graph_of(text)

    def freed_after(names: tuple[str, ...]) -> str:
        renamed = zip(graph.nodes, names, strict=True)
        nodes = tuple(replace(node, name=name) for node, name in renamed)
        found = training_memory(replace(graph, nodes=nodes), recipe_of())
        forward = happenings(found, Phase.FORWARD)
        made = [each for each in forward[: forward.index("-s")] if each.startswith("+")]
        return made[-1]

    assert freed_after(("/m/MatMul", "/m/Split", "/m/Add", "/m/MatMul_1", "/Neg")) == "+c"
    assert freed_after(("MatMul", "Split", "Add", "MatMul_1", "Neg")) == "+p"


VARIABLE = """
    agraph (float[2,3] x) => (float[2,3] y) {{
        a = Exp(x)
        b = Neg(a)
        c = {last}(a, b)
        d = Neg(c)
        y = Neg(d)
    }}"""


@pytest.mark.parametrize(
    ("last", "names", "freed_by"),
    [
        ("Max", ("/m/Exp", "/m/Neg", "/m/Max", "/m/Neg", "/Neg"), "+d"),
        ("Max", ("/m/i/Exp", "/m/Neg", "/m/j/Max", "/m/Neg", "/Neg"), "+d"),
        ("Add", ("/m/Exp", "/m/Neg", "/m/Add", "/m/Neg", "/Neg"), "+c"),
        ("Max", ("/m/Exp", "/n/Neg", "/n/Max", "/n/Neg", "/Neg"), "+c"),
        ("Max", ("Exp", "Neg", "Max", "Neg", "Neg"), "+c"),
    ],
)
def test_what_two_calls_read_is_a_variable(
    last: str, names: tuple[str, ...], freed_by: str
) -> None:
    """It lives until ``forward`` of /m returns; ``a = a + f(a)`` assigns its name anew."""
    graph = graph_of(VARIABLE.format(last=last))
    renamed = zip(graph.nodes, names, strict=True)
    nodes = tuple(replace(node, name=f"{name}_{i}") for i, (node, name) in enumerate(renamed))
    events = forward(training_memory(replace(graph, nodes=nodes), recipe_of()))
    made = [each for each in events[: events.index("-a")] if each.startswith("+")]
    assert made[-1] == freed_by
