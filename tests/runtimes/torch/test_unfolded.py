"""What exporters merged into other nodes or computed, put back: by hand, with distinct primes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from calls import num_calls
from graphs import graph_of
from runtimes.torch.training_steps import happenings, recipe_of, sizes

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.runtimes.torch.unfolded import unfolded
from onnxmem.runtimes.torch.views import find_views

FX = "pkg.torch.onnx.fx_node"
HIERARCHY = "pkg.torch.onnx.class_hierarchy"
SCOPES = "pkg.torch.onnx.name_scopes"
CONV = """
    agraph (float[2,3,11] x) => (float[2,5,{length}] y) <float[5,3,3] {weight}> {{
        y = Conv <kernel_shape = [3], pads = [{pads}]> (x, {weight})
    }}"""


def call(arguments: str) -> str:
    return f"%c : call_function[target=torch.ops.aten.x](args = ({arguments}), kwargs = {{}})"


def with_metadata(graph: Graph, metadata: Mapping[str, str]) -> Graph:
    nodes = tuple(replace(node, metadata=metadata) for node in graph.nodes)
    return replace(graph, nodes=nodes)


NORMED = call("%conv1d, %p_bn_weight, %p_bn_bias").replace("aten.x", "aten.batch_norm.default")


def conv(pads: str, length: int, arguments: str = "", weight: str = "kernel") -> TrainingMemory:
    graph = graph_of(CONV.format(pads=pads, length=length, weight=weight))
    graph = with_metadata(graph, {FX: call(arguments)} if arguments else {})
    return training_memory(graph, recipe_of())


def padded_bytes(found: TrainingMemory) -> int:
    return next((sum(s) for label, s in sizes(found).items() if "Pad" in label), 0)


@pytest.mark.parametrize(
    ("pads", "length", "arguments", "padded"),
    [
        ("2, 0", 11, "", 13),
        ("2, 2", 13, "", 0),
        ("2, 2", 13, "%x, %p_m_weight, None, [1], [2]", 0),
        ("2, 2", 13, "%pad, %p_m_weight", 15),
        ("3, 1", 13, "%pad_4, %p_m_weight, %p_m_bias, [1], [1]", 13),
        ("2, 2", 13, "%constant_pad_nd, %p_m_weight, None, [1], [0]", 15),
        ("2, 2", 13, "%padded, %p_m_weight", 0),
        ("0, 0", 9, "%pad, %p_m_weight", 0),
    ],
)
def test_a_padding_that_was_merged_into_a_convolution_is_saved(
    pads: str, length: int, arguments: str, padded: int
) -> None:
    """What the call pads itself, its fifth argument, is not copied."""
    found = conv(pads, length, arguments)
    assert padded_bytes(found) == 4 * 2 * 3 * padded
    assert [each.code for each in found.findings] == ["padding_put_back"] * (padded > 0)


@pytest.mark.parametrize(("pads", "length", "padded"), [("2, 1", 12, 14), ("2, 2", 13, 0)])
def test_a_padding_is_saved_where_a_batch_normalization_was_folded_behind_it(
    pads: str, length: int, padded: int
) -> None:
    """Then the node has the call of that, and uneven pads tell of the padding."""
    graph = graph_of(CONV.format(pads=pads, length=length, weight="kernel"))
    found = training_memory(with_metadata(graph, {FX: NORMED}), recipe_of())
    assert padded_bytes(found) == 4 * 2 * 3 * padded


@pytest.mark.parametrize(
    ("pads", "length", "padded"), [("2, 1", 12, 14), ("2, 2", 13, 15), ("0, 0", 9, 11)]
)
def test_a_node_names_the_rule_that_merged_its_padding(pads: str, length: int, padded: int) -> None:
    """A padding by nothing is a copy too."""
    graph = graph_of(CONV.format(pads=pads, length=length, weight="kernel"))
    rules = "FuseBatchNormIntoConv, RemoveOptionalBiasFromConv, FuseConvPad"
    metadata = {FX: NORMED, "pkg.onnxscript.rewriter.rule_name": rules}
    found = training_memory(with_metadata(graph, metadata), recipe_of())
    assert padded_bytes(found) == 4 * 2 * 3 * padded


@pytest.mark.parametrize(
    ("pads", "arguments"),
    [
        ("1", ""),
        ("1, 1, 1", ""),
        ("1, 1, 1, 1, 1, 1", ""),
        ("2, 2", "%pad, %p_m_weight, None, [1], [3]"),
        ("2, 2", "%pad, %p_m_weight, None, [1], [53]"),
        ("2, 1", "%pad, %p_m_weight, None, [1], [2]"),
        ("2, 2", "%pad, %p_m_weight, None, [1], [-1]"),
    ],
)
def test_pads_that_no_padding_was_merged_into_are_left(pads: str, arguments: str) -> None:
    """Not a pair for each axis, or less than what the call pads itself."""
    graph = graph_of(CONV.format(pads="1, 1", length=11, weight="kernel"))
    attributes = {"pads": tuple(int(pad) for pad in pads.split(","))}
    metadata = {FX: call(arguments)} if arguments else {}
    nodes = tuple(
        replace(node, attributes={**node.attributes, **attributes}, metadata=metadata)
        for node in graph.nodes
    )
    graph = replace(graph, nodes=nodes)
    assert unfolded(graph).graph is graph


NORMED_BYTES = 4 * (5 * 3 * 3 + 5)


@pytest.mark.parametrize(
    ("weight", "arguments", "computed"),
    [
        ("mul_4", "%x, %mul_4, %p_m_bias", True),
        ("mul", "", True),
        ("kernel", "%x, %p_m_weight", False),
        ("multiple", "", False),
    ],
)
def test_a_weight_that_the_network_computes_has_two_parameters(
    weight: str, arguments: str, computed: bool
) -> None:
    """A direction of the weight's shape and a length for each of 5 rows; it saves 5 norms."""
    found = conv("0, 0", 9, arguments, weight)
    assert found.weight_bytes == (NORMED_BYTES if computed else 4 * 5 * 3 * 3)
    assert any(4 * 5 in each for each in sizes(found).values()) == computed
    assert [each.code for each in found.findings] == ["weights_computed"] * computed


