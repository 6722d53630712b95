"""Devices: a table, their details with sources, bounds on a model's time, a ranking for a model."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.verdicts import BASES, Doubt, Verdict
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Device
from onnxmem.decisions.fit import Ranked
from onnxmem.decisions.offers import Choice, Offer
from onnxmem.decisions.prices import Prices
from onnxmem.decisions.roofline import Bound, Work
from onnxmem.errors import printable, shortened
from onnxmem.report.fit import assumptions
from onnxmem.report.text import aligned, fact, laid_out, prose, rounded
from onnxmem.report.verdict import doubt_line, until_text
from onnxmem.settings import RANKS
from onnxmem.units import common_power, format_bytes, format_count, in_unit, plural

_UNKNOWN: Final = "-"
_UNRANKED: Final = MappingProxyType(
    {"bandwidth": "bandwidth", "samples-per-dollar": "price or time"}
)
"""What those lack that an order cannot rank; a price, where none is named."""
_UNFIT_SHOWN: Final = 3
"""Of the devices that are too small, the largest."""
_FIT_SHOWN: Final = 20
_UNKNOWN_HEAD: Final = "Unknown, LEFT at most"
_SMALL_HEAD: Final = "Too small, the largest of them"
_ROOFLINE: Final = (
    "no run is faster that fuses nothing and computes at the device's peaks; real ones are slower"
)
_SOURCES_SHOWN: Final = 5
_LABEL: Final = 26
_TIGHT: Final = "Tight: runs only by retries of the allocator, or less is free than the error"
_MANY: Final = 1000
"""Samples from which four digits have no decimals."""
_ONLY_IN_ORDER: Final = frozenset({"memory", "price"})
"""Orders whose value is in a column anyway."""
_LAUNCH_PRICES: Final = (
    "launch prices, where the catalog has a source for one; what you pay: --prices FILE"
)
_VALUE_HEADS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "bandwidth": "BANDWIDTH",
        "memory-per-dollar": "MEMORY/PRICE",
        "samples-per-dollar": "SAMPLES/PRICE",
    }
)
_HEADINGS: Final = (
    *("DEVICE", "GIB", "USABLE", "GB/S", "FP32", "FP16", "YEAR", "USD"),
    *("GFLOPS/USD", "MIB/USD"),
)
_SPARE: Final = ("YEAR", "GFLOPS/USD", "MIB/USD", "USABLE", "FP16")
_OF_DEVICES: Final = (
    "GIB is the memory, USABLE what of it a program can have, where a source says. Rates are",
    "peaks: GB/S of the memory, FP32 and FP16 in TFLOP/s, FP16 dense, with tensor cores where",
    "there are any. USD is the launch price where a source gives one; -: unknown.",
)
_SMALL_HEADINGS: Final = ("MICROCONTROLLER", "RAM KIB", "FLASH KIB", "YEAR")
_MICROCONTROLLER: Final = "mcu"
_NUM_TEXTS: Final = 2
_SPARE_OF_RANKING: Final = ("MEMORY", "BOUND")
_SCALES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_LEAST: Final = 0.1
"""Of a unit of time: what has two digits where it is written with two decimals."""


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
    """A line for each device, microcontrollers in a table of their own; ends with a newline."""
    others, small = list[Device](), list[Device]()
    for device in devices:
        (small if device.kind == _MICROCONTROLLER else others).append(device)
    lines = list[str]()
    if others:
        lines += aligned([_HEADINGS, *map(_device_cells, others)], 1, _SPARE).splitlines()
        lines += ["", *prose("", " ".join(_OF_DEVICES))]
    if small:
        lines += ["", *aligned([_SMALL_HEADINGS, *map(_small_cells, small)], 1).splitlines()]
        lines += ["", *prose("", "The weights lie in flash: onnxmem fit MODEL --device NAME.")]
    lines += ["", *prose("", "Each figure's source: onnxmem devices NAME. A file of your own:")]
    lines += prose("", "--devices FILE.")
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
    # The fastest first; devices of unknown peaks are only counted.
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


def ranking_doubts(found: Iterable[Offer]) -> tuple[Doubt, ...]:
    """Why verdicts of a ranking are unknown, each reason once."""
    offers = (each.ranked for each in found if each.ranked.verdict is Verdict.UNKNOWN)
    doubts = (doubt for each in offers for doubt in each.assessment.doubts_at(each.limit_bytes))
    return tuple(dict.fromkeys(doubts))


def render_ranking(
    found: Sequence[Offer],
    choice: Choice,
    requests: Sequence[AnalysisRequest],
    setup: FitRequest,
    context: int | None = None,
) -> str:
    """The devices that fit, the best first, and the largest that do not.

    ``context`` is that of a decode step, which is what is compared.
    """
    binding = requests[0].results.bound.binding
    on_each = "" if choice.cards == (1,) else " on each card"
    step = () if context is None else ("a decode step without its prefill",)
    at = "no batch" if binding.batch is None else f"batch {binding.batch:,}{on_each}"
    lines = [
        "  ".join(shortened(request.model.path) for request in requests),
        *assumptions(requests, setup, binding.dims, [*step, at]),
        *_unknown(found, choice),
        *laid_out(doubt_line(doubt) for doubt in ranking_doubts(found)),
        "",
    ]
    # Devices with one basis, CPU and cuBLAS workspace take the same: one line for all of them.
    taken = {
        (x.ranked.basis, x.ranked.cpu or "", x.ranked.cublas_bytes or 0, x.cards): x for x in found
    }
    keys = sorted(taken) if choice.cards != (1,) else taken
    labels = [_taken_label(taken[key], choice) for key in keys]
    width = max(_LABEL, *(len(label) + 1 for label in labels))
    lines += [
        rounded(
            label,
            each.ranked.assessment.footprint.total_bytes,
            _taken_text(each.ranked),
            label_width=width,
        )
        for label, each in zip(labels, (taken[key] for key in keys), strict=True)
    ]
    lines += [*_per_card(found, choice, requests[0]), *_unranked(found, choice)]
    fitting = [each for each in found if each.ranked.verdict is Verdict.FITS]
    tight = [each for each in found if each.ranked.verdict is Verdict.TIGHT]
    unknown = [each for each in found if each.ranked.verdict is Verdict.UNKNOWN]
    small = [each for each in found if each.ranked.verdict is Verdict.OVER]
    names = ["FITS", "COMPARED WITH", "MEMORY", "LEFT", "BOUND", shortened(choice.prices.currency)]
    by = [] if choice.order in _ONLY_IN_ORDER else [_VALUE_HEADS[choice.order]]
    nearest = _nearest(unknown) or _nearest(small)
    met = [*_placed(fitting, choice), *_placed(tight, choice)]
    units = _Units.of(met or nearest, choice)
    rows = _first(fitting, choice, units) or [("none known" if unknown else "none",)]
    table: list[Sequence[str]] = [[*names, *by], *rows]
    if tight:
        table += [("",), (_TIGHT,), *_first(tight, choice, units)]
    for what, others in ((_UNKNOWN_HEAD, unknown), (_SMALL_HEAD, small)):
        if others:
            rows = [_offer_cells(each, choice, units) for each in _nearest(others)]
            table += [("",), (what,), *rows]
        if len(others) > _UNFIT_SHOWN:
            table.append((f"{len(others) - _UNFIT_SHOWN:,} more",))
    lines += ["", *aligned(table, _NUM_TEXTS, _SPARE_OF_RANKING).splitlines()]
    lines += ["", *prose("BOUND, by the roofline: ", _ROOFLINE), *_notes(found, choice)]
    return "\n".join(lines) + "\n"


def _nearest(found: Iterable[Offer]) -> list[Offer]:
    """Of devices without a verdict, or that are too small, those with the most memory left."""
    return sorted(found, key=lambda each: -each.ranked.margin_bytes)[:_UNFIT_SHOWN]


def _unknown(found: Sequence[Offer], choice: Choice) -> Iterator[str]:
    """On how many devices the verdict is unknown, and the flag that settles it."""
    num_unknown = sum(each.ranked.verdict is Verdict.UNKNOWN for each in found)
    if not num_unknown:
        return
    rows = "devices" if choice.cards == (1,) else "rows"
    of = (
        f"all {len(found):,}" if num_unknown == len(found) else f"{num_unknown:,} of {len(found):,}"
    )
    until = until_text(ranking_doubts(found))
    yield from prose(f"{'  verdict':<28}", f"unknown on {of} {rows}{until}")


def _per_card(found: Sequence[Offer], choice: Choice, request: AnalysisRequest) -> Iterator[str]:
    """That the batch is of each card, and what several cards save of the memory of each."""
    batch, recipe = request.results.bound.binding.batch, request.settings.recipe
    first = next((each for each in found if each.cards > 1), None)
    if first is None or batch is None:
        return
    # Only cards of one basis are compared: what other devices take is another figure.
    same = (first.ranked.basis, first.ranked.cublas_bytes)
    rows = {x.cards: x.ranked for x in found if (x.ranked.basis, x.ranked.cublas_bytes) == same}
    one = rows.get(min(choice.cards))
    shard = "ddp" if recipe.shard == "none" else recipe.shard
    how = f" ({shard})" if request.settings.train else ""
    yield ""
    for cards in sorted(rows):
        if cards == 1:
            continue
        each = rows[cards].assessment.footprint.total_bytes
        text = f"{cards:,}{how}: a batch of {batch:,} on each, {cards * batch:,} samples in all; "
        text += f"each takes {format_bytes(each)}"
        if one is not None and one is not rows[cards]:
            text += _against(each, one.assessment.footprint.total_bytes, min(choice.cards))
        yield from prose("Cards  ", text)


def _against(num_bytes: int, base_bytes: int, base: int) -> str:
    """What a card takes beside one of fewer cards: ``, 489 MiB less than 1 card does``."""
    than = f"{plural(base, 'card')} {'does' if base == 1 else 'do'}"
    if num_bytes == base_bytes:
        return f", as much as {than}"
    word = "less" if num_bytes < base_bytes else "more"
    return f", {format_bytes(abs(num_bytes - base_bytes))} {word} than {than}"


def _unranked(found: Sequence[Offer], choice: Choice) -> list[str]:
    """How many of those that fit have nothing to be ranked by: the first of the table is of few."""
    met = [each for each in found if each.ranked.verdict.is_met]
    ranked = [each for each in met if each.value is not None]
    if choice.order == RANKS[0] or len(ranked) == len(met):
        return []
    hint = "; add what you pay with --prices FILE"
    if choice.order == "bandwidth":
        hint = ""
    elif choice.is_priced:
        hint = "; add theirs to the file of --prices"
    unknown = _UNRANKED.get(choice.order, "price")
    fit = "fit"
    if any(each.ranked.verdict is Verdict.TIGHT for each in met):
        fit = "fit or are tight"
    rest = len(met) - len(ranked)
    others = f"the other {rest:,} have no" if ranked else "none has a"
    count = f"{len(ranked):,}" if ranked else "none"
    text = f"{count} of {len(met):,} that {fit}: {others} known {unknown}{hint}"
    return ["", *prose("Ranked  ", text)]


def _placed(found: Sequence[Offer], choice: Choice) -> list[Offer]:
    """The first of those that the order can rank."""
    return [x for x in found if choice.order == RANKS[0] or x.value is not None][:_FIT_SHOWN]


def _first(found: Sequence[Offer], choice: Choice, units: "_Units") -> list[Sequence[str]]:
    """The first devices, and how many there are beyond."""
    is_by_memory = choice.order == RANKS[0]
    placed = [each for each in found if is_by_memory or each.value is not None]
    rows = [_offer_cells(each, choice, units) for each in _placed(found, choice)]
    counts = (
        (len(placed) - len(rows), "more, larger" if is_by_memory else "more"),
        (len(found) - len(placed), f"without a known {_UNRANKED.get(choice.order, 'price')}"),
    )
    return [*rows, *((f"{count:,} {what}",) for count, what in counts if count)]


def _notes(found: Sequence[Offer], choice: Choice) -> Iterator[str]:
    """What the ranking is by, and where its prices are from."""
    if choice.order == RANKS[0] and choice.cards == (1,) and not choice.is_priced:
        return
    unit, batch = choice.prices.unit, "of the requested batch on each card"
    if choice.order == "samples-per-dollar":
        what = "samples" if choice.prices.per == "hour" else "samples a second"
        yield from prose(
            "RANKED by ", f"{what} for one {choice.prices.currency}, by BOUND, {batch}"
        )
    elif choice.order != RANKS[0]:
        yield from prose("RANKED by ", choice.order.replace("-", " "))
    if choice.cards != (1,):
        text = (
            "each runs a batch of its own, memory is of one, price and samples are of all; "
            "communication between them is not counted"
        )
        yield from prose("CARDS: ", text)
    prices = [each.price for each in found if each.price is not None]
    if not choice.is_priced:
        yield from prose("PRICE: ", f"{unit}, {_LAUNCH_PRICES}")
        return
    num_devices = len({each.ranked.device.name for each in found})
    unpriced = len({each.ranked.device.name for each in found if each.price is None})
    dates = sorted({each.date for each in prices if each.date is not None})
    span = f"of {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else "no date"
    if dates and any(each.date is None for each in prices):
        span += ", some with no date"
    listed = f"the price list has {num_devices - unpriced:,} of {num_devices:,} devices"
    yield from prose("PRICE: ", f"{unit}, {span}; {listed}")
    for source in sorted({each.source for each in prices if each.source})[:_SOURCES_SHOWN]:
        yield from prose("  source: ", source)


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


def ranking_rows(found: Iterable[Offer], prices: Prices) -> list[JsonDict]:
    """A ranking in JSON."""
    return [
        {
            "name": printable(each.ranked.device.name),
            "cards": each.cards,
            "fits": each.ranked.verdict.fits,
            "verdict": each.ranked.verdict.value,
            "basis": each.ranked.basis.value,
            "cpu": each.ranked.cpu,
            "bytes": each.ranked.taken_bytes,
            **each.ranked.assessment.footprint.ends,
            "limit_bytes": each.ranked.limit_bytes,
            "margin_bytes": each.ranked.margin_bytes,
            "bound_seconds": each.ranked.bound.seconds,
            "limited_by": each.ranked.bound.limited_by,
            "price_usd": each.ranked.device.price_usd,
            "price": _price_row(each, prices),
            "value": each.value,
        }
        for each in found
    ]


def _price_row(offer: Offer, prices: Prices) -> JsonDict | None:
    """What all cards cost; null where no price is known."""
    if offer.price is None:
        return None
    return {
        "amount": offer.amount,
        "currency": prices.currency,
        "per": prices.per,
        "date": offer.price.date,
        "source": None if offer.price.source is None else printable(offer.price.source),
    }


def _device_cells(device: Device) -> tuple[str, ...]:
    money = device.gflops_per_usd
    memory = None if device.bytes_per_usd is None else device.bytes_per_usd / 2**20
    return (
        shortened(device.name),
        _in(device.memory_bytes, 2**30),
        _in(device.usable_bytes, 2**30),
        _in(device.bandwidth_bytes, 10**9, 1),
        _in(device.fp32_flops, 10**12),
        _in(device.fp16_flops, 10**12),
        str(device.year or _UNKNOWN),
        str(device.price_usd or _UNKNOWN),
        _ratio(money),
        _ratio(memory),
    )


def _small_cells(device: Device) -> tuple[str, ...]:
    sizes = (_in(each, 2**10, 0) for each in (device.memory_bytes, device.flash_bytes))
    return (shortened(device.name), *sizes, str(device.year or _UNKNOWN))


def _in(number: int | None, unit: int, decimals: int = 2) -> str:
    """A number in the unit of its column."""
    return _UNKNOWN if number is None else f"{number / unit:,.{decimals}f}"


def _ratio(ratio: float | None) -> str:
    return _UNKNOWN if ratio is None else f"{ratio:.3g}"


def _details(device: Device) -> Iterator[str]:
    also = f", also {', '.join(map(shortened, device.aliases))}" if device.aliases else ""
    shared = ", memory shared with the system" if device.shares_memory else ""
    cpu = "" if device.cpu is None else f", CPU {device.cpu}"
    yield from prose(f"{shortened(device.name)}  ", f"{device.kind}{cpu}{shared}{also}")
    capability = device.compute_capability
    if capability is not None:
        source = shortened(device.sources.get("compute_capability", ""))
        yield from prose(f"{'  capability':<18}{capability:>12}   ", source)
    for name, unit in (
        ("memory_bytes", ""),
        ("usable_bytes", ""),
        ("flash_bytes", ""),
        ("bandwidth_bytes", "B/s"),
        ("fp32_flops", "FLOP/s"),
        ("fp16_flops", "FLOP/s"),
        ("multiprocessors", ""),
        ("year", ""),
        ("price_usd", "USD"),
    ):
        number: int | None = getattr(device, name)
        if number is None:
            continue
        label = f"  {name.partition('_')[0]}"
        if unit or name in {"multiprocessors", "year"}:
            shown = f"{format_count(number)}{unit}" if "/s" in unit else f"{number} {unit}"
            columns = f"{label:<18}{shown.strip():>12}   "
        else:
            columns = f"{label:<18}{format_bytes(number):>12}   "
        yield from prose(columns, shortened(device.sources.get(name, "")))


def _work_lines(work: Work) -> Iterator[str]:
    bound = "" if work.is_whole else "; lower bounds: something is left out"
    flops = "unknown" if work.flops is None else f"{format_count(work.flops)}FLOPs"
    yield fact("arithmetic", f"{flops} at the {'fp16' if work.is_half else 'fp32'} peak{bound}")
    yield rounded("bytes moved", work.bytes_moved, "all read once, activations written once too")
    if work.flops_per_byte is not None:
        yield fact("intensity", f"{work.flops_per_byte:.3g} FLOPs a byte")


def _taken_text(ranked: Ranked) -> str:
    """What the compared figure is; where the data of a run decide, also the upper end."""
    footprint, text = ranked.assessment.footprint, BASES[ranked.basis]
    if footprint.is_whole:
        return text
    upper_bytes = footprint.upper_bytes
    most = "" if upper_bytes is None else f", at most {format_bytes(upper_bytes)}"
    return f"at least{most}; {text}"


def _taken_label(offer: Offer, choice: Choice) -> str:
    compared = _compared(offer.ranked)
    if offer.ranked.cublas_bytes is not None:
        compared += f", cuBLAS {format_bytes(offer.ranked.cublas_bytes)}"
    if choice.cards != (1,):
        compared += f", {plural(offer.cards, 'card')}"
    return f"Compared ({compared})"


def _compared(each: Ranked) -> str:
    """The figure that is compared, and the device's CPU where it depends on that."""
    return each.basis if each.cpu is None else f"{each.basis}, {each.cpu}"


