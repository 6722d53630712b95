"""What differs between the newest minor versions of onnxruntime.

Usage: python tools/onnxruntime/versions.py FOLDER [VERSION...]

Makes a virtual environment for each version in ``FOLDER/environments``, measures a part of the
corpus in ``FOLDER`` with each, prints what differs from the first version, and writes
``tests/data/onnxruntime/versions.json``. Settings in which two processes of one version execute in
different orders (``varying``, see ``variation.py``) say nothing of versions and are left out.
"""

import json
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import corpus
from truth import MeasuringError, Setting, trace

VERSIONS = ("1.31.1", "1.30.0", "1.29.0")
TARGET = Path(__file__).parents[2] / "tests" / "data" / "onnxruntime" / "versions.json"
FIGURES = (
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
MODELS = (
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


def main() -> None:
    """Measure with each version, and tell the differences."""
    folder, versions = Path(sys.argv[1]), tuple(sys.argv[2:]) or VERSIONS
    measured = {version: dict(_measured(folder, version)) for version in versions}
    newest = measured[versions[0]]
    again = dict(_measured(folder, versions[0], "-again"))
    varying = sorted(differences(newest, again))
    compared = {name: row for name, row in newest.items() if name not in varying}
    found = {version: differences(compared, measured[version]) for version in versions[1:]}
    data = {
        "versions": versions,
        "figures": FIGURES,
        "compared": sorted(compared),
        "varying": varying,
        "differences": found,
    }
    TARGET.write_text(json.dumps(data, indent=1) + "\n")
    for version, differing in found.items():
        print(f"{version}: {len(differing)} of {len(compared)} settings differ")
        for name, figures in differing.items():
            print(f"  {name}: {json.dumps(figures)}")


def settings(entry: corpus.Entry) -> Iterator[Setting]:
    """Largest batch; symbols open and fixed, optimisation on and off."""
    batch = entry.batches[-1] if entry.batch else None
    for fixed in (False, True):
        for level in ("off", "all"):
            yield Setting(batch, level, fixed)


def differences(newest: Mapping[str, Row], other: Mapping[str, Row]) -> dict[str, object]:
    """By setting and figure: [of the newest, of the other]; of lists, whether they are longer."""
    found: dict[str, object] = {}
    for name, row in newest.items():
        pairs = {key: (row.get(key), other[name].get(key)) for key in (*FIGURES, "failure")}
        differing = {key: _told(*pair) for key, pair in pairs.items() if pair[0] != pair[1]}
        if differing:
            found[name] = differing
    return found


def _told(newest: object, other: object) -> object:
    """A pair of figures; of two lists their lengths and the first step that differs."""
    if not isinstance(newest, list) or not isinstance(other, list):
        return [newest, other]
    pairs = enumerate(zip(newest, other, strict=False))
    first = next((index for index, pair in pairs if pair[0] != pair[1]), None)
    return {"lengths": [len(newest), len(other)], "first_step": first}


def _measured(folder: Path, version: str, again: str = "") -> Iterator[tuple[str, Row]]:
    python = _environment(folder / "environments" / version, version)
    for name in MODELS:
        entry = corpus.read(folder / name)
        for setting in settings(entry):
            here = folder / "versions" / f"{version}{again}" / name / setting.name
            yield f"{name} {setting.name}", _row(entry, setting, here, python)
        print(version, name, flush=True)


def _row(entry: corpus.Entry, setting: Setting, here: Path, python: str) -> Row:
    kept = here / "figures.json"
    if not kept.exists():
        try:
            kept.write_text(json.dumps(trace(entry, setting, here, python)))
        except MeasuringError as failure:
            return {"failure": str(failure)}
    figures: Row = json.loads(kept.read_text())
    return figures


def _environment(folder: Path, version: str) -> str:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [str(python), "-m", "pip", "install", "-q", f"onnxruntime=={version}"]
        subprocess.run(install, check=True)  # noqa: S603 - a version from the command line
    return str(python)


if __name__ == "__main__":
    main()