def test_a_linear_layer_has_a_length_for_each_column_of_its_transposed_weight() -> None:
    graph = graph_of("""
        agraph (float[2,3] x) => (float[2,5] y) <float[3,5] val_7> { y = MatMul(x, val_7) }""")
    found = training_memory(with_metadata(graph, {FX: call("%x, %mul_1, None")}), recipe_of())
    assert found.weight_bytes == 4 * (3 * 5 + 5)


def test_a_weight_over_its_norm_is_computed_of_one_parameter() -> None:
    found = conv("0, 0", 9, "%x, %div_2, None", "div_2")
    assert found.weight_bytes == 4 * 5 * 3 * 3
    assert "+gradient of div_2_orig" in happenings(found, Phase.BACKWARD)


SHARES = """
    agraph (float[2,3] x) => (float[2,3] y) <float[3] share, float[{dims}] {name}> {{
        a = Mul(x, share)
        b = Mul(x, {name})
        y = Add(a, b)
    }}"""


@pytest.mark.parametrize(
    ("name", "dims", "scopes", "inputs"),
    [
        ("sub_3", "3", "['', 'm', 'mul']", ["m.share"]),
        ("sub_3", "1,3", "['', 'm', 'mul']", []),
        ("sub_3", "3", "['', 'other', 'mul']", []),
        ("cos_3", "3", "['', 'm', 'mul']", []),
        ("sigmoid", "1,3", "['', 'other', 'mul']", ["sigmoid of"]),
    ],
)
def test_a_function_of_a_parameter(name: str, dims: str, scopes: str, inputs: list[str]) -> None:
    """``x * (1 - share)`` of a module's own parameter; a sigmoid is of a parameter anyway."""
    graph = with_metadata(graph_of(SHARES.format(name=name, dims=dims)), {SCOPES: scopes})
    share = replace(graph.tensors["share"], name="m.share")
    first = replace(graph.nodes[0], inputs=("x", "m.share"))
    tensors = {**graph.tensors, "m.share": share}
    graph = replace(graph, nodes=(first, *graph.nodes[1:]), tensors=tensors)
    nodes = unfolded(graph).graph.nodes
    assert [node.inputs[0] for node in nodes if name in node.writes] == inputs


