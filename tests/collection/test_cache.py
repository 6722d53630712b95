"""Rows that are kept: found by content and question, whole or not at all."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from collection.worker_tasks import tasks_of
from models_on_disk import MYSTERY, write_model

import onnxmem
from onnxmem import TrainingConfig
from onnxmem.analysis.analysis import Analysis
from onnxmem.cli import main
from onnxmem.collection import cache
from onnxmem.collection.cache import Cache, content_hash, open_cache
from onnxmem.collection.task import Outcome, Render, work
from onnxmem.errors import Finding, ModelFileError, UsageError
from onnxmem.model.files import FileWindow, ModelFile, opened_model
from onnxmem.report.terminal import render


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    return tmp_path


class Counted:
    """``analyze``; records the analyzed paths."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, model: ModelFile, /, **settings: object) -> onnxmem.Analysis:
        self.paths.append(model.path)
        return onnxmem.analyze(model, **settings)  # type: ignore[arg-type]


def cached(
    name: str, analyzer: Counted, render: Render | None = None, **settings: object
) -> Outcome:
    (task,) = tasks_of([name], render)
    return work(
        type(task)(
            name=name,
            location=name,
            settings=settings,
            render=render,
            cache=open_cache("cache"),
        ),
        analyzer,
    )


def hash_of(path: str, *, whole: bool = False) -> str:
    with opened_model(path) as window:
        return content_hash(window, path, whole=whole)


def entries() -> list[Path]:
    return sorted(Path("cache").rglob("*.json"))


def test_a_row_is_computed_once_and_has_the_current_name() -> None:
    analyzer = Counted()
    first = cached("net.onnx", analyzer)
    Path("net.onnx").rename("other.onnx")
    second = cached("other.onnx", analyzer)
    assert analyzer.paths == ["net.onnx"]
    assert first["row"] | {"path": "other.onnx"} == second["row"]
    assert len(entries()) == 1


def test_other_content_and_other_settings_have_separate_entries() -> None:
    analyzer = Counted()
    trained = {"train": True, "recipe": TrainingConfig(optimizer="sgd")}
    for settings in ({}, {"batch": 2}, trained, {"values": {"image": 2}}):
        cached("net.onnx", analyzer, **settings)
        cached("net.onnx", analyzer, **settings)
    write_model(Path("net.onnx"), MYSTERY)
    cached("net.onnx", analyzer)
    assert len(analyzer.paths) == len(entries()) == 5


def test_a_text_is_cached_and_takes_the_current_name() -> None:
    analyzer = Counted()
    cached("net.onnx", analyzer)
    text = cached("net.onnx", analyzer, render)["text"]
    assert text is not None
    assert cached("net.onnx", analyzer, render)["text"] == text
    assert len(analyzer.paths) == 2
    Path("net.onnx").rename("other.onnx")
    assert cached("other.onnx", analyzer, render)["text"] == text.replace("net.onnx", "other.onnx")
    assert cached("other.onnx", analyzer)["text"] is None
    assert len(analyzer.paths) == 3


@pytest.mark.parametrize(
    "harm",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        lambda _: '{"entry": {}}',
        lambda _: "[" * 100_000,
        lambda text: text.replace('"total_bytes": ', '"total_bytes": 1'),
    ],
)
def test_a_damaged_entry_is_computed_again(harm: object) -> None:
    analyzer = Counted()
    row = cached("net.onnx", analyzer)["row"]
    (entry,) = entries()
    assert callable(harm)
    entry.write_text(harm(entry.read_text()))
    assert cached("net.onnx", analyzer)["row"] == row
    assert len(analyzer.paths) == 2
    assert cached("net.onnx", analyzer)["row"] == row
    assert len(analyzer.paths) == 2


def test_bytes_that_are_not_text_are_not_an_entry() -> None:
    analyzer = Counted()
    cached("net.onnx", analyzer)
    entries()[0].write_bytes(b"\xff\xfe")
    cached("net.onnx", analyzer)
    assert len(analyzer.paths) == 2


