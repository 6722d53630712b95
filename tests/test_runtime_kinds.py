"""Models in onnxruntime's own style, each shape and type held against what it makes of them.

Every model is run by onnxruntime without optimisations, in a child, all that its nodes make put out
where that works. No shape may be wrong, none may be open but those that only elements tell, and no
model may stop the analysis.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest
from runtime_kinds import KINDS
from runtime_kinds.kind import Kind
from runtime_kinds.running import Made, Run

from onnxmem.commands import main
from onnxmem.model import Graph, Request, build, load, prepare
from onnxmem.model.given_shapes import with_given_values

NAMES = {"float": "float32", "double": "float64"}
RUN = [kind for kind in KINDS if kind.runs]


@cache
def runs() -> dict[str, Run]:
    """What onnxruntime makes of the kinds, by their names."""
    pytest.importorskip("onnxruntime")
    here = Path(__file__).parent
    paths = os.pathsep.join((str(here), str(here.parent)))
    ended = subprocess.run(
        [sys.executable, "-m", "runtime_kinds.running"],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = (json.loads(line) for line in ended.stdout.splitlines())
    return {
        name: Run({each: tuple(dims) for each, dims in shapes.items()}, *map(_made, parts))
        for name, shapes, *parts in lines
    }


def _made(told: Mapping[str, tuple[str, list[int]]]) -> dict[str, Made]:
    return {name: (elem_type, tuple(dims)) for name, (elem_type, dims) in told.items()}


def wrong(graph: Graph, made: Mapping[str, Made]) -> Iterator[str]:
    """What is known of a tensor and is not so."""
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
    """Tensors of which the shape or the type is not known whole."""
    tensors = (graph.tensors[name] for name in made)
    return {t.name for t in tensors if t.num_elements is None or t.dtype is None}


@pytest.mark.measure
@pytest.mark.parametrize("kind", RUN, ids=lambda kind: kind.name)
def test_shapes_are_those_of_a_run(kind: Kind) -> None:
    ran = runs()[kind.name]
    made = {**ran.outputs, **ran.inner}
    assert made
    prepared = prepare(load(kind.make().SerializeToString()))
    bound = build(prepared, Request(shapes={n: dims for n, dims in ran.shapes.items() if dims}))
    assert list(wrong(bound.graph, made)) == []
    assert unknown(bound.graph, made) <= {*kind.open}
    given = with_given_values(prepared, bound, numbers(kind)).graph
    assert list(wrong(given, made)) == []
    assert unknown(given, made) <= unknown(bound.graph, made)


def numbers(kind: Kind) -> dict[str, tuple[float | bool, ...]]:
    """What a kind is fed with, of inputs that hold no text."""
    return {
        name: tuple(each for each in elements if not isinstance(each, str))
        for name, elements in kind.feeds.items()
        if elements and not isinstance(elements[0], str)
    }


def test_the_command_line_analyses_every_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, kind in enumerate(KINDS):
        (tmp_path / f"{place:03}.onnx").write_bytes(kind.make().SerializeToString())
    files = sorted(str(path) for path in tmp_path.iterdir())
    assert main([*files, "--json"]) == 0
    said = capsys.readouterr()
    rows = json.loads(said.out)["models"]
    assert {row["status"] for row in rows} <= {"ok", "partial"}
    assert len(rows) == len(KINDS)
    assert "Traceback" not in said.err


def test_there_are_many_kinds() -> None:
    names = [kind.name for kind in KINDS]
    assert len(names) == len({*names}) >= 270
