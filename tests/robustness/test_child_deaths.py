"""Each child process with each way to die: a row or a line that says so, and nothing is left.

The functions that run in children are those that the source names, so that a new one meets all
deaths. Those beside the one that dies run in the process of the test.
"""

import errno
import json
import os
import pickle
import re
import sys
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
from hostile.running import MODEL
from models_on_disk import write_model
from paths import ROOT
from without_children import work_without_children

from onnxmem.children import running
from onnxmem.cli import main
from onnxmem.collection import workers
from onnxmem.measuring import measuring, observing, served
from onnxmem.runtimes.onnxruntime import session_files
from onnxmem.runtimes.onnxruntime.session_graph import optimization

pytest.importorskip("onnxruntime")
pytestmark = [
    pytest.mark.measure,
    pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX"),
]

Capture = pytest.CaptureFixture[str]

SIGNALS: Final = ("SIGKILL", "SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM", "SIGXCPU", "SIGPIPE")
_DIE: Final = "import os, resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
_REPLY: Final = "import os, sys; sys.stdin.buffer.readline(); os.write(1, {!r}); os._exit(0)"
DEATHS: Final[Mapping[str, str]] = {
    **{name: f"{_DIE}os.kill(os.getpid(), signal.{name})" for name in SIGNALS},
    **{
        f"{name} at work": (
            f"{_DIE}import _thread, time\n"
            f"_thread.start_new_thread(lambda: (time.sleep(0.15), os.kill(os.getpid(), "
            f"signal.{name})), ())\n{running._START}"  # noqa: SLF001 - what a child begins with
        )
        for name in ("SIGKILL", "SIGSEGV")
    },
    "exit without a reply": "raise SystemExit(0)",
    "exit with a line": "raise SystemExit('the library says so')",
    "a flood of messages": "import sys; sys.stderr.write('noise ' * 10**6); raise SystemExit(1)",
    "a library is missing": "import no_such_library",
    "nothing is sent": _REPLY.format(b""),
    "half a reply": _REPLY.format(b'{"result": {"nodes": ['),
    "noise": _REPLY.format(bytes(range(256))),
    "null": _REPLY.format(b"null"),
    "a list": _REPLY.format(b"[1, 2]"),
    "another object": _REPLY.format(b"{}"),
    "deep lists": _REPLY.format(b"[" * 100_000),
    "pipes are closed": "import os, time; os.close(1); os.close(2); os.close(0); time.sleep(60)",
    "hang": "import time; time.sleep(60)",
    "no process": "",
}
PARTS: Final = 6


def functions() -> list[str]:
    """What runs in children of ``COMMAND``, as the source names it."""
    # A snapshot of PyTorch is read by another command: see the test of its deaths.
    pattern = re.compile(r'"(onnxmem\.[a-z_.]+:[a-z_]+)"')
    texts = (path.read_text() for path in (ROOT / "onnxmem").rglob("*.py"))
    found = {name for text in texts for name in pattern.findall(text)}
    return sorted(found - {"onnxmem.measuring.memory_snapshot:read_plain"})


def pairs(parts: int) -> list[tuple[str, str]]:
    """One of so many functions and deaths, of each some."""
    found = [
        (function, death)
        for row, function in enumerate(functions())
        for column, death in enumerate(DEATHS)
        if (row + column) % parts == 0
    ]
    assert {function for function, _ in found} == set(functions())
    assert {death for _, death in found} == set(DEATHS)
    return found


COMMAND: Final = ("measure", MODEL, "--batch", "2", "--json", "--quiet")
"""It runs every function in a child, but for those of ``COMMANDS``."""
PICKS: Final = "picks.onnx"
PICKING: Final = """agraph (float[7] x) => (int64[1,K] rows) {
    [pick] rows = NonZero(x)
}"""
COMMANDS: Final[Mapping[str, tuple[str, ...]]] = {
    "onnxmem.measuring.shape_tracing:trace_shapes": (PICKS, "--observe", "1", "--json", "--quiet"),
    "onnxmem.measuring.served_run:serve_requests": (
        *("measure", MODEL, "--requests", "N=2..3", "--num-requests", "2", "--json", "--quiet"),
    ),
}


def command(function: str) -> tuple[str, ...]:
    """A command that runs the function in a child."""
    return COMMANDS.get(function, COMMAND)


