"""onnxruntime's allocation plan: which outputs share a buffer, and when it is freed."""

from dataclasses import replace

import pytest
from graphs import graph_of

from onnxmem.model.graph import DType, Node
from onnxmem.ops.spec import OpSpec
from onnxmem.runtimes.onnxruntime.allocation.frames import tensor_bytes
from onnxmem.runtimes.onnxruntime.allocation.planning import (
    LoadShape,
    Plan,
    Planning,
    element_bits,
    plan,
    runs,
    uses,
)
from onnxmem.runtimes.onnxruntime.providers import CPU, CUDA, ExecutionProvider


def planned(
    text: str,
    shapes: dict[str, LoadShape | None] | None = None,
    *,
    provider: ExecutionProvider = CPU,
    reuses_memory: bool = True,
) -> Plan:
    """Plan a graph with known shapes at load, except for the given ones."""
    graph = graph_of(text)
    known = {name: tensor.shape for name, tensor in graph.tensors.items()}
    return plan(graph, Planning({**known, **(shapes or {})}, provider, reuses_memory=reuses_memory))


def reported(made: Plan) -> list[str]:
    """Each step: the operator, the buffers that it allocates (+) and those freed after it (-)."""
    return [
        " ".join(
            [
                step.node.op_type,
                *(f"+{name.rpartition('/')[2]}" for name in step.allocates),
                *(f"-{name.rpartition('/')[2]}" for name in step.releases),
            ]
        )
        for step in made.steps
    ]


def chain(nodes: str, head: str = "float[23,41] x", weights: str = "") -> str:
    """A graph from x to y."""
    return f"agraph ({head}) => (y) <{weights}> {{ {nodes} }}".replace("<>", "")


# Buffers of their own


def test_an_output_has_a_buffer_until_its_last_consumer_has_run() -> None:
    made = planned(chain("a = Exp(x)  b = Add(a, x)  c = Mul(a, b)  y = Sub(c, x)"))
    assert reported(made) == ["Exp +a", "Add +b", "Mul +c -a -b", "Sub +y -c"]


def test_a_graph_output_never_reuses_a_buffer() -> None:
    made = planned(chain("a = Exp(x)  b = Neg(a)  y = Relu(b)"))
    assert reported(made) == ["Exp +a", "Neg +b -a", "Relu +y -b"]
    assert made.outputs == {"y"}


def test_a_graph_output_is_not_a_view() -> None:
    made = planned(chain("a = Exp(x)  y = Flatten(a)"))
    assert reported(made) == ["Exp +a", "Flatten +y -a"]


def test_a_graph_output_with_readers_is_never_freed() -> None:
    made = planned("agraph (float[23,41] x) => (a, y) { a = Exp(x)  b = Relu(a)  y = Neg(b) }")
    assert reported(made) == ["Exp +a", "Relu +b", "Neg +y -b"]


def test_an_omitted_output_has_no_buffer() -> None:
    head = "float[7,2,5] x, float[1,44,5] w, float[1,44,11] r"
    made = planned(chain("y, , c = LSTM <hidden_size = 11> (x, w, r)", head))
    assert reported(made) == ["LSTM +y +c"]


# Outputs that are stored in the file


def test_an_output_that_is_an_initializer_is_copied() -> None:
    text = "agraph (float[23,41] x) => (w, y, w) <float[7] w> { y = Exp(x) }"
    made = planned(text)
    assert made.stored_outputs == ("w",)
    assert made.outputs == {"w", "y"}


def test_an_output_of_a_constant_node_is_copied() -> None:
    made = planned(
        "agraph (float[2] x) => (k, y) { k = Constant <value = float[1] {7.0}> ()  y = Mul(x, k) }"
    )
    assert (made.stored_outputs, reported(made)) == (("k",), ["Mul +y"])


def test_a_weight_computed_by_a_node_is_not_copied() -> None:
    made = planned(
        "agraph (float[2] x) => (k, y) <int64[1] s = {3}> { k = ConstantOfShape(s)  y = Exp(x) }"
    )
    assert made.stored_outputs == ()
    assert reported(made) == ["ConstantOfShape +k", "Exp +y"]


