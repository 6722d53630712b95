"""Measured scratch and prepacked bytes of onnxruntime's kernels, by ``tools/kernel_truth.py``."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass

from paths import DATA

from onnxmem.model.graph import DType
from onnxmem.ops.spec import Call, Operand
from onnxmem.runtimes.onnxruntime.kernels.kernel import KernelInfo

_Entry = tuple[str, list[int], int, list[float] | None]
"""Type, dims, whether it is an initializer, values."""
TRUTH = DATA / "onnxruntime_kernels.json.gz"


@dataclass(frozen=True, slots=True)
class Row:
    """One measured node."""

    case: str
    op_type: str
    domain: str
    call: Call
    info: KernelInfo
    temporary_bytes: int
    base_bytes: int | None
    """Arena bytes before the node runs; ``None`` if the graph has other nodes."""


def rows() -> Iterator[Row]:
    """All measured nodes."""
    for row in json.loads(gzip.decompress(TRUTH.read_bytes()))["rows"]:
        inputs = row["inputs"]
        constants = frozenset(index for index, each in enumerate(inputs) if each and each[2])
        types = tuple(each[0] if each else "" for each in inputs)
        attributes = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in row["attributes"].items()
        }
        yield Row(
            row["case"],
            row["op"],
            row["domain"],
            Call(_operands(inputs), _operands(row["outputs"]), attributes),
            KernelInfo(constants, types, row["opset"]),
            row["temp"],
            row["base"],
        )


def _operands(entries: list[_Entry | None]) -> tuple[Operand | None, ...]:
    return tuple(_operand(entry) for entry in entries)


def _operand(entry: _Entry | None) -> Operand | None:
    if entry is None:
        return None
    name, dims, _, value = entry
    bits = DType(name).bits if name in set(DType) else None
    return Operand(tuple(dims), bits, None if value is None else tuple(value))
