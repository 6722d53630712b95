"""Models that onnxruntime refuses for their types: a careless conversion to float16 leaves such."""

import json
from collections import Counter
from pathlib import Path

import onnx
import onnx.shape_inference
import pytest
from graphs import model_of
from installed_runtime import require_verified
from models_on_disk import write_model

from onnxmem import analyze
from onnxmem.cli import main
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.type_conflicts import type_conflicts

HEADER = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "acme" : 1]>'
HALF = "float16 h = {1}, float o = {1}"
DECLARED = "is float16, but declared as float32"
BRANCH = """y = If(c) < then_branch = t () => (float[7] u) { u = Add(x, h) },
    else_branch = e () => (float[7] v) { v = Neg(x) } >"""
LOOP = """y, z = Loop(n, c, x, h) < body = l (int64 i, bool d, float[7] u, float16 v) =>
    (bool p, float[7] q, float16 r) { p = Identity(d)  q = Neg(u)  r = Neg(v) } >"""
REFUSED = [
    # nodes | types of y and of what is declared inside | the reason
    ("y = Add(x, h)", "float", "Add requires one type T, but has float32 and float16"),
    ("y = Clip(x, h)", "float", "Clip requires one type T, but has float32 and float16"),
    ("y = Max(x, o, h)", "float", "Max requires one type T, but has float32 and float16"),
    ("y = Add(k, h)", "float", "Add requires one type T, but has float16 and float32"),
    (
        "y = Cast <to = 10> (x)",
        "float",
        f"the output of Cast {DECLARED}",
    ),
    (
        "a = Cast <to = 10> (x)  y = Exp(a)",
        "float16[7] y, float[7] a",
        f"the output of Cast {DECLARED}",
    ),
    (
        "a = Relu(k)  y = Exp(a)",
        "float16[7] y, float[7] a",
        f"the output of Relu {DECLARED}",
    ),
    ("i = Cast <to = 10> (o)  y = Tile(x, i)", "float", "Tile does not accept float16 as repeats"),
    (
        BRANCH,
        "float",
        "Add requires one type T, but has float32 and float16",
    ),
]
TAKEN = [
    ("y = Add(x, o)", "float"),
    ("a = Cast <to = 10> (x)  y = Add(a, h)", "float16"),
    ("y = Where(c, x, o)", "float"),
    ("a = Cast <to = 1> (h)  y = Max(x, o, a)", "float"),
    ("y = com.microsoft.BiasGelu(x, w)", "float"),
    ("a, b = Dropout(x, o)  y = Neg(a)", "float"),
    (LOOP, "float"),
]


def model_with(nodes: str, types: str) -> onnx.ModelProto:
    output, _, declared = types.partition(", ")
    output = output if "[" in output else f"{output}[7] y"
    weights = f"{HALF}, float[7] w = {{1, 1, 1, 1, 1, 1, 1}}, int64 n = {{3}}"
    weights += f", {declared}" if declared else ""
    inputs = "float[7] x, float16[7] k, bool c"
    return onnx.parser.parse_model(
        f"{HEADER} agraph ({inputs}) => ({output}) <{weights}> {{ {nodes} }}"
    )


def reasons_of(model: onnx.ModelProto) -> list[str]:
    prepared = prepare(ModelFile("<text>", model, 0))
    graph = build(prepared, Request()).graph
    return [reason for _, reason in type_conflicts(prepared.proto, graph)]


@pytest.mark.parametrize(("nodes", "types", "reason"), REFUSED)
def test_a_model_with_contradictory_types_is_rejected(nodes: str, types: str, reason: str) -> None:
    assert reasons_of(model_with(nodes, types))[0] == reason
    found = analyze(model_with(nodes, types), runtimes=("ort-cpu",))
    assert (found.runtimes, found.status) == ((), "partial")
    reported = {finding.code: finding.message for finding in found.findings}
    refused = "onnxruntime rejects the types of the model"
    assert reported["contradictory_types"].startswith(f"{refused}: {reason}")
    assert reported["runtime_failed"].startswith(f"ort-cpu failed: {refused}: {reason}")


@pytest.mark.parametrize(("nodes", "types"), TAKEN)
def test_a_model_with_consistent_types_is_accepted(nodes: str, types: str) -> None:
    assert reasons_of(model_with(nodes, types)) == []


@pytest.mark.measure
@pytest.mark.parametrize("case", [*REFUSED, *TAKEN], ids=lambda case: case[0][:40])
def test_onnxruntime_rejects_the_same_models(case: tuple[str, ...]) -> None:
    ort = pytest.importorskip("onnxruntime")
    require_verified()
    options = ort.SessionOptions()
    options.log_severity_level = 4
    model = model_with(*case[:2]).SerializeToString()
    if case in TAKEN:
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return
    with pytest.raises(Exception, match="Type Error"):
        ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def test_operators_without_a_schema_and_unknown_types_count_as_consistent() -> None:
    text = f"""{HEADER} agraph (float[7] x) => (float16[7] y) {{
        a = acme.Mystery(x)  b = acme.Riddle(a, x)  y = NotAnOperator(b, x)
    }}"""
    assert reasons_of(onnx.parser.parse_model(text)) == []


def test_a_model_with_contradictory_types_is_inferred_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its nodes are not memoized, so that every other batch would infer all of them again."""
    walks: Counter[str] = Counter()
    infer = onnx.shape_inference.infer_shapes

    def counted(*arguments: object, **options: object) -> onnx.ModelProto:
        walks["whole"] += 1
        return infer(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", counted)
    places = range(1, 1201)
    nodes = " ".join(
        f"a{place} = {'Relu' if place % 2 else 'Exp'}(a{place - 1})" for place in places
    )
    text = f"""agraph (float[N,7] a0) => (float[N,7] y) <float16[7] w, float[7] b> {{
        {nodes}  c = Add(a1200, w)  d = Mul(c, w)  y = Add(d, b)
    }}"""
    found = analyze(model_of(text), batch=3, runtimes=("ort-cpu",), asks_onnxruntime=False)
    assert walks["whole"] == 1
    (finding,) = (each for each in found.findings if each.code == "contradictory_types")
    assert finding.message.endswith("but has float32 and float16, and 1 node more")
    assert (found.batch_law, found.total_bytes) == (None, 3 * 7 * 4 * 3 + 7 * 4 + 7 * 2)


@pytest.mark.usefixtures("without_children")
def test_contradictory_types_fail_every_check_and_advice_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "agraph (float[7] x) => (float[7] y) <float16[7] w> { y = Add(x, w) }"
    write_model(tmp_path / "half.onnx", text)
    assert main("check half.onnx --budget-peak 1GB".split()) == 3
    assert "rejects the types" in capsys.readouterr().out
    assert main("advise half.onnx --json".split()) == 3
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert row["error"]["code"] == "type_conflict"