# Aliases


def test_a_chain_of_views_is_one_buffer_until_the_last_consumer() -> None:
    nodes = "a = Exp(x)  b = Reshape(a, s)  c = Flatten(b)  d = Identity(c)  e = Neg(d)  y = Abs(e)"
    made = planned(chain(nodes, weights="int64[2] s = {41, 23}"))
    assert reported(made)[:5] == ["Exp +a", "Reshape", "Flatten", "Identity", "Neg +e -a"]
    assert {made.buffers[name] for name in "abcd"} == {"a"}


def test_a_view_of_a_graph_input_allocates_and_frees_nothing() -> None:
    made = planned(chain("a = Flatten(x)  b = Relu(a)  y = Neg(b)"))
    assert reported(made) == ["Flatten", "Relu +b", "Neg +y -b"]
    assert made.buffers["a"] == "x"


def test_an_unused_view_is_a_view() -> None:
    made = planned(chain("a = Exp(x)  b = Flatten(a)  y = Neg(a)"))
    assert reported(made) == ["Exp +a", "Flatten", "Neg +y -a"]


# In place


@pytest.mark.parametrize("op", ["Relu", "Sigmoid", "Softmax", "Cast <to = 6> "])
def test_an_output_overwrites_an_input_that_dies(op: str) -> None:
    made = planned(chain(f"a = Exp(x)  b = {op}(a)  y = Neg(b)"))
    assert [reported(made)[0], reported(made)[2]] == ["Exp +a", "Neg +y -a"]
    assert made.buffers["b"] == "a"


@pytest.mark.parametrize("op", ["Neg", "Add", "Gelu"])
def test_an_output_overwrites_an_input_only_if_the_kernel_allows_it(op: str) -> None:
    operands = "a, x" if op == "Add" else "a"
    made = planned(chain(f"a = Exp(x)  b = {op}({operands})  y = Neg(b)"))
    assert made.buffers["b"] == "b"


def test_an_input_with_later_readers_is_not_overwritten() -> None:
    made = planned(chain("a = Exp(x)  b = Relu(a)  y = Add(a, b)"))
    assert reported(made) == ["Exp +a", "Relu +b", "Add +y -a -b"]


def test_an_input_read_twice_by_the_node_is_not_overwritten() -> None:
    head = "float[23,41] x, int64[23,41] i"
    once = planned(chain("a = Exp(x)  b = ScatterElements(a, i, x)  y = Neg(b)", head))
    twice = planned(chain("a = Exp(x)  b = ScatterElements(a, i, a)  y = Neg(b)", head))
    assert (once.buffers["b"], twice.buffers["b"]) == ("a", "b")


def test_graph_inputs_and_weights_are_not_overwritten() -> None:
    made = planned(chain("a = Relu(x)  b = Relu(w)  y = Add(a, b)", weights="float[23,41] w"))
    assert reported(made) == ["Relu +a", "Relu +b", "Add +y -a -b"]


def test_the_uses_of_all_views_of_the_buffer_count() -> None:
    dying = planned(chain("a = Exp(x)  b = Flatten(a)  c = Relu(b)  y = Neg(c)"))
    read = planned(chain("a = Exp(x)  b = Flatten(a)  c = Relu(b)  y = Add(c, a)"))
    assert (dying.buffers["c"], read.buffers["c"]) == ("a", "c")


def test_an_overwritten_view_can_have_another_shape_than_its_buffer() -> None:
    nodes = "a = Exp(x)  b = Reshape(a, s)  c = Relu(b)  y = Neg(c)"
    assert planned(chain(nodes, weights="int64[1] s = {943}")).buffers["c"] == "a"


def test_an_unused_output_can_overwrite() -> None:
    made = planned(chain("a = Exp(x)  b = Relu(a)  y = Neg(x)"))
    assert reported(made) == ["Exp +a", "Relu -a", "Neg +y"]


