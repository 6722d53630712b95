"""Operators at their first version: operands broadcast to the first, attributes for inputs."""

from collections.abc import Mapping
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from onnxmem import analyze

Shape = tuple[int | None, ...] | None


def made(
    op_type: str,
    shapes: list[tuple[int, ...]],
    given: Mapping[str, Any],
    num_outputs: int = 1,
    opset: int = 1,
) -> list[Shape]:
    """The shapes of a node's outputs, none of them the graph's."""
    names = [f"x{place}" for place in range(len(shapes))]
    outputs = [f"o{place}" for place in range(num_outputs)]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in zip(names, shapes, strict=True)
    ]
    nodes = [helper.make_node(op_type, names, outputs, **given)]
    nodes += [helper.make_node("Identity", [name], [f"y{name}"]) for name in outputs]
    results = [onnx.ValueInfoProto(name=f"y{name}") for name in outputs]
    graph = helper.make_graph(nodes, "old", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3)
    tensors = analyze(model).graph.tensors
    return [tensors[name].shape for name in outputs]


OPERATORS = ["Add", "Sub", "Mul", "Div", "Pow", "Equal", "Less", "Greater"]


@pytest.mark.parametrize("opset", [1, 5, 6])
@pytest.mark.parametrize("op_type", OPERATORS)
@pytest.mark.parametrize(
    ("other", "given"),
    [
        ((3,), {"broadcast": 1, "axis": 1}),
        ((5, 7), {"broadcast": 1}),
        ((), {"broadcast": 1}),
        ((2, 3, 5, 7), {}),
    ],
)
def test_operands_are_broadcast_to_the_first(
    op_type: str, other: tuple[int, ...], given: dict[str, int], opset: int
) -> None:
    shapes = [(2, 3, 5, 7), other]
    assert made(op_type, shapes, given, opset=opset) == [(2, 3, 5, 7)]


@pytest.mark.parametrize("op_type", ["Max", "Min", "Mean", "Sum"])
def test_operands_with_equal_shapes(op_type: str) -> None:
    assert made(op_type, [(2, 3), (2, 3), (2, 3)], {}) == [(2, 3)]


@pytest.mark.parametrize(
    ("op_type", "shapes", "given", "expected"),
    [
        ("Gemm", [(3, 5), (5, 7), (7,)], {"broadcast": 1}, (3, 7)),
        ("Gemm", [(5, 3), (7, 5), (3, 7)], {"transA": 1, "transB": 1}, (3, 7)),
        ("Gemm", [(3, 5, 1), (5, 7), (7,)], {}, None),
        ("Concat", [(2, 3), (2, 5)], {}, (2, 8)),
        ("Concat", [(2, 3), (5, 3)], {"axis": 0}, (7, 3)),
        ("Concat", [(2, 3), (5,)], {"axis": 0}, None),
        ("Concat", [(2,), (5,)], {"axis": 3}, None),
        ("Reshape", [(6, 35)], {"shape": [0, 5, -1]}, (6, 5, 7)),
        ("Reshape", [(6, 35)], {"shape": [7, 30]}, (7, 30)),
        ("Reshape", [(6, 35)], {"shape": [7, 31]}, None),
        ("Reshape", [(6, 35)], {"shape": [6, 35, 0]}, None),
        ("Reshape", [(6, 35)], {}, None),
        ("Upsample", [(2, 3, 5, 7)], {"height_scale": 2.0, "width_scale": 1.5}, (2, 3, 10, 10)),
        ("Upsample", [(2, 3, 5)], {"height_scale": 2.0, "width_scale": 1.5}, None),
        ("Cast", [(2, 3)], {"to": "INT64"}, (2, 3)),
        ("Cast", [(2, 3)], {"to": "no type"}, None),
        ("Cast", [(2, 3)], {}, None),
    ],
)
def test_operands_that_were_attributes_in_older_versions(
    op_type: str, shapes: list[tuple[int, ...]], given: dict[str, object], expected: Shape
) -> None:
    assert made(op_type, shapes, given) == [expected]


@pytest.mark.parametrize(
    ("shapes", "given", "expected"),
    [
        ([(2, 11)], {"axis": 1, "split": [4, 7]}, [(2, 4), (2, 7)]),
        ([(6, 11)], {}, [(3, 11), (3, 11)]),
        ([(7, 11)], {}, [None, None]),
        ([(6, 11), (2,)], {}, [None, None]),
    ],
)
def test_shapes_of_a_split(
    shapes: list[tuple[int, ...]], given: dict[str, object], expected: list[Shape]
) -> None:
    assert made("Split", shapes, given, 2) == expected


def test_the_type_of_a_cast() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["" : 1]>
        g (float[2,3] x) => (double[2,3] y) { c = Cast <to = "double"> (x) y = Identity(c) }"""
    )
    assert analyze(model).graph.tensors["c"].size_bytes == 2 * 3 * 8
