"""Which weights count as parameters, by who reads them and how the file makes them."""

from collections.abc import Callable

import pytest
from calls import num_calls
from graphs import graph_of, model_of

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
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


def test_a_weight_is_found_through_operators_that_change_its_layout() -> None:
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


def test_a_literal_of_arithmetic_is_not_a_parameter() -> None:
    """A scalar, one element and a Constant node are numbers of the program."""
    found = of("""
        agraph (float[2,3] x) => (float[2,3] y)
        <float[3] gain, float scalar = {2.0}, float[1] single = {3.0}> {
            mean = Constant <value = float[3] {0.1, 0.2, 0.3}> ()
            centered = Sub(x, mean)
            halved = Div(centered, scalar)
            tripled = Mul(halved, single)
            y = Mul(tripled, gain)
        }""")
    assert found.trained == ("gain",)
    assert found.buffers == ()


def test_a_list_is_trained_by_arithmetic_and_a_buffer_in_comparisons() -> None:
    """The factors of arithmetic are trained; the limits of a comparison have no gradient."""
    found = of("""
        agraph (float[2,3] x) => (float[2,3] y)
        <float[3] gains = {1.0, 2.0, 3.0}, float[3] limits = {1.0, 2.0, 3.0}> {
            a = Mul(x, gains)
            b = Greater(a, limits)
            y = Where(b, a, x)
        }""")
    assert (found.trained, found.buffers) == (("gains",), ("limits",))


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


def test_dequantized_weights_count_as_parameters_and_are_not_trained() -> None:
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


@pytest.mark.parametrize(("dtype", "buffers"), [("int64", ()), ("float", ("table",))])
def test_positions_that_a_trace_made_constant_are_literals(
    dtype: str, buffers: tuple[str, ...]
) -> None:
    """A Constant node of as many integers as a window has pairs; a table of floats stays."""
    count = 61 * 67
    values = ", ".join(map(str, range(count)))
    found = of(f"""
        agraph ({dtype}[{count}] x) => (bool[{count}] y) {{
            table = Constant <value = {dtype}[{count}] {{{values}}}> ()
            y = Less(table, x)
        }}""")
    assert found.buffers == buffers


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


def test_weights_packed_into_bytes_are_counted_by_element() -> None:
    found = of("""
        <ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        agraph (float[2,64] x) => (float[2,8] y) <uint8[8,2,16] q, float[8,2] scales> {
            y = com.microsoft.MatMulNBits <K = 64, N = 8, bits = 4, block_size = 32>
                (x, q, scales)
        }""")
    assert found == Parameters((), ("q",), ("scales",), 64 * 8)


def test_the_gates_of_a_recurrent_layer_are_found_through_slices_and_concats() -> None:
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


def named(name: str, body: str, weight: str = "float[3] w = {1, 2, 3}") -> Parameters:
    """Parameters of a node that reads a weight, by whatever name."""
    model = model_of(f"agraph (float[2,3] x) => (float y) <{weight}> {{ {body} }}")
    model.graph.initializer[0].name = name
    for node in model.graph.node:
        node.input[:] = [name if text == "w" else text for text in node.input]
    return parameters(build(prepare(ModelFile("<text>", model, 0)), Request()).graph)


@pytest.mark.parametrize(
    "name",
    [
        *("val_12", "encoder/val_3", "onnx::Mul_7", "12", "c_lifted_tensor_0"),
        *("mul", "mul_3", "sin_1", "slice_2", "unsqueeze", "arange_default", "_to_copy_5"),
        "/layer/Constant_4_output_0",
    ],
)
def test_generated_names_are_not_parameters_in_arithmetic(name: str) -> None:
    """The exporter computed the value; a short one is a number of the program, not a buffer."""
    assert named(name, "y = Mul(x, w)") == Parameters((), (), (), 0)


