"""Draws the README's picture: the report of a real model, as a terminal shows it.

Usage: python tools/readme_picture.py
"""

import io
from pathlib import Path

from rich.console import Console
from rich.text import Text

import onnxmem
from onnxmem.report.colour import coloured
from onnxmem.report.terminal import render

ROOT = Path(__file__).parent.parent
MODEL = "models/resnet50.train.onnx"
GIB = 2**30


def report() -> str:
    """The report with its colours, as ``onnxmem MODEL --train --batch 128 --budget 24GiB``."""
    analysis = onnxmem.analyze(ROOT / MODEL, batch=128, train=True, budget_bytes=24 * GIB)
    text = render(analysis).replace(str(ROOT) + "/", "")
    return coloured(text)


def main() -> None:
    """Write ``docs/report.svg``."""
    text = Text.from_ansi(report())
    width = max(map(len, text.plain.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(text)
    target = ROOT / "docs" / "report.svg"
    title = f"onnxmem {MODEL} --train --batch 128 --budget 24GiB"
    console.save_svg(str(target), title=title)
    print(f"Wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
