"""Which card to choose: devices by memory, price, bandwidth, memory or samples for the money.

Prices are a user's own, from a TOML file with their date and source; without one they are the
launch prices that the catalog has a source for. Nothing else is known of prices, and a device
without one is last. Several cards run a data-parallel step each, on a batch of its own: the memory
of one, the price and the samples of all. Communication between them is not counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Final

from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Catalog, Device
from onnxmem.decisions.fit import Ranked, rank
from onnxmem.decisions.roofline import samples_of
from onnxmem.errors import UsageError, shortened
from onnxmem.files import parsed_toml, read_text, reason_of
from onnxmem.settings import RANKS

_ORDER: Final = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)
_SEVERAL: Final = frozenset({"cuda", "gpu"})
"""Kinds of devices of which a machine has several."""
_PER: Final = ("card", "hour")
_SECONDS_PER_HOUR: Final = 3600
_KEYS: Final = frozenset({"currency", "per", "date", "source", "price"})
_OWN_KEYS: Final = frozenset({"device", "amount", "date", "source"})
_LAUNCH: Final = "at launch"


class PriceError(UsageError):
    """A file of prices that cannot be read, or makes no sense."""


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one card."""

    amount: float
    date: str
    """When it was asked for; ``at launch`` of the catalog's own."""
    source: str


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices by the name of the device, all in one currency and for the same thing."""

    currency: str
    per: str
    """``card``: to buy one; ``hour``: to rent one."""
    by_device: Mapping[str, Price]

    @property
    def unit(self) -> str:
        """``USD`` or ``USD per hour``."""
        return self.currency if self.per == "card" else f"{self.currency} per hour"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A number of cards of one device, what they cost, and what they are ranked by."""

    ranked: Ranked
    cards: int
    price: Price | None
    """Of one card."""
    value: float | None
    """What it is ranked by; ``None``: unknown, or ranked by memory."""

    @property
    def amount(self) -> float | None:
        """The price of all cards."""
        return None if self.price is None else self.cards * self.price.amount


