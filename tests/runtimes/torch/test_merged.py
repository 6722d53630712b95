"""What a network computes several times and the file once: by hand, with distinct primes."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import recipe_of

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.merged import (
    with_repeated_activations,
    with_repeated_calls,
    with_repeated_subtractions,
)
from onnxmem.runtimes.torch.step import training_memory

SCOPES = "pkg.torch.onnx.name_scopes"
TEXT = """
    agraph (float[2,3] x) => (float[2,3] y) <float[3,5] v, float[5,3] w, float[5,3] u> {
        h = MatMul(x, v)
        r = Relu(h)
        a = MatMul(r, w)
        b = MatMul(r, u)
        y = Add(a, b)
    }"""
TWO = ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/blocks.1/up/MatMul", "/Add")


def named(names: tuple[str, ...], *, metadata: bool = False) -> Graph:
    """The graph with the names of the script exporter, or the metadata of torch.export."""
    graph = graph_of(TEXT)
    nodes = tuple(
        replace(node, metadata={SCOPES: str(["", *name.strip("/").split("/")])})
        if metadata
        else replace(node, name=name)
        for node, name in zip(graph.nodes, names, strict=True)
    )
    return replace(graph, nodes=nodes)


@pytest.mark.parametrize("metadata", [False, True])
def test_each_module_computes_and_saves_its_own(metadata: bool) -> None:
    graph = named(TWO, metadata=metadata)
    repeated = with_repeated_activations(graph)
    reads = [(node.onnx_op, node.inputs[0]) for node in repeated.nodes]
    again = "r again, 0"
    assert reads == [
        *(("MatMul", "x"), ("Relu", "h"), ("MatMul", "r")),
        *(("Relu", "h"), ("MatMul", again), ("Add", "a")),
    ]
    before, after = (
        training_memory(each, recipe_of()).saved_activation_bytes
        for each in (with_repeated_activations(named(("n", *TWO[1:1], *"abcd"))), graph)
    )
    assert after == (before or 0) + 4 * 2 * 5
    assert len({node.name for node in repeated.nodes}) == len(repeated.nodes)


@pytest.mark.parametrize(
    "names",
    [
        ("/stem/MatMul", "/stem/act/Relu", "/blocks.0/MatMul", "/blocks.1/MatMul", "/Add"),
        ("/blocks.0/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/blocks.1/MatMul", "/Add"),
        ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/MatMul", "/blocks.0/b/MatMul", "/Add"),
        ("/stem/MatMul", "/blocks.0/Relu", "/blocks.0/up/MatMul", "/MatMul", "/Add"),
        ("a", "b", "c", "d", "e"),
    ],
)
def test_what_one_module_computes_is_computed_once(names: tuple[str, ...]) -> None:
    """Returned by its module, of that module's own, read there alone, or by the module around."""
    graph = named(names)
    assert with_repeated_activations(graph) is graph


def test_a_module_of_its_own_is_called_by_the_one_around_it() -> None:
    names = ("/stem/MatMul", "/blocks.0/act/Relu", *TWO[2:])
    assert len(with_repeated_activations(named(names)).nodes) == 6


CENTERED = """
    agraph (float[2,7] x, float[2,1] m) => (float[2,7] y) <float[7] w, float[5,7,3] k> {
        v = Mul(x, w)
        sub = Sub(v, m)
        square = Mul(sub, sub)
        s = Exp(square)
        y = Div(sub, s)
    }"""
CALLS = ("v", "sub", "square", "s", "y")
FX = "pkg.torch.onnx.fx_node"


def calling(graph: Graph, **operands: str) -> Graph:
    """The graph with the call of torch.export for each node of some results."""
    text = (
        "%{} : [num_users=1] = call_function[target=torch.ops.aten.x](args = ({}), kwargs = {{}})"
    )
    nodes = tuple(
        replace(node, metadata={FX: text.format(result, operands[result]), SCOPES: "['']"})
        if (result := node.outputs[0]) in operands
        else node
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes)


def centered(**operands: str) -> Graph:
    calls = {
        "v": "%x, %p_w",
        "sub": "%v, %m",
        "square": "%sub, %sub",
        "s": "%square",
        "y": "%sub, %s",
    }
    return calling(graph_of(CENTERED), **(calls | operands))


def test_a_call_that_was_merged_into_another_runs_again() -> None:
    """``(x - m) / exp((x - m) * (x - m))``: two differences, of which each is saved."""
    once, twice = centered(), centered(y="%sub_1, %s")
    repeated = with_repeated_calls(twice)
    assert [node.op_type for node in repeated.nodes] == ["Mul", "Sub", "Mul", "Exp", "Sub", "Div"]
    assert (repeated.nodes[-2].inputs, repeated.nodes[-1].inputs) == (("v", "m"), ("sub_1", "s"))
    saved = [training_memory(each, recipe_of()).saved_activation_bytes for each in (once, twice)]
    assert saved[1] == (saved[0] or 0) + 4 * 2 * 7


