"""One question asked in several ways: one figure, or one clear refusal.

The command line, its flags in the opposite order, Python, and a run of several models say the same
of every combination of options. A quick part covers every pair of them; the slow part has more.
"""

import json
import random
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Any, Final

import pytest
from models_on_disk import CONVNET, write_model
from without_children import work_without_children

import onnxmem
from onnxmem.cli import main
from onnxmem.errors import fault_of

Capture = pytest.CaptureFixture[str]

SEQUENCE: Final = """agraph (float[N,S,7] x, int64[1] k) => (float[N,S,13] y)
    <float[7,11] a, float[11] shift, float[11,13] b> {
    [one] h = MatMul (x, a) [two] s = Add (h, shift) [act] r = Relu (s)
    kf = Cast <to = 1> (k) [three] m = Mul (r, kf) [four] y = MatMul (m, b) }"""
BRANCHES: Final = """agraph (float[N,3,17] x, int64[1] k) => (float[N,3,17] y) {
    [left] l = Sigmoid (x) [right] r = Exp (x) [late] e = Tanh (r) kf = Cast <to = 1> (k)
    [join] j = Mul (l, kf) [again] i = Add (e, j) [soft] y = Softmax <axis = -1> (i) }"""

Words = tuple[str, ...]
Combination = tuple[Words, ...]
"""One choice of each option: the words of the command line, none where the option is left out."""

NO: Final[Words] = ()
OPTIONS: Final[Mapping[str, tuple[Words, ...]]] = {
    "graph": (NO, ("--graph", "raw"), ("--graph", "ort-basic"), ("--graph", "ort-all")),
    "runtime": (NO, ("--runtime", "ort-cpu"), ("--runtime", "ort-cuda")),
    "fixed": (NO, ("--fixed-dims",)),
    "order": (NO, ("--order", "onnxruntime"), ("--order", "best")),
    "emulate": (NO, ("--emulate-optimizer",)),
    "cpu": (NO, ("--cpu", "avx2"), ("--cpu", "arm64")),
}
MODELS: Final[Mapping[str, tuple[str, Words, Words, Words]]] = {
    "convnet": (
        CONVNET,
        ("--batch", "3"),
        ("--shape", "image:3,3,16,16"),
        (),
    ),
    "sequence": (
        SEQUENCE,
        ("--batch", "3", "--dim", "S=5"),
        ("--shape", "x:3,5,7"),
        ("--value", "k=2"),
    ),
    "branches": (
        BRANCHES,
        ("--batch", "5"),
        ("--shape", "x:5,3,17"),
        ("--value", "k=2"),
    ),
}
"""Text; sizes by the batch and dims; the same sizes by a shape; a value that decides no size."""
NUM_SLOW: Final = 200
"""Combinations of each model in the slow part: 600 in all."""


def options_of(model: str) -> list[tuple[Words, ...]]:
    _, dims, shape, value = MODELS[model]
    return [*OPTIONS.values(), (dims, shape), (NO, value) if value else (NO,)]


def pairs_in(combination: Combination) -> set[tuple[int, Words, int, Words]]:
    return {(i, a, j, b) for (i, a), (j, b) in combinations(enumerate(combination), 2)}


def covering(model: str) -> list[Combination]:
    """Few combinations that have every pair of choices: the one with most new pairs comes next."""
    pairs = {each: pairs_in(each) for each in product(*options_of(model))}
    left = set().union(*pairs.values())
    found: list[Combination] = []
    while left:
        best = max(pairs, key=lambda each: len(left & pairs[each]))
        left -= pairs[best]
        found.append(best)
    return found


def sampled(model: str) -> list[Combination]:
    everything: list[Combination] = list(product(*options_of(model)))
    return random.Random(model).sample(everything, NUM_SLOW)  # noqa: S311 - no secret


def named(cases: Iterable[tuple[str, Combination]]) -> list[Any]:
    return [
        pytest.param(model, each, id=" ".join([model, *(word for words in each for word in words)]))
        for model, each in cases
    ]


QUICK: Final = named((model, each) for model in MODELS for each in covering(model))
SLOW: Final = named((model, each) for model in MODELS for each in sampled(model))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work_without_children(monkeypatch, tmp_path)
    for name, (text, *_) in MODELS.items():
        write_model(tmp_path / f"{name}.onnx", text)
    return tmp_path


Told = dict[str, Any] | str
"""A row, or the line of a refusal."""


def from_command_line(model: str, words: Iterable[str], capsys: Capture, *others: str) -> Told:
    code = main([f"{model}.onnx", *others, *words, "--json", "--jobs", "1", "--no-progress"])
    out, err = capsys.readouterr()
    if code:
        assert code == 2
        (line,) = {line.rpartition("onnx: ")[2] for line in err.splitlines()}
        return line.removeprefix("error: ")
    row: dict[str, Any] = json.loads(out)["models"][0]
    # A run of several models counts those that fit; one model's row says nothing of devices.
    row.pop("devices", None)
    return row


KEYWORDS: Final[Mapping[str, Callable[[str], dict[str, Any]]]] = {
    "--graph": lambda word: {"graph": word},
    "--order": lambda word: {"order": word},
    "--cpu": lambda word: {"cpu": word},
    "--runtime": lambda word: {"runtimes": (word,)},
    "--fixed-dims": lambda _: {"fixed_dims": True},
    "--emulate-optimizer": lambda _: {"asks_onnxruntime": False},
    "--batch": lambda word: {"batch": int(word)},
    "--dim": lambda word: {"dims": {word[0]: int(word[2:])}},
    "--value": lambda word: {"values": {word[0]: int(word[2:])}},
    "--shape": lambda word: {
        "shapes": {word.partition(":")[0]: tuple(map(int, word.partition(":")[2].split(",")))}
    },
}


