"""The graph as it is trained: composites fused, BatchNormalization and Dropout put back, adapters.

``network_of`` takes the graph of a file and a training configuration. Composites become the
operators that the framework runs (``as_run``). An inference export has no BatchNormalization, which
is folded into the layer before it, and no Dropout: this module restores them; ``folded`` finds the
layers that had a BatchNormalization. Low-rank adapters (LoRA) are two small factors that are
trained beside each matrix, which is frozen.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters, is_exporters_name, is_wide, parameters
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, Shape, known_dims
from onnxmem.runtimes.torch.autocast_lists import lists_of
from onnxmem.runtimes.torch.composites.activations import (
    clamps,
    elus,
    gated,
    gelus,
    rsqrts,
    softpluses,
    squares,
    tanh_gelus,
)
from onnxmem.runtimes.torch.composites.attention import (
    GroupedHeads,
    attentions,
    unfused_attentions,
    with_float32_products,
    with_padded_heads,
)
from onnxmem.runtimes.torch.composites.layers import (
    batch_norms,
    dropouts,
    group_norms,
    index_adds,
    layer_norms,
    linears,
    maxima,
    mirrored_pads,
    rms_norms,
    rolls,
    sequences,
    unbinds,
    variances,
    weight_norms,
)
from onnxmem.runtimes.torch.composites.rewriting import (
    GraphView,
    Match,
    with_cast_numbers,
    with_matches,
    without_unread_weights,
)
from onnxmem.runtimes.torch.einsum import with_contractions
from onnxmem.runtimes.torch.folded import BatchNorms, folded_layers, has_own_bias
from onnxmem.runtimes.torch.framework import ATTENTION, is_flash_attention
from onnxmem.runtimes.torch.merged import (
    with_repeated_activations,
    with_repeated_calls,
    with_repeated_subtractions,
)
from onnxmem.runtimes.torch.precision import Precision, operand_in, precision_named
from onnxmem.runtimes.torch.recurrent import RECURRENT, recurrent_calls
from onnxmem.runtimes.torch.unfolded import unfolded
from onnxmem.runtimes.torch.views import in_place_activations, out_of_place_activations
from onnxmem.settings import TORCHES, TrainingConfig
from onnxmem.units import format_bytes, plural, sum_if_known

_RATIO = 0.5
"""Any but 0: the size of the mask does not depend on it."""


_HIERARCHY = "pkg.torch.onnx.class_hierarchy"


_OF_FACTORS = re.compile(r"_?(exp|expand|permute|reshape|squeeze|transpose|unsqueeze|view)(_\d+)?")
"""Names that torch.export gives to what operators of layout return, and to the scale of an
attention (``logit_scale.exp()``)."""


_DROPOUT_MODULE = "torch.nn.modules.dropout."


_LAYER_NORMS = frozenset(
    {"LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"}
)


_NO_LINEAR = (
    "the network has no linear layer with a trained weight, which adapters are for, so nothing is "
    "trained; peft refuses it"
)
_NO_BATCHNORM = Finding(
    "no_batchnorm",
    "--assume-batchnorm has no effect: no layer shows a folded BatchNormalization, and none could "
    "have had one",
)


_Finder = Callable[[GraphView], Iterator[Match]]


_FINDERS: tuple[tuple[frozenset[str], _Finder], ...] = (
    (frozenset({"SplitToSequence"}), sequences),
    (frozenset({"Slice", "Squeeze"}), unbinds),
    (frozenset({"Slice", "Concat"}), rolls),
    (frozenset({"Pad"}), mirrored_pads),
    (frozenset({"ScatterND"}), index_adds),
    (frozenset({"Mul"}), dropouts),
    (frozenset({"ReduceL2", "Div", "Mul"}), weight_norms),
    (frozenset({"BatchNormalization", "ReduceMean"}), batch_norms),
    (frozenset({"ReduceMean", "Sqrt", "Div"}), layer_norms),
    (frozenset({"InstanceNormalization"}), group_norms),
    (frozenset({"ReduceMean", "Sub", "Mul"}), variances),
    (frozenset({"MatMul", "Add"}), linears),
    (frozenset({"Min", "Max"}), clamps),
    (frozenset({"Elu", "Mul"}), elus),
    (frozenset({"Erf"}), gelus),
    (frozenset({"Tanh", "Mul"}), tanh_gelus),
    (frozenset({"Sigmoid", "Mul"}), gated),
    (frozenset({"Softplus", "Mul"}), gated),
    (frozenset({"Softplus", "Where"}), softpluses),
    (frozenset({"Sqrt"}), rsqrts),
    (frozenset({"Mul"}), squares),
    (frozenset({"ReduceMax"}), maxima),
    (frozenset({"ReduceMin"}), maxima),
)
"""Each with the operators that the graph must have. The order matters: a composite that is part of
another comes after it, as ``variances`` after ``layer_norms``."""


_RMS_NORMS: tuple[frozenset[str], _Finder] = (frozenset({"ReduceMean", "Mul"}), rms_norms)
"""Of releases that have a kernel for it; after ``rsqrts`` and ``squares``."""


_ATTENTION = frozenset({"Softmax", "MatMul"})


_BIAS_AT = 3
"""The index of an attention's bias among its operands."""


