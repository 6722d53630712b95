"""What a file does not show of a training step, and the warnings on it."""

from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import recipe_of

from onnxmem.errors import Finding
from onnxmem.model.graph import FX_NODE, Graph
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.units import format_bytes


def renamed(text: str, names: dict[str, str]) -> str:
    for old, new in names.items():
        text = text.replace(old, old.replace(old.strip(), f'"{new.strip()}"'))
    return text


def finding_of(graph: Graph, code: str, **recipe: object) -> Finding | None:
    found = training_memory(graph, recipe_of(**recipe)).findings
    return next((each for each in found if each.code == code), None)


MIXED = """
    agraph (float[2,5,7] x) => (float[2,5,3] y) <float[5,5] table, float[7,3] w> {
        h = MatMul(table, x)
        y = MatMul(h, w)
    }"""


def test_a_matrix_with_a_name_of_its_own_may_be_a_buffer() -> None:
    graph = graph_of(MIXED)
    finding = finding_of(graph, "buffers_unknown")
    assert finding is not None
    assert finding.node == "table"
    peaks = [
        training_memory(graph, recipe_of(freeze=freeze)).peak_bytes for freeze in ((), ("table",))
    ]
    assert all(format_bytes(peak) in finding.message for peak in peaks)


@pytest.mark.parametrize("name", ["weight", "h.proj_weight", "kernel", "val_12", "q"])
def test_a_matrix_of_a_layer_is_trained(name: str) -> None:
    graph = graph_of(renamed(MIXED, {"table": name}))
    assert finding_of(graph, "buffers_unknown") is None


def test_a_list_of_parameters_leaves_no_doubt_about_matrices() -> None:
    graph = replace(graph_of(MIXED), of_parameters=frozenset({"table", "w"}))
    assert finding_of(graph, "buffers_unknown") is None


STABLE = """
    agraph (float[2,5] x) => (float[2,5] y) <float[5,5] w, int64[1] axes = {1}> {
        h = MatMul(x, w)
        m = ReduceMax <keepdims = 1> (h, axes)
        s = Sub(h, m)
        y = Exp(s)
    }"""


def test_a_maximum_that_is_subtracted_before_an_exponential_may_be_detached() -> None:
    finding = finding_of(graph_of(STABLE), "maxima_subtracted")
    assert finding is not None
    assert f"up to {4 * 2 * 5 + 4 * 2} B less" in finding.message
    assert finding_of(graph_of(STABLE.replace("Exp", "Sin")), "maxima_subtracted") is None


LARGEST = """
    agraph (float[20,5] x) => (float[20] y) <float[5,5] w, int64[1] axes = {1}> {
        h = MatMul(x, w)
        y = ReduceMax <keepdims = 0> (h, axes)
    }"""
INDICES_BYTES = 8 * 20


def test_a_maximum_over_one_axis_may_be_one_with_indices() -> None:
    graph = graph_of(LARGEST)
    finding = finding_of(graph, "maxima_unknown")
    assert finding is not None
    assert finding.message.startswith("1 node of a maximum counted as amax")
    named = graph_of(renamed(LARGEST, {" y": " amax_1"}))
    assert finding_of(named, "maxima_unknown") is None
    # The maximum of all is no call with an axis.
    several = graph_of(
        LARGEST.replace("(float[20] y)", "(float y)").replace(
            "int64[1] axes = {1}", "int64[2] axes = {0, 1}"
        )
    )
    assert finding_of(several, "maxima_unknown") is None


def test_a_maximum_that_torch_export_names_saves_indices() -> None:
    graph = graph_of(LARGEST)
    call = "%max_1 : [num_users=1] = call_function[target=torch.ops.aten.max.dim](args = (%h, 1))"
    nodes = (graph.nodes[0], replace(graph.nodes[1], metadata={FX_NODE: call}))
    item = graph_of(renamed(LARGEST, {" y": " getitem_4"}))
    for each in (replace(graph, nodes=nodes), item):
        found = training_memory(each, recipe_of())
        assert found.saved_activation_bytes == 4 * 20 + INDICES_BYTES
        assert finding_of(each, "maxima_unknown") is None
    amax = training_memory(graph, recipe_of()).saved_activation_bytes
    assert amax == 4 * 20 + 4 * 20 * 5


NORMED = """
    agraph (float[20,5] x) => (float[20,5] y)
    <float[5,5] w, float[5] scale, float two = {2}, float eps = {1e-6}, int64[1] axes = {1}> {
        h = MatMul(x, w)
        p = Pow(h, two)
        m = ReduceMean <keepdims = 1> (p, axes)
        a = Add(m, eps)
        q = Sqrt(a)
        r = Reciprocal(q)
        n = Mul(h, r)
        y = Mul(n, scale)
    }"""