MODULE = "a{n} = Add(h{n}, {name}_share) h{m} = Mul(a{n}, {name}_sub_1)"


def modules_with_folded_operands(num_modules: int) -> Graph:
    """Each module adds its own parameter, and multiplies by ``1 - share`` of it."""
    names = [f"m{index}" for index in range(num_modules)]
    text = f"""
        agraph (float[2,3] h0) => (float[2,3] h{num_modules})
        <{", ".join(f"float[3] {name}_share, float[3] {name}_sub_1" for name in names)}> {{
            {" ".join(MODULE.format(name=name, n=n, m=n + 1) for n, name in enumerate(names))}
        }}"""
    graph = graph_of(text)
    renamed = {
        name: name.replace("_sub", "/sub").replace("_share", ".share") for name in graph.tensors
    }
    nodes = tuple(
        replace(
            node,
            inputs=tuple(renamed[name] for name in node.inputs),
            metadata={SCOPES: f"['', 'm{index // 2}', 'x']"},
        )
        for index, node in enumerate(graph.nodes)
    )
    tensors = {
        renamed[name]: replace(each, name=renamed[name]) for name, each in graph.tensors.items()
    }
    return replace(graph, nodes=nodes, tensors=tensors)


def test_a_product_of_a_table_is_computed_in_every_step() -> None:
    """Of a table and the weight of a linear layer, which the file does not have."""
    text = """agraph (float[3,5] x) => (float[3,5] y) <float[3,5] val_4, float[5] bias> {
        h = Add(val_4, bias)
        y = Mul(x, h)
    }"""
    target = call("%table, %p_weight, %p_bias").replace("aten.x", "aten.linear.default")
    found = training_memory(with_metadata(graph_of(text), {FX: target}), recipe_of())
    assert found.weight_bytes == 4 * (5 + 5)
    assert found.gradient_bytes == 4 * (5 + 5)
    assert sizes(found)["val_4"] == [4 * 3 * 5]


def test_many_functions_of_parameters_cost_their_number() -> None:
    few, many = (modules_with_folded_operands(number) for number in (120, 480))
    assert len(unfolded(many).graph.nodes) == 1.5 * len(many.nodes)
    assert num_calls(lambda: unfolded(many)) <= 4.8 * num_calls(lambda: unfolded(few))


@pytest.mark.parametrize(
    ("arguments", "is_cut"),
    [("%w, %detach_2", True), ("%w, %exp", False), ("%w, %detached", False), ("%detach", False)],
)
def test_no_gradient_passes_through_a_detached_operand(arguments: str, is_cut: bool) -> None:
    """``v`` has a gradient by the product, and by the sum only where the sum's call has ``e``."""
    graph = graph_of("""
        agraph (float[2,3] x) => (float[2,3] y) <float[2,3] m_v> {
            w = Mul(x, m_v)
            e = Exp(w)
            y = Add(w, e)
        }""")
    last = replace(graph.nodes[-1], metadata={FX: call(arguments)})
    graph = replace(graph, nodes=(*graph.nodes[:-1], last))
    found = training_memory(graph, recipe_of())
    assert ("+e" in happenings(found, Phase.FORWARD)) is True
    assert (found.saved_activation_bytes == 4 * 2 * 3 * 1) == is_cut


