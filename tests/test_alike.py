"""Types at other dims by nodes that are alike are those of the whole graph's inference."""

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx.parser
import onnx.shape_inference
import pytest

from onnxmem import analyze
from onnxmem.model.binding import Request, bind
from onnxmem.model.building import Prepared, build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Role
from onnxmem.model.shapes import alike, with_shapes
from onnxmem.model.value_types import Known, known_types

MODELS = sorted((Path(__file__).parents[1] / "models").glob("*.onnx"))
_CHAIN = """
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


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs are asked so too."""
    monkeypatch.setattr(alike, "MANY_NODES", 0)
    monkeypatch.setattr(alike, "_NODES_OF_A_KIND", 0)


def graph_of(nodes: str, weights: str = "", y: str = "float[batch, 7]") -> onnx.ModelProto:
    """A graph of one input of shape ``[batch, 7]``."""
    return onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 21]>'
        f"g (float[batch, 7] x) => ({y} y) <{weights}> {{ {nodes} }}"
    )


def told(model: onnx.ModelProto | Path) -> Prepared:
    """A model that was asked for its own batch."""
    prepared = prepare(load(model))
    build(prepared, Request(None, {}, {}))
    return prepared


def types_at(prepared: Prepared, batch: int) -> Mapping[str, Known] | None:
    """Its types at another batch, by nodes that are alike."""
    return prepared.told[0].types_at(bind(prepared.proto.graph, Request(batch, {}, {})))


def inferred_at(prepared: Prepared, batch: int) -> Mapping[str, Known]:
    """The same by the whole graph's inference."""
    binding = bind(prepared.proto.graph, Request(batch, {}, {}))
    return known_types(with_shapes(prepared.proto, binding).proto.graph)


def assert_alike(prepared: Prepared, batch: int, found: Mapping[str, Known]) -> None:
    """Hold what is an input or made by a node against the whole graph's inference."""
    expected = inferred_at(prepared, batch)
    for name, tensor in prepared.read[0].tensors.items():
        if tensor.role in {Role.INPUT, Role.ACTIVATION}:
            assert found[name] == expected[name], name


@pytest.mark.parametrize("batch", [1, 5, 131])
def test_types_are_those_of_the_whole_graph(batch: int) -> None:
    """Constants that tell shapes, literals, operands and results that are left out."""
    prepared = told(onnx.parser.parse_model(_CHAIN))
    found = types_at(prepared, batch)
    assert found is not None
    assert_alike(prepared, batch, found)
    assert found["a"].shape == (batch, 3)


def test_types_of_networks_are_those_of_the_whole_graph() -> None:
    """Every network of which onnx alone tells all shapes."""
    compared = []
    for path in MODELS:
        prepared = told(path)
        if prepared.told and (found := types_at(prepared, 131)) is not None:
            assert_alike(prepared, 131, found)
            compared.append(path.stem)
    assert {"resnet50", "alexnet"} <= {*compared}


@pytest.mark.parametrize(
    ("nodes", "weights", "y"),
    [
        # It fits the batch that the file is asked for, 1, and no other.
        ("y = Add(x, w)", "float[3, 7] w = {0}", "float[N, 7]"),
        # The file's word is right at batch 1 alone.
        ("y = Relu(x)", "", "float[1, 7]"),
    ],
)
def test_what_does_not_follow_is_left_to_the_whole_graph(nodes: str, weights: str, y: str) -> None:
    """The answer, findings and all, is that of a file that was never asked for another batch."""
    model = graph_of(nodes, weights, y)
    prepared = told(model)
    assert not prepared.told or types_at(prepared, 5) is None
    moved, fresh = analyze(model).at(batch=5), analyze(model, batch=5)
    assert moved.findings == fresh.findings
    assert moved.total_bytes == fresh.total_bytes


def test_an_attribute_that_is_no_plain_value_tells_nodes_apart() -> None:
    """Records of nodes hold no tensors: such a graph is asked as a whole."""
    tree = """
        <ir_version: 10, opset_import: ["": 21, "ai.onnx.ml": 4]>
        g (int64[batch] x) => (float[batch] y) {
            y = ai.onnx.ml.LabelEncoder<keys_tensor = int64[1] {0}, values_tensor = float[1] {0.0},
                default_tensor = float[1] {0.0}>(x)
        }
    """
    prepared = told(onnx.parser.parse_model(tree))
    assert not prepared.told or types_at(prepared, 5) is None


def test_a_large_graph_is_inferred_whole_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The law in the batch asks of each kind of node once."""
    calls = []
    real = onnx.shape_inference.infer_shapes

    def infer_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
        calls.append(model)
        return real(model)

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", infer_shapes)
    names = [f"t{i}" for i in range(64)]
    nodes = " ".join(f"{b} = Relu({a})" for a, b in zip(["x", *names], [*names, "y"], strict=True))
    law = analyze(graph_of(nodes)).batch_law
    assert law is not None
    assert (law.fixed_bytes, law.bytes_per_sample) == (0, 84)
    assert len(calls) == 1


def test_many_kinds_are_left_to_the_whole_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """To ask of nodes one by one is no gain where few are alike."""
    prepared = told(onnx.parser.parse_model(_CHAIN))
    monkeypatch.setattr(alike, "_NODES_OF_A_KIND", 8)
    assert types_at(prepared, 5) is None
