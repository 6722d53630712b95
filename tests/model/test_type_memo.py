"""Types from one inference per distinct node are those of the whole graph's inference."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from unittest.mock import Mock

import onnx
import onnx.parser
import onnx.shape_inference
import pytest
from model.test_backend_suite import models as backend_models
from onnx import TensorProto, helper
from paths import MODELS
from runtime_kinds import KINDS

import onnxmem
from onnxmem import analyze
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.errors import OnnxmemError
from onnxmem.kv_cache.steps import Step
from onnxmem.model import building
from onnxmem.model.binding import Request, bind
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.model.shapes import type_memo
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.ops.spec import Shape
from onnxmem.settings import Settings

FILES = sorted(MODELS.glob("*.onnx"))
BATCHES = (None, 5)
NEVER = 10**9

CHAIN = """
    <ir_version: 10, opset_import: ["": 21]>
    chain (float[batch, 7] x, int64[3] given) => (float[batch, 7] y)
    <float[7, 7] w = {0}, int64[2] halves = {3, 4}, int64[1] first = {0}, int64[1] last = {5}> {
        m = MatMul(x, w)
        a, b = Split<axis = 1>(m, halves)
        c = Concat<axis = 1>(b, a)
        two = Constant<value = float {2.0}>()
        d = Mul(c, two)
        e = Slice(d, first, last, first)
        n, mask = Dropout(d)
        y = Add(n, x)
    }
"""
COMPUTED = """
    <ir_version: 10, opset_import: ["": 21]>
    computed (float[batch, 6] x) => (float[batch, 6] y)
    <int64[1] rest = {-1}, int64[1] ends = {2}> {
        dims = Shape(x)
        batch = Slice(dims, zero, one, zero)
        zero = Constant<value_ints = [0]>()
        one = Constant<value_ints = [1]>()
        target = Concat<axis = 0>(batch, rest, ends)
        r = Reshape(x, target)
        sizes = Concat<axis = 0>(batch, one)
        filled = ConstantOfShape<value = float[1] {1.0}>(sizes)
        flat = Reshape(r, dims)
        y = Mul(flat, filled)
    }
"""
FIXED = """
    <ir_version: 10, opset_import: ["": 21]>
    fixed (float[2, 6] x) => (float[2, 6] y)
    <float[2, 6] mask = {0,0,0,0,0,0,0,0,0,0,0,0}, int64[3] target = {2, 3, 2},
     int64[2] back = {2, 6}> {
        r = Reshape(x, target)
        t = Transpose<perm = [0, 2, 1]>(r)
        f = Reshape(t, back)
        y = Add(f, mask)
    }
"""
GROWN_ELSEWHERE = """
    <ir_version: 10, opset_import: ["": 21]>
    grown (float[2, 6] x) => (float[2, 6] y) <float[2, 6] mask = {0,0,0,0,0,0,0,0,0,0,0,0}> {
        n = Neg(mask)
        y = Add(x, n)
    }
"""
COUNTED = """
    <ir_version: 10, opset_import: ["": 21]>
    counted (float[3, 6] x) => (float[3, 6] y) <int64[3, 1] places = {0, 1, 2}> {
        g = GatherND(x, places)
        y = Relu(g)
    }
"""


BRANCHES = """
    <ir_version: 10, opset_import: ["": 21]>
    branches (float[batch, 7] x0, bool hot) => (float[batch, 7] x2) <float[7, 7] w = {0}> {
        x1 = If (hot) <
            then_branch = one () => (float[batch, 7] p1) { m1 = MatMul(x0, w) p1 = Relu(m1) },
            else_branch = two () => (q1) {
                q1 = If (hot) <
                    then_branch = three () => (r1) { r1 = Neg(x0) },
                    else_branch = four () => (s1) {
                        k1 = Constant<value = float {2.0}>()
                        s1 = Mul(x0, k1)
                    }
                >
            }
        >
        x2 = If (hot) <
            then_branch = one () => (float[batch, 7] p2) { m2 = MatMul(x1, w) p2 = Relu(m2) },
            else_branch = two () => (q2) {
                q2 = If (hot) <
                    then_branch = three () => (r2) { r2 = Neg(x1) },
                    else_branch = four () => (s2) {
                        k2 = Constant<value = float {2.0}>()
                        s2 = Mul(x1, k2)
                    }
                >
            }
        >
    }
