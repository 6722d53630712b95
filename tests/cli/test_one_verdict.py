"""One question through every face: the same verdict, bytes, notes and exit code."""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import onnx
import pytest
from graphs import model_of
from pages import data_of, read
from paths import MODELS
from without_children import work_without_children

import onnxmem
from onnxmem.cli import main
from onnxmem.settings import Settings
from onnxmem.units import format_bytes, parse_size

Capture = pytest.CaptureFixture[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, its setting and a budget; ``notes`` are codes that it has."""

    model: str
    """A file of ``models/``, or the text of a graph."""
    batch: int
    budget: str
    train: bool = False
    verdict: str
    notes: tuple[str, ...] = ()
    unlimited: str | None = None
    """What it takes of a larger device, if it fits this one only by retries of its allocator."""

    @property
    def name(self) -> str:
        return self.model if self.model.isidentifier() else self.model.split()[0]

    @property
    def path(self) -> str:
        """Within the folder that a test works in, or the project's."""
        return (
            str(MODELS / f"{self.model}.onnx") if self.model.isidentifier() else f"{self.name}.onnx"
        )

    @property
    def words(self) -> list[str]:
        return ["--batch", str(self.batch), *(["--train"] if self.train else [])]


@dataclass(frozen=True, slots=True)
class Face:
    """What one face says; ``None``: it does not show that."""

    verdict: str
    code: int
    size_bytes: int | str | None = None
    """Text is as it is written for people."""
    notes: frozenset[str] | None = None
    fits_up_to: int | None = None


FOLDED: Final = """folded (float[N,3,173,191] x) => (float[N,5,171,189] y)
    <float[5,3,3,3] Conv_66, float[5] Conv_67> { c = Conv (x, Conv_66, Conv_67) y = Relu (c) }"""
GROWING: Final = """growing (float[N,3,173,191] x) => (float[N,37,173,191] y)
    <float[23,3,1,1] u, float[29,23,1,1] v, float[37,29,1,1] w> { a = Conv (x, u) b = Sigmoid (a)
    c = Conv (b, v) d = Sigmoid (c) e = Conv (d, w) y = Sigmoid (e) }"""
SEQUENCE: Final = """sequence (float[N,S,7] x) => (float[N,S,13] y) <float[7,13] a> {
    m = MatMul (x, a) y = Relu (m) }"""

PUT_BACK: Final = ("batchnorm_put_back",)
UNBOUND: Final = ("unbound_dims",)
QUESTIONS: Final = (
    Case(
        model="resnet50",
        batch=128,
        budget="12GiB",
        train=True,
        verdict="tight",
        notes=PUT_BACK,
        unlimited="12.3 GiB",
    ),
    Case(model="bert_base", batch=4, budget="1GiB", verdict="unknown", notes=UNBOUND),
)
SMALL: Final = (
    Case(
        model=FOLDED,
        batch=7,
        budget="2GiB",
        train=True,
        verdict="fits",
        notes=PUT_BACK,
    ),
    Case(
        model=FOLDED,
        batch=7,
        budget="800MiB",
        train=True,
        verdict="tight",
        notes=PUT_BACK,
    ),
    Case(
        model=FOLDED,
        batch=7,
        budget="300MiB",
        train=True,
        verdict="does not fit",
        notes=PUT_BACK,
    ),
    Case(model=FOLDED, batch=7, budget="4MiB", verdict="does not fit"),
    # Each activation is a little larger than the one before, which is cached by then.
    Case(model=GROWING, batch=7, budget="780MiB", train=True, verdict="tight", unlimited="806 MiB"),
    Case(model=SEQUENCE, batch=7, budget="1GiB", verdict="unknown", notes=UNBOUND),
)
SIGNS: Final = {
    "\u2705": "fits",
    "\u26a0\ufe0f": "tight",
    "\u274c": "does not fit",
    "\u2754": "unknown",
}
EXIT: Final = {"fits": 0, "tight": 0, "does not fit": 1, "unknown": 3}


def told(capsys: Capture, *words: str) -> tuple[int, str]:
    """The exit code and stdout of a command."""
    code = main(list(words))
    return code, capsys.readouterr().out


def face_of(code: int, verdict: Mapping[str, Any], findings: Iterable[Mapping[str, Any]]) -> Face:
    codes = frozenset(each["code"] for each in findings)
    return Face(verdict["verdict"], code, verdict["bytes"], codes, verdict["fits_up_to"])


def row_face(code: int, row: Mapping[str, Any]) -> Face:
    return face_of(code, row["verdict"], row["findings"])


def of_fitting(asked: Case, _: Capture, __: Path) -> Face:
    from onnxmem.analysis.fitting.footprints import request_of

    question = request_of(asked.path, Settings(batch=asked.batch, train=asked.train))
    from onnxmem.analysis.fitting.verdicts import basis_for

    basis = basis_for(None, train=asked.train, runtime=None)
    from onnxmem.analysis.fitting.assessing import FitRequest, fit

    setup = FitRequest(memory_bytes=parse_size(asked.budget), basis=basis)
    found = fit((question,), setup)
    assert found.max_batch is not None
    return Face(
        found.verdict.value,
        EXIT[found.verdict],
        found.taken_bytes,
        frozenset(each.code for each in found.assessment.findings),
        found.max_batch.number,
    )


def of_json(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, asked.path, *asked.words, "--budget", asked.budget, "--json")
    return row_face(code, json.loads(text)["models"][0])


def of_json_lines(asked: Case, capsys: Capture, _: Path) -> Face:
    words = (*asked.words, "--budget", asked.budget, "--format", "jsonl", "-q")
    code, text = told(capsys, asked.path, *words)
    return row_face(code, json.loads(text))


def of_csv(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, asked.path, *asked.words, "--budget", asked.budget, "--format", "csv")
    (row,) = csv.DictReader(io.StringIO(text))
    notes = frozenset(each.partition(":")[0] for each in row["notes"].split("; ") if each)
    known = {code for code in notes if code.isidentifier()}
    return Face(
        row["verdict_verdict"],
        code,
        int(row["verdict_bytes"]),
        frozenset(known),
        int(row["verdict_fits_up_to"]),
    )


def of_report(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, asked.path, *asked.words, "--budget", asked.budget, "-v")
    lines = text.splitlines()
    budget = next(line for line in lines if line.startswith("Budget"))
    takes = next(line for line in lines if line.startswith("  takes"))
    largest = next(line for line in lines if line.startswith("  largest batch"))
    return Face(
        word_in(" ".join((budget, *lines[lines.index(budget) + 1 :][:1]))),
        code,
        exact_in(takes),
        notes_in(lines, "  "),
        first_number(largest),
    )


def of_fit_text(asked: Case, capsys: Capture, _: Path) -> Face:
    words = (*asked.words, "--device", asked.budget, "-q")
    code, text = told(capsys, "fit", asked.path, *words)
    lines = text.splitlines()
    return Face(
        word_in(next(line for line in lines if line.startswith("Verdict"))),
        code,
        rounded_in(next(line for line in lines if line.startswith("  takes"))),
        notes_in(lines, "note: "),
        first_number(next(line for line in lines if line.startswith("  largest batch"))),
    )


def of_fit_json(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, "fit", asked.path, *asked.words, "--device", asked.budget, "--json")
    row = json.loads(text)
    return face_of(code, row, row["findings"])


def of_check_json(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked), "--format", "json")
    (model,) = json.loads(text)["models"]
    (check,) = model["checks"]
    notes = frozenset(each["code"] for each in model["findings"])
    return Face(check["outcome"].replace("_", " "), code, check["bytes"], notes)


