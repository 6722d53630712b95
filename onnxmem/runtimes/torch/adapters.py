"""Low-rank adapters (LoRA): two small factors trained beside each matrix, which is frozen.

A layer ``y = x @ W`` becomes ``y + scale * ((x @ A) @ B)`` with A: [in, rank], B: [rank, out], as
peft's ``LoraLayer`` runs it (Hu et al. 2021, arXiv 2106.09685). The file has no such nodes: it is a
supposition of what training it that way would take.
"""

from collections.abc import Mapping

from onnxmem.model.graph import Graph, Node
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.torch.insertion import Insertion, Part


def with_adapters(graph: Graph, parameters: Parameters, rank: int) -> tuple[Graph, Parameters]:
    """Put an adapter beside each linear layer; only adapters are trained then."""
    trained = frozenset(parameters.trained)
    insertion = Insertion(graph)
    sources = {
        node.outputs[0]: node.inputs[0] for node in graph.nodes if node.onnx_op == "Transpose"
    }
    factors: list[str] = []
    for node in graph.nodes:
        layer = _linear(graph, node, trained, sources)
        if layer is not None:
            factors += _adapt(insertion, node, layer, rank)
    adapted = insertion.done()
    held = (*parameters.buffers, *parameters.trained)
    count = sum(adapted.tensors[name].num_elements or 0 for name in factors)
    return adapted, Parameters(tuple(factors), parameters.quantized, held, count)


def _linear(
    graph: Graph, node: Node, trained: frozenset[str], sources: Mapping[str, str]
) -> tuple[str, int, int] | None:
    """What a linear layer reads, and its widths in and out; ``None``: it is none.

    ``sources`` are what Transposes read, by what they make.
    """
    if node.op_type not in {"Gemm", "MatMul", "linear"} or node.attributes.get("transA"):
        return None
    data, weight = node.inputs[:2]
    dims = known_dims(graph.tensors[weight].shape)
    if sources.get(weight, weight) not in trained or dims is None or len(dims) != 2:  # noqa: PLR2004 - a matrix
        return None
    wide, narrow = reversed(dims) if node.attributes.get("transB") else dims
    return data, wide, narrow


def _adapt(
    insertion: Insertion, end: Node, layer: tuple[str, int, int], rank: int
) -> tuple[str, str]:
    data, wide, narrow = layer
    output = end.outputs[0]
    shape = insertion.tensors[output].shape
    down = insertion.weight(f"{end.name}/lora_A", data, (wide, rank))
    up = insertion.weight(f"{end.name}/lora_B", data, (rank, narrow))
    scale = insertion.weight(f"{end.name}/lora_scale", data, ())
    low = None if shape is None else (*shape[:-1], rank)
    small = insertion.node(end, Part("MatMul", (data, down)), data, low)
    full = insertion.node(end, Part("MatMul", (small, up)), data, shape)
    scaled = insertion.node(end, Part("Mul", (full, scale)), data, shape)
    total = insertion.node(end, Part("Add", (output, scaled)), data, shape)
    insertion.take_over(output, total)
    return down, up