_GROUPS_SINCE = "2.5"
"""The first release of PyTorch whose attention has ``enable_gqa``."""


@dataclass(frozen=True, slots=True)
class Part:
    """An operator to insert, and its inputs."""

    op_type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    opset: int | None = None


@dataclass(slots=True)
class Insertion:
    """A graph that is being changed: nodes are inserted after others, whose readers read theirs."""

    graph: Graph
    tensors: dict[str, Tensor] = field(init=False)
    inserted: dict[str, list[Node]] = field(default_factory=dict)
    """New nodes by the node that they follow."""
    replacements: dict[str, str] = field(default_factory=dict)
    """Tensors by the one that their readers read instead."""
    num_inputs: dict[str, int] = field(default_factory=dict)
    """How many inputs a node has left, where it lost some."""

    def __post_init__(self) -> None:
        self.tensors = dict(self.graph.tensors)

    def weight(self, name: str, like: str, shape: Shape) -> str:
        """Add a weight of the type of another tensor; return its name."""
        return self._tensor(name, like, shape, Role.WEIGHT)

    def node(self, after: Node, part: Part, like: str, shape: Shape | None) -> str:
        """Insert a node after another; return the name of its output, of the type of ``like``."""
        index = len(self.inserted.setdefault(after.name, []))
        name = f"{after.name}/{part.op_type}_{index}"
        output = self._tensor(f"{name}_output", like, shape, Role.ACTIVATION)
        operator = lookup(part.op_type, opset=part.opset)
        node = Node(
            *(name, part.op_type, "", part.inputs, (output,), operator, part.attributes),
            metadata=after.metadata,
        )
        self.inserted[after.name].append(node)
        return output

    def drop_inputs(self, node: Node, first: int) -> None:
        """Remove a node's inputs from an index on, and the weights that no node reads then."""
        self.num_inputs[node.name] = first

    def redirect(self, name: str, by: str) -> None:
        """Let every reader of a tensor of the file read another one instead."""
        self.replacements[name] = by

    def done(self) -> Graph:
        """The changed graph."""
        # Only nodes of the file are rewired: an inserted node reads the tensor that it replaces.
        nodes: list[Node] = []
        for node in self.graph.nodes:
            inputs = tuple(self.replacements.get(name, name) for name in node.inputs)
            inputs = inputs[: self.num_inputs.get(node.name)]
            nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
            nodes += self.inserted.get(node.name, ())
        self._remove_unread_weights(nodes)
        outputs = tuple(self.replacements.get(name, name) for name in self.graph.outputs)
        return replace(self.graph, nodes=tuple(nodes), outputs=outputs, tensors=self.tensors)

    def _remove_unread_weights(self, nodes: Iterable[Node]) -> None:
        """Remove the weights that only dropped inputs read: layers may share a bias."""
        read = {name for node in nodes for name in node.reads}
        for node in self.graph.nodes:
            for name in node.inputs[self.num_inputs.get(node.name, len(node.inputs)) :]:
                if name in self.tensors.keys() - read and self.tensors[name].role is Role.WEIGHT:
                    del self.tensors[name]

    def _tensor(self, name: str, like: str, shape: Shape | None, role: Role) -> str:
        self.tensors[name] = Tensor(name, self.tensors[like].dtype, shape, role)
        return name


