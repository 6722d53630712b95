"""Devices: a table, their details with sources, bounds on a model's time, a ranking for a model."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Final

from onnxmem.analysis.fitting.verdicts import BASES, Verdict
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Device
from onnxmem.decisions.fit import Ranked
from onnxmem.decisions.roofline import Bound, Work
from onnxmem.errors import printable, shortened
from onnxmem.report.text import fact, figure, prose
from onnxmem.report.verdict import fits_row
from onnxmem.units import format_bytes, format_count, plural

_UNKNOWN: Final = "-"
_UNFIT_SHOWN: Final = 3
"""Of the devices that are too small, the largest."""
_FIT_SHOWN: Final = 20
_ROOFLINE: Final = (
    "no run is faster that fuses nothing and computes at the device's peaks; real ones are slower"
)
_SCALES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def seconds_text(seconds: float | None) -> str:
    """Write a time with three digits: ``12.3 ms``; ``-`` where it is unknown."""
    if seconds is None:
        return _UNKNOWN
    for scale, unit in _SCALES:
        if seconds >= scale:
            return (
                f"{seconds / scale:.3g} {unit}" if seconds < 1000 * scale else f"{seconds:,.0f} s"
            )
    return f"{seconds * 1e9:.3g} ns"


def render_devices(devices: Iterable[Device]) -> str:
    """A line for each device; ends with a newline."""
    head = (
        f"{'DEVICE':<24}{'MEMORY':>10}{'USABLE':>10}{'BYTES/S':>9}{'FP32/S':>8}{'FP16/S':>8}{'YEAR':>6}"
        f"{'USD':>6}{'GFLOPS/USD':>11}{'MIB/USD':>8}"
    )
    lines = [head, *(_device_line(device) for device in devices), ""]
    lines += prose(
        "", "USABLE is what a program can have of MEMORY, where a source says. Rates are"
    )
    lines += prose("", "peaks, a second; fp16 dense, with tensor cores where there are any. USD is")
    lines += prose(
        "", "the launch price where a source gives one; -: unknown. Each figure's source:"
    )
    lines += prose("", "onnxmem devices NAME. A file of your own: --devices FILE.")
    return "\n".join(lines) + "\n"


def render_details(devices: Iterable[Device]) -> str:
    """Every figure of each device, with its source; ends with a newline."""
    return "\n".join("\n".join(_details(device)) + "\n" for device in devices)


def render_bounds(
    request: AnalysisRequest, batch: int | None, work: Work, bounds: Iterable[tuple[Device, Bound]]
) -> str:
    """The least time on each device, the fastest first; ends with a newline."""
    what = "a training step" if request.settings.train else "a run"
    at = "" if batch is None else f" at batch {batch:,}"
    lines = [f"{shortened(request.model.path)}  {what}{at}", "", *_work_lines(work), ""]
    lines.append(f"{'DEVICE':<26}{'BOUND':>12}{'COMPUTE':>12}{'MEMORY':>12}   LIMITED BY")
    unbounded = 0
    ordered = sorted(bounds, key=lambda each: each[1].seconds or float("inf"))
    for device, bound in ordered:
        if bound.seconds is None:
            unbounded += 1
            continue
        sides = (bound.seconds, bound.compute_seconds, bound.memory_seconds)
        times = "".join(f"{seconds_text(side):>12}" for side in sides)
        lines.append(f"{shortened(device.name):<26}{times}   {bound.limited_by or 'unknown'}")
    lines += ["", *prose("BOUND, by the roofline: ", _ROOFLINE)]
    if unbounded:
        lines.append(f"{plural(unbounded, 'device')} of unknown peaks left out")
    return "\n".join(lines) + "\n"


def render_ranking(ranked: Sequence[Ranked], requests: Sequence[AnalysisRequest]) -> str:
    """The devices that fit, the smallest first, and the largest that do not."""
    lines = ["  ".join(shortened(request.model.path) for request in requests), ""]
    lines += [_taken_line(each) for each in {(x.basis, x.cpu): x for x in ranked}.values()]
    fitting = [each for each in ranked if each.verdict is Verdict.FITS]
    tight = [each for each in ranked if each.verdict is Verdict.TIGHT]
    others = [each for each in ranked if not each.verdict.is_met]
    lines += ["", f"{'FITS':<26}{'MEMORY':>10}{'LEFT':>10}{'BOUND':>11}{'USD':>8}   COMPARED WITH"]
    lines += _first(fitting) or ["none"]
    if tight:
        lines += ["", "Tight: runs by retries alone, or within what is assumed or the error"]
        lines += _first(tight)
    if others:
        unknown = any(each.verdict is Verdict.UNKNOWN for each in others)
        lines += ["", "Unknown or too small" if unknown else "Too small, the largest of them"]
        nearest = sorted(others, key=lambda each: -each.margin_bytes)
        lines += [_ranked_line(each) for each in nearest[:_UNFIT_SHOWN]]
        if len(others) > _UNFIT_SHOWN:
            lines.append(f"{len(others) - _UNFIT_SHOWN:,} more")
    return "\n".join([*lines, "", *prose("BOUND, by the roofline: ", _ROOFLINE)]) + "\n"


def _first(ranked: Sequence[Ranked]) -> list[str]:
    """The smallest devices, and how many there are beyond."""
    lines = [_ranked_line(each) for each in ranked[:_FIT_SHOWN]]
    more = len(ranked) - len(lines)
    return [*lines, f"{more:,} more, larger"] if more else lines


def device_row(device: Device) -> JsonDict:
    """A device in JSON; every figure, null where it is unknown."""
    row: JsonDict = {field.name: getattr(device, field.name) for field in fields(Device)}
    return row | {
        "name": printable(device.name),
        "aliases": [printable(alias) for alias in device.aliases],
        "limit_bytes": device.limit_bytes,
        "gflops_per_usd": device.gflops_per_usd,
        "bytes_per_usd": device.bytes_per_usd,
        "sources": {name: printable(source) for name, source in device.sources.items()},
    }


def work_row(work: Work) -> JsonDict:
    """Arithmetic and memory traffic, in JSON."""
    return {
        "flops": work.flops,
        "bytes_moved": work.bytes_moved,
        "flops_per_byte": work.flops_per_byte,
        "peak": "fp16" if work.is_half else "fp32",
        "status": "ok" if work.is_whole else "partial",
    }


def ranking_rows(ranked: Iterable[Ranked]) -> list[JsonDict]:
    """A ranking in JSON."""
    return [
        {
            "name": printable(each.device.name),
            "fits": fits_row(each.verdict),
            "verdict": each.verdict.value,
            "basis": each.basis.value,
            "cpu": each.cpu,
            "bytes": each.num_bytes,
            "limit_bytes": each.limit_bytes,
            "margin_bytes": each.margin_bytes,
            "bound_seconds": each.bound.seconds,
            "limited_by": each.bound.limited_by,
            "price_usd": each.device.price_usd,
        }
        for each in ranked
    ]


def _device_line(device: Device) -> str:
    money = device.gflops_per_usd
    memory = None if device.bytes_per_usd is None else device.bytes_per_usd / 2**20
    usable = _UNKNOWN if device.usable_bytes is None else format_bytes(device.usable_bytes)
    return (
        f"{shortened(device.name):<24}{format_bytes(device.memory_bytes):>10}{usable:>10}"
        f"{_rate(device.bandwidth_bytes):>9}{_rate(device.fp32_flops):>8}"
        f"{_rate(device.fp16_flops):>8}{device.year or _UNKNOWN:>6}"
        f"{device.price_usd or _UNKNOWN:>6}{_ratio(money):>11}{_ratio(memory):>8}"
    )


def _rate(rate: int | None) -> str:
    return _UNKNOWN if rate is None else format_count(rate)


def _ratio(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{ratio:.3g}"


def _details(device: Device) -> Iterator[str]:
    also = f", also {', '.join(map(shortened, device.aliases))}" if device.aliases else ""
    shared = ", memory shared with the system" if device.shares_memory else ""
    cpu = "" if device.cpu is None else f", CPU {device.cpu}"
    yield f"{shortened(device.name)}  {device.kind}{cpu}{shared}{also}"
    for name, unit in (
        ("memory_bytes", ""),
        ("usable_bytes", ""),
        ("flash_bytes", ""),
        ("bandwidth_bytes", "B/s"),
        ("fp32_flops", "FLOP/s"),
        ("fp16_flops", "FLOP/s"),
        ("year", ""),
        ("price_usd", "USD"),
    ):
        number: int | None = getattr(device, name)
        if number is None:
            continue
        label = f"  {name.partition('_')[0]}"
        if unit or name == "year":
            shown = f"{format_count(number)}{unit}" if "/s" in unit else f"{number} {unit}"
            columns = f"{label:<14}{shown.strip():>16}   "
        else:
            columns = f"{label:<14}{format_bytes(number):>16}   "
        yield from prose(columns, shortened(device.sources.get(name, "")))


def _work_lines(work: Work) -> Iterator[str]:
    bound = "" if work.is_whole else "; lower bounds: something is left out"
    flops = "unknown" if work.flops is None else f"{format_count(work.flops)}FLOPs"
    yield fact("arithmetic", f"{flops} at the {'fp16' if work.is_half else 'fp32'} peak{bound}")
    yield figure("bytes moved", work.bytes_moved, "all read once, activations written once too")
    if work.flops_per_byte is not None:
        yield fact("intensity", f"{work.flops_per_byte:.3g} FLOPs a byte")


def _taken_line(each: Ranked) -> str:
    return figure(f"Compared ({_compared(each)})", each.num_bytes, BASES[each.basis])


def _compared(each: Ranked) -> str:
    """The figure that is compared, and the device's CPU where it depends on that."""
    return each.basis if each.cpu is None else f"{each.basis}, {each.cpu}"


def _ranked_line(each: Ranked) -> str:
    return (
        f"{shortened(each.device.name):<26}{format_bytes(each.limit_bytes):>10}"
        f"{format_bytes(each.margin_bytes):>10}{seconds_text(each.bound.seconds):>11}"
        f"{each.device.price_usd or _UNKNOWN:>8}   {_compared(each)}"
    )
