"""Measures what onnxruntime takes: every model of the corpus, at every setting, on this machine.

Usage: python tools/onnxruntime/truth.py FOLDER [NAME...] [--again]

``FOLDER`` holds the corpus that ``corpus.py`` wrote. Each setting is measured in two fresh
processes with limits of time and memory; its records stay in ``FOLDER/MODEL/SETTING/``, and
settings with ``figures.json`` there are not measured twice. ``collect.py`` makes the data of the
tests from them.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import corpus
import onnx
import profiles

CHILD = Path(__file__).with_name("session_run.py")
TIMEOUT_SECONDS = 120
ADDRESS_SPACE_BYTES = 12 << 30
EVERY_LEVEL = ("resnet50", "bert_base", "mobilenet_v2.int8", "light_squeezenet", "lstm_classifier")
ELEMENTS: dict[int, str] = {
    onnx.TensorProto.FLOAT: "float",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.DOUBLE: "double",
    onnx.TensorProto.INT64: "int64",
    onnx.TensorProto.INT32: "int32",
    onnx.TensorProto.INT16: "int16",
    onnx.TensorProto.INT8: "int8",
    onnx.TensorProto.UINT8: "uint8",
    onnx.TensorProto.UINT16: "uint16",
    onnx.TensorProto.BOOL: "bool",
    onnx.TensorProto.STRING: "string",
}


class MeasuringError(Exception):
    """A child process ended without figures."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How a session is opened and fed."""

    batch: int | None
    """None where the file fixes it."""
    level: str
    fixed: bool
    """Symbols are overridden with their numbers when the session is made."""
    reuse: bool = True

    @property
    def name(self) -> str:
        """The name of its folder."""
        dims = "fix" if self.fixed else "sym"
        batch = "own" if self.batch is None else self.batch
        return f"{dims}_{self.level}_b{batch}" + ("" if self.reuse else "_noreuse")


def main() -> None:
    """Measure the settings that have no figures yet."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--again", action="store_true")
    asked = parser.parse_args()
    for folder in sorted(path.parent for path in asked.folder.glob("*/entry.json")):
        if not asked.names or folder.name in asked.names:
            for setting in settings(corpus.read(folder)):
                if asked.again or not (folder / setting.name / "figures.json").exists():
                    _measure_and_tell(folder, setting)


def settings(entry: corpus.Entry) -> Iterator[Setting]:
    """The settings of a model: batches by dims by levels, and a part without reuse."""
    levels = ("off", "basic", "extended", "all") if entry.name in EVERY_LEVEL else ("off", "all")
    bound = {*entry.dims, entry.batch} & symbols(entry.path)
    batches = entry.batches if entry.batch else (None,)
    for batch in batches:
        for fixed in (False, True) if bound else (False,):
            for level in levels:
                yield Setting(batch, level, fixed)
            if batch == batches[-1]:
                yield Setting(batch, "all", fixed, reuse=False)


def measure(entry: corpus.Entry, setting: Setting, here: Path) -> dict[str, Any]:
    """One row of figures, the process's too, and the records in the setting's own folder ``here``.

    :raises MeasuringError: onnxruntime refused the model, or a limit was hit.
    """
    row = trace(entry, setting, here)
    request = json.loads((here / "request.json").read_text())
    row |= {"process": child([str(CHILD), "plain"], request)}
    (here / "figures.json").write_text(json.dumps(row, separators=(",", ":")))
    return row


def trace(
    entry: corpus.Entry, setting: Setting, here: Path, python: str = sys.executable
) -> dict[str, Any]:
    """One row of the arena's figures, and the records in ``here``.

    :raises MeasuringError: onnxruntime refused the model, or a limit was hit.
    """
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(parents=True)
    request = request_for(entry, setting, here)
    (here / "request.json").write_text(json.dumps(request))
    made = child([str(CHILD), "traced"], request, python)
    figures = asdict(profiles.traced(here))
    return {"setting": asdict(setting), "model": entry.name, **made, **figures}


def child(
    script: list[str], request: Mapping[str, object], python: str = sys.executable
) -> dict[str, Any]:
    """What a fresh process, a script with its arguments, answers to a request.

    :raises MeasuringError: with the process's last words.
    """
    try:
        done = subprocess.run(  # noqa: S603 - our own script
            [python, *script],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            preexec_fn=_limit,
            check=True,
        )
    except subprocess.CalledProcessError as error:
        words = (error.stderr.strip().splitlines() or ["no word"])[-1]
        message = f"exit {error.returncode}: {words[:400]}"
        raise MeasuringError(message) from error
    except subprocess.TimeoutExpired as error:
        message = f"more than {TIMEOUT_SECONDS} s"
        raise MeasuringError(message) from error
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def symbols(path: Path) -> set[str]:
    """The symbols in the inputs of a model."""
    inputs = _inputs(path).values()
    return {dim.dim_param for shape in inputs for dim in shape.shape.dim if dim.dim_param}


def _measure_and_tell(folder: Path, setting: Setting) -> None:
    try:
        row = measure(corpus.read(folder), setting, folder / setting.name)
        peak = row["requested_peak_bytes"]
        print(f"{folder.name} {setting.name}: {peak:,}", flush=True)
    except MeasuringError as failure:
        words = json.dumps({"failure": str(failure)})
        (folder / setting.name / "failure.json").write_text(words)
        print(f"{folder.name} {setting.name}: {failure}", flush=True)


def request_for(entry: corpus.Entry, setting: Setting, here: Path) -> dict[str, object]:
    """What a child process is asked for a setting."""
    numbers = dict(entry.dims)
    if entry.batch and setting.batch:
        numbers[entry.batch] = setting.batch
    known = symbols(entry.path)
    return {
        "model": str(entry.path),
        "folder": str(here),
        "level": setting.level,
        "reuse": setting.reuse,
        "overrides": {s: n for s, n in numbers.items() if s in known} if setting.fixed else {},
        "shapes": _shapes(entry, numbers),
        "values": dict(entry.values),
    }


def _shapes(entry: corpus.Entry, numbers: Mapping[str, int]) -> dict[str, tuple[str, list[int]]]:
    found = {}
    for name, tensor in _inputs(entry.path).items():
        own = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        dims = entry.shapes.get(name, own)
        numbered = [numbers.get(dim, 0) if isinstance(dim, str) else dim for dim in dims]
        found[name] = (ELEMENTS[tensor.elem_type], numbered)
    return found


def _inputs(path: Path) -> dict[str, onnx.TypeProto.Tensor]:
    graph = onnx.load(path, load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    return {v.name: v.type.tensor_type for v in graph.input if v.name not in stored}


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))


if __name__ == "__main__":
    main()
