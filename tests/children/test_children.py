"""Children: what comes back from one, whatever becomes of it, and that nothing stays behind."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import pytest

from onnxmem.children import running
from onnxmem.children.running import (
    JSON,
    ChildFault,
    ChildLimits,
    fault_of,
    fault_of_end,
    in_one_line,
    run_in_child,
)
from onnxmem.children.serving import reply_to

resource = pytest.importorskip("resource", reason="limits as POSIX has them")

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files, empty at first."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def run_code(code: str, limits: ChildLimits | None = None) -> ChildFault:
    """Run statements in a child: ``timeit`` takes any, and returns a number, which is not a
    reply.
    """
    fault = run_in_child("timeit:timeit", {"stmt": code, "number": 1}, limits)
    assert isinstance(fault, ChildFault)
    return fault


def output_of(code: str) -> str:
    """The last output of a statement that ends the child."""
    return run_code(f"{code}; import os; os._exit(7)").message.removeprefix("exit code 7: ")


def test_a_child_replies_with_a_json_object() -> None:
    assert run_in_child("json:loads", {"s": '{"sizes": [3, 5, null]}'}) == {"sizes": [3, 5, None]}


def test_a_reply_must_be_a_json_object() -> None:
    assert run_in_child("os:getcwd", {}) == ChildFault(
        "error", "TypeError: os:getcwd did not return a JSON object"
    )


def test_an_exception_comes_back_as_one_line() -> None:
    fault = run_code("raise ValueError('two\\nlines \\x1b[31mred\\x1b[0m')")
    assert fault == ChildFault("error", "ValueError: two lines red")


def test_a_module_that_is_not_installed_is_named() -> None:
    assert run_in_child("no_such_module:work", {}) == ChildFault("missing", "no_such_module")


def test_an_exit_is_reported_with_the_last_line() -> None:
    assert (
        output_of("import sys; sys.stderr.write('noise\\n' * 90_000 + 'the end\\n\\n')")
        == "the end"
    )


@POSIX
def test_an_abort_is_a_crash() -> None:
    assert run_in_child("os:abort", {}) == ChildFault("crash", "SIGABRT")


@POSIX
def test_running_out_of_memory_has_its_own_kind() -> None:
    limits = ChildLimits(memory_bytes=2**30)
    assert run_code("bytearray(2**31)", limits).kind == "memory"
    assert run_code("import os; os.kill(os.getpid(), 9)").kind == "memory"
    assert run_code("raise RuntimeError('Failed to allocate memory for a buffer')").kind == "memory"


def test_an_endless_loop_is_ended() -> None:
    start = time.monotonic()
    fault = run_code("while True: pass", ChildLimits(seconds=0.5))
    assert fault == ChildFault("timeout", "not finished within 0.5 s")
    assert time.monotonic() - start < 5


@POSIX
def test_a_child_sets_its_own_limits() -> None:
    limits = ChildLimits(seconds=5, memory_bytes=2**31, file_bytes=2**20)
    statement = (
        "import resource as r, os; os.write(2, repr([r.getrlimit(k)[0] for k in (%s)]).encode())"
    )
    kinds = "r.RLIMIT_CORE, r.RLIMIT_FSIZE, r.RLIMIT_AS, r.RLIMIT_NOFILE, r.RLIMIT_CPU"
    processor_seconds = 15 * (os.cpu_count() or 1)
    expected = [0, 2**20, 2**31, 1024, processor_seconds]
    assert output_under(statement % kinds, limits) == str(expected)
    alarm = "import signal, os; os.write(2, str(int(signal.getitimer(0)[0])).encode())"
    assert output_under(alarm, limits) in {"14", "15"}


def test_a_child_is_an_isolated_python_that_leads_its_own_session() -> None:
    statement = "import os, sys; os.write(2, repr((sys.flags.isolated, %s)).encode())"
    assert output_of(statement % "os.getsid(0) == os.getpgid(0) == os.getpid()") == "(1, True)"


def output_under(code: str, limits: ChildLimits) -> str:
    return run_code(f"{code}; os._exit(7)", limits).message.removeprefix("exit code 7: ")


def test_prints_are_not_part_of_the_reply() -> None:
    assert output_of(
        "print('from python'); import os; os.system('echo from native code')"
    ).endswith("from native code")


def test_the_environment_is_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    monkeypatch.setenv("PYTHONSTARTUP", "x.py")
    statement = "import os; os.write(2, ' '.join(sorted(os.environ)).encode())"
    assert not {"ORT_LOAD_CONFIG_FROM_MODEL", "PYTHONSTARTUP"} & {*output_of(statement).split()}


def test_a_file_in_the_working_folder_is_not_imported_as_a_module(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "json.py").write_text("raise SystemExit('posed')")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    assert run_in_child("json:loads", {"s": "{}"}) == {}


def test_home_and_temporary_folder_of_a_child_are_one_empty_folder() -> None:
    homes = "{os.environ[name] for name in ('HOME', 'TMPDIR', 'TEMP', 'TMP')} == {os.getcwd()}"
    statement = f"import os; os.write(2, repr((os.listdir(), {homes})).encode())"
    assert output_of(statement) == "([], True)"


@POSIX
def test_processes_that_a_child_started_end_at_its_time_limit(folder: Path) -> None:
    pids = folder / "pids"
    code = f"import os, time; os.system('sleep 60 & echo $! > {pids}'); time.sleep(60)"
    assert run_code(code, ChildLimits(seconds=3)).kind == "timeout"
    pid = int(pids.read_text())
    wait_for(lambda: not is_running(pid))


def test_no_process_of_a_child_is_left(folder: Path) -> None:
    pids = folder / "pids"
    code = f"import os; os.system('sleep 60 & echo $! > {pids}'); open('mine', 'w').close()"
    run_code(code)
    pid = int(pids.read_text())
    pids.unlink()
    assert not any(folder.iterdir())
    wait_for(lambda: not is_running(pid))


@pytest.fixture
def heeds_interrupts() -> Iterator[None]:
    """Interrupts raise an exception, which they do not in a shell's background job."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@POSIX
