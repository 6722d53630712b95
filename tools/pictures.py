r"""Draws the pictures of README and docs from real models.

Usage: python tools/pictures.py [--screenshots]

``docs/timeline.svg`` is the memory of a training step. With ``--screenshots`` also the pages as a
browser shows them: ``docs/page.png``, ``docs/page-phone.png``, ``docs/page-collection.png``,
``docs/page-diff.png`` and ``docs/page-curve.png``. That takes the programs ``chromium`` and
``chromedriver``. The pages are those that these commands write:

    onnxmem models/resnet50.train.onnx --train --batch 128 --budget 24GiB --html page.html
    onnxmem models --batch 2 --html pages/
    onnxmem diff models/resnet50.onnx models/densenet121.onnx --batch 2 --train --html diff.html
    onnxmem sweep models/resnet50.train.onnx --train --batch 1..512 --device "RTX 4090" \
        --html curve.html
"""

import base64
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from selenium import webdriver

import onnxmem
from onnxmem.cli import main as command
from onnxmem.report.charts.drawing import Frame
from onnxmem.report.charts.steps import area_svg
from onnxmem.report.timelines import step_timeline

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
MODEL = "models/resnet50.train.onnx"
GIB = 2**30
PHONE = 500
"""Screens narrower than this are touched."""
STYLE = (
    "<style>svg{color:#1f2328;background:#fff}"
    "@media(prefers-color-scheme:dark){svg{color:#e6edf3;background:#0d1117}}</style>"
)
"""What a page would say: words are dark on light, or light on dark where that is preferred."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
DRAWN = "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass(frozen=True)
class Screenshot:
    """The top of a page on a screen of that size."""

    name: str
    page: str
    width: int
    height: int
    is_dark: bool = False


PAGES = {
    "page.html": (MODEL, "--train", "--batch", "128", "--budget", "24GiB", "--html", "page.html"),
    "pages/index.html": ("models", "--batch", "2", "--no-progress", "--html", "pages/"),
    "diff.html": (
        *("diff", "models/resnet50.onnx", "models/densenet121.onnx", "--batch", "2", "--train"),
        *("--html", "diff.html"),
    ),
    "curve.html": (
        *("sweep", MODEL, "--train", "--batch", "1..512", "--device", "RTX 4090"),
        *("--html", "curve.html"),
    ),
}
"""The command that writes each page."""
SCREENSHOTS = (
    Screenshot("page.png", "page.html", 1000, 1150),
    Screenshot("page-phone.png", "page.html", 390, 1500, is_dark=True),
    Screenshot("page-collection.png", "pages/index.html", 1000, 1150),
    Screenshot("page-diff.png", "diff.html", 1000, 1350),
    Screenshot("page-curve.png", "curve.html", 1000, 1150),
)


def main(arguments: list[str]) -> None:
    """Write the pictures."""
    write_timeline()
    if "--screenshots" in arguments:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            write_pages(folder)
            write_screenshots(folder)


def write_timeline() -> None:
    """The areas of the training step, with colors of their own."""
    analysis = onnxmem.analyze(ROOT / MODEL, batch=128, train=True, budget_bytes=24 * GIB)
    if analysis.training is None:
        return
    timeline = step_timeline(analysis.training.replay)
    svg = area_svg(
        timeline.series,
        Frame(
            "timeline",
            "Memory over a training step of ResNet-50 at batch 128",
            "Saved activations grow to the end of the forward phase, then shrink.",
        ),
        peak_step=timeline.peak_step,
        labels=None,
        marks=timeline.marks,
    )
    (DOCS / "timeline.svg").write_text(svg.replace("<title", f"{STYLE}<title", 1) + "\n")
    print("Wrote docs/timeline.svg")


def write_pages(folder: Path) -> None:
    """Each page by its command; paths of models are relative, as a reader types them."""
    os.chdir(folder)
    Path("models").symlink_to(ROOT / "models")
    for page, words in PAGES.items():
        command([*words, "-o", "report.txt", "--force"])
        if not Path(page).exists():
            sys.exit(f"no {page}")


def write_screenshots(folder: Path) -> None:
    """The top of each page in a browser."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("no chromium on the path")
    for flag in (*FLAGS, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        for each in SCREENSHOTS:
            (DOCS / each.name).write_bytes(screenshot(driver, each, folder))
            print(f"Wrote docs/{each.name}")
    finally:
        driver.quit()


def screenshot(driver: webdriver.Chrome, wanted: Screenshot, folder: Path) -> bytes:
    """A picture as PNG. A window is not as narrow as a phone, so that the screen is emulated."""
    is_phone = wanted.width < PHONE
    size = {"width": wanted.width, "height": wanted.height}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if wanted.is_dark else "light"}
    for name, values in (
        ("DeviceMetricsOverride", {**size, "deviceScaleFactor": 1, "mobile": is_phone}),
        ("EmulatedMedia", {"features": [scheme]}),
        ("TouchEmulationEnabled", {"enabled": is_phone}),
        ("ScrollbarsHidden", {"hidden": True}),
    ):
        driver.execute_cdp_cmd(f"Emulation.set{name}", values)
    driver.get((folder / wanted.page).as_uri())
    driver.execute_script(DRAWN)
    shot = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    return base64.b64decode(shot["data"])


if __name__ == "__main__":
    main(sys.argv[1:])