@pytest.mark.parametrize(
    "name",
    ["gain", "layer.weight", "encoder/gain", "mulch", "multiply_3", "0.bias", "values_12"],
)
def test_other_names_are_parameters(name: str) -> None:
    assert named(name, "y = Mul(x, w)") == Parameters((name,), (), (), 3)


@pytest.mark.parametrize(
    ("name", "is_trained"),
    [
        ("blocks.0.act.scale", True),
        ("layer.gain", True),
        ("gain", False),
        ("0.5", False),
        ("graph/const", False),
        ("p2o.helper.constant.3", False),
    ],
)
def test_one_number_is_a_parameter_by_the_name_of_a_modules_tensor(
    name: str, is_trained: bool
) -> None:
    """The scale of a StarReLU, the gain of a block without normalization: a Mul by it saves x."""
    found = named(name, "y = Mul(x, w)", "float w = {2}")
    assert found.trained == ((name,) if is_trained else ())


FOLDED = """
    agraph (float[2,3,5] x) => (float[2,3,5] y)
    <float[3,1] view, float[5] sub, float gain, float[3,5] table, float[3,5] index_2,
     float[5] rope> {
        a = Mul(x, view)
        r = Mul(a, rope)
        b = Add(r, sub)
        c = Mul(b, gain)
        d = Mul(c, table)
        e = Sin(d)
        y = Add(e, index_2)
    }"""
FOLDED_FROM = {
    "view": "['layers.0.scale', 'val_3']",
    "sub": "['mean', 'val_4']",
    "index_2": "['layers.0.index', 'val_5']",
    "a": "['layers.0.scale']",
}


def exported(*, has_signature: bool) -> Parameters:
    """As torch.export writes what its optimizer computed once, and the parameters' names."""
    model = model_of(FOLDED)
    if has_signature:
        names = ("layers.0.scale", "gain", "table")
        rows = [f"p_{name}: PARAMETER target='{name}'" for name in names]
        entry = model.graph.metadata_props.add(key=SIGNATURE)
        entry.value = "\n# inputs\n" + "\n".join([*rows, "b_mean: BUFFER target='mean'"])
    for name, origin in FOLDED_FROM.items():
        value = model.graph.value_info.add(name=name)
        value.metadata_props.add(key="pkg.onnxscript.optimizer.folded_from", value=origin)
    return parameters(build(prepare(ModelFile("<text>", model, 0)), Request()).graph)


SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def test_what_the_exporter_computed_of_a_parameter_is_trained() -> None:
    """A view of a scale, but no difference of buffers; a parameter of one element, and a table.

    `rope` is not in the list of parameters, and nobody computed it.
    """
    found = exported(has_signature=True)
    assert found.trained == ("view", "gain", "table")
    assert set(found.buffers) == {"sub", "index_2", "rope"}


@pytest.mark.parametrize(
    ("call", "trained"), [("linear.default", ("bias",)), ("add.Tensor", ("val_4", "bias"))]
)
def test_a_product_that_the_exporter_computed_is_not_trained(
    call: str, trained: tuple[str, ...]
) -> None:
    """Of a table and the weight of a linear layer, whose bias the file adds."""
    text = """agraph () => (float[3,5] y) <float[3,5] val_4, float[5] bias> {
        y = Add(val_4, bias)
    }"""
    model = model_of(text)
    node = model.graph.node[0]
    target = f"call_function[target=torch.ops.aten.{call}](args = (%table, %p_m_weight, %p_m_bias))"
    node.metadata_props.add(key="pkg.torch.onnx.fx_node", value=f"%linear : {target}")
    names = "\n# inputs\np_m_weight: PARAMETER target='m.weight'\np_bias: PARAMETER target='bias'"
    model.graph.metadata_props.add(key=SIGNATURE, value=names)
    value = model.graph.value_info.add(name="val_4")
    key = "pkg.onnxscript.optimizer.folded_from"
    value.metadata_props.add(key=key, value="['table', 'm.weight']")
    found = parameters(build(prepare(ModelFile("<text>", model, 0)), Request()).graph)
    assert found.trained == trained


