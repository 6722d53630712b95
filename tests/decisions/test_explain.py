"""What a figure, a code or a message means, and what a model says to it."""

import ast
import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import jsonschema
import pytest
from golden_text import assert_golden
from graphs import model_of
from kv_cache_graphs import growing
from models_on_disk import CONVNET, MYSTERY, write_model
from without_children import work_without_children

import onnxmem
from onnxmem import Analysis
from onnxmem.analysis.fitting.assessing import FitRequest, fit
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli import main
from onnxmem.decisions.explain import out_of_memory
from onnxmem.decisions.explain.glossary import (
    code_named,
    codes,
    metrics,
    metrics_named,
    value_of,
)
from onnxmem.decisions.explain.messages import OutOfMemory, RequestedBytes, read_message
from onnxmem.decisions.explain.out_of_memory import OomReport, oom_report
from onnxmem.errors import ShapeError
from onnxmem.report.explain import render_message
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]
Reports = tuple[Path, list[JsonDict]]
PACKAGE = Path(onnxmem.__file__).parent


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return write_model(tmp_path / "net.onnx")


# Codes.


def emitted_codes() -> set[str]:
    """Every code in the sources of the package."""
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if not any(word in text for word in ("Finding(", "Fault(", " code = ", " code: ")):
            continue
        tree = ast.parse(text)
        constants = {
            target.id: node.value.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for function in ast.walk(tree):
            found |= {str(code) for code in _codes_in(function, constants)}
    return found


def _codes_in(node: ast.AST, constants: dict[str, Any]) -> Iterator[str]:
    for line in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(line, ast.Assign | ast.AnnAssign) and isinstance(line.value, ast.Constant):
            targets = line.targets if isinstance(line, ast.Assign) else [line.target]
            if [target.id for target in targets if isinstance(target, ast.Name)] == ["code"]:
                yield str(line.value.value)
    for call in ast.walk(node) if isinstance(node, ast.FunctionDef) else ():
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"Finding", "Fault"}:
            yield from _first_argument(call.args, node, constants)


def _first_argument(
    arguments: list[ast.expr], function: ast.AST, constants: dict[str, Any]
) -> Iterator[str]:
    """A string, a constant's string, or the strings that a loop iterates over."""
    first = arguments[0] if arguments else None
    if isinstance(first, ast.Constant):
        yield str(first.value)
    elif isinstance(first, ast.Name) and first.id in constants:
        yield constants[first.id]
    elif isinstance(first, ast.Name):
        for node in ast.walk(function):
            if isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                yield str(node.elts[0].value)


def test_every_code_that_anything_emits_is_explained() -> None:
    emitted = emitted_codes()
    assert len(emitted) > 50
    assert not emitted - {code.word for code in codes()}


def test_the_rules_of_a_gate_are_explained() -> None:
    from onnxmem.report.check import _SARIF_RULES

    assert set(_SARIF_RULES) <= {code.word for code in codes()}


def test_codes_are_named_once_and_stand_in_order() -> None:
    numbers = [code.id for code in codes()]
    assert numbers == sorted(set(numbers))
    assert all(len(number) == 5 and number.startswith("OM") for number in numbers)
    assert len({code.word for code in codes()}) == len(numbers)
    assert all(code.title and code.why and code.act for code in codes())


@pytest.mark.parametrize("name", ["OM103", "om103", "batch_fixed", "batch-fixed", "Batch fixed"])
def test_a_code_is_found_by_any_of_its_names(name: str) -> None:
    code = code_named(name)
    assert code is not None
    assert code.word == "batch_fixed"


# Figures.


def sizes_in(row: dict[str, Any], start: str = "") -> Iterator[str]:
    for key, value in row.items():
        if isinstance(value, dict) and key not in {"live_by_kind", "settings"}:
            yield from sizes_in(value, f"{start}{key}.")
        elif key.endswith("bytes"):
            yield f"{start}{key}"