def test_an_omitted_optional_input_is_not_overwritten() -> None:
    domain = '<ir_version: 10, opset_import: ["": 21, "com.microsoft.nchwc": 1]>'
    head = "float[1,16,7,7] x, float[16,16,1,1] w, float[16] b"
    given = "a = Exp(x)  c = com.microsoft.nchwc.Conv(x, w, b, a)  y = Neg(c)"
    absent = given.replace("b, a)", "b)")
    empty = given.replace("x, w, b, a)", "x, w, b, )")
    texts = [domain + chain(nodes, head) for nodes in (given, absent, empty)]
    buffers = [planned(text, reuses_memory=False).buffers["c"] for text in texts]
    assert buffers == ["a", "c", "c"]


# Same size


CASTS = [
    ("float16", "float16", 10, True),
    ("float16", "bfloat16", 16, True),
    ("float", "int32", 6, True),
    ("float", "double", 11, False),
    ("float", "float16", 10, False),
    ("uint8", "bool", 9, True),
    ("int4", "uint4", 21, True),
    ("int4", "int8", 3, False),
    ("int8", "int4", 22, False),
]


@pytest.mark.parametrize(("before", "after", "to", "same"), CASTS)
def test_overwriting_needs_elements_of_equal_width(
    before: str, after: str, to: int, *, same: bool
) -> None:
    nodes = f"a = Identity(x)  b = Concat <axis = 0> (a)  c = Cast <to = {to}> (b)  y = Identity(c)"
    text = f"agraph ({before}[23,41] x) => ({after}[23,41] y) {{ {nodes} }}"
    assert (planned(text).buffers["c"] == "b") is same


@pytest.mark.parametrize(
    ("dtype", "bits"), [(DType.FLOAT16, 16), (DType.INT4, 4), (DType.STRING, None), (None, None)]
)
def test_strings_are_not_overwritten(dtype: DType | None, bits: int | None) -> None:
    assert element_bits(dtype) == bits


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ((23, 41), (23, 41), True),
        (("N", 41), ("N", 41), True),
        (("N", 41), ("M", 41), False),
        (("N", 41), (23, 41), False),
        ((23, 41), (41, 23), False),
        ((23, 41), (943,), False),
        ((None, 41), (None, 41), False),
        (None, (23, 41), False),
        ((23, 41), None, False),
    ],
)
def test_shapes_are_compared_as_known_at_load(
    before: LoadShape | None, after: LoadShape | None, *, same: bool
) -> None:
    shapes = {"a": before, "b": after}
    made = planned(chain("a = Exp(x)  b = Relu(a)  y = Neg(b)"), shapes)
    assert (made.buffers["b"] == "a") is same
    reused = planned(chain("a = Exp(x)  c = Neg(a)  b = Abs(c)  y = Neg(b)"), shapes)
    assert (reused.buffers["b"] == "a") is same


def test_views_of_unknown_shape_are_views() -> None:
    text = chain("a = Exp(x)  b = Flatten(a)  y = Neg(b)")
    assert planned(text, {"a": None, "b": None}).buffers["b"] == "a"


def test_strings_are_never_reused() -> None:
    text = """agraph (string[7] x) => (y) {
        a = Concat <axis = 0> (x)  b = Concat <axis = 0> (a)  c = Concat <axis = 0> (b)
        y = Equal(c, c) }"""
    assert reported(planned(text)) == ["Concat +a", "Concat +b -a", "Concat +c -b", "Equal +y -c"]


# Dead buffers


def test_an_output_reuses_a_free_buffer_of_its_size() -> None:
    made = planned(chain("a = Exp(x)  b = Neg(a)  c = Abs(b)  d = Sqrt(c)  y = Exp(d)"))
    assert reported(made) == ["Exp +a", "Neg +b", "Abs", "Sqrt -a", "Exp +y -b"]
    assert (made.buffers["c"], made.buffers["d"]) == ("a", "b")


def test_an_output_does_not_reuse_a_buffer_that_its_node_reads() -> None:
    made = planned(chain("a = Exp(x)  b = Neg(a)  y = Add(a, b)"))
    assert made.buffers["b"] == "b"


