"""Each option that takes a path with each kind of file, each output with each fault.

The tables below are multiplied, so that a new option, kind or fault meets all others. A case may
end with any documented code and says why in one line; it never ends with an internal error, never
waits, never grows, and an older result is whole after it.
"""

import json
import os
import socket
import subprocess
import sys
from argparse import Action, ArgumentParser
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hostile.running import MODEL
from models_on_disk import write_model
from paths import environment

from onnxmem.cli import COMMANDS

pytest.importorskip("resource", reason="limits as POSIX has them")

READS: Final = {
    "analyze models": f"{MODEL} {{}} --format jsonl",
    "analyze @list": "@{} --format jsonl",
    "analyze --cache": f"{MODEL} --cache {{}}",
    "analyze --cache of models": f"{MODEL} {{}} --format jsonl --cache rows",
    "analyze --devices": f"{MODEL} {MODEL} --summary --device 1GiB --devices {{}}",
    "analyze --accuracy": f"{MODEL} {MODEL} --html /dev/null --accuracy {{}}",
    "view models": "view {} --no-open --quiet -o /dev/null",
    "view --cache": f"view {MODEL} --no-open --quiet -o /dev/null --cache {{}}",
    "view --devices": f"view {MODEL} {MODEL} --no-open -o /dev/null --devices {{}}",
    "view --accuracy": f"view {MODEL} {MODEL} --no-open -o /dev/null --accuracy {{}}",
    "advise models": "advise {}",
    "annotate models": "annotate {} -o /dev/null",
    "check models": "check {} --budget-peak 1GiB",
    "check @list": "check @{} --budget-peak 1GiB",
    "check --config": f"check {MODEL} --config {{}}",
    "check --baseline": f"check {MODEL} --max-growth 5% --baseline {{}}",
    "devices --devices": "devices --devices {}",
    "devices --model": "devices --model {}",
    "diff models": f"diff {{}} {MODEL}",
    "diff models, the second": f"diff {MODEL} {{}}",
    "diff models, a report": f"diff {{}}.json {MODEL}",
    "explain model": "explain weights {}",
    "export models": "export {} --format chrome",
    "fit models": "fit {} --device 1GiB",
    "fit --devices": f"fit {MODEL} --which-device --devices {{}}",
    "fit --prices": f"fit {MODEL} --which-device --prices {{}}",
    "measure models": "measure {}",
    "measure --inputs": f"measure {MODEL} --inputs {{}}",
    "reorder model": "reorder {}",
    "sweep model": "sweep {}",
    "sweep --devices": f"sweep {MODEL} --device T4 --devices {{}}",
}
"""Command and option or argument: a command line that reads the file."""
STDIN: Final = {
    "analyze": f"{MODEL} - --format jsonl",
    "export": "export - --format chrome",
    "annotate": "annotate - -o /dev/null",
    "explain": "explain -",
}
WRITES: Final = {
    "analyze --output": f"{MODEL} --json -o {{}}",
    "analyze --output, line by line": f"{MODEL} --format jsonl -o {{}}",
    "analyze --html": f"{MODEL} --html {{}}",
    "view --output": f"view {MODEL} --no-open -o {{}}",
    "advise --output": f"advise {MODEL} --emulate-optimiser -o {{}}",
    "annotate --output": f"annotate {MODEL} -o {{}}",
    "check --output": f"check {MODEL} --budget-peak 1GiB -o {{}}",
    "check --also": f"check {MODEL} --budget-peak 1GiB --also sarif={{}}",
    "devices --output": "devices -o {}",
    "diff --output": f"diff {MODEL} {MODEL} -o {{}}",
    "diff --html": f"diff {MODEL} {MODEL} --html {{}}",
    "explain --output": "explain weights -o {}",
    "export --output": f"export {MODEL} --format chrome -o {{}}",
    "export --output, of bytes": f"export {MODEL} --format torch-snapshot -o {{}}",
    "fit --output": f"fit {MODEL} --device 1GiB -o {{}}",
    "reorder --output": "reorder branches.onnx -o {}",
    "sweep --output": f"sweep {MODEL} --batch 1..2 -o {{}}",
}
"""``measure --output`` runs a model first, and is in the slow table."""
PATHS: Final = ("FILE", "DIR", "MODEL", "PATH")
"""What a metavar holds if its option takes a path."""
OLD: Final = b"o" * 8000


