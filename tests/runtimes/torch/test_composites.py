"""Activations that exporters write out, read as the one operator that the framework runs.

Each pattern once as it is, and once for each condition that makes it another thing.
"""

from dataclasses import replace
from itertools import product

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import network, operators, run_as

from onnxmem.runtimes.torch.composites.rewriting import GraphView
from onnxmem.runtimes.torch.network import as_run

SHAPE = "float[2,6]"
NUMBERS = "float one = {1.0}, float two = {2.0}, float half = {0.5}, float three = {3.0}"
GELU = "float root = {1.41421356}, float inverse = {0.70710678}"
TANH = "float cubic = {0.044715}, float outer = {0.79788456}"


def run(body: str, outputs: str = f"{SHAPE} y") -> list[str]:
    """The operators that replace the nodes between x and y; v is an input of the same shape."""
    return run_as(f"""
        agraph ({SHAPE} x, {SHAPE} v) => ({outputs})
        <{NUMBERS}, {GELU}, {TANH}, int64[2] halves = {{3, 3}}> {{ {body} }}""")


@pytest.mark.parametrize("operands", ["x, s", "s, x"])
def test_a_tensor_times_its_sigmoid_is_silu(operands: str) -> None:
    assert run(f"s = Sigmoid(x)  y = Mul({operands})") == ["Swish"]


@pytest.mark.parametrize(
    "body",
    [
        "s = Sigmoid(v)  y = Mul(x, s)",
        "s = Sigmoid(x)  t = Mul(x, s)  y = Add(t, s)",
        "s = Tanh(x)  y = Mul(x, s)",
        "s = Sigmoid(x)  y = Add(x, s)",
    ],
)
def test_another_product_with_a_sigmoid_is_not_silu(body: str) -> None:
    """A gate of something else, read again, or by another curve, or added."""
    assert "Swish" not in run(body)


def test_a_tensor_times_tanh_of_softplus_is_mish() -> None:
    assert run("p = Softplus(x)  t = Tanh(p)  y = Mul(x, t)") == ["Mish"]


@pytest.mark.parametrize(
    "body",
    [
        "p = Softplus(v)  t = Tanh(p)  y = Mul(x, t)",
        "p = Softplus(x)  t = Tanh(p)  m = Mul(x, t)  y = Add(m, p)",
        "p = Exp(x)  t = Tanh(p)  y = Mul(x, t)",
        "p = Softplus(x)  t = Sigmoid(p)  y = Mul(x, t)",
    ],
)
def test_another_product_with_tanh_is_not_mish(body: str) -> None:
    assert "Mish" not in run(body)


def test_glu_of_two_halves() -> None:
    found = run(
        "a, b = Split <axis = 1> (x, halves)  s = Sigmoid(b)  y = Mul(a, s)", "float[2,3] y"
    )
    assert found == ["glu"]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ("a, b = Split <axis = 1> (x, halves)  s = Sigmoid(a)  y = Mul(b, s)", "float[2,3] y"),
        (
            "a, b = Split <axis = 1> (x, halves)  s = Sigmoid(b)  m = Mul(a, s)  y = Add(m, a)",
            "float[2,3] y",
        ),
        (
            "a, b, c = Split <axis = 1, num_outputs = 3> (x)  s = Sigmoid(b)  y = Mul(a, s)",
            "float[2,2] y",
        ),
    ],
)
def test_another_product_of_pieces_is_not_glu(body: str, outputs: str) -> None:
    """The first half gates, or is read again, or there are three pieces."""
    assert "glu" not in run(body, outputs)


@pytest.mark.parametrize("body", ["y = Reciprocal(r)", "y = Div(one, r)"])
def test_one_over_a_square_root_is_rsqrt(body: str) -> None:
    assert run(f"r = Sqrt(x)  {body}") == ["rsqrt"]


@pytest.mark.parametrize(
    "body",
    [
        "r = Sqrt(x)  y = Div(two, r)",
        "r = Exp(x)  y = Reciprocal(r)",
        "r = Sqrt(x)  i = Reciprocal(r)  y = Add(i, r)",
        "r = Sqrt(x)  y = Div(v, r)",
    ],
)
def test_another_quotient_of_a_square_root_is_not_rsqrt(body: str) -> None:
    assert "rsqrt" not in run(body)


@pytest.mark.parametrize(
    "body",
    [
        "p = Softplus(x)  c = Greater(x, three)  y = Where(c, x, p)",
        (
            "b = Mul(x, two)  p = Softplus(b)  s = Div(p, two)  c = Greater(b, three)"
            "  y = Where(c, x, s)"
        ),
    ],
)
def test_softplus_with_a_threshold(body: str) -> None:
    """With its factor and without."""
    assert run(body) == ["Softplus"]