def test_the_buffer_freed_last_is_reused_first() -> None:
    text = chain("a = Exp(x)  b = Neg(x)  c = Neg(a)  d = Neg(b)  e = Add(c, d)  y = Mul(e, x)")
    made = planned(text)
    assert (made.buffers["d"], made.buffers["e"]) == ("a", "b")
    both = chain("a = Exp(x)  b = Neg(x)  c = Sub(a, b)  d = Neg(c)  e = Abs(d)  y = Add(d, e)")
    assert (planned(both).buffers["d"], planned(both).buffers["e"]) == ("b", "c")


def test_a_free_buffer_of_another_size_is_skipped() -> None:
    nodes = (
        """a = Exp(x)  b = ReduceSum <keepdims = 1> (a)  c = Neg(b)  d = Add(c, x)  y = Neg(d)"""
    )
    assert planned(chain(nodes)).buffers["d"] == "a"


def test_the_shape_of_a_free_buffer_is_that_of_its_first_tensor() -> None:
    nodes = """a = Exp(x)  b = Reshape(a, s)  c = Neg(b)  d = Abs(c)  e = Reshape(d, t)
        f = Sqrt(e)  y = Neg(f)"""
    weights = "int64[1] s = {943}, int64[2] t = {23, 41}"
    made = planned(chain(nodes, weights=weights))
    # d is [943] and finds a, [23, 41], dead; f is [23, 41].
    assert (made.buffers["d"], made.buffers["f"]) == ("d", "a")


def test_scalars_do_not_reuse_buffers() -> None:
    made = planned("agraph (float x) => (y) { a = Exp(x)  b = Neg(a)  c = Abs(b)  y = Neg(c) }")
    assert made.buffers["c"] == "c"


def test_unused_outputs_do_not_reuse_buffers() -> None:
    made = planned(chain("a = Exp(x)  b = Neg(a)  c = Abs(b)  y = Neg(x)"))
    assert reported(made) == ["Exp +a", "Neg +b -a", "Abs +c -b", "Neg +y"]


def test_an_unused_output_can_be_reused_at_once_and_is_freed_at_the_end() -> None:
    made = planned(chain("a = Exp(x)  b = Neg(x)  c = Abs(b)  y = Neg(c)"))
    assert made.buffers["b"] == "a"
    assert reported(planned(chain("a = Exp(x)  y = Neg(x)"))) == ["Exp +a", "Neg +y"]


def test_without_reuse_every_output_but_views_and_overwriting_ones_has_its_own() -> None:
    text = chain("a = Exp(x)  b = Neg(a)  c = Abs(b)  d = Relu(c)  e = Flatten(d)  y = Neg(e)")
    assert reported(planned(text, reuses_memory=False)) == [
        *("Exp +a", "Neg +b -a", "Abs +c -b", "Relu", "Flatten", "Neg +y -c")
    ]


def test_a_buffer_stays_in_the_gap_between_its_uses() -> None:
    nodes = """a = Exp(x)  b = ReduceSum <keepdims = 1> (a)  c = Mul(b, w)  d = Add(c, x)
        e = Neg(d)  y = Abs(e)"""
    made = planned(chain(nodes, weights="float w"))
    assert made.buffers["d"] == "a"
    assert reported(made) == [
        "Exp +a",
        "ReduceSum +b",
        "Mul +c -b",
        "Add -c",
        "Neg +e -a",
        "Abs +y -e",
    ]


# Subgraphs


IF = """agraph (float[23,41] x, bool k) => (y) {
    a = Exp(x)
    b = If (k) <
        then_branch = t () => (float[23,41] o) { p = Add(a, x)  q = Relu(p)  o = Neg(q) },
        else_branch = e () => (float[M,41] r) { r = Add(a, x) }>
    y = Neg(b) }"""


def test_each_subgraph_has_its_own_plan() -> None:
    made = planned(IF)
    assert reported(made) == ["Exp +a", "If +b -a", "Neg +y -b"]
    then, other = made.steps[1].bodies
    assert reported(then) == ["Add +p", "Relu", "Neg +o -p"]
    assert reported(other) == ["Add +r"]


