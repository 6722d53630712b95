"""Settings written out: Python that runs, a settings file, and Triton's protobuf text."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import model_of
from models_on_disk import HOSTILE, write_model
from onnx.numpy_helper import from_array, to_array
from session_graphs import GAP

from onnxmem.analysis.request import AnalysisRequest
from onnxmem.cli import main
from onnxmem.decisions.advise.advising import advised
from onnxmem.decisions.advise.emitting import session_code, settled, triton_config
from onnxmem.model.building import prepare
from onnxmem.model.files import load
from onnxmem.runtimes.from_settings import advise
from onnxmem.runtimes.onnxruntime.advice import option_lines
from onnxmem.runtimes.onnxruntime.providers import PROVIDERS
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]
CHAIN = """agraph (float[N,64] x) => (float[N,64] y) {
    a = Exp(x) b = Concat <axis = 1> (a, a) c = ReduceSum <keepdims = 1> (b) y = Mul(a, c) }"""


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "gap.onnx", GAP)
    write_model(tmp_path / "chain.onnx", CHAIN)


def emitted(line: str, capsys: Capture) -> str:
    assert main(["advise", *line.split(), "--emulate-optimizer"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


# Python.


@pytest.mark.parametrize("flags", ["", "--runtime ort-cuda", "--fixed-dims"])
def test_the_emitted_text_is_python(flags: str, capsys: Capture) -> None:
    text = emitted(f"chain.onnx --batch 8 --emit python {flags}", capsys)
    compile(text, "<emitted>", "exec")
    assert text.count("providers = ") == 1
    assert text.count("run_options = ") == 1


@pytest.mark.measure
def test_a_session_opens_and_runs_with_the_emitted_settings(capsys: Capture) -> None:
    pytest.importorskip("onnxruntime")
    text = emitted("gap.onnx --emit python", capsys)
    assert "options.enable_mem_pattern = False" in text
    run = """
