"""What is left where a process is killed: no files, no processes, older results whole."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
from hostile.running import MODEL
from models_on_disk import write_model
from paths import environment

from onnxmem.cli import main
from onnxmem.collection.cache import open_cache
from onnxmem.collection.sources import model_names
from onnxmem.files import is_part, replaced, temporary_folder

Capture = pytest.CaptureFixture[str]
fcntl = pytest.importorskip("fcntl", reason="locks as POSIX has them")


# What a killed process left beside a result


def left_part(workplace: Path) -> Path:
    path = workplace / ".onnxmem-abcd_123.part"
    path.write_text("half a result")
    return path


@pytest.mark.parametrize("words", ["--json -o new.json", "--json -o old.json --force"])
def test_the_next_run_removes_what_a_killed_one_left(workplace: Path, words: str) -> None:
    (workplace / "old.json").write_text("old")
    part = left_part(workplace)
    others = [
        workplace / ".onnxmem-mine.part",
        workplace / "abcd1234.part",
        workplace / ".onnxmem-a.json",
    ]
    for other in others:
        other.touch()
    assert main([MODEL, *words.split()]) == 0
    assert not part.exists()
    assert all(other.exists() for other in others)


def test_what_a_living_process_writes_stays(workplace: Path) -> None:
    part = left_part(workplace)
    with part.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main([MODEL, "--json", "-o", "new.json"]) == 0
        assert part.exists()
    with replaced(str(workplace / "first")) as first, replaced(str(workplace / "second")) as second:
        first.write(b"1")
        second.write(b"2")
    assert ((workplace / "first").read_text(), (workplace / "second").read_text()) == ("1", "2")


def test_no_pattern_finds_what_a_killed_process_left(workplace: Path) -> None:
    part = left_part(workplace)
    for pattern in (".*", ".onnxmem-*", "**/.onnxmem-*", ".*.part"):
        assert part.name not in model_names([pattern])


def test_the_cache_writes_as_every_result_is_written(workplace: Path) -> None:
    cache = open_cache(str(workplace / "rows"))
    (workplace / "rows" / "ab").mkdir()
    part = left_part(workplace / "rows" / "ab")
    cache.put("abcd", {"row": {}, "text": None, "text_of": None})
    assert cache.get("abcd") is not None
    assert not part.exists()
    assert [path.name for path in (workplace / "rows" / "ab").iterdir()] == ["cd.json"]


def test_the_next_run_removes_temporary_folders_of_killed_ones(workplace: Path) -> None:
    temporary = workplace.parent / "temporary"
    stale, living = temporary / "onnxmem-run-abcd_123", temporary / "onnxmem-run-abcd_124"
    others = [temporary / "onnxmem-abcd_123", temporary / "onnxmem-run-mine"]
    for each in (stale, living, *others):
        each.mkdir()
        (each / "model.onnx").touch()
    held = os.open(living, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    with temporary_folder() as first, temporary_folder() as second:
        assert Path(first).is_dir()
        assert Path(second).is_dir()
    os.close(held)
    assert sorted(temporary.iterdir()) == sorted([living, *others])


def test_folders_that_many_make_at_once_stay(workplace: Path) -> None:
    del workplace
    program = (
        "import os\n"
        "from onnxmem.files import temporary_folder\n"
        "for _ in range(300):\n"
        "    with temporary_folder() as folder:\n"
        "        assert os.path.isdir(folder)\n"
    )
    words = [sys.executable, "-c", program]
    runs = [subprocess.Popen(words, env=environment()) for _ in range(4)]
    assert [run.wait(60) for run in runs] == [0, 0, 0, 0]


def test_without_a_place_for_temporary_files(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(workplace / "nowhere"))
    assert main([MODEL, MODEL, "--jobs", "2", "--format", "jsonl"]) == 2
    err = capsys.readouterr().err
    assert (err.count("\n"), "no temporary folder can be made" in err) == (1, True), err


# Workers that are killed


class Slow(BaseHTTPRequestHandler):
    """Sends the first half of a model, and then waits."""

    is_over = threading.Event()
    is_read = threading.Event()

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(2**20))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.is_read.set()
        with contextlib.suppress(OSError):
            self.wfile.write(b"\x08\x0a" + bytes(2**19))
            self.wfile.flush()
            self.is_over.wait(60)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def slow_server() -> Iterator[str]:
    """Serve a model that never ends; its URL."""
    pytest.importorskip("aiohttp", reason="fsspec reads http with it")
    Slow.is_over.clear()
    Slow.is_read.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/net.onnx"
        Slow.is_over.set()
        server.shutdown()


def test_a_worker_that_is_given_up_leaves_no_temporary_files(
    workplace: Path, slow_server: str, capsys: Capture
) -> None:
    words = [slow_server, MODEL, "--timeout", "4", "--jobs", "2", "--format", "jsonl"]
    assert main(words) == 3
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["status"] for row in rows] == ["error", "ok"]
    assert rows[0]["error"]["code"] == "timeout"
    assert list((workplace.parent / "temporary").iterdir()) == []


def started(words: list[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "onnxmem", *words],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_workers_of_a_killed_run_end_and_leave_no_temporary_files(
    workplace: Path, slow_server: str
) -> None:
    process = started([slow_server, slow_server, "--jobs", "2", "--format", "jsonl"])
    temporary = workplace.parent / "temporary"
    assert Slow.is_read.wait(30)
    process.kill()
    process.wait(30)
    assert has_ended(process.pid)
    assert list(temporary.iterdir()) == []


def waited(is_so: Callable[[], bool], seconds: float = 30) -> bool:
    stop = time.monotonic() + seconds
    while not (found := is_so()) and time.monotonic() < stop:
        time.sleep(0.02)
    return found


def has_ended(group: int) -> bool:
    """Whether all processes of a group end soon."""
    return waited(lambda: not in_group(group))


def in_group(group: int) -> list[int]:
    """The processes of a group that live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


