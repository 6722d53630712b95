"""Every face of a checkup: golden texts, public schemas, caps, and names that stay inert."""

import json
import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

import pytest
from golden_text import assert_golden
from jsonschema import Draft4Validator, Draft202012Validator
from models_on_disk import HOSTILE, MYSTERY, write_hostile_model, write_model
from paths import DATA

from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.cli import main
from onnxmem.cli.check import FORMAT_NAMES as OFFERED
from onnxmem.decisions.check.budgets import Budget, Growth
from onnxmem.decisions.check.checking import Check, CheckedModel, Checkup, LimitedFigure
from onnxmem.program.program import Allocation, Category
from onnxmem.report.check import FORMATS, MARKER, MOST_BYTES, as_github, code

if TYPE_CHECKING:
    import xmlschema

SCHEMAS = DATA / "schemas"
SARIF = Draft4Validator(json.loads((SCHEMAS / "sarif-2.1.0-rtm.5.json").read_text()))
CHECK = Draft202012Validator(
    json.loads((files("onnxmem.report") / "schema" / "check-1.0.schema.json").read_text())
)
MARKUP = "a`b|c*d_e<img src=x onerror=alert(1)>[l](javascript:x)@user#1 $x$ ]]> {0} %0A::error::"
"""A name that means something to Markdown, HTML, XML, SARIF and a workflow's runner."""

OVER = Check(
    budget="edge",
    figure=LimitedFigure.PEAK,
    outcome=Verdict.OVER,
    batch=8,
    size_bytes=3_000_017,
    limit_bytes=2_000_003,
    node="conv_1",
    largest=(
        Allocation("image", Category.INPUT, 1_000_003),
        Allocation("h", Category.ACTIVATION, 500_009),
    ),
)
GREW = Check(
    budget="edge",
    figure=LimitedFigure.PEAK_GROWTH,
    outcome=Verdict.OVER,
    batch=8,
    size_bytes=3_000_017,
    limit_bytes=2_100_003,
    baseline_bytes=2_000_003,
    growth=Growth(size_bytes=100_000),
    is_lower_bound=True,
    node="conv_1",
)
FITS = Check(
    budget="edge",
    figure=LimitedFigure.WEIGHTS,
    outcome=Verdict.FITS,
    batch=8,
    size_bytes=1_009,
    limit_bytes=2_003,
)
SHRANK = Check(
    budget="small",
    figure=LimitedFigure.TRAINING_GROWTH,
    outcome=Verdict.FITS,
    size_bytes=907,
    limit_bytes=1_009,
    baseline_bytes=1_009,
    growth=Growth(size_bytes=0),
)
UNKNOWN = Check(
    budget="small",
    figure=LimitedFigure.TRAINING,
    outcome=Verdict.UNKNOWN,
    reason="tensors of unknown size: 'y'; the figure is a lower bound",
    size_bytes=907,
    limit_bytes=1_009,
    is_lower_bound=True,
)
CHECKUP = Checkup(
    (
        CheckedModel("edge/net.onnx", (OVER, GREW, FITS)),
        CheckedModel("other.onnx", (UNKNOWN, SHRANK)),
        CheckedModel("free.onnx"),
    ),
    (Budget(name="typo", path="egde/*.onnx"),),
)
CLEAN = Checkup((CheckedModel("net.onnx", (FITS,)), CheckedModel("b.onnx")), (), True)  # noqa: FBT003


def hostile(name: str) -> Checkup:
    """A checkup of which every name is the same one."""
    held = (Allocation(name, Category.ACTIVATION, 3),)
    checks = tuple(
        Check(
            budget=name,
            figure=LimitedFigure.PEAK,
            outcome=outcome,
            size_bytes=5,
            limit_bytes=3,
            reason=name,
            node=name,
            largest=held,
        )
        for outcome in Verdict
    )
    models = (CheckedModel(f"{name}.onnx", checks), CheckedModel(name))
    return Checkup(models, (Budget(name=name, path=name),))