@pytest.mark.parametrize(
    "body",
    [
        "p = Softplus(x)  c = Greater(v, three)  y = Where(c, x, p)",
        "p = Softplus(x)  c = Greater(x, three)  y = Where(c, v, p)",
        "p = Softplus(x)  c = Less(x, three)  y = Where(c, x, p)",
        "p = Exp(x)  c = Greater(x, three)  y = Where(c, x, p)",
    ],
)
def test_no_softplus_with_a_threshold(body: str) -> None:
    assert len(run(body)) == 3


@pytest.mark.parametrize(
    "body", ["m = Max(x, one)  y = Min(m, two)", "m = Max(one, x)  y = Min(two, m)"]
)
def test_a_clamp_by_two_numbers(body: str) -> None:
    assert run(body) == ["Clip"]


@pytest.mark.parametrize(
    "body",
    [
        "m = Max(x, v)  y = Min(m, two)",
        "m = Max(x, one)  y = Min(m, v)",
        "m = Max(x, one)  n = Min(m, two)  y = Add(n, m)",
        "m = Max(x, one, two)  y = Min(m, two)",
    ],
)
def test_other_limits_are_not_clamp(body: str) -> None:
    assert "Clip" not in run(body)


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, one)  e = Elu(a)  y = Mul(e, one)",
        "a = Mul(one, x)  e = Elu(a)  y = Mul(one, e)",
    ],
)
def test_elu_between_factors_of_one(body: str) -> None:
    """As the new exporter writes out its scales."""
    assert run(body) == ["Elu"]


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, two)  e = Elu(a)  y = Mul(e, one)",
        "a = Mul(x, one)  e = Elu(a)  y = Mul(e, two)",
        "a = Mul(x, one)  e = Elu(a)  m = Mul(e, one)  y = Add(m, e)",
        "a = Mul(x, one)  e = Elu(a)  m = Mul(e, one)  y = Add(m, a)",
        "a = Mul(x, one)  e = Selu(a)  y = Mul(e, one)",
        "a = Mul(x, one)  e = Elu(a)  y = Exp(e)",
    ],
)
def test_elu_with_other_factors_stays(body: str) -> None:
    """SELU-like scales, and what something else reads."""
    assert run(body)[0] == "Mul"


SCALINGS = ("e = Div(x, root)", "e = Mul(x, inverse)", "e = Mul(inverse, x)")
PRODUCTS = (
    "p = Mul(x, a)  y = Mul(p, half)",
    "p = Mul(a, x)  y = Mul(half, p)",
    "p = Mul(a, half)  y = Mul(p, x)",
    "p = Mul(half, a)  y = Mul(x, p)",
    "p = Mul(x, half)  y = Mul(p, a)",
    "p = Mul(half, x)  y = Mul(a, p)",
    "p = Div(a, two)  y = Mul(p, x)",
    "p = Div(x, two)  y = Mul(a, p)",
    "p = Mul(x, a)  y = Div(p, two)",
)


@pytest.mark.parametrize("plus", ["a = Add(f, one)", "a = Add(one, f)"])
@pytest.mark.parametrize(("scaling", "rest"), [*product(SCALINGS, PRODUCTS)])
def test_gelu_in_any_order_of_its_factors(scaling: str, plus: str, rest: str) -> None:
    assert run(f"{scaling}  f = Erf(e)  {plus}  {rest}") == ["Gelu"]


@pytest.mark.parametrize(
    "body",
    [
        "f = Erf(x)  a = Add(f, one)  p = Mul(x, a)  y = Mul(p, half)",
        "e = Mul(x, half)  f = Erf(e)  a = Add(f, one)  p = Mul(x, a)  y = Mul(p, half)",
        "e = Div(x, root)  f = Erf(e)  a = Add(f, two)  p = Mul(x, a)  y = Mul(p, half)",
        "e = Div(x, root)  f = Erf(e)  a = Sub(f, one)  p = Mul(x, a)  y = Mul(p, half)",
        "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  p = Mul(v, a)  y = Mul(p, half)",
        "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  p = Mul(x, a)  y = Mul(p, two)",
        (
            "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  p = Mul(x, a)  h = Mul(p, half)"
            "  y = Add(h, a)"
        ),
        (
            "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  p = Mul(x, a)  h = Mul(p, half)"
            "  y = Add(h, e)"
        ),
        (
            "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  p = Mul(x, a)  h = Mul(p, half)"
            "  y = Add(h, p)"
        ),
        "e = Div(x, root)  f = Erf(e)  a = Add(f, one)  y = Mul(x, a)",
    ],
)
def test_another_curve_is_not_gelu(body: str) -> None:
    """Another number, another operand, or something between is read again."""
    assert "Gelu" not in run(body)