import numpy
(y,) = session.run(None, {"x": numpy.ones((1,), numpy.float32)}, run_options)
print(y.shape, options.enable_mem_pattern)
"""
    done = subprocess.run(
        [sys.executable, "-c", text + run], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "(1,) False\n")


def test_a_hostile_path_stays_a_string(capsys: Capture) -> None:
    name = HOSTILE.replace("/", "") + ".onnx"
    write_model(Path(name), GAP)
    assert main(["advise", name, "--emit", "python", "--emulate-optimizer"]) == 0
    text = capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    (line,) = re.findall(r"(?m)^MODEL = (.*)$", text)
    assert eval(line) == name  # noqa: S307


def test_the_changes_of_a_budget_are_emitted(capsys: Capture) -> None:
    text = emitted("chain.onnx --batch 8 --budget 5000B --emit python", capsys)
    assert "within 5,000 B" in text
    assert "# also needed: --batch" in text or "# also needed: convert" in text


def heavy(folder: Path) -> None:
    """A model of which most is one weight, in its file."""
    model = model_of("agraph (float[N,1009] x) => (float[N,1013] y) { y = MatMul(x, w) }")
    weight = from_array(np.ones((1009, 1013), np.float32), "w")
    model.graph.initializer.append(weight)
    onnx.save(model, folder / "heavy.onnx")


def test_what_the_load_leaves_is_advised_and_emitted(tmp_path: Path, capsys: Capture) -> None:
    heavy(tmp_path)
    text = emitted("heavy.onnx --batch 1", capsys)
    assert {"external_data", "external_thresholds", "malloc_trim"} <= {*text.split()}
    code = emitted("heavy.onnx --batch 1 --emit python", capsys)
    assert "save_as_external_data=True" in code or "malloc_trim(0)" in code
    assert re.search(r"# process: [\d,]+ B instead of [\d,]+ B, with", code)
    document = json.loads(emitted("heavy.onnx --batch 1 --emit json", capsys))
    (change,) = document["changes"]
    session = document["session"]
    found = {
        "weights": session["weights"],
        "malloc_threshold_bytes": session["malloc_threshold_bytes"],
        "trims_heap": session["malloc_trim"],
    }
    assert {k: v for k, v in found.items() if v} == change["settings"]


@pytest.mark.parametrize(
    "options",
    [
        SessionOptions(trims_heap=True),
        SessionOptions(malloc_threshold_bytes=131_072),
        SessionOptions(weights="external"),
        SessionOptions(weights="inline"),
    ],
)
def test_code_that_sets_a_process_runs(tmp_path: Path, options: SessionOptions) -> None:
    pytest.importorskip("onnxruntime")
    heavy(tmp_path)
    lines = option_lines(SessionOptions(), options, PROVIDERS["ort-cpu"])
    if options.weights is not None:
        onnx.save_model(
            onnx.load("heavy.onnx"),
            f"{options.weights}.onnx",
            save_as_external_data=options.weights == "external",
            location="external.data",
        )
    code = session_code("heavy.onnx", "ort-cpu", lines, ())
    is_trim = options.trims_heap
    assert (code.index("malloc_trim") > code.index("InferenceSession(")) if is_trim else True
    code += "\nprint(MODEL)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    expected = "heavy.onnx" if options.weights is None else f"{options.weights}.onnx"
    assert (done.returncode, done.stderr, done.stdout) == (0, "", f"{expected}\n")


def test_advised_lines_move_weights_that_are_stored_as_numbers(tmp_path: Path) -> None:
    """``onnx.save_model`` moves raw data alone; the lines store other floats so before."""
    model = model_of("agraph (float[N,509] x) => (float[N,509] y) { y = Add(x, w) }")
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [509], range(509))
    model.graph.initializer.append(weight)
    onnx.save(model, tmp_path / "typed.onnx")
    options = SessionOptions(weights="external")
    lines = option_lines(SessionOptions(), options, PROVIDERS["ort-cpu"])
    once = [line[4:] for line in lines if line.startswith("#   ")]
    code = "\n".join(["import onnx", "MODEL = 'typed.onnx'", *once])
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    assert (tmp_path / "external.data").stat().st_size == 4 * 509
    moved = onnx.load(tmp_path / "external.onnx").graph.initializer[0]
    assert to_array(moved).tolist() == [*range(509)]


# A settings file.


def test_a_settings_file_has_the_model_and_the_changes(capsys: Capture) -> None:
    document = json.loads(emitted("gap.onnx --emit json", capsys))
    assert document["schema"] == "onnxmem.settings"
    assert document["session"]["enable_mem_pattern"] is False
    assert (document["training"], document["changes"]) == (None, [])


def test_a_training_configuration_is_emitted(capsys: Capture) -> None:
    document = json.loads(
        emitted("net.onnx --train --batch 64 --budget 800KiB --basis tensors --emit json", capsys)
    )
    assert document["session"] is None
    assert document["after_bytes"] <= 800 * 1024 < document["before_bytes"]
    (change,) = document["changes"]
    for name, value in change["settings"].items():
        assert document[name] == value if name == "batch" else document["training"][name] == value
    first = json.loads(emitted("net.onnx --train --batch 64 --basis tensors --emit json", capsys))
    assert len(first["changes"]) == 1


@pytest.mark.parametrize("form", ["python", "triton"])
def test_a_session_cannot_emit_training_settings(form: str, capsys: Capture) -> None:
    assert main(f"advise net.onnx --train --emit {form}".split()) == 2
    assert "does not train; use --emit json" in capsys.readouterr().err


def test_fixed_dims_cannot_be_emitted_for_a_server(capsys: Capture) -> None:
    words = "advise net.onnx --runtime ort-cpu --emulate-optimizer --fixed-dims --emit triton"
    assert main(words.split()) == 2
    assert "--emit triton: the backend does not support fixed dims" in capsys.readouterr().err


# Triton.

_TOKEN = re.compile(r'\s*(?:#[^\n]*\n\s*)*("(?:[^"\\]|\\.)*"|[\w.+-]+|[{}\[\]:,])')


def parsed(text: str) -> dict[str, list[Any]]:
    """Protobuf's text format, as far as a configuration needs it."""
    tokens = [match[1] for match in _TOKEN.finditer(text)]
    assert "".join(tokens) == re.sub(r"(?m)^#.*$|\s(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", "", text)
    rest = iter([*tokens, ""])
    found, last = _message(rest, next(rest))
    assert last == ""
    return found


