"""Many models at once: order, workers that die, executors of any kind, one row each."""

import contextlib
import multiprocessing
import os
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from collection.worker_tasks import killed, slow_first, stuck, tasks_of
from models_on_disk import MYSTERY, write_model

import onnxmem
from onnxmem.collection import cache, many, workers
from onnxmem.collection.cache import RunResults
from onnxmem.collection.executors import run_on
from onnxmem.collection.many import analyze_many, outcomes
from onnxmem.collection.task import Outcome, Task
from onnxmem.collection.workers import WorkersError, run_in_workers, serve
from onnxmem.errors import EXIT_INTERRUPTED, EXIT_UNANALYZED, UsageError, fault_of
from onnxmem.model.files import ModelFile, opened_model
from onnxmem.settings import num_cores


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    (tmp_path / "page.onnx").write_text("<!DOCTYPE html><html></html>")
    return tmp_path


NAMES = ("net.onnx", "page.onnx", "gone.onnx", "mystery.onnx", "net.onnx")
STATUSES = ["ok", "error", "error", "partial", "ok"]


def test_every_model_has_a_row_in_order() -> None:
    rows = list(analyze_many(map(Path, NAMES), train=True))
    assert [row["path"] for row in rows] == list(NAMES)
    assert [row["status"] for row in rows] == STATUSES
    assert rows[0] == onnxmem.analyze("net.onnx", train=True).to_dict()
    assert rows[0]["training"] is not None


def test_workers_return_the_same_rows() -> None:
    settings = {"batch": 3, "layers": True}
    here = list(analyze_many(NAMES, jobs=1, **settings))  # type: ignore[arg-type]
    assert list(analyze_many(NAMES, jobs=2, **settings)) == here  # type: ignore[arg-type]
    with ThreadPoolExecutor(2) as executor:
        assert list(analyze_many(NAMES, executor=executor, **settings)) == here  # type: ignore[arg-type]


def test_wrong_settings_are_rejected_or_reported_in_rows() -> None:
    with pytest.raises(UsageError, match="jobs 0 is not"):
        analyze_many(NAMES, jobs=0)
    with pytest.raises(UsageError, match="as a cache"):
        analyze_many(NAMES, cache="net.onnx")
    (row,) = analyze_many(["net.onnx"], batch="two")
    assert row["error"] == {
        "code": "usage",
        "message": "'two' is not an integer; batches, dims and sizes are integers",
    }


def test_an_internal_error_is_a_row_with_a_trace_on_request() -> None:
    def analyze_model(*_: object, **__: object) -> onnxmem.Analysis:
        raise KeyError

    (task,) = tasks_of(["net.onnx"])
    (quiet,) = outcomes([task], jobs=1, analyze_model=analyze_model)
    (traced,) = outcomes([replace(task, with_traces=True)], jobs=1, analyze_model=analyze_model)
    assert quiet["faults"][0]["code"] == traced["faults"][0]["code"] == "internal"
    assert quiet["faults"][0]["trace"] is None
    assert "Traceback" in str(traced["faults"][0]["trace"])


def test_errors_of_an_interrupt_and_of_missing_memory() -> None:
    assert fault_of(KeyboardInterrupt()).exit_code == EXIT_INTERRUPTED
    assert fault_of(MemoryError()).code == "out_of_memory"


def test_no_models_give_no_rows() -> None:
    assert list(analyze_many([])) == []
    assert list(analyze_many([], jobs=2)) == []


def test_paths_are_read_lazily() -> None:
    drawn = []

    def names() -> Iterator[str]:
        for number in range(1000):
            drawn.append(number)
            yield "page.onnx"

    rows = analyze_many(names(), jobs=1)
    next(rows)
    assert len(drawn) == 1
    with ThreadPoolExecutor(1) as executor:
        found = run_on(executor, (tasks_of([name])[0] for name in names()), window=5)
        next(found)
        assert len(drawn) < 20
        found.close()


def test_a_killed_worker_costs_only_its_model(folder: Path) -> None:
    write_model(folder / "killer.onnx")
    names = ("net.onnx", "killer.onnx", "killer.onnx", "mystery.onnx", "net.onnx")
    found = list(run_in_workers(tasks_of(names, killed), 2))
    assert [outcome["row"]["path"] for outcome in found] == list(names)
    codes = [[fault["code"] for fault in outcome["faults"]] for outcome in found]
    assert codes == [[], ["worker_died"], ["worker_died"], [], []]
    assert found[1]["faults"][0]["exit_code"] == EXIT_UNANALYZED
    assert "SIGKILL" in found[1]["faults"][0]["message"]
    assert [outcome["text"] for outcome in found][3:] == list(names[3:])
    assert_nothing_is_left()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_model_that_takes_too_long_is_skipped(jobs: int, folder: Path) -> None:
    write_model(folder / "stuck.onnx")
    names = ("net.onnx", "stuck.onnx", "mystery.onnx", *["stuck.onnx"] * (jobs - 1), "net.onnx")
    found = list(run_in_workers(tasks_of(names, stuck), jobs, limit_seconds=3))
    assert [outcome["text"] for outcome in found] == [
        None if "stuck" in name else name for name in names
    ]
    (fault,) = found[1]["faults"]
    assert (fault["code"], fault["exit_code"]) == ("timeout", EXIT_UNANALYZED)
    assert fault["message"] == "skipped: timed out after 3 s; increase --timeout"
    assert_nothing_is_left()


