"""One headless Chromium for tests of pages.

``ONNXMEM_SCREENSHOTS=FOLDER`` keeps a picture of each. Debian's packages are ``chromium`` and
``chromium-driver``.
"""

import base64
import json
import os
import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

webdriver = pytest.importorskip("selenium.webdriver")

needs_browser = pytest.mark.skipif(
    not (shutil.which("chromium") and shutil.which("chromedriver")),
    reason="no chromium, or no chromedriver",
)

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    "--disable-dev-shm-usage",
)
DRAWN = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


class Browser:
    """One Chromium, and what the tests look at in it."""

    def __init__(self, profile: Path) -> None:
        options = webdriver.ChromeOptions()
        options.binary_location = str(shutil.which("chromium"))
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        service = webdriver.ChromeService(str(shutil.which("chromedriver")))
        self.driver = webdriver.Chrome(options=options, service=service)

    def devtools(self, command: str, **words: object) -> dict[str, Any]:
        return cast("dict[str, Any]", self.driver.execute_cdp_cmd(command, words))

    def screen(self, width: int, *, is_dark: bool = False) -> None:
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.devtools("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def touch(self, *, is_on: bool) -> None:
        """A screen that is touched, and no mouse."""
        self.devtools("Emulation.setTouchEmulationEnabled", enabled=is_on)
        self.devtools("Emulation.setEmitTouchEventsForMouse", enabled=is_on)

    def open(self, page: Path) -> float:
        """Go to a page and say after how many seconds it had drawn."""
        self.driver.get_log("browser")
        self.driver.get_log("performance")
        start = time.monotonic()
        self.driver.get(page.as_uri())
        self.run(
            "return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return time.monotonic() - start

    def open_without_scripts(self, page: Path) -> None:
        """Go to a copy of a page whose Content-Security-Policy lets none of its scripts run.

        Chromium's own switch must be set back before a test can ask the page anything, and a script
        of a page that is still being read runs then.
        """
        policy = re.compile(r"(?<=; )script-src [^;]+(?=;)")
        text, num_found = policy.subn("script-src 'none'", page.read_text(encoding="utf-8"))
        assert num_found == 1
        copy = page.with_suffix(".no-script.html")
        copy.write_text(text, encoding="utf-8")
        self.driver.get(copy.as_uri())

    def run(self, script: str, *arguments: object) -> Any:  # noqa: ANN401 - as JavaScript has it
        return self.driver.execute_script(script, *arguments)

    def is_seen(self, selector: str) -> bool:
        return bool(
            self.run("return document.querySelector(arguments[0]).checkVisibility()", selector)
        )

    def faults(self, page: Path) -> list[str]:
        """Errors of the console, and requests other than for the page itself."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = message["params"]["request"]["url"]
                if url != page.as_uri() and not url.startswith("data:"):
                    found.append(url)
        return found

    def keep(self, name: str) -> None:
        """A picture of the whole page, where a folder is named for them."""
        folder = os.environ.get("ONNXMEM_SCREENSHOTS")
        if folder is None:
            return
        shot = self.devtools("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path = Path(folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def batch(self, number: int) -> None:
        """Set the slider as a person does, and wait for what it draws."""
        self.run(
            "const range = document.getElementById('onnxmem-batch-range');"
            "range.value = arguments[0]; range.dispatchEvent(new Event('input'));"
            f"return {DRAWN}",
            number,
        )

    def figures(self) -> Mapping[str, str]:
        """Each figure as it is shown, without the spaces between."""
        return cast(
            "Mapping[str, str]",
            self.run(
                "return Object.fromEntries([...document.querySelectorAll('[data-figure]')].map("
                "(e) => [e.dataset.figure, e.textContent.replace(/\\s+/g, ' ').trim()]))"
            ),
        )
