"""Draws the README's pictures from a run on a real model.

Usage: python tools/readme_picture.py [--screenshot]

``docs/timeline.svg`` is the memory of a training step. With ``--screenshot`` also
``docs/page.png``, the top of the HTML page: it takes a browser named ``chromium`` on the path, and
is what these make:

    onnxmem models/resnet50.train.onnx --train --batch 128 --budget 24GiB --html page.html
    chromium --headless --window-size=1000,1150 --screenshot=docs/page.png page.html
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import onnxmem
from onnxmem.report.charts.steps import area_svg
from onnxmem.report.page.model_page import render_page
from onnxmem.report.timelines import step_timeline

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MODEL = "models/resnet50.train.onnx"
GIB = 2**30
STYLE = (
    "<style>svg{color:#1f2328;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}</style>"
)
"""What a page would say: words are dark on light, or light on dark where that is preferred."""
BROWSER = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--window-size=1000,1150"),
)


def main(arguments: list[str]) -> None:
    """Write the pictures."""
    analysis = onnxmem.analyze(ROOT / MODEL, batch=128, train=True, budget_bytes=24 * GIB)
    write_timeline(analysis)
    if "--screenshot" in arguments:
        write_screenshot(analysis)


def write_timeline(analysis: onnxmem.Analysis) -> None:
    """The areas of the training step, with colours of their own."""
    if analysis.training is None:
        return
    timeline = step_timeline(analysis.training.replay)
    svg = area_svg(
        timeline.series,
        chart_id="timeline",
        title="Memory over a training step of ResNet-50 at batch 128",
        description="Saved activations grow to the end of the forward phase, then shrink.",
        peak_step=timeline.peak_step,
        labels=None,
        marks=timeline.marks,
    )
    (DOCS / "timeline.svg").write_text(svg.replace("<title", f"{STYLE}<title", 1) + "\n")
    print("Wrote docs/timeline.svg")


def write_screenshot(analysis: onnxmem.Analysis) -> None:
    """The top of the page in a browser."""
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("no chromium on the path")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        page.write_text(render_page(analysis).replace(str(ROOT) + "/", ""), encoding="utf-8")
        target = f"--screenshot={DOCS / 'page.png'}"
        profile = f"--user-data-dir={folder}/profile"
        words = [browser, *BROWSER, profile, target, page.as_uri()]
        subprocess.run(words, check=True, capture_output=True)  # noqa: S603 - found on the path
    print("Wrote docs/page.png")


if __name__ == "__main__":
    main(sys.argv[1:])