def of_check_text(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked))
    lines = text.splitlines()
    line = next(line for line in lines if line.startswith("    ") and "B   " in line)
    return Face(word_in(line), code, rounded_in(line), notes_in(lines, "  note: "))


def of_check_junit(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked), "--format", "junit")
    suite = ET.fromstring(text).find("testsuite")  # noqa: S314 - our own
    assert suite is not None
    notes = (suite.findtext("system-out") or "").splitlines()
    wrong = suite.find("testcase/failure") is not None, suite.find("testcase/error") is not None
    verdict = {(True, False): "does not fit", (False, True): "unknown"}.get(wrong, asked.verdict)
    return Face(verdict, code, notes=frozenset(each.partition(":")[0] for each in notes))


def of_check_sarif(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked), "--format", "sarif")
    (run,) = json.loads(text)["runs"]
    told_ids = run["invocations"][0]["toolExecutionNotifications"]
    rules = [each["ruleId"] for each in run["results"]]
    verdict = {"over-budget": "does not fit", "unknown": "unknown"}[rules[0]] if rules else None
    notes = frozenset(each["descriptor"]["id"] for each in told_ids)
    return Face(verdict or asked.verdict, code, notes=notes)


def of_check_markdown(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked), "--format", "markdown")
    lines = text.splitlines()
    row = next(line for line in lines if line.startswith("| ") and ".onnx" in line)
    notes = [line.partition(": ")[2] for line in lines if line.startswith("- `")]
    codes = frozenset(re.findall(r"`(\w+): ", "\n".join(notes)))
    sign, size = (row.split("|")[place].strip() for place in (1, 5))
    return Face(SIGNS[sign], code, size, codes)