def test_each_function_is_run_by_its_command(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    work_without_children(monkeypatch, workplace)
    run = vars(measuring)["run_in_child"]

    def seeing(function: str, *given: Any, **more: Any) -> Any:  # noqa: ANN401 - what a child is given
        seen.add(function)
        return run(function, *given, **more)

    for caller in (measuring, observing, served, session_files, optimization):
        monkeypatch.setattr(caller, "run_in_child", seeing)
    write_model(workplace / PICKS, PICKING)
    assert main(COMMAND) == 0
    for function, own in COMMANDS.items():
        assert function not in seen
        assert main(own) == 0
        assert function in seen
    assert seen == set(functions())


@pytest.mark.parametrize(
    "parts",
    [PARTS, pytest.param(2, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)],
)
def test_each_child_with_each_death(
    workplace: Path, parts: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    told = []
    codes = []
    write_model(workplace / PICKS, PICKING)
    for function, death in pairs(parts):
        with monkeypatch.context() as patch:
            work_without_children(patch, workplace, but=function)
            let_die(patch, death)
            codes.append(main(command(function)))
        out, err = capsys.readouterr()
        told += [f"{function}, {death}: {text}" for text in wrong(codes[-1], out, err)]
        left = list((workplace.parent / "temporary").iterdir())
        told += [f"{function}, {death}: leaves {path}" for path in left]
    with capsys.disabled():
        ends = {code: codes.count(code) for code in sorted(set(codes))}
        print(f"{len(functions())} functions x {len(DEATHS)} deaths: {len(codes)} cases {ends}")
    assert told == [], "\n".join(told)


@pytest.mark.parametrize("death", DEATHS)
def test_the_child_that_reads_a_snapshot_with_each_death(
    death: str, workplace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    snapshot = workplace / "snapshot.pickle"
    snapshot.write_bytes(pickle.dumps({"segments": [], "device_traces": [[]]}))
    with monkeypatch.context() as patch:
        let_die(patch, death)
        code = main(["diff", MODEL, "--snapshot", str(snapshot), "--train"])
    out, err = capsys.readouterr()
    assert list(wrong(code, out, err)) == []
    # A death at work comes after 0.15 s, which a fast machine needs less than.
    assert code == 2 or (code == 0 and "at work" in death)
    assert code == 0 or "snapshot.pickle" in err
    assert list((workplace.parent / "temporary").iterdir()) == []


def let_die(patch: pytest.MonkeyPatch, death: str) -> None:
    """Let the next child die so."""
    patch.setattr(running, "_START", DEATHS[death])
    if death == "no process":

        def refuse(*_: object) -> NoReturn:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

        patch.setattr(running, "_started", refuse)
    if death in {"hang", "pipes are closed"}:
        reply = running._Exchange.reply_within  # noqa: SLF001 - hours are too long for a test
        patch.setattr(
            running._Exchange,  # noqa: SLF001
            "reply_within",
            lambda self, request, seconds: reply(self, request, min(seconds, 0.5)),
        )


def wrong(code: int, out: str, err: str) -> Iterator[str]:
    """Say what is wrong with how a command ended whose child died."""
    if code not in {0, 2, 3}:
        yield f"exit code {code}"
    if "internal" in err or "Traceback" in err or err.count("\n") > 2:
        yield err[:300]
    if code == 3 and not (err.startswith("error: ") or out):
        yield "neither a row nor a line"


# Workers of many models

WORKER_DEATHS: Final[Mapping[str, str]] = {
    **{name: f"os.kill(os.getpid(), signal.{name})" for name in SIGNALS},
    "exit": "os._exit(0)",
    "exit with a code": "os._exit(7)",
    "an exception": "raise SystemExit('so')",
    "pipes are closed": "os.closerange(3, 100)",
}
_DIES: Final = """
import os, resource
plain_serve, plain_work = workers.serve, workers.work
def serve(connection):
    die("before it serves")
    plain_serve(connection)
def work(task, **others):
    is_chosen = task.name.startswith("dying")
    if is_chosen:
        die("at a model")
    found = plain_work(task)
    if is_chosen:
        die("after a model")
    return found
def die(moment):
    if moment == {moment!r}:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        {death}
workers.serve, workers.work = serve, work
"""
MOMENTS: Final = ("before it serves", "at a model", "after a model")
WAYS: Final = ("fork", "spawn")


def worker_cases(parts: int) -> list[tuple[str, str, str]]:
    """One of so many ways to start, moments and deaths, of each some."""
    starts = tuple(product(WAYS, MOMENTS))
    found = [
        (way, moment, death)
        for row, (way, moment) in enumerate(starts)
        for column, death in enumerate(WORKER_DEATHS)
        if (row * 2 + column) % parts == 0
    ]
    assert {each[:2] for each in found} == set(starts)
    return found


@pytest.mark.parametrize(
    "parts",
    [
        len(WORKER_DEATHS),
        pytest.param(3, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.long),
    ],
)
def test_each_worker_with_each_death(
    workplace: Path, parts: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    names = (MODEL, "dying.onnx", "second.onnx", "third.onnx")
    for name in names:
        write_model(workplace / name)
    told = []
    codes = []
    for way, moment, death in worker_cases(parts):
        with monkeypatch.context() as patch:
            let_workers_die(patch, way, moment, death)
            codes.append(main([*names, "--format", "jsonl", "--jobs", "2", "--quiet"]))
        out, err = capsys.readouterr()
        rows = [json.loads(line) for line in out.splitlines()]
        case = f"{way}, {moment}, {death}"
        told += [f"{case}: {text}" for text in wrong(codes[-1], out, err)]
        statuses = [row["status"] for row in rows]
        if moment == "before it serves" and not rows:
            told += [] if (codes[-1], "no worker" in err) == (3, True) else [f"{case}: {err}"]
        elif statuses[:1] + statuses[2:] != ["ok"] * 3:
            told.append(f"{case}: {statuses}")
        told += [f"{case}: leaves {each}" for each in (workplace.parent / "temporary").iterdir()]
    with capsys.disabled():
        ends = {code: codes.count(code) for code in sorted(set(codes))}
        product_ = f"{len(WAYS)} ways x {len(MOMENTS)} moments x {len(WORKER_DEATHS)} deaths"
        print(f"{product_}: {len(codes)} cases {ends}")
    assert told == [], "\n".join(told)


def let_workers_die(patch: pytest.MonkeyPatch, way: str, moment: str, death: str) -> None:
    """Let each worker that comes to the moment die so."""
    start = workers._START  # noqa: SLF001 - what a worker begins with
    dies = _DIES.format(moment=moment, death=WORKER_DEATHS[death])
    for name in ("_FORK_SERVER", "_WORKER"):
        call = getattr(workers, name).removeprefix(start)
        patch.setattr(workers, name, f"{start}{dies}{call}")
    if way == "spawn":
        patch.setattr(workers, "starter", workers._Spawner)  # noqa: SLF001