"""
LOOPS = """
    <ir_version: 10, opset_import: ["": 21]>
    loops (float[batch, 7] x) => (float[batch, 7] y, float[3] z) {
        once = Constant<value = int64 {3}>()
        a, rows = Loop (once, , x) <
            body = add (int64 i1, bool c1, float[batch, 7] s1)
                => (bool d1, float[batch, 7] t1, float u1)
            { d1 = Identity(c1) t1 = Add(s1, x) u1 = ReduceSum<keepdims = 0>(t1) }
        >
        b, more = Loop (once, , a) <
            body = add (int64 i2, bool c2, float[batch, 7] s2)
                => (bool d2, float[batch, 7] t2, float u2)
            { d2 = Identity(c2) t2 = Add(s2, x) u2 = ReduceSum<keepdims = 0>(t2) }
        >
        y = Add(a, b)
        z = Add(rows, more)
    }
"""


@pytest.fixture
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are memoized too."""
    monkeypatch.setattr(building, "MIN_NODES", 0)
    monkeypatch.setattr(type_memo, "MIN_REPEATS_OF_FEW", 0)


def graph_of(nodes: str, weights: str = "", y: str = "float[batch, 7]") -> onnx.ModelProto:
    """A graph of one input of shape ``[batch, 7]``."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]>'
        f"g (float[batch, 7] x) => ({y} y) <{weights}> {{ {nodes} }}"
    )


def facts(bound: BoundModel) -> tuple[object, ...]:
    """Everything that a reader of the graph sees."""
    tensors = [
        (each.name, each.dtype, each.shape, each.role, each.is_assumed)
        for each in bound.graph.tensors.values()
    ]
    return tensors, bound.graph.values, bound.findings, bound.follows_batch


def is_memoized(source: ModelSource, batch: int | None) -> bool:
    """Whether the types come from one inference per distinct node."""
    prepared = prepare(load(source))
    return tells(prepared, build(prepared, Request(batch)))


def tells(prepared: Prepared, bound: BoundModel) -> bool:
    """The same for a built model."""
    return prepared.memoized_types(bound.binding) is not None


def assert_same(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> int:
    """Compare both ways to infer types at all batches; return how many could be compared."""
    num_memoized = 0
    for batch in BATCHES:
        monkeypatch.setattr(type_memo, "MIN_REPEATS_OF_FEW", 0)
        monkeypatch.setattr(building, "MIN_NODES", NEVER)
        try:
            whole = build(prepare(load(source)), Request(batch))
        except OnnxmemError:
            continue
        monkeypatch.setattr(building, "MIN_NODES", 0)
        prepared = prepare(load(source))
        bound = build(prepared, Request(batch))
        assert facts(bound) == facts(whole)
        num_memoized += tells(prepared, bound)
    return num_memoized


@pytest.mark.parametrize("text", [CHAIN, COMPUTED, FIXED], ids=["chain", "computed", "fixed"])
def test_memoized_types_equal_those_of_the_whole_graph(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constants that give shapes, computed dims, literals, omitted operands."""
    model = onnx.parser.parse_model(text)
    # A constant that grows with the batch is a weight of another size: the whole graph is read.
    num_memoized = len(BATCHES) if text != FIXED else 1
    assert assert_same(model, monkeypatch) == num_memoized