@pytest.mark.parametrize("arguments", ["", "%x, %m_v, %detach"])
def test_an_operand_that_is_left_out_is_passed_over(arguments: str) -> None:
    graph = graph_of("agraph (float[2,3] x) => (float[2,3] y) <float[2,3] m_v> { y = Mul(x, m_v) }")
    (node,) = graph.nodes
    longer = replace(node, inputs=(*node.inputs, ""), metadata={FX: call(arguments)})
    assert unfolded(replace(graph, nodes=(longer,))).graph.nodes == (longer,)


VIEWED = """
    agraph (float[2,3,5] x) => (float[2,15] y, float[2,5,3] z)
        <float[5,7] v, float[7,5] w, int64[2] s = {{2, 15}}> {{
        e = Mul(x, x)
        t = {layout}
        r = Reshape(t, s)
        y = Exp(r)
        z = Sqrt(t)
    }}"""


@pytest.mark.parametrize(
    ("layout", "copies"), [("Transpose <perm = [0, 2, 1]> (e)", 1), ("Neg(e)", 0)]
)
def test_contiguous_copies_once_what_is_not_in_row_major_order(layout: str, copies: int) -> None:
    text = VIEWED.format(layout=layout).replace(
        "float[2,5,3] z", "float[2,5,3] z" if copies else "float[2,3,5] z"
    )
    graph = graph_of(text)
    calls = {"Reshape": "aten.view.default", "Sqrt": "aten.sqrt.default"}
    nodes = tuple(
        replace(
            node,
            metadata={FX: f"[target=torch.ops.{calls[node.onnx_op]}](args = (%clone_2), kwargs"},
        )
        if node.onnx_op in calls
        else node
        for node in graph.nodes
    )
    whole = unfolded(replace(graph, nodes=nodes)).graph
    assert [node.op_type for node in whole.nodes].count("contiguous") == 1
    assert {node.inputs[0] for node in whole.nodes if node.onnx_op in calls} == {"clone_2 of t"}
    views = find_views(whole, in_place=False, like_query=frozenset())
    assert (views["clone_2 of t"].storage == "clone_2 of t") is bool(copies)
    assert views["r"].storage == views["clone_2 of t"].storage


def test_a_clone_that_no_view_reads_is_not_a_copy() -> None:
    """It is what torch.export has for a Dropout of ratio 0."""
    graph = graph_of("agraph (float[2,3] x) => (float[2,3] y) { t = Neg(x)  y = Exp(t) }")
    call_of_exp = "[target=torch.ops.aten.exp.default](args = (%clone), kwargs"
    graph = replace(
        graph, nodes=(graph.nodes[0], replace(graph.nodes[1], metadata={FX: call_of_exp}))
    )
    assert unfolded(graph).graph is graph


def test_the_copy_that_reshape_made_in_a_trace_is_made_by_the_strides_of_a_step() -> None:
    """It is ``clone`` and ``_unsafe_view``; ``contiguous().view()`` is ``clone`` and ``view``."""
    graph = graph_of(VIEWED.format(layout="Transpose <perm = [0, 2, 1]> (e)"))
    text = "[target=torch.ops.aten.{}.default](args = (%clone_2), kwargs"
    for call_of_reshape, count in (("view", 1), ("_unsafe_view", 0)):
        metadata = {FX: text.format(call_of_reshape)}
        nodes = tuple(
            replace(node, metadata=metadata) if node.onnx_op == "Reshape" else node
            for node in graph.nodes
        )
        found = unfolded(replace(graph, nodes=nodes)).graph.nodes
        assert [node.op_type for node in found].count("contiguous") == count


def test_a_clone_with_a_node_is_contiguous_by_its_call() -> None:
    graph = graph_of("agraph (float[2,3] x) => (float[2,3] y) { t = Identity(x)  y = Exp(t) }")
    text = "[target=torch.ops.aten.clone.default](args = (%x,), kwargs = {{{}}})"
    for kwargs, operator in (
        ("memory_format: torch.contiguous_format", "contiguous"),
        ("", "Identity"),
    ):
        clone = replace(graph.nodes[0], metadata={FX: text.format(kwargs)})
        found = unfolded(replace(graph, nodes=(clone, graph.nodes[1]))).graph
        assert found.nodes[0].op_type == operator


