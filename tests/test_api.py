"""The public functions give what the commands print, and print themselves in a few lines."""

import dataclasses
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import pytest
from paths import MODELS, ROOT

import onnxmem
from onnxmem.cli import main
from onnxmem.cli.analyze import analyze_parser
from onnxmem.measuring.measuring import MeasurementFailedError

RESNET = str(MODELS / "resnet50.train.onnx")
ALEXNET = str(MODELS / "alexnet.onnx")
MLP = str(MODELS / "mlp.onnx")
INCEPTION = str(MODELS / "inception_v3.onnx")


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
def test_a_device_can_be_a_size(device: str | int) -> None:
    result = onnxmem.fit(ALEXNET, device=device, reserve_bytes=2**29, instances=2)
    assert result.setup.limit_bytes == 2**29
    assert repr(result) == "<FitResult fits: 469 MiB of 512 MiB, largest batch 15>"
    assert result._repr_html_() == "<p><b>fits: 469 MiB of 512 MiB, largest batch 15</b></p>"


def test_fit_accepts_an_analysis_instead_of_a_file_and_settings() -> None:
    analysis = onnxmem.analyze(ALEXNET, batch=3)
    assert onnxmem.fit(analysis, device="1GiB").requested.number == 3
    with pytest.raises(TypeError, match="an Analysis has its settings: batch cannot be given"):
        onnxmem.fit(analysis, device="1GiB", batch=4)


def test_advise_is_the_command_advise(capsys: pytest.CaptureFixture[str]) -> None:
    advice = onnxmem.advise(ALEXNET, batch=4, budget_bytes=2**28, asks_onnxruntime=False)
    words = ["advise", ALEXNET, "--batch", "4", "--budget", "256MiB", "--emulate-optimizer"]
    row = printed(words, capsys)["models"][0]
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
    assert "  inference: " in repr(difference)


