"""What ends a process inside onnx's C++: onnxmem does not ask it, and goes on."""

import subprocess
import sys

import onnx
import pytest
from graphs import graph_of, model_of
from paths import ROOT, TESTS

from onnxmem.model.shapes.node_inference import ends_the_process, has_long_target, has_odd_terms
from onnxmem.ops.spec import Shape

OWN = '<ir_version: 10, opset_import: ["": 21, "own": 1, "ai.onnx.ml": 5]>'
OLD = '<ir_version: 8, opset_import: ["": 11, "own": 1]>'

EYE = f"{OWN} agraph (float[3,5] x) => (y) {{ a = own.F(x)  e = EyeLike <dtype = 1> (a)  y = Relu(x) }}"  # noqa: E501
REGEX = f"{OWN} agraph (float[3,5] x) => (y) {{ a = own.F(x)  e = RegexFullMatch(a)  y = Relu(x) }}"
LABELS = f"""{OWN} agraph (float[3,5] x) => (y) {{ a = own.F(x)
    e = ai.onnx.ml.LabelEncoder <keys_int64s = [2], values_int64s = [3]> (a)  y = Relu(x) }}"""
TREES = f"{OWN} agraph (float[3,5] x) => (y) {{ e = ai.onnx.ml.TreeEnsemble()  y = Relu(x) }}"
SPLIT = (
    f"{OWN} agraph (float[3,5] x) => (y) {{ a, b, e = Split <num_outputs = 2> (x)  y = Relu(x) }}"
)
PARTS = f"{OWN} agraph (float[3,5] x) => (y) {{ a, e = Split <num_outputs = 900000000> (x)  y = Relu(x) }}"  # noqa: E501
EXPAND = (
    f"{OLD} agraph (float[3,5] x, int64[99999989] s) => (y) {{ e = Expand(x, s)  y = Relu(x) }}"
)
DOTS = f'{OWN} agraph (float[3,5] x) => (y) {{ e = Einsum <equation = "..i.."> (x)  y = Relu(x) }}'
INSIDE = f"""{OWN} agraph (float[3,5] x, bool c) => (y) {{ a = own.F(x)
    e = If (c) <then_branch = t () => (o) {{ o = EyeLike <dtype = 1> (a) }},
                else_branch = f () => (p) {{ p, q, r = Split <num_outputs = 2> (x) }}>
    y = Relu(x) }}"""
FATAL = {
    "EyeLike": EYE,
    "RegexFullMatch": REGEX,
    "LabelEncoder": LABELS,
    "TreeEnsemble": TREES,
    "Split": SPLIT,
    "Split of many parts": PARTS,
    "Expand": EXPAND,
    "Einsum": DOTS,
    "inside an If": INSIDE,
}


def path() -> str:
    return ":".join([str(TESTS), str(ROOT)])


def test_the_process_survives_and_the_rest_of_the_graph_is_known() -> None:
    code = f"""
import graphs
for name, text in {FATAL!r}.items():
    tensors = graphs.graph_of(text).tensors
    print(name, tensors["y"].shape, tensors["e"].shape)
"""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**32, 2**32))\n"
    pytest.importorskip("resource")
    ran = subprocess.run(
        [sys.executable, "-c", limit + code],
        env={"PYTHONPATH": path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stderr, ran.returncode) == ("", 0)
    assert ran.stdout.splitlines() == [f"{name} (3, 5) None" for name in FATAL]


# Only what must be left out is


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [
        ("agraph (float[3,5] x) => (e) { e = EyeLike(x) }", "e", (3, 5)),
        ("agraph (float[3,5] x) => (e) { a = EyeLike(x)  e = NonZero(a) }", "a", (3, 5)),
        ("agraph (float[4,5] x) => (e) { e, f = Split <num_outputs = 2> (x) }", "e", (2, 5)),
        (f"{OLD} agraph (float[5] x) => (e) <int64[2] s = {{3, 1}}> {{ e = Expand(x, s) }}",
         "e", (3, 5)),
        (f"{OLD} agraph (float[5] x, int64[2] s) => (e) {{ e = Expand(x, s) }}",
         "e", (None, 5)),
        (f"{OLD} agraph (float[5] x) => (e) {{ s = own.F(x)  e = Expand(x, s) }}", "e", None),
        ("""agraph (float[3,5] x, bool c) => (e) { e = If (c) <
            then_branch = t () => (o) { o = EyeLike(x) },
            else_branch = f () => (p) { p = Relu(x) }> }""", "e", (3, 5)),
    ],
)  # fmt: skip
def test_a_node_of_known_operands_is_inferred(text: str, name: str, shape: Shape | None) -> None:
    assert graph_of(text).tensors[name].shape == shape


# The rule itself


def fatal(text: str, types: dict[str, onnx.TypeProto] | None = None) -> bool:
    model = model_of(text)
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    return ends_the_process(model.graph.node, opsets, types)


@pytest.mark.parametrize("text", FATAL.values(), ids=FATAL)
def test_an_unknown_type_is_fatal(text: str) -> None:
    assert fatal(text)


def vector(*dims: int | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, dims)


def test_a_known_type_is_enough_but_an_empty_one_is_not() -> None:
    assert not fatal(EYE, {"a": vector(3, 5)})
    assert not fatal(EYE, {"a": onnx.helper.make_tensor_type_proto(1, None)})
    assert fatal(EYE, {"a": onnx.TypeProto()})


def test_an_operator_of_that_name_in_another_domain_is_not_fatal() -> None:
    assert not fatal(f"{OWN} agraph (float[3] x) => (y) {{ y = own.EyeLike(x) }}")
    assert not fatal(f"{OWN} agraph (float[3] x) => (y) {{ y = own.Split <num_outputs = 2> (x) }}")


def test_expand_is_safe_from_version_13_on() -> None:
    assert not fatal("agraph (float[3] x, int64[99999989] s) => (y) { y = Expand(x, s) }")


@pytest.mark.parametrize(
    ("equation", "is_odd"),
    [
        ("ij , jk -> ik", False),
        ("...ij, j...->...i", False),
        ("", False),
        ("ij->1.2", False),
        ("....", True),
        ("i...j...", True),
        ("ij,j1", True),
        ("\xe9", True),
    ],
)
def test_the_terms_of_an_equation_are_letters_and_one_ellipsis(
    equation: str, *, is_odd: bool
) -> None:
    node = onnx.helper.make_node("Einsum", ["x"], ["y"], equation=equation)
    assert has_odd_terms(node) is is_odd


def test_an_equation_of_a_function_call_can_be_invalid() -> None:
    node = onnx.helper.make_node("Einsum", ["x"], ["y"])
    node.attribute.add(name="equation", type=3, ref_attr_name="how")
    assert has_odd_terms(node)


@pytest.mark.parametrize(
    ("target", "long"),
    [
        (vector(1024), False),
        (vector(1025), True),
        (vector(0), False),
        (vector(None), True),
        (onnx.TypeProto(), True),
        (None, True),
    ],
)
def test_a_target_is_long_from_1025_elements_or_of_unknown_length(
    target: onnx.TypeProto | None, *, long: bool
) -> None:
    node = onnx.helper.make_node("Reshape", ["x", "s"], ["y"])
    assert has_long_target(node, {} if target is None else {"s": target}) is long


def test_a_missing_target_has_unknown_length() -> None:
    assert has_long_target(onnx.helper.make_node("Reshape", ["x"], ["y"]), {})
