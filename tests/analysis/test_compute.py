"""MACs and FLOPs by hand on small graphs; primes as sizes."""

from graphs import graph_of

from onnxmem.analysis.compute import compute


def test_a_matmul_of_a_weight_and_an_activation() -> None:
    graph = graph_of(
        """agraph (float[3,5] x) => (float[3,7] y) <float[5,7] w> {
            h = MatMul(x, w)
            y = Relu(h)
        }"""
    )
    counted = compute(graph)
    assert counted.forward_macs == 3 * 5 * 7
    assert counted.forward_flops == 2 * 3 * 5 * 7 + 3 * 7
    assert counted.backward_flops == 2 * (2 * 3 * 5 * 7) + 3 * 7
    assert counted.unknown_node_names == ()
    product, relu = graph.nodes
    assert counted.by_node[product.name].macs == 105
    assert counted.by_node[relu.name].flops == 21


def test_a_matmul_of_two_activations_has_no_weight_macs() -> None:
    graph = graph_of("agraph (float[3,5] a, float[5,7] b) => (float[3,7] y) { y = MatMul(a, b) }")
    assert compute(graph).backward_flops == 2 * 3 * 5 * 7


def test_no_gradient_needs_no_backward_flops() -> None:
    graph = graph_of("agraph (float[3,5] x) => (int64[3,5] y) { y = Shape(x) }")
    assert compute(graph).backward_flops == 0


def test_an_operator_without_a_record_is_unknown_and_left_out() -> None:
    graph = graph_of(
        """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
        agraph (float[3,5] x) => (y) <float[5,7] w> {
            h = MatMul(x, w)
            [strange] y = acme.Mystery(h)
        }"""
    )
    counted = compute(graph)
    assert counted.unknown_node_names == ("strange",)
    assert counted.forward_macs == 105
    assert counted.by_node["strange"].flops is None


def test_an_unknown_graph_is_unknown_and_not_zero() -> None:
    graph = graph_of(
        """<ir_version: 10, opset_import: ["acme" : 1]>
        agraph (float[3,5] x) => (y) { y = acme.Mystery(x) }"""
    )
    counted = compute(graph)
    assert counted.forward_macs is None
    assert counted.forward_flops is None
    assert counted.backward_flops is None


BRANCHES = """agraph (bool flag, float[3,5] x) => (y) <float[5,7] w> {
    [choice] y = If (flag) <
        then_branch = cheap () => (float[3,5] cheap_y) { [cheap] cheap_y = Relu(x) },
        else_branch = dear () => (float[3,7] dear_y) { [dear] dear_y = MatMul(x, w) }
    >
}"""


def test_an_if_counts_its_more_expensive_branch() -> None:
    counted = compute(graph_of(BRANCHES))
    assert counted.forward_flops == 2 * 105
    assert counted.by_node["choice"].macs == 105


def test_the_nodes_of_both_branches_are_listed() -> None:
    counted = compute(graph_of(BRANCHES))
    by_flops = {name.rpartition("/")[2]: node.flops for name, node in counted.by_node.items()}
    assert by_flops == {"choice": 210, "cheap": 15, "dear": 210}


def test_a_loop_counts_its_body_once() -> None:
    graph = graph_of(
        """agraph (int64 trips, bool go, float[3,5] x) => (float[3,5] y) {
            y = Loop (trips, go, x) <
                body = step (int64 i, bool keep, float[3,5] state)
                    => (bool keep_on, float[3,5] after) {
                    keep_on = Identity(keep)
                    after = Relu(state)
                }
            >
        }"""
    )
    counted = compute(graph)
    assert counted.forward_flops == 15
    assert counted.unknown_node_names == ()


def test_the_nodes_of_the_main_graph_add_up_to_the_model() -> None:
    graph = graph_of(BRANCHES)
    counted = compute(graph)
    assert counted.forward_flops == sum(
        counted.by_node[node.name].flops or 0 for node in graph.nodes
    )