def test_without_the_names_of_parameters_generated_names_are_none() -> None:
    assert exported(has_signature=False).trained == ("rope",)


@pytest.mark.parametrize(
    ("name", "operator", "is_trained"),
    [
        ("select_3", "Mul", True),
        ("exp", "Mul", True),
        ("val_3", "Mul", False),
        ("sqrt", "Mul", False),
        ("select_3", "Add", False),
    ],
)
def test_a_number_that_was_computed_of_stored_ones_and_scales_is_trained(
    name: str, operator: str, *, is_trained: bool
) -> None:
    """The share of a weighed sum, ``w[0] * x``, and a temperature: ``log_scale.exp()``."""
    text = f"agraph (float[2,5] x) => (float[2,5] y) <float {name}> {{ y = {operator}({name}, x) }}"
    found = parameters(graph_of(text))
    assert found.trained == (name,) * is_trained


def test_the_weight_slot_of_a_layer_has_parameters_whatever_their_name() -> None:
    assert named("onnx::MatMul_7", "y = MatMul(x, w)").trained == ("onnx::MatMul_7",)


@pytest.mark.parametrize(
    "way",
    [
        "a = Add(x, m)",
        "t = Reshape(m, s)  a = Add(t, x)",
        "c = Cast <to = 1> (m)  b = Add(x, c)  a = Identity(b)",
    ],
)
def test_a_mask_of_scores_is_not_trained(way: str) -> None:
    """Tensors added right before a softmax, over two axes."""
    text = f"""
        agraph (float[2,5,5] x) => (float[2,5,5] y) <float[1,5,5] m, int64[2] s = {{5, 5}}> {{
            {way}
            y = Softmax <axis = -1> (a)
        }}"""
    found = of(text)
    assert (found.trained, found.buffers) == ((), ("m",))


@pytest.mark.parametrize(
    ("shape", "rest"),
    [
        ("1,5", "a = Add(x, m)  y = Softmax <axis = -1> (a)"),  # a bias of the last layer
        ("5,5", "a = Add(x, m)  e = Exp(a)  y = Softmax <axis = -1> (e)"),
        ("5,5", "a = Mul(x, m)  y = Softmax <axis = -1> (a)"),
        ("5,5", "y = Add(x, m)"),
    ],
)
def test_a_tensor_that_does_not_mask_scores_is_trained(shape: str, rest: str) -> None:
    """A vector, a sum with another reader, a factor, and a tensor that no softmax reads."""
    found = of(f"agraph (float[2,5,5] x) => (float[2,5,5] y) <float[{shape}] m> {{ {rest} }}")
    assert found.trained == ("m",)


@pytest.mark.parametrize("end", ["Sin", "Cos"])
@pytest.mark.parametrize(
    "way", ["a = Mul(x, f)", "m = Reshape(f, s)  b = Mul(m, x)  a = Concat <axis = 0> (b, b)"]
)
def test_a_table_of_frequencies_is_not_trained(way: str, end: str) -> None:
    text = f"""
        agraph (float[5,1] x) => (float y) <float[7] f, int64[2] s = {{1, 7}}> {{
            {way}
            y = {end}(a)
        }}"""
    assert of(text).trained == ()


def test_a_network_that_takes_the_sine_of_its_layers_is_trained() -> None:
    """A tensor is not a table of angles behind a curve, a sum or a layer's own slot."""
    found = of("""
        agraph (float[5,3] x) => (float[5,3] y) <float[3,3] w, float[3] g, float[3] b> {
            h = MatMul(x, w)
            k = Mul(h, g)
            a = Add(k, b)
            y = Sin(a)
        }""")
    assert found.trained == ("w", "g", "b")


