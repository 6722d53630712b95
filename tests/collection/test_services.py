"""A cluster of dask and a server of S3, both real and on loopback."""

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from models_on_disk import write_model, write_square
from paths import MODELS

from onnxmem.cli import main
from onnxmem.collection.executors import ClusterLostError, dask_executor, run_on
from onnxmem.collection.task import Task

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    write_model(tmp_path / "other.onnx")
    return tmp_path


def test_without_dask_the_extra_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert main("net.onnx --dask tcp://127.0.0.1:1".split()) == 2
    assert "pip install 'onnxmem[dask]'" in capsys.readouterr().err


class Client:
    """The used part of a dask client, on threads of this process.

    Its scheduler dies while the result of ``lost`` is fetched.
    """

    def __init__(self, address: str, **_: object) -> None:
        if "1" in address:
            message = "Timed out\nafter 10 s"
            raise OSError(message)
        self.loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())
        self.workers = ThreadPoolExecutor(2)

    def __enter__(self) -> Self:
        self.thread = threading.Thread(target=self.loop.asyncio_loop.run_forever)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.asyncio_loop.call_soon_threadsafe(self.loop.asyncio_loop.stop)
        self.thread.join()
        self.loop.asyncio_loop.close()
        self.workers.shutdown()

    def submit(
        self, function: Callable[..., Any], *words: object, **options: object
    ) -> SimpleNamespace:
        assert options == {"pure": False, "retries": 2}
        return SimpleNamespace(result=self.workers.submit(function, *words), status="pending")

    async def gather(self, task: SimpleNamespace, **options: object) -> object:
        assert options == {"asynchronous": True}
        try:
            result = await asyncio.wrap_future(task.result)
        except ValueError:
            task.status = "error"
            raise
        task.status = "finished"
        if result == "lost":
            message = "in <TCP>: Stream is closed"
            raise OSError(message)
        return result


def test_a_cluster_is_an_executor(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", SimpleNamespace(Client=Client))
    assert main("net.onnx other.onnx --json".split()) == 0
    local = capsys.readouterr().out
    assert main("net.onnx other.onnx --json --dask tcp://two:2".split()) == 0
    assert capsys.readouterr().out == local
    with dask_executor("tcp://two:2") as executor, executor:
        assert executor.submit(abs, -3).result() == 3
        with pytest.raises(ValueError, match="invalid literal"):
            executor.submit(int, "x").result()
        with pytest.raises(ConnectionError, match="Stream is closed"):
            executor.submit(str, "lost").result()
    assert main("net.onnx --dask tcp://one:1".split()) == 2
    text = "error: usage: --dask tcp://one:1: no scheduler responds: Timed out after 10 s\n"
    assert capsys.readouterr().err == text


@pytest.mark.slow
def test_a_cluster_survives_a_lost_worker(folder: Path) -> None:
    pytest.importorskip("distributed")
    copies = ("vit_tiny", "mobilenet_v2", "unet", "mlp", "smollm_cached")
    (folder / "zoo").mkdir()
    for number in range(40):
        source = MODELS / f"{copies[number % len(copies)]}.onnx"
        shutil.copy(source, folder / "zoo" / f"m{number:02}.onnx")
    local = python("-m", "onnxmem", "zoo", "--format", "jsonl", "--train")
    assert local.returncode == 0
    with cluster(folder) as (address, processes):
        words = ("-m", "onnxmem", "zoo", "--format", "jsonl", "--train", "--dask", address)
        with subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, env=environment(), text=True
        ) as run:
            assert run.stdout is not None
            first = run.stdout.readline()
            processes[1].kill()
            rest = run.stdout.read()
    assert run.returncode == 0
    assert first + rest == local.stdout
    assert len(local.stdout.splitlines()) == 40


@pytest.mark.slow
def test_a_cluster_reports_a_lost_scheduler(folder: Path) -> None:
    pytest.importorskip("distributed")
    (folder / "zoo").mkdir()
    for number in range(30):
        shutil.copy(MODELS / "vit_tiny.onnx", folder / "zoo" / f"m{number:02}.onnx")
    with cluster(folder) as (address, processes):
        words = ("-m", "onnxmem", "zoo", "--format", "jsonl", "--train", "--dask", address)
        with subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(),
            text=True,
        ) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            run.stdout.readline()
            processes[0].kill()
            too_long = threading.Timer(120, run.kill)
            too_long.start()
            rows = [json.loads(line) for line in run.stdout]
            reported = run.stderr.read()
            too_long.cancel()
    assert run.returncode == 3, reported
    codes = {row["error"]["code"] for row in rows if row["status"] == "error"}
    assert (len(rows), codes) == (29, {"cluster_lost"})
    assert reported.count("\n") == 1
    assert ": cluster_lost: the cluster was lost" in reported


