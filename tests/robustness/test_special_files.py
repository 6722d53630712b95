"""Each option that takes a path with each kind of file, each output with each fault and each death.

The options are those of the commands' parsers, so that a new one meets all kinds and faults. A case
may end with any documented code and says why in one line; it never ends with an internal error,
never waits, never grows, and an older result is whole after it. The default run takes one case of
eight, so that each option and each kind occurs; the slow one takes one of two.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import pytest
from hostile.path_options import BRANCHES, STDIN, path_options, reads, stale_lines, writes
from hostile.running import MODEL
from models_on_disk import write_model
from paths import environment

pytest.importorskip("resource", reason="limits as POSIX has them")

PARTS: Final = 8
"""The default run takes one case of so many."""
OLD: Final = b"o" * 8000
BRANCHING: Final = """agraph (float[N,64] x) => (float[N,1] y) {
    a = Concat <axis = 1> (x, x, x, x)
    b = Concat <axis = 1> (x, x, x, x)
    p = ReduceMax <axes = [1]> (a)
    q = ReduceMax <axes = [1]> (b)
    y = Add(p, q)
}"""
"""Takes less where the second Concat waits for the first ReduceMax."""

Pair = tuple[str, str]
"""The name of an option, and a kind or a fault."""
Case = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that anyone may write to, with models."""
    write_model(tmp_path / MODEL)
    write_model(tmp_path / BRANCHES, BRANCHING)
    for each in (*tmp_path.parents, tmp_path):
        if each.owner() == tmp_path.owner() and "pytest" in str(each):
            each.chmod(0o777)
    return tmp_path


@pytest.fixture(
    params=[
        PARTS,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.long),
    ]
)
def parts(request: pytest.FixtureRequest) -> int:
    """How many cases one is taken of."""
    num_parts: int = request.param
    return num_parts


def drawn(options: Sequence[str], kinds: Sequence[str], parts: int) -> list[Pair]:
    """One of so many pairs, of each option and of each kind some."""
    found = [
        (option, kind)
        for (row, option), (column, kind) in product(enumerate(options), enumerate(kinds))
        if (row + column) % parts == 0
    ]
    assert {pair[0] for pair in found} == set(options)
    assert {pair[1] for pair in found} == set(kinds)
    return found


def ran(folder: Path, cases: list[Case]) -> list[Case]:
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


def none_is_wrong(told: Iterable[str]) -> None:
    """Fail with all that is wrong: an assertion would leave most of it out."""
    if faults := list(told):
        pytest.fail("\n".join([f"{len(faults)} are wrong", *faults]), pytrace=False)


def counted(what: str, cases: Sequence[object], found: Iterable[Case]) -> None:
    """Print how many cases ended with each code."""
    codes = [case["code"] for case in found]
    ends = ", ".join(f"{codes.count(code)} end with {code}" for code in sorted(set(codes), key=str))
    print(f"{what}: {len(cases)} cases, {ends}")


def test_the_options_are_those_of_the_parsers() -> None:
    options = path_options()
    assert stale_lines() == set()
    assert len({each.name for each in options}) == len(options) > 40
    assert len(reads()) > 25
    assert len(writes()) > 15


# What is read


def kinds(folder: Path) -> dict[str, str]:
    """A name of each kind of file; each has a link with the ending of a model and of a report."""
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
    names = "fifo folder dangling itself empty unreadable noise deep huge socket".split()
    found = {
        **{name: name for name in names},
        "missing": "missing",
        "device": "/dev/zero",
        "over-long": "n" * 300,
        "below a file": f"{MODEL}/below",
        "no name": "",
        "vanishing": "vanishing",
        "growing": "growing",
    }
    for name, ending in product((*names, "device"), (".json", ".onnx")):
        if not (link := folder / f"{name}{ending}").exists():
            link.symlink_to(found[name])
    return found


def read_case(line: str, kind: str, names: Mapping[str, str]) -> Case:
    name = kind if kind == "device" and "{}." in line else names[kind]
    words = [word.format(name) for word in line.split()]
    case: Case = {"words": words}
    if kind in {"vanishing", "growing"}:
        case[kind] = next(word for word in words if kind in word).removeprefix("@")
    elif kind == "unreadable":
        case["locked"] = True
    elif kind == "missing":
        case["removed after"] = name
    return case


