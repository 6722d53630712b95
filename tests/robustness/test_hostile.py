"""Untrusted files: each is analyzed or refused in one line, and nothing else happens.

The files are those of ``tests/hostile``, made anew for these tests. Commands run many to a process,
which has 1.5 GiB of address space and may use 1 GiB; each has 10 s.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import hostile
import pytest
from hostile import HostileFile, outputs
from hostile.child import SECONDS
from hostile.running import LIGHT, MODEL, misbehaved, ran, wrong_row

from onnxmem.cli import COMMANDS as ALL_COMMANDS
from onnxmem.export.exporters import EXPORTERS

pytest.importorskip("resource", reason="limits as POSIX has them")

WRITTEN = tuple(file for file in LIGHT if file.name not in {"3 GiB", "weight of 1.9 GiB"})
"""Those of which a copy is no burden."""
SOME = 8
"""The default run takes the first of so many files of each kind."""


@pytest.fixture
def heavy(folder: Path) -> list[HostileFile]:
    """Make those that take longer, too."""
    files = [file for file in hostile.ALL if file not in LIGHT]
    for file in files:
        file.write(folder / file.file_name)
    return files


def faults_as_json(folder: Path, tmp_path: Path, files: Sequence[HostileFile]) -> list[str]:
    words = [[str(Path(folder, file.file_name)), "--json"] for file in files]
    faults = []
    for file, each in zip(files, ran(folder, tmp_path, words), strict=True):
        wrong = misbehaved(each)
        row = json.loads(each.out)["models"][0] if each.out else None
        if row is not None:
            wrong += wrong_row(file, row)
        elif each.code != 2:
            wrong.append("no row")
        if each.code and not each.err.startswith("error: "):
            wrong.append(f"does not begin as an error: {each.err[:99]}")
        faults += [f"{file.kind}, {file.name}: {text}" for text in wrong]
    return faults


def test_the_set_is_large_and_its_names_differ() -> None:
    names = {file.file_name for file in hostile.ALL}
    assert len(names) == len(hostile.ALL) > 870
    assert min(Counter(file.kind for file in hostile.ALL).values()) >= 1


def test_some_files_of_each_kind_are_analyzed_or_refused(folder: Path, tmp_path: Path) -> None:
    kinds = Counter[str]()
    some = []
    for file in LIGHT:
        if kinds[file.kind] % SOME == 0:
            some.append(file)
        kinds[file.kind] += 1
    assert faults_as_json(folder, tmp_path, some) == []


@pytest.mark.long
def test_each_file_is_analyzed_or_refused(folder: Path, tmp_path: Path) -> None:
    assert faults_as_json(folder, tmp_path, LIGHT) == []


@pytest.mark.slow
def test_so_is_each_of_those_that_take_longer(
    folder: Path, tmp_path: Path, heavy: list[HostileFile]
) -> None:
    assert faults_as_json(folder, tmp_path, heavy) == []


SESSION = ("--runtime", "ort-cpu", "--emulate-optimizer")
COMMANDS = {
    "text": ("{}", "--layers"),
    "training": ("{}", "--train", "--batch", "7", "--budget", "1 GiB"),
    "recipe": "{} --train --checkpoint best --lora-rank 4 --shard zero3 --world 8".split(),
    "onnxruntime": ("{}", *SESSION, "--json"),
    "onnxruntime on cuda": ("{}", "--runtime", "ort-cuda", "--emulate-optimizer", "--json"),
    "onnxruntime's graph": ("{}", "--graph", "ort-all", "--emulate-optimizer", "--json"),
    "both": ("{}", *SESSION, "--train"),
    "best order": ("{}", "--order", "best", "--json"),
    "context": ("{}", "--context", "128", "--json"),
    "fit": ("fit", "{}", "--device", "16 GiB"),
    "fit a step": ("fit", "{}", "--device", "16 GiB", "--train", "--json"),
    "fit which": ("fit", "{}", "--which-device"),
    "fit cards": ("fit", "{}", "--which-device", "--rank", "bandwidth", "--cards", "1,2"),
    "sweep": ("sweep", "{}", "--batch", "1..4", "--device", "16 GiB"),
    "sweep a step": ("sweep", "{}", "--batch", "1..3", "--train", "--csv"),
    "simulate": "simulate {} --requests batch=1..4 --num-requests 9 --emulate-optimizer".split(),
    "simulate at once": "simulate {} --requests batch=1..4 --num-requests 9 --concurrency 3 "
    "--emulate-optimizer --json".split(),
    "explain rules": ("explain", "rules", "{}", "--json"),
    "fit contexts": ("fit", "{}", "--device", "16 GiB", "--context", "128,4096"),
    "devices": ("devices", "H100", "--model", "{}"),
    "check": ("check", "{}", "--budget-peak", "1 GiB"),
    "check as sarif": ("check", "{}", "--budget-peak", "1 GiB", "--format", "sarif"),
    "check as junit": ("check", "{}", "--budget-peak", "1 GiB", "--format", "junit"),
    "check as markdown": ("check", "{}", "--budget-peak", "1 GiB", "--format", "markdown"),
    "check for github": ("check", "{}", "--budget-peak", "1 GiB", "--format", "github"),
    "diff": ("diff", "{}", MODEL),
    "diff from": ("diff", MODEL, "{}"),
    "reorder": ("reorder", "{}"),
    "advise": ("advise", "{}", "--emulate-optimizer"),
    "advise a step": ("advise", "{}", "--emulate-optimizer", "--train", "--budget", "1 GiB"),
    "advise settings": ("advise", "{}", "--emulate-optimizer", "--emit", "json"),
    "explain": ("explain", "peak_bytes", "{}"),
    "explain a message": ("explain", "CUDA out of memory. Tried to allocate 392.00 MiB", "{}"),
}
# onnxruntime finds its statistics by names as they are: none is made printable there.
WRITING = {
    "page": ("{}", "-q", "--html", "{out}.html"),
    "page of a step": ("{}", "-q", "--train", "--batch", "7", "--html", "{out}.html"),
    "page of a session": ("{}", "-q", *SESSION, "--html", "{out}.html"),
    "view": ("view", "{}", "-q", "--no-open", "-o", "{out}.html"),
    "page of a difference": ("diff", "{}", MODEL, "-q", "--html", "{out}.html"),
    "page of a difference of steps": ("diff", MODEL, "{}", "-q", "--train", "--html", "{out}.html"),
    "annotate": ("annotate", "{}", "-q", "-o", "{out}.onnx"),
    "annotate a step": ("annotate", "{}", "-q", "--train", "-o", "{out}.onnx"),
    "reorder": ("reorder", "{}", "-q", "-o", "{out}.onnx"),
    "trace of a step": "export {} -q --train --format chrome -o {out}.chrome".split(),
    "metrics of all": ("export", "{}", "-q", "--train", *SESSION, "--budget", "1 GiB",
                       "--format", "metrics", "-o", "{out}.metrics"),
    **{f"export {name}": f"export {{}} -q --emulate-optimizer --format {name} -o {{out}}.{name}"
       .split() for name in EXPORTERS if name != "ort-node-stats"},
}  # fmt: skip


def test_every_command_that_reads_models_is_called() -> None:
    called = {words[0] for words in (*COMMANDS.values(), *WRITING.values())} - {"{}"}
    assert set(ALL_COMMANDS) - called == {"analyze", "measure", "schema"}


def asked(folder: Path, words: Sequence[str], file: HostileFile, out: Path) -> list[str]:
    """Write a command for one file."""
    path = str(Path(folder, file.file_name))
    return [path if word == "{}" else word.replace("{out}", str(out)) for word in words]


def faults_of(
    folder: Path, tmp_path: Path, command: Sequence[str], files: Sequence[HostileFile]
) -> list[str]:
    words = [asked(folder, command, file, tmp_path) for file in files]
    return [
        f"{file.kind}, {file.name}: {text}"
        for file, each in zip(files, ran(folder, tmp_path, words), strict=True)
        for text in misbehaved(each)
    ]


def faults_in_writing(
    folder: Path, tmp_path: Path, commands: Sequence[Sequence[str]], files: Sequence[HostileFile]
) -> list[str]:
    """Write something of each file with each command, and say what is wrong with any."""
    made = tmp_path / "made"
    made.mkdir()
    cases = [(command, file) for command in commands for file in files]
    words = [asked(folder, *case, made / str(n)) for n, case in enumerate(cases)]
    faults = []
    all_ran = ran(folder, tmp_path, words)
    for number, ((command, file), each) in enumerate(zip(cases, all_ran, strict=True)):
        written = list(made.glob(f"{number}.*"))
        wrong = misbehaved(each)
        # An order that cannot be bettered is not written again.
        may_be_left = command[0] == "reorder" and not written
        if each.code == 0 and len(written) != 1 and not may_be_left:
            wrong.append(f"{len(written)} files written")
        for path in written:
            wrong += outputs.faults(path.name, path.read_bytes())
        faults += [f"{' '.join(command)}: {file.kind}, {file.name}: {text}" for text in wrong]
    return faults


def share(files: Sequence[HostileFile], command: str) -> Sequence[HostileFile]:
    """A seventh of the files, another one for each of seven commands in turn."""
    return files[list(COMMANDS).index(command) % 7 :: 7]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_trips_over_some(folder: Path, tmp_path: Path, command: str) -> None:
    assert faults_of(folder, tmp_path, COMMANDS[command], share(LIGHT, command)) == []


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_trips_over_any(folder: Path, tmp_path: Path, command: str) -> None:
    assert faults_of(folder, tmp_path, COMMANDS[command], LIGHT) == []


@pytest.mark.slow
def test_the_heaviest_question_is_answered_in_time(
    folder: Path, tmp_path: Path, heavy: list[HostileFile]
) -> None:
    assert faults_of(folder, tmp_path, COMMANDS["both"], heavy) == []


@pytest.mark.long
@pytest.mark.parametrize("command", WRITING)
def test_what_is_written_of_any_is_sound(folder: Path, tmp_path: Path, command: str) -> None:
    assert faults_in_writing(folder, tmp_path, [WRITING[command]], WRITTEN) == []


TELLING = set("newline bidi script attribute formula dot".split()) | {"json in html"}


def test_no_name_gets_out_of_what_is_written(folder: Path, tmp_path: Path) -> None:
    commands = [WRITING[name] for name in ("page", "export csv", "export dot", "export chrome")]
    named = [file for file in WRITTEN if file.kind == "name" and file.name in TELLING]
    assert faults_in_writing(folder, tmp_path, commands, named) == []


def test_the_time_is_that_of_the_promise() -> None:
    assert SECONDS == 10