@pytest.mark.parametrize("way", ["g = Add(grid, x)", "m = Mul(x, grid) g = Sub(m, x)"])
def test_a_grid_that_arithmetic_moves_is_not_trained(way: str) -> None:
    text = f"""
        agraph (float[1,3,5,2] x, float[1,2,7,7] image) => (float[1,2,3,5] y)
        <float[1,3,5,2] grid> {{ {way} y = GridSample(image, g) }}"""
    assert parameters(graph_of(text)).trained == ()
    sampled = text.replace("GridSample(image, g)", "GridSample(g, image)")
    assert parameters(graph_of(sampled)).trained == ("grid",)


def test_vectors_of_spectral_norm_are_not_trained() -> None:
    """By their names, beside the weight that they divide."""
    text = """
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] weight_orig, float[3] weight_u> {
            v = MatMul(weight_u, weight_orig)
            w = Div(weight_orig, v)
            y = MatMul(x, w)
        }"""
    assert parameters(graph_of(text)).trained == ("weight_orig",)
    renamed = text.replace("weight_orig", "weight")
    assert parameters(graph_of(renamed)).trained == ("weight_u", "weight")


@pytest.mark.parametrize(
    "function", ["Clip", "Neg", "Relu", "Sigmoid", "Softmax", "Softplus", "Tanh"]
)
def test_a_function_of_a_parameter_alone_trains_it(function: str) -> None:
    text = f"""
        agraph (float[2,3] x) => (float[2,3] y) <float[3] gate> {{
            g = {function}(gate)
            y = Mul(x, g)
        }}"""
    assert parameters(graph_of(text)).trained == ("gate",)


def test_readers_are_followed_up_to_a_limit() -> None:
    """The search for a sine ends after 64 nodes, so that the weight is not a table."""
    moves = "  ".join(f"h{n + 1} = Identity(h{n})" for n in range(70))
    found = of(f"""
        agraph (float[5] x) => (float[5] y) <float[5] w> {{
            h0 = Mul(x, w)
            {moves}
            y = Sin(h70)
        }}""")
    assert found.trained == ("w",)


@pytest.mark.parametrize(("num_others", "trained"), [(60, ()), (64, ("w",)), (90, ("w",))])
def test_of_many_readers_the_first_are_looked_at(num_others: int, trained: tuple[str, ...]) -> None:
    """The sine is the reader after the others, none of which leads on."""
    others = "  ".join(f"a{n} = Exp(h)" for n in range(num_others))
    found = of(f"""
        agraph (float[5] x) => (float[5] y) <float[5] w> {{
            h = Mul(x, w)
            {others}
            y = Sin(h)
        }}""")
    assert found.trained == trained


def split_and_joined(number: int) -> str:
    """Blocks as of a shuffle: a chain of layout operators, each of which may read a parameter."""
    blocks = "  ".join(
        f"p{n}, q{n} = Split<axis = 0, num_outputs = 2>(h{n})"
        f"  h{n + 1} = Concat<axis = 0>(q{n}, p{n})"
        for n in range(number)
    )
    return f"""
        agraph (float[6] x) => (float[6] y) <float[6] w> {{
            h0 = Mul(x, w)
            {blocks}
            y = Relu(h{number})
        }}"""


def read_by_all(number: int) -> str:
    """One weight that every node adds, far from anything that would make it a table."""
    sums = "  ".join(f"h{n + 1} = Add(h{n}, w)" for n in range(number))
    return f"""
        agraph (float[5] h0) => (float[5] y) <float[5] w> {{ {sums} y = Relu(h{number}) }}"""


def moved(number: int) -> str:
    """A bias at the end of a chain of copies, which many nodes add."""
    moves = "  ".join(f"w{n + 1} = Identity(w{n})" for n in range(number))
    sums = "  ".join(f"h{n + 1} = Add(h{n}, w{number})" for n in range(number))
    return f"""
        agraph (float[5] h0) => (float[5] y) <float[5] w0> {{
            {moves}
            {sums}
            y = Relu(h{number})
        }}"""


