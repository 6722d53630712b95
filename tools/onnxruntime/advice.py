"""What the memory options of a session save, and what they cost in time, on real models.

Usage: python tools/onnxruntime/advice.py FOLDER

Symbols open, optimization all, two threads. Every setting of the option grid once, the default and
the advised one three times, each in a fresh process. Then those that save most and keep memory
between runs, in turn in one process, for what they cost in time (``time_ratio``, to the default):
the ``run_seconds`` of a process of its own say more of what else the machine did. ``FOLDER`` holds
the corpus; ``tests/data/onnxruntime/advice.json`` has a row for each model.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import corpus
from truth import MeasuringError, Setting, child, request_for

TARGET = Path(__file__).parents[2] / "tests" / "data" / "onnxruntime" / "advice.json"
CHILD = Path(__file__).with_name("advice_run.py")
TIMER = Path(__file__).with_name("advice_time.py")
THREADS, NUM_TIMED, NUM_ROUNDS, TURNS = 2, 4, 11, 3
MOST_SECONDS = 25
ARENAS = ("next_power_of_two", "same_as_requested", "off")
BATCHES = {
    "alexnet": 16,
    "bert_base": 4,
    "convnext_tiny": 4,
    "densenet121": 4,
    "efficientnet_b0": 8,
    "gpt2": 4,
    "inception_v3": 4,
    "light_shufflenet": 16,
    "light_squeezenet": 16,
    "lstm_classifier": 16,
    "mobilenet_v2": 8,
    "mobilenet_v2.int8": 8,
    "resnet50": 8,
    "smollm_cached": 8,
    "unet": 4,
    "vgg16": 4,
    "vit_tiny": 8,
    "whisper_tiny_encoder": 4,
    "magika": 16,
    "minilm_int8": 16,
    "nudenet": 4,
    "opennsfw": 8,
    "plcmos": 8,
    "ppocr2_cls": 16,
    "ppocr4_det": 4,
    "ppocr4_rec": 8,
}
Options = tuple[bool, bool, str, bool]
"""Reuse, pattern, arena, shrink."""
DEFAULT: Options = (True, True, "next_power_of_two", False)
ADVISED: Options = (False, False, "next_power_of_two", False)
TIMED: tuple[Options, ...] = (
    DEFAULT,
    (True, False, "next_power_of_two", False),
    ADVISED,
    (True, False, "same_as_requested", False),
    (False, False, "same_as_requested", False),
)


def main() -> None:
    """Measure the models that have no row yet, and write all rows."""
    folder = Path(sys.argv[1])
    kept = folder / "advice"
    kept.mkdir(exist_ok=True)
    for name, batch in BATCHES.items():
        if not (kept / f"{name}.json").exists():
            row = {"model": name, "batch": batch, "options": list(_grid(folder / name, batch))}
            (kept / f"{name}.json").write_text(json.dumps(row, indent=1))
            print(name, _told(row), flush=True)
    rows = []
    for name, batch in BATCHES.items():
        row = json.loads((kept / f"{name}.json").read_text())
        timed = kept / f"{name}.timed.json"
        if not timed.exists():
            ratios = _time_ratios(folder / name, batch)
            timed.write_text(json.dumps(_with_ratios(row, ratios), indent=1))
            print(name, [*ratios.values()], flush=True)
        rows.append(json.loads(timed.read_text()))
    head = {"threads": THREADS, "level": "all", "dims": "symbolic", "runs_before_memory": 3}
    lines = ",\n".join(map(_text, rows))
    TARGET.write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{lines}\n]}}\n')


def grid() -> Iterator[Options]:
    """Every combination of the options; two without an arena, where there is nothing to shrink."""
    switch = (True, False)
    for reuse, pattern, arena, shrink in product(switch, switch, ARENAS, switch):
        if arena != "off" or (reuse == pattern and not shrink):
            yield reuse, pattern, arena, shrink


def _grid(folder: Path, batch: int) -> Iterator[dict[str, object]]:
    others = (options for options in grid() if options not in {DEFAULT, ADVISED})
    turns = [*TURNS * (DEFAULT, ADVISED), *others]
    found: dict[Options, list[Mapping[str, float]]] = {}
    failures: dict[Options, str] = {}
    for options in turns:
        try:
            timed = NUM_TIMED if options in {DEFAULT, ADVISED} else NUM_TIMED // 2
            found.setdefault(options, []).append(_measured(folder, batch, options, timed))
        except MeasuringError as failure:
            failures[options] = str(failure)
    for options in grid():
        named = dict(zip(("reuse", "pattern", "arena", "shrink"), options, strict=True))
        if options in failures:
            yield {**named, "failure": failures[options]}
        else:
            runs = found[options]
            yield {**named, **{key: median(run[key] for run in runs) for key in runs[0]}}


def _measured(folder: Path, batch: int, options: Options, timed: int) -> Mapping[str, float]:
    reuse, pattern, arena, shrink = options
    setting = Setting(batch, "all", fixed=False, reuse=reuse)
    request = request_for(corpus.read(folder), setting, folder)
    more = {"pattern": pattern, "arena": arena, "shrink": shrink}
    counts = {"threads": THREADS, "num_timed": timed}
    figures: Mapping[str, float] = child([str(CHILD)], {**request, **more, **counts})
    return figures


def _time_ratios(folder: Path, batch: int) -> Mapping[Options, float]:
    """Seconds of a run to those by default, for the settings in ``TIMED``."""
    request = request_for(corpus.read(folder), Setting(batch, "all", fixed=False), folder)
    counts = {"threads": THREADS, "num_rounds": NUM_ROUNDS, "most_seconds": MOST_SECONDS}
    asked = {**request, **counts, "options": [options[:3] for options in TIMED]}
    return dict(zip(TIMED, child([str(TIMER)], asked)["ratios"], strict=True))


def _with_ratios(row: dict[str, Any], ratios: Mapping[Options, float]) -> dict[str, Any]:
    options = [{**item, "time_ratio": ratios.get(_named(item))} for item in row["options"]]
    return {**row, "options": options}


def _text(row: Mapping[str, Any]) -> str:
    """A row as JSON, a line for each of its options."""
    lines = ",\n  ".join(json.dumps(item) for item in row["options"])
    head = json.dumps({key: row[key] for key in ("model", "batch")})
    return f'{head[:-1]}, "options": [\n  {lines}]}}'


def _named(item: Mapping[str, Any]) -> Options:
    return item["reuse"], item["pattern"], item["arena"], item["shrink"]


def _told(row: Mapping[str, Any]) -> str:
    """What the advised setting saves of what the default one keeps resident."""
    by_options = {_named(item): item for item in row["options"]}
    default, advised = by_options[DEFAULT], by_options[ADVISED]
    kept, less = (item["anonymous_bytes_grown"] / 2**20 for item in (default, advised))
    return f"{kept:.1f} -> {less:.1f} MiB"


if __name__ == "__main__":
    main()