def _message(rest: Iterator[str], token: str) -> tuple[dict[str, list[Any]], str]:
    fields: dict[str, list[Any]] = {}
    while re.fullmatch(r"[a-z_]+", token):
        name, token = token, next(rest)
        if token == ":":  # noqa: S105
            token = next(rest)
        values, token = _values(rest, token)
        fields.setdefault(name, []).extend(values)
    return fields, token


def _values(rest: Iterator[str], token: str) -> tuple[list[Any], str]:
    if token == "{":  # noqa: S105 - a token of a grammar
        inner, end = _message(rest, next(rest))
        assert end == "}"
        return [inner], next(rest)
    if token == "[":  # noqa: S105
        values: list[Any] = []
        token = next(rest)
        while token != "]":  # noqa: S105
            found, token = _values(rest, token)
            values += found
        return values, next(rest)
    value = token[1:-1] if token.startswith('"') else token
    return [value], next(rest)


def parameters(config: dict[str, list[Any]]) -> dict[str, str]:
    return {each["key"][0]: each["value"][0]["string_value"][0] for each in config["parameters"]}


def test_a_model_servers_configuration_is_emitted(capsys: Capture) -> None:
    config = parsed(emitted("chain.onnx --batch 8 --emit triton", capsys))
    assert config["backend"] == ["onnxruntime"]
    assert config["max_batch_size"] == ["8"]
    assert config["instance_group"] == [{"count": ["1"], "kind": ["KIND_CPU"]}]
    assert parameters(config)["enable_mem_arena"] == "1"


def test_a_model_without_a_batch_dim_is_not_batched(capsys: Capture) -> None:
    config = parsed(emitted("gap.onnx --emit triton", capsys))
    assert config["max_batch_size"] == ["0"]
    assert parameters(config)["enable_mem_pattern"] == "0"


def test_on_a_gpu_the_arena_growth_is_a_provider_option(capsys: Capture) -> None:
    text = emitted("gap.onnx --runtime ort-cuda --graph ort-basic --emit triton", capsys)
    (optimization,) = parsed(text)["optimization"]
    assert optimization["graph"] == [{"level": ["-1"]}]
    (accelerators,) = optimization["execution_accelerators"]
    assert accelerators["gpu_execution_accelerator"] == [
        {
            "name": ["cuda"],
            "parameters": [{"key": ["arena_extend_strategy"], "value": ["kSameAsRequested"]}],
        }
    ]


def test_shrinkage_is_a_parameter_and_unsupported_settings_are_reported() -> None:
    file = load("gap.onnx")
    requested = Settings(runtimes=("ort-cpu",), asks_onnxruntime=False)
    session = advise(file, requested)
    question = AnalysisRequest(file, prepare(file), Settings(), file)
    found = settled(advised(question, session=session), session)
    assert found.session is not None
    shrinks = replace(found.session, options=SessionOptions(shrinks_arena=True))
    config = parsed(triton_config(replace(found, session=shrinks)))
    assert parameters(config)["memory.enable_memory_arena_shrinkage"] == "cpu:0"
    fixed = replace(found.session, options=SessionOptions(fixed_dims=True), changes=("fixed dims",))
    text = triton_config(replace(found, session=fixed))
    assert "# this backend does not support the best options (fixed dims)" in text


def test_the_settings_that_meet_a_budget_are_emitted(capsys: Capture) -> None:
    line = "chain.onnx --batch 300000 --runtime ort-cpu --emit json"
    before = json.loads(emitted(line, capsys))["before_bytes"]
    document = json.loads(emitted(f"{line} --budget {before - 4096}", capsys))
    (change,) = document["changes"]
    if change["id"] == "session_pattern":
        assert document["session"]["enable_mem_pattern"] is False
    assert change["id"].startswith(("session", "batch"))
    assert document["after_bytes"] <= before - 4096


@pytest.mark.slow
def test_tritons_own_message_parses_the_configuration(capsys: Capture) -> None:
    pb2 = pytest.importorskip("tritonclient.grpc.model_config_pb2")
    from google.protobuf import text_format

    for line in ("chain.onnx --batch 8", "gap.onnx --runtime ort-cuda --graph ort-basic"):
        config = text_format.Parse(emitted(f"{line} --emit triton", capsys), pb2.ModelConfig())
        assert config.backend == "onnxruntime"
