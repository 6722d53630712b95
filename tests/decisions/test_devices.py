"""The catalog of devices, a user's own file, and the command that lists them."""

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from golden_text import assert_golden
from models_on_disk import write_model
from paths import ROOT

from onnxmem.cli import main
from onnxmem.decisions.devices import KINDS, DeviceError, catalog, read_devices
from onnxmem.settings import TrainingConfig
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]
_VENDOR_HOSTS = (
    *("developer.nvidia.com", "docs.nvidia.com", "www.nvidia.com", "resources.nvidia.com"),
    *("images.nvidia.cn", "www.apple.com", "cloud.google.com", "docs.github.com"),
)
_ACCOUNTS = {
    *("NVIDIA", "ROCm", "awsdocs", "MicrosoftDocs", "raspberrypi", "espressif"),
    *("STMicroelectronics", "NordicSemiconductor"),
}
OWN = """
[[device]]
name = "Mine"
aliases = ["bench"]
kind = "cuda"
cpu = "avx2"
memory = "7 GiB"
bandwidth = "70 GB"
fp32_tflops = 1.3
year = 2024
price_usd = 200
"""


def test_the_catalog_has_enough_devices_of_each_kind() -> None:
    devices = catalog().devices
    assert len(devices) >= 60
    assert {device.kind for device in devices} == set(KINDS)
    for name in ("K80", "GTX 1080 Ti", "GTX Titan X", "B300", "Jetson Nano", "M4 Max", "ESP32"):
        catalog().find(name)


def test_every_figure_of_a_device_has_a_source_and_is_plausible() -> None:
    for device in catalog().devices:
        assert "memory_bytes" in device.sources
        assert all(source.strip() for source in device.sources.values())
        for name in device.sources:
            assert getattr(device, name) is not None
        assert device.limit_bytes <= device.memory_bytes
        assert device.year is None or 2010 <= device.year <= 2030
        if device.bandwidth_bytes is not None:
            assert 10**9 < device.bandwidth_bytes < 10**13
        if device.price_usd is not None:
            assert "from memory" not in device.sources["price_usd"]


