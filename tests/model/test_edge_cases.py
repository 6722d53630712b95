"""Six models that other tools crash on or get wrong, in one run: every figure by hand."""

import contextlib
import io
import json
from math import prod

import onnx
import pytest
from graphs import model_of

from onnxmem.cli import main

# wf 512 * 1024 * 4 B, y 8 * 1024 * 4 B
INT4 = """agraph (float[8,512] x) => (float[8,1024] y) <int4[512,1024] w, float scale> {
    wf = DequantizeLinear(w, scale)
    y = MatMul(x, wf)
}"""

# t and y of 8 * 256 * 4 B each
FUNCTION = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
agraph (float[8,512] x) => (float[8,256] y) <float[512,256] w> { y = own.MatMulRelu(x, w) }
<domain: "own", opset_import: ["": 21]>
MatMulRelu (a, b) => (c) { t = MatMul(a, b)  c = Relu(t) }"""

EXTERNAL = """agraph (float[8,512] x) => (float[8,256] y) <float[512,256] w> {
    t = MatMul(x, w)
    y = Relu(t)
}"""

# y, and inside it product and each of 8 * 256 * 4 B, go of 1 B; stacked is unknown
LOOP = """agraph (int64 trips, bool go, float[8,256] x) => (float[8,256] y, float[N,8,256] stacked)
<float[256,256] w> {
    [loop] y, stacked = Loop (trips, go, x) <body = body
        (int64 trip, bool go_in, float[8,256] state)
        => (bool go_out, float[8,256] product, float[8,256] each) {
            go_out = Identity(go_in)
            product = MatMul(state, w)
            each = Identity(product)
        }>
}"""

CUSTOM = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
agraph (float[8,256] x) => (float[8,256] y) {
    [first] t = Relu(x)
    [odd] u = own.Odd(t)
    [last] y = Relu(u)
}"""

SYMBOLIC = EXTERNAL.replace("8,", "batch,")

KIB = 1024
MODELS = {
    "int4": INT4,
    "function": FUNCTION,
    "external": EXTERNAL,
    "loop": LOOP,
    "custom": CUSTOM,
    "symbolic": SYMBOLIC,
}

Row = dict[str, object]


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Put zeros into the file where it points to another."""
    for weight in model.graph.initializer:
        is_int4 = weight.data_type == onnx.TensorProto.INT4
        num_bytes = prod(weight.dims) // 2 if is_int4 else prod(weight.dims) * 4
        weight.ClearField("external_data")
        weight.data_location = onnx.TensorProto.DEFAULT
        weight.raw_data = bytes(num_bytes)
    return model


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    """The JSON objects of all six by name, from one command."""
    folder = tmp_path_factory.mktemp("models")
    for name, text in MODELS.items():
        model = model_of(text)
        weighted = model if name == "external" else with_weights(model)
        onnx.save(weighted, folder / f"{name}.onnx")
    paths = [str(folder / f"{name}.onnx") for name in MODELS]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([*paths, "--json", "--jobs", "1"]) == 0
    printed = json.loads(out.getvalue())["models"]
    assert [row["path"] for row in printed] == paths
    return dict(zip(MODELS, printed, strict=True))


def part(row: Row, name: str) -> Row:
    found = row[name]
    assert isinstance(found, dict)
    return found


def figures(row: Row) -> tuple[object, ...]:
    """Weights, inputs, outputs; sums of all activations and of all buffers; both peaks; total."""
    activations = part(row, "activations")
    return (
        part(row, "weights")["bytes"],
        row["inputs_bytes"],
        row["outputs_bytes"],
        activations["naive_bytes"],
        activations["naive_in_place_bytes"],
        activations["peak_bytes"],
        activations["in_place_peak_bytes"],
        row["total_bytes"],
    )


def codes(row: Row) -> list[str]:
    found = row["findings"]
    assert isinstance(found, list)
    return [finding["code"] for finding in found]


def law(fixed_bytes: int, bytes_per_sample: int) -> Row:
    return {"fixed_bytes": fixed_bytes, "bytes_per_sample": bytes_per_sample}


def test_an_int4_weight_takes_half_a_byte_per_element(rows: dict[str, Row]) -> None:
    row = rows["int4"]
    weights = 262_144 + 4
    made = 2_048 * KIB + 32 * KIB
    assert (row["status"], codes(row)) == ("ok", ["dequantized_weights"])
    assert figures(row) == (
        *(weights, 16 * KIB, 32 * KIB),
        *(made, made, made, made),
        weights + 16 * KIB + made,
    )
    assert part(row, "weights")["parameters"] == 524_288
    assert row["batch_law"] == law(weights + 2_048 * KIB, 2 * KIB + 4 * KIB)


def test_a_local_function_counts_as_inlined(rows: dict[str, Row]) -> None:
    row = rows["function"]
    assert (row["status"], codes(row), part(row, "coverage")["nodes"]) == ("ok", [], 2)
    # A graph output is not written over its input: t and y both stand.
    made = 8 * KIB + 8 * KIB
    assert figures(row) == (
        *(512 * KIB, 16 * KIB, 8 * KIB),
        *(made, made, made, made),
        557_056,
    )
    assert row["batch_law"] == law(524_288, 4_096)


def test_absent_external_data_is_counted_but_never_opened(rows: dict[str, Row]) -> None:
    row = rows["external"]
    assert (row["status"], codes(row)) == ("ok", [])
    assert figures(row) == figures(rows["function"])
    assert row["batch_law"] == law(524_288, 4_096)
    # Neither the file nor any part of it holds the weights.
    size = row["file_bytes"]
    assert isinstance(size, int)
    assert size < KIB


def test_a_loop_of_unknown_length_is_partial(rows: dict[str, Row]) -> None:
    row = rows["loop"]
    assert (row["status"], codes(row)) == ("partial", ["assumed_trip_count"])
    coverage = part(row, "coverage")
    assert (coverage["nodes"], coverage["assumed_node_names"]) == (4, ["loop"])
    assert coverage["unknown_tensor_names"] == ["stacked"]
    inputs = 8 + 1 + 8 * KIB
    tensors = 3 * 8 * KIB + 1
    # In place, both Identities are views: go_out of the input, each of product.
    buffers = 2 * 8 * KIB
    assert figures(row) == (
        *(256 * KIB, inputs, 8 * KIB),
        *(tensors, buffers, tensors, buffers),
        256 * KIB + inputs + buffers,
    )


def test_an_operator_of_another_domain_is_partial(rows: dict[str, Row]) -> None:
    row = rows["custom"]
    assert (row["status"], codes(row)) == ("partial", ["declared_shapes", "unknown_operator"])
    coverage = part(row, "coverage")
    assert (coverage["nodes"], coverage["assumed_node_names"]) == (3, ["odd", "last"])
    assert coverage["unknown_tensor_names"] == ["u"]
    # t and y are known and never live at once; u is left out.
    assert figures(row) == (
        *(0, 8 * KIB, 8 * KIB),
        *(16 * KIB, 16 * KIB, 8 * KIB, 8 * KIB),
        16 * KIB,
    )


def test_a_symbolic_batch_is_1_and_linear(rows: dict[str, Row]) -> None:
    row = rows["symbolic"]
    assert (row["status"], codes(row)) == ("ok", ["unbound_dims"])
    made = KIB + KIB
    assert figures(row) == (
        *(512 * KIB, 2 * KIB, KIB),
        *(made, made, made, made),
        528_384,
    )
    assert row["batch_law"] == law(524_288, 4_096)
    settings = part(row, "settings")
    assert (settings["batch"], settings["dims"]) == (1, {"batch": 1})
