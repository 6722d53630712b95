"""Which card to choose: by price, bandwidth, and memory or samples for the money."""

import json
import re
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
    offers,
)
from onnxmem.decisions.prices import Price, PriceError, Prices, launch_prices, read_prices
from onnxmem.errors import UsageError
from onnxmem.settings import RANKS, Settings, TrainingConfig
from onnxmem.units import format_bytes

Capture = pytest.CaptureFixture[str]
MLP = str(MODELS / "mlp.onnx")
GIB = 2**30
SMALL = Device(
    name="small", kind="cuda", memory_bytes=2 * GIB, bandwidth_bytes=10**9, fp32_flops=10**12
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


CSV_FORMS = {
    "hours": "device,price_per_hour\nsmall,0.5\nlarge,2\n",
    "amounts": "# mine\nDevice, amount ,per\n\nsmall,0.5,hour\nLARGE,2,hour\n",
    "toml": "[[price]]\ndevice = 'small'\nprice_per_hour = 0.5\n"
    "[[price]]\ndevice = 'large'\nprice_per_hour = 2\n",
}


@pytest.mark.parametrize("text", CSV_FORMS.values(), ids=CSV_FORMS)
def test_devices_and_amounts_are_enough_in_a_csv_and_a_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "prices"
    path.write_text(text, encoding="utf-8")
    found = read_prices(str(path), Catalog(DEVICES))
    assert found.unit == "USD per hour"
    assert found.by_device == {"small": Price(0.5, None, None), "large": Price(2.0, None, None)}


@pytest.mark.parametrize("day", ["2026-01-02", "'2026-01-02'", "2026-01-02T03:04:05"])
def test_a_date_may_be_quoted(tmp_path: Path, day: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(HEAD.replace("2026-01-02", day) + ENTRY, encoding="utf-8")
    found = read_prices(str(path), Catalog(DEVICES))
    assert found.by_device == {"small": Price(0.5, "2026-01-02", "a page")}


def test_a_csv_has_the_columns_of_every_key(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    text = "device,price_per_card,date,source,currency\nsmall,13,2026-01-02,a page,EUR\n"
    path.write_text(text, encoding="utf-8")
    found = read_prices(str(path), Catalog(DEVICES))
    assert (found.unit, found.by_device) == ("EUR", {"small": Price(13, "2026-01-02", "a page")})


FAULTS = {
    "empty": ("", ["has no price"]),
    "no table": ("price = 3", ["has no [[price]] table"]),
    "not TOML": ("[[price", ["cannot be read as a file of prices"]),
    "not CSV": ('device,amount\n"T4', ["cannot be read as a file of prices"]),
    "columns": ("card,usd\nT4,1\n", ["unknown column 'card', 'usd'", "has no column device"]),
    "what for": (ENTRY, ["amount needs per"]),
    "per": (HEAD.replace("hour", "year") + ENTRY, ["per is not card or hour"]),
    "currency": (HEAD.replace("'EUR'", "3") + ENTRY, ["the currency is not a text"]),
    "device": (HEAD + "[[price]]\namount = 1\n", ["has no device"]),
    "name": (HEAD + ENTRY.replace("small", "nothing"), ["there is no device nothing"]),
    "zero": (HEAD + ENTRY.replace("0.5", "0"), ["amount is not a positive number"]),
    "bool": (HEAD + ENTRY.replace("0.5", "true"), ["amount is not a positive number"]),
    "nan": (HEAD + ENTRY.replace("0.5", "nan"), ["amount is not a positive number"]),
    "text": (HEAD + ENTRY.replace("0.5", "'low'"), ["amount is not a positive number"]),
    "no amount": (HEAD + "[[price]]\ndevice = 'small'\n", ["has no amount or price_per_card"]),
    "amounts": (HEAD + ENTRY + "price_per_hour = 1\n", ["has two amounts"]),
    "date": (HEAD.replace("2026-01-02", "'May'") + ENTRY, ["the date is not one"]),
    "source": (HEAD.replace("'a page'", "3") + ENTRY, ["the source is not a text"]),
    "twice": (HEAD + ENTRY + ENTRY, ["has a price already"]),
    "key": (HEAD + ENTRY + "usd = 1\n", ["unknown key 'usd'"]),
    "head": ("color = 1\n" + HEAD + ENTRY, ["unknown key 'color'"]),
    "said twice": (HEAD + ENTRY.replace("amount", "price_per_card"), ["per says hour"]),
    "both": (
        "device,amount,per\nsmall,1,card\nlarge,2,hour\n",
        ["has prices in USD per card and USD per hour"],
    ),
    "all at once": (
        "device,price_per_hour,date\nnothing,0,May\nsmall,cheap\n",
        ["no device nothing", "not a positive number", "the date", "line 3 has 2 cells"],
    ),
    "many": ("device,amount\n" + "small,1\n" * 20, ["; 14 more; a file that works"]),
}


@pytest.mark.parametrize(("text", "messages"), FAULTS.values(), ids=FAULTS)
def test_all_faults_of_a_price_file_are_one_line_with_a_file_that_works(
    tmp_path: Path, text: str, messages: list[str]
) -> None:
    path = tmp_path / "prices"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(PriceError) as fault:
        read_prices(str(path), Catalog(DEVICES))
    assert [message for message in messages if message not in str(fault.value)] == []
    assert "\n" not in str(fault.value)
    sample = re.findall("'([^']+)'", str(fault.value).partition("a file that works")[2])
    path.write_text("\n".join(sample), encoding="utf-8")
    assert read_prices(str(path), catalog()).by_device["RTX 4090"].amount == 0.69


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
    fitting = re.search(r"Ranked  1 of (\d+) that fit: the other (\d+) have no known ", head)
    assert fitting is not None
    assert int(fitting[1]) == int(fitting[2]) + 1
    assert re.search(r"the price list has 1 of \d+ devices", " ".join(text.split()))
    assert "add theirs to the file of --prices" in " ".join(head.split())
    assert "without a known price or time" in table
    assert "PRICE: EUR per hour, of 2026-01-02" in text
    assert "source: a page" in text


def test_a_ranking_says_at_the_top_what_it_assumes_and_why_it_is_unknown(capsys: Capture) -> None:
    """Of a dim that nothing binds no device has a verdict, and the reason is that of ``fit``."""
    bert = str(MODELS / "bert_base.onnx")
    words = ["fit", bert, "--train", "--batch", "7", "--which-device", "--cards", "1,2"]
    assert main(words) == 3
    text = capsys.readouterr().out
    head = text.partition("Compared")[0]
    assert "assumes: training" in head
    assert "batch 7 on each card, sequence = 1" in " ".join(head.split())
    reason = "'sequence' counts as 1; set --dim sequence=512 (or --accept unbound_dims)"
    assert " ".join(head.split()).count(reason) == 1
    assert re.search(r"verdict +unknown on \d+ of \d+ rows until --dim sequence=N is given\n", head)
    unknown, small = text.split("\nUnknown, LEFT at most\n")[1].split(
        "\nToo small, the largest of them\n"
    )
    assert "GiB  -" not in unknown
    assert all("-" in line for line in small.split("\n\n")[0].splitlines()[:3])
    assert "each runs a batch of its own" in text
    assert "Cards  2 (ddp): a batch of 7 on each, 14 samples in all; each takes " in text
    assert main([*words, "--json"]) == 3
    (doubt,) = json.loads(capsys.readouterr().out)["doubts"]
    assert doubt.startswith("unbound_dims: 'sequence' counts as 1")
    assert main([*words[:-2], "--dim", "sequence=5"]) == 0
    text = capsys.readouterr().out
    assert "batch 7, sequence = 5\n\n" in text
    assert "uncertain" not in text


@pytest.mark.parametrize(("shard", "word"), [("zero3", "less"), ("ddp", "more")])
def test_what_cards_save_is_said_in_words(shard: str, word: str, capsys: Capture) -> None:
    bert = str(MODELS / "bert_base.onnx")
    words = ["fit", bert, "--train", "--batch", "7", "--dim", "sequence=5", "--which-device"]
    words += ["--cards", "1,2", "--shard", shard]
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["devices"]
    one, two = (
        {x["name"]: x["bytes"] for x in rows if x["cards"] == n}["RTX 4090"] for n in (1, 2)
    )
    assert main(words) == 0
    (line,) = re.findall(r"Cards  .*(?:\n  .*)?", capsys.readouterr().out)
    compared = (
        f"each takes {format_bytes(two)}, {format_bytes(abs(one - two))} {word} than 1 card does"
    )
    assert " ".join(line.split()).endswith(compared)
    assert (two < one) == (word == "less")


@pytest.mark.parametrize("order", RANKS)
@pytest.mark.parametrize("name", ["mlp", "mobilenet_v2"])
def test_a_column_of_a_ranking_has_one_unit(name: str, order: str, capsys: Capture) -> None:
    model = str(MODELS / f"{name}.onnx")
    assert main(["fit", model, "--which-device", "--batch", "8", "--rank", order]) == 0
    table = re.search(r"^FITS  .*?\n\n", capsys.readouterr().out, re.DOTALL | re.MULTILINE)
    assert table is not None
    rows = [re.split(r"  +", line) for line in table[0].splitlines() if "  " in line]
    assert len(rows) > 5
    for column in range(2, len(rows[0])):
        cells = [row[column] for row in rows[1:] if row[column] != "-"]
        assert len({re.sub(r"^[-<>]*[\d.,]+", "", cell) for cell in cells}) <= 1, cells


def test_those_that_are_ranked_include_the_tight_ones_where_there_are_any(capsys: Capture) -> None:
    words = ["fit", str(MODELS / "resnet50.onnx"), "--train", "--which-device", "--rank", "price"]

    def ranked(batch: int) -> tuple[str, set[str]]:
        assert main([*words, "--batch", str(batch)]) == 0
        text = capsys.readouterr().out
        assert main([*words, "--batch", str(batch), "--json"]) == 0
        devices = json.loads(capsys.readouterr().out)["devices"]
        return text, {each["verdict"] for each in devices}

    text, verdicts = ranked(1)
    assert ("that fit or are tight: " in text) == ("tight" in verdicts)
    text, verdicts = ranked(128)
    assert "tight" in verdicts
    assert "that fit or are tight: " in text


def test_a_price_with_no_date_says_so(tmp_path: Path, capsys: Capture) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("device,price_per_hour,date\nT4,0.35,\n", encoding="utf-8")
    words = ["fit", MLP, "--which-device", "--rank", "price", "--prices", str(prices)]
    assert main(words) == 0
    assert "PRICE: USD per hour, no date;" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    first, *_ = json.loads(capsys.readouterr().out)["devices"]
    assert (first["name"], first["price"]["date"], first["price"]["source"]) == ("T4", None, None)
    prices.write_text("device,price_per_hour,date\nT4,3,\nP100,5,2026-01-02\n", encoding="utf-8")
    assert main(words) == 0
    assert "of 2026-01-02, some with no date" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--device T4 --rank price", "--rank: no effect without --which-device"),
        ("--device T4 --cards 2", "--cards: no effect without --train"),
        ("--device 2xT4", "--cards: no effect without --train"),
        ("--device T4 --train --cards 2,4", "several numbers are ranked: --which-device"),
        ("--device T4 --train --cards 2 --world 2", "leave out --world"),
        ("--device T4 --prices p.toml", "--prices: no effect without --which-device"),
        ("--which-device --train --cards 2 --world 2", "leave out --world"),
        ("--which-device --prices nothing.toml", "cannot be read as a file of prices"),
    ],
)
def test_flags_without_effect_are_rejected(words: str, message: str, capsys: Capture) -> None:
    assert main(["fit", MLP, *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["--device T4 --cards 4 --shard zero3", "--device 4xT4 --shard zero3"]
)
def test_several_of_one_device_are_the_ranks_of_a_training(words: str, capsys: Capture) -> None:
    assert main(["fit", MLP, "--train", *words.split()]) == 0
    out = capsys.readouterr().out
    assert main(f"fit {MLP} --train --device T4 --world 4 --shard zero3".split()) == 0
    assert capsys.readouterr().out == out
    assert "each of 4 cards, zero3" in out


def test_several_cards_are_data_parallel_where_nothing_else_is_said(capsys: Capture) -> None:
    assert main(["fit", MLP, "--train", "--device", "2 x T4", "--json"]) == 0
    out = capsys.readouterr().out
    assert main(["fit", MLP, *"--train --device T4 --world 2 --shard ddp --json".split()]) == 0
    assert capsys.readouterr().out == out


def test_prices_of_the_user_rank_by_price(tmp_path: Path, capsys: Capture) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("device,price_per_hour\nT4,0.35\nP100,0.2\n", encoding="utf-8")
    assert main(["fit", MLP, "--which-device", "--prices", str(prices), "--json"]) == 0
    first, second, *_ = json.loads(capsys.readouterr().out)["devices"]
    assert (first["name"], second["name"]) == ("P100", "T4")