def test_outer_tensors_are_never_overwritten_in_subgraphs() -> None:
    text = IF.replace("Add(a, x)  q", "Relu(a)  q")
    assert reported(planned(text).steps[1].bodies[0])[:2] == ["Relu +p", "Relu"]


def test_outer_tensors_are_alive_until_the_node_of_their_subgraph() -> None:
    text = IF.replace("a = Exp(x)", "a = Exp(x)  c = Relu(a)").replace("Neg(b)", "Add(b, c)")
    assert planned(text).buffers["c"] == "c"


def test_outputs_of_known_shape_are_distinguished() -> None:
    assert sized_outputs({}) == [["o"], ["r"]]
    assert sized_outputs({"then_branch/o": ("N", 41)}) == [[], ["r"]]
    assert sized_outputs({"then_branch/o": (None, 41)}) == [[], ["r"]]
    assert sized_outputs({"then_branch/o": None}) == [[], ["r"]]


def sized_outputs(ends: dict[str, LoadShape | None]) -> list[list[str]]:
    """Outputs of known shape of the branches of ``IF``; shapes at load by the ends of names."""
    graph = graph_of(IF)
    known: dict[str, LoadShape | None] = {n: tensor.shape for n, tensor in graph.tensors.items()}
    for end, shape in ends.items():
        known[next(name for name in known if name.endswith(end))] = shape
    bodies = plan(graph, Planning(known)).steps[1].bodies
    return [[name.rpartition("/")[2] for name in body.sized_outputs] for body in bodies]


LOOP = """agraph (float[23,41] x, float[23,41] z) => (y, s) <int64 n = {3}> {
    a = Exp(x)
    b, c, s = Loop (n, , a, z) <body = body
        (int64 i, bool go, float[23,41] v, float[23,41] u)
        => (bool go_on, float[23,41] w, float[23,41] u_on, int64 j) {
            go_on = Identity(go)  p = Abs(v)  w = Neg(p)  u_on = Identity(u)  j = Identity(i) }>
    y = Add(b, c) }"""


def test_a_loop_does_not_copy_unchanged_carried_tensors() -> None:
    body = planned(LOOP).steps[1].bodies[0]
    assert reported(body) == ["Identity", "Abs +p", "Neg +w -p", "Identity", "Identity +j"]
    shared = {name.rpartition("/")[2]: body.buffers[name] for name in body.graph.outputs}
    assert shared["u_on"].endswith("/u")
    assert shared["go_on"].endswith("/go")


def test_a_loop_does_not_copy_outer_tensors() -> None:
    body = planned(LOOP.replace("Identity(u)", "Identity(z)")).steps[1].bodies[0]
    assert "Identity +u_on" not in reported(body)


def test_a_loop_copies_tensors_of_its_body() -> None:
    body = planned(LOOP.replace("u_on = Identity(u)", "u_on = Identity(p)")).steps[1].bodies[0]
    assert "Identity +u_on -p" in reported(body)


def test_an_if_copies_its_outputs() -> None:
    text = IF.replace("o = Neg(q)", "o = Identity(a)")
    assert "Identity +o" in reported(planned(text).steps[1].bodies[0])


def test_another_operator_than_identity_in_a_loop_copies() -> None:
    body = planned(LOOP.replace("u_on = Identity(u)", "u_on = Relu(u)")).steps[1].bodies[0]
    assert "Relu +u_on" in reported(body)


def test_a_scan_copies_its_outputs() -> None:
    text = """agraph (float[23,41] h, float[7,41] x) => (y, z) {
        y, z = Scan <num_scan_inputs = 1, body = body (float[23,41] s, float[41] v)
            => (float[23,41] t, float[41] o) { t = Identity(s)  o = Neg(v) }> (h, x) }"""
    made = planned(text)
    assert reported(made) == ["Scan +y +z"]
    assert reported(made.steps[0].bodies[0]) == ["Identity +t", "Neg +o"]