def test_every_size_of_a_report_is_explained() -> None:
    model = model_of(CONVNET)
    row = onnxmem.analyze(model, train=True, batch=4, graph="raw").to_dict()
    other = onnxmem.analyze(model, batch=4, runtimes=("ort-cpu",), asks_onnxruntime=False)
    sizes = {*sizes_in(row), *sizes_in(other.to_dict())}
    explained = {metric.key for metric in metrics()}
    assert sorted(key for key in sizes - explained if not key.startswith("max_batch")) == []


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("held", ["runtime.held_bytes"]),
        ("held_steady_bytes", ["runtime.held_steady_bytes"]),
        ("process", ["runtime.process_bytes"]),
        ("kv cache", ["kv_cache.bytes"]),
        ("a token", ["kv_cache.bytes_per_token"]),
        ("peak", ["activations.in_place_peak_bytes"]),
        ("in-place peak", ["activations.in_place_peak_bytes"]),
        ("arena", ["activations.arena_bytes"]),
        ("saved_activation_bytes", ["training.saved_activation_bytes"]),
        ("training.peak_bytes", ["training.peak_bytes"]),
        ("peak_bytes", ["activations.peak_bytes", "training.peak_bytes"]),
        ("TRAIN", ["training.peak_bytes"]),
        ("total_bytes", ["total_bytes"]),
        ("nothing", []),
    ],
)
def test_a_figure_is_found_by_its_label_its_key_or_its_last_word(
    name: str, keys: list[str]
) -> None:
    assert [metric.key for metric in metrics_named(name)] == keys


def test_a_figure_on_a_model_is_the_sum_of_its_parts() -> None:
    model = model_of(CONVNET)
    run = onnxmem.analyze(model, batch=4)
    step = onnxmem.analyze(model, batch=4, train=True)
    for name, analysis in (("RUN", run), ("peak", run), ("TRAIN", step), ("on cuda", step)):
        (metric,) = metrics_named(name)
        value = value_of(metric, analysis)
        assert value.number == sum(size or 0 for _, size in value.parts)
    (weights,) = metrics_named("weights")
    assert value_of(weights, run).parts[0] == ("weight", 20_480)
    (held,) = metrics_named("held")
    assert value_of(held, run).number is None


BLOCKS = """agraph (float[N,7,31] x) => (float[N,5] y)
    <float[7,13] a, float[13,17] b, float[403,5] c> {
    t = Transpose <perm = [0, 2, 1]> (x) h1 = MatMul (t, a) r1 = Relu (h1)
    s = Sigmoid (r1) p = Mul (r1, s) f = Flatten (p) y = MatMul (f, c) }"""
ASKED = (
    (CONVNET, "--batch 3 --train --optimizer momentum"),
    (CONVNET, "--batch 3 --runtime ort-cpu --emulate-optimizer --order best"),
    (BLOCKS, "--batch 20011 --train"),
    (growing(7), "--batch 3 --context 13"),
    (growing(7), "--batch 3 --context 13 --runtime ort-cuda --emulate-optimizer"),
)


