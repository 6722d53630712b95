"""Attention that the framework runs in one kernel, as exporters write it.

Both exporters scale the query and the key each by the square root of the factor, as PyTorch's own
decomposition does and no network does by hand: that distinguishes ``scaled_dot_product_attention``
from matmuls and a softmax of the network's own. torch.export also names the operator that each node
comes from: where it does, the name decides.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from onnxmem.model.constants import MASKED
from onnxmem.model.graph import STACK_TRACE, Graph, Masking, Node, Role, Tensor
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import (
    ATTENTION,
    ATTENTION_WEIGHTS,
    CALL,
    MATH,
    PADDED_HEADS,
    data_reads,
)

_LAYOUT = ("Reshape", "Transpose")
_HIERARCHY = "pkg.torch.onnx.class_hierarchy"
_OWN_SOFTMAX = "'aten.softmax.int']"
"""The end of the class hierarchy of a node that comes from the network's own softmax."""
_OPERATOR = "'aten.scaled_dot_product_attention.default']"
_FLAT = ("Reshape", "Transpose", "Reshape")
"""How torch.export transposes a key: flattened to three dims, transposed, reshaped back."""
_TRACED_RANK = 4
_GROUPED_RANK = 4
_LARGEST_GROUPED_WIDTH = 256
_COMPARISONS = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_FOLDED_COMPARISON = re.compile(r"(ge|gt|le|lt)(?:_\d+)?")
"""Names that torch.export gives to what the exporter computed of comparisons."""
_CAUSAL_IN_TRANSFORMERS = re.compile(r"\bcreate_causal_mask\(")
"""The call in whose stack trace transformers computes a causal mask without a window."""
_HEAD_ALIGNMENT = 8
_KERNEL_RANK = 4
_NUM_OPERANDS = 3
"""The query, the key and the value; masks follow."""
_SCORING = frozenset({"Add", "Cast", "Div", "Max", "Mul", "Reshape", "Sub", "Where"})
"""What networks do to scores before their softmax."""
_WEIGHING = frozenset({"Cast", "Dropout", "Reshape", "Where"})
"""What they do to its result before values are weighed by it."""


class GroupedHeads(Enum):
    """How an attention runs that has fewer heads of keys and values than of queries."""

    REPEATED = auto()
    """The network repeats them, before PyTorch 2.5."""
    FLASH = auto()
    """FlashAttention reads them as they are, on elements of 16 bits."""
    MATH = auto()
    """As matmuls and a softmax of repeated heads: no other kernel takes them."""


def attentions(view: GraphView, heads: GroupedHeads = GroupedHeads.REPEATED) -> Iterator[Match]:
    """Find ``Softmax((q * s) @ (k' * s) [+ bias]) [NaN to 0] [dropout] @ v``."""
    # The second matmul is the end of the pattern, so each attention is found once.
    for product in view.graph.nodes:
        if product.onnx_op != "MatMul":
            continue
        weights = _weights(view, product.inputs[0])
        if weights is None:
            continue
        operands = _operands(view, weights)
        if operands is None:
            continue
        value = product.inputs[1]
        mask, bias = _bias(view, weights)
        repeats = () if bias else _repeats(view, weights, operands.key, value)
        if (repeats and heads is GroupedHeads.MATH) or not _has_kernel(view, weights, value):
            # A bias is added by a node of its own, through which its gradient passes.
            left = {"Add", "Dropout"} if bias else {"Dropout"}
            # Without a kernel the two matmuls run as they are; only the weights between them are
            # one operator.
            inner = [node for node in weights.nodes[1:] if node.onnx_op not in left]
            read = inner[0].inputs[:1] if bias else weights.scores.outputs
            yield Match((*(() if bias else mask), *inner), ATTENTION_WEIGHTS, tuple(read))
            continue
        nodes = (*operands.nodes, *mask, *weights.nodes, product)
        read = (operands.query, operands.key, value)
        if repeats and heads is GroupedHeads.FLASH:
            nodes = (*(node for repeat in repeats for node in repeat.nodes), *nodes)
            read = (operands.query, *(repeat.source for repeat in repeats))
        yield Match(nodes, ATTENTION, (*read, *bias))