@pytest.mark.parametrize("text", [BRANCHES, LOOPS], ids=["branches", "loops"])
def test_equal_subgraphs_are_inferred_once(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nested ones, what they read from outside, their constants and carried values."""
    model = onnx.parser.parse_model(text)
    assert assert_same(model, monkeypatch) == len(BATCHES)
    whole = Mock(wraps=onnx.shape_inference.infer_shapes)
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", whole)
    prepared = prepare(load(model))
    for batch in (2, 3):
        assert build(prepared, Request(batch)).follows_batch
    # One block of two, at each batch.
    assert whole.call_count == 2


@pytest.mark.parametrize(
    ("old", "new", "num_distinct"),
    [
        ("Mul(x1, k2)", "Div(x1, k2)", 2),
        ("Mul(x1, k2)", "Mul(k2, x1)", 2),
        ("k2 = Constant<value = float {2.0}>", "k2 = Constant<value = float[1] {2.0}>", 2),
        ("(q2) {", "(int64 q2) {", 2),
        ("q2 = If (hot)", "q2 = If (cold)", 1),
    ],
    ids=["operator", "order", "constant", "type", "name"],
)
@pytest.mark.usefixtures("of_any_size")
def test_subgraphs_are_distinct_by_all_but_names(old: str, new: str, num_distinct: int) -> None:
    assert old in BRANCHES
    text = BRANCHES.replace(old, new).replace("bool hot)", "bool hot, bool cold)")
    memo = prepare(load(onnx.parser.parse_model(text))).type_memo
    assert memo is not None
    keys = [
        (step.signature, *(memo.stored.get(name) for name in step.inputs))
        for step in memo.steps
        if step.declared is not None
    ]
    assert len({*keys}) == num_distinct


@pytest.mark.usefixtures("of_any_size")
def test_a_subgraph_that_declares_another_shape_needs_the_whole_graph() -> None:
    text = BRANCHES.replace("(float[batch, 7] p2)", "(float[batch, 8] p2)")
    assert not is_memoized(onnx.parser.parse_model(text), 5)


@pytest.mark.usefixtures("of_any_size")
def test_a_changed_batch_reaches_every_tensor() -> None:
    """Targets of Reshape and a mask grow with the batch."""
    bound = build(prepare(load(onnx.parser.parse_model(FIXED))), Request(5))
    shapes = {name: tensor.shape for name, tensor in bound.graph.tensors.items()}
    assert (shapes["r"], shapes["t"], shapes["y"]) == ((5, 3, 2), (5, 2, 3), (5, 6))
    assert shapes["mask"] == (5, 6)
    assert bound.follows_batch


@pytest.mark.parametrize("text", [GROWN_ELSEWHERE, COUNTED], ids=["elsewhere", "counted"])
def test_a_batch_that_changes_more_than_a_node_needs_the_whole_graph(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = onnx.parser.parse_model(text)
    assert assert_same(model, monkeypatch) < len(BATCHES)


MEMOIZED = {"resnet50", "alexnet", "bert_base"}
SOME = {*MEMOIZED, "lstm_classifier", "mobilenet_v2.int8", "smollm_cached", "greedy_translator"}


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_memoized_networks_equal_those_of_the_whole_graph(
    monkeypatch: pytest.MonkeyPatch, *, some: bool
) -> None:
    files = [path for path in FILES if (path.stem in SOME) is some]
    memoized = {path.stem for path in files if assert_same(path, monkeypatch) == len(BATCHES)}
    assert (MEMOIZED if some else {"vgg16"}) <= memoized


def test_memoized_node_kinds_equal_those_of_the_whole_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Operators of onnxruntime's own, subgraphs, contradictions, old versions."""
    num_memoized = [assert_same(kind.make().SerializeToString(), monkeypatch) for kind in KINDS]
    assert sum(num_memoized) > len(KINDS)


@pytest.mark.slow
def test_the_memoized_backend_suite_equals_the_whole_graphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_memoized = [assert_same(model, monkeypatch) for model in _backend_models()]
    assert sum(num_memoized) > len(num_memoized)


def _backend_models() -> Iterator[onnx.ModelProto]:
    return (model for _, model in backend_models())


@pytest.mark.parametrize(
    ("nodes", "weights", "y"),
    [
        # It fits the batch that the file is requested at, 1, and no other.
        ("y = Add(x, w)", "float[3, 7] w = {0}", "float[N, 7]"),
        # The file's word is right at batch 1 alone.
        ("y = Relu(x)", "", "float[1, 7]"),
        ("y = Relu(x)", "", "double[batch, 7]"),
    ],
)
@pytest.mark.usefixtures("of_any_size")
def test_nodes_that_cannot_be_memoized_need_the_whole_graph(
    nodes: str, weights: str, y: str
) -> None:
    """The result, warnings included, equals that of a file that was never analyzed before."""
    model = graph_of(nodes, weights, y)
    assert not is_memoized(model, 5)
    moved, fresh = analyze(model).at(batch=5), analyze(model, batch=5)
    assert moved.findings == fresh.findings
    assert moved.total_bytes == fresh.total_bytes


@pytest.mark.parametrize(
    ("nodes", "weights", "y"),
    [
        # onnx says that a scalar comes out, its operators make a list.
        ("n = Shape<start = 1>(x) s = Squeeze(n) y = Clip(s, k, k)", "int64[1] k = {3}", "int64"),
        ("y = Relu(x)", "", "seq(float)"),
        ("y = Reshape(x, t)", "float[2] t = {-1, 7}, int64[2] t = {7, -1}", "float[n, m]"),
    ],
    ids=["clip", "sequence", "twice"],
)
def test_the_whole_graph_is_inferred_if_results_could_differ(
    nodes: str, weights: str, y: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assert_same(graph_of(nodes, weights, y), monkeypatch) == 0


def test_a_fixed_batch_is_checked_against_the_outputs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        '<ir_version: 10, opset_import: ["": 21]> g (float[2,6] x) => (double[2,6] y) {y=Relu(x)}'
    )
    assert assert_same(onnx.parser.parse_model(text), monkeypatch) == 0


def absent_matrix(name: str, number: int) -> TensorProto:
    """A weight of a shape of its own."""
    dims = [7 + number, 8 + number]
    weight = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=dims)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="absent.bin")
    return weight


