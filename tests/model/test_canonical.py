"""Nodes that are whole, one way to write a model, local functions written out."""

import time

import onnx
import onnx.parser
import onnx.printer
import pytest
from graphs import graph_of, model_of
from onnx.helper import make_function, make_graph, make_model, make_node, make_opsetid
from onnx.helper import make_tensor_value_info as value_info

import onnxmem
from onnxmem import analyze
from onnxmem.errors import GraphError
from onnxmem.model.bounds import Bounds
from onnxmem.model.building import Prepared, prepare
from onnxmem.model.canonical import expanded_num_nodes, with_functions_inlined
from onnxmem.model.files import ModelFile
from onnxmem.units import plural


def prepared(model: onnx.ModelProto) -> Prepared:
    return prepare(ModelFile("<proto>", model, 0))


def refusal(model: onnx.ModelProto) -> str:
    with pytest.raises(GraphError) as refused:
        prepared(model)
    return str(refused.value)


LOOP = """agraph (int64 trips, bool go, float[5] x) => (float[5] y) {
    [odd] y = Loop (trips, go, x) <body = b (int64 i, bool c, float[5] v)
        => (bool d, float[5] w) { d = Identity(c)  w = Relu(v) }> }"""
IF = """agraph (bool c, float[5] x) => (float[5] y) { [odd] y = If (c) <
    then_branch = t () => (float[5] o) { o = Relu(x) },
    else_branch = e () => (float[5] p) { p = Neg(x) }> }"""
SCAN = """agraph (float[3,5] x) => (float[3,5] y) { [odd] y = Scan <num_scan_inputs = 1,
    body = b (float[5] v) => (float[5] w) { w = Relu(v) }> (x) }"""


def without(text: str, attribute: str) -> onnx.ModelProto:
    model = model_of(text)
    node = model.graph.node[0]
    retained = [a for a in node.attribute if a.name != attribute]
    del node.attribute[:]
    node.attribute.extend(retained)
    return model


@pytest.mark.parametrize(
    ("text", "attribute", "message"),
    [
        (LOOP, "body", "node 'odd' has no subgraph body, which Loop requires"),
        (SCAN, "body", "node 'odd' has no subgraph body, which Scan requires"),
        (IF, "then_branch", "node 'odd' has no subgraph then_branch, which If requires"),
        (IF, "else_branch", "node 'odd' has no subgraph else_branch, which If requires"),
    ],
)
def test_a_node_without_its_subgraph_is_rejected(text: str, attribute: str, message: str) -> None:
    assert refusal(without(text, attribute)) == f"{message}; export the model again"


def test_a_graph_in_an_attribute_of_another_type_is_ignored() -> None:
    model = without(LOOP, "body")
    model.graph.node[0].attribute.add(name="body", type=onnx.AttributeProto.INT, i=2)
    assert refusal(model) == (
        "node 'odd' has no subgraph body, which Loop requires; export the model again"
    )


@pytest.mark.parametrize(
    ("side", "count", "least"), [("input", 2, 3), ("input", 0, 3), ("output", 1, 2)]
)
def test_the_body_of_a_loop_needs_its_carried_inputs_and_outputs(
    side: str, count: int, least: int
) -> None:
    model = model_of(LOOP)
    body = model.graph.node[0].attribute[0].g
    del getattr(body, side)[count:]
    message = f"node 'odd' has {plural(count, f'body {side}')}, but Loop requires {least}"
    assert refusal(model) == f"{message}; export the model again"


def test_complete_nodes_with_subgraphs_are_accepted() -> None:
    for text in (LOOP, IF, SCAN):
        assert prepared(model_of(text)).findings == ()


