"""What the models of onnx's backend test suite really compute: the shape of every tensor.

Usage: python tools/backend_truth.py [tests/data/backend_shapes.json.gz]

Inputs and outputs come from the suite's own data sets; inner tensors from a run of the model by
onnx's reference evaluator, those of the ``light_*`` models by onnxruntime, whose weights are
made by ConstantOfShape nodes. Shapes are written, and the elements of inputs that are whole numbers
and no more than 64: a few hundred kilobytes.
"""

import gzip
import json
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.shape_inference
import onnxruntime
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

TRUTH = Path(__file__).parent.parent / "tests" / "data" / "backend_shapes.json.gz"
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
_PARTS = ("inputs", "outputs", "tensors")
MOST_ELEMENTS = 64
"""Of an input whose elements are written."""
UNTRUSTED = ("test_affine_grid_", "test_range_")
"""Of these, written out as ``_expanded``, the reference evaluator gets inner tensors wrong."""

Shapes = dict[str, list[int]]
"""Also elements, of inputs that hold whole numbers."""
Values = Mapping[str, object]


def main() -> None:
    """Write the truth of every model of the suite."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else TRUTH
    models = {name: shapes for kind in KINDS for name, shapes in _cases(kind)}
    models |= {f"light/{file.stem}": _light(file) for file in sorted(LIGHT.glob("*.onnx"))}
    origin = "backend test suite of onnx; reference evaluator; onnxruntime for the light models"
    versions = {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}
    truth = {"origin": origin, "versions": versions, "models": models}
    text = json.dumps(truth, separators=(",", ":"), sort_keys=True)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    counts = {part: sum(len(model[part]) for model in models.values()) for part in _PARTS}
    print(f"{path}: {len(models)} models, {counts}, {path.stat().st_size:,} bytes")


def _cases(kind: str) -> Iterator[tuple[str, dict[str, Shapes]]]:
    for case in load_model_tests(kind=kind):
        model, fed, given = _read(case)
        outputs = _shapes(given)
        inner: Shapes = {}
        ran = _shapes(_run(model, fed))
        trusted = not (case.name.endswith("_expanded") and case.name.startswith(UNTRUSTED))
        if trusted and all(ran.get(name, shape) == shape for name, shape in outputs.items()):
            inner = {name: shape for name, shape in ran.items() if name not in outputs}
        values = {name: elements for name, value in fed.items() if (elements := _elements(value))}
        yield f"{kind}/{case.name}", _truth(_shapes(fed), outputs, inner, values)


def _truth(inputs: Shapes, outputs: Shapes, inner: Shapes, values: Shapes) -> dict[str, Shapes]:
    return {"inputs": inputs, "outputs": outputs, "tensors": inner, "values": values}


def _elements(value: object) -> list[int]:
    """The elements of a few whole numbers; none of anything else."""
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "iu":
        return []
    return [int(each) for each in value.ravel().tolist()] if value.size <= MOST_ELEMENTS else []


def _read(case: TestCase) -> tuple[onnx.ModelProto, Values, Values]:
    """A case's model, its inputs and its expected outputs."""
    if case.model is not None and case.data_sets:
        model = case.model
        given, expected = (list[object](items) for items in case.data_sets[0])
    else:
        folder = Path(str(case.model_dir))
        model = onnx.load(folder / "model.onnx")
        given = _tensors(folder / "test_data_set_0" / "input", model.graph.input)
        expected = _tensors(folder / "test_data_set_0" / "output", model.graph.output)
    fed = {value.name: _array(item) for value, item in zip(model.graph.input, given, strict=False)}
    made = {v.name: _array(item) for v, item in zip(model.graph.output, expected, strict=False)}
    return model, fed, made


def _tensors(stem: Path, values: Sequence[onnx.ValueInfoProto]) -> list[object]:
    count = len(list(stem.parent.glob(f"{stem.name}_*.pb")))
    paths = [stem.with_name(f"{stem.name}_{place}.pb") for place in range(count)]
    return [
        onnx.TensorProto.FromString(path.read_bytes())
        if value.type.WhichOneof("value") == "tensor_type"
        else None
        for path, value in zip(paths, values, strict=False)
    ]


def _array(item: object) -> object:
    return onnx.numpy_helper.to_array(item) if isinstance(item, onnx.TensorProto) else item


def _run(model: onnx.ModelProto, fed: Values) -> Values:
    """What the nodes of a model make; nothing where the reference evaluator cannot run it."""
    made = {name for node in model.graph.node for name in node.output if name}
    try:
        values = ReferenceEvaluator(model).run(None, dict(fed), intermediate=True)
    except Exception:  # noqa: BLE001 - whatever a reference kernel raises
        return {}
    return {name: value for name, value in dict(values).items() if name in made}


def _shapes(values: Values) -> Shapes:
    """The shapes of what is a tensor."""
    return {
        name: list(value.shape)
        for name, value in values.items()
        if isinstance(value, np.ndarray | np.generic)
    }


def _light(path: Path) -> dict[str, Shapes]:
    """Run a model with every tensor of it made an output."""
    model = onnx.load(path)
    outputs = [value.name for value in model.graph.output]
    made = {name for node in model.graph.node for name in node.output if name}
    weights = {tensor.name for tensor in model.graph.initializer}
    typed = onnx.shape_inference.infer_shapes(model).graph.value_info
    model.graph.output.extend(value for value in typed if value.name in made)
    untyped = made - {value.name for value in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(untyped))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    fed = {
        value.name: np.zeros([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in model.graph.input
        if value.name not in weights
    }
    names = [value.name for value in model.graph.output]
    ran = _shapes(dict(zip(names, session.run(names, fed), strict=True)))
    inner = {name: shape for name, shape in ran.items() if name not in outputs}
    return _truth(_shapes(fed), {name: ran[name] for name in outputs}, inner, {})


if __name__ == "__main__":
    main()