def test_failures_and_errors_are_not_cached() -> None:
    Path("page.onnx").write_text("<html>")
    assert cached("page.onnx", Counted())["row"]["status"] == "error"
    assert cached("gone.onnx", Counted())["row"]["status"] == "error"

    class Failing(Counted):
        def __call__(self, model: ModelFile, /, **_: object) -> onnxmem.Analysis:
            analysis = super().__call__(model)
            return replace(analysis, findings=(Finding("runtime_failed", "it is not there"),))

    assert cached("net.onnx", Failing())["faults"][0]["code"] == "runtime_failed"
    assert entries() == []


def test_a_file_that_changes_during_analysis_is_not_cached() -> None:
    class Changing(Counted):
        def __call__(self, model: ModelFile, /, **settings: object) -> onnxmem.Analysis:
            analysis = super().__call__(model, **settings)
            write_model(Path(model.path), MYSTERY)
            return analysis

    cached("net.onnx", Changing())
    assert entries() == []


def test_a_large_file_is_keyed_by_the_bytes_that_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("copy.onnx").write_bytes(Path("net.onnx").read_bytes())
    assert hash_of("net.onnx") == hash_of("copy.onnx")
    monkeypatch.setattr(cache, "_HASHED_WHOLE_BYTES", 10)
    short = hash_of("net.onnx")
    assert short == hash_of("copy.onnx") != hash_of("net.onnx", whole=True)
    write_model(Path("copy.onnx"), MYSTERY)
    assert hash_of("copy.onnx") != short
    Path("page.onnx").write_bytes(b"\x0a" + bytes([250]) + bytes(20))
    with pytest.raises(ModelFileError):
        hash_of("page.onnx")


def test_a_growing_file_is_hashed_to_the_end_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Path("net.onnx")
    net.write_bytes(b"12345")

    def grown(_: FileWindow) -> int:
        os.truncate(net, 2**20)
        return 5

    monkeypatch.setattr(FileWindow, "__len__", grown)
    assert hash_of("net.onnx") == hashlib.sha256(b"12345").hexdigest()


def test_the_runtimes_version_is_part_of_the_key_if_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def keys() -> list[str]:
        cache._versions.cache_clear()  # noqa: SLF001 - a new process
        with opened_model("net.onnx") as window:
            return [
                Cache("x").key(window, "net.onnx", {"runtimes": each})
                for each in ((), ("ort-cpu",))
            ]

    before = keys()
    monkeypatch.setattr(cache, "version", lambda name: "99" if name == "onnxruntime" else "1")
    static, requested = keys()
    monkeypatch.setattr(cache, "version", lambda _: "1")
    assert keys()[0] == static
    assert keys()[1] != requested
    assert before[0] != before[1]
    cache._versions.cache_clear()  # noqa: SLF001


def test_a_full_disk_costs_only_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError

    folder = open_cache("cache")
    monkeypatch.setattr(os, "replace", replace)
    folder.put("abc", {"row": {}, "text": None, "text_of": None})
    assert [path for path in Path("cache").rglob("*") if path.is_file()] == []


def test_a_cache_that_is_not_a_folder_is_rejected() -> None:
    with pytest.raises(UsageError, match="cannot be written to as a cache"):
        open_cache("net.onnx")
    with pytest.raises(UsageError, match="cannot be written to as a cache"):
        open_cache("a\0b")


def test_a_cache_has_an_absolute_path() -> None:
    assert os.path.isabs(open_cache("cache").folder)
    assert json.dumps(open_cache("cache").folder)


def test_peak_formulas_are_omitted_if_unused_but_never_from_cached_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = replace(tasks_of(["net.onnx"])[0], with_peak_rows=False)
    assert rows_of(work(task)["row"]) is None
    assert main(["net.onnx", "--cache", "cache"]) == 0
    capsys.readouterr()
    assert main(["net.onnx", "--cache", "cache", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert rows_of(row) is not None


def test_a_text_computes_no_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(Analysis, "to_dict", refuse)
    assert main(["net.onnx"]) == 0
    assert "net.onnx" in capsys.readouterr().out


def rows_of(row: dict[str, Any]) -> object:
    return row["activations"]["peak_rows"]
