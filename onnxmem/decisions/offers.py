"""Which card to choose: devices by memory, price, bandwidth, memory or samples for the money.

A device without a price is last. Several cards run a data-parallel step each, on a batch of its
own: the memory of one, the price and the samples of all. Communication between them is not counted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.devices import Device
from onnxmem.decisions.fit import Ranked, rank
from onnxmem.decisions.prices import Price, Prices
from onnxmem.decisions.roofline import samples_of
from onnxmem.errors import UsageError, shortened
from onnxmem.settings import RANKS

_ORDER: Final = (Verdict.FITS, Verdict.TIGHT, Verdict.UNKNOWN, Verdict.OVER)
_SEVERAL: Final = frozenset({"cuda", "gpu"})
"""Kinds of devices of which a machine has several."""
_SECONDS_PER_HOUR: Final = 3600


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
        return cards * device.limit_bytes / amount
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
        # Offers of unknown value come after all others of the same verdict; by memory, none has a
        # value.
        offer.value is None and order != "memory",
        value if order == "price" else -value,
        offer.ranked.limit_bytes,
        offer.cards,
    )