CUBE = "q = Mul(x, x)  c = Mul(x, q)  k = Mul(c, cubic)  s = Add(x, k)  o = Mul(s, outer)"


@pytest.mark.parametrize(
    "cube",
    [
        CUBE,
        "q = Mul(x, x)  c = Mul(q, x)  k = Mul(cubic, c)  s = Add(k, x)  o = Mul(outer, s)",
    ],
)
@pytest.mark.parametrize("rest", PRODUCTS)
def test_gelu_by_tanh_as_the_framework_has_it(cube: str, rest: str) -> None:
    assert run(f"{cube}  f = Tanh(o)  a = Add(f, one)  {rest}") == ["Gelu"]


@pytest.mark.parametrize(
    "cube",
    [
        "c = Pow(x, three)  k = Mul(c, cubic)  s = Add(x, k)  o = Mul(s, outer)",
        CUBE.replace("cubic)", "half)"),
        CUBE.replace("outer)", "half)"),
        CUBE.replace("s = Add(x, k)", "s = Add(v, k)"),
        CUBE.replace("q = Mul(x, x)", "q = Mul(v, v)"),
        CUBE.replace("c = Mul(x, q)", "c = Add(x, q)"),
        CUBE.replace("o = Mul(s, outer)", "o = Add(s, outer)"),
        CUBE.replace("s = Add(x, k)", "s = Sub(x, k)"),
    ],
)
def test_gelu_by_tanh_written_by_hand_stays(cube: str) -> None:
    """With Pow, as networks of their own write it, or with another number or operand."""
    found = run(f"{cube}  f = Tanh(o)  a = Add(f, one)  p = Mul(x, a)  y = Mul(p, half)")
    assert "Gelu" not in found
    assert "Tanh" in found


def test_gelu_by_tanh_needs_its_halved_product() -> None:
    assert "Gelu" not in run(f"{CUBE}  f = Tanh(o)  y = Add(f, one)")


def test_numbers_after_casts_are_known() -> None:
    """Exporters cast each number of a program to the type of what it meets."""
    found = run("o = CastLike(one, x)  i = Identity(o)  r = Sqrt(x)  y = Div(i, r)")
    assert found == ["CastLike", "Identity", "rsqrt"]


def test_a_composite_has_the_name_and_position_of_its_last_node() -> None:
    graph = network(f"""
        agraph ({SHAPE} x) => ({SHAPE} y) {{ s = Sigmoid(x)  y = Mul(x, s) }}""").graph
    (node,) = graph.nodes
    assert (node.name, node.inputs, node.outputs) == ("Mul_1", ("x",), ("y",))


@pytest.mark.parametrize(
    ("names", "metadata", "is_square"),
    [
        (("/m/Relu", "/m/Mul"), {}, True),
        (("/m/act/Relu", "/m/Mul"), {}, False),
        (("node_relu", "node_mul"), {}, False),
        (("/m/Relu", "/m/Mul"), {"pkg.torch.onnx.fx_node": "%mul"}, False),
    ],
)
@pytest.mark.parametrize("is_read_again", [False, True])
def test_a_product_of_an_expression_with_itself_is_a_square(
    names: tuple[str, str], metadata: dict[str, str], is_square: bool, is_read_again: bool
) -> None:
    """``relu(x).square()``: an argument has a name, and torch.export writes squares as Pow."""
    end = "y = Add(s, r)" if is_read_again else "y = Exp(s)"
    graph = graph_of(f"agraph ({SHAPE} x) => ({SHAPE} y) {{ r = Relu(x)  s = Mul(r, r)  {end} }}")
    renamed = zip(graph.nodes, (*names, "/m/end"), strict=True)
    nodes = tuple(replace(node, name=name, metadata=metadata) for node, name in renamed)
    found = operators(as_run(replace(graph, nodes=nodes)))
    assert ("square" in found) == (is_square and not is_read_again)


def test_the_first_of_matches_that_share_nodes_is_used() -> None:
    """``x * sigmoid(x)`` and its gate squared: the first Mul gets the Sigmoid."""
    assert run("s = Sigmoid(x)  m = Mul(x, s)  y = Sigmoid(m)") == ["Swish", "Sigmoid"]


def test_a_graph_without_composites_is_the_same() -> None:
    graph = graph_of(f"agraph ({SHAPE} x) => ({SHAPE} y) {{ y = Exp(x) }}")
    view = GraphView.of(graph)
    assert view.operands(graph.nodes[0]) == ()
    assert view.number("x") is None
    assert as_run(graph).nodes is graph.nodes