def kinds(folder: Path) -> dict[str, str]:
    """A name of each kind of file."""
    os.mkfifo(folder / "fifo")
    (folder / "folder").mkdir()
    (folder / "dangling").symlink_to("nowhere")
    (folder / "itself").symlink_to("itself")
    (folder / "empty").touch()
    (folder / "unreadable").write_text("[tool]")
    (folder / "unreadable").chmod(0)
    (folder / "noise").write_bytes(bytes(range(255, 0, -1)) * 40)
    (folder / "deep").write_text(f"a = {'[' * 5000}{']' * 5000}")
    (folder / "deep.json").write_text(f"{'[' * 100_000}{']' * 100_000}")
    with (folder / "huge").open("wb") as file:
        file.truncate(2**34)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "socket"))
    for name in ("fifo", "folder", "dangling", "itself", "empty", "unreadable", "noise", "huge"):
        (folder / f"{name}.json").symlink_to(name)
    names = ("fifo", "folder", "dangling", "itself", "empty", "unreadable", "noise", "deep", "huge")
    return {
        **{name: name for name in names},
        "socket": "socket",
        "missing": "missing",
        "device": "/dev/zero",
        "over-long": "n" * 300,
        "below a file": f"{MODEL}/below",
        "no name": "",
        "vanishing": "vanishing",
    }


BRANCHES: Final = """agraph (float[N,64] x) => (float[N,1] y) {
    a = Concat <axis = 1> (x, x, x, x)
    b = Concat <axis = 1> (x, x, x, x)
    p = ReduceMax <axes = [1]> (a)
    q = ReduceMax <axes = [1]> (b)
    y = Add(p, q)
}"""
"""Takes less where the second Concat waits for the first ReduceMax."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that anyone may write to, with models."""
    write_model(tmp_path / MODEL)
    write_model(tmp_path / "branches.onnx", BRANCHES)
    for each in (*tmp_path.parents, tmp_path):
        if each.owner() == tmp_path.owner() and "pytest" in str(each):
            each.chmod(0o777)
    return tmp_path


