"""Devices: memory, bandwidth and peak FLOPs, each with its source.

``devices.toml`` has the built-in devices; a user's own file is read and checked the same way.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import Any, Final

from onnxmem.errors import UsageError, shortened
from onnxmem.files import parsed_toml, read_text, reason_of
from onnxmem.measuring.machine import gpu_memory, host_memory
from onnxmem.settings import CPUS, NATIVE
from onnxmem.units import parse_size

KINDS: Final = ("cuda", "gpu", "cpu", "mcu")
"""An NVIDIA GPU, another GPU, the RAM of a machine, a microcontroller."""
_SIZES: Final = {
    "memory": "memory_bytes",
    "usable": "usable_bytes",
    "flash": "flash_bytes",
    "bandwidth": "bandwidth_bytes",
}
_RATES: Final = {"fp32_tflops": "fp32_flops", "fp16_tflops": "fp16_flops"}
_COUNTS: Final = {name: name for name in ("multiprocessors", "year", "price_usd")}
_CAPABILITY: Final = "compute_capability"
_FIGURES: Final = _SIZES | _RATES | _COUNTS
"""Key of a figure in a file -> field of ``Device``."""
_OTHERS: Final = frozenset(
    {"name", "aliases", "kind", "shares_memory", "cpu", _CAPABILITY, "source", "sources"}
)
_MULTIPROCESSOR_THREADS: Final = {
    **dict.fromkeys(("3.5", "3.7", "5.0", "5.2", "5.3", "6.0", "6.1", "6.2"), 2048),
    **dict.fromkeys(("7.0", "7.2", "8.0", "9.0", "10.0", "10.3"), 2048),
    **dict.fromkeys(("8.6", "8.7", "8.9", "11.0", "12.0", "12.1"), 1536),
    "7.5": 1024,
}
"""Threads that a multiprocessor runs at once, by compute capability: "Maximum number of resident
threads per SM" of the CUDA Programming Guide, appendix Compute Capabilities
(https://docs.nvidia.com/cuda/cuda-programming-guide/05-appendices/compute-capabilities.html)."""
_VENDORS: Final = frozenset({"nvidia", "geforce", "tesla", "amd", "apple", "intel"})
"""Words that may be left out of a name, as in ``NVIDIA A100``."""
_CPUS: Final = tuple(cpu for cpu in CPUS if cpu != NATIVE)
_NEAR: Final = 5
_NO_NAMES: Final = frozenset(
    "this here mine my me own local localhost host current default machine thismachine mymachine "
    "computer pc laptop gpu mygpu thisgpu gpu0 cuda cuda0 cpu all any every each which best "
    "cheapest smallest available".split()
)
_NO_NAME: Final = (
    "--device auto is this machine, and onnxmem fit MODEL --which-device ranks all devices"
)
_MEMORIES: Final = re.compile(r"(ram|flash)=([^,]+),(ram|flash)=([^,]+)", re.IGNORECASE)
"""A microcontroller by its sizes: ``ram=512KiB,flash=2MiB``."""
AS_GIVEN: Final = "as given"
"""The source of a size on the command line."""
_UNNAMED: Final = "the user's own file"


class DeviceError(UsageError):
    """An unknown device, or an invalid file of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device; FLOPs and bandwidth are peaks per second, ``None`` is unknown."""

    name: str
    kind: str
    memory_bytes: int
    """The size that it is sold with."""
    aliases: tuple[str, ...] = ()
    usable_bytes: int | None = None
    """What the driver or the system leaves to programs; on CUDA the total that it reports."""
    flash_bytes: int | None = None
    """Flash of a microcontroller, which stores the weights."""
    shares_memory: bool = False
    """Whether the system and other programs use the same memory."""
    cpu: str | None = None
    """The CPU by its name in ``--cpu``; ``None``: unknown."""
    compute_capability: str | None = None
    """Of an NVIDIA GPU: ``9.0``."""
    multiprocessors: int | None = None
    """Of an NVIDIA GPU."""
    bandwidth_bytes: int | None = None
    """Bytes per second of its memory."""
    fp32_flops: int | None = None
    """FLOPs per second without tensor cores."""
    fp16_flops: int | None = None
    """FLOPs per second of dense matrix products, with tensor cores if it has any."""
    year: int | None = None
    price_usd: int | None = None
    """At launch, if a source gives it."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The source of each known figure, by the name of its field."""

    @property
    def limit_bytes(self) -> int:
        """The memory that figures are compared with: what is usable if known, else all."""
        return self.memory_bytes if self.usable_bytes is None else self.usable_bytes

    @property
    def gpu_threads(self) -> int | None:
        """The threads that an NVIDIA GPU runs at once; ``None``: unknown."""
        each = _MULTIPROCESSOR_THREADS.get(self.compute_capability or "")
        return None if each is None or self.multiprocessors is None else self.multiprocessors * each

    @property
    def gflops_per_usd(self) -> float | None:
        """10^9 float32 FLOPs per second and dollar; ``None`` without a price."""
        if self.fp32_flops is None or not self.price_usd:
            return None
        return self.fp32_flops / 1e9 / self.price_usd

    @property
    def bytes_per_usd(self) -> int | None:
        """Bytes of memory per dollar; ``None`` without a price."""
        return self.memory_bytes // self.price_usd if self.price_usd else None


@dataclass(frozen=True, slots=True)
class Catalog:
    """Devices in order, found by name or alias."""

    devices: tuple[Device, ...]

    def find(self, name: str) -> Device:
        """The device of a name or alias; case, spaces, hyphens and the vendor are ignored.

        :raises DeviceError: no device has that name; the message lists the nearest names.
        """
        device = self.get(name)
        if device is not None:
            return device
        names = dict.fromkeys(self._by_key()[key].name for key in self._near(_key(name)))
        hint = f"did you mean {', '.join(names)}?" if names else "onnxmem devices lists all"
        message = f"unknown device {shortened(name)!r}; {hint}"
        raise DeviceError(message)

    def _near(self, wanted: str) -> list[str]:
        """Keys that have all of a name, the shortest first; else the most similar."""
        having = sorted((key for key in self._by_key() if wanted in key), key=len) if wanted else []
        return having[:_NEAR] or get_close_matches(wanted, self._by_key(), n=_NEAR, cutoff=0.5)

    def get(self, name: str) -> Device | None:
        """The same, but ``None`` if there is none."""
        return self._by_key().get(_key(name))

    def device_or_size(self, text: str) -> Device | int:
        """The device of a name, or a size in bytes; a number without a unit is not a size.

        ``ram=512KiB,flash=2MiB`` is a microcontroller.

        :raises DeviceError: it is none of these.
        """
        if text.lower().startswith(("ram=", "flash=")):
            return _microcontroller(text)
        try:
            return self.find(text)
        except DeviceError as unknown:
            try:
                # A number without a unit, such as 3099, is more likely a device than a size.
                if not text.strip().isdigit():
                    return parse_size(text)
            except UsageError:
                pass
            message = f"{unknown}; a size such as 24GiB is also accepted"
            if _key(text) in _NO_NAMES:
                message = f"unknown device {shortened(text)!r}; {_NO_NAME}"
            raise DeviceError(message) from unknown

    def this_machine(self, *, is_gpu: bool | None = None) -> tuple[Device, str]:
        """The GPU of this machine if it has one, else the host, with what is free now as usable.

        ``is_gpu`` requests one of them. A GPU of the catalog has its bandwidth and peaks. The
        second result says where the free memory is from.

        :raises DeviceError: the free memory is not known.
        """
        found = None if is_gpu is False else gpu_memory()
        if found is None and not is_gpu:
            found = host_memory()
        if found is None:
            what = "no GPU is found (pip install nvidia-ml-py)" if is_gpu else "it is not known"
            message = f"free memory of this machine: {what}; name a size, as in 16GiB"
            raise DeviceError(message)
        known = self.get(found.name) if found.is_gpu else None
        base = known or Device(
            name=found.name, kind="cuda" if found.is_gpu else "cpu", memory_bytes=found.total_bytes
        )
        source = {"memory_bytes": found.source, "usable_bytes": found.source}
        if found.compute_capability is not None:
            source["compute_capability"] = found.source
        device = replace(
            base,
            memory_bytes=found.total_bytes,
            usable_bytes=found.free_bytes,
            compute_capability=found.compute_capability,
            sources={**base.sources, **source},
        )
        return device, found.source

    def with_own(self, path: str) -> "Catalog":
        """Add a user's devices, which come first and replace built-in ones of the same name.

        :raises DeviceError: the file cannot be read, or is invalid.
        """
        try:
            text = read_text(path)
        except (OSError, ValueError) as fault:
            reason = reason_of(fault)
            message = f"{shortened(path)}: cannot be read as a file of devices: {reason}"
            raise DeviceError(message) from fault
        own = read_devices(text, shortened(path))
        taken = {_key(device.name) for device in own}
        others = (device for device in self.devices if _key(device.name) not in taken)
        return Catalog((*own, *others))

    def without_cpus(self) -> "Catalog":
        """The same devices without their CPUs, for a request that sets the CPU itself."""
        return Catalog(tuple(replace(device, cpu=None) for device in self.devices))

    def _by_key(self) -> dict[str, Device]:
        """Devices by key; a name wins over an alias, and an earlier device over a later one."""
        named = {_key(device.name): device for device in reversed(self.devices)}
        aliases = {
            _key(alias): device for device in reversed(self.devices) for alias in device.aliases
        }
        return {**aliases, **named}


def _microcontroller(text: str) -> Device:
    """A microcontroller by its sizes.

    :raises DeviceError: one of the two is missing.
    :raises UsageError: one is not a size.
    """
    found = _MEMORIES.fullmatch(text)
    sizes = {} if found is None else {found[1].lower(): found[2], found[3].lower(): found[4]}
    if len(sizes) < 2:  # noqa: PLR2004 - RAM and flash
        message = f"{shortened(text)!r}: give both sizes, as in ram=512KiB,flash=2MiB"
        raise DeviceError(message)
    return Device(
        name=text,
        kind="mcu",
        memory_bytes=parse_size(sizes["ram"]),
        flash_bytes=parse_size(sizes["flash"]),
        sources=dict.fromkeys(("memory_bytes", "flash_bytes"), AS_GIVEN),
    )


def catalog(own: str | None = None) -> Catalog:
    """The built-in devices, and those of a user's own file.

    :raises DeviceError: the user's file cannot be read, or is invalid.
    """
    return _shipped() if own is None else _shipped().with_own(own)


@cache
def _shipped() -> Catalog:
    """The built-in devices. A page asks for them at each batch, and to read them takes 30 ms."""
    text = (files("onnxmem.decisions") / "devices.toml").read_text(encoding="utf-8")
    return Catalog(read_devices(text, "devices.toml"))


def read_devices(text: str, file: str) -> tuple[Device, ...]:
    """Read the text of a file of devices; ``file`` is its name in messages.

    :raises DeviceError: it is not TOML, or a device is invalid.
    """
    try:
        document = parsed_toml(text)
    except ValueError as fault:
        message = f"{file}: is not TOML: {fault}"
        raise DeviceError(message) from fault
    entries, sources = document.get("device"), document.get("sources", {})
    if not isinstance(entries, list) or not isinstance(sources, dict) or not entries:
        message = f"{file}: has no [[device]] table"
        raise DeviceError(message)
    devices = tuple(_device(entry, sources, file) for entry in entries)
    _refuse_twice((device.name for device in devices), file)
    return devices


def _device(entry: object, sources: Mapping[str, Any], file: str) -> Device:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        message = f"{file}: a [[device]] has no name"
        raise DeviceError(message)
    where = f"{file}: device {shortened(entry['name'])}"
    unknown = sorted(entry.keys() - _FIGURES.keys() - _OTHERS)
    if unknown:
        known = ", ".join(sorted(_FIGURES.keys() | _OTHERS))
        message = f"{where}: unknown key {shortened(unknown[0])!r}; the keys are {known}"
        raise DeviceError(message)
    kind = _one_of(KINDS, "kind", entry.get("kind", "cuda"), where)
    # Whole numbers above 0 are most of a file, and each command with a device reads all of it.
    figures = {
        name: given
        if key in _COUNTS and type(given := entry[key]) is int and given > 0
        else _figure(key, entry[key], where)
        for key, name in _FIGURES.items()
        if key in entry
    }
    if "memory_bytes" not in figures:
        message = f"{where}: the key memory is missing"
        raise DeviceError(message)
    return Device(
        name=entry["name"],
        kind=kind,
        aliases=tuple(map(str, entry.get("aliases", ()))),
        shares_memory=bool(entry.get("shares_memory", False)),
        cpu=_one_of(_CPUS, "cpu", entry["cpu"], where) if "cpu" in entry else None,
        compute_capability=_capability(entry, where),
        sources=dict(_sources(entry, sources)),
        **figures,
    )


def _one_of(names: tuple[str, ...], key: str, value: object, where: str) -> str:
    """A value that must be one of some names."""
    if isinstance(value, str) and value in names:
        return value
    message = f"{where}: unknown {key} {shortened(str(value))!r}; choose one of {', '.join(names)}"
    raise DeviceError(message)


def _capability(entry: Mapping[str, Any], where: str) -> str | None:
    value = entry.get(_CAPABILITY)
    if value is None or (isinstance(value, str) and re.fullmatch(r"[0-9]+\.[0-9]+", value)):
        return value
    message = f"{where}: {_CAPABILITY} is {shortened(str(value))!r}, not a version as in '9.0'"
    raise DeviceError(message)


def _figure(key: str, value: object, where: str) -> int:
    """A figure in bytes, FLOPs per second, years or dollars."""
    if key in _SIZES and isinstance(value, str):
        try:
            return parse_size(value)
        except UsageError as fault:
            message = f"{where}: {key}: {fault}"
            raise DeviceError(message) from fault
    if key not in _SIZES and isinstance(value, int | float) and value > 0:
        return round(value * 10**12) if key in _RATES else int(value)
    message = f"{where}: {key} is {shortened(str(value))!r}, not a {_example(key)}"
    raise DeviceError(message)


def _example(key: str) -> str:
    return "size as in '24 GiB'" if key in _SIZES else "positive number"


def _sources(entry: Mapping[str, Any], sources: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    own = entry.get("sources", {})
    for key, name in {**_FIGURES, _CAPABILITY: _CAPABILITY}.items():
        if key in entry:
            # Of the figure itself, else of the device; either may name an entry of the file's
            # sources.
            source = str(own.get(key, entry.get("source", _UNNAMED)))
            yield name, str(sources.get(source, source))


def _refuse_twice(names: Iterable[str], file: str) -> None:
    seen: set[str] = set()
    for name in names:
        if _key(name) in seen:
            message = f"{file}: device {shortened(name)} is defined twice"
            raise DeviceError(message)
        seen.add(_key(name))


def _key(name: str) -> str:
    """A name as it is compared: lower case, no punctuation, no vendor."""
    # A plus tells two devices apart, other signs and the vendor do not.
    words = re.findall(r"[^\W_]+|\+", name.lower())
    rest = [word for word in words if word not in _VENDORS]
    return "".join(rest or words)