def test_constants_are_not_steps_and_uses_are_counted_per_operand() -> None:
    text = IF.replace("a = Exp(x)", "k2 = Constant <value = float[1] {7.0}> ()  a = Mul(x, k2)")
    graph = graph_of(text)
    assert [runs(node) for node in graph.nodes] == [False, True, True, True]
    assert uses(graph.nodes[1]) == ("x", "k2")
    assert uses(graph.nodes[2]) == ("k", "a", "x")
    assert uses(graph_of(chain("y = Mul(x, x)")).nodes[0]) == ("x", "x")


# Execution providers


def node(op_type: str, domain: str = "", num: int = 3) -> Node:
    names = tuple("abcdefg"[:num])
    return Node(op_type, op_type, domain, names, names, spec_of(op_type, domain))


def spec_of(op_type: str, domain: str) -> OpSpec:
    if domain or op_type in {"MoE", "Optional"}:
        return OpSpec(op_type=op_type, domain=domain, source="made up")
    return graph_of(chain(f"y = {op_type}(x)")).nodes[0].operator


@pytest.mark.parametrize(
    ("op_type", "cpu", "cuda"),
    [
        ("Flatten", ((0, 0),), ((0, 0),)),
        ("Optional", ((0, 0),), ()),
        ("Exp", (), ()),
    ],
)
def test_views_depend_on_the_provider(
    op_type: str, cpu: tuple[tuple[int, int], ...], cuda: tuple[tuple[int, int], ...]
) -> None:
    assert (CPU.aliases(node(op_type)), CUDA.aliases(node(op_type))) == (cpu, cuda)


def test_running_statistics_are_updated_in_place() -> None:
    text = """agraph (float[2,3,5,7] x, float[3] m) => (y, p, q) <float[3] s, float[3] v> {
        y, p, q = BatchNormalization <training_mode = 1> (x, s, s, m, v) }"""
    assert CPU.aliases(graph_of(text).nodes[0]) == ((3, 1), (4, 2))
    assert CUDA.aliases(graph_of(text).nodes[0]) == ()
    assert reported(planned(text.replace("=> (y, p, q)", "=> (y)"))) == ["BatchNormalization +y"]


@pytest.mark.parametrize(
    ("op_type", "domain", "cpu", "cuda"),
    [
        ("Relu", "", ((0, 0),), ((0, 0),)),
        ("Softmax", "", ((0, 0),), ()),
        ("Gelu", "", (), ((0, 0),)),
        ("Exp", "", (), ()),
        ("Attention", "com.microsoft", (), ((4, 1),)),
        ("MoE", "com.microsoft", (), ((0, 0),)),
    ],
)
def test_overwriting_depends_on_the_provider(
    op_type: str,
    domain: str,
    cpu: tuple[tuple[int, int], ...],
    cuda: tuple[tuple[int, int], ...],
) -> None:
    made = node(op_type, domain)
    assert (CPU.may_overwrite(made), CUDA.may_overwrite(made)) == (cpu, cuda)


def test_on_cuda_the_onnx_attention_overwrites_nothing() -> None:
    made = Node("n", "Attention", "", (), (), OpSpec(op_type="Attention", source="made up"))
    assert CUDA.may_overwrite(made) == ()


def test_a_plan_follows_its_provider() -> None:
    text = chain("a = Exp(x)  b = Softmax(a)  c = Gelu(b)  y = Neg(c)")
    cpu, cuda = planned(text), planned(text, provider=CUDA)
    assert reported(cpu) == ["Exp +a", "Softmax", "Gelu +c -a", "Neg +y -c"]
    assert reported(cuda) == ["Exp +a", "Softmax +b -a", "Gelu", "Neg +y -b"]


def test_a_negative_dim_makes_a_size_unknown() -> None:
    """Onnxruntime folds an infinity to a negative dim, which is not a valid one."""
    graph = graph_of("agraph (float[3, 7] x) => (float[3, 7] y) { y = Relu(x) }")
    tensors = {**graph.tensors, "y": replace(graph.tensors["y"], shape=(3, -(2**63)))}
    assert tensor_bytes(graph, "y") == 3 * 7 * 4
    assert tensor_bytes(replace(graph, tensors=tensors), "y") is None
