"""Counted steps of networks drawn from timm, against what is predicted from their files.

    python tools/training/timm_table.py [NETWORK ...]

It reads `timm_steps.csv` beside it, whose rows stand in the order of the draws, and the networks'
files, `tests/data/timm_steps*.tar.xz`; it needs onnxmem alone. The first networks of each draw were
looked at while rules changed, the others once they were frozen.
"""

import csv
import sys
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxmem
from onnxmem.settings import TrainingConfig

DATA = Path(__file__).with_name("timm_steps.csv")
FILES = Path(__file__).parents[2] / "tests" / "data"
BATCH = 4
NUM_SEEN = {"1": 16, "2": 20, "3": 0, "4": 0, "5": 0}
"""Networks of each draw that were looked at first."""
SUFFIXES = {"script": "", "dynamo": ".dynamo"}
"""Of a network's file, by exporter."""
PRECISIONS = ("fp32", "mixed-bf16")


@dataclass(frozen=True, slots=True)
class Counted:
    """The counted peak of one network's step, for a file of it."""

    draw: str
    network: str
    exporter: str
    precision: str
    peak_bytes: int
    is_seen: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The same beside the prediction."""

    counted: Counted
    error_percent: float
    findings: tuple[str, ...]


def steps() -> list[Counted]:
    """All that were counted."""
    with DATA.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    of_draws = {draw: [row for row in rows if row["draw"] == draw] for draw in NUM_SEEN}
    return [
        Counted(
            *(draw, row["network"], exporter, precision),
            int(row[f"{precision.replace('-', '_')}_peak_bytes"]),
            index < NUM_SEEN[draw],
        )
        for draw, found in of_draws.items()
        for index, row in enumerate(found)
        for exporter in SUFFIXES
        if not (row["error"] or row[f"{exporter}_error"])
        for precision in PRECISIONS
    ]


def compared(folder: Path, step: Counted) -> Compared:
    """A step beside what its network's file says."""
    recipe = TrainingConfig(optimizer="momentum", precision=step.precision)
    path = folder / f"{step.network}{SUFFIXES[step.exporter]}.onnx"
    found = onnxmem.analyze(path, batch=BATCH, train=True, recipe=recipe).training
    error = 100 * (found.peak_bytes / step.peak_bytes - 1)
    return Compared(step, error, tuple(each.code for each in found.findings))


def table(rows: Iterable[Compared]) -> Iterator[str]:
    """How many are within 1 and 5 percent, by file and precision; then each further off than 1."""
    found = list(rows)
    heads = ("draw", "networks", "export", "step", "rows", "exact", "within 1 %", "within 5 %")
    yield f"| {' | '.join(heads)} | largest error |\n{'|---' * (len(heads) + 1)}|"
    groups: dict[tuple[str, str, str, str], list[Compared]] = {}
    for each in found:
        one = each.counted
        seen = "looked at" if one.is_seen else "unseen"
        groups.setdefault((one.draw, seen, one.exporter, one.precision), []).append(each)
    yield from (_line(names, of) for names, of in sorted(groups.items()))
    far = [each for each in found if abs(each.error_percent) > 1]
    if far:
        yield "\n| further off | export | step | error | findings |\n|---|---|---|---|---|"
    for each in far:
        one = each.counted
        named = f"{one.network} | {one.exporter} | {one.precision}"
        yield f"| {named} | {each.error_percent:+.1f} % | {', '.join(each.findings) or 'none'} |"


def _line(names: tuple[str, ...], rows: list[Compared]) -> str:
    errors = [each.error_percent for each in rows]
    exact, near, wide = (sum(abs(error) <= most for error in errors) for most in (0, 1, 5))
    share = 100 * near / len(rows)
    worst = max(errors, key=abs)
    counts = f"{len(rows)} | {exact} | {near} ({share:.0f} %) | {wide}"
    return f"| {' | '.join(names)} | {counts} | {worst:+.2f} % |"


def main(networks: list[str]) -> str:
    """The table of some networks, or of all."""
    asked = [each for each in steps() if not networks or each.network in networks]
    with TemporaryDirectory() as folder, ProcessPoolExecutor() as pool:
        for archive in FILES.glob("timm_steps*.tar.xz"):
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
        return "\n".join(table(pool.map(partial(compared, Path(folder)), asked)))


if __name__ == "__main__":
    print(main(sys.argv[1:]))
