"""What onnxruntime takes on a part of the corpus, by version, and which figures differ.

Settings in which two processes of one version execute in different orders (``varying``) say nothing
of versions and are left out.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import corpus
from truth import MeasuringError, Setting, trace

FIGURES: Final = (
    "base_bytes",
    "requested_peak_bytes",
    "with_scratch_peak_bytes",
    "pattern_block_bytes",
    "in_use_peak_bytes",
    "held_bytes",
    "held_steady_bytes",
    "nodes",
    "requested",
    "scratch",
)
MODELS: Final = (
    "bert_base",
    "efficientnet_b0",
    "gpt2",
    "greedy_translator",
    "light_squeezenet",
    "lstm_classifier",
    "mobilenet_v2.int8",
    "resnet50",
    "smollm_cached",
    "tinyllama.int4",
    "whisper_tiny_encoder",
    "basic_pitch",
    "magika",
    "minilm_int8",
    "nakdimon",
    "nudenet",
    "plcmos",
    "ppocr4_det",
    "silero_vad",
)
Row = Mapping[str, Any]
Differences = Mapping[str, Mapping[str, object]]
"""By setting and figure."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of several versions."""

    compared: tuple[str, ...]
    """Settings."""
    varying: tuple[str, ...]
    """Settings that one version alone does not repeat."""
    differences: Mapping[str, Differences]
    """By version: what it takes otherwise than the reference."""


def measured(folder: Path, pythons: Mapping[str, Path], reference: str) -> Measured:
    """Measure with each version, with the reference twice; what is measured already is kept."""
    rows = {name: dict(_rows(folder, name, python)) for name, python in pythons.items()}
    again = dict(_rows(folder, reference, pythons[reference], "-again"))
    varying = differences(rows[reference], again)
    compared = {name: row for name, row in rows[reference].items() if name not in varying}
    found = {name: differences(compared, rows[name]) for name in rows if name != reference}
    return Measured(tuple(sorted(compared)), tuple(sorted(varying)), found)


def settings(entry: corpus.Entry) -> Iterator[Setting]:
    """Largest batch; symbols open and fixed, optimization on and off."""
    batch = entry.batches[-1] if entry.batch else None
    for fixed in (False, True):
        for level in ("off", "all"):
            yield Setting(batch, level, fixed)


def differences(reference: Mapping[str, Row], other: Mapping[str, Row]) -> Differences:
    """What differs by setting and figure: [of the reference, of the other], or the first step."""
    found = {}
    for name, row in reference.items():
        steps = [operator for _, operator in row.get("nodes", ())]
        # Names of nodes that the optimizer makes are numbered from run to run.
        pair = [
            {**each, "nodes": [op for _, op in each.get("nodes", ())]}
            for each in (row, other[name])
        ]
        differing = {
            key: _told(pair[0].get(key), pair[1].get(key), steps)
            for key in (*FIGURES, "failure")
            if pair[0].get(key) != pair[1].get(key)
        }
        if differing:
            found[name] = differing
    return found


def _told(reference: object, other: object, steps: list[str]) -> object:
    """A pair of figures; of two lists their lengths and the first step that differs."""
    if not isinstance(reference, list) or not isinstance(other, list):
        return [reference, other]
    pairs = enumerate(zip(reference, other, strict=False))
    index = next((index for index, pair in pairs if pair[0] != pair[1]), None)
    told: dict[str, object] = {"lengths": [len(reference), len(other)], "first_step": index}
    if index is not None:
        values = [reference[index], other[index]]
        # Of scratch an entry is a step and its bytes.
        step = min(each[0] for each in values) if isinstance(values[0], list) else index
        told |= {"operator": steps[step], "at_first_step": values}
    return told


def _rows(folder: Path, version: str, python: Path, again: str = "") -> Iterator[tuple[str, Row]]:
    for name in MODELS:
        print(version, name, flush=True)
        entry = corpus.read(folder / name)
        for setting in settings(entry):
            here = folder / "versions" / f"{version}{again}" / name / setting.name
            yield f"{name} {setting.name}", _row(entry, setting, here, python)


def _row(entry: corpus.Entry, setting: Setting, here: Path, python: Path) -> Row:
    kept = here / "figures.json"
    if not kept.exists():
        try:
            kept.write_text(json.dumps(trace(entry, setting, here, str(python))))
        except MeasuringError as failure:
            return {"failure": str(failure)}
    figures: Row = json.loads(kept.read_text())
    return figures