def test_a_time_limit_needs_a_worker_process() -> None:
    rows = list(analyze_many(NAMES, jobs=1, timeout_seconds=600))
    assert [row["status"] for row in rows] == STATUSES
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(UsageError, match="use its own time limit"),
    ):
        analyze_many(NAMES, executor=executor, timeout_seconds=1)


def test_early_results_wait_for_their_turn(folder: Path) -> None:
    write_model(folder / "first.onnx")
    names = ("first.onnx", *(("net.onnx",) * 20))
    found = list(run_in_workers(tasks_of(names, slow_first), 2))
    assert [outcome["row"]["path"] for outcome in found] == list(names)
    assert len({outcome["text"] for outcome in found}) == 2


def test_closing_early_leaves_no_process() -> None:
    found = run_in_workers(tasks_of(["net.onnx"] * 50), 2)
    next(found)
    found.close()
    assert_nothing_is_left()


def test_a_worn_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_WORN_BYTES", 0)
    # A worker's own word is what counts: one that is told that it is worn goes.
    heard = workers._WorkerPool._receive  # noqa: SLF001 - the only place to see it from

    def hear(pool: object, worker: object, output: tuple[Outcome, bool] | None) -> None:
        heard(pool, worker, None if output is None else (output[0], True))  # type: ignore[arg-type]

    monkeypatch.setattr(workers._WorkerPool, "_receive", hear)  # noqa: SLF001
    found = list(run_in_workers(tasks_of(["net.onnx"] * 4, slow_first), 1))
    assert len({outcome["text"] for outcome in found}) == 4


def test_an_idle_worker_that_dies_costs_no_model() -> None:
    pool = workers._WorkerPool(2, tempfile.gettempdir())  # noqa: SLF001
    found = pool.outcomes(tasks_of(["net.onnx"] * 6))
    next(found)
    idle = [worker for worker in pool._workers if worker.number is None]  # noqa: SLF001
    for worker in idle:
        assert worker.process.pid is not None
        os.kill(worker.process.pid, signal.SIGKILL)
        assert worker.process.wait(10) == -signal.SIGKILL
    assert [outcome["faults"] for outcome in found] == [[]] * 5
    pool.kill()


