"""Inlining of local functions before all passes, compared with onnxruntime."""

import onnx
import onnx.parser
import pytest
from runtimes.onnxruntime.optimized_graphs import compare_with_onnxruntime

from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile

HEADER = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
SCALE = """<domain: "f", opset_import: ["" : 21]>
scale (x, k) => (r) {
    t = Constant <value = float {2.0}> ()  c = CastLike(t, x)  m = Mul(x, c)  r = Add(m, k)
}"""
TWICE = """<domain: "f", opset_import: ["" : 21, "f" : 1]>
twice (x, k) => (r) { a = f.both(x)  b = f.both(k)  r = Add(b, a) }"""
BOTH = """<domain: "f", opset_import: ["" : 21]>
both (x) => (r) { a = Relu(x)  b = Exp(x)  r = Mul(a, b) }"""
CHOICE = """<domain: "f", opset_import: ["" : 21, "f" : 1]>
choice (x, c) => (r) {
    r = If(c) <
        then_branch = one () => (p) { p = f.both(x) },
        else_branch = two () => (q) { n = Neg(x)  q = f.both(n) }
    >
}"""


def model_of(main: str, *functions: str) -> onnx.ModelProto:
    return onnx.parser.parse_model("\n".join((HEADER, main, *functions)))


@pytest.mark.measure
@pytest.mark.parametrize(
    ("level", "expected"),
    [
        ("off", "Cast Mul Add Exp Cast Neg"),
        ("basic", "Mul Add Exp Neg"),
        ("all", "Mul Add Exp Neg"),
    ],
)
def test_casts_of_an_inlined_function_are_removed_by_the_first_passes(
    level: str, expected: str
) -> None:
    main = """agraph (float[3,7] x, float[3,7] k) => (float[3,7] y) {
        a = f.scale(x, k)  b = Exp(a)  c = CastLike(b, x)  y = Neg(c)
    }"""
    assert " ".join(compare_with_onnxruntime(model_of(main, SCALE), level)) == expected


@pytest.mark.measure
def test_the_same_casts_without_a_function_stay() -> None:
    main = """agraph (float[3,7] x) => (float[3,7] y) {
        b = Exp(x)  c = CastLike(b, x)  y = Neg(c)
    }"""
    assert compare_with_onnxruntime(model_of(main), "all") == ["Exp", "Cast", "Neg"]


@pytest.mark.measure
@pytest.mark.parametrize("level", ["off", "basic", "all"])
def test_inlined_nodes_get_higher_indices_than_existing_nodes(level: str) -> None:
    """The indices of nodes decide the order in which they run."""
    main = """agraph (float[3,7] x, float[3,7] k) => (float[3,7] y, float[3,7] z) {
        a = f.twice(x, k)  b = Exp(a)  c = f.twice(b, k)  z = f.both(c)  y = Neg(c)
    }"""
    assert compare_with_onnxruntime(model_of(main, TWICE, BOTH), level)


@pytest.mark.measure
@pytest.mark.parametrize("level", ["off", "basic", "all"])
def test_calls_in_subgraphs_are_inlined(level: str) -> None:
    main = """agraph (float[3,7] x, bool c) => (float[3,7] y, float[3,7] z) {
        y = f.choice(x, c)
        z = If(c) <
            then_branch = one () => (float[3,7] p) { p = f.both(x) },
            else_branch = two () => (float[3,7] q) { q = Neg(x) }
        >
    }"""
    assert compare_with_onnxruntime(model_of(main, CHOICE, BOTH), level)


MAIN = "agraph (float[3,7] x) => (float[3,7] y) { a = Neg(x)  y = f.both(a) }"


@pytest.mark.parametrize(
    ("main", "function", "is_kept"),
    [
        (MAIN, BOTH, True),
        (MAIN, BOTH.replace("21", "20"), False),
        (MAIN.replace("a = Neg(x)  y = f.both(a)", "y = f.both(a)  a = Neg(x)"), BOTH, False),
        (MAIN.replace("both", "both:v"), BOTH.replace(", opset", ', overload: "v", opset'), False),
        ("agraph (float[3,7] x) => (float[3,7] y) { y = Neg(x) }", "", False),
    ],
    ids=["plain", "another version", "unsorted", "overload", "none"],
)
def test_calls_stay_if_order_opsets_and_overloads_allow_it(
    main: str, function: str, *, is_kept: bool
) -> None:
    prepared = prepare(ModelFile("<text>", model_of(main, *filter(None, [function])), 0))
    assert (prepared.with_calls is not None) == is_kept
    assert all(node.domain == "" for node in prepared.proto.graph.node)