class Lost(ThreadPoolExecutor):
    """An executor whose scheduler dies after the first model."""

    def submit(self, function: Callable[..., Any], /, *words: Any, **more: Any) -> Future[Any]:  # noqa: ANN401
        task = words[0]
        if task.name == "refused.onnx":
            message = "Client is not running"
            raise RuntimeError(message)
        future: Future[Any] = super().submit(function, *words, **more)
        if task.name == "unfetched.onnx":
            future = Future()
            future.set_exception(ClusterLostError("Stream is closed"))
        elif task.name != "net.onnx":
            future = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
        return future


def test_a_lost_cluster_is_one_error_and_a_row_for_each_model() -> None:
    names = ("net.onnx", "other.onnx", "refused.onnx", "net.onnx", "unfetched.onnx")
    tasks = [Task(name=name, location=name, settings={}) for name in names]
    with Lost(1) as executor:
        found = list(run_on(executor, tasks))
    assert [each["row"]["status"] for each in found] == ["ok", "error", "error", "ok", "error"]
    assert [len(each["faults"]) for each in found] == [0, 1, 0, 0, 0]
    assert found[1]["faults"][0]["code"] == "cluster_lost"


@pytest.mark.slow
def test_models_are_read_from_an_s3_server() -> None:
    for package in ("moto.server", "s3fs", "boto3"):
        pytest.importorskip(package)
    with s3_server() as endpoint:
        store = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        size = write_square(Path("large.onnx"), 2000).stat().st_size
        program = """
import boto3
store = boto3.client("s3")
store.create_bucket(Bucket="zoo")
for name in ("net.onnx", "other.onnx"):
    store.upload_file(name, "zoo", f"a/{name}")
store.upload_file("large.onnx", "zoo", "large.onnx")
store.put_object(Bucket="zoo", Key="a/read.me", Body=b"text")
"""
        assert python("-c", program, **store).returncode == 0
        names = ("s3://zoo/a/", "s3://zoo/a/n*.onnx", "s3://zoo/gone.onnx", "s3://none/a.onnx")
        remote = python("-m", "onnxmem", *names, "s3://zoo/a/read.me", "--json", **store)
        assert remote.returncode == 2, remote.stderr
        local = python("-m", "onnxmem", "net.onnx", "other.onnx", "net.onnx", "--json")
        large = python("-m", "onnxmem", "s3://zoo/large.onnx", "--json", **store)
    assert json.loads(large.stdout)["models"][0]["fetched"]["bytes"] < size / 100
    rows = json.loads(remote.stdout)["models"]
    # A file of less than one range is fetched whole, once.
    sizes = [row["file_bytes"] for row in rows[:3]]
    assert [row.pop("fetched")["bytes"] for row in rows[:3]] == sizes
    expected = [
        row | {"path": f"s3://zoo/a/{row['path']}"} for row in json.loads(local.stdout)["models"]
    ]
    assert rows[:3] == expected
    codes = [row["error"]["code"] for row in rows[3:]]
    assert codes == ["missing_file", "missing_file", "model_file"]


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | more


def python(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=environment(**more),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A scheduler and two workers that no nanny restarts: the address and the three processes."""
    file = folder / "scheduler.json"
    here = ("--host", "127.0.0.1", "--no-dashboard")
    words = ("distributed.cli.dask_scheduler", "--port", "0", *here)
    worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", *here)
    with started(*words, "--scheduler-file", str(file)) as scheduler:
        wait_for(file.exists)
        address = json.loads(file.read_text())["address"]
        with started(*worker, address) as one, started(*worker, address) as two:
            program = f"import distributed as d; d.Client({address!r}).wait_for_workers(2)"
            assert python("-c", program).returncode == 0
            yield address, [scheduler, one, two]


@contextmanager
def s3_server() -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with started("moto.server", "-H", "127.0.0.1", "-p", str(port)):
        wait_for(lambda: is_open(port))
        yield f"http://127.0.0.1:{port}"


def is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def wait_for(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    stop = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < stop
        time.sleep(0.05)