# A run that is killed at any moment

OLD: Final = b"an older result"
VICTIMS: Final = ("all", "the parent", "a child")
RUNS: Final = {
    "workers": (30, ". --json -o result --force --cache rows --jobs 2"),
    "workers with children": (9, ". --json -o result --force --jobs 2 --runtime ort-cpu"),
}
"""How often a run is killed, and its words."""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
@pytest.mark.parametrize("run", RUNS)
def test_a_run_killed_at_any_moment_loses_nothing(
    workplace: Path, run: str, capsys: Capture
) -> None:
    """Kill some or all of its processes, and compare the next run with one that is not killed."""
    num_kills, line = RUNS[run]
    if "ort" in line and find_spec("onnxruntime") is None:  # which writes files when imported
        pytest.skip("onnxruntime is not installed")
    for number in range(6 if "cache" in line else 3):
        write_model(workplace / f"net{number}.onnx")
    words, temporary, result = line.split(), workplace.parent / "temporary", workplace / "result"
    assert started(words).wait(120) == 0
    begin = time.monotonic()
    assert started(words).wait(120) == 0
    expected = result.read_bytes()
    shutil.rmtree(workplace / "rows", ignore_errors=True)
    whole_seconds = time.monotonic() - begin
    drawn = random.Random(23)  # noqa: S311 - moments
    ends: Counter[str] = Counter()
    for number in range(num_kills):
        victim = VICTIMS[number % len(VICTIMS)]
        result.write_bytes(OLD)
        process = started(words)
        time.sleep(drawn.random() * 1.5 * whole_seconds)
        is_early = process.poll() is None
        kill(victim, process.pid, living(temporary), drawn)
        code = process.wait(120)
        assert waited(lambda: not living(temporary)), f"{victim}: processes are left"
        content = result.read_bytes()
        if code == -signal.SIGKILL:
            assert content in {OLD, expected}, victim
        else:
            assert code in {0, 3}, victim
            statuses = {row["status"] for row in json.loads(content)["models"]}
            assert statuses <= ({"ok"} if code == 0 else {"ok", "error"}), victim
        ends[f"{victim} {'before' if is_early else 'after'} the end: {code}"] += 1
        assert started(words).wait(120) == 0
        assert result.read_bytes() == expected
        assert list(temporary.iterdir()) == []
        assert [path.name for path in workplace.iterdir() if is_part(path.name)] == []
        shutil.rmtree(workplace / "rows", ignore_errors=True)
    with capsys.disabled():
        print(f"{run}: {num_kills} kills, {dict(ends)}")
    num_early = sum(number for end, number in ends.items() if "before" in end)
    assert num_early >= num_kills / 2


def kill(victim: str, parent: int, processes: list[int], drawn: random.Random) -> None:
    children = [pid for pid in processes if pid != parent]
    if victim == "a child":
        chosen = [drawn.choice(children)] if children else []
    else:
        chosen = [parent, *children] if victim == "all" else [parent]
    for pid in chosen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def living(temporary: Path) -> list[int]:
    """The processes of a run: all of them have their temporary files in a folder of its."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if os.fsencode(temporary) in environ.read_bytes():
                found.append(int(environ.parent.name))
    return found