@pytest.mark.usefixtures("heeds_interrupts")
def test_an_interrupt_ends_the_child_at_once(folder: Path) -> None:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_code("import time; time.sleep(60)")
    assert time.monotonic() - start < 5
    assert not any(folder.iterdir())


@POSIX
def test_a_child_dies_with_its_parent(folder: Path) -> None:
    pids = folder / "pids"
    work = f"import os, time; open({str(pids)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    code = (
        f"import sys; sys.path[:0] = {sys.path!r};"
        "from onnxmem.children.running import run_in_child;"
        f"run_in_child('timeit:timeit', {{'stmt': {work!r}, 'number': 1}})"
    )
    environment = os.environ | {"TMPDIR": str(folder)}  # the child removes what is there
    with subprocess.Popen([sys.executable, "-c", code], env=environment) as parent:
        wait_for(lambda: pids.exists() and pids.read_text() != "")
        parent.kill()
    pid = int(pids.read_text())
    wait_for(lambda: not is_running(pid))
    wait_for(lambda: [path.name for path in folder.iterdir()] == ["pids"])


def test_the_size_of_a_reply_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MAX_REPLY_BYTES", 1000)
    text = '{"name": "%s"}' % ("x" * 100_000)
    fault = run_in_child("json:loads", {"s": text})
    assert fault == ChildFault("error", "a reply of more than 1,000 bytes")


def test_a_long_message_loses_its_middle() -> None:
    line = in_one_line("a" * 900 + " " + "b" * 900)
    assert len(line) < 1001
    assert line.startswith("aaa")
    assert line.endswith("bbb")


@POSIX
@pytest.mark.parametrize(
    ("exit_code", "stderr", "kind", "message"),
    [
        (-11, "", "crash", "SIGSEGV"),
        (-14, "", "timeout", "SIGALRM: out of time"),
        (-6, "what():  std::bad_alloc\n", "memory", "SIGABRT: what(): std::bad_alloc"),
        (-250, "", "crash", "signal 250"),
        (0, "", "crash", "exit code 0"),
    ],
)
def test_ends_of_a_child_have_names(exit_code: int, stderr: str, kind: str, message: str) -> None:
    fault = fault_of_end(exit_code, stderr)
    assert (fault.kind, fault.message) == (kind, message)


def test_an_exception_without_a_message_is_named_by_its_type() -> None:
    assert fault_of(raised("KeyError")) == ChildFault("error", "KeyError")
    found = fault_of(raised("_ArrayMemoryError", is_memory=True))
    assert found == ChildFault("memory", "out of memory")


def raised(
    kind: str, text: str = "", *, missing: str | None = None, is_memory: bool = False
) -> dict[str, JSON]:
    """The reply of a child whose work raises."""
    return {"raised": kind, "text": text, "missing": missing, "is_memory": is_memory}


def is_running(pid: int) -> bool:
    """Whether a process is running; a zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(is_true: Callable[[], bool], seconds: float = 10.0) -> None:
    stop = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < stop
        time.sleep(0.02)


# The child's side, in this process: limits are noted down and not set.


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """The limits that would be set."""
    noted: dict[int, int] = {}
    monkeypatch.setattr(resource, "setrlimit", lambda kind, pair: noted.update({kind: pair[0]}))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (0, 7 if kind == 4 else -1))
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: noted.update({-1: seconds}))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    return noted


def request_in_child(
    function: str, limits: Mapping[str, object] | None = None, **arguments: object
) -> object:
    retained = {"limits": limits or asdict(ChildLimits()), "uninitialized": ()}
    request = {"function": function, "arguments": arguments, **retained}
    return json.loads(reply_to(json.dumps(request).encode()))


def test_a_request_runs_under_limits(limited: dict[int, int]) -> None:
    limits = {"seconds": 3, "memory_bytes": 11, "file_bytes": None}
    assert request_in_child("json:loads", limits, s='{"a": 1}') == {"result": {"a": 1}}
    assert limited[-1] == 13
    assert limited[resource.RLIMIT_AS] == 11
    assert limited[resource.RLIMIT_CORE] == 0  # below the hard limit of 7
    assert resource.RLIMIT_FSIZE not in limited


@pytest.mark.usefixtures("limited")
def test_errors_are_replies_too() -> None:
    assert request_in_child("os:getcwd") == {
        "raised": "TypeError",
        "text": "os:getcwd did not return a JSON object",
        "missing": None,
        "is_memory": False,
    }
    assert request_in_child("sys:exit") == raised("SystemExit")
    assert request_in_child("no_such_module:work") == raised(
        "ModuleNotFoundError", "No module named 'no_such_module'", missing="no_such_module"
    )
    assert json.loads(reply_to(b"no JSON"))["raised"] == "JSONDecodeError"


@pytest.mark.parametrize(("name", "is_removed"), [("onnxmem-run-abcd_123", True), ("home", False)])
def test_a_child_without_a_parent_removes_no_other_home(
    tmp_path: Path, name: str, *, is_removed: bool
) -> None:
    home = tmp_path / name
    home.mkdir()
    (home / "kept").touch()
    request = {
        "function": "signal:pause",
        "arguments": {},
        "limits": asdict(ChildLimits(30.0)),
        "uninitialized": [],
    }
    with running._started(str(home), {}) as process:  # noqa: SLF001 - its folder is chosen here
        assert process.stdin is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.close()
        assert process.wait(20) == 1
    assert home.exists() is not is_removed
