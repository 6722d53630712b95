"""What a training configuration trains: frozen parameters, and low-rank adapters instead."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import happenings, network, recipe_of, run_as, sizes, step

from onnxmem.runtimes.torch.step import training_memory

TWO = """
    agraph (float[2,3] x) => (float[2,7] y) <float[3,5] encoder_w, float[5,7] head_w> {
        h = MatMul(x, encoder_w)
        r = Relu(h)
        y = MatMul(r, head_w)
    }"""


FACTORS = """
    agraph (float[2,3,5] x) => (float[2,3,5] y) <float[1,3,1] view_7, float[3,5] expand> {
        a = Mul(x, view_7)
        b = Mul(expand, a)
        y = Sigmoid(b)
    }"""


def test_factors_that_the_export_computed_have_a_note() -> None:
    """Not a table of two axes, and not where the file lists its parameters."""
    graph = graph_of(FACTORS)
    finding = training_memory(graph, recipe_of()).findings[0]
    assert (finding.code, finding.node) == ("folded_factors", "view_7")
    assert "1 factor that" in finding.message
    assert "up to 120 B more" in finding.message
    listed = replace(graph, of_parameters=frozenset({"expand"}))
    codes = {each.code for each in training_memory(listed, recipe_of()).findings}
    assert "folded_factors" not in codes


def test_frozen_parameters_are_buffers_without_a_gradient() -> None:
    """Nothing before the head is saved, and the backward pass ends there."""
    found = step(TWO, freeze=("encoder*",), optimizer="adam")
    assert found.weight_bytes == found.gradient_bytes == 4 * 35
    assert found.buffer_bytes == 4 * 15
    assert found.optimizer_state_bytes == 8 * 35 + 4
    assert happenings(found) == ["+gradient of y", "+gradient of head_w", "-gradient of y", "-r"]
    assert found.findings == ()


def test_gradients_pass_a_frozen_head() -> None:
    found = step(TWO, freeze=("head_w",))
    assert happenings(found) == [
        *("+gradient of y", "+gradient of r", "-gradient of y"),
        *("+gradient of h", "-gradient of r", "-r"),
        *("+gradient of encoder_w", "-gradient of h"),
    ]


@pytest.mark.parametrize(
    ("patterns", "trained"),
    [
        (("*",), ()),
        (("encoder?w",), ("head_w",)),
        (("[eh]*_w",), ()),
        (("ENCODER*",), ("encoder_w", "head_w")),
        (("encoder_w", "head*"), ()),
    ],
)
def test_patterns_are_a_shells(patterns: tuple[str, ...], trained: tuple[str, ...]) -> None:
    found = network(TWO, freeze=patterns).parameters
    assert found.trained == trained
    assert set(found.trained) | set(found.buffers) == {"encoder_w", "head_w"}


def test_a_pattern_without_a_match_is_reported() -> None:
    findings = network(TWO, freeze=("encoder*", "decoder*", "x")).findings
    assert [(each.code, each.message.split(":")[0]) for each in findings] == [
        ("freeze_matches_nothing", "--freeze 'decoder*'"),
        ("freeze_matches_nothing", "--freeze 'x'"),
    ]


def test_an_entirely_frozen_network_has_no_backward_pass() -> None:
    found = step(TWO, freeze=("*",), optimizer="adam")
    assert (found.gradient_bytes, found.optimizer_state_bytes, found.weight_bytes) == (0, 0, 0)
    assert "+gradient of head_w" not in happenings(found)
    assert found.saved_activation_bytes == 4 * 14


def test_adapters_are_trained_beside_frozen_matrices() -> None:
    """Of rank 2, for each of two layers: [in, 2] and [2, out]."""
    found = step(TWO, lora_rank=2, optimizer="adam")
    count = (3 + 5) * 2 + (5 + 7) * 2
    assert found.weight_bytes == found.gradient_bytes == 4 * count
    assert found.optimizer_state_bytes == 8 * count + 4 * 4
    assert found.buffer_bytes == 4 * (15 + 35)
    assert network(TWO, lora_rank=2).parameters.num_parameters == count


def test_an_adapter_runs_beside_its_layer() -> None:
    """Down, up, scaled and added; what reads the layer reads the sum."""
    graph = network(TWO, lora_rank=2).graph
    beside = ["MatMul", "MatMul", "MatMul", "Mul", "Add"]
    assert [node.op_type for node in graph.nodes] == [*beside, "Relu", *beside]
    relu = graph.nodes[5]
    assert relu.inputs == ("MatMul_0/Add_3_output",)
    assert graph.outputs == ("MatMul_2/Add_3_output",)
    assert graph.tensors["MatMul_0/MatMul_0_output"].shape == (2, 2)


def test_adapters_of_a_network_without_linear_layers_are_reported() -> None:
    text = """agraph (float[N,3,11,11] x) => (float[N,5,9,9] y) <float[5,3,3,3] w> {
        y = Conv(x, w)
    }"""
    found = network(text, lora_rank=2)
    assert found.parameters.trained == ()
    assert [(each.code, each.message[:14]) for each in found.findings] == [
        ("lora_adapts_nothing", "--lora-rank 2:")
    ]
    assert not network(TWO, lora_rank=2).findings


def test_events_of_the_last_adapter() -> None:
    """Gradients reach its factors through the scaled matmul; the layer itself passes none on."""
    text = "agraph (float[2,3] x) => (float[2,7] y) <float[3,7] w> { y = MatMul(x, w) }"
    found = step(text, lora_rank=1)
    assert sizes(found)["gradient of MatMul_0/lora_A"] == [4 * 3]
    assert sizes(found)["gradient of MatMul_0/lora_B"] == [4 * 7]
    assert "gradient of w" not in sizes(found)
    # A's output, for B's gradient; the scale is a number, and x is alive anyway
    assert found.saved_activation_bytes == 4 * (2 + 14)


@pytest.mark.parametrize(
    ("layer", "shapes", "wide", "narrow"),
    [
        ("y = Gemm(x, w, b)", "float[3,7] w, float[7] b", 3, 7),
        ("y = Gemm <transB = 1> (x, w, b)", "float[7,3] w, float[7] b", 3, 7),
        ("t = Transpose <perm = [1, 0]> (w)  y = MatMul(x, t)", "float[7,3] w", 3, 7),
        ("m = MatMul(x, w)  y = Add(m, b)", "float[3,7] w, float[7] b", 3, 7),
    ],
)
def test_each_form_of_a_linear_layer_has_an_adapter(
    layer: str, shapes: str, wide: int, narrow: int
) -> None:
    text = f"agraph (float[2,3] x) => (float[2,7] y) <{shapes}> {{ {layer} }}"
    found = network(text, lora_rank=5)
    names = found.parameters.trained
    dims = [found.graph.tensors[name].shape for name in names]
    assert dims == [(wide, 5), (5, narrow)]


@pytest.mark.parametrize(
    ("layer", "shapes"),
    [
        ("t = Transpose(x)  y = Gemm <transA = 1> (t, w)", "float[3,7] w"),
        ("y = MatMul(x, w)", "float[5,3,7] w"),
        ("y = Mul(x, w)", "float[2,3] w"),
        ("e = Exp(w)  y = MatMul(x, e)", "float[3,7] w"),
    ],
)
def test_other_layers_have_no_adapter(layer: str, shapes: str) -> None:
    text = f"agraph (float[2,3] x) => (float y) <{shapes}> {{ {layer} }}"
    found = network(text, lora_rank=2)
    assert found.parameters.trained == ()
    assert found.parameters.buffers == ("w",)
    assert "Add" not in run_as(text, lora_rank=2)


def test_frozen_layers_have_no_adapter() -> None:
    """Patterns select the matrices without an adapter."""
    found = network(TWO, lora_rank=2, freeze=("encoder*",))
    assert found.parameters.trained == ("MatMul_2/lora_A", "MatMul_2/lora_B")
    assert set(found.parameters.buffers) == {"encoder_w", "head_w"}


def test_a_transposed_frozen_layer() -> None:
    """A larger rank trains more, and never takes less."""
    small, large = (step(TWO, lora_rank=rank) for rank in (1, 3))
    assert small.weight_bytes * 3 == large.weight_bytes
    assert small.buffer_bytes == large.buffer_bytes
    assert small.peak_bytes < large.peak_bytes
