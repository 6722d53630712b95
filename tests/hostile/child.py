"""Run commands of onnxmem one after another, in a process that is given limits by who starts it.

``python -m hostile.child RESULTS`` reads a JSON list of command lines on stdin, and appends a JSON
object for each to RESULTS: exit code, all that went to the two streams (from native code too), the
seconds that it took, and the most memory that this process has had so far.
"""

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from onnxmem.cli import main
from onnxmem.measuring.memory import peak_resident_bytes

if sys.platform != "win32":
    import resource

ADDRESS_BYTES = 3 * 2**29
"""Of address space: Python, onnx and what else is imported reserve 0.5 GiB."""
SECONDS = 10
"""Of processor time: others may be at work on this machine. A command that waits has six times that
of wall time."""


def run_all(results: Path) -> None:
    """Run what stdin asks for, each command for at most 10 s."""
    commands: list[list[str]] = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with results.open("w") as told:
        for words in commands:
            told.write(json.dumps(_one(words)) + "\n")
            told.flush()


def _one(words: list[str]) -> dict[str, object]:
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        kept = [os.dup(1), os.dup(2)]
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        signal.alarm(6 * SECONDS)
        start = time.monotonic()
        try:
            code = main(words)
        finally:
            seconds = time.monotonic() - start
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.alarm(0)
            sys.stdout.flush()
            sys.stderr.flush()
            for number, saved in zip((1, 2), kept, strict=True):
                os.dup2(saved, number)
                os.close(saved)
        return {
            "words": words,
            "code": code,
            "out": _written(out),
            "err": _written(err),
            "seconds": seconds,
            "peak_kib": _peak_kib(),
        }


def _peak_kib() -> int:
    # Linux counts in ``ru_maxrss`` what the process that forked this one had then.
    size_bytes = peak_resident_bytes()
    if size_bytes is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size_bytes // 2**10


def _written(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode("utf-8", "surrogateescape")


if __name__ == "__main__":
    run_all(Path(sys.argv[1]))
