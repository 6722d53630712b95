"""Sizes past every machine, negative ones, and names where numbers should be."""

from typing import Final

import onnx
from graphs import model_of
from onnx.helper import make_tensor_value_info

from hostile.hostile_file import ANALYZED, EITHER, HostileFile, files_of


def input_of(*dims: int | str) -> onnx.ModelProto:
    """Give the input these dims."""
    model = model_of("agraph (float[2] x) => (y) { h = Relu(x)  y = Neg(h) }")
    model.graph.input[0].CopyFrom(make_tensor_value_info("x", 1, dims))
    return model


def weight_of(*dims: int, raw: bytes | None = None, data_type: int = 1) -> onnx.ModelProto:
    """Give the weight these dims, and this payload."""
    model = model_of("agraph (float[2] x) => (y) <float[2] w> { y = Add(x, w) }")
    weight = model.graph.initializer[0]
    del weight.dims[:], weight.external_data[:]
    weight.ClearField("data_location")
    weight.dims.extend(dims)
    weight.data_type = data_type
    if raw is not None:
        weight.raw_data = raw
    return model


def target_of(*dims: int) -> onnx.ModelProto:
    """Reshape to a target that does not fit."""
    model = model_of("agraph (float[2,6] x) => (y) <int64[2] s> { y = Reshape(x, s) }")
    target = model.graph.initializer[0]
    target.CopyFrom(onnx.helper.make_tensor("s", 7, [len(dims)], dims))
    return model


SYMBOLS: Final = {
    "python": "__import__('os').system('touch pwned')",
    "power tower": "9**9**9**9",
    "long product": "*".join(["N"] * 5_000),
    "brackets": "(" * 50_000,
    "division by zero": "N//0",
    "unary": "-" * 20_000 + "N",
    "megabyte": "N" * 2**20,
    "escape": "\x1b[2J\x1b]0;owned\x07",
    "nul": "a\0b",
    "empty": "",
    "shift": "1<<(1<<40)",
    "lambda": "(lambda f: f(f))(lambda f: f(f))",
}

FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("dims", {
        "2^62": lambda: input_of(2**62),
        "2^96": lambda: input_of(2**32, 2**32, 2**32),
        "wraps to 0": lambda: input_of(2**32, 2**32),
        "wraps to 1": lambda: input_of(2**63 - 1, 2**63 - 1),
        "zero": lambda: input_of(0, 5),
        "zero times 2^62": lambda: input_of(0, 2**62),
        "minus one": lambda: input_of(-1, 5),
        "least integer": lambda: input_of(-(2**63), 5),
        "2^252": lambda: input_of(*[2**63 - 1] * 4),
    }, ANALYZED),
    *files_of("rank", {
        "64 of 2^63": lambda: input_of(*[2**63 - 1] * 64),
        "65": lambda: input_of(*[1] * 65),
        "2000 of 2^63": lambda: input_of(*[2**63 - 1] * 2000),
        "100000": lambda: input_of(*[1] * 100_000),
        "5000 symbols": lambda: input_of(*(f"s{i}" for i in range(5_000))),
    }, "partial", "bound_reached"),
    *files_of("symbol", {name: lambda text=text: input_of(text, 5)  # type: ignore[misc]
                         for name, text in SYMBOLS.items()}, ANALYZED),
    *files_of("weight", {
        "no data": lambda: weight_of(2**40),
        "short data": lambda: weight_of(1024, raw=b"abcd"),
        "long data": lambda: weight_of(2, raw=bytes(4096)),
        "2^124 bytes": lambda: weight_of(2**62, 2**62),
        "type 0": lambda: weight_of(2, data_type=0),
        "type 99": lambda: weight_of(2, data_type=99),
        "type -1": lambda: weight_of(2, data_type=-1),
    }, ANALYZED),
    *files_of("negative weight", {
        "minus one": lambda: weight_of(-1),
        "two of them": lambda: weight_of(-3, -5),
        "least integer": lambda: weight_of(-(2**63)),
    }, "graph"),
    *files_of("weight of many dims", {
        "100000": lambda: weight_of(*[1] * 100_000),
        "2000 of 2^62": lambda: weight_of(*[2**62] * 2_000),
    }, "graph"),
    *files_of("target", {
        "two unknown": lambda: target_of(-1, -1),
        "minus seven": lambda: target_of(-7, 2),
        "does not divide": lambda: target_of(-1, 5),
        "overflow": lambda: target_of(2**62, 2**62),
        "zeros": lambda: target_of(0, 0),
        "beyond the rank": lambda: target_of(2, 6, 0),
    }, EITHER),
)  # fmt: skip
