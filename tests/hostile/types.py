"""Values that are no dense tensors of bytes, and elements of less than one."""

from collections.abc import Callable
from typing import Final

import onnx
from graphs import model_of
from onnx.helper import (
    make_map_type_proto,
    make_optional_type_proto,
    make_sequence_type_proto,
    make_sparse_tensor,
    make_sparse_tensor_type_proto,
    make_tensor,
    make_tensor_type_proto,
)

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of

NARROW: Final = (
    "float8e4m3fn float8e5m2 int4 uint4 float4e2m1 int2 uint2 float8e8m0 bfloat16".split()
)
WIDE: Final = "complex64 complex128 string bool".split()


def input_of(kind: onnx.TypeProto) -> Callable[[], onnx.ModelProto]:
    """Give the input a type."""

    def make() -> onnx.ModelProto:
        model = model_of("agraph (float[2] x) => (y) { y = Identity(x) }")
        model.graph.input[0].type.CopyFrom(kind)
        return model

    return make


def nested_sequence(depth: int) -> onnx.TypeProto:
    """Make a sequence of sequences."""
    kind = make_tensor_type_proto(1, [2])
    for _ in range(depth):
        kind = make_sequence_type_proto(kind)
    return kind


def sparse_weight(dims: list[int], num_stored: int, name: str = "w") -> onnx.ModelProto:
    """Add a sparse weight."""
    model = model_of("agraph (float[2] x) => (y) { y = Relu(x) }")
    values = make_tensor(name, 1, [num_stored], [1.0] * num_stored)
    places = make_tensor("", 7, [num_stored], range(num_stored))
    model.graph.sparse_initializer.append(make_sparse_tensor(values, places, dims))
    model.graph.node.add(op_type="Abs", input=[name], output=["z"])
    return model


def of_type(name: str) -> str:
    """Write a graph of one narrow type."""
    return f"agraph ({name}[3,7] x) => (y) <{name}[5,3] w> {{ h = Identity(w)  y = Identity(x) }}"


def of_type_number(number: int) -> Callable[[], onnx.ModelProto]:
    """Give the input a type by number."""
    return input_of(make_tensor_type_proto(number, [2, 3]))


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("type", {name: of_type(name) for name in (*NARROW, *WIDE)}, EITHER),
    *files_of("type number", {str(n): of_type_number(n) for n in (0, 24, 25, 26, 99, 2**31 - 1)},
              ANALYZED),
    *files_of("container", {
        "none": input_of(onnx.TypeProto()),
        "sequence": input_of(nested_sequence(1)),
        "20 sequences": input_of(nested_sequence(20)),
        "optional": input_of(make_optional_type_proto(make_tensor_type_proto(1, [2]))),
        "map": input_of(make_map_type_proto(7, make_tensor_type_proto(1, [2]))),
        "sparse": input_of(make_sparse_tensor_type_proto(1, [2, 3])),
        "rankless": input_of(make_tensor_type_proto(1, None)),
    }, ANALYZED),
    *files_of("container", {"90 sequences": input_of(nested_sequence(90))}, EITHER),
    *files_of("sparse weight", {
        "sound": lambda: sparse_weight([7, 11], 3),
        "2^62": lambda: sparse_weight([2**62, 2**62], 1),
        "nameless": lambda: sparse_weight([7, 11], 3, ""),
        "negative": lambda: sparse_weight([-7], 1),
        "more than it holds": lambda: sparse_weight([1], 5),
    }, EITHER),
)  # fmt: skip
