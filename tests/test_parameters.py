"""Which weights count as parameters, by who reads them and how the file makes them."""

import pytest
from graphs import graph_of

from onnxmem.model.parameters import Parameters, parameters


def of(text: str) -> Parameters:
    return parameters(graph_of(text))


def test_a_layer_reads_its_weight_and_bias_as_parameters() -> None:
    found = of("""
        agraph (float[1,3,8,8] x) => (float[1,4,6,6] y) <float[4,3,3,3] w, float[4] b> {
            y = Conv(x, w, b)
        }""")
    assert found == Parameters(("w", "b"), (), (), 112)


def test_running_statistics_are_buffers() -> None:
    found = of("""
        agraph (float[2,3,4,4] x) => (float[2,3,4,4] y)
        <float[3] s, float[3] b, float[3] mean, float[3] var> {
            y = BatchNormalization(x, s, b, mean, var)
        }""")
    assert (found.trained, found.buffers) == (("s", "b"), ("mean", "var"))
    assert found.num_parameters == 6


def test_a_weight_is_found_through_operators_that_lay_it_out_anew() -> None:
    found = of("""
        agraph (float[2,6] x) => (float[2,4] y) <float16[4,6] w, float[4] b, int64[2] s = {1, 4}> {
            wide = Cast <to = 1> (w)
            turned = Transpose <perm = [1, 0]> (wide)
            product = MatMul(x, turned)
            row = Reshape(b, s)
            y = Add(product, row)
        }""")
    assert found.trained == ("w", "b")
    assert found.buffers == ()


def test_a_literal_of_arithmetic_is_no_parameter() -> None:
    """A scalar, one element and a Constant node are numbers of the program."""
    found = of("""
        agraph (float[2,3] x) => (float[2,3] y)
        <float[3] gain, float scalar = {2.0}, float[1] single = {3.0}> {
            mean = Constant <value = float[3] {0.1, 0.2, 0.3}> ()
            centred = Sub(x, mean)
            halved = Div(centred, scalar)
            tripled = Mul(halved, single)
            y = Mul(tripled, gain)
        }""")
    assert found.trained == ("gain",)
    assert found.buffers == ("scalar", "single")


@pytest.mark.parametrize(
    "make",
    [
        "w = Constant <value = float[2,2] {1.0, 2.0, 3.0, 4.0}> ()",
        "w = ConstantOfShape <value = float[1] {0.5}> (shape)",
    ],
)
def test_a_layer_reads_constant_nodes_as_parameters(make: str) -> None:
    """Some exporters write every weight as a Constant node."""
    found = of(f"""
        agraph (float[2,2] x) => (float[2,2] y) <int64[2] shape = {{2, 2}}> {{
            {make}
            y = MatMul(x, w)
        }}""")
    assert found.trained == ("w",)
    assert found.num_parameters == 4


def test_an_embedding_is_a_parameter_and_its_indices_are_not() -> None:
    found = of("""
        agraph (float[2,2] x) => (float[3,2] y) <float[9,2] table, int64[3] rows = {0, 1, 2}> {
            y = Gather(table, rows)
        }""")
    assert found.trained == ("table",)
    assert found.buffers == ()


def test_dequantised_weights_count_as_parameters_and_are_not_trained() -> None:
    found = of("""
        agraph (float[2,6] x) => (float[2,4] y) <int4[6,4] q, float scale, int4 zero> {
            w = DequantizeLinear(q, scale, zero)
            y = MatMul(x, w)
        }""")
    assert found == Parameters((), ("q",), ("scale", "zero"), 24)


def test_integer_lists_are_literals_and_tables_are_buffers() -> None:
    found = of("""
        agraph (float[2,128] x) => (float[2,128] y)
        <int64[2] shape = {2, 128}, bool[2,128] mask> {
            kept = Where(mask, x, x)
            y = Reshape(kept, shape)
        }""")
    assert found == Parameters((), (), ("mask",), 0)


def test_a_weight_that_two_layers_share_counts_once() -> None:
    found = of("""
        agraph (int64[2] i) => (float[2,9] y) <float[9,4] table> {
            x = Gather(table, i)
            back = Transpose <perm = [1, 0]> (table)
            y = MatMul(x, back)
        }""")
    assert found == Parameters(("table",), (), (), 36)


def test_weights_of_subgraphs_are_parameters() -> None:
    found = of("""
        agraph (bool c, float[2,2] x) => (float[2,2] y) <float[2,2] w> {
            y = If (c) <
                then_branch = yes () => (float[2,2] a) { a = MatMul(x, w) },
                else_branch = no () => (float[2,2] b) { b = Identity(x) }
            >
        }""")
    assert found.trained == ("w",)


def test_weights_packed_into_bytes_count_one_by_one() -> None:
    found = of("""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        agraph (float[2,64] x) => (float[2,8] y) <uint8[8,2,16] q, float[8,2] scales> {
            y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32>
                (x, q, scales)
        }""")
    assert found == Parameters((), ("q",), ("scales",), 64 * 8)


def test_the_gates_of_a_recurrent_layer_are_found_behind_slices_and_joins() -> None:
    """Exporters that write weights as Constant nodes put the gates in order at run time."""
    found = of("""
        agraph (float[5,1,2] x, float[1,6,2] r) => (float[5,1,1,2] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] six = {6}> {
            w = Constant <value = float[1,6,1] {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}> ()
            reset = Slice(w, zero, two, two)
            others = Slice(w, two, six, two)
            gates = Concat <axis = 1> (others, reset)
            wide = Concat <axis = 2> (gates, gates)
            y = GRU <hidden_size = 2> (x, wide, r)
        }""")
    assert found.trained == ("w",)
