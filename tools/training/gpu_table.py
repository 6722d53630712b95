"""Steps that ``gpu_libraries.py`` measured on a GPU, against what is predicted from the files.

    python tools/training/gpu_table.py [NETWORK ...]

It reads `tests/data/training/gpu.json` and the networks' files, `tests/data/training_gpu.tar.xz`,
and needs onnxmem alone. The size of cuBLAS's workspace on these cards was read off the figures, and
rules of PyTorch were looked up where hrnet_w18, llama_grouped and coatnet_0_rw_224 were off.
"""

import contextlib
import io
import json
import sys
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import onnxmem
from onnxmem.cli import main as onnxmem_main
from onnxmem.settings import TrainingConfig

DATA = Path(__file__).parents[2] / "tests" / "data"
HOPPER_BYTES = 32 * 2**20
"""Of each cuBLAS handle on an H100 or H200."""
WORKSPACES = {"default": TrainingConfig().cublas_bytes(), "32MiB": HOPPER_BYTES}

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Compared:
    """Errors of one row in percent, by the size of cuBLAS's workspace."""

    network: str
    allocated_percent: dict[str, float]
    reserved_percent: dict[str, float]


def document() -> dict[str, Any]:
    """All that was measured."""
    found: dict[str, Any] = json.loads((DATA / "training" / "gpu.json").read_text())
    return found


def unpacked(folder: str) -> Path:
    """The networks' files, in a folder."""
    with tarfile.open(DATA / "training_gpu.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return Path(folder)


def recipe_of(row: Row, workspace_bytes: int) -> TrainingConfig:
    """How a row was trained."""
    names = ("optimizer", "precision", "checkpoint", "accumulate")
    given = {name: row[name] for name in names if name in row}
    return TrainingConfig(**given, cublas_workspace_bytes=workspace_bytes)


def path_of(folder: Path, row: Row) -> Path:
    """The file of a row's network."""
    return folder / f"{row['network'].replace('/', '.')}.onnx"


def compared(folder: Path, row: Row) -> Compared:
    """A step beside what its network's file says."""
    allocated, reserved = {}, {}
    for name, size_bytes in WORKSPACES.items():
        recipe = recipe_of(row, size_bytes)
        found = onnxmem.analyze(
            path_of(folder, row), batch=row["batch"], train=True, recipe=recipe
        ).torch
        allocated[name] = 100 * (found.allocated_bytes / row["allocated_peak_bytes"] - 1)
        reserved[name] = 100 * (found.reserved_bytes / row["reserved_bytes"] - 1)
    return Compared(row["network"], allocated, reserved)


def largest_batch(folder: Path, row: Row, capacity_bytes: int) -> int:
    """The largest batch that ``onnxmem fit`` finds where the allocator has this capacity."""
    words = ["fit", str(path_of(folder, row)), "--train", "--json", "--basis", "process"]
    words += ["--device", f"{capacity_bytes // 2**20}MiB", "--cuda-context", "0B"]
    words += ["--optimizer", row["optimizer"], "--precision", row["precision"]]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        onnxmem_main([*words, "--cublas-workspace", "32MiB"])
    number: int = json.loads(printed.getvalue())["largest"]["number"]
    return number


def table(rows: Iterable[Compared]) -> Iterator[str]:
    """The errors of all rows, by figure and workspace, and of each family."""
    found = list(rows)
    heads = ("figure", "cuBLAS", "networks", "rows", "median", "90 % within", "largest error")
    yield f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|"
    families = ("all", *dict.fromkeys(row.network.split("/")[0] for row in found))
    for figure in ("allocated", "reserved"):
        for name in WORKSPACES:
            for family in families if name == "32MiB" else ("all",):
                errors = [
                    getattr(row, f"{figure}_percent")[name]
                    for row in found
                    if family in {"all", row.network.split("/")[0]}
                ]
                yield line((figure, name, family), errors)


def line(heads: tuple[str, ...], errors: list[float]) -> str:
    """One row of the table."""
    sizes = sorted(map(abs, errors))
    figures = (
        f"{len(sizes)}",
        f"{median(sizes):.2f} %",
        f"{sizes[9 * len(sizes) // 10]:.1f} %",
        f"{max(errors, key=abs):+.1f} %",
    )
    return f"| {' | '.join((*heads, *figures))} |"


def searched(folder: Path, names: list[str]) -> Iterator[str]:
    """The largest batches, measured and predicted."""
    found = document()
    yield "| network | precision | measured | predicted |\n|---|---|---|---|"
    rows = [row for row in found["searched"] if not names or row["network"] in names]
    work = partial(largest_batch, folder, capacity_bytes=found["about"]["capacity_bytes"])
    with ProcessPoolExecutor() as pool:
        for row, number in zip(rows, pool.map(work, rows), strict=True):
            cells = (row["network"], row["precision"], str(row["largest_batch"]), str(number))
            yield f"| {' | '.join(cells)} |"


def main(names: list[str]) -> None:
    """Print both tables."""
    rows = [row for row in document()["measured"] if not names or row["network"] in names]
    with TemporaryDirectory() as name:
        folder = unpacked(name)
        with ProcessPoolExecutor() as pool:
            for text in table(pool.map(partial(compared, folder), rows)):
                print(text)
        print()
        for text in searched(folder, names):
            print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
