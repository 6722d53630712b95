"""The settings that ``onnxmem simulate --advise`` names for a server, held against runs.

Usage: python tools/onnxruntime/serving_advice_table.py FOLDER COUNT [MODEL...] [--weights inline]

Each model of ``serving_truth.py`` serves ``COUNT`` requests of its first mix with each combination
of settings and with each change of the load that is advised, in a process of its own. A line has
the peak of the arena and of the process, and the time, all as a share of the session's own
settings: those of the advised combination, and of the best one that was measured. ``--weights
inline`` starts from weights in the model file, as most files have them; the models here have none.
"""

import argparse
import time
from pathlib import Path
from random import Random
from statistics import median

from serving_truth import SEED, SERVED, Served, path_of, uniform

from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.decisions.serving_advice import ServingChange, advise_serving
from onnxmem.decisions.simulate import Serving
from onnxmem.errors import Finding
from onnxmem.measuring.measuring import MeasureSettings
from onnxmem.measuring.served import ServedLoad, ServedMeasurement, measure_requests
from onnxmem.model.requests import Requests, listed_requests
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.settings import Settings


def main() -> None:
    """Print a line for each model, and the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--weights", choices=("inline", "external"))
    asked = parser.parse_args()
    own = SessionOptions(weights=asked.weights)
    chosen = [each for each in SERVED if not asked.models or each.name in asked.models]
    shares = [compared(each, path_of(each, asked.folder), asked.count, own) for each in chosen]
    middle = ", ".join(f"{100 * median(each):.0f} %" for each in zip(*shares, strict=True))
    print(f"median of arena, process, time; of the best process the same: {middle}")


def compared(served: Served, path: Path, count: int, options: SessionOptions) -> tuple[float, ...]:
    """Shares of the own settings: with the advised ones, then with the best that were measured."""
    rows = uniform(served, Random(SEED))[:count]  # noqa: S311 - a reproducible order
    requests = listed_requests(rows)
    start = time.time()
    request = request_of(str(path), Settings(runtimes=("ort-cpu",)))
    advice = advise_serving(request, requests, Serving(options=options))
    advising = time.time() - start
    changes = [change for change in (advice.own, *advice.changes) if change.is_setting]
    found = {change.name: measured(path, change, requests) for change in changes}
    own, advised = found[advice.own.name], advice.best_setting
    best = min(found, key=lambda name: found[name].process_peak_bytes or 0)
    exact = sum(
        found[each.name].arena_reserved_peak_bytes == each.reserved_peak_bytes for each in changes
    )
    shares = (*_shares(found[advised.name], own), *_shares(found[best], own))
    text = ", ".join(f"{100 * share:.0f} %" for share in shares)
    falls = advised.process_peak_bytes / advice.own.process_peak_bytes
    text += f" (process predicted {100 * falls:.0f} %)"
    told = f"{exact} of {len(changes)} peaks exact, advised in {advising:.0f} s"
    print(f"{served.name}: {advised.name}: {text}; best: {best}; {told}", flush=True)
    return shares


def measured(path: Path, change: ServingChange, requests: Requests) -> ServedMeasurement:
    """A process with the settings of a change."""
    load = ServedLoad(requests)
    settings = MeasureSettings(options=change.options)
    found = measure_requests(str(path), load, settings=settings)
    if isinstance(found, Finding):
        raise SystemExit(found.message)
    return found


def _shares(found: ServedMeasurement, own: ServedMeasurement) -> tuple[float, float, float]:
    process = (found.process_peak_bytes or 0) / (own.process_peak_bytes or 1)
    arena = found.arena_reserved_peak_bytes / own.arena_reserved_peak_bytes
    return (arena, process, found.seconds / own.seconds)


if __name__ == "__main__":
    main()
