"""Holds the printed largest batch against full replays at every batch up to twice as many.

Usage: python tools/benchmarks/largest_batches.py [MODEL...]

Each batch is walked from the file on, without the lines and the search that `onnxmem fit` uses, and
replayed with the device's capacity. Prints a line for each model and device, and exits with 1 where
a batch disagrees.
"""

import sys
import time
from pathlib import Path

from onnxmem.analysis.fitting.assessing import FitRequest, fit
from onnxmem.analysis.fitting.footprints import footprint_of, on_device, request_of
from onnxmem.analysis.fitting.verdicts import ACCURACIES, Basis, basis_for
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import catalog
from onnxmem.settings import Settings

MODELS = ("resnet50.train", "vgg16", "alexnet", "unet", "convnext_tiny", "efficientnet_b0")
DEVICES = ("RTX 3060", "RTX 2080 Ti", "Raspberry Pi 4B 2GB")
MOST = 10_000
"""Batches that are walked: of a larger range the ends, and as many apart."""


def main(names: list[str]) -> int:
    """Compare all of them."""
    models = [Path(name) for name in names] or [Path("models") / f"{n}.onnx" for n in MODELS]
    wrong = 0
    for model in models:
        for device in DEVICES:
            for train in (False, True):
                wrong += compared(model, device, train=train)
    return 1 if wrong else 0


def compared(model: Path, name: str, *, train: bool) -> int:
    """Batches at which the answer and a full replay disagree."""
    device = catalog().find(name)
    runtime = "ort-cuda" if device.kind == "cuda" else "ort-cpu"
    basis = basis_for(device.kind, train=train, runtime=runtime)
    settings = Settings(train=train, asks_onnxruntime=False)
    question = on_device(request_of(str(model), settings), device, basis)
    begin = time.perf_counter()
    found = fit((question,), FitRequest(memory_bytes=device.limit_bytes, basis=basis))
    seconds = time.perf_counter() - begin
    reach = found.max_batch
    if reach is None or reach.number is None:
        print(f"{model.stem:<20}{name:<22}{basis:<14} no largest batch")
        return 0
    again = {n for first, last in reach.above for n in range(first, last + 1)}
    tried = _tried(2 * reach.number)
    differing = []
    for batch in tried:
        is_met = _runs(question, basis, batch, device.limit_bytes)
        if is_met != (batch <= reach.number or batch in again):
            differing.append(batch)
    print(
        f"{model.stem:<20}{name:<22}{basis:<14}{reach.number:>8,}  {reach.method:<13}"
        f"{seconds:6.1f} s {len(tried):>6,} batches  {len(differing)} differ {differing[:5] or ''}",
        flush=True,
    )
    return len(differing)


def _tried(last: int) -> list[int]:
    last = max(last, 2)
    if last <= MOST:
        return list(range(1, last + 1))
    middle = last // 2
    near = range(middle - 200, middle + 201)
    apart = (1 + (last - 1) * each // (MOST - 401) for each in range(MOST - 400))
    return sorted({*near, *apart})


def _runs(question: AnalysisRequest, basis: Basis, batch: int, limit_bytes: int) -> bool:
    held = footprint_of(question.at(batch), basis)
    return held.demand.compared(limit_bytes, ACCURACIES[basis]).verdict.is_met


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