@pytest.mark.parametrize("op_type", ["Relu", "Constant", "Shape"])
def test_a_node_without_outputs_is_rejected(op_type: str) -> None:
    model = model_of("agraph (float[5] x) => (y) { y = Relu(x) }")
    inputs = [] if op_type == "Constant" else ["x"]
    model.graph.node.append(onnx.helper.make_node(op_type, inputs, [], name="odd"))
    assert refusal(model) == (
        f"node 'odd' has 0 outputs, but {op_type} requires 1; export the model again"
    )


def test_a_custom_node_can_have_no_output() -> None:
    text = '<ir_version: 10, opset_import: ["": 21, "own": 1]> agraph (float[5] x) => (y) {'
    model = model_of(f"{text} y = Relu(x) }}")
    model.graph.node.append(onnx.helper.make_node("Print", ["x"], [], domain="own"))
    assert prepared(model).findings == ()


def test_an_operator_can_have_only_unnamed_outputs() -> None:
    text = "agraph (float[2,3,5] x) => (y) <float[1,28,5] w, float[1,28,7] r> {"
    model = model_of(f"{text} a, y = LSTM <hidden_size = 7> (x, w, r) }}")
    del model.graph.node[0].output[0]
    assert prepared(model).findings == ()


def test_an_operator_missing_in_a_version_follows_its_newest_schema() -> None:
    model = model_of(
        '<ir_version: 8, opset_import: ["": 9]> agraph (float[2,5] x) => (y) {y = Relu(x)}'
    )
    model.graph.node.append(onnx.helper.make_node("LayerNormalization", ["x"], ["z"], name="odd"))
    assert refusal(model) == (
        "node 'odd' has 1 input, but LayerNormalization requires 2; export the model again"
    )


def test_an_operator_without_a_schema_is_not_checked() -> None:
    model = model_of("agraph (float[5] x) => (y) { y = Relu(x)  z = MadeUp() }")
    assert prepared(model).findings == ()


@pytest.mark.parametrize(
    ("node", "place"),
    [
        ('MatMul("", x)', "A"),
        ('MatMul(x, "")', "B"),
        ('Conv(x, "", x)', "W"),
        ('Resize(x, "", x)', "roi"),
        ('ConstantOfShape("")', "input"),
    ],
)
def test_a_required_operand_must_be_present(node: str, place: str) -> None:
    text = '<ir_version: 8, opset_import: ["": 11]> agraph (float[1,2,3] x) => (y) {'
    operator = node.partition("(")[0]
    assert refusal(model_of(f"{text} [odd] y = {node} }}")) == (
        f"node 'odd' has no input {place}, which {operator} requires; export the model again"
    )


def test_an_optional_operand_can_be_omitted() -> None:
    text = "agraph (float[5] x, float low) => (y, z) {"
    model = model_of(f'{text} y = Clip(x, "", low)  z = Resize(x, "", low) }}')
    assert prepared(model).findings == ()


def normalized_model(text: str) -> Prepared:
    return prepare(ModelFile("<text>", model_of(text), 0))


def test_the_domain_of_onnx_has_two_names_and_one_meaning() -> None:
    """Records are those of the imported version, whichever name imports it."""
    text = "agraph (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
    plain = model_of('<ir_version: 7, opset_import: ["" : 11]>' + text)
    alias = onnx.ModelProto()
    alias.CopyFrom(plain)
    alias.opset_import[0].domain = "ai.onnx"
    alias.graph.node[0].domain = "ai.onnx"
    one, other = (prepare(ModelFile("<text>", model, 0)).proto for model in (plain, alias))
    assert one == other
    assert analyze(plain, train=True).training == analyze(alias, train=True).training