@dataclass(frozen=True, slots=True)
class _Units:
    """The unit of each column, so that its values are compared at a glance."""

    memory: int
    """As a power of 1024; of what is left too."""
    value: int
    scale: float
    """Seconds of the unit of time."""

    @classmethod
    def of(cls, shown: Sequence[Offer], choice: Choice) -> "_Units":
        """Those of the offers that are compared: what fits, unless nothing does."""
        values = [each.value for each in shown if each.value is not None]
        is_size = choice.order == "memory-per-dollar"
        times = [each.ranked.bound.seconds for each in shown]
        return cls(
            common_power(each.ranked.limit_bytes for each in shown),
            common_power(round(value) for value in values) if is_size else 0,
            _common_scale(seconds for seconds in times if seconds is not None),
        )


def _common_scale(times: Iterable[float]) -> float:
    """The seconds of the largest unit in which each of the times has two digits."""
    least = min(times, default=1.0)
    return next((scale for scale, _ in _SCALES if least >= _LEAST * scale), _SCALES[-1][0])


def _time_text(seconds: float | None, scale: float) -> str:
    return _UNKNOWN if seconds is None else f"{seconds / scale:,.2f} {dict(_SCALES)[scale]}"


def _offer_cells(offer: Offer, choice: Choice, units: _Units) -> tuple[str, ...]:
    each = offer.ranked
    name = shortened(each.device.name)
    return (
        name if offer.cards == 1 else f"{offer.cards:,} x {name}",
        _compared(each),
        in_unit(each.limit_bytes, units.memory),
        in_unit(each.margin_bytes, units.memory),
        _time_text(each.bound.seconds, units.scale),
        _UNKNOWN if offer.amount is None else f"{offer.amount:.6g}",
        *(() if choice.order in _ONLY_IN_ORDER else (_value_text(offer, choice, units),)),
    )


def _value_text(offer: Offer, choice: Choice, units: _Units) -> str:
    if offer.value is None:
        return _UNKNOWN
    if choice.order == "bandwidth":
        return f"{offer.value / 1e9:,.4g} GB/s"
    if choice.order == "memory-per-dollar":
        return in_unit(round(offer.value), units.value)
    return f"{offer.value:,.0f}" if offer.value >= _MANY else f"{offer.value:.4g}"
