"""Memory of a process that runs already: from ``/proc`` and NVML, of its children too."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_nvml import FakeNvml

from onnxmem.measuring import running_process
from onnxmem.measuring.running_process import ProcessError, watch

KIB = 1024
PARENT = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
CHILD = "held = b'x' * 30_000_000; print('ready', flush=True); input()"


def process(folder: Path, pid: int, parent: int, rss: int, **values: object) -> Path:
    """What Linux shows of a process, whose name may hold anything."""
    own = folder / str(pid)
    own.mkdir(parents=True)
    state = values.get("state", "S")
    fields = [state, parent, *["0"] * 17, values.get("start", 7)]
    (own / "stat").write_text(f"{pid} (a ) b) {' '.join(map(str, fields))}\n")
    status = f"Name:\ta ) b\nState:\t{state} (x)\n"
    if rss:
        status += f"VmHWM:\t{values.get('peak', rss)} kB\nVmRSS:\t{rss} kB\n"
    (own / "status").write_text(status)
    if "pss" in values:
        (own / "smaps_rollup").write_text(
            f"00-ff ---p [rollup]\nRss: 9 kB\nPss: {values['pss']} kB\n"
        )
    return own


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A process of two children and a grandchild, and one that is not related."""
    process(tmp_path, 10, 1, 100, peak=150, pss=80)
    process(tmp_path, 11, 10, 40, pss=30)
    process(tmp_path, 13, 11, 7, pss=5)
    process(tmp_path, 12, 10, 20, pss=11)
    process(tmp_path, 99, 1, 1000, pss=1000)
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "status").write_text("Name: x\n")
    (tmp_path / "meminfo").write_text("")
    return tmp_path


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process that waits for a child, which holds 30 MB until it reads a line."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


def test_children_and_theirs_are_counted(proc: Path) -> None:
    found = watch(10, proc=proc)
    assert [each.pid for each in found.processes] == [10, 11, 12, 13]
    assert found.process.name == "a ) b"
    assert (found.rss_bytes, found.pss_bytes) == (167 * KIB, 126 * KIB)
    # The kernel's peak of the process alone is below the sum that was read.
    assert (found.process.peak_rss_bytes, found.peak_rss_bytes) == (150 * KIB, 167 * KIB)
    assert (found.gpu_bytes, found.peak_gpu_bytes, found.findings) == (None, None, ())
    assert (found.num_readings, found.seconds) == (1, 0)


def test_a_peak_before_the_first_reading_is_the_kernels(proc: Path) -> None:
    process(proc, 20, 1, 100, peak=900, pss=1)
    assert watch(20, proc=proc).peak_rss_bytes == 900 * KIB


def test_memory_that_may_not_be_read_is_unknown(proc: Path) -> None:
    (proc / "11" / "smaps_rollup").unlink()
    (proc / "11" / "smaps_rollup").mkdir()
    found = watch(10, proc=proc)
    assert [each.pss_bytes for each in found.processes] == [80 * KIB, None, 11 * KIB, 5 * KIB]
    (finding,) = found.findings
    assert finding.code == "unknown_pss"
    assert finding.message.startswith("PSS is unknown for 1 of 4 processes: ")


def test_a_thread_of_the_kernel_has_no_memory(proc: Path) -> None:
    process(proc, 2, 0, 0, pss=0)
    assert watch(2, proc=proc).rss_bytes == 0


@pytest.mark.parametrize("pid", [14, 10**20])
def test_no_such_process_is_one_line(proc: Path, pid: int) -> None:
    with pytest.raises(ProcessError, match=f"^process {pid}: there is no such process$"):
        watch(pid, proc=proc)