def with_float32_products(graph: Graph) -> Graph:
    """Mark the products of attention that no kernel takes: under autocast they are float32."""
    # _scaled_dot_product_attention_math of aten/src/ATen/native/transformers/attention.cpp, where
    # autocast is off: it converts operands of 16 bits, and its result back.
    scores = {node.inputs[0] for node in graph.nodes if node.operator is ATTENTION_WEIGHTS}
    if not scores:
        return graph
    # Before a bias is added they are scores too.
    sums = [node for node in graph.nodes if node.onnx_op == "Add" and node.outputs[0] in scores]
    scores.update(name for node in sums for name in node.inputs)
    weights: set[str] = set()
    tensors, nodes = dict(graph.tensors), []
    for node in graph.nodes:
        is_dropout = node.onnx_op == "Dropout" and node.inputs[0] in weights
        if node.operator is ATTENTION_WEIGHTS or is_dropout:
            weights.add(node.outputs[0])
        is_last = node.onnx_op == "MatMul" and node.inputs[0] in weights
        is_first = node.onnx_op == "MatMul" and not scores.isdisjoint(node.outputs)
        if not is_last and not is_first:
            nodes.append(node)
            continue
        product = replace(node, attributes={**node.attributes, MATH: True})
        if is_last:
            result, wide = node.outputs[0], f"{node.outputs[0]} in float32"
            tensors[wide] = replace(tensors[result], name=wide, role=Role.ACTIVATION)
            name, operator = f"{node.name}/Cast of the result", lookup("Cast")
            cast = replace(
                node,
                name=name,
                op_type="Cast",
                inputs=(wide,),
                outputs=(result,),
                operator=operator,
                attributes={MATH: True},
            )
            nodes += (replace(product, outputs=(wide,)), cast)
        else:
            nodes.append(product)
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def with_padded_heads(graph: Graph) -> Graph:
    """Pad the heads that FlashAttention reads to a multiple of 8, and cut what it writes."""
    # scaled_dot_product_attention of aten/src/ATen/native/transformers/attention.cpp: pad_last_dim
    # of all three operands, post_process_flash_output of the result.
    if not any(_is_padded(graph, node) for node in graph.nodes):
        return graph
    tensors, nodes = dict(graph.tensors), []
    for node in graph.nodes:
        if not _is_padded(graph, node):
            nodes.append(node)
            continue
        inputs = []
        for index, name in enumerate(node.inputs):
            padded = _widened(tensors, name, f"{name} padded for {node.name}, input {index}")
            pad = f"{node.name}/pad_{index}"
            nodes.append(
                replace(
                    node,
                    name=pad,
                    op_type=PADDED_HEADS.op_type,
                    inputs=(name,),
                    outputs=(padded,),
                    operator=PADDED_HEADS,
                    attributes={CALL: node.name},
                )
            )
            inputs.append(padded)
        result = node.outputs[0]
        whole = _widened(tensors, result, f"{result} with padding")
        nodes.append(replace(node, inputs=tuple(inputs), outputs=(whole,)))
        cut = Node(f"{node.name}/Slice", "Slice", "", (whole,), (result,), lookup("Slice"))
        nodes.append(replace(cut, metadata=node.metadata))
    return replace(graph, nodes=tuple(nodes), tensors=tensors)


def _is_padded(graph: Graph, node: Node) -> bool:
    if node.operator is not ATTENTION or len(node.inputs) != _NUM_OPERANDS:
        return False
    width = (graph.tensors[node.inputs[0]].shape or ("",))[-1]
    return isinstance(width, int) and width % _HEAD_ALIGNMENT != 0


