"""The page that runs the command in a browser (``docs/try``).

The page is tested with a worker that stands in for Python; whole, with Pyodide, where its packages
can be fetched, or where ``ONNXMEM_TRY_DISTRIBUTION`` names a folder with numpy's and ml_dtypes's
wheels for it.
"""

import functools
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree
from threading import Thread

import pytest
from browsers import Browser, needs_browser
from paths import MODELS, ROOT

from onnxmem.cli import main

PAGE = ROOT / "docs" / "try"
MODEL = MODELS / "mlp.onnx"

WITHOUT_PROCESSES = """
import os, subprocess, sys
for name in ("resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("geteuid", "fork"):
    delattr(os, name)
subprocess._can_fork_exec = False
sys.path.insert(0, "")  # as Pyodide has it
"""
"""What Python lacks in a browser."""

STAND_IN = """
onmessage = async ({ data }) => {
  if (data.kind === "load") {
    postMessage({ kind: "ready" });
    return;
  }
  const sent = await fetch(data.more).then(() => "sent", () => "refused");
  const err = data.more.includes("wrong") ? "error: wrong" : "";
  const [{ name, size }] = data.files;
  const out = err ? "" : `${name} ${size} ${data.words.join(" ")} ${sent}\\n`;
  const page = "<!doctype html><title>answer</title><script>document.title += ' drawn';" +
    "parent.postMessage('out', '*'); fetch('view.html').catch(() => document.title += ' alone')" +
    "</" + "script>";
  postMessage({ kind: "answer", code: err ? 2 : 0, out, err, page: err ? null : page });
};
"""


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, with the types that modules and WebAssembly need."""

    extensions_map = {  # noqa: RUF012 - as the base class
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the base class
        """Say nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, directory=str(folder))
    ) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    found = Browser(tmp_path_factory.mktemp("profile"))
    found.screen(1200)
    yield found
    found.driver.quit()


def open_at(browser: Browser, url: str) -> None:
    browser.driver.get_log("browser")
    browser.driver.get(f"{url}index.html")
    wait_for(browser, "document.getElementById('progress').textContent === 'Ready.'")


def wait_for(browser: Browser, condition: str, seconds: float = 120) -> None:
    """Until a condition holds or the page shows a fault."""
    end = time.monotonic() + seconds
    fault = "document.getElementById('fault')"
    while not browser.run(f"return {condition} || !{fault}.hidden"):
        assert time.monotonic() < end, condition
        time.sleep(0.1)


def text_of(browser: Browser, name: str) -> str:
    return str(browser.run("return document.getElementById(arguments[0]).textContent", name))


def choose(browser: Browser, *files: Path, **fields: str) -> None:
    """Set the form's fields, then the files, which computes."""
    for name, value in {"batch": "", "budget": "", "more": "", **fields}.items():
        browser.run("document.getElementById(arguments[0]).value = arguments[1]", name, value)
    browser.run("document.getElementById('answer').hidden = true")
    browser.driver.find_element("id", "files").send_keys("\n".join(map(str, files)))
    wait_for(browser, "!document.getElementById('answer').hidden")


def program() -> str:
    """The Python that the worker runs."""
    found = re.search(r"const RUN = `\n(.*?)`;", (PAGE / "worker.js").read_text(), re.DOTALL)
    assert found is not None
    return found[1].replace("${RESULT}", "page.html")


def test_python_without_processes_prints_and_writes_what_the_command_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(MODELS)
    monkeypatch.setenv("COLUMNS", "80")
    words = ["mlp.onnx", "--train", "--batch", "7", "--runtime", "ort-cpu", "--emulate-optimizer"]
    assert main([*words, "--html", str(tmp_path / "expected.html")]) == 0
    expected = capsys.readouterr().out
    run = f"""{WITHOUT_PROCESSES}{program()}
import json
words = {words[1:4]!r}
with open("mlp.onnx", "wb") as out, open({str(MODEL)!r}, "rb") as model:
    out.write(model.read())
print(json.dumps([run(["none.onnx"], [], "", 80), run(["mlp.onnx"], [], "'", 80),
    run(["mlp.onnx"], [], "--measure cpu", 80)[2],
    run(["mlp.onnx"], words, "--runtime 'ort-cpu' --emulate-optimizer", 80)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", run],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    missing, unquoted, measured, answer = json.loads(done.stdout)
    assert answer[:2] == [0, expected]
    assert missing[0] == 2
    assert missing[2].startswith("error: none.onnx: missing_file: ")
    assert unquoted == [2, "", "error: More options: No closing quotation\n"]
    assert "does not support processes" in measured
    titles = [
        re.findall("<title>.*</title>", (tmp_path / name).read_text())
        for name in ("page.html", "expected.html")
    ]
    assert titles[0] == titles[1] != []


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[str]:
    folder = copytree(PAGE, tmp_path / "site")
    (folder / "worker.js").write_text(STAND_IN)
    with served(folder) as url:
        yield url


@pytest.mark.browser
@needs_browser
def test_files_and_form_go_to_the_worker_and_its_answer_is_shown(
    browser: Browser, stand_in: str
) -> None:
    open_at(browser, stand_in)
    browser.run("document.querySelector('[value=train]').click()")
    choose(browser, MODEL, batch="128", budget="24GiB")
    assert text_of(browser, "command") == "onnxmem mlp.onnx --train --batch 128 --budget 24GiB"
    words = "--train --batch 128 --budget 24GiB"
    shown = text_of(browser, "text").split()
    assert shown[:-1] == ["mlp.onnx", str(MODEL.stat().st_size), *words.split()]
    assert browser.run("return document.getElementById('fault').hidden")


@pytest.mark.browser
@needs_browser
def test_nothing_is_sent_to_another_server_and_a_page_reaches_nothing(
    browser: Browser, stand_in: str, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with served(other) as url:
        open_at(browser, stand_in)
        choose(browser, MODEL, more=f"{stand_in}page.css")
        assert text_of(browser, "text").split()[-1] == "sent"
        choose(browser, MODEL, more=url)
        assert text_of(browser, "text").split()[-1] == "refused"
        asked = "return fetch(arguments[0]).then(() => 'sent', () => 'refused')"
        assert browser.run(asked, url) == "refused"
    browser.driver.switch_to.frame(browser.driver.find_element("css selector", "#view iframe"))
    end = time.monotonic() + 20
    while browser.driver.title and "alone" not in str(browser.run("return document.title")):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert browser.run("return document.title") == "answer drawn alone"
    with pytest.raises(Exception, match=r"(?i)cross-origin|SecurityError"):
        browser.run("return parent.document.title")
    browser.driver.switch_to.default_content()


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("is_framed", [False, True])
def test_a_page_is_drawn_in_the_sandbox_alone(
    browser: Browser, stand_in: str, tmp_path: Path, is_framed: bool
) -> None:
    """A page of anyone could open the view, and its message would run as the server's own."""
    other = tmp_path / "other"
    other.mkdir()
    made = "document.body.append(Object.assign(document.createElement('iframe'), {src: url}))"
    opened = f"({made}, document.querySelector('iframe').contentWindow)"
    view = opened if is_framed else "open(url)"
    (other / "index.html").write_text("<!doctype html><title>other</title><body></body>")
    with served(other) as url:
        browser.driver.get(f"{url}index.html")
        run = "<script>(opener || parent).postMessage(origin, '*')</script>"
        asked = f"""const [url, page] = arguments; window.heard = [];
            addEventListener('message', ({{ data }}) => heard.push(data));
            const view = {view}; for (let i = 1; i < 20; i++)
                setTimeout(() => view.postMessage(page, '*'), 100 * i);"""
        first = browser.driver.current_window_handle
        browser.run(asked, f"{stand_in}view.html", run)
        time.sleep(2.5)
        assert browser.run("return window.heard") == []
        for handle in browser.driver.window_handles:
            if handle != first:
                browser.driver.switch_to.window(handle)
                browser.driver.close()
        browser.driver.switch_to.window(first)