def offers(
    requests: Sequence[AnalysisRequest],
    devices: Iterable[Device],
    setup: FitRequest,
    runtime: str | None,
    choice: "Choice",
) -> tuple[Offer, ...]:
    """Every device in every number of cards: what fits first, then the best by ``choice.order``.

    :raises OnnxmemError: a model cannot be analyzed.
    """
    devices = tuple(devices)
    found = [
        _offer(each, cards, requests[0], choice)
        for cards in choice.cards
        for each in rank(
            _on_cards(requests, cards),
            (device for device in devices if cards == 1 or device.kind in _SEVERAL),
            setup,
            runtime,
        )
    ]
    return tuple(sorted(found, key=lambda offer: _place(offer, choice.order)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What devices are ranked by, in which numbers, and at which prices."""

    prices: Prices
    order: str = "memory"
    """One of ``settings.RANKS``."""
    cards: tuple[int, ...] = (1,)
    is_priced: bool = False
    """Whether prices are the user's own."""

    def __post_init__(self) -> None:
        """Reject an unknown order.

        :raises UsageError: with those that are known.
        """
        if self.order not in RANKS:
            message = f"--rank {shortened(self.order)!r}: choose one of {', '.join(RANKS)}"
            raise UsageError(message)


def _on_cards(requests: Sequence[AnalysisRequest], cards: int) -> list[AnalysisRequest]:
    """The requests of one of several cards: a rank of a training, or the model itself.

    Several cards without a way of sharding are data parallel; one card shards nothing.
    """
    settings = requests[0].settings
    shard = settings.recipe.shard
    if not settings.train or (cards == 1 and shard == "none"):
        return list(requests)
    several = "ddp" if shard == "none" else shard
    recipe = replace(settings.recipe, world=cards, shard="none" if cards == 1 else several)
    return [
        replace(request, settings=replace(request.settings, recipe=recipe)) for request in requests
    ]


def _offer(ranked: Ranked, cards: int, request: AnalysisRequest, choice: Choice) -> Offer:
    price = choice.prices.by_device.get(ranked.device.name)
    offer = Offer(ranked=ranked, cards=cards, price=price, value=None)
    return replace(offer, value=_value(offer, samples_of(request), choice))


def _value(offer: Offer, samples: int, choice: Choice) -> float | None:
    device, amount, cards = offer.ranked.device, offer.amount, offer.cards
    if choice.order == "price":
        return amount
    if choice.order == "bandwidth":
        return None if device.bandwidth_bytes is None else cards * device.bandwidth_bytes
    if amount is None:
        return None
    if choice.order == "memory-per-dollar":
        return cards * device.memory_bytes / amount
    seconds = offer.ranked.bound.seconds
    if choice.order == "samples-per-dollar" and seconds:
        per_second = cards * samples / seconds
        return per_second * (_SECONDS_PER_HOUR if choice.prices.per == "hour" else 1) / amount
    return None


def _place(offer: Offer, order: str) -> tuple[int, bool, float, int, int]:
    """Where an offer stands: by its verdict, then by its value, then the smallest memory."""
    value = offer.value or 0.0
    return (
        _ORDER.index(offer.ranked.verdict),
        offer.value is None and order != "memory",
        value if order == "price" else -value,
        offer.ranked.limit_bytes,
        offer.cards,
    )


def launch_prices(devices: Iterable[Device]) -> Prices:
    """The launch prices that the catalog has a source for."""
    return Prices(
        "USD",
        "card",
        {
            device.name: Price(device.price_usd, _LAUNCH, device.sources.get("price_usd", ""))
            for device in devices
            if device.price_usd is not None
        },
    )


def read_prices(path: str, known: Catalog) -> Prices:
    """Read a user's file of prices.

    :raises PriceError: it cannot be read, or a price has no date, no source or no such device.
    """
    file = shortened(path)
    try:
        document = parsed_toml(read_text(path))
    except (OSError, ValueError) as fault:
        message = f"{file}: cannot be read as a file of prices: {reason_of(fault)}"
        raise PriceError(message) from fault
    _refuse_unknown(document, _KEYS, file)
    entries = document.get("price")
    if not isinstance(entries, list) or not entries:
        message = f"{file}: has no [[price]] table"
        raise PriceError(message)
    per, currency = document.get("per"), document.get("currency")
    if per not in _PER or not isinstance(currency, str) or not currency:
        message = (
            f"{file}: the keys currency (as in 'USD') and per ({' or '.join(_PER)}) are needed"
        )
        raise PriceError(message)
    found: dict[str, Price] = {}
    for entry in entries:
        name, price = _price(entry, document, known, file)
        if found.setdefault(name, price) is not price:
            message = f"{file}: {name} has two prices"
            raise PriceError(message)
    return Prices(shortened(currency), str(per), found)


def _price(
    entry: object, document: Mapping[str, object], known: Catalog, file: str
) -> tuple[str, Price]:
    if not isinstance(entry, dict) or not isinstance(entry.get("device"), str):
        message = f"{file}: a [[price]] has no device"
        raise PriceError(message)
    where = f"{file}: price of {shortened(entry['device'])}"
    _refuse_unknown(entry, _OWN_KEYS, where)
    device = known.get(entry["device"])
    if device is None:
        message = f"{where}: there is no such device; onnxmem devices lists all, --devices adds one"
        raise PriceError(message)
    amount = entry.get("amount")
    # To ``isinstance`` a bool is an int, and below a datetime is a date.
    if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < 10**12:
        message = f"{where}: amount is not a positive number"
        raise PriceError(message)
    day, source = (entry.get(key, document.get(key)) for key in ("date", "source"))
    if isinstance(day, datetime) or not isinstance(day, date):
        message = f"{where}: needs a date, as in date = 2026-11-26, of its own or for the file"
        raise PriceError(message)
    if not isinstance(source, str) or not source:
        message = f"{where}: needs a source, of its own or for the file"
        raise PriceError(message)
    return device.name, Price(float(amount), day.isoformat(), shortened(source))


def _refuse_unknown(table: Mapping[str, object], known: frozenset[str], where: str) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        keys = ", ".join(sorted(known))
        message = f"{where}: unknown key {shortened(unknown[0])!r}; the keys are {keys}"
        raise PriceError(message)
