"""Nothing of the current folder, or of a model's folder, is imported by any process of onnxmem.

A folder is full of traps: a file for every module that a process could look for there. A trap that
is imported leaves its name in a file elsewhere, given by its absolute path, whatever becomes of the
process.
"""

import json
import os
import pkgutil
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from collection.test_services import wait_for
from models_on_disk import write_model

import onnxmem
import onnxmem.cli
from onnxmem.children import safe_path
from onnxmem.cli import main

LIBRARIES = (
    *("numpy", "onnx", "google", "networkx", "onnxruntime", "psutil", "rich", "onnx_ir"),
    *(
        "onnx_shape_inference",
        "ml_dtypes",
        "fsspec",
        "pynvml",
        "distributed",
        "dask",
        "cloudpickle",
    ),
    *("sitecustomize", "usercustomize", "collection"),
)
SCRIPT = Path(sysconfig.get_path("scripts"), "onnxmem")
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
TRAP = """\
import posix, sys
posix.write(posix.open({evidence!r}, {flags}, 0o600), f"{name} {{sys.orig_argv}}\\n".encode())
"""
"""Both modules are built in: no file takes their place."""

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="traps are written for POSIX")


class Traps:
    """Two folders of traps with models in each, and the file in which the traps leave evidence."""

    def __init__(self, folder: Path, spared: Collection[str] = ()) -> None:
        self.current = folder / "current"
        self.models = folder / "models"
        self._evidence = folder / "evidence"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        for each in (self.current, self.models):
            each.mkdir()
            for name in {*sys.stdlib_module_names, *LIBRARIES}.difference(spared):
                trap = TRAP.format(evidence=str(self._evidence), flags=flags, name=name)
                (each / f"{name}.py").write_text(trap)
            write_model(each / "a.onnx")
            shutil.copy(each / "a.onnx", each / "b.onnx")

    def run(
        self, *words: str | Path, environment: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the folder of traps."""
        return subprocess.run(
            words,
            cwd=self.current,
            env=ENVIRONMENT | (environment or {}),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def sprung(self) -> list[str]:
        """Modules that were imported from a folder of traps since the last call, and by whom."""
        lines = self._evidence.read_text().splitlines() if self._evidence.exists() else []
        self._evidence.unlink(missing_ok=True)
        return lines


@pytest.fixture(scope="module")
def laid(tmp_path_factory: pytest.TempPathFactory) -> Traps:
    return Traps(tmp_path_factory.mktemp("safe_path"))


@pytest.fixture
def traps(laid: Traps) -> Iterator[Traps]:
    laid.sprung()
    yield laid
    assert laid.sprung() == []


def is_sound(done: subprocess.CompletedProcess[str], num_models: int) -> bool:
    """Whether a report in JSON has a sound row for each model."""
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["models"]
    return [row["status"] for row in rows] == ["ok"] * num_models


def test_a_module_of_the_current_folder_would_leave_evidence(traps: Traps) -> None:
    """A test that finds no evidence shows something only if there would be some."""
    traps.run(sys.executable, "-c", "import random")
    assert traps.sprung()
    for name in ("random", "numpy"):
        program = f"import sys; sys.path.insert(0, ''); import {name}"
        traps.run(sys.executable, "-P", "-c", program)
        assert name in [line.split()[0] for line in traps.sprung()]


AUDITS = (
    "a.onnx b.onnx {models}/a.onnx --jobs 2 --json",
    "a.onnx b.onnx {models}/a.onnx --jobs 1 --json",
    "a.onnx b.onnx {models}/a.onnx --jobs 1 --timeout 60 --json",
)
COMMANDS = {
    "advise": "advise a.onnx --batch 2 --emulate-optimizer",
    "analyze": "analyze a.onnx --train --html page.html --force",
    "annotate": "annotate a.onnx -o annotated.onnx --force",
    "check": "check a.onnx b.onnx --budget-peak 1GiB",
    "devices": "devices",
    "diff": "diff a.onnx b.onnx",
    "explain": "explain weights a.onnx",
    "export": "export a.onnx --format dot -o a.dot --force",
    "fit": "fit {models}/a.onnx --device 1GiB",
    "reorder": "reorder {models}/a.onnx -o reordered.onnx --force",
    "schema": "schema",
    "simulate": "simulate a.onnx --requests batch=1..4 --emulate-optimizer",
    "sweep": "sweep a.onnx --batch 1..2",
    "view": "view a.onnx --no-open -o view.html --force",
}
RUN = "measure {models}/a.onnx --batch 1 --runs 1 --json"
RUNS = "a.onnx {models}/a.onnx --jobs 2 --runtime ort-cpu --measure cpu --batch 1 --json"
SEVERAL = """
import sys
import onnxmem.cli
from onnxmem.cli import main
for line in {lines}:
    sys.argv[1:] = line.split()
    assert main() == 0, line
"""


def run_all(traps: Traps, lines: Collection[str]) -> Iterator[subprocess.CompletedProcess[str]]:
    with ThreadPoolExecutor(2) as executor:
        words = [line.format(models=traps.models).split() for line in lines]
        for done in executor.map(lambda each: traps.run(SCRIPT, *each), words):
            assert done.returncode == 0, done.stderr
            yield done


def test_no_command_imports_from_the_current_folder(traps: Traps, tmp_path: Path) -> None:
    """In one process, which imports what each of them needs."""
    assert {*COMMANDS, "measure"} == set(onnxmem.cli.COMMANDS)
    lines = [line.format(models=traps.models) for line in COMMANDS.values()]
    (tmp_path / "several.py").write_text(SEVERAL.format(lines=lines))
    done = traps.run(sys.executable, tmp_path / "several.py")
    assert done.returncode == 0, done.stderr


def test_workers_of_many_models_import_nothing_from_the_current_folder(traps: Traps) -> None:
    assert all(is_sound(done, 3) for done in run_all(traps, AUDITS))


@pytest.mark.measure
@pytest.mark.parametrize("words", [RUN, pytest.param(RUNS, marks=pytest.mark.slow)])
def test_runs_of_a_model(traps: Traps, words: str) -> None:
    pytest.importorskip("onnxruntime")
    (done,) = run_all(traps, [words])
    (row, *_) = json.loads(done.stdout)["models"]
    assert row["measured"]


# What Python itself imports before any code of onnxmem runs is beyond its reach.


def modules_after(*words: str | Path, cwd: Path) -> set[str]:
    """Modules that a program has imported in the end, each by the first part of its name."""
    done = subprocess.run(
        [sys.executable, "-P", *words],
        cwd=cwd,
        env=ENVIRONMENT | {"PYTHONPATH": str(cwd)},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_run_as_a_module(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "__init__.py").touch()
    lines = "import sys\nnames = [*sys.modules]\nimport json\nprint(json.dumps(names))\n"
    (tmp_path / "bare" / "__main__.py").write_text(lines)
    present = {each.name for each in pkgutil.iter_modules() if each.name in sys.stdlib_module_names}
    traps = Traps(tmp_path, modules_after("-m", "bare", cwd=tmp_path))
    assert len(list(traps.current.iterdir())) > 200
    command = ("onnxmem", "a.onnx", "b.onnx", "--jobs", "2", "--json")
    assert is_sound(traps.run(sys.executable, "-m", *command), 2)
    assert traps.run(sys.executable, "-Bmonnxmem", "schema").returncode == 0
    # A checkout, which is importable from the current folder alone.
    (traps.current / "onnxmem").symlink_to(Path(onnxmem.__file__).parent)
    # That folder is trusted, behind the standard library.
    for path in traps.current.glob("*.py"):
        if path.stem in LIBRARIES or path.stem not in present:
            path.unlink()
    assert is_sound(traps.run(sys.executable, "-m", *command), 2)
    assert traps.sprung() == []


def test_an_empty_part_of_pythonpath(tmp_path: Path) -> None:
    program = "import re, sys, onnxmem.cli, json; print(json.dumps([*sys.modules]))"
    traps = Traps(tmp_path, {*modules_after("-c", program, cwd=tmp_path), "sitecustomize"})
    assert len(list(traps.current.iterdir())) > 100
    environment = {"PYTHONPATH": f":{tmp_path}"}
    traps.run(sys.executable, "-P", "-c", "import tempfile", environment=environment)
    assert traps.sprung()
    words = ("a.onnx", "b.onnx", "--jobs", "2", "--json")
    assert is_sound(traps.run(SCRIPT, *words, environment=environment), 2)
    assert traps.sprung() == []


# Programs that import onnxmem


def test_a_script_that_imports_onnxmem(traps: Traps, tmp_path: Path) -> None:
    """Its main module is not run again either, so that it needs no guard."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys, onnxmem\n"
        "before = [*sys.path], dict(os.environ), os.getcwd()\n"
        f"names = ['a.onnx', 'b.onnx', {str(traps.models / 'a.onnx')!r}]\n"
        "print(*[row['status'] for row in onnxmem.analyze_many(names, jobs=2)])\n"
        "assert before == ([*sys.path], dict(os.environ), os.getcwd())\n"
    )
    done = traps.run(sys.executable, script)
    assert (done.stdout, done.stderr) == ("ok ok ok\n", "")