@pytest.mark.parametrize(
    ("name", "usable_bytes"),
    [
        ("RTX 3090", 24_260 * 2**20),
        ("A100 40GB", 42_298_834_944),
        ("T4", 1456 * 2**30 // 100),
        ("RTX 2080 Ti", 1076 * 2**30 // 100),
        ("Jetson Nano", 386 * 2**30 // 100),
    ],
)
def test_usable_memory_of_a_card_is_what_cuda_reports(
    name: str, usable_bytes: int, tmp_path: Path, capsys: Capture
) -> None:
    device = catalog().find(name)
    assert device.limit_bytes == device.usable_bytes == usable_bytes < device.memory_bytes
    net = str(tmp_path / write_model(tmp_path / "net.onnx"))
    assert main(["fit", net, "--device", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["memory_bytes"] == usable_bytes


def test_usable_memory_has_a_source_and_is_most_of_the_total() -> None:
    cards = [each for each in catalog().devices if each.kind == "cuda" and each.usable_bytes]
    assert len(cards) >= 40
    for card in cards:
        assert "from memory" not in card.sources["usable_bytes"]
        assert 0.9 < card.limit_bytes / card.memory_bytes < 1


def test_the_page_lists_devices_with_less_usable_memory() -> None:
    page = ROOT / "docs" / "commands" / "devices.md"
    reported = [line for line in page.read_text(encoding="utf-8").splitlines() if line[:2] == "| "]
    assert reported[1:] == [
        f"| {x.name} | {format_bytes(x.memory_bytes)} | {format_bytes(x.usable_bytes)} |"
        for x in catalog().devices
        if x.usable_bytes is not None
    ]


def test_every_nvidia_gpu_has_a_compute_capability() -> None:
    for device in catalog().devices:
        assert (device.compute_capability is not None) == (device.kind == "cuda"), device.name
    found = {name: catalog().find(name).compute_capability for name in ("H100", "H200", "B200")}
    assert found == {"H100": "9.0", "H200": "9.0", "B200": "10.0"}
    large = [
        x for x in catalog().devices if TrainingConfig().cublas_bytes(x.compute_capability) > 10**7
    ]
    assert len(large) >= 10
    assert not [x.name for x in large if "from memory" in x.sources["compute_capability"]]


def test_the_threads_of_a_gpu_are_those_of_its_multiprocessors() -> None:
    """By compute capability: Hopper and Volta run 2,048 each, Ampere's small GPUs 1,536."""
    found = {x.name: x.gpu_threads for x in catalog().devices}
    expected = {"V100 SXM2 32GB": 80 * 2048, "T4": 40 * 1024, "RTX 3090": 82 * 1536}
    expected |= {"A100 80GB": 108 * 2048, "H100 SXM": 132 * 2048, "RTX 5090": 170 * 1536}
    assert {name: found[name] for name in expected} == expected
    for device in catalog().devices:
        assert (device.gpu_threads is not None) == (device.kind == "cuda"), device.name
    (mine,) = read_devices(OWN + 'compute_capability = "9.0"\n', "own")
    assert mine.gpu_threads is None
    (mine,) = read_devices(OWN + "multiprocessors = 12\n", "own")
    assert (mine.multiprocessors, mine.gpu_threads) == (12, None)


@pytest.mark.parametrize("value", ["9", 9.0, "hopper", "9.0a"])
def test_a_compute_capability_is_two_numbers(value: object) -> None:
    entry = f"compute_capability = {json.dumps(value)}\n"
    with pytest.raises(DeviceError, match=r"device Mine: compute_capability is .*'9.0'"):
        read_devices(OWN + entry, "own")
    (mine,) = read_devices(OWN + 'compute_capability = "9.0"\n', "own")
    assert (mine.compute_capability, mine.sources["compute_capability"]) == (
        "9.0",
        "the user's own file",
    )


def test_a_source_is_a_document_of_a_vendor_or_says_that_none_was_found() -> None:
    """A vendor's site, its account on GitHub, or what NVIDIA handed in to MLPerf; no blog."""
    sources = {text for device in catalog().devices for text in device.sources.values()}
    cited = {text for text in sources if not text.startswith("no vendor document found")}
    assert len(cited) >= 30
    for text in cited:
        addresses = [urlsplit(each) for each in re.findall(r"https?://[^\s,)]+", text)]
        assert addresses, text
        for address in addresses:
            host, account = address.hostname or "", address.path.split("/")[1]
            own = host.endswith(_VENDOR_HOSTS) or (host == "github.com" and account in _ACCOUNTS)
            assert own or (account == "mlcommons" and "closed/NVIDIA/" in text), text
    for device in catalog().devices:
        for text in device.sources.values():
            assert ("from memory" not in text) or "unverified" in text, device.name


def test_a_device_shows_the_figures_without_a_vendor_document(capsys: Capture) -> None:
    assert main(["devices", "H100 SXM", "RTX 4090"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "bandwidth 3.35 TB/s NVIDIA, https://github.com/NVIDIA/TensorRT-LLM" in shown
    assert "price 1599 USD no vendor document found" in shown


def test_every_source_is_a_key_of_the_table() -> None:
    for device in catalog().devices:
        assert all(" " in text or "/" in text for text in device.sources.values()), device.name


def test_device_names_are_unique() -> None:
    known = catalog()
    named = [name for each in known.devices for name in (each.name, *each.aliases)]
    for each in known.devices:
        for name in (each.name, *each.aliases):
            assert known.find(name) == each
    assert len(named) == len(set(named))


@pytest.mark.parametrize("name", ["rtx4090", "NVIDIA GeForce RTX 4090", "Rtx-4090", " rtx 4090 "])
def test_case_punctuation_and_vendor_are_ignored_in_device_names(name: str) -> None:
    assert catalog().find(name).name == "RTX 4090"


def test_an_unknown_device_is_reported_with_similar_names() -> None:
    with pytest.raises(DeviceError, match="unknown device 'RTX 4099'; did you mean RTX 4090"):
        catalog().find("RTX 4099")
    with pytest.raises(DeviceError, match="onnxmem devices lists all"):
        catalog().find("abacus of wood")


@pytest.mark.parametrize("name", ["this", "ALL", "any", "gpu", "here", "my gpu", "cuda:0"])
def test_a_word_for_this_machine_or_every_device_is_answered(name: str) -> None:
    with pytest.raises(DeviceError, match=r"--device auto is this machine, .* --which-device"):
        catalog().device_or_size(name)


def test_a_model_among_devices_is_told_which_command_takes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["devices", "gone.onnx"]) == 2
    error = capsys.readouterr().err
    assert "onnxmem fit gone.onnx --which-device" in error
    assert "onnxmem devices --model gone.onnx" in error


def test_a_price_gives_flops_and_bytes_per_dollar() -> None:
    (mine,) = read_devices(OWN, "own")
    assert mine.gflops_per_usd == 6.5
    assert mine.bytes_per_usd == 7 * 2**30 // 200
    assert (mine.bandwidth_bytes, mine.fp32_flops) == (70 * 10**9, 13 * 10**11)
    assert mine.sources["year"] == "the user's own file"
    h100 = catalog().find("H100")
    assert (h100.price_usd, h100.gflops_per_usd, h100.bytes_per_usd) == (None, None, None)


def test_own_devices_come_first_and_replace_others(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(OWN + OWN.replace("Mine", "rtx 4090").replace('["bench"]', "[]"))
    known = catalog(str(file))
    assert (known.find("bench").name, known.find("bench").cpu) == ("Mine", "avx2")
    assert known.without_cpus().find("bench").cpu is None
    assert known.find("RTX 4090").limit_bytes == 7 * 2**30
    assert len(known.devices) == len(catalog().devices) + 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[[device", "own: is not TOML"),
        ("year = 3", r"own: has no \[\[device\]\] table"),
        ("[[device]]\nmemory = '1 GiB'", "has no name"),
        ("[[device]]\nname = 'a'", "device a: the key memory is missing"),
        ("[[device]]\nname = 'a'\nmemory = '1 G'", "memory: size '1 G'"),
        ("[[device]]\nname = 'a'\nmemory = '24'", "memory: 24 means 24 bytes; write 24GiB"),
        ("[[device]]\nname = 'a'\nmemory = 12", "memory is '12', not a size as in '24 GiB'"),
        ("[[device]]\nname = 'a'\nmemory = '1 GiB'\nyear = 'now'", "year is 'now', not a positive"),
        ("[[device]]\nname = 'a'\nmemory = '1 GiB'\ncolor = 1", "unknown key 'color'"),
        ("[[device]]\nname = 'a'\nmemory = '1 GiB'\nkind = 'tpu'", "kind 'tpu'; choose one"),
        (
            "[[device]]\nname = 'a'\nmemory = '1 GiB'\ncpu = 'z80'",
            "cpu 'z80'; choose one of avx512",
        ),
        ("[[device]]\nname = 'a'\nmemory = '1 GiB'\ncpu = 64", "cpu '64'; choose one of avx512"),
        (OWN + OWN, "device Mine is defined twice"),
    ],
)
def test_an_invalid_device_file_is_reported(text: str, fault: str) -> None:
    with pytest.raises(DeviceError, match=fault):
        read_devices(text, "own")


def test_a_missing_device_file_is_a_usage_error(capsys: Capture) -> None:
    assert main(["devices", "--devices", "absent.toml"]) == 2
    assert "absent.toml: cannot be read as a file of devices" in capsys.readouterr().err


def test_boards_phones_and_apple_chips_are_arm64_and_cards_have_no_cpu() -> None:
    arm = ("Raspberry Pi", "Jetson", "Apple", "iPhone", "Android")
    for device in catalog().devices:
        assert device.cpu == ("arm64" if device.name.startswith(arm) else None)


# The command.


def test_the_list_of_devices_fits_100_columns(capsys: Capture) -> None:
    assert main(["devices"]) == 0
    reported = capsys.readouterr().out
    assert reported.count("\n") > 60
    assert all(len(line) <= 100 for line in reported.splitlines())


def test_a_column_of_the_list_has_one_unit(capsys: Capture) -> None:
    assert main(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (known,) = (line.split() for line in lines if line.startswith("T4 "))
    # A T4 has 16 GiB, of which CUDA reports 14.6, and 320 GB/s, 8.1 and 65 TFLOP/s.
    assert known[1:6] == ["16.00", "14.56", "320.0", "8.10", "65.00"]
    (small,) = (line.split() for line in lines if line.startswith("STM32H743 "))
    assert small[1:] == ["1,024", "2,048", "2017"]
    names = {device.name for device in catalog().devices}
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in names)
    assert not [line for line in lines if re.search(r"\d ([KMG]iB|[MGTP] )", line)]


def test_one_device_with_its_sources(capsys: Capture) -> None:
    assert main(["devices", "t4", "Titan RTX", "stm32h7", "jetson nano"]) == 0
    assert_golden(capsys.readouterr().out, "devices.txt")


def test_devices_in_json(capsys: Capture) -> None:
    assert main(["devices", "k80", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == ("onnxmem.devices", "1.0")
    (device,) = document["devices"]
    assert device["memory_bytes"] == 12 * 2**30
    assert device["limit_bytes"] == device["usable_bytes"] == 11_441 * 2**20
    assert (device["price_usd"], device["cpu"]) == (None, None)
    assert main(["devices", "raspberry pi 5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"][0]["cpu"] == "arm64"


def test_bounds_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    name = write_model(tmp_path / "net.onnx")
    flags = ["devices", "--model", name, "--batch", "64", "T4", "raspberry pi 5", "stm32h743"]
    assert main(flags) == 0
    assert_golden(capsys.readouterr().out, "devices_bounds.txt")
    assert main([*flags, "--train", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["work"]["peak"] == "fp32"
    assert document["devices"][2]["bound"]["seconds"] is None
