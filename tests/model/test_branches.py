"""A value given for an input rules out a branch of an If, and what that makes is not counted."""

import pytest
from graphs import model_of

from onnxmem import Analysis, analyze

CHOICE = """agraph (bool[1] c, float[2,3] x) => (float[2,3] y)
    <float[3,11] w, float[11,3] v> {
    d = Not(c)
    y = If (d) <
        then_branch = plain () => (float[2,3] a) { a = Relu(x) },
        else_branch = wide () => (float[2,3] b) {
            h = MatMul(x, w) g = Sigmoid(h) b = MatMul(g, v) }> }"""
NESTED = """agraph (bool c, int64 n, float[2,3] x) => (float[2,3] y) {
    y = If (c) <
        then_branch = outer () => (float[2,3] a) {
            a = Loop (n, c, x) <
                body = step (int64 i, bool go, float[2,3] s) => (bool on, float[2,3] t) {
                    on = Identity(go) e = Exp(s) t = Log(e) }> },
        else_branch = other () => (float[2,3] b) {
            b = If (c) <
                then_branch = never () => (float[2,3] p) { q = Tan(x) p = Cos(q) },
                else_branch = always () => (float[2,3] r) { r = Sin(x) }> }> }"""
OPEN = """agraph (bool c, int64[1] k, float[2,13] x) => (y) {
    y = If (c) <
        then_branch = some () => (a) { i, j = TopK(x, k) a = Neg(i) },
        else_branch = all () => (b) { b = Neg(x) }> }"""


def made(found: Analysis) -> set[str]:
    tensors = found.graph.tensors.values()
    return {each.name.rpartition("/")[2] for each in tensors if each.role == "activation"}


def naive_bytes(found: Analysis) -> int | None:
    return found.activations.naive_bytes


@pytest.mark.parametrize(
    ("value", "names", "naive"),
    [(False, {"d", "y", "a"}, 1 + 24), (True, {"d", "y", "h", "g", "b"}, 1 + 24 + 2 * 88)],
)
def test_the_branch_that_runs_is_counted(value: bool, names: set[str], naive: int) -> None:  # noqa: FBT001
    found = analyze(model_of(CHOICE), values={"c": value})
    assert made(found) == names
    assert naive_bytes(found) == naive


def test_without_a_value_the_larger_branch_counts() -> None:
    found = analyze(model_of(CHOICE))
    assert made(found) == {"d", "y", "a", "h", "g", "b"}
    assert naive_bytes(found) == 1 + 24 + 2 * 88


def test_the_weights_of_an_idle_branch_are_loaded_all_the_same() -> None:
    given = analyze(model_of(CHOICE), values={"c": False})
    assert [each.name for each in given.graph.weights] == ["w", "v"]
    assert sum(each.size_bytes or 0 for each in given.graph.weights) == 2 * 3 * 11 * 4


@pytest.mark.parametrize(
    ("value", "names"), [(True, {"y", "a", "on", "e", "t"}), (False, {"y", "b", "r"})]
)
def test_branches_inside_follow_the_same_condition(value: bool, names: set[str]) -> None:  # noqa: FBT001
    found = analyze(model_of(NESTED), values={"c": value})
    assert made(found) == names
    if not value:
        assert not any(each.role == "body_input" for each in found.graph.tensors.values())


def test_what_an_idle_branch_leaves_open_is_not_unknown() -> None:
    assert analyze(model_of(OPEN)).status == "partial"
    found = analyze(model_of(OPEN), values={"c": False})
    assert (found.status, found.graph.tensors["y"].shape) == ("ok", (2, 13))


def test_a_condition_of_several_elements_rules_nothing_out() -> None:
    text = CHOICE.replace("bool[1] c", "bool[2] c")
    assert made(analyze(model_of(text), values={"c": True})) == {"d", "y", "a", "h", "g", "b"}