@pytest.mark.parametrize("has_fork", [True, False])
def test_workers_of_a_program_that_looks_in_the_current_folder(
    traps: Traps,
    monkeypatch: pytest.MonkeyPatch,
    has_fork: bool,
) -> None:
    if not has_fork:
        monkeypatch.delattr(socket, "send_fds")
    monkeypatch.chdir(traps.current)
    names = ["a.onnx", "b.onnx"]
    # This process has imported by then what it needs itself.
    rows = list(onnxmem.analyze_many(names, jobs=1, timeout_seconds=60))
    monkeypatch.setattr(sys, "path", ["", ".", str(traps.current), *sys.path])
    assert list(onnxmem.analyze_many(names, jobs=2)) == rows
    assert sys.path[:2] == ["", "."]


def test_a_command_of_another_program_leaves_its_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ["", *sys.path]
    monkeypatch.setattr(sys, "path", [*path])
    assert main(["schema"]) == 0
    assert sys.path == path
    monkeypatch.setattr(sys, "argv", ["onnxmem", "schema"])
    assert main() == 0
    assert "" not in sys.path
    capsys.readouterr()


# The path itself


def test_what_the_path_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    current, other = tmp_path / "current", tmp_path / "other"
    current.mkdir()
    other.mkdir()
    (tmp_path / "link").symlink_to(current)
    monkeypatch.chdir(current)
    standard = os.path.dirname(os.__file__)
    unsafe = ["", ".", "lib", "../other", str(current), str(tmp_path / "link"), f"{current}/"]
    kept = [str(other), str(current / "lib"), str(tmp_path / "gone.zip"), standard]
    monkeypatch.setattr(sys, "path", [*unsafe, *kept, other, "/site-packages"])
    assert safe_path.safe_path() == [*kept, safe_path.HOME, "/site-packages"]
    monkeypatch.setattr(sys, "path", [safe_path.HOME, standard])
    assert safe_path.safe_path() == [safe_path.HOME, standard]
    monkeypatch.chdir(safe_path.HOME)
    assert safe_path.safe_path() == [standard, safe_path.HOME]
    monkeypatch.setattr(sys, "path", [safe_path.HOME, standard, "/site-packages", safe_path.HOME])
    assert safe_path.safe_path() == [standard, "/site-packages", safe_path.HOME]
    monkeypatch.setattr(sys, "path", ["/site-packages"])
    assert safe_path.safe_path() == ["/site-packages", safe_path.HOME]


def test_a_current_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(sys, "path", ["", safe_path.HOME])
    assert safe_path.safe_path() == [safe_path.HOME]


@pytest.mark.slow
def test_tasks_on_a_cluster_import_nothing_from_the_current_folder(
    traps: Traps, tmp_path: Path
) -> None:
    """Its processes are the user's, started safely here; onnxmem's client and tasks are too."""
    pytest.importorskip("distributed")
    file = tmp_path / "scheduler.json"
    here = ("--host", "127.0.0.1", "--no-dashboard")
    scheduler = ("dask_scheduler", "--port", "0", "--scheduler-file", str(file), *here)
    worker = ("dask_worker", "--nthreads", "1", "--no-nanny", "--scheduler-file", str(file), *here)
    with ExitStack() as processes:
        for module, *words in (scheduler, worker):
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"distributed.cli.{module}", *words],
                cwd=traps.current,
                env=ENVIRONMENT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            processes.callback(process.wait)
            processes.callback(process.kill)
            wait_for(file.exists)
        address = json.loads(file.read_text())["address"]
        models = ("a.onnx", str(traps.models / "b.onnx"))
        assert is_sound(traps.run(SCRIPT, *models, "--dask", address, "--json"), 2)
