"""Batches that ran on a real GPU and the next ones that did not, against the verdict.

    python tools/training/published/export_timm.py FOLDER
    python tools/training/published/brackets.py FOLDER [NETWORK ...]

`brackets.csv` is of timm's own training benchmark of 2022, an RTX 3090 with PyTorch 1.12 and CUDA
11.3 (results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv of its repository): autocast
in fp16, SGD with Nesterov momentum, batches from 512 downwards until one ran. A bracket is right
where the batch that ran fits, however tightly, and the next one does not.

cuDNN's workspace is left out: its search tries the next algorithm where a workspace cannot be had
(`AlgoIterator::try_all` of aten/src/ATen/native/cudnn/Conv_v7.cpp).
"""

import csv
import gzip
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from onnxmem.analysis.fitting.assessing import FitRequest, assess
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Basis, Verdict
from onnxmem.decisions.devices import catalog
from onnxmem.settings import Settings, TrainingConfig

DATA = Path(__file__).with_name("brackets.csv")
CARD = "RTX 3090"
CARD_BYTES = round(23.70 * 2**30)
"""What the driver reports of one."""
LAYOUTS = ("nchw", "nhwc")


@dataclass(frozen=True, slots=True)
class Bracket:
    """What was seen of one network."""

    network: str
    layout: str
    ran: int
    failed: int | None
    """``None``: the largest that was tried ran."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is predicted of a batch."""

    total_bytes: int
    verdict: Verdict

    @property
    def runs(self) -> bool:
        """Whether the batch is predicted to run, however tightly."""
        return self.verdict.is_met


def brackets() -> list[Bracket]:
    """All that were published of networks that timm still has with as many parameters."""
    with DATA.open(encoding="utf-8") as file:
        return [
            Bracket(
                row["network"],
                row["layout"],
                int(row["batch_that_ran"]),
                int(row["next_batch_that_did_not"] or 0) or None,
            )
            for row in csv.DictReader(file)
        ]


def predicted(path: Path, batch: int) -> Predicted:
    """A step of the benchmark's loop on the benchmark's card."""
    recipe = TrainingConfig().with_fields(
        torch="1.12",
        optimizer="nesterov",
        precision="mixed-fp16",
        gpu_threads=catalog().find(CARD).gpu_threads,
    )
    settings = Settings(batch=batch, train=True, recipe=recipe, cuda_workspace_bytes=0)
    setup = FitRequest(memory_bytes=CARD_BYTES, basis=Basis.TORCH)
    assessment = assess((request_of(str(path), settings),), setup)
    compared = assessment.compared(setup.limit_bytes)
    return Predicted(assessment.footprint.total_bytes, compared.verdict)


def of_network(path: Path, batches: tuple[int, ...]) -> dict[int, Predicted]:
    """What is predicted of a network's file at all batches, packed with gzip or not."""
    with TemporaryDirectory() as folder:
        plain = Path(folder) / "network.onnx"
        data = path.read_bytes()
        plain.write_bytes(gzip.decompress(data) if path.suffix == ".gz" else data)
        return {batch: predicted(plain, batch) for batch in batches}


def is_right(bracket: Bracket, found: dict[int, Predicted]) -> bool:
    """Whether the verdict is what was seen."""
    return found[bracket.ran].runs and not (bracket.failed and found[bracket.failed].runs)


def told(bracket: Bracket, found: dict[int, Predicted]) -> str:
    """A bracket that is missed: what was seen, and what is predicted."""
    way = "too low" if found[bracket.ran].runs else "too high"
    seen = [batch for batch in (bracket.ran, bracket.failed) if batch]
    sizes = ", ".join(f"{batch}: {found[batch].total_bytes / 2**30:.1f} GiB" for batch in seen)
    return f"| {bracket.network} | {bracket.layout} | {bracket.ran} | {sizes} | {way} |"


def by_verdict(rows: list[tuple[Bracket, dict[int, Predicted]]]) -> Iterator[str]:
    """How many batches of each verdict there are, and how many of them ran."""
    ran = [found[one.ran].verdict for one, found in rows]
    failed = [found[one.failed].verdict for one, found in rows if one.failed]
    for verdict in (Verdict.FITS, Verdict.TIGHT, Verdict.OVER):
        count = ran.count(verdict)
        yield f"| {verdict} | {count + failed.count(verdict)} | {count} |"


def lines(folder: Path, networks: list[str]) -> Iterator[str]:
    """The table of right brackets, and that of those that are missed."""
    paths = {path.name.partition(".onnx")[0]: path for path in sorted(folder.glob("*.onnx*"))}
    known = [one for one in brackets() if one.network in paths]
    asked = [one for one in known if not networks or one.network in networks]
    names = list(dict.fromkeys(one.network for one in asked))
    with ProcessPoolExecutor() as pool:
        each = pool.map(of_network, [paths[name] for name in names], _batches(asked, names))
        found = dict(zip(names, each, strict=True))
    yield "| layout | brackets | right |\n|---|---|---|"
    for layout in LAYOUTS:
        right = [is_right(one, found[one.network]) for one in asked if one.layout == layout]
        share = 100 * sum(right) / max(len(right), 1)
        yield f"| {layout} | {len(right)} | {sum(right)} ({share:.1f} %) |"
    yield "\n| verdict | batches | ran |\n|---|---|---|"
    yield from by_verdict([(one, found[one.network]) for one in asked])
    yield "\n| missed | layout | ran | predicted | |\n|---|---|---|---|---|"
    yield from (
        told(one, found[one.network]) for one in asked if not is_right(one, found[one.network])
    )


def _batches(asked: list[Bracket], names: list[str]) -> list[tuple[int, ...]]:
    seen: dict[str, set[int]] = {name: set() for name in names}
    for one in asked:
        seen[one.network] |= {one.ran, one.failed or one.ran}
    return [tuple(sorted(batches)) for batches in seen.values()]


if __name__ == "__main__":
    print(*lines(Path(sys.argv[1]), sys.argv[2:]), sep="\n")
