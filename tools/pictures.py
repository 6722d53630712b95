r"""Draws the pictures of README and docs from real models.

Usage: python tools/pictures.py [--screenshots] [--model-explorer]

``docs/timeline.svg`` is the memory of a training step. With ``--screenshots`` also the pages as a
browser shows them: ``docs/page.png``, ``docs/page-phone.png``, ``docs/page-collection.png``,
``docs/page-diff.png`` and ``docs/page-curve.png``. That takes the programs ``chromium`` and
``chromedriver``. The pages are those that these commands write:

    onnxmem models/resnet50.train.onnx --train --batch 128 --budget 24GiB --html page.html
    onnxmem models --batch 2 --html pages/
    onnxmem diff models/resnet50.onnx models/densenet121.onnx --batch 2 --train --html diff.html
    onnxmem sweep models/resnet50.train.onnx --train --batch 1..512 --device "RTX 4090" \
        --html curve.html

With ``--model-explorer``, which also takes ``pip install 'onnxmem[model-explorer]'``,
``docs/model-explorer.png`` is Model Explorer's page with the extension and the node data of

    onnxmem export models/resnet50.onnx --format model-explorer --batch 32 -o live.json
    onnxmem export models/resnet50.onnx --format model-explorer --batch 32 --train -o saved.json
"""

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote
from urllib.request import urlopen

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
    *("--headless", "--no-sandbox", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WEBGL = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")
"""Draw by WebGL without a GPU."""
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
            with browser(folder, "--disable-gpu") as driver:
                for each in SCREENSHOTS:
                    write(each.name, screenshot(driver, each, folder))
    if "--model-explorer" in arguments:
        with tempfile.TemporaryDirectory() as name, browser(Path(name), *WEBGL) as driver:
            write("model-explorer.png", model_explorer(driver, Path(name)))


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


def write(name: str, picture: bytes) -> None:
    """Write a picture."""
    (DOCS / name).write_bytes(picture)
    print(f"Wrote docs/{name}")


@contextmanager
def browser(folder: Path, *more: str) -> Iterator[webdriver.Chrome]:
    """A headless Chromium whose profile is in a folder."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or sys.exit("no chromium on the path")
    for flag in (*FLAGS, *more, f"--user-data-dir={folder / 'profile'}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
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


def model_explorer(driver: webdriver.Chrome, folder: Path) -> bytes:
    """Model Explorer's page: a graph and node data over it."""
    model, node_data = ROOT / "models" / "resnet50.onnx", []
    for name, more in (("live.json", ()), ("saved.json", ("--train",))):
        words = ("export", str(model), "--format", "model-explorer", "--batch", "32", *more)
        command([*words, "-o", str(folder / name)])
        node_data.append(str(folder / name))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ("--host", "127.0.0.1", "--port", str(port), "--no_open_in_browser")
    server = subprocess.Popen(  # noqa: S603 - this Python, and a port
        [sys.executable, "-m", "model_explorer", *words, "--extensions=onnxmem.model_explorer"]
    )
    try:
        while not is_up(f"http://127.0.0.1:{port}/check_health"):
            time.sleep(0.2)
        shown = {"models": [{"url": str(model)}], "nodeData": node_data}
        driver.set_window_size(1300, 900)
        driver.get(f"http://127.0.0.1:{port}/?data={quote(json.dumps(shown))}")
        driver.implicitly_wait(60)
        driver.find_element("xpath", "//*[contains(text(),'Aggregated stats')]")
        time.sleep(5)  # the camera moves
        return driver.get_screenshot_as_png()
    finally:
        server.kill()
        server.wait()


def is_up(url: str) -> bool:
    """Whether a server replies."""
    try:
        urlopen(url).close()  # noqa: S310 - on loopback
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main(sys.argv[1:])