def own_pads(name: str, number: int) -> TensorProto:
    """Pads of a width of their own."""
    return helper.make_tensor(name, TensorProto.INT64, [4], [0, 0, 0, number])


@pytest.mark.parametrize(("op_type", "weight"), [("MatMul", absent_matrix), ("Pad", own_pads)])
def test_a_graph_without_repetition_is_refused_by_its_constants_before_a_node_is_read(
    op_type: str, weight: Callable[[str, int], TensorProto], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[onnx.NodeProto] = []
    monkeypatch.setattr(type_memo, "_signature", lambda proto, _: read.append(proto))
    count = building.MIN_NODES + 1
    names = ["x", *(f"t{i}" for i in range(1, count)), "y"]
    nodes = " ".join(f"{b} = {op_type}({a}, w_{b})" for a, b in pairwise(names))
    model = graph_of(nodes, y="float[batch, n]")
    model.graph.initializer.extend(weight(f"w_{name}", i) for i, name in enumerate(names[1:]))
    prepared = prepare(load(model))
    assert prepared.memoized_types(build(prepared, Request(5)).binding) is None
    assert read == []


@pytest.mark.usefixtures("of_any_size")
def test_an_attribute_of_another_kind_distinguishes_nodes() -> None:
    """Node records have no tensors: attributes with tensors are read from the file."""
    nodes = " ".join(
        f"k{dtype} = ConstantOfShape<value = {dtype}[1] {{0}}>(n)" for dtype in ("float", "int64")
    )
    model = graph_of(f"{nodes} n = Shape(x) y = Relu(x)")
    tensors = build(prepare(load(model)), Request(5)).graph.tensors
    assert is_memoized(model, 5)
    assert [str(tensors[name].dtype) for name in ("kfloat", "kint64")] == ["float32", "int64"]


@pytest.mark.usefixtures("of_any_size")
def test_a_sequence_needs_the_whole_graph() -> None:
    nodes = "s = SequenceConstruct(x, x) y = ConcatFromSequence<axis = 0>(s)"
    assert not is_memoized(graph_of(nodes, y="float[n, 7]"), 5)


@pytest.mark.usefixtures("of_any_size")
def test_a_large_graph_is_never_inferred_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the graph nor the formula in the batch."""
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", None)
    names = [f"t{i}" for i in range(64)]
    nodes = " ".join(f"{b} = Relu({a})" for a, b in pairwise(["x", *names, "y"]))
    law = analyze(graph_of(nodes)).batch_law
    assert law is not None
    assert (law.fixed_bytes, law.slope_bytes) == (0, 84)


@pytest.mark.usefixtures("of_any_size")
def test_a_sweep_memoizes_few_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch gives the result of a first one, whatever was evicted before it."""
    monkeypatch.setattr(type_memo, "_MAX_CACHED", 20)
    for text in (CHAIN, FIXED):
        prepared = prepare(load(onnx.parser.parse_model(text)))
        for batch in range(1, 40):
            fresh = prepare(load(onnx.parser.parse_model(text)))
            swept = build(prepared, Request(batch))
            assert facts(swept) == facts(build(fresh, Request(batch)))
        assert prepared.type_memo is not None
        assert len(prepared.type_memo.inference.memo) < 50


@pytest.mark.usefixtures("of_any_size")
def test_a_batch_that_onnx_refuses_leaves_the_next_one_memoized() -> None:
    names = ["x", *(f"t{i}" for i in range(16)), "s"]
    nodes = " ".join(f"{b} = Relu({a})" for a, b in pairwise(names))
    text = f"""<ir_version: 8, opset_import: ["" : 13]>
    agraph (float[2, 7] x) => (y, z) {{ {nodes} y, z = Split<axis = 0>(s) }}"""
    prepared = prepare(load(onnx.parser.parse_model(text)))
    memoized = [
        prepared.memoized_types(bind(prepared.inputs, Request(batch))) is not None
        for batch in (2, 3, 4, 6)
    ]
    assert memoized == [True, False, True, True]


def test_many_node_kinds_need_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memoization does not pay off where nodes rarely repeat, as where each makes more."""
    monkeypatch.setattr(building, "MIN_NODES", 0)
    names = ["x", *(f"t{i}" for i in range(16)), "y"]
    nodes = " ".join(f"{b} = Concat<axis = 1>({a}, x)" for a, b in pairwise(names))
    prepared = prepare(load(graph_of(nodes, y="float[batch, n]")))
    binding = build(prepared, Request(5)).binding
    assert prepared.memoized_types(binding) is None
    assert prepared.type_memo is not None
    assert prepared.type_memo.is_disabled


OPERANDS = {"y": ["x", "s", "e", ""], "z": ["x", "s", "e", "u"]}
"""Axes that are left out, and axes of which nothing is known."""


def sliced(names: tuple[str, ...]) -> dict[str, Shape | None]:
    nodes = [helper.make_node("Mystery", ["q"], ["u"], domain="mine")]
    nodes += [helper.make_node("DynamicSlice", OPERANDS[name], [name]) for name in names]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 7]),
        helper.make_tensor_value_info("q", TensorProto.INT64, [2]),
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in names]
    ends = [
        helper.make_tensor(name, TensorProto.INT64, [1], [at]) for name, at in (("s", 0), ("e", 3))
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, ends)
    opsets = [helper.make_opsetid("", 9), helper.make_opsetid("mine", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    tensors = onnxmem.analyze(model).graph.tensors
    return {name: tensors[name].shape for name in names}


@pytest.mark.parametrize("names", list(itertools.permutations(OPERANDS)))
def test_an_omitted_operand_differs_from_one_of_unknown_type(names: tuple[str, ...]) -> None:
    assert sliced(names) == {name: sliced((name,))[name] for name in names}
    assert sliced(("y",)) == {"y": (3, 7)}


def test_every_rejected_node_has_its_own_error() -> None:
    """A body that is inferred again is rejected again; so is one with the same signature."""
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, float[5,7] v) => (y, z) {
        y = Add(x, v)  z = Add(x, v) }"""
    model = onnx.parser.parse_model(text)
    prepared = prepare(ModelFile("<text>", model, 0))
    ask = NodeInference(prepared.proto)
    types = {each.name: each.type for each in prepared.proto.graph.input}
    for node in (*prepared.proto.graph.node[:1], *prepared.proto.graph.node):
        assert ask.output_types(node, types, {}) == {}
    assert list(ask.refused) == ["y", "z"]


def test_nodes_of_one_signature_share_a_result() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2,3] x, float[2,3] v) => (y, z) {
        y = Add(x, v)  z = Add(v, x) }"""
    model = onnx.parser.parse_model(text)
    ask = NodeInference(model)
    types = {each.name: each.type for each in model.graph.input}
    one, other = (ask.output_types(node, types, {}) for node in model.graph.node)
    assert one["y"] is other["z"]


@pytest.mark.parametrize(("num_blocks", "is_used"), [(5, True), (3, False)])
def test_a_few_hundred_distinct_nodes_may_come_first(num_blocks: int, *, is_used: bool) -> None:
    """Blocks of 300 nodes that differ by an attribute, then the same blocks again."""
    alphas = [1 + number / 512 for number in range(300)] * num_blocks
    assert is_memoized(chain_of("LeakyRelu", [{"alpha": each} for each in alphas]), 3) is is_used


def test_a_graph_without_repetition_pays_for_a_few_hundred_nodes() -> None:
    """Each node widens what it reads, so that no two have inputs of one type."""
    model = chain_of("Pad", [{}] * 3_000, "pads")
    pads = helper.make_tensor("pads", TensorProto.INT64, [4], [0, 0, 0, 1])
    model.graph.initializer.append(pads)
    prepared = prepare(load(model))
    assert not tells(prepared, build(prepared, Request(3)))
    assert prepared.type_memo is not None
    assert len(prepared.type_memo.inference.memo) < 400


def chain_of(
    op_type: str, attributes: Sequence[Mapping[str, float]], *more: str
) -> onnx.ModelProto:
    """Nodes of one operator, each of which reads the one before it."""
    model = graph_of("y = Relu(x)", y="float[batch, width]")
    del model.graph.node[:]
    names = ["x", *(f"y{number}" for number in range(len(attributes) - 1)), "y"]
    for (source, output), each in zip(pairwise(names), attributes, strict=True):
        node = model.graph.node.add(op_type=op_type, input=[source, *more], output=[output])
        node.attribute.extend(helper.make_attribute(name, value) for name, value in each.items())
    return model


@pytest.mark.parametrize("context", [1, 2, 512])
def test_a_prefill_without_past_tokens_is_memoized(
    context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its past keys and values have a dim of 0."""
    monkeypatch.setattr(type_memo, "MIN_REPEATS_OF_FEW", 0)
    cached = request_of(MODELS / "smollm_cached.onnx", Settings())

    def prefill(min_nodes: int) -> tuple[Prepared, BoundModel]:
        monkeypatch.setattr(building, "MIN_NODES", min_nodes)
        request = cached.at_context(context, Step.PREFILL).at(3)
        return request.prepared, request.results.bound

    _, whole = prefill(NEVER)
    prepared, bound = prefill(0)
    assert facts(bound) == facts(whole)
    assert 0 in (bound.graph.tensors["past_key_values.0.key"].shape or ())
    assert tells(prepared, bound)


@pytest.mark.parametrize(
    ("values", "is_external", "num_distinct"),
    [((0, 0), False, 1), ((0, 1), False, 2), ((0, 1), True, 1)],
    ids=["equal", "different", "absent"],
)
@pytest.mark.usefixtures("of_any_size")
def test_integers_are_alike_where_shapes_cannot_differ_by_them(
    values: tuple[int, int], num_distinct: int, *, is_external: bool
) -> None:
    """More than a graph has as values: they are read for constant folding, if the file has them."""
    model = graph_of("a = Cast<to = 1>(w0) b = Cast<to = 1>(w1) c = Add(a, b) y = Relu(x)")
    for index, value in enumerate(values):
        weight = helper.make_tensor(f"w{index}", TensorProto.INT64, [100], [value] * 100)
        if is_external:
            weight.ClearField("int64_data")
            weight.data_location = TensorProto.EXTERNAL
            weight.external_data.add(key="location", value="absent.bin")
        model.graph.initializer.append(weight)
    memo = prepare(load(model)).type_memo
    assert memo is not None
    assert len({memo.stored[name] for name in ("w0", "w1")}) == num_distinct