def ran(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run cases in one process."""
    results = folder / "results"
    results.touch()
    results.chmod(0o666)
    # Some cases run as another user, who may not write to the temporary folder of this one.
    temporary = folder.with_name(f"{folder.name}-temporary")
    temporary.mkdir(exist_ok=True)
    temporary.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-B", "-m", "hostile.bad_day", str(results)],
        input=json.dumps(cases),
        cwd=folder,
        env=environment() | {"TMPDIR": str(temporary)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in results.read_text().splitlines()]
    results.unlink()
    assert len(found) == len(cases)
    return found


def wrong(case: Mapping[str, Any]) -> Iterator[str]:
    """Say what no case may do."""
    if case["code"] not in {0, 1, 2, 3}:
        yield f"exit code {case['code']}: {case['err'][:200]}"
    if "Traceback" in case["err"] or "internal" in case["err"]:
        yield case["err"][-300:]
    if case["grown_kib"] > 2**19:
        yield f"grew by {case['grown_kib']:,} KiB"


def refused(case: Mapping[str, Any]) -> Iterator[str]:
    """Say what is wrong with how a case that must not succeed ended."""
    yield from wrong(case)
    lines = case["err"].splitlines()
    if not (case["code"] and len(lines) == 1 and lines[0].startswith("error: ")):
        yield f"exit code {case['code']}, {case['err'][:300]!r}"


def none_is_wrong(told: list[str]) -> None:
    """Fail with all that is wrong: an assertion would leave most of it out."""
    if told:
        pytest.fail("\n".join([f"{len(told)} are wrong", *told]), pytrace=False)


def test_every_option_that_takes_a_path_is_in_a_table() -> None:
    tables = {name.partition(",")[0] for name in (*READS, *WRITES, "measure --output")}
    lacking = [
        f"{command} {_name(action)}"
        for command, module in COMMANDS.items()
        for action in _actions(getattr(import_module(f"onnxmem.cli.{module}"), f"{command}_parser"))
        if any(word in str(action.metavar or "") for word in PATHS)
    ]
    assert len(lacking) > 30
    # What -o, --html and --also are of a command that takes them all from one function, and a page.
    same = {"view --html", "explain what", "diff --b-precision"}
    assert [name for name in lacking if name not in tables | same] == []


def _actions(parser: Callable[[], ArgumentParser]) -> list[Action]:
    return parser()._actions  # noqa: SLF001 - argparse has no other list


def _name(action: Action) -> str:
    return action.option_strings[-1] if action.option_strings else action.dest


def test_each_kind_of_file_at_each_option(folder: Path) -> None:
    names = kinds(folder)
    cases = []
    for line, (kind, name) in product(READS.values(), names.items()):
        words = [word.format(name) for word in line.split()]
        case: dict[str, Any] = {"words": words}
        if kind == "vanishing":
            own = next(word for word in words if "vanishing" in word).removeprefix("@")
            case["vanishing"] = own
        elif kind == "unreadable":
            case["locked"] = True
        elif kind == "missing":
            case["removed after"] = name
        cases.append(case)
    told = []
    for (option, kind), case, found in zip(
        product(READS, names), cases, ran(folder, cases), strict=True
    ):
        if case["words"][:2] == ["explain", "weights"] and kind == "no name":
            continue  # no model is named: what is meant is explained
        makes_its_folder = option.endswith("--cache") and kind in {"folder", "missing", "vanishing"}
        # Each line of a list is a name, of which each has a line.
        if makes_its_folder or (option.endswith("@list") and kind == "noise"):
            told += [f"{option}, {kind}: {text}" for text in wrong(found)]
        else:
            told += [f"{option}, {kind}: {text}" for text in refused(found)]
    print(f"{len(READS)} options x {len(names)} kinds = {len(cases)} cases")  # noqa: T201
    none_is_wrong(told)


def test_each_kind_of_file_on_stdin(folder: Path) -> None:
    names = kinds(folder)
    chosen = {kind: names[kind] for kind in ("fifo", "empty", "noise", "deep", "device")}
    cases = [
        {"words": line.split(), "stdin": name}
        for line, name in product(STDIN.values(), chosen.values())
    ]
    told = []
    for (option, kind), found in zip(product(STDIN, chosen), ran(folder, cases), strict=True):
        told += [f"{option}, {kind}: {text}" for text in refused(found)]
        if option == "analyze" and found["out"].count("\n") != 2:
            told.append(f"{option}, {kind}: {found['out'].count(chr(10))} rows")
    none_is_wrong(told)


FAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "full disk": {"file_bytes": 16},
    "read-only folder": {"locked": True},
    "folder that goes while it is written": {"vanishing": "out"},
    "folder that is gone": {},
    "current folder that is gone": {"removed": "gone"},
    "folder in place of the file": {},
    "link to itself": {},
    "over-long name": {},
    "no name": {},
}


def test_each_output_with_each_fault(folder: Path) -> None:
    (folder / "locked").mkdir()
    old = folder / "old"
    for path in (old, folder / "locked" / "old"):
        path.write_bytes(OLD)
        path.chmod(0o666)
    (folder / "itself").symlink_to("itself")
    (folder / "a folder").mkdir()
    (folder / "locked").chmod(0o555)
    names = {
        "full disk": str(old),
        "read-only folder": "locked/old",
        "folder that goes while it is written": "out/new",
        "folder that is gone": "nowhere/new",
        "current folder that is gone": "new",
        "folder in place of the file": "a folder",
        "link to itself": "itself",
        "over-long name": "n" * 300,
        "no name": "",
    }
    cases = []
    for line, (fault, extra) in product(WRITES.values(), FAULTS.items()):
        words = [word.format(names[fault]) for word in line.split()]
        force = [] if words[0] == "schema" else ["--force"]
        if "removed" in extra:
            words = [
                str(folder / word) if word in {MODEL, "branches.onnx"} else word for word in words
            ]
        cases.append({"words": words + force, **extra})
    told = []
    for (option, fault), found in zip(product(WRITES, FAULTS), ran(folder, cases), strict=True):
        told += [f"{option}, {fault}: {text}" for text in refused(found)]
    print(f"{len(WRITES)} outputs x {len(FAULTS)} faults = {len(cases)} cases")  # noqa: T201
    none_is_wrong(told)
    assert old.read_bytes() == (folder / "locked" / "old").read_bytes() == OLD
    left = [path.name for path in folder.rglob("*") if path.name.endswith(".part")]
    assert left == []