def is_fine(option: str, kind: str) -> bool:
    """Whether a case may succeed, or have a line for each name of a list."""
    makes_its_folder = option.endswith("--cache") and kind in {"folder", "missing", "vanishing"}
    return makes_its_folder or (option.endswith("@list") and kind == "noise")


def test_each_kind_of_file_at_each_option(folder: Path, parts: int) -> None:
    names = kinds(folder)
    lines = reads()
    pairs = drawn(list(lines), list(names), parts)
    # Imports a module that one without rights could not: each command once before.
    warm = [{"words": [word.format("missing") for word in line.split()]} for line in lines.values()]
    found = ran(folder, warm + [read_case(lines[name], kind, names) for name, kind in pairs])
    told = [
        f"{option}, {kind}: {text}"
        for (option, kind), case in zip(pairs, found[len(warm) :], strict=True)
        for text in (wrong if is_fine(option, kind) else refused)(case)
    ]
    counted(f"{len(lines)} options x {len(names)} kinds", pairs, found[len(warm) :])
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


# What is written

FAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "full disk": {"name": "old", "file_bytes": 16},
    "full device": {"name": "/dev/full"},
    "read-only folder": {"name": "locked/old", "locked": True},
    "read-only file system": {"name": "/sys/onnxmem.out"},
    "closed descriptor": {"name": "/dev/fd/777"},
    "folder that goes while it is written": {"name": "out/new", "vanishing": "out"},
    "removed while it is written": {"name": "emptied/new", "emptied": "emptied"},
    "folder that is gone": {"name": "nowhere/new"},
    "current folder that is gone": {"name": "new", "removed": "gone"},
    "folder in place of the file": {"name": "a folder"},
    "link to itself": {"name": "itself"},
    "over-long name": {"name": "n" * 300},
    "no name": {"name": ""},
}


def write_case(folder: Path, line: str, fault: str) -> Case:
    rest = dict(FAULTS[fault])
    name = rest.pop("name")
    if fault == "full disk":
        name = str(folder / name)
    words = [word.format(name) for word in line.split()]
    if "removed" in rest:
        words = [str(folder / word) if word in {MODEL, BRANCHES} else word for word in words]
    return {"words": [*words, "--force"], **rest}


def with_old_results(folder: Path) -> list[Path]:
    """What the names of faults need, and the older results, which must stay whole."""
    for name in ("locked", "emptied", "a folder"):
        (folder / name).mkdir()
    old_results = [folder / "old", folder / "locked" / "old"]
    for path in old_results:
        path.write_bytes(OLD)
        path.chmod(0o666)
    (folder / "itself").symlink_to("itself")
    (folder / "locked").chmod(0o555)
    return old_results


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="devices as Linux has them")
def test_each_output_with_each_fault(folder: Path, parts: int) -> None:
    old_results = with_old_results(folder)
    lines = writes()
    pairs = drawn(list(lines), list(FAULTS), parts)
    warm = [
        {"words": [*(word.format("warm") for word in line.split()), "--force"]}
        for line in lines.values()
    ]
    found = ran(folder, warm + [write_case(folder, lines[name], fault) for name, fault in pairs])
    told = [
        f"{option}, {fault}: {text}"
        for (option, fault), case in zip(pairs, found[len(warm) :], strict=True)
        for text in refused(case)
    ]
    counted(f"{len(lines)} outputs x {len(FAULTS)} faults", pairs, found[len(warm) :])
    none_is_wrong(told)
    assert {case["code"] for case in found[: len(warm)]} == {0}
    assert {path.read_bytes() for path in old_results} == {OLD}
    assert left_parts(folder) == []


