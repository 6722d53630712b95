"""Which card to choose: by price, bandwidth, and memory or samples for the money."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from models_on_disk import write_model
from paths import MODELS, ROOT

from onnxmem import analyze
from onnxmem.analysis.fitting.assessing import FitRequest
from onnxmem.analysis.fitting.footprints import request_of
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.cli import main
from onnxmem.decisions.devices import Catalog, Device, catalog
from onnxmem.decisions.offers import (
    Choice,
    Offer,
    Price,
    PriceError,
    Prices,
    launch_prices,
    offers,
    read_prices,
)
from onnxmem.errors import UsageError
from onnxmem.settings import RANKS, Settings, TrainingConfig

Capture = pytest.CaptureFixture[str]
MLP = str(MODELS / "mlp.onnx")
GIB = 2**30
SMALL = Device(
    name="small", kind="cuda", memory_bytes=GIB, bandwidth_bytes=10**9, fp32_flops=10**12
)
LARGE = replace(SMALL, name="large", memory_bytes=8 * GIB, bandwidth_bytes=10**10)
OTHER = replace(SMALL, name="other", memory_bytes=4 * GIB, bandwidth_bytes=2 * 10**9)
TINY = replace(SMALL, name="tiny", memory_bytes=1000)
DEVICES = (OTHER, LARGE, SMALL, TINY)
PRICES = Prices(
    "USD",
    "card",
    {"small": Price(10, "", ""), "large": Price(200, "", ""), "tiny": Price(1, "", "")},
)


def ranked(choice: Choice, settings: Settings | None = None) -> tuple[Offer, ...]:
    request = request_of(MLP, settings or Settings(batch=4))
    return offers((request,), DEVICES, FitRequest(memory_bytes=0), None, choice)


@pytest.mark.parametrize(
    ("order", "names"),
    [
        ("memory", ["small", "other", "large", "tiny"]),
        ("price", ["small", "large", "other", "tiny"]),
        ("bandwidth", ["large", "other", "small", "tiny"]),
        ("memory-per-dollar", ["small", "large", "other", "tiny"]),
        ("samples-per-dollar", ["small", "large", "other", "tiny"]),
    ],
)
def test_devices_that_fit_come_first_and_those_without_a_price_last(
    order: str, names: list[str]
) -> None:
    found = ranked(Choice(prices=PRICES, order=order))
    assert [offer.ranked.device.name for offer in found] == names
    assert found[-1].ranked.verdict is Verdict.OVER


def test_samples_per_price_are_the_batch_over_time_and_price() -> None:
    (first, *_) = ranked(Choice(prices=PRICES, order="samples-per-dollar"))
    seconds = first.ranked.bound.seconds
    assert seconds is not None
    assert first.value == pytest.approx(4 / seconds / 10)
    rented = replace(PRICES, per="hour")
    (first, *_) = ranked(Choice(prices=rented, order="samples-per-dollar"))
    assert first.value == pytest.approx(3600 * 4 / seconds / 10)


def test_several_cards_multiply_price_and_throughput() -> None:
    choice = Choice(prices=PRICES, order="bandwidth", cards=(1, 3))
    found = {(x.ranked.device.name, x.cards): x for x in ranked(choice)}
    assert len(found) == 8
    assert found["large", 3].amount == 600
    assert found["large", 3].value == 3 * 10**10
    assert found["large", 3].ranked.taken_bytes == found["large", 1].ranked.taken_bytes


@pytest.mark.parametrize(("shard", "used"), [("none", "ddp"), ("zero3", "zero3")])
def test_several_cards_train_as_ranks(shard: str, used: str) -> None:
    recipe = TrainingConfig(shard=shard)
    settings = Settings(batch=4, train=True, recipe=recipe, basis="tensors")
    choice = Choice(prices=PRICES, cards=(1, 8))
    found = {(x.ranked.device.name, x.cards): x for x in ranked(choice, settings)}
    alone = analyze(MLP, batch=4, train=True).training
    rank = analyze(MLP, batch=4, train=True, recipe=TrainingConfig(shard=used, world=8)).training
    assert alone is not None
    assert rank is not None
    assert found["small", 1].ranked.taken_bytes == alone.peak_bytes
    assert found["small", 8].ranked.taken_bytes == rank.peak_bytes
    assert alone.peak_bytes != rank.peak_bytes


def test_gradient_accumulation_steps_count_as_samples() -> None:
    choice = Choice(prices=PRICES, order="samples-per-dollar")
    one, three = (
        ranked(choice, Settings(batch=4, train=True, recipe=TrainingConfig(accumulate=count)))
        for count in (1, 3)
    )
    seconds = [each[0].ranked.bound.seconds or 0 for each in (one, three)]
    assert one[0].value == pytest.approx(4 / seconds[0] / 10)
    assert three[0].value == pytest.approx(12 / seconds[1] / 10)


def test_every_launch_price_has_a_source() -> None:
    prices = launch_prices(catalog().devices)
    assert prices.unit == "USD"
    assert all(price.source and price.date == "at launch" for price in prices.by_device.values())
    assert prices.by_device["RTX 4090"].amount == 1599
    assert "H100 SXM" not in prices.by_device


def test_the_sample_file_is_valid() -> None:
    prices = read_prices(str(ROOT / "docs" / "prices.toml"), catalog())
    assert prices.by_device["RTX 4090"].date == "2026-11-26"
    assert set(prices.by_device) == {"RTX 4090", "RTX 5080", "RTX 5090"}


HEAD = "currency = 'EUR'\nper = 'hour'\ndate = 2026-01-02\nsource = 'a page'\n"
ENTRY = "[[price]]\ndevice = 'small'\namount = 0.5\n"


def test_a_price_can_have_its_own_date_and_source(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    own = "[[price]]\ndevice = 'LARGE'\namount = 2\ndate = 2026-03-04\nsource = 'mine'\n"
    path.write_text(HEAD + ENTRY + own, encoding="utf-8")
    found = read_prices(str(path), Catalog(DEVICES))
    assert found.unit == "EUR per hour"
    assert found.by_device == {
        "small": Price(0.5, "2026-01-02", "a page"),
        "large": Price(2.0, "2026-03-04", "mine"),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no [[price]] table"),
        ("price = 3", "has no [[price]] table"),
        ("[[price", "cannot be read as a file of prices"),
        (ENTRY, "the keys currency"),
        (HEAD.replace("hour", "year") + ENTRY, "the keys currency"),
        (HEAD + "[[price]]\namount = 1\n", "a [[price]] has no device"),
        (HEAD + ENTRY.replace("small", "nothing"), "there is no such device"),
        (HEAD + ENTRY.replace("0.5", "0"), "amount is not a positive number"),
        (HEAD + ENTRY.replace("0.5", "true"), "amount is not a positive number"),
        (HEAD + ENTRY.replace("0.5", "nan"), "amount is not a positive number"),
        (HEAD + ENTRY.replace("0.5", "'1'"), "amount is not a positive number"),
        (HEAD.replace("date = 2026-01-02", "") + ENTRY, "needs a date"),
        (HEAD.replace("2026-01-02", "2026-01-02T03:04:05") + ENTRY, "needs a date"),
        (HEAD.replace("source = 'a page'", "") + ENTRY, "needs a source"),
        (HEAD + ENTRY + ENTRY, "has two prices"),
        (HEAD + ENTRY + "usd = 1\n", "unknown key 'usd'"),
        ("color = 1\n" + HEAD + ENTRY, "unknown key 'color'"),
    ],
)
def test_an_invalid_price_file_is_reported_in_one_line(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PriceError) as fault:
        read_prices(str(path), Catalog(DEVICES))
    assert message in str(fault.value)
    assert "\n" not in str(fault.value)


def test_an_unknown_order_is_rejected() -> None:
    with pytest.raises(UsageError, match=", ".join(RANKS)):
        Choice(prices=PRICES, order="color")


def test_fit_ranks_devices_by_a_file_of_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    net = write_model(tmp_path / "net.onnx")
    (tmp_path / "prices.toml").write_text(HEAD + ENTRY.replace("small", "T4"), encoding="utf-8")
    words = ["fit", net, "--which-device", "--prices", "prices.toml", "--cards", "2"]
    assert main([*words, "--rank", "samples-per-dollar", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, second, *_ = document["devices"]
    assert document["rank"] == "samples-per-dollar"
    assert (first["name"], first["cards"]) == ("T4", 2)
    assert first["price"] == {
        "amount": 1.0,
        "currency": "EUR",
        "per": "hour",
        "date": "2026-01-02",
        "source": "a page",
    }
    assert (second["price"], second["value"]) == (None, None)
    assert main([*words, "--rank", "samples-per-dollar"]) == 0
    text = capsys.readouterr().out
    assert "RANKED by samples for one EUR" in text
    head, _, table = text.partition("FITS")
    assert "Ranked  1 of " in head
    assert "add theirs to the file of --prices" in " ".join(head.split())
    assert "without what they would be ranked by" in table
    assert "PRICE: EUR per hour, of 2026-01-02" in text
    assert "source: a page" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--device T4 --rank price", "--rank: no effect without --which-device"),
        ("--device T4 --cards 2", "--cards: no effect without --which-device"),
        ("--device T4 --prices p.toml", "--prices: no effect without --which-device"),
        ("--which-device --train --cards 2 --world 2", "leave out --world"),
        ("--which-device --prices nothing.toml", "cannot be read as a file of prices"),
    ],
)
def test_flags_without_effect_are_rejected(words: str, message: str, capsys: Capture) -> None:
    assert main(["fit", MLP, *words.split()]) == 2
    assert message in capsys.readouterr().err
