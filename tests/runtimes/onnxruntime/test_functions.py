"""Local functions as onnxruntime writes them out: ahead of its passes, round by round."""

import onnx
import onnx.parser
import pytest
from runtimes.onnxruntime.optimized_graphs import agrees

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
    ("level", "left"),
    [
        ("off", "Cast Mul Add Exp Cast Neg"),
        ("basic", "Mul Add Exp Neg"),
        ("all", "Mul Add Exp Neg"),
    ],
)
def test_casts_that_a_function_makes_go_with_the_first_passes(level: str, left: str) -> None:
    main = """agraph (float[3,7] x, float[3,7] k) => (float[3,7] y) {
        a = f.scale(x, k)  b = Exp(a)  c = CastLike(b, x)  y = Neg(c)
    }"""
    assert " ".join(agrees(model_of(main, SCALE), level)) == left


@pytest.mark.measure
def test_without_a_function_they_stay() -> None:
    main = """agraph (float[3,7] x) => (float[3,7] y) {
        b = Exp(x)  c = CastLike(b, x)  y = Neg(c)
    }"""
    assert agrees(model_of(main), "all") == ["Exp", "Cast", "Neg"]


@pytest.mark.measure
@pytest.mark.parametrize("level", ["off", "basic", "all"])
def test_the_nodes_of_a_call_come_behind_those_around_it(level: str) -> None:
    """The numbers of nodes decide in what order they run."""
    main = """agraph (float[3,7] x, float[3,7] k) => (float[3,7] y, float[3,7] z) {
        a = f.twice(x, k)  b = Exp(a)  c = f.twice(b, k)  z = f.both(c)  y = Neg(c)
    }"""
    assert agrees(model_of(main, TWICE, BOTH), level)


@pytest.mark.measure
@pytest.mark.parametrize("level", ["off", "basic", "all"])
def test_calls_inside_subgraphs_are_written_out_too(level: str) -> None:
    main = """agraph (float[3,7] x, bool c) => (float[3,7] y, float[3,7] z) {
        y = f.choice(x, c)
        z = If(c) <
            then_branch = one () => (float[3,7] p) { p = f.both(x) },
            else_branch = two () => (float[3,7] q) { q = Neg(x) }
        >
    }"""
    assert agrees(model_of(main, CHOICE, BOTH), level)


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
def test_calls_are_kept_where_they_can_be_written_out_as_they_are(
    main: str, function: str, *, is_kept: bool
) -> None:
    prepared = prepare(ModelFile("<text>", model_of(main, *filter(None, [function])), 0))
    assert (prepared.with_calls is not None) == is_kept
    assert all(node.domain == "" for node in prepared.proto.graph.node)