@pytest.mark.parametrize(
    "program",
    [
        "import missing",
        workers._FORK_SERVER.replace("]), workers.serve)", "]), abs)"),  # noqa: SLF001
    ],
    ids=["server", "worker"],
)
def test_workers_that_do_not_start_are_reported_and_not_retried_forever(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_FORK_SERVER", program)
    with pytest.raises(WorkersError, match="use --jobs 1") as fault:
        list(run_in_workers(tasks_of(NAMES), 2))
    assert fault.value.exit_code == EXIT_UNANALYZED


def test_a_fork_server_that_dies_is_replaced_and_costs_no_model() -> None:
    pool = workers._WorkerPool(1, tempfile.gettempdir())  # noqa: SLF001
    found = pool.outcomes(tasks_of(["net.onnx"] * 3))
    next(found)
    pool._processes._process.kill()  # type: ignore[attr-defined]  # noqa: SLF001
    pool._processes._process.wait()  # type: ignore[attr-defined]  # noqa: SLF001
    assert next(found)["faults"] == []
    (worker,) = pool._workers  # noqa: SLF001
    pid = worker.process.pid
    assert pid is not None
    # Nobody reports its end now, but it is still this pool's to kill.
    worker.kill()
    stop = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < stop
    pool._workers.remove(worker)  # noqa: SLF001
    assert [outcome["faults"] for outcome in pool.outcomes(tasks_of(["net.onnx"]))] == [[]]
    pool.kill()


def test_a_worker_serves_tasks_until_its_parent_closes() -> None:
    before = signal.getsignal(signal.SIGINT)
    ours, theirs = multiprocessing.Pipe()
    try:
        for task in (*tasks_of(["net.onnx", "page.onnx"]), None):
            ours.send(task)
        serve(theirs)
        assert ours.recv() is None
        statuses = [ours.recv()[0]["row"]["status"] for _ in range(2)]
        assert statuses == ["ok", "error"]
        ours.close()
        serve(theirs)  # the parent is gone
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_killed_worker_costs_only_its_model_without_fork(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "send_fds")
    write_model(folder / "killer.onnx")
    found = list(run_in_workers(tasks_of(("net.onnx", "killer.onnx", "net.onnx"), killed), 1))
    codes = [[fault["code"] for fault in outcome["faults"]] for outcome in found]
    assert codes == [[], ["worker_died"], []]
    assert_nothing_is_left()


def test_a_hanging_process_is_awaited_until_the_limit(folder: Path) -> None:
    starter = workers.starter(str(folder))
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        worker = starter.start(theirs)
        assert ours.recv() is None
        assert worker.wait(0.01) is None
        worker.kill()
        worker.kill()
    starter.close()


def test_resident_memory_of_a_worker_is_unknown_outside_linux(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "sys", SimpleNamespace(platform="darwin"))
    assert workers._resident_bytes() == 0  # noqa: SLF001


class Broken(Executor):
    """An executor that breaks: at the second task, or with every future."""

    def __init__(self, error: Exception, *, at_once: bool) -> None:
        self._error = error
        self._at_once = at_once

    def submit(self, *_: object, **__: object) -> Future[Outcome]:  # type: ignore[override]
        if self._at_once:
            raise self._error
        future: Future[Outcome] = Future()
        future.set_exception(self._error)
        return future


class KilledWorker(Exception):  # noqa: N818 - dask's name
    """Like dask's exception for a task whose worker died at every attempt."""


@pytest.mark.parametrize(
    ("error", "at_once", "code"),
    [
        (BrokenExecutor("gone"), True, "worker_died"),
        (BrokenExecutor("gone"), False, "worker_died"),
        (KilledWorker("gone"), False, "worker_died"),
        (RuntimeError("gone"), False, "internal"),
    ],
)
def test_a_broken_executor_costs_rows_and_not_the_whole_run(
    error: Exception,
    at_once: bool,
    code: str,
) -> None:
    rows = list(analyze_many(NAMES, executor=Broken(error, at_once=at_once)))
    assert [row["path"] for row in rows] == list(NAMES)
    assert {row["error"]["code"] for row in rows if isinstance(row["error"], dict)} == {code}


def test_workers_start_only_for_several_models_with_a_large_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[int] = []

    def in_workers(tasks: list[Task], jobs: int, limit: float | None) -> Iterator[Outcome]:
        assert limit is None
        requested.append(jobs)
        yield from run_on(Broken(BrokenExecutor(), at_once=True), tasks)

    monkeypatch.setattr(workers, "run_in_workers", in_workers)
    monkeypatch.setattr(many, "num_cores", lambda: 5)
    (folder / "large.onnx").write_bytes(bytes(2**18))

    def jobs_of(*names: str, **settings: object) -> int | None:
        requested.clear()
        tasks = [Task(name=each, location=each, settings=settings) for each in names]
        assert len(list(outcomes(iter(tasks)))) == len(names)
        return requested[0] if requested else None

    assert jobs_of(*NAMES) is None
    assert jobs_of("large.onnx") is None
    assert jobs_of("large.onnx", "net.onnx") == 5
    assert jobs_of("net.onnx", "large.onnx", "net.onnx") == 5
    assert jobs_of("nosuch://a.onnx", "net.onnx") == 5
    assert jobs_of("large.onnx", "large.onnx", measure="cpu") is None


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # In a container without init nobody reaps what has lost its parent.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and ") Z " in stat.read_text())


def assert_nothing_is_left() -> None:
    """No child of this process is left, neither a fork server nor a spawned worker."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            words = (stat.parent / "cmdline").read_bytes()
            assert parent != os.getpid() or b"onnxmem.collection" not in words


@pytest.mark.parametrize(
    ("name", "dims", "times"),
    # An error may not be there the next time; a page is not even analyzed.
    [
        ("net.onnx", {}, 1),
        ("mystery.onnx", {}, 1),
        ("net.onnx", {"none": 2}, 5),
        ("page.onnx", {}, 0),
    ],
)
def test_equal_files_are_analyzed_once(
    name: str, dims: dict[str, int], times: int, folder: Path
) -> None:
    copies = [f"copy{number}.onnx" for number in range(5)]
    for copy in copies:
        (folder / copy).write_bytes((folder / name).read_bytes())
    names: list[str] = []

    def counted(model: ModelFile, **settings: object) -> onnxmem.Analysis:
        names.append(model.path)
        return onnxmem.analyze(model, **settings)  # type: ignore[arg-type]  # those of a task

    tasks = [Task(name=each, location=each, settings={"dims": dims}) for each in copies]
    rows = [each["row"] for each in outcomes(iter(tasks), jobs=1, analyze_model=counted)]
    assert [row["path"] for row in rows] == copies
    assert {**rows[0], "path": ""} == {**rows[-1], "path": ""}
    assert len(names) == times


def test_a_run_keeps_the_results_that_were_used_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_CHARACTERS", 900)
    results, keys = RunResults(), []
    for number in range(4):
        (folder / "net.onnx").write_bytes(bytes([number]))
        with opened_model("net.onnx") as window:
            keys.append(results.key(window, "net.onnx", {"batch": number}))
        row = {"path": "x" * 200, "number": number}
        results.put(keys[-1], {"row": row, "text": None, "text_of": None})
        assert results.get(keys[0]) is not None
    kept = [key for key in keys if results.get(key) is not None]
    assert kept == [keys[0], keys[2], keys[3]]
    assert results.num_characters == sum(map(len, results.texts.values())) <= 900


def test_the_number_of_cores_is_that_of_the_affinity_or_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert num_cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert num_cores() == os.cpu_count()