@pytest.mark.parametrize("source", ["%mul_3", "%div_3"])
@pytest.mark.parametrize("is_parametrized", [False, True])
def test_a_parametrized_weight_is_freed_after_its_layer(
    source: str,
    is_parametrized: bool,
) -> None:
    """A hook assigns it to the module, where it stays until the next step."""
    graph = graph_of(CONV.format(pads="1, 1", length=11, weight="kernel"))
    layer = (
        "torch.nn.utils.parametrize.ParametrizedConv1d" if is_parametrized else "torch.nn.Conv1d"
    )
    metadata = {FX: call(f"%x, {source}"), HIERARCHY: f"['Net', '{layer}', 'aten.conv1d']"}
    found = training_memory(with_metadata(graph, metadata), recipe_of())
    kept = [each for each in sizes(found) if each.endswith("of the last step")]
    assert len(kept) == (0 if is_parametrized else 1)


TWICE = """
    agraph (float[2,7] x) => (float[2,7] y)
    <float[7,5] val_0, float[5,7] val_2, float[7,5] val_4, float[{dims}] {last}> {{
        a = MatMul(x, val_0)
        b = MatMul(a, val_2)
        c = MatMul(b, val_4)
        y = MatMul(c, {last})
    }}"""


def twice(
    names: tuple[str, str, str, str], *, target: str = "linear.default", last: str = "val_6"
) -> TrainingMemory:
    """Two layers that run twice, their weights by the names of torch.export."""
    graph = graph_of(TWICE.format(dims="5,7", last=last))
    text = "%l : call_function[target=torch.ops.aten.{}](args = (%x_1, %{}, None), kwargs = {{}})"
    nodes = tuple(
        replace(node, metadata={FX: text.format(target, name)})
        for node, name in zip(graph.nodes, names, strict=True)
    )
    return training_memory(replace(graph, nodes=nodes), recipe_of())


@pytest.mark.parametrize(
    ("names", "count"),
    [
        (("p_a_weight", "p_b_weight", "p_a_weight", "p_b_weight"), 2),
        (("p_a_weight", "p_b_weight", "p_c_weight", "p_b_weight"), 3),
        (("p_a_weight", "p_b_weight", "p_c_weight", "p_d_weight"), 4),
        (("p_a_weight",) * 4, 1),
        (("t", "t", "t_1", "t_1"), 4),
    ],
)
def test_a_layer_that_runs_twice_has_one_weight(
    names: tuple[str, str, str, str], count: int
) -> None:
    """torch.export writes a transposed copy for each call; the gradients of all are added."""
    found = twice(names)
    assert (found.weight_bytes, found.gradient_bytes) == (4 * 5 * 7 * count,) * 2


def test_only_the_weights_of_linear_layers_are_transposed_copies() -> None:
    names = ("p_a_weight", "p_b_weight", "p_a_weight", "p_b_weight")
    assert twice(names, target="matmul.default").weight_bytes == 4 * 4 * 5 * 7


def test_a_copy_shares_the_storage_of_the_parameter_that_it_is_named_after() -> None:
    """A matrix of embeddings that is the last layer's too; one of another shape is another."""
    graph = graph_of("""
        agraph (int64[2] i) => (float[2,11] y)
        <float[11,7] m_table, float[7,11] val_9, float[7,3] val_11> {
            x = Gather(m_table, i)
            y = MatMul(x, val_9)
            z = MatMul(x, val_11)
        }""")
    text = "[target=torch.ops.aten.linear.default](args = (%x, %p_m_table), kwargs = {})"
    metadata = [{}, {FX: text}, {FX: text}]
    pairs = zip(graph.nodes, metadata, strict=True)
    graph = replace(graph, nodes=tuple(replace(n, metadata=m) for n, m in pairs))
    found = unfolded(graph).graph.tensors
    assert found["val_9"].storage_key == found["m_table"].storage_key
    assert found["val_11"].storage is None