def of_check_github(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, *checked(asked), "--format", "github")
    lines = text.splitlines()
    titles = [line.partition("title=onnxmem ")[2].partition("::")[0] for line in lines]
    wrong = {"over-budget": "does not fit", "unknown": "unknown"}
    verdict = next((wrong[each] for each in titles if each in wrong), asked.verdict)
    return Face(verdict, code, notes=frozenset(titles) - set(wrong) - {""})


def of_advice(asked: Case, capsys: Capture, _: Path) -> Face:
    words = ("advise", asked.path, *asked.words, "--budget", asked.budget, "--json")
    _code, text = told(capsys, *words)
    (row,) = json.loads(text)["models"]
    lines = told(capsys, *words[:-1])[1].splitlines()
    now = next(line for line in lines if line.startswith("  now"))
    assert rounded_in(now) == format_bytes(row["budget"]["before_bytes"])
    notes = frozenset(each["code"] for each in row["findings"])
    return Face(word_in(now), EXIT[word_in(now)], row["budget"]["before_bytes"], notes)


def of_diff(asked: Case, capsys: Capture, _: Path) -> Face:
    words = (*asked.words, "--budget", asked.budget, "--json")
    code, text = told(capsys, "diff", asked.path, asked.path, *words)
    return row_face(code, json.loads(text)["after"])


def of_diff_text(asked: Case, capsys: Capture, _: Path) -> Face:
    words = (*asked.words, "--budget", asked.budget)
    code, text = told(capsys, "diff", asked.path, asked.path, *words)
    lines = text.splitlines()
    line = next(line for line in lines if line.startswith("  B  "))
    return Face(word_in(line), code, rounded_in(line), notes_in(lines, "note on A and B: "))


def of_message(asked: Case, capsys: Capture, _: Path) -> Face:
    gib = parse_size(asked.budget) / 2**30
    message = f"CUDA out of memory. Tried to allocate 2.00 MiB. {gib:.12f} GiB total capacity"
    words = ("explain", message, asked.path, *asked.words, "--json")
    _code, text = told(capsys, *words)
    (row,) = json.loads(text)["explained"]
    face = row_face(0, row["model"])
    return Face(face.verdict, EXIT[face.verdict], face.size_bytes, face.notes, face.fits_up_to)


def of_collection(asked: Case, capsys: Capture, _: Path) -> Face:
    words = (asked.path, str(MODELS / "mlp.onnx"), *asked.words, "--device", asked.budget, "--json")
    _code, text = told(capsys, *words)
    row = json.loads(text)["models"][0]
    (device,) = row["devices"]
    notes = frozenset(each["code"] for each in row["findings"])
    return Face(device["verdict"], EXIT[device["verdict"]], device["bytes"], notes)


def of_summary(asked: Case, capsys: Capture, _: Path) -> Face:
    code, text = told(capsys, asked.path, *asked.words, "--budget", asked.budget, "--summary", "-q")
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if ".onnx" in line and "note" not in line)
    # The verdict stands behind the name, on the next line where there is no room.
    return Face(word_in(" ".join(lines[start : start + 3])), code, notes=notes_in(lines, "note: "))


def of_page(asked: Case, capsys: Capture, folder: Path) -> Face:
    place = folder / "page.html"
    words = (asked.path, *asked.words, "--budget", asked.budget, "--html", str(place))
    code, _ = told(capsys, *words)
    page = place.read_text(encoding="utf-8")
    data = data_of(page)
    said = data["texts"]["verdict.budget"]["at"][data["stops"].index(asked.batch)]
    found = page.partition('<section id="findings"')[2].partition("</section>")[0]
    notes = found.split("<li><code>")
    codes = frozenset(each.partition("</code>")[0] for each in notes[1:])
    budget = page.partition('<section id="fits"')[2].partition("</section>")[0]
    rows = re.split("<tr[^>]*>", budget)
    terms = [" ".join(read(row).text) for row in rows]
    largest = next(line for line in terms if line.startswith("largest batch"))
    takes = next(line for line in terms if line.startswith("takes"))
    return Face(word_in(said), code, exact_in(takes), codes, first_number(largest))


