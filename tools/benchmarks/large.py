"""Models at the edge of what there is: a million nodes, gigabytes of weights, ten thousand files.

Usage: python tools/benchmarks/large.py [--rounds N] [CASE ...]

Cases: nodes, external, inline, registry; all of them unless some are named. Each analysis is a
process of its own, imports included; medians of the rounds. What is asked of a row stands at its
end. Inline weights are holes of a sparse file, which no disk has to hold: an analysis that read
them would take as long as with any others. Linux alone.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from onnx import ModelProto, TensorProto
from registry import SMALL, copies, watched
from scale import chain, measured

MIB: Final = 1 << 20
NUM_FILES: Final = 10_000
BUDGET: Final = "ONNXMEM_MAX_NODES"

_BYTES_FIELD = 2
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9
"""Field numbers of ModelProto, GraphProto and TensorProto in onnx.proto3."""


@dataclass(frozen=True, slots=True)
class Asked:
    """At most this much of one analysis; ``None``: no bound was set."""

    wall_seconds: float | None = None
    mebibytes: int | None = None


def varint(value: int) -> bytes:
    """A base-128 integer of protobuf's wire format."""
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def head(field: int, num_bytes: int) -> bytes:
    """What stands before a field's content on the wire."""
    return varint(field << 3 | _BYTES_FIELD) + varint(num_bytes)


def write_inline(model: ModelProto, path: Path) -> None:
    """Write a model with all its weights in the file, each payload a hole of the right length.

    This is what ``onnx.save`` would write for weights of zeros, but for sizes that protobuf refuses
    to serialize.
    """
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    pieces = [_headers(tensor) for tensor in tensors]
    num_bytes = len(graph) + sum(len(front) + payload for front, payload in pieces)
    with path.open("wb") as file:
        file.write(model.SerializeToString() + head(_GRAPH, num_bytes) + graph)
        for front, payload in pieces:
            file.write(front)
            file.seek(payload, os.SEEK_CUR)
        file.truncate()


def _headers(tensor: TensorProto) -> tuple[bytes, int]:
    """An initializer up to its payload, and the length of that."""
    payload = 4 * tensor.dims[0] * tensor.dims[1]
    own = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    inner = own.SerializeToString() + head(_RAW_DATA, payload)
    return head(_INITIALIZER, len(inner) + payload) + inner, payload


@contextmanager
def budget(num_nodes: int) -> Iterator[None]:
    """Set the settable bound of nodes for the processes that are started meanwhile."""
    os.environ[BUDGET] = str(num_nodes)
    try:
        yield
    finally:
        del os.environ[BUDGET]


def print_row(what: str, path: Path, rounds: int, asked: Asked = Asked()) -> None:
    """Medians of a file, or how it was refused."""
    try:
        runs = [measured([sys.executable, "-m", "onnxmem", str(path)]) for _ in range(rounds)]
    except RuntimeError as error:
        _, exit_line, *told = str(error).replace(": exit ", "\nexit ").splitlines()
        print(f"{what:<44} {exit_line}: {told[0].replace(str(path), 'MODEL')}", flush=True)
        return
    wall, cpu, mebibytes = (statistics.median(column) for column in zip(*runs, strict=True))
    figures = f"{wall:>8.2f}{cpu:>8.2f}{mebibytes:>8.0f}"
    print(f"{what:<44}{figures}{_verdict(wall, mebibytes, asked)}", flush=True)


def _verdict(wall: float, mebibytes: float, asked: Asked) -> str:
    bounds = ((asked.wall_seconds, wall, "s"), (asked.mebibytes, mebibytes, "MiB"))
    return "".join(
        f"  {'within' if figure <= bound else 'OVER'} {bound:g} {unit}"
        for bound, figure, unit in bounds
        if bound is not None
    )


def many_nodes(folder: Path, rounds: int) -> None:
    """As many nodes as are followed unless said, four more, and those with a larger budget."""
    path = folder / "model.onnx"
    path.write_bytes(chain(100_000).SerializeToString())
    print_row("100,000 nodes", path, rounds, Asked(4, 600))
    path.write_bytes(chain(1_000_000).SerializeToString())
    print_row("1,000,000 nodes, once", path, 1)
    path.write_bytes(chain(1_000_004).SerializeToString())
    print_row("1,000,004 nodes", path, 1)
    with budget(2_000_000):
        print_row(f"1,000,004 nodes, {BUDGET}=2000000, once", path, 1)


def external(folder: Path, rounds: int) -> None:
    """Weights of 4 MiB each in a file that is not there."""
    path = folder / "model.onnx"
    path.write_bytes(chain(30_720, width=1024).SerializeToString())
    print_row("30,720 nodes, 32 GB of external data absent", path, rounds)


def inline(folder: Path, rounds: int) -> None:
    """Weights of 16 MiB each in the model's own file."""
    path = folder / "model.onnx"
    for num_weights, asked in ((90, Asked(1, 150)), (114, Asked()), (180, Asked())):
        write_inline(chain(4 * num_weights, width=2048), path)
        gigabytes = path.stat().st_size / 1e9
        print_row(f"{gigabytes:.2f} GB of weights in the file", path, rounds, asked)


def many_files(folder: Path, _: int) -> None:
    """Ten thousand files of up to 14 KiB on two processes; parent and workers together."""
    for kind, are_distinct in (
        (f"files of {len(SMALL)} contents", False),
        ("distinct files", True),
    ):
        copies(SMALL, NUM_FILES, folder, are_distinct=are_distinct)
        run = watched(str(folder), jobs=2)
        early, late = sum(run.early_bytes) / MIB, sum(run.late_bytes) / MIB
        figures = f"{run.wall_seconds:>8.2f}{run.cpu_seconds:>8.2f}{late:>8.0f}"
        print(f"{f'{NUM_FILES:,} {kind} on 2 processes':<44}{figures}", end="")
        print(f"  {NUM_FILES / run.wall_seconds:.0f} rows/s", end="")
        print(_verdict(run.wall_seconds, late, Asked(wall_seconds=25)), end="")
        print(f"  {late / early:.2f} x the memory up to file {NUM_FILES // 10:,}", flush=True)


CASES: Final[Mapping[str, Callable[[Path, int], None]]] = MappingProxyType(
    {"nodes": many_nodes, "external": external, "inline": inline, "registry": many_files}
)


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", default=[*CASES], metavar="CASE")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    asked = parser.parse_args()
    if unknown := set(asked.cases) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(CASES)}")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores; {asked.rounds} rounds")
    print(f"{'':<44}{'wall s':>8}{'CPU s':>8}{'MiB':>8}")
    for case in asked.cases:
        with tempfile.TemporaryDirectory() as folder:
            CASES[case](Path(folder), asked.rounds)


if __name__ == "__main__":
    main()