def from_python(model: str, combination: Combination) -> Told:
    asked: dict[str, Any] = {}
    for words in combination:
        for place, flag in enumerate(words):
            if flag.startswith("--"):
                asked |= KEYWORDS[flag](words[place + 1] if place + 1 < len(words) else "")
    try:
        row: dict[str, Any] = json.loads(
            json.dumps(onnxmem.analyze(f"{model}.onnx", **asked).to_dict())
        )
    except onnxmem.OnnxmemError as error:
        fault = fault_of(error)
        return f"{fault.code}: {fault.message}"
    row.pop("devices", None)
    return row


def has_session(combination: Combination) -> bool:
    words = [word for words in combination for word in words]
    return "--runtime" in words or bool({"ort-basic", "ort-all"} & set(words))


def check(model: str, combination: Combination, capsys: Capture) -> None:
    words = [word for words in combination for word in words]
    turned = [word for words in reversed(combination) for word in words]
    told = from_command_line(model, words, capsys)
    assert from_command_line(model, turned, capsys) == told
    assert from_command_line(model, words, capsys, f"{model}.onnx") == told
    if isinstance(told, str):
        assert not has_session(combination)
        assert told.startswith(("usage: --fixed-dims: no effect", "usage: --cpu: no effect"))
    else:
        assert from_python(model, combination) == told


@pytest.mark.parametrize(("model", "combination"), QUICK)
def test_every_pair_of_options_gives_one_figure(
    model: str, combination: Combination, capsys: Capture
) -> None:
    check(model, combination, capsys)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "combination"), SLOW)
def test_combinations_of_options_say_one_thing(
    model: str, combination: Combination, capsys: Capture
) -> None:
    check(model, combination, capsys)


def test_the_slow_part_has_at_least_500_combinations() -> None:
    assert len({(str(case.values)) for case in SLOW}) == 600


def figures(row: Told) -> dict[str, Any]:
    """What is said of the model, less what repeats the question."""
    assert isinstance(row, dict)
    left_out = {"settings", "findings", "batch_law"}
    told = {key: value for key, value in row.items() if key not in left_out}
    told["activations"] = {
        key: value for key, value in told["activations"].items() if "rows" not in key
    }
    return told


SESSIONS: Final = [
    (graph, runtime, order)
    for graph, runtime, order in product(
        OPTIONS["graph"], OPTIONS["runtime"], (NO, ("--order", "best"))
    )
]


@pytest.mark.parametrize(
    ("model", "session"),
    # Models in turn, so that each graph, each runtime and each order meets all.
    [([*MODELS][(place + place // 6) % len(MODELS)], each) for place, each in enumerate(SESSIONS)],
    ids=lambda each: each if isinstance(each, str) else " ".join(sum(each, ())) or "none",
)
def test_a_shape_equals_its_dims_and_a_value_that_decides_nothing_changes_nothing(
    model: str, session: Combination, capsys: Capture
) -> None:
    _, dims, shape, value = MODELS[model]
    words = [*sum(session, ()), "--emulate-optimizer"]
    told = figures(from_command_line(model, [*words, *dims], capsys))
    assert figures(from_command_line(model, [*words, *shape], capsys)) == told
    assert figures(from_command_line(model, [*words, *dims, *value], capsys)) == told
    assert figures(from_command_line(model, [*words, *dims, *shape], capsys)) == told


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("runtime", ["ort-cpu", "ort-cuda"])
def test_a_runtime_is_of_its_own_graph_unless_another_is_named(
    model: str, runtime: str, capsys: Capture
) -> None:
    words = [*MODELS[model][1], "--runtime", runtime]
    alone = from_command_line(model, words, capsys)
    for emulate in (NO, ("--emulate-optimizer",)):
        named_graph = from_command_line(model, [*words, "--graph", "ort-all", *emulate], capsys)
        assert isinstance(alone, dict)
        assert isinstance(named_graph, dict)
        sizes = [
            {key: value for key, value in row["runtime"].items() if key.endswith("bytes")}
            for row in (alone, named_graph)
        ]
        assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("model", "flags", "runtime", "keys"),
    [
        ("convnet", NO, "none", ("total_bytes",)),
        ("branches", NO, "none", ("total_bytes",)),
        ("sequence", NO, "ort-cpu", ("runtime", "process_bytes")),
        ("branches", NO, "ort-cpu", ("runtime", "process_bytes")),
        ("convnet", ("--fixed-dims",), "ort-cpu", ("runtime", "process_bytes")),
        ("sequence", ("--cpu", "avx2"), "ort-cpu", ("runtime", "process_bytes")),
        ("convnet", ("--train",), None, ("training", "cuda", "total_bytes")),
    ],
)
def test_fit_compares_the_figure_of_the_report(
    model: str, flags: Words, runtime: str | None, keys: Words, capsys: Capture
) -> None:
    words = [*MODELS[model][1], *flags]
    asked = [] if runtime is None else ["--runtime", runtime]
    assert main(["fit", f"{model}.onnx", *words, *asked, "--device", "1GiB", "--json"]) == 0
    fitted = json.loads(capsys.readouterr().out)["bytes"]
    session = [*asked, "--emulate-optimizer"] if runtime == "ort-cpu" else []
    row: Any = from_command_line(model, [*words, *session], capsys)
    for key in keys:
        row = row[key]
    assert fitted == row
