"""The public functions give what the commands print, and print themselves in a few lines."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from paths import MODELS

import onnxmem
from onnxmem.cli import main

RESNET = str(MODELS / "resnet50.train.onnx")
ALEXNET = str(MODELS / "alexnet.onnx")


def printed(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    main([*words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_fit_is_the_command_fit(capsys: pytest.CaptureFixture[str]) -> None:
    result = onnxmem.fit(ALEXNET, device="Raspberry Pi 4B 4GB", batch=2)
    row = printed(["fit", ALEXNET, "--batch", "2", "--device", "Raspberry Pi 4B 4GB"], capsys)
    verdict = result.to_dict()
    assert verdict == {key: row[key] for key in verdict}
    assert row["fits_up_to"] > 100


@pytest.mark.parametrize("device", ["1GiB", 2**30])
def test_a_device_may_be_a_size(device: str | int) -> None:
    result = onnxmem.fit(ALEXNET, device=device, reserve_bytes=2**29, instances=2)
    assert result.setup.limit_bytes == 2**29
    assert repr(result) == "<FitResult fits: 469 MiB of 512 MiB, largest batch 15>"


def test_an_analysis_serves_for_a_file_and_takes_no_settings() -> None:
    analysis = onnxmem.analyze(ALEXNET, batch=3)
    assert onnxmem.fit(analysis, device="1GiB").requested.number == 3
    with pytest.raises(TypeError, match="an Analysis has its settings: batch cannot be given"):
        onnxmem.fit(analysis, device="1GiB", batch=4)


def test_advise_is_the_command_advise(capsys: pytest.CaptureFixture[str]) -> None:
    advice = onnxmem.advise(ALEXNET, batch=4, budget_bytes=2**28)
    row = printed(["advise", ALEXNET, "--batch", "4", "--budget", "256MiB"], capsys)["models"][0]
    ours = {each.suggestion.id: each.after_bytes for each in advice.proposals}
    theirs = {each["id"]: each["after_bytes"] for each in row["advice"]}
    assert ours == {name: theirs[name] for name in ours}
    assert repr(advice).startswith("<Advised ")
    assert len(repr(advice).splitlines()) <= 6


def test_diff_is_the_command_diff(capsys: pytest.CaptureFixture[str]) -> None:
    difference = onnxmem.diff(ALEXNET, onnxmem.analyze(ALEXNET, batch=5))
    row = printed(["diff", ALEXNET, "--b-batch", "5"], capsys)
    assert {each.name.replace(" ", "_"): each.after_bytes for each in difference.figures} == {
        name: figure["after_bytes"] for name, figure in row["figures"].items()
    }
    assert len(repr(difference).splitlines()) < 10


def test_an_analysis_prints_its_figures_and_not_its_graph() -> None:
    analysis = onnxmem.analyze(RESNET, batch=2, train=True, budget_bytes=2**30)
    assert repr(analysis).splitlines() == [
        f"<Analysis of {RESNET!r} batch=2 status=ok",
        "  inference: 117 MiB",
        "  weights: 97.7 MiB",
        "  peak activation memory: 18.4 MiB",
        "  training step: 517 MiB",
        "  budget 1.00 GiB: does not fit>",
    ]
