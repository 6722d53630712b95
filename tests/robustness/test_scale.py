"""Cost grows with the graph and no faster; what nodes have in common is computed once."""

import gc
import time
from collections.abc import Callable

import onnx
import onnx.shape_inference
import pytest
from onnx import TensorProto, helper

import onnxmem.analysis.compute
from onnxmem import analyze
from onnxmem.model.shapes import folding


def blocks(count: int) -> onnx.ModelProto:
    """Blocks of a product, a sum and an activation, with the shape arithmetic of an exporter."""
    nodes, x = [], "x"
    for i in range(count):
        nodes += [
            helper.make_node("MatMul", [x, "w"], [f"m{i}"]),
            helper.make_node("Shape", [f"m{i}"], [f"s{i}"]),
            helper.make_node("Gather", [f"s{i}", "zero"], [f"g{i}"]),
            helper.make_node("Concat", [f"g{i}", "rest"], [f"t{i}"], axis=0),
            helper.make_node("Reshape", [f"m{i}", f"t{i}"], [f"r{i}"]),
            helper.make_node("Relu", [f"r{i}"], [f"y{i}"]),
        ]
        x = f"y{i}"
    weights = [
        TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[7, 7]),
        helper.make_tensor("zero", TensorProto.INT64, [1], [0]),
        helper.make_tensor("rest", TensorProto.INT64, [1], [7]),
    ]
    weights[0].data_location = TensorProto.EXTERNAL
    weights[0].external_data.add(key="location", value="absent.bin")
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 7]) for name in ("x", x)
    ]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def counted(real: Callable[..., object], name: str, found: dict[str, int]) -> Callable[..., object]:
    """A function that counts its calls."""

    def called(*given: object, **named: object) -> object:
        found[name] = found.get(name, 0) + 1
        return real(*given, **named)

    return called


def calls(monkeypatch: pytest.MonkeyPatch, count: int) -> dict[str, int]:
    """How often an analysis asks onnx, its reference operators and our formulas of one node."""
    found: dict[str, int] = {}
    asked = (
        (onnx.shape_inference, "infer_node_outputs"),
        (folding, "_evaluated"),
        (onnxmem.analysis.compute, "_node_compute"),
    )
    with monkeypatch.context() as patch:
        for place, name in asked:
            patch.setattr(place, name, counted(getattr(place, name), name, found))
        assert analyze(blocks(count)).compute.by_node
    return found


@pytest.mark.parametrize(("fewer", "more"), [(8, 32), (80, 800)], ids=["small", "large"])
def test_nodes_that_are_alike_are_asked_once(
    fewer: int, more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More blocks ask as often as fewer do, of a graph that onnx is asked for as a whole too."""
    few, many = calls(monkeypatch, fewer), calls(monkeypatch, more)
    assert few == many
    assert set(few) == {"infer_node_outputs", "_evaluated", "_node_compute"}


def test_blocks_that_are_alike_add_up() -> None:
    """What is computed once is counted as often as it stands there."""
    one, ten = (analyze(blocks(count)) for count in (1, 10))
    assert one.compute.forward_macs == 7 * 7
    assert ten.compute.forward_macs == 10 * 7 * 7
    assert one.activations.naive_bytes is not None
    assert ten.activations.naive_bytes == 10 * one.activations.naive_bytes


@pytest.mark.slow
def test_cost_grows_with_the_graph_and_no_faster() -> None:
    """Four times the nodes take four times as long, and on a machine at work less than six.

    n log n is 4.7 times, a square 16. The garbage collector waits, as it does in a command: how
    often it walks all objects is the caller's setting, and no part of the analysis.
    """

    def seconds(model: onnx.ModelProto) -> float:
        gc.collect()
        gc.disable()
        try:
            started = time.process_time()
            analyze(model)
            return time.process_time() - started
        finally:
            gc.enable()

    small, large = blocks(5_000 // 6), blocks(20_000 // 6)
    seconds(small)
    assert min(seconds(large) for _ in range(3)) < 6 * min(seconds(small) for _ in range(5))