@dataclass(frozen=True, slots=True)
class Network:
    """A graph as it is trained, its parameters, and the warnings on both."""

    graph: Graph
    parameters: Parameters
    findings: tuple[Finding, ...]
    batchnorms: BatchNorms


def network_of(graph: Graph, recipe: TrainingConfig) -> Network:
    """The graph and the parameters that the framework trains with a training configuration."""
    # BatchNormalization and Dropout first: they are inserted between nodes of the file, which
    # composites then fuse. Adapters last: they train beside what is frozen by then.
    read = graph
    graph, batchnorms, findings = _with_batchnorms(graph, recipe)
    put_back = unfolded(with_repeated_calls(graph))
    graph = put_back.graph
    findings += put_back.findings
    if recipe.assume_dropout:
        dropped = dropped_nodes(graph)
        findings.append(_dropout_finding(tuple(node.name for node in dropped)))
        graph = with_dropout(graph, dropped)
    graph = as_run(
        graph,
        fused_attention=recipe.attention == "fused",
        fused_recurrent=recipe.recurrent == "cudnn",
        fused_rms_norm="RMSNormalization" in lists_of("cuda", recipe.torch),
        heads=_grouped_heads(recipe),
    )
    # Composites such as GELU and LayerNormalization are one node by now.
    graph, subtractions = with_repeated_subtractions(with_repeated_activations(graph))
    if subtractions:
        findings.append(_subtraction_finding(graph, subtractions))
    softmaxes = unfused_attentions(graph)
    if recipe.attention == "fused" and softmaxes:
        findings.append(_attention_finding(graph, softmaxes, recipe.precision))
    if not recipe.assume_dropout and _lacks_dropout(graph, softmaxes):
        findings.append(_left_out_finding(dropped_nodes(read)))
    if recipe.in_place_activations is None:
        findings += _in_place_findings(graph)
    found = parameters(graph)
    findings += (*_factor_findings(graph, found), *_bias_findings(graph, found))
    graph, found, missed = _trained_in_part(graph, found, recipe)
    return Network(graph, found, (*findings, *missed), batchnorms)


def _trained_in_part(
    graph: Graph, found: Parameters, recipe: TrainingConfig
) -> tuple[Graph, Parameters, list[Finding]]:
    """Freeze parameters and add adapters, and report what neither applies to."""
    findings = []
    if recipe.freeze:
        found, missed = _frozen(found, recipe.freeze)
        findings += [Finding("freeze_matches_nothing", _no_match(each)) for each in missed]
    if recipe.lora_rank is not None:
        graph, found = with_adapters(graph, found, recipe.lora_rank)
        if not found.trained:
            text = f"--lora-rank {recipe.lora_rank}: {_NO_LINEAR}"
            findings.append(Finding("lora_adapts_nothing", text))
    return graph, found, findings