@pytest.mark.parametrize("text", [split_and_joined, read_by_all, moved])
def test_a_chain_that_reads_parameters_costs_its_length(text: Callable[[int], str]) -> None:
    few, many = (graph_of(text(number)) for number in (100, 400))
    calls_of_many = num_calls(lambda: parameters(many))
    assert len(parameters(few).trained) == len(parameters(many).trained) == 1
    assert calls_of_many <= 4.8 * num_calls(lambda: parameters(few))


def test_a_weight_is_found_again_for_another_operator() -> None:
    """A Mul of a value without a norm leaves the folded scale; that of a norm trains it."""
    graph = graph_of("""
        agraph (float[2,5] x) => (float[2,5] y, float[2,5] z)
        <float[5] add_4, float eps = {0.001}, float two = {2}, int64[1] last = {-1}> {
            t = Identity(add_4)
            z = Mul(x, t)
            q = Pow(x, two)
            m = ReduceMean(q, last)
            e = Add(m, eps)
            s = Sqrt(e)
            n = Div(x, s)
            y = Mul(n, t)
        }""")
    assert "add_4" in parameters(graph).trained


SCALED = """
    agraph (float[2,5] x) => (float[2,5] y)
    <float[5] add_4, float eps = {{0.001}}, float two = {{2}}, int64[1] last = {{-1}}> {{
        q = Pow(x, two)
        m = ReduceMean(q, last)
        e = Add(m, eps)
        s = Sqrt(e)
        {normed}
        y = Mul({operands})
    }}"""


@pytest.mark.parametrize("operands", ["n, add_4", "add_4, n"])
@pytest.mark.parametrize("normed", ["r = Reciprocal(s)  n = Mul(x, r)", "n = Div(x, s)"])
def test_a_computed_scale_of_a_normalization_is_a_parameter(normed: str, operands: str) -> None:
    """Gemma scales by 1 + w: the sum is folded, and torch.export names it after its operator."""
    text = SCALED.format(normed=normed, operands=operands)
    assert parameters(graph_of(text)).trained == ("add_4",)


@pytest.mark.parametrize("normed", ["n = Div(x, e)", "n = Mul(x, e)", "n = Neg(s)", "n = Relu(x)"])
def test_a_list_with_the_name_of_a_scale_is_not_one_elsewhere(normed: str) -> None:
    text = SCALED.format(normed=normed, operands="n, add_4")
    assert parameters(graph_of(text)).trained == ()


TABLE = """
    agraph (float[2,3] x) => (float[2,5] y) <float[3,5] layers_table, float[5] bias> {
        m = MatMul(x, layers_table)
        y = Add(m, bias)
    }"""


@pytest.mark.parametrize(
    ("word", "trained"),
    [
        ("%b_layers_table", ("bias",)),
        ("%p_layers_table", ("layers_table", "bias")),
        ("%b_layers_table_2", ("layers_table", "bias")),
    ],
)
def test_a_buffer_that_torch_export_names_is_not_trained(
    word: str, trained: tuple[str, ...]
) -> None:
    model = model_of(TABLE)
    text = f"%m : call_function[target=torch.ops.aten.matmul.default](args = (%x, {word}))"
    model.graph.node[0].metadata_props.add(key="pkg.torch.onnx.fx_node", value=text)
    found = parameters(build(prepare(ModelFile("<text>", model, 0)), Request()).graph)
    assert found.trained == trained


@pytest.mark.parametrize(("name", "trained"), [("table", True), ("val_7", False)])
def test_an_embedding_that_is_normalized_whole_is_a_parameter(name: str, trained: bool) -> None:
    """A name that an exporter generates is that of a constant; scales have any name."""
    found = of(f"""
        agraph (float[2,5] x) => (float[2,7] y)
        <float[7,5] {name}, float[5] scale, float[5] val_3> {{
            whole = LayerNormalization({name}, scale, val_3)
            columns = Transpose <perm = [1, 0]> (whole)
            y = MatMul(x, columns)
        }}""")
    assert found.trained == ((name,) if trained else ()) + ("scale", "val_3")
