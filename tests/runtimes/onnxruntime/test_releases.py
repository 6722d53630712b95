"""What releases of onnxruntime do otherwise, held against what was measured of each."""

import csv
import json
import re
from collections import defaultdict
from functools import cache
from statistics import median

import pytest
from graphs import graph_of
from paths import DATA, MODELS

from onnxmem.errors import UsageError
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.graph import Graph
from onnxmem.runtimes.onnxruntime.memory import VERIFIED
from onnxmem.runtimes.onnxruntime.process.baselines import BASELINES, NEWEST, baseline_of
from onnxmem.runtimes.onnxruntime.releases import CHANGES, RELEASES, release_named

MOVED = json.loads((DATA / "onnxruntime" / "versions.json").read_text(encoding="utf-8"))["rules"]
OF_CASES = (
    (r"layer_normalization|root_mean_square|epsilon_that_is", "epsilon"),
    (r"products_have_integer_twins\[matmul", "blocks in products"),
    (r"padding_before_a_convolution_or_a_pooling", "padding before pooling"),
    (r"test_operators_of_onnxruntimes_own\[gqa", "grouped attention"),
    (r"^MatMulNBits: .* \| h:\d+x\d+; u1:\d+x\d+x\d+; ", "half blocks"),
    (r"test_quick_gelu\[a = Sigmoid\(d\)", "double gate"),
    (r"a_gather_by_a_range", "gather by range"),
    (r"no zero points|without zero point", "no zero point"),
    (r"pairs_that_undo_each_other", "canceling pairs"),
    (r"\[(sigmoid|where) relu\]", "activation of a sum"),
    (r"ConvTranspose", "transposed convolution"),
    (
        (
            r"graph_output_keeps_its_transpose|lets_one_cancel_but_none_join"
            r"|what_a_subgraph_reads_keeps_its_transpose"
        ),
        "shared transposes",
    ),
    (r"test_it_is_what_onnxruntime_takes\[widths\]", "4 bits"),
    (
        r"half_precision|fp16|float16|h, w16|^Skip\w*LayerNormalization: .* \| h:",
        "half precision",
    ),
    (r"hard_swish|HardSigmoid", "hard swish"),
    (r"lets_a_transpose_pass\[(com.microsoft.)?(Elu|\w*Gelu)", "transposed activations"),
    (r"transposes_before_gemm", "transposes before Gemm"),
    (r"\[(CausalConvWithState|GatedAdd|GatedRMSNorm|LinearAttentionGate)\b", "new operators"),
)
"""Of the cases that differ: a pattern of their names, and the change that stands for them."""


@cache
def graph(model: str) -> Graph:
    return build(prepare(load(MODELS / f"{model}.onnx")), Request(batch=2)).graph


def moved_cases() -> list[tuple[str, str]]:
    return [
        (version.rpartition(".")[0], case)
        for version, families in MOVED.items()
        for family in families.values()
        for case in family["moved"]
    ]


@pytest.mark.parametrize("name", RELEASES)
def test_every_case_that_differs_has_a_change_of_that_release(name: str) -> None:
    here = VERIFIED.index(name)
    known = {each.name for each in CHANGES if here <= VERIFIED.index(each.last)}
    for version, case in moved_cases():
        if version == name:
            found = {change for pattern, change in OF_CASES if re.search(pattern, case)}
            assert found & known, case


def test_a_change_ends_with_the_last_release_that_has_its_case() -> None:
    last: dict[str, str] = {}
    for version, case in moved_cases():
        for pattern, change in OF_CASES:
            if re.search(pattern, case):
                last[change] = max(last.get(change, ""), version)
    assert {each.name for each in CHANGES} == {*last}
    assert all(last[each.name] <= each.last for each in CHANGES)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            "epsilon",
            (
                "(double[3,7] x) => (double[3,7] y) <double e = {1.0}> "
                "{ m = ReduceMean<axes = [1]>(x) s = Add(m, e) y = Sqrt(s) }"
            ),
        ),
        (
            "blocks in products",
            (
                "(int8[3,5] x) => (int8[3,7] y) <int8[5,7] w = {1}, float[5] s, int8[5] n,"
                " float t = {1.0}, int8 z = {0}> { a = DequantizeLinear(x, t, z)"
                " b = DequantizeLinear<axis = 0>(w, s, n) c = MatMul(a, b)"
                " y = QuantizeLinear(c, t, z) }"
            ),
        ),
        (
            "padding before pooling",
            (
                "(float[1,2,5,7] x) => (y) <int64[8] p = {0,0,1,1,0,0,1,1}> "
                "{ a = Pad(x, p) y = MaxPool<kernel_shape = [3,3]>(a) }"
            ),
        ),
        (
            "gather by range",
            (
                "(float[5,7] x, int64 n) => (y) <int64 a = {0}, int64 d = {1}> "
                "{ r = Range(a, n, d) y = Gather(x, r) }"
            ),
        ),
        (
            "no zero point",
            "(float[5,7] x) => (y) <float s = {1.0}> { y = QuantizeLinear(x, s) }",
        ),
        (
            "shared transposes",
            "(float[5,7] x) => (y, z) { a = Transpose(x) b = Relu(a) y = Transpose(b) z = Neg(b) }",
        ),
        ("4 bits", "(float[5,7] x) => (y) { a = Cast<to = 22>(x) y = Cast<to = 1>(a) }"),
        ("half precision", "(float16[5,7] x) => (y) { y = Relu(x) }"),
        ("hard swish", "(float[5,7] x) => (y) { a = HardSigmoid(x) y = Mul(a, x) }"),
        (
            "transposed activations",
            "(float[5,7] x) => (y) { a = Transpose(x) y = Elu(a) }",
        ),
    ],
)
def test_a_change_touches_what_has_its_nodes(change: str, text: str) -> None:
    found = graph_of(f"agraph {text}")
    assert change in {each.name for each in CHANGES if each.affects(found)}


