"""What the forward pass saves for backward.

Figures marked "torch" were seen with torch 2.13.0's saved_tensors_hooks: distinct storages, inputs
and parameters left out.
"""

from dataclasses import replace

import pytest
from graphs import graph_of

from onnxmem.model.graph import Graph
from onnxmem.model.parameters import parameters
from onnxmem.ops.spec import Saved
from onnxmem.runtimes.torch.network import as_run
from onnxmem.runtimes.torch.precision import precision_named
from onnxmem.runtimes.torch.tape import Tape, tape_of


def tape(text: str, precision: str = "fp32") -> Tape:
    return tape_of_graph(as_run(graph_of(text)), precision)


def tape_of_graph(graph: Graph, precision: str = "fp32") -> Tape:
    return tape_of(graph, parameters(graph), precision_named(precision), graph.outputs)


def retained(text: str, precision: str = "fp32") -> dict[str, int | None]:
    """Storages and copies that are saved, except the output ``y``, which always lives on."""
    found = tape(text, precision)
    sizes: dict[str, int | None] = {}
    for each in found.saved.values():
        sizes |= {name: found.size_bytes(name) for name in each.storages} | dict(each.copies)
    return {name: size for name, size in sizes.items() if name != "y"}


def extras(text: str) -> int:
    """Bytes that formulas save beside tensors."""
    return sum(each.extra_bytes or 0 for each in tape(text).saved.values())


def test_each_storage_is_saved_once() -> None:
    """Relu saves its output, which the next layer reads: one tensor."""
    assert retained("""
        agraph (float[2,8] x) => (float[2,4] y) <float[8,8] w, float[8,4] v> {
            h = MatMul(x, w)
            r = Relu(h)
            y = MatMul(r, v)
        }""") == {"r": 64}


def test_relu_saves_its_output_and_batchnorm_its_input() -> None:
    text = """
        agraph (float[2,3,8,8] x) => (float[2,4,6,6] y)
        <float[4,3,3,3] w, float[4] s, float[4] b, float[4] mean, float[4] var> {
            c = Conv(x, w)
            n = BatchNormalization(c, s, b, mean, var)
            y = Relu(n)
        }"""
    assert retained(text) == {"c": 1152}
    assert extras(text) == 2 * 4 * 4


def test_maxpool_saves_its_input_and_int64_indices() -> None:
    text = """
        agraph (float[1,3,8,8] x) => (float[1,4,4,4] y) <float[4,3,1,1] w> {
            c = Conv(x, w)
            y = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (c)
        }"""
    assert retained(text) == {"c": 1024}
    assert extras(text) == 8 * 64


def test_concat_saves_nothing_but_its_readers_save_its_result() -> None:
    """As in DenseNet; torch: 1,536 bytes."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,6,16] y) <float[8,8] w, float[16] gain> {
            a = MatMul(x, w)
            h = Relu(a)
            b = MatMul(h, w)
            g = Relu(b)
            c = Concat <axis = -1> (h, g)
            y = Mul(c, gain)
        }""") == {"h": 384, "g": 384, "c": 768}


@pytest.mark.parametrize(("ratio", "keeps"), [(0.0, 0), (0.5, 96)])
def test_dropout_with_ratio_zero_is_an_identity(ratio: float, keeps: int) -> None:
    """torch: 384 bytes with a ratio of 0."""
    text = f"""
        agraph (float[2,6,8] x) => (float[2,6,8] y)
        <float[8,8] w, float ratio = {{{ratio}}}, bool on = {{1}}> {{
            h = MatMul(x, w)
            r = Relu(h)
            d, mask = Dropout(r, ratio, on)
            y = MatMul(d, w)
        }}"""
    assert retained(text) == {"r": 384} | ({"d": 384} if ratio else {})
    assert extras(text) == keeps


def test_a_saved_view_keeps_its_whole_storage() -> None:
    """torch: 384 bytes."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,1,8] y)
        <float[8,8] w, float[8] g, int64[1] from = {0}, int64[1] to = {1}, int64[1] axis = {1}> {
            h = MatMul(x, w)
            e = Exp(h)
            first = Slice(e, from, to, axis)
            y = Mul(first, g)
        }""") == {"e": 384}


def test_a_view_of_an_input_saves_nothing() -> None:
    assert (
        retained("""
        agraph (float[2,6,8] x) => (float[12,8] y) <float[8,8] w, int64[2] shape = {12, 8}> {
            rows = Reshape(x, shape)
            y = MatMul(rows, w)
        }""")
        == {}
    )


def test_a_reshape_after_a_transpose_copies() -> None:
    """torch: 384 bytes, of the copy."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,48] y) <float[8,8] w, int64[2] shape = {2, 48}> {
            h = MatMul(x, w)
            t = Transpose <perm = [0, 2, 1]> (h)
            r = Reshape(t, shape)
            y = Mul(r, r)
        }""") == {"r": 384}


def test_an_attention_head_saves_copies_of_its_transposed_operands() -> None:
    """torch: 768 bytes, of two copies; the matmul outputs that they are views of are not saved."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,2,6,6] y)
        <float[8,8] w, float[8,8] v, int64[4] heads = {2, 6, 2, 4}> {
            a = MatMul(x, w)
            b = Reshape(a, heads)
            q = Transpose <perm = [0, 2, 1, 3]> (b)
            c = MatMul(x, v)
            d = Reshape(c, heads)
            k = Transpose <perm = [0, 2, 3, 1]> (d)
            y = MatMul(q, k)
        }""") == {"q as MatMul_6 reads it": 384, "k as MatMul_6 reads it": 384}


