"""What an analysis opens: the model's file and its own result, and nothing else.

Python tells an audit hook of every file that is opened, every process and socket, and every use of
``eval``, ``exec``, ``compile`` and ``pickle`` (https://docs.python.org/3/library/audit_events.html).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import hostile
import pytest
from hostile.not_models import whole

from onnxmem.files import is_part

PROGRAM = """
import json, os, sys
from onnxmem.cli import main
commands, warming = json.load(sys.stdin)
for words in warming:
    main(words)
seen = []
watched = False
FORBIDDEN = (
    "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen", "socket.",
    "pickle.find_class", "ctypes.dlopen", "urllib.Request", "os.remove", "os.rename", "os.mkdir",
    "os.symlink", "os.link", "os.chmod", "os.truncate", "shutil.", "tempfile.", "webbrowser.",
)
def imports_a_module():
    # The loader reads, decodes and runs the code of modules; nothing of a model is in it.
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
def is_no_code_of_a_model():
    # dataclasses and named tuples write their methods as text; ast only reads, and runs nothing.
    frame = sys._getframe(2)
    return frame.f_globals.get("__name__") in {"dataclasses", "collections", "ast"}
def hook(event, arguments):
    global watched
    if not watched:
        return
    watched = False
    try:
        if event == "open" and not imports_a_module():
            is_path = isinstance(arguments[0], (str, bytes))
            path = os.fsdecode(arguments[0]) if is_path else str(arguments[0])
            seen.append(["open", path, str(arguments[1])])
        elif event in {"exec", "compile"}:
            if imports_a_module() or is_no_code_of_a_model():
                return
            seen.append([event, repr(arguments[0])[:200], ""])
        elif event.startswith(FORBIDDEN) and not imports_a_module():
            seen.append([event, repr(arguments)[:200], ""])
    finally:
        watched = True
sys.addaudithook(hook)
kept = sys.stdout, sys.stderr
sys.stdout = sys.stderr = open(os.devnull, "w")
told = []
for words in commands:
    seen = []
    watched = True
    main(words)
    watched = False
    told.append(seen)
sys.stdout, sys.stderr = kept
json.dump(told, sys.stdout)
"""

WARMING = (("sound.onnx", "--json"), ("sound.onnx", "--train", "--batch", "3"))
LIGHT = tuple(
    file
    for file in hostile.ALL
    if file.kind in {"external", "other format", "symbol", "name", "special"}
    and file.name != "megabyte"
)


def events(folder: Path, commands: list[list[str]]) -> list[list[list[str]]]:
    """What each command did, once all that is imported late has been imported."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([commands, WARMING]),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the files that have something to be opened, or run."""
    made = tmp_path_factory.mktemp("watched")
    for file in LIGHT:
        file.write(made / file.file_name)
    (made / "sound.onnx").write_bytes(whole())
    return made


@pytest.mark.parametrize(
    "flags", [["--json"], ["--train", "--batch", "7"]], ids=["inference", "training"]
)
def test_the_model_alone_is_opened_and_nothing_is_made(folder: Path, flags: list[str]) -> None:
    before = {path.name for path in folder.iterdir()}
    files = LIGHT[::3] if "--train" in flags else LIGHT
    commands = [[file.file_name, *flags] for file in files]
    for file, seen in zip(files, events(folder, commands), strict=True):
        assert [each[:2] for each in seen if each[:2] != ["open", file.file_name]] == []
        assert len(seen) <= 1
    assert {path.name for path in folder.iterdir()} == before


def test_the_result_is_opened_too(folder: Path) -> None:
    seen = events(folder, [["external-20_GiB.onnx", "--format", "jsonl", "-o", "result.jsonl"]])[0]
    assert [each[1] for each in seen] == ["result.jsonl", "external-20_GiB.onnx"]


def test_a_result_lies_beside_its_place_until_it_is_whole(folder: Path) -> None:
    seen = events(folder, [["external-20_GiB.onnx", "--json", "-o", "result.json"]])[0]
    names = {Path(each[1]).name for each in seen if each[0] == "open"}
    parts = {name for name in names if is_part(name)}
    assert len(parts) == 1
    # Python opens a temporary file by the name of its folder.
    assert names - parts == {"external-20_GiB.onnx", folder.name}
    assert {each[0] for each in seen} == {"open", "tempfile.mkstemp", "os.chmod", "os.rename"}
    assert not any(is_part(path.name) for path in folder.iterdir())
