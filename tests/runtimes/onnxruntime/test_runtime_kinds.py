"""Models in onnxruntime's own style, each shape and type held against what it makes of them.

Every model is run by onnxruntime without optimization, in a child, all that its nodes make put out
where that works. No shape may be wrong, none may be open but those that only elements tell, and no
model may stop the analysis.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from installed_runtime import require_verified
from runtime_kinds import KINDS, running
from runtime_kinds.kind import Kind
from runtime_kinds.running import Made, Refusal, Run

from onnxmem.cli import main
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.model.input_values import with_input_values

NAMES = {"float": "float32", "double": "float64"}
RUN = [kind for kind in KINDS if kind.runs]


@cache
def results() -> dict[str, Run | Refusal]:
    """The run of every kind of model in onnxruntime, by its name."""
    return running.run_all(RUN)


def run_or_skip(result: Run | Refusal) -> Run:
    """The run; skips the test if this CPU lacks a kernel, and fails it on any other error."""
    if isinstance(result, Run):
        return result
    if result.is_cpu:
        pytest.skip(f"onnxruntime cannot run it on this CPU: {result.message}")
    pytest.fail(f"onnxruntime did not run it: {result.message}")


def wrong(graph: Graph, made: Mapping[str, Made]) -> Iterator[str]:
    """Known facts about a tensor that are wrong."""
    for name, (elem_type, dims) in made.items():
        tensor = graph.tensors[name]
        real = elem_type.removeprefix("tensor(").removesuffix(")")
        if tensor.dtype is not None and tensor.dtype.value != NAMES.get(real, real):
            yield f"{name} is {real}, not {tensor.dtype.value}"
        known = tensor.shape if tensor.shape is not None else (None,) * len(dims)
        pairs = zip(known, dims, strict=False)
        if len(known) != len(dims) or any(a not in {None, b} for a, b in pairs):
            yield f"{name} is {dims}, not {tensor.shape}"


def unknown(graph: Graph, made: Mapping[str, Made]) -> set[str]:
    """Tensors without a complete shape and type."""
    tensors = (graph.tensors[name] for name in made)
    return {t.name for t in tensors if t.num_elements is None or t.dtype is None}


@pytest.mark.measure
@pytest.mark.parametrize("kind", RUN, ids=lambda kind: kind.name)
def test_shapes_equal_those_of_an_inference(kind: Kind) -> None:
    pytest.importorskip("onnxruntime")
    require_verified()
    ran = run_or_skip(results()[kind.name])
    made = {**ran.outputs, **ran.inner}
    assert made
    prepared = prepare(load(kind.make().SerializeToString()))
    bound = build(prepared, Request(shapes={n: dims for n, dims in ran.shapes.items() if dims}))
    assert list(wrong(bound.graph, made)) == []
    assert unknown(bound.graph, made) <= {*kind.open}
    given = with_input_values(prepared, bound, numbers(kind)).graph
    assert list(wrong(given, made)) == []
    assert unknown(given, made) <= unknown(bound.graph, made)


def test_a_kernel_that_this_cpu_lacks_skips_its_kind() -> None:
    message = "MatMulFpQ4: 4b quantization not yet supported on this hardware platform!"
    with pytest.raises(pytest.skip.Exception, match=message):
        run_or_skip(Refusal(message))


@pytest.mark.parametrize(
    "message",
    ["INVALID_GRAPH: no such operator", "Got invalid dimensions", "int4 not supported on CPU EP"],
)
def test_any_other_refusal_fails_its_kind(message: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        run_or_skip(Refusal(message))


def test_a_crash_costs_one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[list[str]] = []
    first, second, third = RUN[:3]

    def run_child(names: list[str]) -> CompletedProcess[str]:
        requested.append(names)
        done = f'["{names[0]}", [{{"x": [2]}}, {{"y": ["tensor(float)", [2]]}}, {{}}]]\n'
        return CompletedProcess([], -11 if len(names) > 1 else 0, done, "Segmentation fault")

    monkeypatch.setattr(running, "_run_child", run_child)
    found = running.run_all([first, second, third])
    ran = Run({"x": (2,)}, {"y": ("tensor(float)", (2,))}, {})
    crash = Refusal("the process ended with code -11: Segmentation fault")
    assert found == {first.name: ran, second.name: crash, third.name: ran}
    assert requested == [[first.name, second.name, third.name], [third.name]]


def numbers(kind: Kind) -> dict[str, tuple[float | bool, ...]]:
    """The feeds of a kind of model, except for inputs of strings."""
    return {
        name: tuple(each for each in elements if not isinstance(each, str))
        for name, elements in kind.feeds.items()
        if elements and not isinstance(elements[0], str)
    }


def test_the_command_line_analyzes_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, kind in enumerate(KINDS):
        (tmp_path / f"{place:03}.onnx").write_bytes(kind.make().SerializeToString())
    files = sorted(str(path) for path in tmp_path.iterdir())
    assert main([*files, "--json"]) == 0
    output = capsys.readouterr()
    rows = json.loads(output.out)["models"]
    assert {row["status"] for row in rows} <= {"ok", "partial"}
    assert len(rows) == len(KINDS)
    assert "Traceback" not in output.err


def test_there_are_many_kinds_of_models() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len({*names}) >= 270
