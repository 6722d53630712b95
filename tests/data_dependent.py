"""Random valid graphs whose shapes depend on the data: filters, selections, branches and loops.

Every tensor that is drawn is a float matrix [n, k] of which only k is sure to be known.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import GraphProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxmem.measuring.tracing import first, runs
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.intervals.limits import limits_of
from onnxmem.model.intervals.walk import UpperGraph, with_upper_dims

ROWS: Final = (2, 3, 5, 7, 11)
COLUMNS: Final = (1, 2, 3, 5)


@dataclass(slots=True)
class Sketch:
    """Mutable: a graph while nodes are drawn onto it."""

    draws: Random
    columns: dict[str, int] = field(default_factory=dict)
    """The columns of each matrix."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        """A new name."""
        self.count += 1
        return f"t{self.count}"

    def constant(
        self, values: Sequence[float], dtype: int = TensorProto.INT64, *, scalar: bool = False
    ) -> str:
        """A weight."""
        name = self.name()
        dims = () if scalar else (len(values),)
        self.weights.append(helper.make_tensor(name, dtype, dims, values))
        return name

    def weight(self, rows: int, columns: int) -> str:
        """A matrix of small numbers."""
        name = self.name()
        elements = [self.draws.uniform(-1, 1) for _ in range(rows * columns)]
        self.weights.append(helper.make_tensor(name, TensorProto.FLOAT, (rows, columns), elements))
        return name

    def op(self, op_type: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - of any type
        """A node with one output."""
        name = self.name()
        self.nodes.append(helper.make_node(op_type, inputs, [name], **attributes))
        return name

    def matrix(self, name: str, columns: int) -> None:
        """A tensor that later nodes may read."""
        self.columns[name] = columns

    def mask(self, x: str) -> str:
        """Which rows of a matrix are chosen, by their sums."""
        axes = self.constant([1])
        total = self.op("ReduceSum", x, axes, keepdims=0)
        limit = self.constant([self.draws.choice((-0.5, 0.0, 0.3))], TensorProto.FLOAT, scalar=True)
        return self.op("Greater", total, limit)

    def rows(self, x: str) -> str:
        """The number of rows, [1]."""
        return self.op("Gather", self.op("Shape", x), self.constant([0]), axis=0)


Draw = Callable[[Sketch, str], None]


def compressed(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    sketch.matrix(sketch.op("Compress", x, sketch.mask(x), axis=0), k)


def gathered(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    found = sketch.op("NonZero", sketch.mask(x))
    index = sketch.op("Squeeze", found, sketch.constant([0]))
    sketch.matrix(sketch.op("Gather", x, index, axis=0), k)


def gathered_nd(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    found = sketch.op("Transpose", sketch.op("NonZero", sketch.mask(x)), perm=[1, 0])
    sketch.matrix(sketch.op("GatherND", x, found), k)


def elements(sketch: Sketch, x: str) -> None:
    found = sketch.op("Transpose", sketch.op("NonZero", x), perm=[1, 0])
    sketch.matrix(sketch.op("Cast", found, to=TensorProto.FLOAT), 2)


def top(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    limit = sketch.constant([sketch.draws.choice(ROWS)])
    count = sketch.op("Min", sketch.rows(x), limit)
    names = [sketch.name(), sketch.name()]
    sketch.nodes.append(helper.make_node("TopK", [x, count], names, axis=0))
    sketch.matrix(names[0], k)
    sketch.matrix(sketch.op("Cast", names[1], to=TensorProto.FLOAT), k)


def sliced(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    draws = sketch.draws
    starts = sketch.constant([draws.choice((0, 1, 2, -3, -1, 5))])
    ends = draws.choice((sketch.constant([draws.choice((1, 3, 9, -1, -2, 2**40))]), sketch.rows(x)))
    parts = [starts, ends, sketch.constant([0]), sketch.constant([draws.choice((1, 1, 2))])]
    sketch.matrix(sketch.op("Slice", x, *parts), k)


def unary(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    sketch.matrix(sketch.op(sketch.draws.choice(("Relu", "Sigmoid", "Neg", "Softmax")), x), k)


def binary(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    row = sketch.weight(1, k)
    sketch.matrix(sketch.op("Add", x, sketch.draws.choice((x, row))), k)


def joined(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    others = [name for name, columns in sketch.columns.items() if columns == k]
    sketch.matrix(sketch.op("Concat", x, sketch.draws.choice(others), axis=0), k)


def product(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    columns = sketch.draws.choice(COLUMNS)
    sketch.matrix(sketch.op("MatMul", x, sketch.weight(k, columns)), columns)


def similarity(sketch: Sketch, x: str) -> None:
    square = sketch.op("MatMul", x, sketch.op("Transpose", x, perm=[1, 0]))
    sketch.matrix(sketch.op("Reshape", square, sketch.constant([-1, 1])), 1)


def flat(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    target = sketch.op("Concat", sketch.rows(x), sketch.constant([-1]), axis=0)
    again = sketch.op("Reshape", sketch.op("Reshape", x, sketch.constant([-1, 1, 1])), target)
    sketch.matrix(again, k)


def unique(sketch: Sketch, x: str) -> None:
    found = sketch.op("Unique", sketch.op("Round", x))
    sketch.matrix(sketch.op("Unsqueeze", found, sketch.constant([1])), 1)


def counted(sketch: Sketch, x: str) -> None:
    zero = sketch.constant([0], scalar=True)
    step = sketch.constant([sketch.draws.choice((1, 2))], scalar=True)
    count = sketch.op("Squeeze", sketch.rows(x))
    numbers = sketch.op("Cast", sketch.op("Range", zero, count, step), to=TensorProto.FLOAT)
    sketch.matrix(sketch.op("Unsqueeze", numbers, sketch.constant([1])), 1)


def filled(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    more = sketch.op("Add", sketch.rows(x), sketch.constant([sketch.draws.choice((0, 1, 4))]))
    half = sketch.op("Div", more, sketch.constant([2]))
    target = sketch.op("Concat", half, sketch.constant([k]), axis=0)
    sketch.matrix(sketch.op("ConstantOfShape", target), k)


def tiled(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    sketch.matrix(sketch.op("Tile", x, sketch.constant([2, 1])), k)


def padded(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    sketch.matrix(sketch.op("Pad", x, sketch.constant([1, 0, 2, 0])), k)


def expanded(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    target = sketch.op("Concat", sketch.rows(x), sketch.constant([k]), axis=0)
    sketch.matrix(sketch.op("Expand", sketch.weight(1, k), target), k)


def boxes(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    corners = sketch.op("MatMul", x, sketch.weight(k, 4))
    whole = sketch.op("Unsqueeze", corners, sketch.constant([0]))
    scores = sketch.op("MatMul", x, sketch.weight(k, 1))
    scores = sketch.op("Reshape", scores, sketch.constant([1, 1, -1]))
    limit = sketch.constant([sketch.draws.choice(ROWS)])
    overlap = sketch.constant([0.5], TensorProto.FLOAT)
    picked = sketch.op("NonMaxSuppression", whole, scores, limit, overlap)
    sketch.matrix(sketch.op("Cast", picked, to=TensorProto.FLOAT), 3)


def chosen(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    condition = is_positive(sketch, x)
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, None)
    twice = helper.make_graph(
        [helper.make_node("Concat", [x, x], ["o"], axis=0)], "then", [], [out]
    )
    out = helper.make_tensor_value_info("o2", TensorProto.FLOAT, None)
    once = helper.make_graph([helper.make_node("Relu", [x], ["o2"])], "else", [], [out])
    sketch.matrix(sketch.op("If", condition, then_branch=twice, else_branch=once), k)


def loop_body(
    name: str,
    nodes: Sequence[NodeProto],
    columns: int,
    scanned: Sequence[ValueInfoProto] = (),
) -> GraphProto:
    """The body of a Loop: ``c`` and ``h`` become ``co`` and ``ho``, a matrix of these columns."""
    typed = helper.make_tensor_value_info
    return helper.make_graph(
        nodes,
        name,
        [
            typed("i", TensorProto.INT64, ()),
            typed("c", TensorProto.BOOL, ()),
            typed("h", TensorProto.FLOAT, (None, columns)),
        ],
        [
            typed("co", TensorProto.BOOL, ()),
            typed("ho", TensorProto.FLOAT, (None, columns)),
            *scanned,
        ],
    )


def repeated(sketch: Sketch, x: str) -> None:
    """A Loop of a data-dependent count: one value grows, and each iteration adds a row."""
    k = sketch.columns[x]
    count = sketch.op("Squeeze", sketch.rows(x))
    going = sketch.constant([1], TensorProto.BOOL, scalar=True)
    nodes = [
        helper.make_node("Identity", ["c"], ["co"]),
        helper.make_node("Concat", ["h", sketch.weight(1, k)], ["ho"], axis=0),
        helper.make_node("ReduceSum", ["h", sketch.constant([0])], ["s"], keepdims=0),
    ]
    scanned = helper.make_tensor_value_info("s", TensorProto.FLOAT, (k,))
    body = loop_body("body", nodes, k, [scanned])
    names = [sketch.name(), sketch.name()]
    sketch.nodes.append(helper.make_node("Loop", [count, going, x], names, body=body))
    for name in names:
        sketch.matrix(name, k)


def is_positive(sketch: Sketch, x: str) -> str:
    """Whether the sum of a matrix is above zero."""
    total = sketch.op("ReduceSum", x, sketch.constant([0, 1]), keepdims=0)
    return sketch.op("Greater", total, sketch.constant([0.0], TensorProto.FLOAT, scalar=True))


def alternating(sketch: Sketch, x: str) -> None:
    """A Loop whose iterations take one branch or the other."""
    k, zero = sketch.columns[x], sketch.constant([0.0], TensorProto.FLOAT, scalar=True)
    first, both = sketch.constant([0]), sketch.constant([0, 1])
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, (k,))
    twice = [
        helper.make_node("Concat", ["h", "h", "h"], ["w"], axis=0),
        helper.make_node("ReduceSum", ["w", first], ["o"], keepdims=0),
    ]
    once = [helper.make_node("ReduceMax", ["h"], ["o2"], axes=[0], keepdims=0)]
    other = helper.make_tensor_value_info("o2", TensorProto.FLOAT, (k,))
    choice = helper.make_node(
        "If",
        ["p"],
        ["s"],
        then_branch=helper.make_graph(twice, "twice", [], [out]),
        else_branch=helper.make_graph(once, "once", [], [other]),
    )
    nodes = [
        helper.make_node("Identity", ["c"], ["co"]),
        helper.make_node("Neg", ["h"], ["ho"]),
        helper.make_node("ReduceSum", ["h", both], ["t"], keepdims=0),
        helper.make_node("Greater", ["t", zero], ["p"]),
        choice,
    ]
    scanned = helper.make_tensor_value_info("s", TensorProto.FLOAT, (k,))
    body = loop_body("alternating", nodes, k, [scanned])
    count = sketch.op("Squeeze", sketch.rows(x))
    going = sketch.constant([1], TensorProto.BOOL, scalar=True)
    names = [sketch.name(), sketch.name()]
    sketch.nodes.append(helper.make_node("Loop", [count, going, x], names, body=body))
    for name in names:
        sketch.matrix(name, k)


def at_most_once(sketch: Sketch, x: str) -> None:
    """A Loop that begins only if the data let it, and ends after one iteration."""
    k = sketch.columns[x]
    never = sketch.constant([0], TensorProto.BOOL, scalar=True)
    nodes = [
        helper.make_node("And", ["c", never], ["co"]),
        helper.make_node("Concat", ["h", "h", "h"], ["w"], axis=1),
        helper.make_node("Slice", ["w", *(sketch.constant([n]) for n in (0, k, 1))], ["ho"]),
    ]
    body = loop_body("once", nodes, k)
    sketch.matrix(sketch.op("Loop", "", is_positive(sketch, x), x, body=body), k)


def sequenced(sketch: Sketch, x: str) -> None:
    k = sketch.columns[x]
    others = [name for name, columns in sketch.columns.items() if columns == k]
    parts = sketch.op("SequenceConstruct", x, sketch.draws.choice(others))
    parts = sketch.op("SequenceInsert", parts, sketch.draws.choice(others))
    sketch.matrix(sketch.op("ConcatFromSequence", parts, axis=0), k)
    index = sketch.constant([sketch.draws.choice((0, 1, 2))], scalar=True)
    sketch.matrix(sketch.op("SequenceAt", parts, index), k)


DRAWS: Final[Sequence[Draw]] = (
    *(compressed, gathered, gathered_nd, elements, top, sliced, unary, binary, joined, product),
    *(similarity, flat, unique, counted, filled, tiled, padded, expanded, boxes, chosen, repeated),
    *(sequenced, alternating, at_most_once),
)


def random_model(seed: int, num_draws: int = 6) -> onnx.ModelProto:
    """A model whose tensors are all outputs of nodes, the last of them graph outputs."""
    draws = Random(seed)  # noqa: S311 - no secret
    sketch = Sketch(draws)
    rows, k = draws.choice(ROWS), draws.choice(COLUMNS)
    sketch.matrix("x", k)
    for _ in range(num_draws):
        x = draws.choice(list(sketch.columns)[-3:])
        draws.choice(DRAWS)(sketch, x)
    read = {name for node in sketch.nodes for name in node.input}
    typed = helper.make_tensor_value_info
    outputs = [
        typed(n, TensorProto.FLOAT, (None, k)) for n, k in sketch.columns.items() if n not in read
    ]
    graph = helper.make_graph(
        sketch.nodes, "random", [typed("x", TensorProto.FLOAT, (rows, k))], outputs, sketch.weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random_input(model: onnx.ModelProto, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Elements around zero."""
    value = model.graph.input[0]
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    generator = np.random.default_rng(seed)
    return {value.name: generator.normal(0.1, 1, shape).astype(np.float32)}