@cache
def junit() -> "xmlschema.XMLSchema":
    import xmlschema

    return xmlschema.XMLSchema(SCHEMAS / "junit-10.xsd")


def sarif_of(text: str) -> Mapping[str, object]:
    document: Mapping[str, object] = json.loads(text)
    SARIF.validate(document)
    return document


def test_the_formats_offered_are_those_there_are() -> None:
    assert tuple(FORMATS) == OFFERED


@pytest.mark.parametrize("name", FORMATS)
def test_what_each_format_says(name: str) -> None:
    assert_golden(FORMATS[name](CHECKUP), f"check.{name}")
    assert_golden(FORMATS[name](CLEAN), f"check_clean.{name}")


def test_a_terminal_gets_no_line_over_its_width() -> None:
    assert max(map(len, FORMATS["text"](CHECKUP).splitlines())) <= 100


@pytest.mark.parametrize(
    "checkup", [CHECKUP, CLEAN, Checkup(()), hostile(HOSTILE), hostile(MARKUP)]
)
def test_public_schemas_hold(checkup: Checkup) -> None:
    CHECK.validate(json.loads(FORMATS["json"](checkup)))
    sarif_of(FORMATS["sarif"](checkup))
    junit().validate(FORMATS["junit"](checkup))


def test_the_schemas_refuse_what_is_wrong() -> None:
    broken = FORMATS["sarif"](CHECKUP).replace('"ruleId"', '"rule_id"')
    assert not SARIF.is_valid(json.loads(broken))
    assert not junit().is_valid(FORMATS["junit"](CHECKUP).replace("classname", "class"))


def test_junit_counts_what_it_holds() -> None:
    suites = ET.fromstring(FORMATS["junit"](CHECKUP))  # noqa: S314 - written a line before
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("7", "2", "3")
    assert [(s.get("tests"), s.get("failures"), s.get("errors")) for s in suites] == [
        ("3", "2", "0"),
        ("2", "0", "1"),
        ("1", "0", "1"),
        ("1", "0", "1"),
    ]


def test_sarif_knows_a_result_again_whatever_its_bytes() -> None:
    def prints(checkup: Checkup) -> list[str]:
        return re.findall(r'"onnxmemCheck/v1": "(\w+)"', FORMATS["sarif"](checkup))

    moved = Check(
        budget="edge", figure=LimitedFigure.PEAK, outcome=Verdict.OVER, size_bytes=9, limit_bytes=7
    )
    first = prints(CHECKUP)
    assert len(set(first)) == len(first) == 3
    assert prints(Checkup((CheckedModel("edge/net.onnx", (moved,)),))) == first[:1]


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        ("a b/net#1.onnx", "a%20b/net%231.onnx"),
        ("c:d.onnx", "c%3Ad.onnx"),
        ("/models/net.onnx", "file:///models/net.onnx"),
        ("caf\udce9.onnx", "caf%E9.onnx"),
        ("größe.onnx", "gr%C3%B6%C3%9Fe.onnx"),
    ],
)
def test_a_path_becomes_a_uri(path: str, uri: str) -> None:
    text = FORMATS["sarif"](Checkup((CheckedModel(path, (OVER,)),)))
    assert f'"uri": "{uri}"' in text


# Hostile names.


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("evil", [HOSTILE, MARKUP, "\ud800\ufffe\x00", "\r\n::error::x", " ", "`"])
def test_no_name_moves_a_cursor_or_forges_a_line(name: str, evil: str) -> None:
    text = FORMATS[name](hostile(evil))
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == len(FORMATS[name](hostile("x")).splitlines()) or name == "text"


def test_markdown_keeps_every_name_in_a_code_span() -> None:
    text = FORMATS["markdown"](hostile(MARKUP))
    outside = re.sub(r"`[^`\n]*`", "", text)
    for sign in ("<img", "javascript", "@user", "#1", "$x$"):
        assert sign not in outside
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7}
    assert text.count("`") % 2 == 0