def test_a_process_that_ended_and_was_not_waited_for_is_gone(proc: Path) -> None:
    process(proc, 30, 1, 0, state="Z")
    with pytest.raises(ProcessError, match="no such process"):
        watch(30, proc=proc)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_process_that_is_hidden_from_us_needs_permission(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int, _signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(running_process, "_PROC", proc)
    monkeypatch.setattr(os, "kill", refuse)
    with pytest.raises(ProcessError, match="process 14: no permission to read it; run as its user"):
        watch(14, proc=proc)


def test_a_process_that_may_not_be_read_needs_permission(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> dict[str, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(running_process, "_values", refuse)
    with pytest.raises(ProcessError, match="process 10: cannot be read: Permission denied; run as"):
        watch(10, proc=proc)


def test_a_system_without_proc_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=rf"\({sys.platform}\) does not have"):
        watch(10, proc=tmp_path)


def test_it_is_watched_until_the_time_is_over(proc: Path) -> None:
    grown = threading.Timer(0.15, lambda: process(proc, 15, 10, 500, pss=400))
    start = time.monotonic()
    grown.start()
    shrunk = threading.Timer(0.35, lambda: os.remove(proc / "15" / "status"))
    shrunk.start()
    found = watch(10, 0.6, proc=proc)
    assert 0.6 <= time.monotonic() - start < 5
    assert found.num_readings >= 3
    assert (found.rss_bytes, found.peak_rss_bytes) == (167 * KIB, 667 * KIB)
    assert (found.pss_bytes, found.peak_pss_bytes) == (126 * KIB, 526 * KIB)


@pytest.mark.parametrize("how", ["ended", "another has its number", "zombie"])
def test_a_process_that_ends_is_reported_with_its_last_figures(proc: Path, how: str) -> None:
    def end() -> None:
        if how == "ended":
            (proc / "10" / "stat").unlink()
            (proc / "10" / "status").unlink()
        else:
            text = (proc / "10" / "stat").read_text()
            changed = text.replace(" 7\n", " 8\n") if how[0] == "a" else text.replace(") S", ") Z")
            (proc / "10" / "stat").write_text(changed)

    timer = threading.Timer(0.15, end)
    timer.start()
    found = watch(10, 20, proc=proc)
    assert [each.code for each in found.findings] == ["process_ended"]
    assert found.rss_bytes == 167 * KIB
    assert found.seconds < 10


def test_gpus_count_for_the_processes_that_nvml_lists(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_gpus: dict[int, dict[int, int | None]] = {0: {10: 3, 99: 100}, 1: {10: 5, 13: 7, 12: None}}
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True, processes=on_gpus))
    found = watch(10, proc=proc)
    assert [each.gpu_bytes for each in found.processes] == [8, None, None, 7]
    assert (found.gpu_bytes, found.peak_gpu_bytes, found.findings) == (15, 15, ())


def test_the_utilization_is_that_of_the_gpus_they_run_on(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU 0 says how busy it is, and GPU 1 does not; of a process NVML may hide the bytes."""
    nvml = FakeNvml(has_driver=True, processes={0: {13: None}, 1: {10: 5}})
    percents = iter([40, 90])

    def rates(device: str) -> SimpleNamespace:
        if device != "index 0":
            raise nvml.NVMLError
        return SimpleNamespace(gpu=next(percents, 20))

    monkeypatch.setattr(nvml, "nvmlDeviceGetUtilizationRates", rates)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = watch(10, 0.2, proc=proc)
    num = found.num_readings
    assert num >= 2
    assert found.gpu_utilization_percent == round((40 + 90 + 20 * (num - 2)) / num)
    assert found.gpu_utilization_peak_percent == 90
    assert (found.gpu_bytes, found.findings) == (5, ())
    elsewhere = FakeNvml(has_driver=True, processes={0: {99: 3}, 1: {10: 5}})
    monkeypatch.setitem(sys.modules, "pynvml", elsewhere)
    assert watch(10, proc=proc).gpu_utilization_percent is None


def test_a_gpu_without_any_of_the_processes_is_a_note(
    proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True, processes={0: {99: 3}}))
    found = watch(10, proc=proc)
    assert (found.gpu_bytes, [each.code for each in found.findings]) == (None, ["no_gpu_process"])
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    assert watch(10, proc=proc).findings == ()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_real_process_and_its_child(parent: subprocess.Popen[str]) -> None:
    found = watch(parent.pid)
    own, child = found.processes
    assert (own.pid, child.name[:6]) == (parent.pid, "python")
    assert 30_000_000 < child.rss_bytes <= child.peak_rss_bytes < found.peak_rss_bytes
    assert found.rss_bytes == own.rss_bytes + child.rss_bytes
    assert child.pss_bytes is not None
    assert child.pss_bytes <= child.rss_bytes


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_real_process_that_ends_while_it_is_watched(parent: subprocess.Popen[str]) -> None:
    assert parent.stdin is not None
    timer = threading.Timer(0.3, parent.stdin.close)
    timer.start()
    found = watch(parent.pid, 60)
    assert [each.code for each in found.findings] == ["process_ended"]
    assert found.peak_rss_bytes > 30_000_000
    assert found.seconds < 30
