"""Peaks of training steps that others printed of real GPUs, against the predictions.

    python tools/training/published/export_steps.py FOLDER
    python tools/training/published/steps.py FOLDER [--rows] [--half=0] [NETWORK ...]

`steps.csv` holds the figures with their sources: `torch.cuda.max_memory_allocated` or
`max_memory_reserved`, in MiB, as `printed` there with its unit. Rows whose network or loop
was written otherwise then than in the file say so (`other_code`) and are listed apart. The networks
are split in two halves by a hash of their names, to look at one half first.
"""

import csv
import gzip
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby
from math import ceil
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import onnxmem
from onnxmem.decisions.devices import catalog
from onnxmem.settings import TrainingConfig

DATA = Path(__file__).with_name("steps.csv")
_OPTIONS = ("torch", "optimizer", "precision", "loss", "shard", "zero_grad")
_CARDS = {
    "V100 32G (as docs say)": "V100 32GB",
    "L40S-45GB": "L40S",
    "A100-80GB": "A100 80GB",
    "GeForce GTX 1060 6GB": "GTX 1060 6GB",
    "Tesla K80 (tools notebook)": "K80",
}
"""The cards of `steps.csv` as the catalog of devices names them; another one is not told."""
_RANKS = 8
"""GPUs of mmaction2's runs; the buckets of DistributedDataParallel do not depend on it."""


@dataclass(frozen=True, slots=True)
class Step:
    """What was printed of one training step."""

    network: str
    family: str
    batch: int
    sequence: int | None
    """Tokens, of a language model; its loss is the sum of the logits, which saves nothing."""
    recipe: TrainingConfig
    is_reserved: bool
    mib: float
    other_code: str
    """How the code that ran differed from the file, if it did."""

    @property
    def half(self) -> int:
        """The half that the network belongs to."""
        return sha256(self.network.encode()).digest()[0] % 2


def steps() -> list[Step]:
    """All rows."""
    with DATA.open(encoding="utf-8", newline="") as file:
        return [_step(row) for row in csv.DictReader(file)]


def _step(row: dict[str, str]) -> Step:
    options = {name: row[name] for name in _OPTIONS}
    card = _CARDS.get(row["gpu"])
    return Step(
        network=row["network"],
        family=row["family"],
        batch=int(row["batch"]),
        sequence=int(row["seq"]) if row["seq"] else None,
        recipe=TrainingConfig().with_fields(
            **options,
            world=_RANKS if row["shard"] == "ddp" else 1,
            keep_outputs=row["keep_outputs"] == "yes",
            outputs=("out",) if row["loss"] == "none" else (),
            gpu_threads=catalog().find(card).gpu_threads if card is not None else None,
        ),
        is_reserved=row["figure"] == "reserved",
        mib=float(row["mib"]),
        other_code=row["other_code"],
    )


def predicted_mib(path: Path, step: Step) -> float:
    """The same figure as predicted."""
    dims = {"seq": step.sequence} if step.sequence else {}
    found = onnxmem.analyze(path, batch=step.batch, dims=dims, train=True, recipe=step.recipe)
    training: Any = found.to_dict()["training"]
    figure = "reserved_bytes" if step.is_reserved else "allocated_bytes"
    return float(training["cuda"][figure]) / 2**20


def errors_percent(path: Path, of: Iterable[Step]) -> list[float]:
    """`100 x (predicted / printed - 1)` of steps of one network, whose file is packed with gzip."""
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "network.onnx"
        plain.write_bytes(gzip.decompress(path.read_bytes()))
        return [100 * (predicted_mib(plain, step) / step.mib - 1) for step in of]


@dataclass(frozen=True, slots=True)
class Compared:
    """A row and how far the prediction is from it."""

    step: Step
    error_percent: float


def compared(folder: Path, rows: Iterable[Step]) -> list[Compared]:
    """All rows whose network's file is in a folder, in their order."""
    by_network: dict[str, list[Step]] = {}
    for row in rows:
        if (folder / f"{row.network}.onnx.gz").exists():
            by_network.setdefault(row.network, []).append(row)
    paths = [folder / f"{name}.onnx.gz" for name in by_network]
    with ProcessPoolExecutor() as pool:
        errors = pool.map(errors_percent, paths, by_network.values())
        return [
            Compared(step, error)
            for of, found in zip(by_network.values(), errors, strict=True)
            for step, error in zip(of, found, strict=True)
        ]


def summary(name: str, rows: list[Compared]) -> str:
    """A line of the table: rows, median, 90th percentile and the largest error."""
    sizes = sorted(abs(row.error_percent) for row in rows)
    worst = max(rows, key=lambda row: abs(row.error_percent)).error_percent
    ninth = sizes[ceil(0.9 * len(sizes)) - 1]
    return f"| {name} | {len(rows)} | {median(sizes):.1f} % | {ninth:.1f} % | {worst:+.1f} % |"


def table(rows: list[Compared]) -> Iterator[str]:
    """By family, all together, and then those whose code differed with the reason."""
    same = [row for row in rows if not row.step.other_code]
    yield "| network | rows | median error | 90th percentile | worst |\n|---|---|---|---|---|"
    for family, of in _grouped(same, "family"):
        yield summary(family, of)
    if same:
        yield summary("all", same)
    others = [row for row in rows if row.step.other_code]
    if others:
        yield "\n| other code or loop | rows | median error | 90th percentile | worst |"
        yield "|---|---|---|---|---|"
    for family, of in _grouped(others, "family"):
        for reason, each in _grouped(of, "other_code"):
            yield summary(f"{family}: {reason}", each)


def _grouped(rows: list[Compared], field: str) -> Iterator[tuple[str, list[Compared]]]:
    def key(row: Compared) -> str:
        text: str = getattr(row.step, field)
        return text

    for text, of in groupby(sorted(rows, key=key), key):
        yield text, list(of)


def main(folder: Path, words: list[str]) -> Iterator[str]:
    """The table, or with `--rows` each row of the networks named."""
    names = [word for word in words if not word.startswith("--")]
    half = next((int(word[-1]) for word in words if word.startswith("--half=")), None)
    asked = [
        row for row in steps() if (not names or row.network in names) and half in {None, row.half}
    ]
    found = compared(folder, asked)
    if "--rows" in words:
        for row in found:
            size = f"batch {row.step.batch}, sequence {row.step.sequence}"
            yield f"{row.step.network}, {size}: {row.step.mib:.0f} MiB, {row.error_percent:+.1f} %"
    yield from table(found)


if __name__ == "__main__":
    for text in main(Path(sys.argv[1]), sys.argv[2:]):
        print(text, flush=True)