def of_ranking(asked: Case, capsys: Capture, folder: Path) -> Face:
    devices = folder / "devices.toml"
    devices.write_text(f'[[device]]\nname = "it"\nkind = "cuda"\nmemory = "{asked.budget}"\n')
    words = (*asked.words, "--which-device", "--devices", str(devices), "--json")
    _code, text = told(capsys, "fit", asked.path, *words)
    (row,) = (each for each in json.loads(text)["devices"] if each["name"] == "it")
    assert row["margin_bytes"] == parse_size(asked.budget) - row["bytes"]
    return Face(row["verdict"], EXIT[asked.verdict], row["bytes"])


def of_curve(asked: Case, capsys: Capture, _: Path) -> Face:
    words = ("--batch", str(asked.batch), "--device", asked.budget, "--json")
    train = ["--train"] if asked.train else []
    _code, text = told(capsys, "sweep", asked.path, *train, *words)
    (row,) = json.loads(text)["points"]
    return Face(row["verdict"], EXIT[asked.verdict], row["bytes"])


def checked(asked: Case) -> tuple[str, ...]:
    figure = "--budget-training" if asked.train else "--budget-peak"
    return ("check", asked.path, "--batch", str(asked.batch), figure, asked.budget)


def word_in(line: str) -> str:
    """The verdict in a line."""
    found = [(line.find(word), word) for word in EXIT if word in line]
    return min(found)[1]


def rounded_in(line: str) -> str:
    """The size in a line of an answer."""
    found = re.search(r"([\d.]+ (?:[KMG]i)?B)   ", line)
    assert found is not None
    return found[1]


def exact_in(line: str) -> int:
    """The bytes in a line of a report."""
    found = re.search(r"([\d,]+) B\b", line)
    assert found is not None
    return int(found[1].replace(",", ""))


def first_number(line: str) -> int:
    """The largest batch in a line of a report."""
    found = re.search(r"that fits\s+([\d,]*\d)", line)
    assert found is not None
    return int(found[1].replace(",", ""))


def notes_in(lines: list[str], start: str) -> frozenset[str]:
    """Codes of the notes: ``note: batch_fixed: ...``."""
    if start == "  ":
        lines = lines[lines.index("Notes") + 1 :] if "Notes" in lines else []
    told = (line.removeprefix(start).partition(": ") for line in lines if line.startswith(start))
    return frozenset(code for code, colon, _ in told if colon and code.isidentifier())


FACES: Final[Mapping[str, Callable[[Case, Capture, Path], Face]]] = {
    "report": of_report,
    "report as JSON": of_json,
    "report as lines of JSON": of_json_lines,
    "report as CSV": of_csv,
    "summary": of_summary,
    "page": of_page,
    "fit": of_fit_text,
    "fit as JSON": of_fit_json,
    "check": of_check_text,
    "check as JSON": of_check_json,
    "check as JUnit": of_check_junit,
    "check as SARIF": of_check_sarif,
    "check as markdown": of_check_markdown,
    "check as annotations": of_check_github,
    "advise": of_advice,
    "diff": of_diff_text,
    "diff as JSON": of_diff,
    "explain of a message": of_message,
    "collection": of_collection,
    "fitting": of_fitting,
    "ranking of devices": of_ranking,
    "batch curve": of_curve,
}