def test_markdown_code_spans() -> None:
    assert code("a|b`c") == r"`a\x7cb\x60c`"
    assert code(" ") == code("") == "(no name)"
    assert len(code("x" * 1000)) < 160


def test_annotations_are_one_command_a_line() -> None:
    text = as_github(hostile("a,b:c%0Ad\r\n::set-output name=x::y"))
    lines = text.splitlines()
    assert all(
        re.match(r"::(error|notice) (file=[^,:]+,)?title=[^,:]+::[^\r\n]+$", x) for x in lines[:-1]
    )
    assert "%250A" in lines[0]
    assert not lines[-1].startswith("::")


def test_xml_gives_every_name_back() -> None:
    suites = ET.fromstring(FORMATS["junit"](hostile(MARKUP)))  # noqa: S314
    assert suites[0].get("name") == f"{MARKUP}.onnx"


def test_sarif_messages_hold_no_links_and_no_placeholders() -> None:
    text = FORMATS["sarif"](hostile("[text](https://x) {0} \\"))
    (message, *_) = (r["message"]["text"] for r in json.loads(text)["runs"][0]["results"])
    assert r"\[text\](https://x) {{0}} \\" in message


@pytest.mark.parametrize("name", FORMATS)
def test_a_hostile_model_through_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_hostile_model(tmp_path / "bad\x1b[2J.onnx")
    line = ["check", "bad\x1b[2J.onnx", "--budget-peak", "1B", "--batch", "2", "--format", name]
    assert main(line) == 1
    out, err = capsys.readouterr()
    assert out.replace("\n", "").isprintable()
    assert not err
    assert "\\u202e" in out or name in {"text", "markdown"}


# The cap of a comment.


def test_many_models_stay_under_the_cap_and_the_rest_is_counted() -> None:
    models = tuple(CheckedModel(f"{number}{'ö' * 90}.onnx", (FITS, OVER)) for number in range(2000))
    text = FORMATS["markdown"](Checkup(models))
    assert text.startswith(MARKER)
    assert len(text) <= len(text.encode()) < MOST_BYTES
    shown = text.count("\n| ❌")
    more = re.search(r"([\d,]+) more rows are in the JSON", text)
    assert more is not None
    assert shown + int(more[1].replace(",", "")) == 4000
    assert "| ✅" not in text


def test_a_model_of_10_000_layers_stays_under_the_cap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every layer's output is kept by a Concat, so that 10,000 tensors are live at the peak."""
    monkeypatch.chdir(tmp_path)
    names = [f"layer_{number:05}/{'x' * 90}" for number in range(10_000)]
    body = "\n".join(f'"{n}" = Exp(x)' for n in names)
    joined = ", ".join(f'"{n}"' for n in names)
    text = (
        f"agraph (float[N,7] x) => (float[N,70000] y) {{ {body} y = Concat <axis = 1> ({joined}) }}"
    )
    text = text.replace('"', "").replace("/", "_")
    write_model(tmp_path / "deep.onnx", text)
    assert main("check deep.onnx --budget-peak 1KiB --format markdown".split()) == 1
    written = capsys.readouterr().out
    assert "`deep.onnx`" in written
    assert len(written.encode()) < 60_000


def test_several_formats_from_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    line = "check mystery.onnx --budget-peak 1GiB --format github -o out.txt"
    also = ["--also", "sarif=check.sarif", "--also", "junit=check.xml"]
    assert main([*line.split(), *also]) == 3
    assert capsys.readouterr().out == ""
    assert Path("out.txt").read_text().startswith("::error file=mystery.onnx,")
    sarif_of(Path("check.sarif").read_text())
    junit().validate("check.xml")
    assert main([*line.split(), *also]) == 2
    assert main([*line.split(), *also, "--force", "--quiet"]) == 3