def _with_batchnorms(
    graph: Graph, recipe: TrainingConfig
) -> tuple[Graph, BatchNorms, list[Finding]]:
    """Restore what the file shows, and where it does not show it, what is assumed."""
    assumed = recipe.assume_batchnorm
    layers = folded_layers(graph)
    certain, possible = _names(layers.certain), _names(layers.possible)
    if assumed is None:
        put_back, found = layers.certain, BatchNorms(certain, unknown=possible)
    elif assumed:
        put_back = (*layers.certain, *layers.possible)
        found = BatchNorms(_names(put_back))
    else:
        put_back, found = (), BatchNorms(left_out=certain)
    findings = []
    if assumed is not False and certain:
        findings.append(_put_back_finding(certain))
    if assumed and possible:
        findings.append(_assumed_finding(possible))
    if assumed and not put_back:
        findings.append(_NO_BATCHNORM)
    return with_batchnorm(graph, put_back), found, findings


def _grouped_heads(recipe: TrainingConfig) -> GroupedHeads:
    """How an attention of grouped heads runs: ``use_flash_attention`` of cuda/sdp_utils.cpp.

    The memory-efficient kernel does not take them (``check_batch_size_and_num_heads_dense``).
    """
    if TORCHES.index(recipe.torch) < TORCHES.index(_GROUPS_SINCE):
        return GroupedHeads.REPEATED
    precision = precision_named(recipe.precision)
    bits = precision.activation_bits if precision.autocast is None else precision.autocast.bits
    flash = is_flash_attention(bits, has_mask=False)
    return GroupedHeads.FLASH if flash else GroupedHeads.MATH


def as_run(
    graph: Graph,
    *,
    fused_attention: bool = True,
    fused_recurrent: bool = True,
    fused_rms_norm: bool = True,
    heads: GroupedHeads = GroupedHeads.REPEATED,
) -> Graph:
    """The graph that the framework runs: each composite is one node.

    Without ``fused_attention``, attention runs as the matmuls and the softmax of the file; without
    ``fused_recurrent``, recurrent layers run cell by cell.
    """
    # A finder sees the graph that the finders before it left; the view is rebuilt only where one
    # of them changed it.
    before = graph = with_cast_numbers(graph)
    present = {node.onnx_op for node in graph.nodes}
    # Any of them is enough, where other finders need all their operators.
    has_recurrent = fused_recurrent and not present.isdisjoint(RECURRENT)
    known = (
        *_FINDERS,
        *((_RMS_NORMS,) if fused_rms_norm else ()),
        *(((_ATTENTION, partial(attentions, heads=heads)),) if fused_attention else ()),
        *(((frozenset[str](), recurrent_calls),) if has_recurrent else ()),
    )
    view: GraphView | None = None
    for find in (find for needed, find in known if needed <= present):
        if view is None or view.graph is not graph:
            view = GraphView.of(graph)
        graph = with_matches(graph, find(view))
    if heads is GroupedHeads.FLASH:
        graph = with_float32_products(with_padded_heads(graph))
    return with_contractions(without_unread_weights(graph, before))


def _frozen(found: Parameters, patterns: tuple[str, ...]) -> tuple[Parameters, list[str]]:
    """Parameters without those that patterns match, and the patterns that match none."""
    frozen = {name for name in found.trained if any(fnmatchcase(name, each) for each in patterns)}
    missed = [each for each in patterns if not any(fnmatchcase(n, each) for n in found.trained)]
    trained = tuple(name for name in found.trained if name not in frozen)
    buffers = (*found.buffers, *(name for name in found.trained if name in frozen))
    return replace(found, trained=trained, buffers=buffers), missed