@cache
def python_face(asked: Case, path: Path) -> Face:
    """What Python says of a question; one answer for all faces."""
    found = onnxmem.analyze(
        path, batch=asked.batch, train=asked.train, budget_bytes=parse_size(asked.budget)
    )
    assert found.fit is not None
    assert found.fit.max_batch is not None
    if asked.unlimited is not None:
        assert found.fit.requested.is_retried
        assert format_bytes(found.fit.footprint.total_bytes) == asked.unlimited
    return Face(
        found.fit.verdict.value,
        EXIT[found.fit.verdict],
        found.fit.taken_bytes,
        frozenset(each.code for each in found.findings),
        found.fit.max_batch.number,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small models; weights have names that an export gives to those that it has changed."""
    found = tmp_path_factory.mktemp("small")
    for text in (FOLDED, SEQUENCE, GROWING):
        proto = model_of(text)
        prefix = "onnx::" if text is FOLDED else ""
        names = {each.name: prefix + each.name for each in proto.graph.initializer}
        for tensor in proto.graph.initializer:
            tensor.name = names[tensor.name]
        for node in proto.graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        onnx.save(proto, found / f"{proto.graph.name}.onnx")
    return found


@pytest.mark.parametrize("asked", SMALL, ids=lambda each: f"{each.name} in {each.budget}")
@pytest.mark.parametrize("face", FACES)
def test_every_output_has_the_same_verdict(
    face: str,
    asked: Case,
    folder: Path,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work_without_children(monkeypatch, folder)
    compare(FACES[face](asked, capsys, tmp_path), asked, folder / asked.path)


@pytest.mark.slow
@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda each: f"{each.name} in {each.budget}")
@pytest.mark.parametrize("face", FACES)
def test_every_output_has_the_same_verdict_on_real_models(
    face: str, asked: Case, tmp_path: Path, capsys: Capture
) -> None:
    compare(FACES[face](asked, capsys, tmp_path), asked, Path(asked.path))


def compare(said: Face, asked: Case, path: Path) -> None:
    python = python_face(asked, path)
    assert python.notes is not None
    assert python.notes >= set(asked.notes)
    assert python.verdict == asked.verdict
    assert (said.verdict, said.code) == (asked.verdict, EXIT[asked.verdict])
    if EXIT[asked.verdict] == 0:
        assert not isinstance(python.size_bytes, str)
        assert (python.size_bytes or 0) <= parse_size(asked.budget)
    if isinstance(said.size_bytes, str):
        assert not isinstance(python.size_bytes, str)
        assert said.size_bytes == format_bytes(python.size_bytes)
    elif said.size_bytes is not None:
        assert said.size_bytes == python.size_bytes
    assert said.notes in {None, python.notes}
    assert said.fits_up_to in {None, python.fits_up_to}


def test_what_is_in_doubt_is_so_at_every_batch(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_without_children(monkeypatch, folder)
    code, text = told(capsys, "fit", "sequence.onnx", "--device", "1MiB", "--json")
    row = json.loads(text)
    verdicts = {each["number"]: each["verdict"] for each in row["table"]}
    largest = row["largest"]["number"]
    assert code == 3
    assert {verdicts.pop(each) for each in list(verdicts) if each <= largest} == {"unknown"}
    assert set(verdicts.values()) == {"does not fit"}
    assert row["power_of_two"]["verdict"] == "unknown"


@pytest.mark.parametrize(
    "words",
    [
        ("folded.onnx", "--train", "--budget", "2GiB"),
        ("folded.onnx", "--train", "--budget", "2GiB", "--summary"),
        ("folded.onnx", "sequence.onnx", "--train", "--budget", "2GiB", "--summary"),
        ("fit", "folded.onnx", "--train", "--device", "2GiB"),
        ("fit", "folded.onnx", "--device", "2GiB", "--runtime", "ort-cuda"),
        ("check", "folded.onnx", "--budget-training", "2GiB"),
        ("advise", "folded.onnx", "--train", "--budget", "2GiB"),
        ("diff", "folded.onnx", "folded.onnx", "--train", "--budget", "2GiB"),
        ("explain", "CUDA out of memory. 2.00 GiB total capacity", "folded.onnx", "--train"),
    ],
    ids=lambda words: " ".join(words[:1] + words[-1:]),
)
def test_a_figure_of_a_gpu_carries_its_error(
    words: tuple[str, ...], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_without_children(monkeypatch, folder)
    _code, text = told(capsys, *words)
    error = "an H200 confirmed" if "ort-cuda" in words else "on an H100"
    assert error in " ".join(text.split())


RETRIED: Final = next(each for each in SMALL if each.unlimited is not None)


@pytest.mark.parametrize(
    "words",
    [
        ("--budget", RETRIED.budget),
        ("--budget", RETRIED.budget, "-v"),
        ("fit", "--device", RETRIED.budget),
    ],
    ids=" ".join,
)
def test_a_run_that_fits_by_retries_says_so(
    words: tuple[str, ...], folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_without_children(monkeypatch, folder)
    command, flags = (words[:1], words[1:]) if words[0] == "fit" else ((), words)
    code, text = told(capsys, *command, RETRIED.path, *RETRIED.words, *flags)
    said = " ".join(text.split())
    assert code == 0
    assert "MiB free, but only because the allocator retries" in said
    assert "806 MiB on a larger device; in a full device PyTorch releases cached segments" in said
