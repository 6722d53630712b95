"""One way to write a model: domains, versions, whole nodes."""

import onnx
import pytest
from graphs import graph_of, model_of

from onnxmem import analyze
from onnxmem.errors import GraphError
from onnxmem.model.bounds import Bounds
from onnxmem.model.building import Prepared, prepare
from onnxmem.model.files import ModelFile


def prepared(text: str) -> Prepared:
    return prepare(ModelFile("<text>", model_of(text), 0))


def test_the_domain_of_onnx_has_two_names_and_one_meaning() -> None:
    """The records in force are those of the version imported, whichever name imports it."""
    text = "agraph (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"
    plain = model_of('<ir_version: 7, opset_import: ["" : 11]>' + text)
    alias = onnx.ModelProto()
    alias.CopyFrom(plain)
    alias.opset_import[0].domain = "ai.onnx"
    alias.graph.node[0].domain = "ai.onnx"
    one, other = (prepare(ModelFile("<text>", model, 0)).proto for model in (plain, alias))
    assert one == other
    assert analyze(plain, train=True).training == analyze(alias, train=True).training


def test_a_file_without_a_version_gets_the_newest_and_says_so() -> None:
    model = model_of("agraph (float[2,3] x) => (float[2,3] y) { y = Relu(x) }")
    del model.opset_import[:]
    newest = onnx.defs.onnx_opset_version()
    findings = prepare(ModelFile("<text>", model, 0)).findings
    assert [(f.code, f.message) for f in findings] == [
        (
            "missing_opset",
            (
                "the file names no version of ONNX's operators; "
                f"{newest} is taken, the newest they fit"
            ),
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
def test_a_node_without_an_input_that_it_needs_is_refused(
    node: str, count: int, least: int
) -> None:
    operator = node.split()[2].split("(", maxsplit=1)[0]
    with pytest.raises(GraphError) as refused:
        prepared(f"agraph (float[1,2,3] x) => (y) {{ [odd] {node} }}")
    assert str(refused.value) == (
        f"node 'odd' has {count} inputs, and {operator} needs {least}; export the model again"
    )


def test_an_operator_of_that_name_in_another_domain_may_have_none() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    agraph (float[5] x) => (y) { a = own.Shape()
        b = own.If()
        c = own.ConstantOfShape()
        d = own.Loop()
        y = own.Dropout() }"""
    found = analyze(model_of(text), train=True)
    assert found.status == "partial"
    assert len(found.coverage.unknown_tensors) == 5


def test_a_file_without_a_version_gets_one_that_its_nodes_fit() -> None:
    model = model_of("""<ir_version: 7, opset_import: ["": 11]> agraph (float[2,3] x) => (y) {
        a = Unsqueeze <axes = [0]> (x)  y = NoSuchThing(a) }""")
    del model.opset_import[:]
    prepared = prepare(ModelFile("<text>", model, 0))
    assert [(entry.domain, entry.version) for entry in prepared.proto.opset_import] == [("", 12)]
    assert "12 is taken" in prepared.findings[0].message


def test_a_frequency_and_its_mirror_image_come_out_once() -> None:
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


def test_more_nodes_than_are_followed_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "agraph (float[2] x) => (float[2] y) { a = Relu(x)  b = Neg(a)  y = Exp(b) }"
    monkeypatch.setattr("onnxmem.model.canonical.BOUNDS", Bounds(nodes=3))
    assert len(prepared(text).proto.graph.node) == 3
    monkeypatch.setattr("onnxmem.model.canonical.BOUNDS", Bounds(nodes=2))
    with pytest.raises(
        GraphError, match=r"^3 nodes, over 2 \(ONNXMEM_MAX_NODES\); set that higher$"
    ):
        prepared(text)
