"""The whole process of onnxruntime against what was measured of files as exporters write them."""

from math import ceil
from types import ModuleType

import pytest
from paths import MODELS, ROOT, script_module

import onnxmem
from onnxmem.analysis.fitting.verdicts import ACCURACIES, LOAD_ACCURACY, Accuracy, Basis

PAGE = (ROOT / "docs" / "accuracy.md").read_text()


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    return script_module(ROOT / "tools" / "onnxruntime" / "process_truth.py")


def test_the_page_has_the_table_of_what_was_measured(tool: ModuleType) -> None:
    table = PAGE.split("<!-- process accuracy -->\n", 1)[1].split("\n\n", 1)[0]
    assert table == tool.table(tool.read())


@pytest.mark.parametrize(
    ("figure", "known"), [("process", ACCURACIES[Basis.ORT_CPU]), ("load", LOAD_ACCURACY)]
)
def test_the_error_beside_a_figure_is_that_of_nine_in_ten(
    tool: ModuleType, figure: str, known: Accuracy
) -> None:
    errors = [getattr(row, f"{figure}_error") for row in tool.read()]
    percent = float(ceil(tool.ninetieth_percent(errors)))
    largest = round(max(map(abs, errors)), 1)
    assert known == Accuracy.measured(percent, f"90 % of {len(errors)} files", largest)


@pytest.mark.parametrize("name", ["lstm_classifier", "mlp", "vit_tiny", "whisper_tiny_encoder"])
def test_the_table_is_of_the_rules_as_they_are(tool: ModuleType, name: str) -> None:
    row = next(row for row in tool.read() if row.model == name)
    (runtime,) = onnxmem.analyze(
        MODELS / f"{name}.onnx", runtimes=["ort-cpu"], cpu="avx512", asks_onnxruntime=False
    ).runtimes
    assert runtime.process_bytes == row.process_predicted
    # A page: the emulated graph lacks a name of the one that onnxruntime saves.
    assert runtime.load_peak_bytes == pytest.approx(row.load_predicted, abs=4096)
