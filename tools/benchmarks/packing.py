"""How far above the lower bound arenas are, and how long packing takes: a table to stdout.

    python tools/benchmarks/packing.py          models/, onnx's light_* models, stress
    python tools/benchmarks/packing.py FOLDER   those and google/minimalloc's instances, the
                                                ``*.csv`` of its folder benchmarks/asplos2024

An instance's capacity is in its file's name: its authors' solver comes to it in seconds of C++, so
an arena above it is not the least.

Stress: rectangles of time x address cut again and again at random, so that the pieces fill them
without a hole: the least arena is the lower bound, and no order of the pieces tells where they
were. google/minimalloc's ``benchmarks/challenging`` is of that kind; graphs are not. Layered:
lifetimes of a long network, most short, some across many layers, by the tens of thousands.
"""

import argparse
import csv
import time
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from random import Random

import onnx

from onnxmem import analyze
from onnxmem.allocators.packed import Blocks, pack_blocks

ROOT = Path(__file__).parents[2]
LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
CAPACITY = 1 << 20

Rows = list[tuple[int, int, int]]
"""Start, stop and bytes of each block."""
Box = tuple[int, int, int, int]
"""Start, stop, low and high."""


def of_models() -> Iterator[tuple[str, Rows]]:
    """What the arenas of real models hold."""
    for path in (*sorted((ROOT / "models").glob("*.onnx")), *sorted(LIGHT.glob("*.onnx"))):
        run = analyze(str(path)).activations.replay
        columns = (*run.program.lifetimes, run.sizes.fixed_bytes)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        yield path.stem, [row for row in rows if row[2]]


def tiling(num_blocks: int, num_steps: int, seed: int) -> Rows:
    """Cut the box with the largest area, across time or address, until there are enough."""
    draws = Random(seed)  # noqa: S311 - the same instance each time
    boxes: list[Box] = [(0, num_steps, 0, CAPACITY)]
    while len(boxes) < num_blocks:
        boxes.sort(key=lambda box: (box[1] - box[0]) * (box[3] - box[2]) * draws.random())
        start, stop, low, high = boxes.pop()
        part = 0.1 + 0.8 * draws.random()
        if stop - start > 1 and draws.random() < 0.5:  # noqa: PLR2004 - a coin
            cut = min(stop - 1, max(start + 1, start + int(part * (stop - start))))
            boxes += [(start, cut, low, high), (cut, stop, low, high)]
        elif high - low > 1:
            cut = min(high - 1, max(low + 1, low + int(part * (high - low))))
            boxes += [(start, stop, low, cut), (start, stop, cut, high)]
        else:
            boxes.append((start, stop, low, high))
    draws.shuffle(boxes)
    return [(start, stop, high - low) for start, stop, low, high in boxes]


def layered(num_blocks: int, share_long: float, seed: int) -> Rows:
    """Two of three buffers live a few steps; the share of long ones lives up to half the run."""
    draws = Random(seed)  # noqa: S311 - the same instance each time
    found = []
    for step in range(num_blocks):
        is_long = draws.random() < share_long
        longest = num_blocks // 2 if is_long else 6
        size_bytes = 64 * (1 + int(10 ** (5 * draws.random())))
        stop = min(num_blocks, step + 1 + int(longest * draws.random()))
        found.append((step, stop, size_bytes))
    return found


def training(num_layers: int, per_layer: int, seed: int) -> Rows:
    """Forward and backward of a deep network: what a layer saves lives until its backward."""
    draws = Random(seed)  # noqa: S311 - the same instance each time
    num_steps = 2 * num_layers * per_layer
    found: Rows = []
    for step in range(num_layers * per_layer):
        size_bytes = 4096 << int(8 * draws.random())
        is_saved = draws.random() < 0.5  # noqa: PLR2004 - half of a layer's tensors
        stop = num_steps - step if is_saved else step + 2 + int(per_layer * draws.random())
        found.append((step, min(stop, num_steps), size_bytes))
        back = num_steps - 1 - step
        stop = min(num_steps, back + 2 + int(per_layer * draws.random()))
        found.append((back, stop, size_bytes))
    return found


def of_files(folder: Path) -> Iterator[tuple[str, Rows]]:
    """Instances of minimalloc's form: name, first step, step after the last, size."""
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8") as lines:
            rows = list(csv.reader(lines))[1:]
        yield path.stem, [(int(start), int(stop), int(size)) for _, start, stop, size in rows]


def stress() -> Iterator[tuple[str, Rows]]:
    """Instances made for the purpose."""
    for seed, num_blocks in enumerate((150, 200, 300, 450)):
        for num_steps in (40, 400):
            yield f"tiling {num_blocks} x {num_steps}", tiling(num_blocks, num_steps, seed)
    yield "layered 20,000, 0.5 % long", layered(20_000, 0.005, 1)
    yield "layered 20,000, 10 % long", layered(20_000, 0.1, 2)
    yield "layered 22,000, 10 % long", layered(22_000, 0.1, 14)
    yield "layered 25,000, 5 % long", layered(25_000, 0.05, 11)
    yield "layered 28,000, 20 % long", layered(28_000, 0.2, 12)
    yield "training 20,000", training(1_000, 10, 4)
    yield "training 30,000", training(1_500, 10, 5)
    yield "layered 30,000, 10 % long", layered(30_000, 0.1, 3)


def main() -> None:
    """Print a row per instance."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="of google/minimalloc's CSV files")
    folder = parser.parse_args().folder
    print(
        f"{'instance':36} {'buffers':>8} {'packed B':>14} {'bound B':>14} {'/ bound':>8} "
        f"{'cpu s':>7}  proven"
    )
    files = of_files(folder) if folder else ()
    for name, rows in chain(files, of_models(), stress()):
        starts, stops, sizes = (list(column) for column in zip(*rows, strict=True))
        start = time.process_time()
        size_bytes, _, lower_bound = pack_blocks(Blocks(sizes, starts, stops))
        seconds = time.process_time() - start
        ratio = size_bytes / max(1, lower_bound)
        print(
            f"{name:36} {len(rows):8,} {size_bytes:14,} {lower_bound:14,} "
            f"{ratio:8.4f} {seconds:7.3f}  {'yes' if size_bytes == lower_bound else 'no'}",
            flush=True,
        )


if __name__ == "__main__":
    main()