@pytest.mark.parametrize(
    "words", [["process"], ["saved"], ["rules"], ["OM301"], ["why", "more", "than", "the", "file"]]
)
def test_explain_is_the_command_explain(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    found = onnxmem.explain(" ".join(words), ALEXNET, batch=2, asks_onnxruntime=False)
    row = printed(["explain", *words, ALEXNET, "--batch", "2", "--emulate-optimizer"], capsys)
    assert list(found.explained) == row["explained"]
    main(["explain", *words, ALEXNET, "--batch", "2", "--emulate-optimizer"])
    assert f"{found}\n" == capsys.readouterr().out


def test_explain_takes_an_analysis_and_an_out_of_memory_message() -> None:
    analysis = onnxmem.analyze(RESNET, batch=2, train=True)
    reported = repr(onnxmem.explain("CUDA out of memory. Tried to allocate 20.00 MiB", analysis))
    assert reported.startswith("Model ")
    assert "\n\nMessage " in reported
    assert "live at the peak" in reported
    assert onnxmem.explain("training peak", analysis).explained[0]["value"] == (
        analysis.training and analysis.training.peak_bytes
    )
    with pytest.raises(TypeError, match="an Analysis has its settings"):
        onnxmem.explain("peak", analysis, batch=3)
    with pytest.raises(onnxmem.OnnxmemError, match="did you mean"):
        onnxmem.explain("wrkspace")
    assert {row["kind"] for row in onnxmem.explain().explained} == {"metric", "code", "topic"}


def test_check_is_the_command_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = onnxmem.Budget(name="command line", peak_bytes=2**27, batch=2)
    found = onnxmem.check(ALEXNET, RESNET, budget=budget)
    main(["check", ALEXNET, RESNET, "--budget-peak", "128MiB", "--batch", "2", "--format", "json"])
    row = json.loads(capsys.readouterr().out)
    assert [model.path for model in found.models] == [each["path"] for each in row["models"]]
    assert [
        (check.size_bytes, check.outcome.replace(" ", "_"))
        for model in found.models
        for check in model.checks
    ] == [(check["bytes"], check["outcome"]) for each in row["models"] for check in each["checks"]]
    assert found.outcome == "does not fit"
    assert repr(found).splitlines()[0] == "<Checkup of 2 models: does not fit"


def test_check_reads_the_configuration_and_its_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.onnx").symlink_to(ALEXNET)
    with pytest.raises(onnxmem.OnnxmemError, match="no budget"):
        onnxmem.check("net.onnx")
    main(["net.onnx", "--batch", "2", "--json", "-o", "before.json"])
    capsys.readouterr()
    text = '[[budgets]]\npeak = "1 GiB"\nbatch = 2\ngrowth = "5%"\nbaseline = "before.json"\n'
    (tmp_path / "onnxmem.toml").write_text(text)
    found = onnxmem.check()
    assert found.outcome.is_met
    assert len(found.models[0].checks) == 2
    assert onnxmem.check("gone.onnx").outcome == "unknown"


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_measure_runs_a_file_or_an_analysis_and_is_no_module() -> None:
    pytest.importorskip("onnxruntime")
    import_module("onnxmem.measuring.measuring")
    analysis = onnxmem.analyze(MLP, batch=4)
    one, other = onnxmem.measure(MLP, batch=4, runs=1), onnxmem.measure(analysis, runs=1)
    assert one.requested_peak_bytes == other.requested_peak_bytes
    assert one.requested_peak_bytes
    with pytest.raises(TypeError, match="an Analysis has its settings: batch"):
        onnxmem.measure(analysis, batch=5)


@pytest.mark.measure
def test_a_measurement_that_fails_is_raised() -> None:
    pytest.importorskip("onnxruntime")
    with pytest.raises(MeasurementFailedError):
        onnxmem.measure(MLP, memory_limit_bytes=1)


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


@pytest.fixture(scope="module")
def analysis() -> onnxmem.Analysis:
    return onnxmem.analyze(
        RESNET,
        batch=2,
        train=True,
        budget_bytes=2**30,
        runtimes=("ort-cpu",),
        asks_onnxruntime=False,
    )


def test_no_result_prints_its_model(analysis: onnxmem.Analysis) -> None:
    names = ("activations", "training", "torch", "coverage", "compute", "fit", "parameters")
    results = [getattr(analysis, name) for name in (*names, "graph", "results", "max_batch")]
    cached = onnxmem.analyze(MODELS / "smollm_cached.onnx", context=64)
    results += [analysis.runtimes[0], cached.kv_cache]
    assert max(len(repr(each)) for each in results) < 1500


def test_figures_have_the_names_of_their_keys(analysis: onnxmem.Analysis) -> None:
    """What a figure of an analysis is taken from has another name; what JSON has is there too."""
    limit = analysis.max_batch
    assert limit is not None
    row: Any = analysis.to_dict()["max_batch"]
    assert {name: getattr(limit, name) for name in row} == row
    assert row["limiting_phase"]
    best = onnxmem.analyze(INCEPTION, order="best")
    assert best.activations.order is best.schedule
    order: Any = best.to_dict()["activations"]
    assert not [*different_keys(order["order"], best.activations.order)]


def different_keys(row: Mapping[str, Any], found: object, path: str = "") -> Iterator[str]:
    """The keys that are not the path of an attribute of the same value; lists are not compared."""
    for key, value in row.items():
        name = f"{path}{key}"
        if not hasattr(found, key):
            yield name
            continue
        attribute = getattr(found, key)
        if isinstance(value, dict) and not isinstance(attribute, Mapping):
            yield from different_keys(value, attribute, f"{name}.")
        elif not isinstance(value, dict | list) and str(attribute) != str(value):
            yield name


def test_the_guide_lists_each_key_that_no_attribute_is_named_by(
    analysis: onnxmem.Analysis,
) -> None:
    guide = (ROOT / "docs" / "guides" / "from-python.md").read_text("utf-8")
    (without,) = re.findall(
        r"^These keys have no attribute of their own.*?\n\n", guide, re.DOTALL | re.MULTILINE
    )
    listed = {*re.findall(r"`([a-z_.]+)`", re.sub(r"\([^)]*\)", "", without.replace("()", "")))}
    assert {*different_keys(analysis.to_dict(), analysis)} == listed


DOCUMENT: Final = frozenset({"schema", "schema_version", "tool"})


def keys_of(row: Mapping[str, Any], found: object) -> set[str]:
    return {*different_keys({k: v for k, v in row.items() if k not in DOCUMENT}, found)}


def test_a_fit_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.fit(MLP, device="24GiB", train=True, batch=4)
    row = printed(["fit", MLP, "--device", "24GiB", "--train", "--batch", "4"], capsys)
    assert keys_of(row, found) == {
        *("models", "each", "error", "device", "memory_source", "largest", "contexts"),
        *("instances.number", "instances.share_weights", "instances.largest"),
        "power_of_two.is_better_pick",
    }


def test_a_batch_curve_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.batch_curve(ALEXNET, range(1, 5))
    row = printed(["sweep", ALEXNET, "--batch", "1..4:1"], capsys)
    assert keys_of(row, found) == {"model", "device", "peak"}


def test_a_difference_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.diff(ALEXNET, onnxmem.analyze(ALEXNET, batch=5))
    row = printed(["diff", ALEXNET, "--b-batch", "5"], capsys)
    assert {key.partition(".")[0] for key in keys_of(row, found)} == {"figures"}


def test_an_advice_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.advise(MLP, budget_bytes=2**30, train=True, batch=4)
    row = printed(["advise", MLP, "--budget", "1GiB", "--train", "--batch", "4"], capsys)
    of_model = {"path", "status", "error", "runtime", "combinations", "single_changes"}
    assert keys_of(row["models"][0], found) == of_model | {"advice", "budget"}
    assert len(found.proposals) == len(row["models"][0]["advice"])


def test_an_explanation_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.explain("peak", ALEXNET)
    row = printed(["explain", "peak", ALEXNET], capsys)
    assert keys_of(row, found) == {"model"}
    assert list(found.explained) == row["explained"]


def test_a_checkup_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    found = onnxmem.check(ALEXNET, budget=onnxmem.Budget(name="-", peak_bytes=2**27, batch=2))
    main(["check", ALEXNET, "--budget-peak", "128MiB", "--batch", "2", "--format", "json"])
    row = json.loads(capsys.readouterr().out)
    assert keys_of(row, found) == {"outcome"}
    assert found.outcome.replace(" ", "_") == row["outcome"]
    assert {each.replace(" ", "_"): n for each, n in found.counts.items()} == row["counts"]


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_a_measurement_has_attributes_for_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    found = onnxmem.measure(MLP, batch=4, runs=1)
    row = printed(["measure", MLP, "--batch", "4", "--runs", "1"], capsys)["models"][0]["measured"]
    without = {key for key in row if not hasattr(found, key)}
    assert without == {"weights_made_up", "error_percent"}


def test_a_training_step_has_what_allocators_take_for_it(analysis: onnxmem.Analysis) -> None:
    assert analysis.training is not None
    document: Any = analysis.to_dict()
    row = document["training"]
    assert analysis.training.cuda is analysis.torch
    assert analysis.training.tensorflow is analysis.tensorflow
    for allocator in ("cuda", "tensorflow"):
        assert not [*different_keys(row[allocator], getattr(analysis.training, allocator))]
    assert analysis.training.live_by_kind == row["live_by_kind"]
    assert sum(analysis.training.live_by_kind.values()) == analysis.training.peak_bytes


FUNCTIONS: Final = (
    *("advise", "analyze", "analyze_many", "batch_curve", "check", "diff", "explain", "fit"),
    *("measure", "simulate", "sweep", "to_metrics"),
)
COMMAND_ONLY: Final = frozenset(
    {
        *("==SUPPRESS==", "version", "help_all", "models"),
        *("quiet", "verbose", "color", "no_progress"),
        *("output", "force", "format", "html", "json", "summary", "layers"),
        *("jobs", "cache", "dask", "timeout", "strict"),  # many models: analyze_many
        *("targets", "devices_file", "accuracy"),  # what fits where, of many models
        *("observe", "save_observed"),  # onnxmem.observe
        "emulate_optimizer",  # asks_onnxruntime=False
    }
)
"""Options of ``onnxmem MODEL`` that ``analyze`` does not have."""


def options_of(name: str) -> dict[str, str]:
    """What ``help`` says of each option of a function."""
    text = inspect.getdoc(getattr(onnxmem, name)) or ""
    found = re.findall(r"^:param (\w+):\s(.*?)(?=^:|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(found) == len(dict(found)), "an option stands there twice"
    return {option: " ".join(words.split()) for option, words in found}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_has_each_option_with_its_unit_and_default(name: str) -> None:
    told = options_of(name)
    parameters = inspect.signature(getattr(onnxmem, name)).parameters.values()
    passed_on = any(each.kind is each.VAR_KEYWORD for each in parameters)
    own = {each.name: each for each in parameters if each.kind is not each.VAR_KEYWORD}
    settings = {*inspect.signature(onnxmem.analyze).parameters} - {"source"}
    assert {*told} == {*own} | (settings if passed_on else set())
    for option, each in own.items():
        words = told[option]
        if each.default is not each.empty and each.kind is not each.VAR_POSITIONAL:
            assert f"(default: {each.default!r}" in words, option
        for unit in ("bytes", "seconds"):
            assert unit in words or not option.endswith(f"_{unit}"), option


def test_analyze_has_the_options_of_the_command() -> None:
    actions = analyze_parser()._actions  # noqa: SLF001 - argparse has no list of options
    options = {each.dest for each in actions} - COMMAND_ONLY
    fields = {each.name for each in dataclasses.fields(onnxmem.TrainingConfig)}
    assert options - fields == {*options_of("analyze")} - {
        *("source", "recipe", "asks_onnxruntime", "one_of_several", "optimizer", "precision"),
        *("loss",),
    }
    assert fields <= options