def shapes_of_run(
    model: onnx.ModelProto, feeds: dict[str, npt.NDArray[Any]]
) -> dict[str, tuple[int, ...]]:
    """Run a model in onnxruntime: the shapes of all tensors of the main graph but sequences.

    :raises onnxruntime.capi.onnxruntime_pybind11_state.Fail: a node rejects its inputs.
    """
    import onnxruntime as ort

    shown = onnx.ModelProto()
    shown.CopyFrom(model)
    present = {value.name for value in model.graph.output}
    sequences = {"SequenceEmpty", "SequenceConstruct", "SequenceInsert", "SequenceErase"}
    sequences |= {"SplitToSequence", "SequenceMap", "Optional"}
    for node in model.graph.node:
        if node.op_type in sequences:
            continue
        shown.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in node.output if name and name not in present
        )
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(
        shown.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_outputs()]
    made = session.run(names, feeds)
    return {name: np.shape(array) for name, array in zip(names, made, strict=True)}


def requested_peak_of_run(
    model: onnx.ModelProto, feeds: dict[str, npt.NDArray[Any]], folder: Path
) -> int:
    """The peak that kernels request in a run of the graph as it is, above what the arena had."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.enable_mem_pattern = False
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, feeds)
    profile = Path(session.end_profiling())
    (steps,) = runs(profile)
    profile.unlink()
    before = first(steps).requested_before_bytes
    peaks = [step.requested_bytes for step in steps]
    assert before is not None
    return max(peak for peak in peaks if peak is not None) - before


def contradictions(upper: UpperGraph, shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    """Tensors of a run that are not within a graph of upper ends, and within its lower ones.

    A dim that no data decide is the same in every run, dims of one name are equal.
    """
    graph, found, numbers = upper.graph, [], dict[str, int]()
    for name, dims in shapes.items():
        tensor = graph.tensors[name]
        if tensor.shape is None:
            continue
        if len(dims) != len(tensor.shape):
            found.append(f"{name}: {dims} has another rank than {tensor.shape}")
            continue
        names = tensor.dynamic or ("",) * len(dims)
        for dim, most, symbol in zip(dims, tensor.shape, names, strict=True):
            is_in = dim == most if not symbol else most is None or dim <= most
            is_in = is_in and upper.least.get(symbol, 0) <= dim
            if not is_in or (symbol and numbers.setdefault(symbol, dim) != dim):
                found.append(f"{name}: {dims} beyond {tensor.shape} {names}")
        if tensor.num_elements is not None and prod(dims) > tensor.num_elements:
            found.append(f"{name}: {dims} has more than {tensor.num_elements} elements")
    return found


def of_run(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
    """The graph with the shapes of a run."""
    run = {name: replace(graph.tensors[name], shape=dims) for name, dims in shapes.items()}
    return graph.with_tensors({**graph.tensors, **run})


def upper_of(
    model: onnx.ModelProto, limits: Mapping[str, int] = MappingProxyType({})
) -> UpperGraph:
    """The upper ends of a model's dims."""
    prepared = prepare(ModelFile("<text>", model, 0))
    graph = build(prepared, Request()).graph
    found = with_upper_dims(graph, prepared.proto, limits_of(graph, prepared.proto, limits))
    assert found is not None
    return found