MASKED = """
    agraph (float[2,7] x, float[2,7] m) => (float[2,7] y) <float[7] w, float zero = {0}> {
        v = Mul(x, w)
        eq = Equal(m, zero)
        a = Where(eq, zero, v)
        s = Sigmoid(a)
        y = Where(eq, zero, s)
    }"""


def test_a_mask_that_two_layers_make_is_saved_twice() -> None:
    calls = {"v": "%x, %p_w", "eq": "%m, 0", "s": "%a", "a": "%v, %eq, 0", "y": "%s, %eq, 0"}
    once, twice = (
        calling(graph_of(MASKED), **(calls | {"y": f"%s, {mask}, 0"})) for mask in ("%eq", "%eq_1")
    )
    saved = [training_memory(each, recipe_of()).saved_activation_bytes for each in (once, twice)]
    assert saved[1] == (saved[0] or 0) + 2 * 7


def test_what_several_nodes_read_of_one_call_runs_again_once() -> None:
    repeated = with_repeated_calls(centered(square="%sub_1, %sub_1", y="%sub_1, %s"))
    assert [node.op_type for node in repeated.nodes].count("Sub") == 2
    assert repeated.nodes[-1].inputs == ("sub_1", "s")


@pytest.mark.parametrize(
    "operands",
    [
        {},
        {"y": "%difference, %s"},
        {"y": "%sub_1, %sub_2"},
        {"y": "%sub, %sub_1"},
        {"sub": "%v, %m", "v": "%x, %p_w", "y": "%s_1, %s"},
    ],
)
def test_operands_of_other_names_are_left(operands: dict[str, str]) -> None:
    """None, one that is no call of the same operator, two that could be, or the file's own."""
    graph = centered(**operands)
    assert with_repeated_calls(graph) is graph


def test_a_convolution_that_was_joined_with_what_follows_is_not_run_again() -> None:
    """Its call is that of the normalization after it, of which it is the operand."""
    graph = graph_of("""
        agraph (float[2,3,11] x) => (float[2,3,7] y) <float[3,3,3] v, float[3,3,3] w> {
            conv1d = Conv <kernel_shape = [3]> (x, v)
            y = Conv <kernel_shape = [3]> (conv1d, w)
        }""")
    graph = calling(graph, conv1d="%x, %p_v", y="%conv1d_1, %p_b_weight, %p_b_bias")
    assert with_repeated_calls(graph) is graph


def test_a_call_of_several_nodes_is_left() -> None:
    graph = centered(y="%sub_1, %s")
    text = graph.nodes[1].metadata[FX]
    first = replace(graph.nodes[0], metadata={FX: text})
    graph = replace(graph, nodes=(first, *graph.nodes[1:]))
    assert with_repeated_calls(graph) is graph


WRITTEN_OUT = """
    agraph (float[2,7] x) => (float[2,7] y) <float[7] w> {{
        v = Mul(x, w)
        axes = Constant <value_ints = [0]> ()
        mean = ReduceMean(v, axes)
        centered = Sub(v, mean)
        two = Constant <value_float = 2.0> ()
        square = {square}
        variance = ReduceMean(square, axes)
        deviation = {deviation}
        y = Div(centered, deviation)
    }}"""


def written_out(square: str = "Pow(centered, two)", deviation: str = "Sqrt(variance)") -> Graph:
    text = WRITTEN_OUT.format(square=square, deviation=deviation)
    return graph_of(text.replace("agraph", '<ir_version: 8, opset_import: ["": 18]> agraph'))


def test_a_normalization_that_is_written_out_subtracts_its_mean_twice() -> None:
    """``(x - mean).pow(2)`` and ``(x - mean) / sqrt(...)``: each call saves its own difference."""
    graph = written_out()
    repeated, names = with_repeated_subtractions(graph)
    assert len(names) == 1
    assert [node.op_type for node in repeated.nodes][-2:] == ["Sub", "Div"]
    assert [node.inputs for node in repeated.nodes if node.op_type == "Sub"] == [("v", "mean")] * 2
    found = training_memory(graph, recipe_of())
    assert [finding.code for finding in found.findings] == ["subtraction_repeated"]
    kept = training_memory(written_out(square="Mul(centered, centered)"), recipe_of())
    assert found.saved_activation_bytes == (kept.saved_activation_bytes or 0) + 4 * 2 * 7


@pytest.mark.parametrize(
    "parts",
    [
        {"square": "Mul(centered, centered)"},
        {"square": "Pow(v, two)"},
        {"deviation": "Exp(variance)"},
    ],
)
def test_what_is_no_such_normalization_is_left(parts: dict[str, str]) -> None:
    """A product of a variable with itself, another variance, another divisor."""
    graph = written_out(**parts)
    assert with_repeated_subtractions(graph) == (graph, ())


def test_subtractions_that_are_named_calls_are_left() -> None:
    graph = calling(written_out(), centered="%v, %mean")
    assert with_repeated_subtractions(graph) == (graph, ())
