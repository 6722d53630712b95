"""Operators whose kernels have a rule that a new version of onnxruntime may change."""

import pytest
from graphs import graph_of, model_of

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.runtimes.onnxruntime import memory
from onnxmem.runtimes.onnxruntime.memory import SessionRequest, ruled_operators
from onnxmem.runtimes.onnxruntime.providers import CPU, CUDA, ExecutionProvider
from onnxmem.runtimes.onnxruntime.session_graph.loaded import OptimizedModel
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "com.microsoft.nchwc" : 1]>'
IF = """y = If(b) <
  then_branch = a () => (t) { t = MatMul(x, x) }, else_branch = c () => (e) { e = Transpose(x) }
>"""
PLAIN = "agraph (float[2,3] x) => (float[3,4] y) { t = Transpose(x) y = Concat<axis = 1>(t, t) }"
LAYERS = """agraph (float[1,4,8,8] x) => (float[1,4,8,8] y) <float[4,4,1,1] w = {WEIGHTS}> {
  a = Transpose(x) t = Transpose(a) c = Conv(t, w) BODY }
""".replace("WEIGHTS", ", ".join(["1"] * 16))


@pytest.mark.parametrize(
    ("nodes", "provider", "operators"),
    [
        ("y = Transpose(x)", CPU, ()),
        ("y = Concat<axis = 0>(x, x)", CPU, ()),
        ("y = Relu(x)", CPU, ("Relu",)),
        ("y = Reshape(x, s)", CPU, ("Reshape",)),
        ("y = Relu(x)", CUDA, ("Relu",)),
        ("y = Conv(x, x)", CPU, ("Conv",)),
        ("y = Conv(x, x)", CUDA, ()),
        ("y = MatMul(x, x)", CPU, ("MatMul",)),
        ("y = MatMul(x, x)", CUDA, ()),
        ("y = com.microsoft.Range(x, x)", CPU, ("Range",)),
        ("y = com.microsoft.nchwc.ReorderInput(x)", CPU, ("ReorderInput",)),
        ("r = Relu(x) c = Conv(r, x) d = Conv(c, x) y = Relu(d)", CPU, ("Conv", "Relu")),
        (IF, CPU, ("MatMul",)),
    ],
    ids=str,
)
def test_operators_with_rules_are_named(
    nodes: str, provider: ExecutionProvider, operators: tuple[str, ...]
) -> None:
    graph = graph_of(f"{HEADER} agraph (float[2,2] x, int64[1] s, bool b) => (y) {{ {nodes} }}")
    assert ruled_operators(graph, provider) == operators


def messages(text: str, level: str) -> list[str]:
    """The warning on a future version of onnxruntime."""
    file = ModelFile("<text>", model_of(text), 0)
    prepared = prepare(file)
    model = ModelAt(file, prepared, build(prepared, Request()))
    return [
        each.message
        for each in memory.session_memory(
            memory.SessionGraphs(model, SessionRequest(graph=level))
        ).findings
        if each.code == "unverified_runtime"
    ]


@pytest.fixture
def _future(monkeypatch: pytest.MonkeyPatch) -> None:
    def optimized_model(model: ModelAt, *_: object) -> OptimizedModel:
        return OptimizedModel(model.prepared.proto, {"": {}}, True, "off", "onnxruntime 1.99.0")  # noqa: FBT003

    monkeypatch.setattr(memory, "optimized_model", optimized_model)


@pytest.mark.usefixtures("_future")
def test_a_new_version_without_a_rule_is_not_reported() -> None:
    assert messages(PLAIN, "raw") == []


@pytest.mark.usefixtures("_future")
@pytest.mark.parametrize(
    ("body", "operators"),
    [
        ("y = Transpose(c)", "Conv"),
        ("y = Relu(c)", "Conv and Relu"),
        ("r = Relu(c) y = MatMul(r, r)", "Conv, MatMul and Relu"),
        ("r = Relu(c) m = MatMul(r, r) y = Sigmoid(m)", "Conv, MatMul and 2 more operators"),
    ],
)
def test_a_new_version_reports_operators_whose_rules_may_have_changed(
    body: str, operators: str
) -> None:
    (message,) = messages(LAYERS.replace("BODY", body), "raw")
    verified = f"verified up to {memory.VERIFIED[-1]}"
    assert message == f"onnxruntime 1.99.0 is installed; the rules of {operators} were {verified}"
