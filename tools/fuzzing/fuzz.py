"""Fuzz one stage of onnxmem: ``fuzz.py load|shapes|analyze CORPUS [libFuzzer's flags]``."""

import contextlib
import sys
from collections.abc import Callable

import atheris

with atheris.instrument_imports(include=["onnxmem"]):
    from onnxmem import OnnxmemError, analyze
    from onnxmem.model import Request, build, prepare
    from onnxmem.model.files import load


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


HARNESSES: dict[str, Callable[[bytes], None]] = {
    "load": fuzz_load,
    "shapes": fuzz_shapes,
    "analyze": fuzz_analyze,
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
