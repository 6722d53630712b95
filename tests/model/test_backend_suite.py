"""The models of onnx's backend test suite, each shape held against the truth.

Each model's inputs are bound to the shapes of the suite's data, all that the file declares of other
tensors is taken out, and the shapes found are held against those of a real run
(``tools/backend_truth.py`` makes them): by the shapes alone, and with the elements of inputs that
are a few whole numbers, as a user gives them. A wrong shape is never let pass; how many are right
may only grow.
"""

import functools
import gzip
import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import pytest
from onnx.backend.test.loader import load_model_tests
from paths import DATA, LIGHT

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph, Tensor
from onnxmem.model.input_values import with_input_values

SHAPES = DATA / "backend_shapes.json.gz"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")

RIGHT = {"outputs": 2_103, "tensors": 15_501}
RIGHT_WITH_VALUES = {"outputs": 2_350, "tensors": 15_600}
"""The ratchets, of 2,448 outputs and 15,600 inner tensors: raise them, never lower them."""

QUICK = KINDS[1:]
"""The default run leaves out those that onnx has to make first."""

Shapes = Mapping[str, list[int]]


@dataclass
class Score:
    """How many shapes of the models are right, unknown or wrong."""

    right: Counter[str] = field(default_factory=Counter)
    right_with_values: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Models that the installed onnx lacks."""


def models(kinds: Sequence[str] = KINDS) -> Iterator[tuple[str, onnx.ModelProto]]:
    with warnings.catch_warnings():
        # onnx's test cases overflow and divide by zero while they are made.
        warnings.simplefilter("ignore")
        for kind in kinds:
            for case in load_model_tests(kind=kind):
                path = Path(str(case.model_dir)) / "model.onnx"
                yield f"{kind}/{case.name}", case.model or onnx.load(path)
    for path in sorted(LIGHT.glob("*.onnx")):
        yield f"light/{path.stem}", onnx.load(path)


def undeclare(model: onnx.ModelProto, inputs: Shapes) -> None:
    """Bind the inputs and remove every other declared shape of the file."""
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.ClearField("shape")
    for value in model.graph.input:
        if value.name in inputs and value.type.WhichOneof("value") == "tensor_type":
            dims = [onnx.TensorShapeProto.Dimension(dim_value=d) for d in inputs[value.name]]
            value.type.tensor_type.ClearField("shape")
            value.type.tensor_type.shape.dim.extend(dims)
            value.type.tensor_type.shape.SetInParent()


def is_right(tensor: Tensor | None, truth: list[int]) -> bool | None:
    """Whether a shape is right; ``None`` if it is partly unknown and compatible."""
    if tensor is None or tensor.shape is None:
        return None
    if len(tensor.shape) != len(truth):
        return False
    if any(dim not in {None, real} for dim, real in zip(tensor.shape, truth, strict=True)):
        return False
    return None if None in tensor.shape else True


@functools.cache
def truth() -> dict[str, dict[str, Shapes]]:
    found: dict[str, dict[str, Shapes]] = json.loads(gzip.decompress(SHAPES.read_bytes()))["models"]
    return found


@pytest.fixture(scope="module", params=[QUICK, pytest.param(KINDS, marks=pytest.mark.slow)])
def score(request: pytest.FixtureRequest) -> Score:
    """Build every model of these kinds once."""
    found = Score()
    at_hand = dict(models(request.param))
    for name, shapes in truth().items():
        if name.partition("/")[0] not in {*request.param, "light"}:
            continue
        model = at_hand.get(name)
        if model is None:
            found.absent.append(name)
            continue
        undeclare(model, shapes["inputs"])
        try:
            prepared = prepare(load(model))
            bound = build(prepared, Request())
            given = {name: tuple(elements) for name, elements in shapes["values"].items()}
            reported = with_input_values(prepared, bound, given)
        except Exception as fault:  # noqa: BLE001 - a crash of any kind is what is looked for
            found.crashes.append(f"{name}: {fault!r}")
            continue
        for right, graph in ((found.right, bound.graph), (found.right_with_values, reported.graph)):
            right.update(part for part in RIGHT for _ in right_names(graph, shapes[part]))
            found.wrong += [
                f"{name}: {text}" for part in RIGHT for text in wrong(graph, shapes[part])
            ]
    return found


def right_names(graph: Graph, truth: Shapes) -> list[str]:
    return [name for name, dims in truth.items() if is_right(graph.tensors.get(name), dims)]


def wrong(graph: Graph, truth: Shapes) -> list[str]:
    return [
        f"{name} {graph.tensors[name].shape}, not {dims}"
        for name, dims in truth.items()
        if is_right(graph.tensors.get(name), dims) is False
    ]


def test_no_model_of_the_backend_suite_is_rejected(score: Score) -> None:
    assert score.crashes == []


def test_no_shape_of_the_backend_suite_is_wrong(score: Score) -> None:
    assert score.wrong == []


@pytest.mark.parametrize("score", [KINDS], indirect=True)
@pytest.mark.slow
def test_the_number_of_known_shapes_is_unchanged(score: Score) -> None:
    if not onnx.__version__.startswith("1.23."):
        pytest.skip(f"counted with onnx 1.23; {len(score.absent)} models are not in this one")
    assert score.absent == []
    assert {part: score.right[part] for part in RIGHT} == RIGHT
    assert {part: score.right_with_values[part] for part in RIGHT} == RIGHT_WITH_VALUES


def test_the_recorded_shapes_cover_the_whole_suite() -> None:
    parts = ("outputs", "tensors")
    counts = [sum(len(model[part]) for model in truth().values()) for part in parts]
    assert (len(truth()), *counts) == (2033, 2448, 15600)
