"""Free memory of this machine: GPUs by NVML, the host by the kernel and its cgroups."""

import json
import sys
from pathlib import Path

import pytest
from fake_nvml import GIB, FakeNvml
from models_on_disk import write_model
from paths import MODELS

from onnxmem.cli import main
from onnxmem.decisions.devices import DeviceError, catalog
from onnxmem.measuring import machine

MEMINFO = "MemTotal:       8388608 kB\nMemFree: 7 kB\nMemAvailable:   6291456 kB\nHugetlb: 0 kB\n"
V2 = {"memory.max": f"{4 * GIB}\n", "memory.current": f"{GIB}\n"}


def write_tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")
    return root


def group(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


def host(root: Path, files: dict[str, str]) -> machine.MachineMemory:
    found = machine.host_memory(write_tree(root, {"proc/meminfo": MEMINFO, **files}))
    assert found is not None
    return found


def test_without_a_limit_the_kernel_says_what_is_free(tmp_path: Path) -> None:
    found = host(tmp_path, {})
    assert (found.total_bytes, found.free_bytes) == (8 * GIB, 6 * GIB)
    assert "/proc/meminfo" in found.source


def test_a_limit_of_cgroup_v2_counts_without_files_that_can_be_dropped(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/pod/box\n"}
    stat = {"memory.stat": f"anon 5\ninactive_file {GIB // 4}\nactive_file 7\n"}
    found = host(tmp_path, files | group("pod/box/", V2 | stat))
    assert (found.total_bytes, found.free_bytes) == (4 * GIB, 3 * GIB + GIB // 4)
    assert "cgroup v2, limit 4.00 GiB" in found.source


def test_a_group_above_may_leave_less(tmp_path: Path) -> None:
    above = {"memory.max": f"{2 * GIB}", "memory.current": f"{2 * GIB - 11}"}
    files = {"proc/self/cgroup": "0::/pod/box\n"} | group("pod/box/", V2) | group("pod/", above)
    assert host(tmp_path, files).free_bytes == 11


def test_no_limit_is_max_in_v2_and_a_huge_number_in_v1(tmp_path: Path) -> None:
    v2 = group("pod/", {"memory.max": "max\n", "memory.current": "7\n"})
    files = {"proc/self/cgroup": "0::/pod\n4:cpu,memory:/job\n"} | v2
    v1 = {"memory.limit_in_bytes": "9223372036854771712\n", "memory.usage_in_bytes": "5\n"}
    assert host(tmp_path, files | group("memory/job/", v1)).free_bytes == 6 * GIB
    v1 = {"memory.limit_in_bytes": f"{GIB}\n", "memory.usage_in_bytes": "5\n"}
    stat = {"memory.stat": "inactive_file 1\ntotal_inactive_file 3\n"}
    found = host(tmp_path, files | group("memory/job/", v1 | stat))
    assert (found.total_bytes, found.free_bytes) == (GIB, GIB - 2)
    assert "cgroup v1" in found.source


@pytest.mark.parametrize("path", ["/docker/0123", "/../../pod"])
def test_in_a_container_the_group_is_the_root_of_the_mount(tmp_path: Path, path: str) -> None:
    files = {"proc/self/cgroup": f"0::{path}\n"} | group("", V2)
    assert host(tmp_path, files).free_bytes == 3 * GIB


def test_more_in_use_than_allowed_leaves_nothing(tmp_path: Path) -> None:
    over = {"memory.max": "5", "memory.current": "7"}
    assert host(tmp_path, {"proc/self/cgroup": "0::/\n"} | group("", over)).free_bytes == 0


def test_a_system_that_reports_nothing(tmp_path: Path) -> None:
    assert machine.host_memory(tmp_path) is None


def test_a_gpu_of_the_catalog_has_its_bandwidth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    device, source = catalog().this_machine()
    assert (device.name, device.kind) == ("H100 SXM", "cuda")
    assert (device.memory_bytes, device.limit_bytes) == (80 * GIB, 80 * GIB - 13)
    assert device.bandwidth_bytes == catalog().find("H100").bandwidth_bytes
    assert source == "free now, by NVML"


def test_an_unknown_gpu_has_its_memory_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True, name=b"X 7 \xff"))
    device, _ = catalog().this_machine()
    assert (device.name, device.bandwidth_bytes) == ("X 7 \ufffd", None)


def test_without_a_gpu_it_is_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    device, _ = catalog().this_machine()
    assert (device.name, device.kind) == ("this machine", "cpu")
    assert 0 < device.limit_bytes <= device.memory_bytes
    with pytest.raises(DeviceError, match="no GPU is found"):
        catalog().this_machine(is_gpu=True)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    assert catalog().this_machine(is_gpu=False)[0].kind == "cpu"


def test_fit_compares_with_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.chdir(tmp_path)
    net = write_model(tmp_path / "net.onnx")
    assert main(["fit", net, "--device", "auto", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["device"], row["limit_bytes"]) == ("H100 SXM", 80 * GIB - 17)
    assert row["memory_source"] == "free now, by NVML"
    assert main(["fit", net, "--device", "auto"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "free now, by NVML, of 80.0 GiB" in text
    assert "what is free changes: --reserve 1GiB keeps some back" in text
    assert main(["fit", net, "--device", "auto", "--reserve", "3GiB"]) == 0
    assert "keeps some back" not in capsys.readouterr().out


def test_a_training_on_the_host_says_that_its_process_is_not_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=False))
    words = ["fit", str(MODELS / "mlp.onnx"), "--device", "auto"]

    def said(*more: str) -> str:
        main([*words, *more])
        return " ".join(capsys.readouterr().out.split())

    text = said("--train")
    assert "not counted the process: Python, what PyTorch loads" in text
    assert "--reserve 1.5GiB keeps room for it" in text
    assert "the RAM, as no GPU was found" in text
    assert "the reserve keeps room for it" in said("--train", "--reserve", "64MiB")
    assert "the RAM, as no GPU was found" in said()
    assert "no GPU was found" not in said("--runtime", "ort-cpu")
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(has_driver=True))
    text = said("--train")
    assert "the process: Python" not in text
    assert "no GPU was found" not in text