def test_three_dimensional_operands_are_read_by_strides() -> None:
    """torch: 384 bytes, one storage."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,8,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            t = Transpose <perm = [0, 2, 1]> (h)
            y = MatMul(t, h)
        }""") == {"h": 384}


def test_integers_and_booleans_have_no_gradient() -> None:
    """The Cast to int64 ends the backward pass: what comes after it needs no gradient."""
    assert (
        retained("""
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            i = Cast <to = 7> (h)
            f = Cast <to = 1> (i)
            y = Exp(f)
        }""")
        == {}
    )


def test_a_mask_is_saved_and_the_values_are_not() -> None:
    assert retained("""
        agraph (float[2,8] x, float[2,8] limit, float z) => (float[2,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            mask = Less(x, limit)
            y = Where(mask, h, z)
        }""") == {"mask": 16}


def test_indices_that_are_graph_inputs_add_nothing() -> None:
    assert (
        retained("""
        agraph (int64[2,5] i) => (float[2,5,4] y) <float[9,4] table> {
            y = Gather(table, i)
        }""")
        == {}
    )


def test_a_gather_by_one_number_is_a_view() -> None:
    """Exporters write ``h[:, 0]`` as a Gather by a scalar."""
    assert retained("""
        agraph (float[2,6,8] x) => (float[2,8] y) <float[8,8] w, float[8] g, int64 zero = {0}> {
            h = MatMul(x, w)
            e = Exp(h)
            first = Gather <axis = 1> (e, zero)
            y = Mul(first, g)
        }""") == {"e": 384}


def test_a_branch_that_reaches_no_output_saves_nothing() -> None:
    assert (
        retained("""
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            y = MatMul(x, w)
            dead = Exp(y)
        }""")
        == {}
    )


def test_without_parameters_only_the_output_lives_on() -> None:
    text = "agraph (float[2,8] x) => (float[2,8] y) { e = Exp(x)  y = Exp(e) }"
    assert retained(text) == {}


def test_silu_saves_only_its_input() -> None:
    """PyTorch's exporter writes SiLU as x * Sigmoid(x); the framework runs one operator."""
    assert retained("""
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            s = Sigmoid(h)
            y = Mul(h, s)
        }""") == {"h": 64}


def test_a_gate_saves_both_factors() -> None:
    assert retained("""
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w, float[8,8] v> {
            h = MatMul(x, w)
            g = MatMul(x, v)
            s = Sigmoid(g)
            y = Mul(h, s)
        }""") == {"h": 64, "s": 64}


def test_an_unknown_operator_saves_everything_and_is_reported() -> None:
    text = """
        <ir_version: 10, opset_import: ["" : 21, "my.own" : 1]>
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            m = my.own.Mystery(h)
            y = Identity(m)
        }"""
    assert tape(text).assumed_nodes == ("Mystery_1",)
    assert retained(text) == {"h": 64, "m": None}


def test_a_body_saves_all_its_outputs_and_is_reported() -> None:
    found = tape("""
        agraph (bool c, float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            y = If (c) <
                then_branch = yes () => (float[2,8] a) { h = MatMul(x, w)  a = Exp(h) },
                else_branch = no () => (float[2,8] b) { b = Identity(x) }
            >
        }""")
    assert found.assumed_nodes == ("If_0",)
    assert [size for _, size in found.saved["If_0"].inner] == [64, 64, 64]


def test_mixed_precision_halves_activations_and_casts_the_input() -> None:
    text = """
        agraph (float[2,8] x) => (float[2,8] y) <float[8,8] w> {
            h = MatMul(x, w)
            r = Relu(h)
            y = MatMul(r, w)
        }"""
    assert retained(text, "bf16") == {"r": 32}
    cast = {"x as MatMul_0 reads it": 32, "copy of w": 128}
    assert retained(text, "mixed-fp16") == {**cast, "r": 32}


@pytest.mark.parametrize(
    ("inputs", "weights", "saved"),
    [
        (", float[8] s, float[8] b", "", []),
        (", float[8] b", "<float[8] s>", ["h"]),
        (", float[8] s", "<float[8] b>", ["h"]),
        ("", "<float[8] s, float[8] b>", ["h"]),
    ],
)
def test_a_tensor_that_several_gradients_read_is_saved_once(
    inputs: str, weights: str, saved: list[str]
) -> None:
    """A record that lists X for each of two weights, as ``contributing.md`` has it."""
    graph = as_run(
        graph_of(f"""
        agraph (float[2,8] x{inputs}) => (float[2,8] y) {weights} {{
            h = Abs(x)
            y = LayerNormalization(h, s, b)
        }}""")
    )
    first, last = graph.nodes
    twice = (Saved("X", if_grad="Scale"), Saved("X", if_grad="B"))
    operator = replace(last.operator, saved=twice)
    found = tape_of_graph(replace(graph, nodes=(first, replace(last, operator=operator))))
    assert [name for each in found.saved.values() for name in each.storages] == saved