def test_a_file_without_a_version_gets_the_newest_with_a_warning() -> None:
    model = model_of("agraph (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    del model.opset_import[:]
    newest = onnx.defs.onnx_opset_version()
    findings = prepare(ModelFile("<text>", model, 0)).findings
    assert [(f.code, f.message) for f in findings] == [
        (
            "missing_opset",
            (f"the file has no opset version; {newest} is assumed, the newest that its nodes fit"),
        )
    ]


@pytest.mark.parametrize(
    ("node", "count", "least"),
    [
        ("y = Shape()", 0, 1),
        ("y = ConstantOfShape()", 0, 1),
        ("y = Conv(x)", 1, 2),
        ("y = Dropout()", 0, 1),
    ],
)
def test_a_node_without_a_required_input_is_rejected(node: str, count: int, least: int) -> None:
    operator = node.split()[2].split("(", maxsplit=1)[0]
    with pytest.raises(GraphError) as refused:
        normalized_model(f"agraph (float[1,2,3] x) => (y) {{ [odd] {node} }}")
    counted = plural(count, "input")
    assert str(refused.value) == (
        f"node 'odd' has {counted}, but {operator} requires {least}; export the model again"
    )


def test_an_operator_of_that_name_in_another_domain_needs_no_input() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    agraph (float[5] x) => (y) { a = own.Shape()
        b = own.If()
        c = own.ConstantOfShape()
        d = own.Loop()
        y = own.Dropout() }"""
    found = analyze(model_of(text), train=True)
    assert found.status == "partial"
    assert found.coverage.unknown_tensors == 5


def test_a_file_without_a_version_gets_one_valid_for_its_nodes() -> None:
    model = model_of("""<ir_version: 7, opset_import: ["": 11]> agraph (float[2,3] x) => (y) {
        a = Unsqueeze <axes = [0]> (x)  y = NoSuchThing(a) }""")
    del model.opset_import[:]
    normalized_model = prepare(ModelFile("<text>", model, 0))
    assert [(entry.domain, entry.version) for entry in normalized_model.proto.opset_import] == [
        ("", 12)
    ]
    assert "12 is assumed" in normalized_model.findings[0].message


def test_a_real_spectrum_is_one_sided() -> None:
    shapes = {
        sided: graph_of(f"""<ir_version: 8, opset_import: ["": 17]>
            agraph (float[2,64,1] x) => (y) <int64 step = {{8}}, int64 n = {{16}}> {{
            y = STFT {sided} (x, step, , n) }}""")
        .tensors["y"]
        .shape
        for sided in ("", "<onesided = 1>", "<onesided = 0>")
    }
    assert shapes == {
        "": (2, 7, 9, 2),
        "<onesided = 1>": (2, 7, 9, 2),
        "<onesided = 0>": (2, 7, 16, 2),
    }


def test_more_nodes_than_the_bound_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "agraph (float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }"
    monkeypatch.setattr("onnxmem.model.canonical.BOUNDS", Bounds(nodes=3))
    assert len(normalized_model(text).proto.graph.node) == 3
    monkeypatch.setattr("onnxmem.model.canonical.BOUNDS", Bounds(nodes=2))
    with pytest.raises(
        GraphError, match=r"has 3 nodes, over the limit of 2; raise ONNXMEM_MAX_NODES$"
    ):
        normalized_model(text)


HEADER = '<ir_version: 10, opset_import: ["": 21, "own": 1, "far": 1]>'
OWN = '<domain: "own", opset_import: ["": 21, "far": 1]>'
FAR = '<domain: "far", opset_import: ["": 21]>'


def model(main: str, *functions: str, header: str = HEADER) -> onnx.ModelProto:
    return onnx.parser.parse_model("\n".join((header, main, *functions)))


def lines(proto: onnx.ModelProto) -> list[str]:
    """The nodes of the inlined graph as text."""
    inlined = with_functions_inlined(proto)
    return [" ".join(onnx.printer.to_text(node).split()) for node in inlined.graph.node]


def inlining_refusal(proto: onnx.ModelProto) -> str:
    with pytest.raises(GraphError) as caught:
        with_functions_inlined(proto)
    return str(caught.value)


# What a call is worth


def test_a_model_without_functions_is_returned_as_it_is() -> None:
    proto = model("agraph (float[2] x) => (float[2] y) { y = Relu(x) }")
    assert with_functions_inlined(proto) is proto


def test_nested_functions_of_another_domain_are_inlined() -> None:
    proto = model(
        "agraph (float[2, 3] x) => (float[2, 3] y) { y = own.twice(x) }",
        OWN + "twice (x) => (y) { t = far.once(x)  y = far.once(t) }",
        FAR + "once (x) => (y) { t = Neg(x)  y = Relu(t) }",
    )
    assert expanded_num_nodes(proto) == 4
    assert [line.partition("= ")[2].split()[0] for line in lines(proto)] == "Neg Relu".split() * 2
    assert onnxmem.analyze(proto).activations.naive_bytes == 4 * 2 * 3 * 4


def test_the_outputs_of_a_call_and_its_function_are_one_tensor() -> None:
    proto = model(
        "agraph (float[5, 7] x) => (float[5, 7] y) { a = own.f(x)  y = Relu(a) }",
        OWN + "f (x) => (z) { t = Neg(x)  z = Abs(t) }",
    )
    analysis = onnxmem.analyze(proto)
    assert analysis.activations.naive_bytes == 3 * 5 * 7 * 4
    assert {"x", "a", "y"} < analysis.graph.tensors.keys()
    assert "z" not in analysis.graph.tensors


def test_an_attribute_reference_has_the_value_of_the_call() -> None:
    proto = model(
        "agraph (float[2, 3] x) => (float[4, 3] y, float[2, 6] z)"
        "{ y = own.f <axis = 0> (x)  z = own.f <axis = 1> (x) }",
        OWN + "f <axis> (x) => (y) { y = Concat <axis: int = @axis> (x, x) }",
    )
    assert lines(proto) == [
        "y = Concat <axis: int = 0> (x, x)",
        "z = Concat <axis: int = 1> (x, x)",
    ]


def test_an_omitted_attribute_has_the_default_of_the_function() -> None:
    proto = model(
        "agraph (float[2, 3] x) => (float[4, 3] y, float[2, 6] z)"
        "{ y = own.f <axis = 0> (x)  z = own.f (x) }",
        OWN + "f <axis: int = 1> (x) => (y) { y = Concat <axis: int = @axis> (x, x) }",
    )
    assert lines(proto) == [
        "y = Concat <axis: int = 0> (x, x)",
        "z = Concat <axis: int = 1> (x, x)",
    ]


def test_an_attribute_without_value_and_default_is_omitted() -> None:
    proto = model(
        "agraph (float[2, 3] x) => (float[2, 3] y) { y = own.f (x) }",
        OWN + "f <axis> (x) => (y) { y = Softmax <axis: int = @axis> (x) }",
    )
    assert lines(proto) == ["y = Softmax (x)"]


def test_an_omitted_input_of_a_call_is_omitted_inside() -> None:
    proto = model(
        "agraph (float[2] x) => (float[2] y) { y = own.f (x) }",
        OWN + "f (x, low) => (y) { y = Clip (x, low) }",
    )
    assert lines(proto) == ['y = Clip (x, "")']


def test_overloads_of_one_name_are_separate_functions() -> None:
    node = make_node("f", ["x"], ["a"], domain="own", overload="left")
    other = make_node("f", ["a"], ["y"], domain="own", overload="right")
    opsets = [make_opsetid("", 21), make_opsetid("own", 1)]
    bodies = {"left": ["Neg"], "right": ["Abs", "Relu"]}
    functions = [
        make_function(
            "own",
            "f",
            ["t0"],
            [f"t{len(ops)}"],
            [make_node(op, [f"t{i}"], [f"t{i + 1}"]) for i, op in enumerate(ops)],
            opsets,
            overload=overload,
        )
        for overload, ops in bodies.items()
    ]
    inputs, outputs = [value_info("x", 1, [2])], [value_info("y", 1, [2])]
    graph = make_graph([node, other], "g", inputs, outputs)
    proto = make_model(graph, opset_imports=opsets, functions=functions)
    assert expanded_num_nodes(proto) == 3
    inlined = with_functions_inlined(proto)
    assert [node.op_type for node in inlined.graph.node] == ["Neg", "Abs", "Relu"]


def test_a_function_of_an_older_version_is_converted_to_the_models() -> None:
    proto = model(
        "agraph (float[1, 3] x) => (float[3] y) { y = own.f(x) }",
        '<domain: "own", opset_import: ["": 11]> f (x) => (y) { y = Squeeze <axes = [0]> (x) }',
        header='<ir_version: 10, opset_import: ["": 13, "own": 1]>',
    )
    constant, squeeze = lines(proto)
    assert constant.endswith("Constant <value: tensor = int64[1] {0}> ()")
    assert squeeze == f"y = Squeeze (x, {constant.split()[0]})"


def test_a_function_that_cannot_be_converted_stays_a_call() -> None:
    proto = model(
        "agraph (float[2] x) => (float[2] z) { y = own.same(x)  z = own.future(y) }",
        OWN + "same (x) => (y) { y = Neg(x) }",
        '<domain: "own", opset_import: ["": 999]> future (x) => (y) { y = Relu(x) }',
    )
    assert lines(proto) == ["y = Neg (x)", "z = own.future (y)"]


def test_a_domain_that_only_a_function_imports_is_imported_by_the_model() -> None:
    proto = model(
        "agraph (float[2, 3] x) => (float[2, 3] y) { y = own.f(x) }",
        '<domain: "own", opset_import: ["": 21, "com.microsoft": 1]>'
        "f (x) => (y) { y = com.microsoft.Gelu(x) }",
    )
    inlined = with_functions_inlined(proto)
    assert ("com.microsoft", 1) in {(opset.domain, opset.version) for opset in inlined.opset_import}
    assert [node.op_type for node in inlined.graph.node] == ["Gelu"]


PICK = """pick (k, x) => (y) { t = Neg(x)
y = If (k) <then_branch = a () => (float[2] p) { p = Relu(t) },
            else_branch = b () => (float[2] q) { q = own.g(t) }> }"""


def test_calls_in_subgraphs_of_a_function_are_inlined() -> None:
    proto = model(
        "agraph (bool k, float[2] x) => (float[2] y) { t = Abs(x)  y = own.pick(k, t) }",
        OWN + PICK,
        OWN + "g (x) => (y) { u = Exp(x)  y = Sin(u) }",
    )
    assert expanded_num_nodes(proto) == 6
    inlined = with_functions_inlined(proto)
    assert [node.op_type for node in inlined.graph.node] == ["Abs", "Neg", "If"]
    branches = {entry.name: entry.g for entry in inlined.graph.node[2].attribute}
    assert [node.op_type for node in branches["else_branch"].node] == ["Exp", "Sin"]
    (relu,) = branches["then_branch"].node
    assert relu.input[0] == inlined.graph.node[1].output[0] != "t"


def test_a_call_inside_a_subgraph_is_inlined() -> None:
    proto = model(
        """agraph (bool k, float[2] x) => (float[2] y)
        { y = If (k) <then_branch = a () => (float[2] p) { p = own.f(x) },
                      else_branch = b () => (float[2] q) { q = Exp(x) }> }""",
        OWN + "f (x) => (y) { t = Neg(x)  y = Relu(t) }",
    )
    assert expanded_num_nodes(proto) == 4
    (node,) = with_functions_inlined(proto).graph.node
    assert [inner.op_type for inner in node.attribute[0].g.node] == ["Neg", "Relu"]


def test_a_function_body_in_an_invalid_order_is_sorted() -> None:
    proto = model(
        "agraph (float[2] x) => (float[2] y) { t = own.f(x)  y = own.f(t) }",
        OWN + "f (x) => (y) { y = Neg(t)  t = Relu(x) }",
    )
    inlined = with_functions_inlined(proto)
    assert [node.op_type for node in inlined.graph.node] == ["Relu", "Neg"] * 2
    reads = [node.input[0] for node in inlined.graph.node]
    writes = [node.output[0] for node in inlined.graph.node]
    assert reads == ["x", *writes[:3]]


# What is refused


def test_a_recursive_function_is_reported() -> None:
    proto = model(
        "agraph (float[2] x) => (float[2] y) { y = own.f(x) }",
        OWN + "f (x) => (y) { y = own.f(x) }",
    )
    assert inlining_refusal(proto) == (
        "local functions are recursive: own::f -> own::f; export the model again"
    )


def test_a_recursion_through_a_subgraph_is_reported() -> None:
    proto = model(
        "agraph (bool k, float[2] x) => (float[2] y) { y = own.pick(k, x) }",
        OWN + PICK,
        OWN + "g (x) => (y) { y = own.pick(x, x) }",
    )
    assert inlining_refusal(proto) == (
        "local functions are recursive: own::pick -> own::g -> own::pick; export the model again"
    )


def laughs(levels: int, calls: int) -> onnx.ModelProto:
    functions = [
        OWN
        + f"f{level} (x0) => (x{calls}) {{ "
        + "  ".join(f"x{i + 1} = own.f{level + 1}(x{i})" for i in range(calls))
        + "}"
        for level in range(levels)
    ]
    last = OWN + f"f{levels} (x) => (y) {{ y = Relu(x) }}"
    return model("agraph (float[2] x) => (float[2] y) { y = own.f0(x) }", *functions, last)


def test_an_exponential_expansion_of_functions_is_rejected_early() -> None:
    proto = laughs(levels=10, calls=10)
    start = time.perf_counter()
    assert inlining_refusal(proto) == (
        "the local functions expand to 10,000,000,000 nodes, over the limit of 1,000,000 "
        "(ONNXMEM_MAX_NODES); export the model with fewer calls"
    )
    assert time.perf_counter() - start < 1


def test_the_count_equals_the_number_of_inlined_nodes() -> None:
    proto = laughs(levels=3, calls=7)
    assert expanded_num_nodes(proto) == len(with_functions_inlined(proto).graph.node) == 7**3


@pytest.mark.parametrize(
    ("call", "count"), [("y = own.f(x, x, x)", "3 inputs"), ("y, z = own.f(x)", "2 outputs")]
)
def test_a_call_with_too_many_operands_is_rejected(call: str, count: str) -> None:
    proto = model(
        f"agraph (float[2] x) => (float[2] y) {{ [odd] {call} }}",
        OWN + "f (x) => (y) { y = Neg(x) }",
    )
    assert inlining_refusal(proto) == (
        f"node 'odd' has {count}, but the local function own::f has 1; export the model again"
    )


def test_a_function_body_that_reads_an_undefined_tensor_is_rejected() -> None:
    proto = model(
        "agraph (float[2] x, float[2] ghost) => (float[2] y) { y = own.f(x) }",
        OWN + "f (x) => (y) { y = Add(x, ghost) }",
    )
    assert inlining_refusal(proto) == (
        "node Add -> 'y' reads the undefined tensor 'ghost'; export the model again"
    )


def test_two_functions_of_one_name_are_rejected() -> None:
    proto = model(
        "agraph (float[2] x) => (float[2] y) { y = own.f(x) }",
        OWN + "f (x) => (y) { y = Neg(x) }",
        OWN + "f (x) => (y) { y = Abs(x) }",
    )
    text_of = inlining_refusal(proto)
    assert text_of.startswith("the local functions cannot be inlined: ")
    assert text_of.endswith("'own::f'; export the model again")


def test_calls_nested_deeper_than_onnx_supports_are_rejected() -> None:
    text_of = inlining_refusal(laughs(levels=3001, calls=1))
    assert text_of.startswith("the local functions cannot be inlined: Function call chain depth")
    assert text_of.endswith("; export the model again")
