"""No line of a command's text output is wider than COLUMNS, and an answer has at most 25 lines."""

import shlex
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from paths import MODELS

from onnxmem.analysis import analysis
from onnxmem.cli import COMMANDS as EVERY_COMMAND
from onnxmem.cli import main
from onnxmem.report.text import aligned

COLUMNS = 80
PIPED = 100
"""Columns where nothing requests a number of them."""
MOST_LINES = 25
ALL = sorted(MODELS.glob("*.onnx"))
FEW = [MODELS / f"{name}.onnx" for name in ("mlp", "mobilenet_v2.int8", "smollm_cached")]
QUICK = MODELS / "mlp.onnx"
HEAVY = ("advise", "explain process", "{model} --train", "fit")
"""Of the quick models one alone has these."""
COMMANDS = (
    "{model}",
    "{model} -v",
    "{model} -q",
    "{model} --layers",
    "{model} --train --batch 4 --budget 2GiB",
    "{model} --train --batch 4 --budget 2GiB -v",
    "{model} --runtime ort-cpu --emulate-optimizer -v",
    "fit {model} --device 8GiB",
    "advise {model} --budget 8MiB --emulate-optimizer",
    "explain process {model} --emulate-optimizer",
    "explain peak {model}",
    "diff {model} {other}",
    "check {model} --budget-peak 1MiB",
)
MORE = (
    "fit {model} --which-device",
    "fit {model} --which-device --rank memory-per-dollar",
    "sweep {model} --batch 1..4 --device 8GiB",
    "explain rules {model}",
    "explain microcontroller {model}",
    "explain 'Failed to allocate memory for requested buffer of size 1204224' {model}",
    "simulate {model} --requests batch=1..2 --num-requests 4",
    "reorder {model}",
    "{model} models/alexnet.onnx",
    "{model} models/greedy_translator.onnx --summary",
    "{model} models/greedy_translator.onnx --summary -q --budget 1GiB",
    "{model} models/greedy_translator.onnx --summary --runtime ort-cuda --device T4",
    "fit {model} models/greedy_translator.onnx --device 8GiB",
    "explain 'which tensor takes the memory' {model} --runtime ort-cuda",
    "fit {model} --train --device H100",
    "fit {model} --train --which-device",
)
"""On one model."""
WITHOUT_A_MODEL = (
    "devices",
    "devices STM32H743",
    "devices H100",
    "explain",
    "explain unbound_dims",
    "explain why does memory grow between runs",
    "explain 2x3x256x256",
    *(f"{command} --help" for command in EVERY_COMMAND),
    *(f"{command} --help-all" for command in EVERY_COMMAND),
)
ANSWERS = (
    "{model} --budget 24GiB",
    "{model} --train --batch 4 --budget 24GiB",
    "{model} --runtime ort-cpu --emulate-optimizer",
)


def printed(command: str, model: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines that a command prints on a model."""
    words = command.format(model=model.relative_to(MODELS.parent), other="models/mlp.onnx")
    main(shlex.split(words))
    lines = capsys.readouterr().out.splitlines()
    assert lines
    return lines


@cache
def analyses() -> dict[str, analysis.Analysis]:
    """By model and settings: widths and outputs of one analysis differ in its text alone."""
    return {}


@pytest.fixture(autouse=True)
def analyzed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One analysis serves all commands and widths that request the same of a model."""
    analyze = analysis.analyze

    def memoized(model: str, **settings: Any) -> analysis.Analysis:  # noqa: ANN401 - passed on
        key = f"{model} {sorted(settings.items())}"
        if key not in analyses():
            analyses()[key] = analyze(model, **settings)
        return analyses()[key]

    monkeypatch.setattr(analysis, "analyze", memoized)


@pytest.fixture(autouse=True)
def beside_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths in the output are those that a user of a clone gives."""
    monkeypatch.chdir(MODELS.parent)


@pytest.mark.parametrize(
    ("command", "model"),
    [
        (command, model)
        for command in COMMANDS
        for model in FEW
        if model == QUICK or not command.startswith(HEAVY)
    ],
    ids=lambda each: each.stem if isinstance(each, Path) else each,
)
def test_no_line_is_wider_than_columns(
    command: str, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert [line for line in printed(command, model, capsys) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("command", MORE)
def test_no_line_of_another_command_is_wider(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert [line for line in printed(command, QUICK, capsys) if len(line) > COLUMNS] == []


@pytest.mark.parametrize("command", WITHOUT_A_MODEL)
def test_no_line_without_a_model_is_wider(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with suppress(SystemExit):
        main(command.split())
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > COLUMNS] == []


@pytest.mark.slow
@pytest.mark.parametrize("model", [each for each in ALL if each != QUICK], ids=lambda p: p.stem)
def test_no_line_of_any_command_on_any_model_is_wider(
    model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    wide = {
        command: line
        for command in (*COMMANDS, *MORE)
        # The first analyzes a model many times, the other refuses one without dynamic dims.
        if not command.startswith(("advise", "simulate"))
        for line in printed(command, model, capsys)
        if len(line) > COLUMNS
    }
    assert wide == {}


@pytest.mark.parametrize("columns", [COLUMNS, PIPED])
@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_has_at_most_25_lines(
    command: str,
    columns: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert len(printed(command, QUICK, capsys)) <= MOST_LINES


@pytest.mark.slow
@pytest.mark.parametrize("columns", [COLUMNS, PIPED])
@pytest.mark.parametrize("model", [each for each in ALL if each != QUICK], ids=lambda p: p.stem)
def test_an_answer_on_any_model_has_at_most_25_lines(
    columns: int, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    long = {command: len(printed(command, model, capsys)) for command in ANSWERS}
    assert {command: lines for command, lines in long.items() if lines > MOST_LINES} == {}


TABLE = (
    ("node", "op_type", "shape", "bytes"),
    ("a/name/of/fifty/characters/that/no/narrow/row/has/i", "Conv", "3x5x7", "420"),
    ("b", "LayerNormalization", "11x13", "572"),
)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (
            "200",
            """\
node                                                 op_type             shape  bytes
a/name/of/fifty/characters/that/no/narrow/row/has/i  Conv                3x5x7    420
b                                                    LayerNormalization  11x13    572
""",
        ),
        (
            "70",
            """\
node                                                 shape  bytes
a/name/of/fifty/characters/that/no/narrow/row/has/i  3x5x7    420
b                                                    11x13    572
left out: op_type; COLUMNS=85 or --json shows them
""",
        ),
        (
            "40",
            """\
node  shape  bytes
a/name/of/fifty/characters/that/no/narro
w/row/has/i
      3x5x7    420
b     11x13    572
left out: op_type; COLUMNS=85 or --json
          shows them
""",
        ),
    ],
)
def test_a_narrow_table_leaves_out_columns_and_wraps_names(
    columns: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert aligned(TABLE, 3, ["op_type"]) == expected
