"""Fuzz a part of onnxmem: ``fuzz.py HARNESS CORPUS [libFuzzer's flags]``; see ``HARNESSES``."""

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["onnxmem"]):
    from onnxmem import OnnxmemError, analyze
    from onnxmem.export.exporters import EXPORTERS
    from onnxmem.model.binding import Request
    from onnxmem.model.building import build, prepare
    from onnxmem.model.files import load
    from onnxmem.report.page.model_page import render_page
    from onnxmem.report.terminal import render as render_text


def fuzz_load(data: bytes) -> None:
    """Read a model's bytes."""
    load(data)


def fuzz_shapes(data: bytes) -> None:
    """Read a model's bytes and infer its shapes."""
    build(prepare(load(data)), Request())


def fuzz_analyze(data: bytes) -> None:
    """Work every figure out, training included; the first byte decides what is asked."""
    train, batch = bool(data[:1] and data[0] & 1), 3 if data[:1] and data[0] & 2 else None
    analyze(data, train=train, batch=batch).to_dict(layers=True)


def fuzz_session(data: bytes) -> None:
    """Emulate onnxruntime's optimizer and its allocations."""
    analyze(data, runtimes=("ort-cpu",), asks_onnxruntime=False).to_dict()


def fuzz_faces(data: bytes) -> None:
    """Write text, the page and every export."""
    analysis = analyze(data, train=bool(data[:1] and data[0] & 1))
    render_text(analysis)
    render_page(analysis)
    for export in EXPORTERS.values():
        with contextlib.suppress(OnnxmemError):
            for _ in export(analysis):
                pass


HARNESSES: dict[str, Callable[[bytes], None]] = {
    "load": fuzz_load,
    "shapes": fuzz_shapes,
    "analyze": fuzz_analyze,
    "session": fuzz_session,
    "faces": fuzz_faces,
}


def main() -> None:
    """Fuzz until told to stop; whatever is no ``OnnxmemError`` stops it."""
    harness = HARNESSES[sys.argv.pop(1)]

    def one_input(data: bytes) -> None:
        with contextlib.suppress(OnnxmemError):
            harness(data)

    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