@pytest.mark.slow
@pytest.mark.measure
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="devices as Linux has them")
def test_the_output_of_a_measurement_with_each_fault(folder: Path) -> None:
    """A table of its own: each case runs a model first, and some faults have a line for that."""
    pytest.importorskip("onnxruntime")
    old_results = with_old_results(folder)
    line = f"measure {MODEL} --batch 2 --json -o {{}}"
    warm = {"words": line.format("warm").split()}
    first, *found = ran(folder, [warm, *(write_case(folder, line, fault) for fault in FAULTS)])
    assert first["code"] == 0, first["err"]
    told = []
    for fault, case in zip(FAULTS, found, strict=True):
        lines = case["err"].splitlines()
        told += [f"{fault}: {text}" for text in wrong(case)]
        if not case["code"] or any(not each.startswith("error: ") for each in lines):
            told.append(f"{fault}: exit code {case['code']}, {case['err']!r}")
        told += [] if len(lines) in {1, 2} else [f"{fault}: {len(lines)} lines"]
    none_is_wrong(told)
    assert {path.read_bytes() for path in old_results} == {OLD}
    assert left_parts(folder) == []


def left_parts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.name.endswith(".part")]


# Processes that are killed while they write

MOMENTS: Final[Mapping[str, Mapping[str, Any]]] = {
    **{f"after {size} bytes": {"bytes": size} for size in (0, 1, 100, 1000, 4096, 10_000)},
    **{
        f"{each.name} before {event}": {"signal": each.value, "at": event}
        for each in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGSEGV)
        for event in ("open", "os.chmod", "os.rename")
    },
}
"""When a process is killed: at a byte of the result, or at a step of its replacement."""


def test_each_output_at_each_death(folder: Path, parts: int) -> None:
    lines = writes()
    pairs = drawn(list(lines), list(MOMENTS), parts * 2 if parts > 1 else 1)
    both = [("old", pair) for pair in pairs] + [("new", pair) for pair in pairs]
    # Of a sample each case has one age.
    aged = both if parts == 1 else [both[n if n % 2 else n + len(pairs)] for n in range(len(pairs))]
    cases, next_ones, outputs = [], [], []
    for number, (age, (option, moment)) in enumerate(aged):
        place = folder / f"{age}{number}"
        place.mkdir()
        outputs.append(place / "result")
        if age == "old":
            outputs[-1].write_bytes(OLD)
        words = [word.format(outputs[-1]) for word in lines[option].split()]
        cases.append({"words": [*words, "--force"], "killed": MOMENTS[moment]})
        next_ones.append({"words": [*words, "--force"]})
    sound = folder / "sound"
    sound.mkdir()
    whole = [
        {"words": [*(word.format(sound / str(row)) for word in line.split()), "--force"]}
        for row, line in enumerate(lines.values())
    ]
    killed = ran(folder, whole + cases)[len(whole) :]
    expected = {option: (sound / str(row)).read_bytes() for row, option in enumerate(lines)}
    told = [
        f"{option}, {moment}: {text}"
        for (_, (option, moment)), case, output in zip(aged, killed, outputs, strict=True)
        for text in after_death(case, output, MOMENTS[moment], expected[option])
    ]
    again = ran(folder, next_ones)
    for (_, (option, moment)), case, output in zip(aged, again, outputs, strict=True):
        told += [f"{option}, {moment}, next run: {text}" for text in wrong(case)]
        if output.read_bytes() != expected[option]:
            told.append(f"{option}, {moment}: the next run writes something else")
    counted(f"{len(lines)} outputs x {len(MOMENTS)} deaths x old and new", cases, killed)
    none_is_wrong(told)
    assert left_parts(folder) == []
    assert sum(case["code"] < 0 for case in killed) > len(killed) / 2


def after_death(
    case: Case, output: Path, moment: Mapping[str, Any], expected: bytes
) -> Iterator[str]:
    """Say what is wrong once a process was killed."""
    code = case["code"]
    is_old = output.parent.name.startswith("old")
    content = output.read_bytes() if output.exists() else None
    if code == 0 and content == expected:
        return  # shorter than the bytes at which it was to die, or nothing is replaced
    if code not in {-signal.SIGXFSZ, -moment.get("signal", 0), 130}:
        yield f"exit code {code}"
    if is_old and content != OLD:
        yield "the older result is lost"
    if not is_old and not (content is None or is_row_by_row(content, expected)):
        yield f"{len(content or b'')} bytes of a result are left"


def is_row_by_row(content: bytes, expected: bytes) -> bool:
    """Whether these are the first bytes of what may be written row by row."""
    is_document = re.match(rb"\s*(<|\{\n|\{\s*\"schema|\[|\x08|\x80)", expected) is not None
    return expected.startswith(content) and not is_document
