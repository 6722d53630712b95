"""Rows that are kept: found by content and question, whole or not at all."""

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
from onnxmem.cli import main
from onnxmem.collection import cache
from onnxmem.collection.cache import Cache, content_hash, open_cache
from onnxmem.collection.task import Outcome, Render, work
from onnxmem.errors import Finding, ModelFileError, UsageError
from onnxmem.report.terminal import render


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "net.onnx")
    return tmp_path


class Counted:
    """``analyze``, and how often it was asked."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def __call__(self, source: str, /, **questions: object) -> onnxmem.Analysis:
        self.paths.append(source)
        return onnxmem.analyze(source, **questions)  # type: ignore[arg-type]


def kept(name: str, analyse: Counted, render: Render | None = None, **questions: object) -> Outcome:
    (task,) = tasks_of([name], render)
    return work(
        type(task)(
            name=name,
            location=name,
            settings=questions,
            render=render,
            cache=open_cache("cache"),
        ),
        analyse,
    )


def entries() -> list[Path]:
    return sorted(Path("cache").rglob("*.json"))


def test_a_row_is_computed_once_and_has_the_current_name() -> None:
    analyse = Counted()
    first = kept("net.onnx", analyse)
    Path("net.onnx").rename("other.onnx")
    second = kept("other.onnx", analyse)
    assert analyse.paths == ["net.onnx"]
    assert first["row"] | {"path": "other.onnx"} == second["row"]
    assert len(entries()) == 1


def test_other_content_and_other_settings_have_entries_of_their_own() -> None:
    analyse = Counted()
    trained = {"train": True, "recipe": TrainingConfig(optimizer="sgd")}
    for questions in ({}, {"batch": 2}, trained, {"values": {"image": 2}}):
        kept("net.onnx", analyse, **questions)
        kept("net.onnx", analyse, **questions)
    write_model(Path("net.onnx"), MYSTERY)
    kept("net.onnx", analyse)
    assert len(analyse.paths) == len(entries()) == 5


def test_a_text_is_cached_for_its_name() -> None:
    analyse = Counted()
    kept("net.onnx", analyse)
    text = kept("net.onnx", analyse, render)["text"]
    assert text is not None
    assert kept("net.onnx", analyse, render)["text"] == text
    assert len(analyse.paths) == 2
    Path("net.onnx").rename("other.onnx")
    assert kept("other.onnx", analyse, render)["text"] == text.replace("net.onnx", "other.onnx")
    assert kept("other.onnx", analyse)["text"] is None
    assert len(analyse.paths) == 3


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
def test_an_entry_that_is_not_what_was_written_is_computed_again(harm: object) -> None:
    analyse = Counted()
    row = kept("net.onnx", analyse)["row"]
    (entry,) = entries()
    assert callable(harm)
    entry.write_text(harm(entry.read_text()))
    assert kept("net.onnx", analyse)["row"] == row
    assert len(analyse.paths) == 2
    assert kept("net.onnx", analyse)["row"] == row
    assert len(analyse.paths) == 2


def test_bytes_that_are_no_text_are_no_entry() -> None:
    analyse = Counted()
    kept("net.onnx", analyse)
    entries()[0].write_bytes(b"\xff\xfe")
    kept("net.onnx", analyse)
    assert len(analyse.paths) == 2


def test_failures_and_faults_are_not_cached() -> None:
    Path("page.onnx").write_text("<html>")
    assert kept("page.onnx", Counted())["row"]["status"] == "error"
    assert kept("gone.onnx", Counted())["row"]["status"] == "error"

    class Failing(Counted):
        def __call__(self, source: str, /, **_: object) -> onnxmem.Analysis:
            from dataclasses import replace

            analysis = super().__call__(source)
            return replace(analysis, findings=(Finding("runtime_failed", "it is not there"),))

    assert kept("net.onnx", Failing())["faults"][0]["code"] == "runtime_failed"
    assert entries() == []


def test_a_file_that_changes_meanwhile_is_not_cached() -> None:
    class Changing(Counted):
        def __call__(self, source: str, /, **questions: object) -> onnxmem.Analysis:
            analysis = super().__call__(source, **questions)
            write_model(Path(source), MYSTERY)
            return analysis

    kept("net.onnx", Changing())
    assert entries() == []


def test_a_large_file_is_known_by_what_is_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("copy.onnx").write_bytes(Path("net.onnx").read_bytes())
    assert content_hash("net.onnx") == content_hash("copy.onnx")
    monkeypatch.setattr(cache, "_HASHED_WHOLE_BYTES", 10)
    short = content_hash("net.onnx")
    assert short == content_hash("copy.onnx") != content_hash("net.onnx", whole=True)
    write_model(Path("copy.onnx"), MYSTERY)
    assert content_hash("copy.onnx") != short
    Path("page.onnx").write_bytes(b"\x0a" + bytes([250]) + bytes(20))
    with pytest.raises(ModelFileError):
        content_hash("page.onnx")


def test_the_runtime_s_version_counts_where_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> list[str]:
        cache._versions.cache_clear()  # noqa: SLF001 - a new process
        return [Cache("x").key("net.onnx", {"runtimes": each}) for each in ((), ("ort-cpu",))]

    before = keys()
    monkeypatch.setattr(cache, "version", lambda name: "99" if name == "onnxruntime" else "1")
    static, asked = keys()
    monkeypatch.setattr(cache, "version", lambda _: "1")
    assert keys()[0] == static
    assert keys()[1] != asked
    assert before[0] != before[1]
    cache._versions.cache_clear()  # noqa: SLF001


def test_a_full_disk_costs_the_entry_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(*_: object) -> None:
        raise OSError

    folder = open_cache("cache")
    monkeypatch.setattr(os, "replace", replace)
    folder.put("abc", {"row": {}, "text": None, "text_of": None})
    assert [path for path in Path("cache").rglob("*") if path.is_file()] == []


def test_a_cache_that_is_not_a_folder_is_refused() -> None:
    with pytest.raises(UsageError, match="cannot be written to as a cache"):
        open_cache("net.onnx")
    with pytest.raises(UsageError, match="cannot be written to as a cache"):
        open_cache("a\0b")


def test_a_cache_has_an_absolute_path() -> None:
    assert os.path.isabs(open_cache("cache").folder)  # noqa: PTH117 - a text
    assert json.dumps(open_cache("cache").folder)


def test_peak_rows_are_left_out_where_nobody_reads_them_and_never_of_cached_rows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    task = replace(tasks_of(["net.onnx"])[0], with_peak_rows=False)
    assert rows_of(work(task)["row"]) is None
    assert main(["net.onnx", "--cache", "cache"]) == 0
    capsys.readouterr()
    assert main(["net.onnx", "--cache", "cache", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["models"]
    assert rows_of(row) is not None


def rows_of(row: dict[str, Any]) -> object:
    return row["activations"]["peak_rows"]