def _widened(tensors: dict[str, Tensor], name: str, wide: str) -> str:
    """Add a tensor with the padded width of another."""
    tensor = tensors[name]
    shape = tensor.shape or ()
    width = shape[-1] if shape and isinstance(shape[-1], int) else None
    padded = None if width is None else -(-width // _HEAD_ALIGNMENT) * _HEAD_ALIGNMENT
    tensors[wide] = Tensor(wide, tensor.dtype, (*shape[:-1], padded), Role.ACTIVATION)
    return wide


def unfused_attentions(graph: Graph) -> tuple[Node, ...]:
    """The softmaxes between two matmuls of activations that may be attention of the framework.

    Without those that torch.export names as the network's own.
    """
    found = [
        node
        for node in graph.nodes
        if node.onnx_op == "Softmax"
        and not node.metadata.get(_HIERARCHY, "").endswith(_OWN_SOFTMAX)
    ]
    if not found:
        return ()
    view = GraphView.of(graph)
    return tuple(n for n in found if _is_scored(view, n) and _weighs_values(view, n))


def _is_scored(view: GraphView, softmax: Node) -> bool:
    """Whether a softmax reads scores: a matmul of two activations, perhaps scaled and masked."""
    names = [softmax.inputs[0]]
    while names:
        producer = view.producers.get(names.pop())
        if _multiplies_activations(view, producer):
            return True
        if producer is not None and producer.onnx_op in _SCORING:
            names.extend(producer.reads)
    return False


def _weighs_values(view: GraphView, softmax: Node) -> bool:
    """Whether a matmul of two activations reads a softmax."""
    name = softmax.outputs[0]
    while (reader := view.readers.get(name)) is not None and reader.onnx_op in _WEIGHING:
        name = reader.outputs[0]
    return _multiplies_activations(view, reader)


def _multiplies_activations(view: GraphView, node: Node | None) -> bool:
    if node is None or node.onnx_op != "MatMul":
        return False
    return not any(view.is_weight(name) for name in node.inputs)


@dataclass(frozen=True, slots=True)
class _Operands:
    """The kernel's query and key, and the nodes that scale them and transpose the key."""

    query: str
    key: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class _Repeat:
    """The nodes that repeat each head of a key or a value for the queries of its group."""

    source: str
    nodes: tuple[Node, ...]

    @property
    def is_named(self) -> bool:
        """Whether torch.export names the framework's attention as their source."""
        return self.nodes[-1].metadata.get(_HIERARCHY, "").endswith(_OPERATOR)


@dataclass(frozen=True, slots=True)
class _Weights:
    """The nodes that compute the attention weights."""

    nodes: tuple[Node, ...]
    """From the matmul of query and key on, in running order."""
    bias: str | None
    """What is added to the scores."""
    has_nan_guard: bool
    """Rows that are masked entirely are set to 0: exporters write that for a mask of booleans."""
    is_named: bool
    """Whether torch.export names the framework's attention as their source."""

    @property
    def scores(self) -> Node:
        """The matmul of query and key."""
        return self.nodes[0]


def _has_kernel(view: GraphView, weights: _Weights, value: str) -> bool:
    """Whether fused kernels take operands of these dims; what is unknown counts as taken.

    ``check_tensor_shapes`` and ``check_batch_size_and_num_heads_dense`` of
    aten/src/ATen/native/transformers/sdp_utils_cpp.h: batch, heads, rows and width, and as many
    heads of keys and values as of queries.
    """
    operands = [view.dims(name) for name in (*weights.scores.inputs, value)]
    known = [dims for dims in operands if dims is not None]
    if any(len(dims) != _KERNEL_RANK for dims in known):
        return False
    # [b, h, s, d] with one number of heads in query, key and value.
    return len({dims[1] for dims in known}) <= 1


def _weights(view: GraphView, name: str) -> _Weights | None:
    """The nodes that compute a matmul's first operand, if they are an attention's weights."""
    # Backwards from the second matmul: dropout, NaN guard, softmax, bias, first matmul.
    nodes: list[Node] = []
    if (dropout := view.producer(name, "Dropout")) is not None:
        nodes, name = [dropout], dropout.inputs[0]
    guard = _guard(view, name)
    if guard:
        nodes, name = [*guard, *nodes], guard[0].inputs[0]
    softmax = view.producer(name, "Softmax", reads=2 if guard else 1)
    if softmax is None:
        return None
    modules = softmax.metadata.get(_HIERARCHY, "")
    if modules.endswith(_OWN_SOFTMAX):
        return None
    nodes, name = [softmax, *nodes], softmax.inputs[0]
    bias: str | None = None
    if (added := view.producer(name, "Add")) is not None:
        nodes = [added, *nodes]
        name = next((text for text in added.inputs if view.producer(text, "MatMul")), "")
        bias = next((text for text in added.inputs if text != name), None)
    scores = view.producer(name, "MatMul")
    if scores is None:
        return None
    return _Weights((scores, *nodes), bias, bool(guard), modules.endswith(_OPERATOR))


def _guard(view: GraphView, name: str) -> tuple[Node, ...]:
    """The nodes of ``Where(IsNaN(w), 0, w)``, if they compute a tensor; else empty."""
    chosen = view.producer(name, "Where")
    if chosen is None or not view.is_number(chosen.inputs[1], 0):
        return ()
    is_nan = view.producer(chosen.inputs[0], "IsNaN")
    return (is_nan, chosen) if is_nan is not None and is_nan.inputs[0] == chosen.inputs[2] else ()


def _bias(view: GraphView, weights: _Weights) -> tuple[tuple[Node, ...], tuple[str, ...]]:
    """The node that converts a mask of booleans, and the operands for bias and mask."""
    name = weights.bias
    if name is None or _is_causal(view, name):
        return (), ()
    conversion = _mask_conversion(view, name)
    is_mask = conversion is not None or weights.has_nan_guard
    mask = conversion.inputs[0] if conversion is not None else name
    nodes = (conversion,) if conversion is not None and view.reads[name] == 1 else ()
    if is_mask and _exists_only_in_trace(view, mask):
        return nodes, ()
    return (nodes, ("", mask)) if conversion is not None else ((), (name,))


def _repeats(view: GraphView, weights: _Weights, *names: str) -> tuple[_Repeat, ...]:
    """What repeats the heads of key and value, if the framework's attention is to do so.

    Empty where the network itself repeats them, or there are as many as of the query.
    """
    found = tuple(repeat for name in names if (repeat := _repeat(view, name)) is not None)
    if len(found) < len(names):
        return ()
    # use_gqa_in_sdpa of transformers (integrations/sdpa_attention.py) passes `enable_gqa` where it
    # passes no mask. In a trace it has one, and repeats the heads itself.
    is_traced = weights.bias is not None and _is_seen_causal(view, weights.bias)
    is_narrow = all((view.dims(name) or (0,))[-1] <= _LARGEST_GROUPED_WIDTH for name in names)
    is_grouped = all(repeat.is_named for repeat in found) or (is_traced and is_narrow)
    return found if is_grouped else ()


def _is_seen_causal(view: GraphView, mask: str) -> bool:
    """Whether the file shows that a mask compares positions, and has no window.

    The comparison is a node, or where the sequence is fixed a constant of its name (``le``). Of a
    short sequence the exporter writes the mask's values alone, and names the call that made them.
    """
    if _is_causal(view, mask):
        return False
    nodes = _position_nodes(view, mask) or ()
    stored = _stored(view, mask, nodes)
    folded = {
        found[1]
        for tensor in stored
        if tensor.masking is None and (found := _FOLDED_COMPARISON.fullmatch(tensor.name))
    }
    is_compared = (
        any(node.onnx_op in _COMPARISONS for node in nodes)
        or bool(folded)
        or any(tensor.masking is Masking.LATER for tensor in stored)
        or any(_CAUSAL_IN_TRANSFORMERS.search(n.metadata.get(STACK_TRACE, "")) for n in nodes)
    )
    return is_compared and folded <= {"le", "ge"}


def _stored(view: GraphView, name: str, nodes: tuple[Node, ...]) -> list[Tensor]:
    """The constants that a mask is computed of by some nodes, or is itself."""
    names = {name, *(read for node in nodes for read in data_reads(node))}
    return [view.graph.tensors[each] for each in names if each not in view.producers]


def _repeat(view: GraphView, name: str) -> _Repeat | None:
    """``Expand(Unsqueeze(x))`` of x [batch, heads, rows, width], perhaps reshaped."""
    # Where shapes are fixed, the exporter merges the Reshape with the next.
    nodes: list[Node] = []
    for op_type in ("Reshape", "Expand", "Unsqueeze"):
        node = view.producer(name, op_type)
        if node is not None:
            nodes.insert(0, node)
            name = node.inputs[0]
        elif op_type != "Reshape":
            return None
    narrow, wide = view.dims(name), view.dims(nodes[1].outputs[0])
    if narrow is None or wide is None or len(narrow) != _GROUPED_RANK:
        return None
    # [b, h_kv, s, d] -> [b, h_kv, group, s, d], which a Reshape then folds into the heads.
    is_repeat = len(wide) == _GROUPED_RANK + 1 and wide[:2] + wide[3:] == narrow and wide[2] > 1
    return _Repeat(name, tuple(nodes)) if is_repeat else None


def _is_causal(view: GraphView, name: str) -> bool:
    """Whether a bias is what exporters write for ``is_causal``, which the kernel takes no mask for.

    ``Where(Equal(Trilu(1), 0), far below 0, 0)``: ``_causal_attention_mask`` of
    torch/onnx/_internal/torchscript_exporter/symbolic_opset14.py, and of torchlib's nn.py.
    """
    chosen = view.producers.get(name)
    if chosen is None or chosen.onnx_op != "Where" or not view.is_number(chosen.inputs[2], 0):
        return False
    masked = view.number(chosen.inputs[1])
    compared = view.producers.get(chosen.inputs[0])
    if masked is None or masked > MASKED or compared is None or compared.onnx_op != "Equal":
        return False
    triangle = view.producers.get(compared.inputs[0])
    return triangle is not None and triangle.onnx_op == "Trilu"


def _mask_conversion(view: GraphView, name: str) -> Node | None:
    """The node that converts a boolean to 0 where it is true, else to a number far below 0."""
    node = view.producers.get(name)
    if node is None or node.onnx_op != "Where" or not view.is_number(node.inputs[1], 0):
        return None
    masked = view.number(node.inputs[2])
    return node if masked is not None and masked <= MASKED else None


def _exists_only_in_trace(view: GraphView, name: str) -> bool:
    """Whether the network computes a mask only while it is traced."""
    # masking_utils.py of transformers (_ignore_causal_mask_sdpa, _ignore_bidirectional_mask_sdpa):
    # while traced, it computes a mask from positions for each sample; in a training step it passes
    # `is_causal` instead. A mask of a window narrower than the sequence exists in both: it compares
    # positions with a constant offset below the sequence's length, or its values show it.
    dims = view.dims(name)
    if dims is None or len(dims) != _TRACED_RANK or dims[1] != 1:
        return False
    nodes = _position_nodes(view, name)
    if nodes is None or any(t.masking is Masking.OTHER for t in _stored(view, name, nodes)):
        return False
    return not any(node.onnx_op in {"Greater", "Less"} for node in nodes) or any(
        number >= dims[-1]
        for node in nodes
        if node.onnx_op in {"Add", "Sub"}
        for number in map(view.number, node.inputs)
        if number is not None
    )


def _position_nodes(view: GraphView, name: str) -> tuple[Node, ...] | None:
    """The nodes that compute a tensor; ``None`` if it depends on an input's data."""
    # Only what is read as data counts: a mask of positions is computed from sizes, one of padding
    # from what the caller passes.
    seen: dict[str, Node] = {}
    names = [name]
    while names:
        found = names.pop()
        producer = view.producers.get(found)
        if producer is None:
            if view.graph.tensors[found].role is Role.INPUT:
                return None
        elif producer.name not in seen:
            seen[producer.name] = producer
            names.extend(data_reads(producer))
    return tuple(seen.values())


def _operands(view: GraphView, weights: _Weights) -> _Operands | None:
    """The query and the key of the scores, if the framework's attention scaled them."""
    # A factor of 1 is optimized away, and torch.export multiplies a learned query by its factor
    # when it writes the file; then other traits of what exporters write decide.
    factors = tuple(view.producer(text, "Mul") for text in weights.scores.inputs)
    is_scaled = all(factors)
    is_folded = factors[0] is None and view.is_weight(weights.scores.inputs[0])
    scaled = tuple(node for node in factors if node and (is_scaled or is_folded))
    query, key = (
        node.inputs[0] if node is not None and node in scaled else text
        for text, node in zip(weights.scores.inputs, factors, strict=True)
    )
    is_exported = weights.is_named or (is_scaled and all(_has_root(view, n) for n in scaled))
    transposed = _key(view, key, is_exported=is_exported)
    if transposed is None:
        return None
    name, layout = transposed
    is_flattened = tuple(node.onnx_op for node in layout) == _FLAT
    if not (is_scaled or weights.is_named or weights.has_nan_guard or is_flattened):
        return None
    return _Operands(query, name, (*layout, *scaled))


def _has_root(view: GraphView, factor: Node) -> bool:
    """Whether a Mul reads a square root, which exporters compute of an attention's factor.

    A network's own factor is a number, of which the file has the root.
    """
    producers = (view.producers.get(name) for name in factor.inputs)
    return any(producer is not None and producer.onnx_op == "Sqrt" for producer in producers)


def _key(view: GraphView, name: str, *, is_exported: bool) -> tuple[str, tuple[Node, ...]] | None:
    """The key before it is transposed, and the nodes that transpose it.

    ``is_exported``: the exporter is known to have transposed it.
    """
    start = name
    transposed = view.dims(name)
    if transposed is None:
        return None
    # The key before its last two axes were exchanged: [b, h, s, d].
    wanted = (*transposed[:-2], transposed[-1], transposed[-2])
    layout: list[Node] = []
    flat: tuple[str, tuple[Node, ...]] | None = None
    while (producer := view.producer(name, *_LAYOUT)) is not None:
        layout.insert(0, producer)
        name = producer.inputs[0]
        dims = view.dims(name)
        has_transpose = any(node.onnx_op == "Transpose" for node in layout)
        if has_transpose and dims == wanted:
            return name, tuple(layout)
        if has_transpose and flat is None and dims is not None and dims[-2:] == wanted[-2:]:
            flat = name, tuple(layout)
    if flat is not None:
        return flat
    # One Transpose both separates the heads and transposes the key: a view all the same. Of a key
    # that the network transposes itself, the exporter's second Transpose and the first cancel out.
    return (start, ()) if is_exported or view.producer(start, "Transpose") else None