@pytest.mark.browser
@needs_browser
def test_the_shown_command_is_what_a_shell_reads(
    browser: Browser, stand_in: str, tmp_path: Path
) -> None:
    name = "it's; echo $(me).onnx"
    (tmp_path / name).write_bytes(MODEL.read_bytes())
    open_at(browser, stand_in)
    choose(browser, tmp_path / name, budget="24 GiB")
    shown = shlex.split(text_of(browser, "command"))
    assert shown == ["onnxmem", name, "--budget", "24 GiB"]


@pytest.mark.browser
@needs_browser
def test_an_error_is_one_line_and_no_answer_stays(browser: Browser, stand_in: str) -> None:
    open_at(browser, stand_in)
    choose(browser, MODEL)
    choose(browser, MODEL, more="wrong")
    assert text_of(browser, "fault") == "error: wrong"
    assert browser.run("return document.getElementById('answer').hidden")


@pytest.mark.browser
@needs_browser
def test_a_folder_without_packages_says_how_they_are_gathered(
    browser: Browser, tmp_path: Path
) -> None:
    with served(copytree(PAGE, tmp_path / "site")) as url:
        open_at(browser, url)
        assert text_of(browser, "fault") == (
            f"Python could not be loaded: {url}packages/packages.json: "
            "the server answered 404; tools/try_page.py gathers what is loaded"
        )
        assert browser.run("return document.getElementById('go').disabled")


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize("width", [1200, 390])
def test_controls_have_names_and_nothing_is_cut_off(
    browser: Browser, stand_in: str, width: int
) -> None:
    browser.screen(width)
    open_at(browser, stand_in)
    choose(browser, MODEL)
    assert browser.run("return document.documentElement.scrollWidth") <= width
    unnamed = browser.run(
        "return [...document.querySelectorAll('input, select, button, iframe')].filter((each) =>"
        "!(each.labels?.length || each.textContent.trim() || each.title)).map((each) => each.id)"
    )
    assert unnamed == []
    browser.screen(1200)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("try") / "site"
    words = [sys.executable, str(ROOT / "tools" / "try_page.py"), str(folder)]
    if distribution := os.environ.get("ONNXMEM_TRY_DISTRIBUTION"):
        words += ["--distribution", distribution]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"Pyodide's packages cannot be fetched: {done.stderr.strip()[-200:]}")
    with served(folder) as url:
        yield url


@pytest.mark.browser
@needs_browser
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mlp.onnx", "--batch 7 --json"),
        ("smollm_cached.onnx", "--context 512 --json"),
        ("resnet50.train.onnx", "--train --batch 128 --budget 24GiB"),
    ],
)
def test_the_browser_answers_what_the_command_prints(
    browser: Browser,
    whole: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: str,
) -> None:
    monkeypatch.chdir(MODELS)
    open_at(browser, whole)
    choose(browser, MODELS / name, more=words)
    columns = browser.run(
        "return Math.max(40, Math.min(100, Math.floor("
        "document.getElementById('form').clientWidth / 8.6)))"
    )
    monkeypatch.setenv("COLUMNS", str(columns))
    main([name, *words.split()])
    assert text_of(browser, "text") == capsys.readouterr().out
    # Chromium draws a frame only where the screen shows it.
    size = {"width": 1000, "height": 1700, "deviceScaleFactor": 1, "mobile": False}
    browser.devtools("Emulation.setDeviceMetricsOverride", **size)
    time.sleep(1)
    browser.keep(f"try-{name}")
    browser.screen(1200)
