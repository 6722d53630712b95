"""A command that takes more than a second says so on a terminal, and nowhere else."""

import os
import pty
import re
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

SLOW = ("explain", "-")
"""It waits for its stdin, which comes late."""
LATE_SECONDS = 1.5
MESSAGE = b"CUDA out of memory. Tried to allocate 2.00 GiB"


def on_terminal(*words: str, term: str = "xterm") -> tuple[str, str]:
    """What a command writes to stdout, a pipe, and to stderr, a terminal."""
    own, other = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "onnxmem", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=other,
            env={**os.environ, "TERM": term},
        ) as process:
            if "-" in words:
                wait_for_start(own, quiet=term == "dumb" or "-q" in words)
            out, _ = process.communicate(MESSAGE if "-" in words else b"", timeout=120)
        os.set_blocking(own, False)
        try:
            told = os.read(own, 1 << 16)
        except BlockingIOError:
            told = b""
    finally:
        os.close(own)
        os.close(other)
    assert process.returncode == 0
    return out.decode(), told.decode()


def wait_for_start(terminal: int, *, quiet: bool) -> None:
    """Until the line is there, however slow the machine; where none comes, a while."""
    if quiet:
        time.sleep(2 * LATE_SECONDS)
    else:
        assert select.select([terminal], [], [], 60)[0]


def test_seconds_are_counted_on_one_line_that_is_cleared() -> None:
    out, told = on_terminal(*SLOW)
    lines = told.split("\r\x1b[K")
    assert re.fullmatch(r"onnxmem explain: 1 s", lines[1])
    assert lines[-1] == ""
    assert "\n" not in told
    assert out.startswith("Message")


def test_a_quick_command_shows_nothing() -> None:
    assert on_terminal("schema")[1] == ""


def test_quiet_terminals_that_cannot_clear_a_line_and_pipes_get_none() -> None:
    with ThreadPoolExecutor() as executor:
        asked_for = executor.submit(on_terminal, *SLOW, "-q")
        cannot = executor.submit(on_terminal, *SLOW, term="dumb")
        piped = executor.submit(on_pipe)
        assert (asked_for.result()[1], cannot.result()[1], piped.result()) == ("", "", b"")


def on_pipe() -> bytes:
    """What a command that waits writes to stderr, a pipe."""
    with subprocess.Popen(
        [sys.executable, "-m", "onnxmem", *SLOW],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        time.sleep(2 * LATE_SECONDS)
        _, err = process.communicate(MESSAGE, timeout=120)
    return err