def test_a_chain_is_of_nodes_that_read_one_another() -> None:
    text = "(float[5,7] x) => (y, z) { a = HardSigmoid(x) b = Neg(a) y = Mul(b, x) z = Elu(x) }"
    found = graph_of(f"agraph {text}")
    assert not [each.name for each in CHANGES if each.affects(found)]


@pytest.mark.parametrize(
    "nodes",
    [
        "a = ReduceMean(x) b = other.Add(a) y = Sqrt(b)",
        "a = other.Sigmoid() y = Mul(a, x)",
        "a = other.DequantizeLinear(x) b = other.MatMul(a) y = other.QuantizeLinear(b)",
        "y = other.MatMulNBits(x)",
        "y = other.QuantizeLinear(x)",
        "a = other.Transpose(x) b = Relu(a) z = Neg(b) y = other.Transpose(b)",
    ],
)
def test_operators_of_another_domain_are_not_those_of_onnx(nodes: str) -> None:
    head = '<ir_version: 9, opset_import: ["" : 18, "other" : 1]>'
    found = graph_of(f"{head} agraph (float[5,7] x) => (float[5,7] y) {{ {nodes} }}")
    assert not RELEASES["1.29"].changes(found)


def test_two_transposes_with_one_reader_each_are_left_alone() -> None:
    text = "(float[5,7] x) => (y) { a = Transpose(x) b = Relu(a) y = Transpose(b) }"
    assert not RELEASES["1.29"].changes(graph_of(f"agraph {text}"))


def measured() -> dict[str, dict[str, dict[str, int]]]:
    """Figures by model and minor release."""
    found: dict[str, dict[str, dict[str, int]]] = defaultdict(dict)
    path = DATA / "onnxruntime" / "releases.csv"
    for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines()):
        model, version = row.pop("model"), row.pop("onnxruntime")
        found[model][version.rpartition(".")[0]] = {key: int(n) for key, n in row.items()}
    return found


ARENA = ("requested_peak_bytes", "held_bytes", "held_steady_bytes")


@pytest.mark.parametrize("model", measured())
def test_a_release_that_is_verified_takes_the_same_arena(model: str) -> None:
    by_release = measured()[model]
    newest = by_release[VERIFIED[-1]]
    for name, figures in by_release.items():
        if not RELEASES[name].changes(graph(model)):
            assert {key: figures[key] for key in ARENA} == {key: newest[key] for key in ARENA}


def test_the_one_arena_that_differs_is_not_verified() -> None:
    by_release = measured()["tinyllama.int4"]
    assert by_release["1.29"]["held_steady_bytes"] > by_release["1.32"]["held_steady_bytes"]
    assert [each.name for each in RELEASES["1.29"].changes(graph("tinyllama.int4"))] == [
        "half precision"
    ]


def test_the_floor_moves_as_it_was_measured() -> None:
    for by_release in measured().values():
        start = by_release["1.29"]["process_floor_bytes"]
        for name, figures in by_release.items():
            predicted = BASELINES[name].process_bytes - BASELINES["1.29"].process_bytes
            assert abs(figures["process_floor_bytes"] - start - predicted) <= 300_000


def floors(name: str, *, held_out: bool) -> tuple[float, float]:
    """The process before the session and the pages of the library: medians of a release."""
    rows = list(csv.DictReader((DATA / "onnxruntime" / "floors.csv").read_text().splitlines()))
    of_release = [row for row in rows if row["onnxruntime"].startswith(f"{name}.")]
    chosen = [row for row in of_release if row["held_out"] == str(int(held_out))]
    by_model = defaultdict(list)
    for row in chosen:
        by_model[row["model"]].append(int(row["added_file_bytes"]))
    assert len(by_model) >= 3
    floor = median(int(row["floor_bytes"]) for row in of_release)
    return floor, median(map(median, by_model.values()))


@pytest.mark.parametrize("name", VERIFIED)
def test_the_baseline_of_a_release_is_what_was_measured(name: str) -> None:
    """The models that were held out read up to 1.1 MB more of the library, in every release."""
    known = BASELINES[name]
    library_bytes = known.library_bytes + known.running_bytes
    assert (known.process_bytes, library_bytes) == floors(name, held_out=False)
    assert 0 <= floors(name, held_out=True)[1] - library_bytes <= 1_100_000


def test_every_verified_release_has_a_baseline_and_the_newest_one_stands_for_others() -> None:
    assert tuple(BASELINES) == VERIFIED
    assert NEWEST is BASELINES[VERIFIED[-1]]
    assert baseline_of("onnxruntime 1.29.0") is BASELINES["1.29"]
    assert baseline_of("onnxmem") is baseline_of("onnxruntime 1.99.0") is NEWEST


def test_only_verified_releases_are_compared() -> None:
    assert release_named("1.29.0") is release_named("1.29") is RELEASES["1.29"]
    for other in ("1.20", "2", "1.29.x", "", "1"):
        with pytest.raises(UsageError, match="was not verified; choose among"):
            release_named(other)