def test_a_norm_that_is_written_out_may_be_one_call() -> None:
    graph = graph_of(NORMED)
    finding = finding_of(graph, "rms_norms_written_out")
    assert finding is not None
    # Of n and r, which the kernel keeps too but for the weight's product.
    assert f"{4 * 20 * 5 + 4 * 20} B less" in finding.message
    scripted = tuple(replace(node, name=f"/norm/{node.name}") for node in graph.nodes)
    assert finding_of(replace(graph, nodes=scripted), "rms_norms_written_out") is None


SQUARED = """
    agraph (float[20,5] x) => (float[20,5] y) <float[5,5] w> {
        h = MatMul(x, w)
        y = Mul(h, h)
    }"""


def test_a_square_under_autocast_may_be_a_call_in_float32() -> None:
    finding = finding_of(graph_of(SQUARED), "squares_unknown", precision="mixed-bf16")
    assert finding is not None
    assert f"{4 * 20 * 5} B more" in finding.message
    assert finding_of(graph_of(SQUARED), "squares_unknown") is None


HEADS = """
    agraph (float[2,5,3,11] x) => (float[2,5,13] y)
    <float[11,8] wq, float[11,8] wk, float[11,8] wv, float[24,13] w, float s = {0.6},
     int64[3] joined = {2, 5, 24}> {
        a = MatMul(x, wq)  q = Transpose <perm = [0, 2, 1, 3]> (a)
        b = MatMul(x, wk)  k = Transpose <perm = [0, 2, 3, 1]> (b)
        c = MatMul(x, wv)  v = Transpose <perm = [0, 2, 1, 3]> (c)
        r = Sqrt(s)  d = Mul(q, r)  t = Sqrt(s)  e = Mul(k, t)
        f = MatMul(d, e)  g = Softmax <axis = -1> (f)  h = MatMul(g, v)
        i = Transpose <perm = [0, 2, 1, 3]> (h)  j = Reshape(i, joined)
        y = MatMul(j, w)
    }"""


def test_the_operands_of_an_attention_may_be_contiguous() -> None:
    """Copies of all three are saved in place of them, and one of the output beside it."""
    graph = graph_of(HEADS)
    finding = finding_of(graph, "operands_unknown", precision="mixed-bf16")
    assert finding is not None
    assert f"{2 * 2 * 5 * 3 * 8} B more" in finding.message
    named = tuple(replace(node, metadata={FX_NODE: "%h : "}) for node in graph.nodes)
    exported = replace(graph, nodes=named)
    assert finding_of(exported, "operands_unknown", precision="mixed-bf16") is None


def test_the_kernel_of_float32_copies_no_output() -> None:
    assert finding_of(graph_of(HEADS), "operands_unknown") is None


MEMBERS = """
    agraph (float[2,3] x) => (float[2,3] y)
    <float[3,3] a0, float[3,3] b0, float[3,3] a1, float[3,3] b1, float[3,3] a2> {
        c = MatMul(x, a0)  d = MatMul(c, b0)
        e = MatMul(d, a1)  f = MatMul(e, b1)
        y = MatMul(f, a2)
    }"""


def test_the_last_of_alike_modules_may_run_what_the_file_lacks() -> None:
    names = {f"{kind}{n}": f"layers.{n}.{kind}.weight" for n in range(3) for kind in "ab"}
    finding = finding_of(graph_of(renamed(MEMBERS, names)), "parameters_not_read")
    assert finding is not None
    assert "'layers.2.b.weight'" in finding.message
    # Where another one lacks it too, the network has it in some alone.
    names["b1"] = "layers.1.c.weight"
    assert finding_of(graph_of(renamed(MEMBERS, names)), "parameters_not_read") is None


def test_a_listed_parameter_that_the_file_does_not_read_has_a_warning() -> None:
    graph = replace(graph_of(SQUARED), of_parameters=frozenset({"w", "head.weight"}))
    finding = finding_of(graph, "parameters_not_read")
    assert finding is not None
    assert "1 parameter of the network that the file does not read: 'head.weight'" in (
        finding.message
    )
    # A layer reads it by another name: exporters transpose matrices.
    call = "%linear : [num_users=1] = call_function[target=torch.ops.aten.linear.default]"
    metadata = {FX_NODE: f"{call}(args = (%x, %p_head_weight), kwargs = {{}})"}
    nodes = (replace(graph.nodes[0], metadata=metadata), *graph.nodes[1:])
    assert finding_of(replace(graph, nodes=nodes), "parameters_not_read") is None