def with_batchnorm(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Insert a BatchNormalization after each of some layers, and remove the bias that it became.

    The layers' shapes are known.
    """
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        channels = (shape or ())[1:2]
        names = ("scale", "bias", "running_mean", "running_var")
        operands = [insertion.weight(f"{node.name}/{n}", output, channels) for n in names]
        part = Part("BatchNormalization", (output, *operands))
        insertion.redirect(output, insertion.node(node, part, output, shape))
        if not has_own_bias(node):
            insertion.drop_inputs(node, 2)
    return insertion.done()


def with_dropout(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Insert a Dropout after each of some nodes."""
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        part = Part("Dropout", (output,), {"ratio": _RATIO, "is_test": 0}, opset=1)
        insertion.redirect(output, insertion.node(node, part, output, shape))
    return insertion.done()


def dropped_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes that a Dropout followed, if the network had any.

    Empty where the file has Dropout itself. Where torch.export left the node of a Dropout module
    (an Identity), those nodes. Otherwise where networks have Dropout: after each softmax of an
    attention, after each linear layer before a residual sum, and before each linear layer but the
    first of a classifier.
    """
    if any(node.onnx_op == "Dropout" for node in graph.nodes):
        return ()
    modules = tuple(node for node in graph.nodes if _is_dropout_module(node))
    if modules:
        return modules
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.reads:
            readers.setdefault(name, []).append(node)
    return tuple(
        node
        for node in graph.nodes
        if any(_is_dropped(graph, node, reader) for reader in readers.get(node.outputs[0], ()))
    )


def _lacks_dropout(graph: Graph, softmaxes: tuple[Node, ...]) -> bool:
    """Whether a network usually has Dropout, and this one has none.

    Blocks of attention and LayerNormalization have it. Convolutional networks often have none, and
    decoders with RMSNormalization train without.
    """
    operators = {node.op_type for node in graph.nodes}
    is_attentive = softmaxes or any(each.lower().endswith("attention") for each in operators)
    is_normalized = not operators.isdisjoint(_LAYER_NORMS)
    return bool(is_attentive) and is_normalized and "Dropout" not in operators


def _is_dropout_module(node: Node) -> bool:
    """Whether the innermost module of a node is a Dropout that does nothing in inference."""
    is_identity = node.onnx_op == "Identity"
    return is_identity and _DROPOUT_MODULE in node.metadata.get(_HIERARCHY, "")


def _is_dropped(graph: Graph, node: Node, reader: Node) -> bool:
    """Whether networks have Dropout between two nodes."""
    if node.onnx_op == "Softmax":
        return reader.onnx_op == "MatMul"
    if node.onnx_op in {"Relu", "Gelu", "Tanh", "Flatten"}:
        return reader.onnx_op == "Gemm"
    is_linear = node.onnx_op in {"Gemm", "MatMul", "Add"}
    shapes = [graph.tensors[name].shape for name in (*reader.reads, node.outputs[0])]
    # Both operands of a residual sum have the shape of its output.
    is_residual = reader.onnx_op == "Add" and len(set(shapes)) == 1
    return is_linear and is_residual and _is_layer(graph, node)


def _is_layer(graph: Graph, node: Node) -> bool:
    """Whether a node is the end of a linear layer: one operand is a weight."""
    roles = {graph.tensors[name].role for name in node.reads}
    return len(roles) > 1 and "weight" in {role.value for role in roles}


def with_adapters(graph: Graph, parameters: Parameters, rank: int) -> tuple[Graph, Parameters]:
    """Add an adapter to each linear layer; only adapters are trained then.

    A layer ``y = x @ W`` becomes ``y + scale * ((x @ A) @ B)`` with A: [in, rank], B: [rank, out]
    (Hu et al. 2021, arXiv 2106.09685), as in peft/tuners/lora/layer.py: ``Linear.forward``.
    """
    insertion = Insertion(graph)
    factors: list[str] = []
    for node, layer in adapted_nodes(graph, parameters):
        factors += _adapt(insertion, node, layer, rank)
    adapted = insertion.done()
    frozen = (*parameters.buffers, *parameters.trained)
    count = sum(adapted.tensors[name].num_elements or 0 for name in factors)
    return adapted, Parameters(tuple(factors), parameters.quantized, frozen, count)


def adapted_nodes(graph: Graph, parameters: Parameters) -> list[tuple[Node, tuple[str, int, int]]]:
    """The linear layers that adapters are for: each node, its input, and its widths in and out."""
    trained = frozenset(parameters.trained)
    sources = {
        node.outputs[0]: node.inputs[0] for node in graph.nodes if node.onnx_op == "Transpose"
    }
    layers = ((node, _linear(graph, node, trained, sources)) for node in graph.nodes)
    return [(node, layer) for node, layer in layers if layer is not None]


def _linear(
    graph: Graph, node: Node, trained: frozenset[str], sources: Mapping[str, str]
) -> tuple[str, int, int] | None:
    """The input of a linear layer, and its widths in and out; ``None`` for other nodes.

    ``sources`` are the inputs of Transposes by their outputs.
    """
    if node.op_type not in {"Gemm", "MatMul", "linear"} or node.attributes.get("transA"):
        return None
    data, weight = node.inputs[:2]
    dims = known_dims(graph.tensors[weight].shape)
    if sources.get(weight, weight) not in trained or dims is None or len(dims) != 2:  # noqa: PLR2004 - a matrix
        return None
    # B is [K, N], or [N, K] with transB: the width in is K.
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
    # ``data``: [..., in] @ A: [in, rank] -> ``small``: [..., rank] @ B: [rank, out] -> ``full``:
    # [..., out]. Each is a tensor of its own, so that a step saves what peft's does.
    low = None if shape is None else (*shape[:-1], rank)
    small = insertion.node(end, Part("MatMul", (data, down)), data, low)
    full = insertion.node(end, Part("MatMul", (small, up)), data, shape)
    scaled = insertion.node(end, Part("Mul", (full, scale)), data, shape)
    total = insertion.node(end, Part("Add", (output, scaled)), data, shape)
    insertion.redirect(output, total)
    return down, up


def _names(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    return tuple(node.name for node in nodes)


def _put_back_finding(names: tuple[str, ...]) -> Finding:
    text = (
        f"{len(names):,} BatchNormalization put back that the export folded into the layer before: "
        f"{listed(names)}; --no-assume-batchnorm leaves them out"
    )
    return Finding("batchnorm_put_back", text, names[0])


def _assumed_finding(names: tuple[str, ...]) -> Finding:
    text = (
        f"{len(names):,} BatchNormalization assumed, as requested, after convolutions with a bias; "
        f"the file does not show whether they had one: {listed(names)}"
    )
    return Finding("batchnorm_assumed", text, names[0])


def _dropout_finding(names: tuple[str, ...]) -> Finding:
    if not names:
        text = (
            "--assume-dropout has no effect: the network has Dropout already, or no layer is "
            "recognized after which one usually stands"
        )
        return Finding("no_dropout", text)
    text = (
        f"{len(names):,} Dropout assumed, as requested, after {listed(names)}: an inference export "
        "does not show where Dropout was"
    )
    return Finding("dropout_assumed", text, names[0])


def _left_out_finding(nodes: tuple[Node, ...]) -> Finding:
    option = ", or add --assume-dropout" if nodes else ""
    text = (
        "the file has no Dropout, which an inference export leaves out; if the network trains with "
        f"it, a step takes more: export with training=TrainingMode.TRAINING{option}"
    )
    return Finding("dropout_left_out", text)


def _in_place_findings(graph: Graph) -> Iterator[Finding]:
    """What is assumed about activations that would save less in place."""
    if assumed := in_place_activations(graph, None):
        sizes = [graph.tensors[name].size_bytes for name in assumed.values()]
        text = (
            f"{plural(len(assumed), 'activation')} after BatchNormalization assumed to run in "
            f"place, as in networks of such blocks: {listed(tuple(assumed))}; if the network has "
            f"inplace=False, they save {format_bytes(sum_if_known(sizes))} more: "
            "--no-in-place-activations"
        )
        yield Finding("activations_in_place", text, next(iter(assumed)))
    if out_of_place := out_of_place_activations(graph):
        text = (
            f"{plural(len(out_of_place), 'activation')} assumed to save an input that it would "
            f"overwrite in place: {listed(out_of_place)}; if the network has inplace=True, use "
            "--in-place-activations"
        )
        yield Finding("activations_out_of_place", text, out_of_place[0])


def _subtraction_finding(graph: Graph, names: tuple[str, ...]) -> Finding:
    outputs = {node.name: node.outputs[0] for node in graph.nodes}
    sizes = [graph.tensors[outputs[name]].size_bytes for name in names]
    text = (
        f"{plural(len(names), 'normalization')} written out, whose mean the file subtracts once: "
        f"{listed(names)}; assumed to do so twice, as (x - mean).pow(2) and (x - mean) / "
        f"sqrt(...) do; if the network keeps the difference, {format_bytes(sum_if_known(sizes))} "
        "less are saved"
    )
    return Finding("subtraction_repeated", text, names[0])


def _attention_finding(graph: Graph, softmaxes: tuple[Node, ...], precision: str) -> Finding:
    """What attention as the file has it saves for backward, and one kernel does not."""
    weights = [graph.tensors[node.outputs[0]] for node in softmaxes]
    sizes = [_saved_weights_bytes(each, precision_named(precision)) for each in weights]
    text = (
        f"{plural(len(softmaxes), 'attention')} counted as the file has it, as two matmuls and a "
        f"softmax: {listed([node.name for node in softmaxes])}; a network that calls "
        "scaled_dot_product_attention runs one kernel instead, which does not save the attention "
        f"weights for backward: {format_bytes(sum_if_known(sizes))} less"
    )
    return Finding("attention_as_products", text, softmaxes[0].name)


def _factor_findings(graph: Graph, found: Parameters) -> Iterator[Finding]:
    """Constants that an exporter made, one number for each channel, that scale an activation.

    They are views of parameters as often as buffers, and nothing tells where the file lists no
    parameters. A step saves what a factor scales only if the factor is trained.
    """
    folded = filter(_OF_FACTORS.fullmatch, () if graph.of_parameters else found.buffers)
    constants = {name for name in folded if not is_wide(graph.tensors[name])}
    if not constants:
        return
    scaled = {
        name: graph.tensors[other].size_bytes
        for node in graph.nodes
        if node.onnx_op == "Mul"
        for name, other in (node.inputs, node.inputs[::-1])
        if name in constants
    }
    if scaled:
        text = (
            f"{plural(len(scaled), 'factor')} that the export computed, counted as not trained: "
            f"{listed(tuple(scaled))}; where they are views of parameters, what they scale is "
            f"saved, up to {format_bytes(sum_if_known(scaled.values()))} more: files with the "
            "metadata of torch.export tell"
        )
        yield Finding("folded_factors", text, next(iter(scaled)))


def _bias_findings(graph: Graph, found: Parameters) -> Iterator[Finding]:
    """Biases of attention that an exporter computed of parameters, which may have other dims."""
    trained = frozenset(found.trained)
    sizes = {
        name: graph.tensors[name].size_bytes
        for node in graph.nodes
        if node.operator is ATTENTION
        for name in node.inputs[_BIAS_AT:]
        if name in trained and is_exporters_name(name)
    }
    if sizes:
        text = (
            f"{plural(len(sizes), 'tensor')} that attention adds to its scores, computed by the "
            f"export and counted as trained, {format_bytes(sum_if_known(sizes.values()))}: "
            f"{listed(tuple(sizes))}; the file lacks the parameters that they were computed "
            "of, larger ones cut to this sequence or smaller ones gathered from: an export with "
            "symbolic dims has them"
        )
        yield Finding("folded_biases", text, next(iter(sizes)))


def _saved_weights_bytes(weights: Tensor, precision: Precision) -> int | None:
    """Bytes that the softmax and the matmul behind it save of the attention weights.

    Both save one tensor, but under autocast the softmax is in float32 and the matmul reads, and
    saves, a copy of 16 bits (``precision``).
    """
    bits = precision.activation_bits
    if precision.autocast is not None:
        bits += precision.autocast.bits or 0
    return operand_in(weights, bits).size_bytes


def _no_match(pattern: str) -> str:
    return f"--freeze {pattern!r}: no trained parameter has a name of that pattern"