@pytest.mark.parametrize("number", range(len(ASKED)))
def test_an_explained_figure_equals_the_one_of_the_report(
    number: int, reports: Reports, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    """The parts also add up to it, to the byte."""
    folder, rows = reports
    work_without_children(monkeypatch, folder)
    remembered = once_for_each_request(onnxmem.analyze)
    monkeypatch.setattr("onnxmem.analysis.analysis.analyze", remembered)
    _, line = ASKED[number]
    flags = [*line.split(), "--json", *(["--cpu", "avx2"] if "--runtime" in line else [])]
    for metric in metrics():
        words = ["explain", metric.key, f"m{number}.onnx", *flags]
        if metric.needs_training and ("--order" in line or "--context" in line):
            assert main(words) == 2, metric.key
            capsys.readouterr()
            continue
        assert main(words) == 0, metric.key
        explained = json.loads(capsys.readouterr().out)["explained"]
        (found,) = (each for each in explained if each["key"] == metric.key)
        row: Any = rows[number]
        for word in metric.key.split("."):
            row = (row or {}).get(word)
        if metric.key == "activations.peak_rows" and row is not None:
            row = len(row["in_place_peak"])
        asked_for = metric.key.partition(".")[0] in {"training", "runtime"}
        if row is not None or not asked_for:
            assert found["value"] == row, metric.key
        if found["parts"]:
            assert found["value"] == sum(part["bytes"] for part in found["parts"]), metric.key
            assert all(part["bytes"] >= 0 for part in found["parts"]), metric.key


def once_for_each_request(analyze: Callable[..., Analysis]) -> Callable[..., Analysis]:
    """The same function with a cache."""
    made: dict[str, Analysis] = {}

    def remembered(model: str, **settings: object) -> Analysis:
        request = repr((model, settings))
        if request not in made:
            made[request] = analyze(model, **settings)
        return made[request]

    return remembered


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """A folder with the models and their reports."""
    folder = tmp_path_factory.mktemp("explained")
    rows: list[JsonDict] = []
    with pytest.MonkeyPatch.context() as patch:
        work_without_children(patch, folder)
        for number, (text, line) in enumerate(ASKED):
            write_model(folder / f"m{number}.onnx", text)
            words = [f"m{number}.onnx", *line.split(), "--json", "-q", "-o", f"{number}.json"]
            assert main(words + ["--cpu", "avx2"] * ("--runtime" in line)) == 0
            rows += json.loads((folder / f"{number}.json").read_text())["models"]
    return folder, rows


def test_the_parts_of_a_process_have_names() -> None:
    run = onnxmem.analyze(
        model_of(CONVNET), runtimes=("ort-cpu",), asks_onnxruntime=False, cpu="avx2"
    )
    (process,) = metrics_named("process")
    value = value_of(process, run)
    assert [name for name, _ in value.parts][:2] == ["Python and imports", "onnxruntime's library"]
    assert value.number == sum(size or 0 for _, size in value.parts)


# Messages and models.


def inquest_on(text: str, message: str | OutOfMemory, **settings: object) -> OomReport:
    found = read_message(message) if isinstance(message, str) else message
    assert found is not None
    return oom_report(found, question(text, **settings))


def question(text: str, **settings: object) -> AnalysisRequest:
    return request_of(model_of(text), Settings(**settings))  # type: ignore[arg-type]


def test_tensors_of_a_size_are_listed_with_their_producers() -> None:
    """The outputs of conv and relu have 8 x 16 x 16 floats per sample, 8,192 bytes."""
    inquest = inquest_on(
        CONVNET, "OOM when allocating tensor with shape[5,16,16,8] and type float", batch=5
    )
    assert [(each.tensor, each.node, each.op_type) for each in inquest.at_batch] == [
        ("h", "conv", "Conv"),
        ("r", "relu", "Relu"),
    ]
    assert [each.shape for each in inquest.at_batch] == [(5, 8, 16, 16)] * 2
    assert [(each.tensor, each.batch) for each in inquest.at_others] == [
        ("p", 20),
        ("f", 20),
        ("scores", 1024),
    ]


def test_the_batch_of_a_size_is_found() -> None:
    """5 x 2,048 bytes are p at batch 5; h has no such batch, as 8,192 does not divide 10,240."""
    inquest = inquest_on(
        CONVNET, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 10240 bytes."
    )
    assert (inquest.batch, inquest.at_batch) == (1, ())
    assert [(each.tensor, each.batch, each.shape) for each in inquest.at_others] == [
        ("p", 5, (5, 8, 8, 8)),
        ("f", 5, (5, 512)),
        ("scores", 256, (256, 10)),
    ]


def test_bytes_of_an_input_are_found() -> None:
    inquest = inquest_on(
        CONVNET, "DefaultCPUAllocator: not enough memory: you tried to allocate 9216 bytes", batch=3
    )
    (candidate,) = inquest.at_batch
    assert (candidate.tensor, candidate.role, candidate.node) == ("image", "input", None)


def test_sizes_that_no_tensor_has_are_reported() -> None:
    message = OutOfMemory(program="x", meaning="y", sizes=RequestedBytes(7, 7))
    inquest = inquest_on(CONVNET, message, batch=2)
    assert (inquest.at_batch, inquest.at_others, inquest.is_pattern_block) == ((), (), False)
    fixed = "agraph (float[5] x) => (float[5] y) { y = Exp(x) }"
    assert inquest_on(fixed, message).at_others == ()


@pytest.mark.usefixtures("without_children")
def test_the_named_node_comes_first() -> None:
    text = """Non-zero status code returned while running FusedConv node. Name:'relu_nchwc' Status
        Message: bfc_arena.cc Failed to allocate memory for requested buffer of size 16384"""
    inquest = inquest_on(CONVNET, text, batch=2)
    first = inquest.at_batch[0]
    assert (first.node, first.is_named) == ("relu", True)
    assert [each.is_named for each in inquest.at_batch[1:]].count(True) <= 1


@pytest.mark.usefixtures("without_children")
def test_a_memory_pattern_buffer_is_found() -> None:
    text = """agraph (float[N,64] x) => (float[N,1] y) {
        a = Exp(x) b = Concat <axis = 1> (a, a) y = ReduceSum <keepdims = 1> (b) }"""
    shape = text.replace("ReduceSum <keepdims = 1> (b)", "ReduceMax(b)")
    model = shape.replace("float[N,1] y", "y")
    probe = inquest_on(model, "Failed to allocate memory for requested buffer of size 256", batch=4)
    block_bytes = probe.pattern_block_bytes
    assert block_bytes
    inquest = inquest_on(
        model, f"Failed to allocate memory for requested buffer of size {block_bytes}", batch=4
    )
    assert inquest.is_pattern_block
    assert not probe.is_pattern_block


def test_allocations_of_a_training_step_are_found() -> None:
    text = "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 2.00 GiB"
    inquest = inquest_on(CONVNET, text, batch=2, train=True)
    assert inquest.basis.value == "pytorch-cuda"
    assert inquest.num_at_batch > len(inquest.at_batch)
    assert inquest.fit_result is not None
    assert inquest.fit_result.max_batch is not None
    assert inquest.fit_result.max_batch.number
    cpu = "DefaultCPUAllocator: not enough memory: you tried to allocate 655360 bytes"
    step = inquest_on(CONVNET, cpu, batch=2, train=True)
    assert step.basis.value == "training-peak"
    assert {each.graph for each in step.at_others} == {"file", "training"}


def test_the_largest_batch_of_a_capacity_fits_and_one_more_does_not() -> None:
    message = OutOfMemory(program="x", meaning="y", capacity_bytes=1_000_000)
    answer = inquest_on(CONVNET, message, batch=2).fit_result
    assert answer is not None
    reach = answer.max_batch
    assert reach is not None
    assert reach.number is not None
    totals = [
        onnxmem.analyze(model_of(CONVNET), batch=reach.number + more).total_bytes for more in (0, 1)
    ]
    assert totals[0] is not None
    assert totals[1] is not None
    assert totals[0] <= 1_000_000 < totals[1]


@pytest.mark.parametrize("train", [False, True])
def test_candidates_that_are_live_at_the_peak_are_marked_and_come_first(*, train: bool) -> None:
    """By hand: a tensor of the live set at the peak, at this batch and at another one."""
    analysis = onnxmem.analyze(model_of(CONVNET), batch=8, train=train)
    live = analysis.training.live_at_peak() if analysis.training else ()
    labels = {each.label for each in live or analysis.activations.live_at_peak}
    labels &= {*analysis.graph.tensors}
    marked: dict[str, bool | None] = {}
    for tensor in analysis.graph.tensors.values():
        size = tensor.size_bytes or 0
        message = OutOfMemory(program="x", meaning="y", sizes=RequestedBytes(size, size))
        report = inquest_on(CONVNET, message, batch=8, train=train)
        flags = [each.is_live_at_peak for each in report.at_batch]
        assert flags == sorted(flags, key=lambda flag: not flag)
        marked |= {each.tensor: each.is_live_at_peak for each in report.at_batch}
    stored = {each.name for each in analysis.graph.tensors.values() if each.role != "activation"}
    assert labels
    assert {name for name in labels if marked[name]} == labels
    assert all(marked[name] for name in stored if name in marked)
    assert False in marked.values()


@pytest.mark.parametrize(
    ("share", "percent", "means"),
    [
        (1.0, 0, "as predicted"),
        (2.0, 100, "more than this model takes"),
        (0.5, -50, "on its way to the predicted peak"),
    ],
)
def test_the_need_of_a_run_is_compared_with_the_prediction(
    share: float, percent: float, means: str
) -> None:
    """PyTorch's message says what tensors had and the request: their sum, with the step's peak."""
    request = question(CONVNET, batch=64, train=True)
    training = request.results.training
    assert training is not None
    peak_bytes = training.peak_bytes or 0
    message = OutOfMemory(
        program="PyTorch on CUDA",
        meaning="",
        sizes=RequestedBytes(1, peak_bytes // 4),
        allocated_bytes=round(peak_bytes * share) - peak_bytes // 4,
    )
    distance = oom_report(message, request).distance
    assert distance is not None
    assert distance.percent == pytest.approx(percent, abs=0.1)
    assert means in distance.meaning


def test_a_message_that_says_no_need_is_compared_with_nothing() -> None:
    message = read_message("CUDA error: out of memory")
    assert message is not None
    assert oom_report(message, question(CONVNET, batch=64)).distance is None


def test_a_model_with_unknown_bytes_has_no_largest_batch() -> None:
    message = OutOfMemory(program="x", meaning="y", capacity_bytes=10**6)
    inquest = inquest_on(MYSTERY, message, batch=2)
    assert inquest.fit_result is not None
    assert (inquest.fit_result.verdict, inquest.fit_result.max_batch) == (Verdict.UNKNOWN, None)
    assert [doubt.code for doubt in inquest.fit_result.doubts] == ["partial"]


def test_a_tensor_of_another_batch_is_held_against_the_peak_there() -> None:
    analysis = onnxmem.analyze(model_of(CONVNET), batch=32)
    largest = analysis.activations.live_at_peak[0]
    sizes = RequestedBytes(largest.size_bytes, largest.size_bytes)
    report = inquest_on(CONVNET, OutOfMemory(program="x", meaning="y", sizes=sizes), batch=8)
    found = {each.tensor: each for each in report.at_others}
    assert (found[largest.label].batch, found[largest.label].is_live_at_peak) == (32, True)


@pytest.mark.usefixtures("without_children")
def test_a_session_that_cannot_be_replayed_does_not_affect_other_results(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> None:
        raise ShapeError

    monkeypatch.setattr(out_of_memory, "_sessions", refuse)
    inquest = inquest_on(CONVNET, ARENA, batch=128)
    assert inquest.pattern_block_bytes is None
    assert {each.graph for each in inquest.at_batch} == {"file"}


def test_the_text_of_a_block_and_a_capacity() -> None:
    message = OutOfMemory(
        program="x", meaning="y", sizes=RequestedBytes(9, 9), capacity_bytes=10**6, node="n"
    )
    inquest = inquest_on(CONVNET, message, batch=2)
    block = replace(inquest, is_pattern_block=True, pattern_block_bytes=9)
    text = render_message(message, "m", block)
    assert "it has that size" in text
    assert "at                        n" in text
    assert inquest.fit_result is not None
    for reach, told in (
        (None, "unknown: bytes at 1 are a lower bound"),
        (MaxBatch(None, 1, None, "bisection"), "no limit"),
    ):
        answer = replace(inquest.fit_result, max_batch=reach)
        assert told in render_message(message, "m", replace(inquest, fit_result=answer))
    assert "takes                     unknown" in render_message(
        message, "m", replace(inquest, assessment=None, fit_result=None)
    )


# As a command.

PYTORCH = (
    "CUDA out of memory. Tried to allocate 40.00 MiB (GPU 0; 2.00 GiB total capacity; 1.1 GiB "
    "already allocated; 12.00 MiB free; 1.2 GiB reserved in total by PyTorch)"
)
ARENA = (
    "Non-zero status code returned while running Conv node. Name:'conv' Status Message: "
    "bfc_arena.cc:376 Failed to allocate memory for requested buffer of size 1048576"
)


@pytest.mark.parametrize(
    ("golden", "words"),
    [
        ("list", []),
        ("code", ["OM301"]),
        ("metric", ["peak", "net.onnx", "--batch", "4"]),
        ("macs", ["macs", "net.onnx"]),
        ("several", ["peak_bytes"]),
        ("pytorch", [PYTORCH, "net.onnx", "--train", "--batch", "4000"]),
        (
            "onnxruntime",
            [ARENA, "net.onnx", "--batch", "4", "--cpu", "avx512", "--emulate-optimizer"],
        ),
        ("shape", ["OOM when allocating tensor with shape[7,8,16,16] and type float"]),
        ("nothing", ["DefaultCPUAllocator: tried to allocate 7 bytes", "net.onnx"]),
        ("killed", ["Killed process 3 (python) total-vm:9kB, anon-rss:7kB", "net.onnx"]),
    ],
)
@pytest.mark.usefixtures("net")
def test_the_text_of_explanations(golden: str, words: list[str], capsys: Capture) -> None:
    assert main(["explain", *words]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert_golden(out, f"explain_{golden}.txt")


@pytest.mark.usefixtures("net")
def test_figures_of_a_runtime_and_of_a_step_are_computed_when_explained(capsys: Capture) -> None:
    for name, kind in (("held", "runtime"), ("saved", "training"), ("CUDA context", "runtime")):
        assert main(["explain", name, "net.onnx", "--json", "--emulate-optimizer"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["explained"]
        assert row["key"].startswith(kind)
        assert row["value"] > 0


@pytest.mark.usefixtures("without_children", "net")
@pytest.mark.parametrize("words", [[], ["OM001"], ["peak", "net.onnx"], [ARENA, "net.onnx"]])
def test_json_equals_the_text(words: list[str], capsys: Capture) -> None:
    assert main(["explain", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    row = {"type": "object", "required": ["kind"]}
    schema = {
        "type": "object",
        "required": ["schema", "schema_version", "tool", "model", "explained"],
        "properties": {"explained": {"type": "array", "items": row, "minItems": 1}},
    }
    jsonschema.validate(document, schema)
    assert document["schema"] == "onnxmem.explain"


@pytest.mark.usefixtures("without_children", "net")
def test_a_message_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(f"log\n{ARENA}\nlog\n".encode()))
    monkeypatch.setattr("sys.stdin", stdin)
    assert main(["explain", "-", "net.onnx", "--batch", "4", "--json", "-o", "why.json"]) == 0
    assert capsys.readouterr() == ("", "Wrote why.json\n")
    (row,) = json.loads(Path("why.json").read_text())["explained"]
    assert (row["node"], row["model"]["batch"]) == ("conv", 4)


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["hold"], 2, "did you mean"),
        (["qqqq"], 2, "onnxmem explain lists"),
        (["peak", "gone.onnx"], 2, "missing_file"),
        ([ARENA, "bad.onnx"], 3, "model_file"),
        (["peak", "net.onnx", "--shape", "image:1"], 2, "shape"),
        (["peak", "net.onnx", "-o", "net.onnx", "--force"], 2, "is a model"),
    ],
)
def test_an_error_is_one_line(words: list[str], code: int, told: str, capsys: Capture) -> None:
    Path("bad.onnx").write_bytes(b"no model at all")
    assert main(["explain", *words]) == code
    err = capsys.readouterr().err
    assert told in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("without_children")
@pytest.mark.parametrize(
    ("text", "basis"),
    [
        (ARENA, Basis.ORT_CPU),
        (f"CUDAExecutionProvider: {ARENA}", Basis.TOTAL),
        ("DefaultCPUAllocator: tried to allocate 7 bytes", Basis.TOTAL),
    ],
)
def test_onnxruntime_on_the_cpu_is_compared_as_a_process(text: str, basis: Basis) -> None:
    message = read_message(text)
    assert message is not None
    assert inquest_on(CONVNET, message, batch=2).basis is basis


@pytest.mark.usefixtures("net")
def test_a_message_that_names_no_device_may_be_of_a_gpu(capsys: Capture) -> None:
    for text, is_open in ((ARENA, True), (f"CUDAExecutionProvider: {ARENA}", False)):
        assert main(["explain", text, "net.onnx", "--batch", "4"]) == 0
        assert ("add --runtime ort-cuda" in capsys.readouterr().out) is is_open


@pytest.mark.usefixtures("net")
@pytest.mark.parametrize(("capacity", "follows"), [("64.00 KiB", True), ("8.00 GiB", False)])
def test_a_model_that_does_not_fit_names_the_next_command(
    capacity: str, follows: bool, capsys: Capture
) -> None:
    text = f"CUDA out of memory. Tried to allocate 2.00 MiB (GPU 0; {capacity} total capacity)"
    assert main(["explain", text, "net.onnx", "--batch", "4"]) == 0
    out = capsys.readouterr().out
    command, found = "next                      onnxmem fit net.onnx --device", "at batch 4  "
    assert (command in out) is follows
    assert not follows or out.index(command) < out.index(found)


def asked(*words: str, stdin: bytes | IO[bytes] = b"") -> str:
    """What another process prints, whose stdin is a pipe or a file."""
    given: dict[str, Any] = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    command = [sys.executable, "-m", "onnxmem", "explain", *words]
    printed: subprocess.CompletedProcess[bytes] = subprocess.run(
        command, capture_output=True, check=True, **given
    )
    return printed.stdout.decode()


def test_a_message_is_read_from_a_log(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(f"step 1\n{ARENA}\ndone\n", encoding="utf-8")
    with log.open("rb") as file:
        answer = asked(stdin=file)
    assert answer.startswith("Message  ")
    assert asked(str(log)) == answer
    assert asked(stdin=log.read_bytes()) == answer


def test_nothing_on_stdin_lists_what_is_known() -> None:
    assert asked().startswith("Figures\n")


def test_a_text_without_a_message_is_no_question(tmp_path: Path, capsys: Capture) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\n", encoding="utf-8")
    assert main(["explain", str(script)]) == 2
    assert "train.py: no out-of-memory message is in it" in capsys.readouterr().err


MEMORY = 6 * 2**30
OLD = (
    "CUDA out of memory. Tried to allocate 294.00 MiB (GPU 0; 6.00 GiB total capacity; "
    "4.50 GiB already allocated; 100.00 MiB free; 5.10 GiB reserved in total by PyTorch)"
)
NEW = (
    "CUDA out of memory. Tried to allocate 294.00 MiB. GPU 0 has a total capacity of 6.00 GiB of "
    "which 100.00 MiB is free. Including non-PyTorch memory, this process has 5.50 GiB memory in "
    "use. Of the allocated memory 4.50 GiB is allocated by PyTorch, and 614.40 MiB is reserved by "
    "PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("text", "context_gib", "others_gib"),
    [
        (OLD, 6 - 5.1 - 100 / 1024, 0),
        (NEW, 5.5 - 4.5 - 0.6, 6 - 5.5 - 100 / 1024),
    ],
)
def test_the_largest_batch_of_a_message_is_that_beside_its_context(
    text: str, context_gib: float, others_gib: float
) -> None:
    """The verdict is that of ``fit`` with the context and the other processes of the message."""
    message = read_message(text)
    assert message is not None
    request = question(CONVNET, batch=64, train=True)
    report = oom_report(message, request)
    result = report.fit_result
    assert result is not None
    assert report.has_own_context
    context = result.footprint.context
    assert context.size_bytes == pytest.approx(context_gib * 2**30, abs=2**24)
    assert context.source.startswith("of the message: ")
    assert result.setup.reserve_bytes == pytest.approx(others_gib * 2**30, abs=2**24)
    own = question(CONVNET, batch=64, train=True, cuda_context_bytes=context.size_bytes)
    setup = FitRequest(
        memory_bytes=MEMORY, reserve_bytes=result.setup.reserve_bytes, basis=Basis.TORCH
    )
    beside = fit((own,), setup)
    assert result.max_batch == beside.max_batch
    empty = fit((request,), FitRequest(memory_bytes=MEMORY, basis=Basis.TORCH))
    assert result.max_batch != empty.max_batch


def test_a_context_that_is_specified_stays() -> None:
    message = read_message(OLD)
    assert message is not None
    request = question(CONVNET, batch=64, train=True, cuda_context_bytes=2**29)
    report = oom_report(message, request)
    assert not report.has_own_context
    assert report.assessment is not None
    assert report.assessment.footprint.context.size_bytes == 2**29


def test_a_message_without_what_is_reserved_has_no_context() -> None:
    text = "CUDA out of memory. Tried to allocate 294.00 MiB (GPU 0; 6.00 GiB total capacity)"
    assert not inquest_on(CONVNET, text, batch=64, train=True).has_own_context


@pytest.mark.parametrize("runtimes", [("ort-cpu",), ("ort-cuda",), ()])
@pytest.mark.parametrize("device", [None, "GPU 0"])
def test_a_session_of_the_cuda_provider_has_its_own_kernels(
    runtimes: tuple[str, ...], device: str | None
) -> None:
    """On the CPU the convolution has its output in another layout, which a kernel reorders."""
    size = 64 * 8_192
    message = OutOfMemory(
        program="onnxruntime", meaning="", sizes=RequestedBytes(size, size), device=device
    )
    settings = {"batch": 64, "runtimes": runtimes, "cpu": "avx2", "asks_onnxruntime": False}
    report = inquest_on(CONVNET, message, **settings)
    own = {each.tensor for each in report.at_batch if each.graph == "session"}
    is_on_cpu = runtimes == ("ort-cpu",) if runtimes else device is None
    assert any("_nchwc" in each or "reorder" in each for each in own) is is_on_cpu
    assert "r" in {each.tensor for each in report.at_batch}


@pytest.mark.parametrize("name", ["FLOPs", "MACs", "params"])
def test_operations_parameters_and_memory_are_answered_together(
    name: str, net: str, capsys: Capture
) -> None:
    """The net has 3 x 8 x 3 x 3 + 8 weights and biases, and those of its last layer."""
    analysis = onnxmem.analyze(net)
    assert main(["explain", name, net]) == 0
    first, *others = capsys.readouterr().out.split("\n\n")[0].splitlines()
    found = analysis.compute
    exact = {
        "FLOPs": found.forward_flops,
        "MACs": found.forward_macs,
        "params": analysis.num_parameters,
    }
    assert first.split()[-4].replace(",", "") == str(exact.pop(name))
    for each in exact.values():
        assert any(line.replace(",", "").endswith(str(each)) for line in others)
    assert any("MiB" in line or "KiB" in line for line in others)
