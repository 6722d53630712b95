"""The graph as it is trained: composites joined, folded layers put back, adapters added.

``network_of`` takes the graph of a file and a training configuration. Composites become the
operators that the framework runs (``as_run``). An inference export leaves out BatchNormalization,
folded into the layer before it, and Dropout: what is put back, and where, is decided here; which
layers had a BatchNormalization is read in ``folded``. Low-rank adapters (LoRA) are two small
factors trained beside each matrix, which is frozen.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import Graph, Node, Role, Tensor
from onnxmem.model.parameters import Parameters, parameters
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import Attribute, Shape, known_dims
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
from onnxmem.runtimes.torch.composites.attention import attentions, attentions_as_products
from onnxmem.runtimes.torch.composites.layers import (
    batch_norms,
    dropouts,
    group_norms,
    layer_norms,
    linears,
    mirrored_pads,
    rolls,
    sequences,
    unbinds,
    variances,
)
from onnxmem.runtimes.torch.composites.rewriting import (
    GraphView,
    Match,
    with_cast_numbers,
    with_matches,
    without_unread_weights,
)
from onnxmem.runtimes.torch.folded import BatchNorms, folded_layers, has_own_bias
from onnxmem.runtimes.torch.views import in_place_activations, out_of_place_activations
from onnxmem.settings import TrainingConfig
from onnxmem.units import format_bytes, plural, sum_if_known

_RATIO = 0.5
"""Any but 0: the mask is as large whatever the ratio."""


_HIERARCHY = "pkg.torch.onnx.class_hierarchy"


_DROPOUT_MODULE = "torch.nn.modules.dropout."


_NO_BATCHNORM = Finding(
    "no_batchnorm",
    "--assume-batchnorm has no effect: no layer has the trace of a folded BatchNormalization, and "
    "none could have had one",
)


_Finder = Callable[[GraphView], Iterator[Match]]


_FINDERS: tuple[tuple[frozenset[str], _Finder], ...] = (
    (frozenset({"SplitToSequence"}), sequences),
    (frozenset({"Slice", "Squeeze"}), unbinds),
    (frozenset({"Slice", "Concat"}), rolls),
    (frozenset({"Pad"}), mirrored_pads),
    (frozenset({"Mul"}), dropouts),
    (frozenset({"BatchNormalization", "ReduceMean"}), batch_norms),
    (frozenset({"ReduceMean", "Sqrt", "Div"}), layer_norms),
    (frozenset({"InstanceNormalization", "Reshape"}), group_norms),
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
    (frozenset({"Mul", "Cast"}), squares),
)
"""In order; each with the operators without which there is nothing to find."""


_ATTENTION: tuple[frozenset[str], _Finder] = (frozenset({"Softmax", "MatMul"}), attentions)


@dataclass(frozen=True, slots=True)
class Part:
    """An operator to put in, and what it reads."""

    op_type: str
    inputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    opset: int | None = None


@dataclass(slots=True)
class Insertion:
    """A graph under change: nodes go behind others, and take over their output's readers."""

    graph: Graph
    tensors: dict[str, Tensor] = field(init=False)
    behind: dict[str, list[Node]] = field(default_factory=dict)
    renamed: dict[str, str] = field(default_factory=dict)
    """Tensors by what readers find in their place."""
    shortened: dict[str, int] = field(default_factory=dict)
    """Nodes by the index from which on they lose their inputs."""

    def __post_init__(self) -> None:
        self.tensors = dict(self.graph.tensors)

    def weight(self, name: str, like: str, shape: Shape) -> str:
        """Add a weight of the type of another tensor; say its name."""
        return self._tensor(name, like, shape, Role.WEIGHT)

    def node(self, after: Node, part: Part, like: str, shape: Shape | None) -> str:
        """Put a node behind another, of the type of a tensor; say the name of what it makes."""
        index = len(self.behind.setdefault(after.name, []))
        name = f"{after.name}/{part.op_type}_{index}"
        output = self._tensor(f"{name}_output", like, shape, Role.ACTIVATION)
        operator = lookup(part.op_type, opset=part.opset)
        made = Node(name, part.op_type, "", part.inputs, (output,), operator, part.attributes)
        self.behind[after.name].append(made)
        return output

    def drop_input(self, node: Node, index: int) -> None:
        """Leave a node's inputs from an index on out, and the weights that no node reads then."""
        self.shortened[node.name] = index

    def take_over(self, name: str, by: str) -> None:
        """Let every reader of a tensor that stands in the file read another in its place."""
        self.renamed[name] = by

    def done(self) -> Graph:
        """The graph with all that was put in."""
        nodes: list[Node] = []
        for node in self.graph.nodes:
            inputs = tuple(self.renamed.get(name, name) for name in node.inputs)
            inputs = inputs[: self.shortened.get(node.name)]
            nodes.append(replace(node, inputs=inputs) if inputs != node.inputs else node)
            nodes += self.behind.get(node.name, ())
        self._remove_unread_weights(nodes)
        outputs = tuple(self.renamed.get(name, name) for name in self.graph.outputs)
        return replace(self.graph, nodes=tuple(nodes), outputs=outputs, tensors=self.tensors)

    def _remove_unread_weights(self, nodes: Iterable[Node]) -> None:
        """Remove the weights that only dropped inputs read: layers may share a bias."""
        read = {name for node in nodes for name in node.reads}
        for node in self.graph.nodes:
            for name in node.inputs[self.shortened.get(node.name, len(node.inputs)) :]:
                if name in self.tensors.keys() - read and self.tensors[name].role is Role.WEIGHT:
                    del self.tensors[name]

    def _tensor(self, name: str, like: str, shape: Shape | None, role: Role) -> str:
        self.tensors[name] = Tensor(name, self.tensors[like].dtype, shape, role)
        return name


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, its parameters, and what a reader should know of either."""

    graph: Graph
    parameters: Parameters
    findings: tuple[Finding, ...]
    batchnorms: BatchNorms


def network_of(graph: Graph, recipe: TrainingConfig) -> Network:
    """Read a graph as the framework trains it with a training configuration."""
    graph, batchnorms, findings = _with_batchnorms(graph, recipe)
    if recipe.assume_dropout:
        dropped = dropped_nodes(graph)
        findings.append(_dropout_finding(tuple(node.name for node in dropped)))
        graph = with_dropout(graph, dropped)
    graph = as_run(graph, fused_attention=recipe.attention == "fused")
    if recipe.attention == "fused" and (softmaxes := attentions_as_products(graph)):
        findings.append(_attention_finding(graph, softmaxes))
    if recipe.in_place_activations is None:
        findings += _in_place_findings(graph)
    found = parameters(graph)
    if recipe.freeze:
        found, missed = _frozen(found, recipe.freeze)
        findings += (Finding("freeze_matches_nothing", _no_match(each)) for each in missed)
    if recipe.lora_rank is not None:
        graph, found = with_adapters(graph, found, recipe.lora_rank)
    return Network(graph, found, tuple(findings), batchnorms)


def _with_batchnorms(
    graph: Graph, recipe: TrainingConfig
) -> tuple[Graph, BatchNorms, list[Finding]]:
    """Put back what the file shows; where it doesn't, what the configuration assumes."""
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


def as_run(graph: Graph, *, fused_attention: bool = True) -> Graph:
    """Read a graph as the framework runs it: one node in place of each composite's.

    Without ``fused_attention`` the framework's attention runs as the products that the file holds.
    """
    before = graph = with_cast_numbers(graph)
    present = {node.onnx_op for node in graph.nodes}
    known = (*_FINDERS, _ATTENTION) if fused_attention else _FINDERS
    view: GraphView | None = None
    for find in (find for needed, find in known if needed <= present):
        if view is None or view.graph is not graph:
            view = GraphView.of(graph)
        graph = with_matches(graph, find(view))
    return without_unread_weights(graph, before)


def _frozen(found: Parameters, patterns: tuple[str, ...]) -> tuple[Parameters, list[str]]:
    """Parameters without those of some patterns, and the patterns that fit none."""
    frozen = {name for name in found.trained if any(fnmatchcase(name, each) for each in patterns)}
    missed = [each for each in patterns if not any(fnmatchcase(n, each) for n in found.trained)]
    trained = tuple(name for name in found.trained if name not in frozen)
    held = (*found.buffers, *(name for name in found.trained if name in frozen))
    return replace(found, trained=trained, buffers=held), missed


def with_batchnorm(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Put a BatchNormalization behind each of some layers, in place of the bias that it gave them.

    Their shapes are known.
    """
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        channels = (shape or ())[1:2]
        names = ("scale", "bias", "running_mean", "running_var")
        operands = [insertion.weight(f"{node.name}/{n}", output, channels) for n in names]
        part = Part("BatchNormalization", (output, *operands))
        insertion.take_over(output, insertion.node(node, part, output, shape))
        if not has_own_bias(node):
            insertion.drop_input(node, 2)
    return insertion.done()


def with_dropout(graph: Graph, layers: Iterable[Node]) -> Graph:
    """Put a Dropout behind each of some nodes."""
    insertion = Insertion(graph)
    for node in layers:
        output = node.outputs[0]
        shape = graph.tensors[output].shape
        part = Part("Dropout", (output,), {"ratio": _RATIO, "is_test": 0}, opset=1)
        insertion.take_over(output, insertion.node(node, part, output, shape))
    return insertion.done()


def dropped_nodes(graph: Graph) -> tuple[Node, ...]:
    """The nodes behind which there was a Dropout, if there was any.

    None where the file runs Dropout itself. Where torch.export has left a Dropout module's node (an
    Identity), it is those. Else it is where networks have them: behind each softmax of an
    attention, behind each linear layer before a sum, and before each linear layer but the first of
    a classifier.
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


def _is_dropout_module(node: Node) -> bool:
    """Whether the innermost module of a node is a Dropout that does nothing in inference."""
    is_identity = node.onnx_op == "Identity"
    return is_identity and _DROPOUT_MODULE in node.metadata.get(_HIERARCHY, "")


def _is_dropped(graph: Graph, node: Node, reader: Node) -> bool:
    """Whether networks drop between two operators."""
    if node.onnx_op == "Softmax":
        return reader.onnx_op == "MatMul"
    if node.onnx_op in {"Relu", "Gelu", "Tanh", "Flatten"}:
        return reader.onnx_op == "Gemm"
    is_linear = node.onnx_op in {"Gemm", "MatMul", "Add"}
    shapes = [graph.tensors[name].shape for name in (*reader.reads, node.outputs[0])]
    is_residual = reader.onnx_op == "Add" and len(set(shapes)) == 1
    return is_linear and is_residual and _is_layer(graph, node)


def _is_layer(graph: Graph, node: Node) -> bool:
    """Whether a node is the end of a linear layer: its last operand is a weight."""
    roles = {graph.tensors[name].role for name in node.reads}
    return len(roles) > 1 and "weight" in {role.value for role in roles}


def with_adapters(graph: Graph, parameters: Parameters, rank: int) -> tuple[Graph, Parameters]:
    """Put an adapter beside each linear layer; only adapters are trained then.

    A layer ``y = x @ W`` becomes ``y + scale * ((x @ A) @ B)`` with A: [in, rank], B: [rank, out],
    as peft's ``LoraLayer`` runs it (Hu et al. 2021, arXiv 2106.09685). The file has no such nodes:
    the figures are of training it that way.
    """
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
        f"{len(names):,} BatchNormalization assumed, as asked, behind convolutions with a bias of "
        f"which the file doesn't tell whether they had one: {listed(names)}"
    )
    return Finding("batchnorm_assumed", text, names[0])


def _dropout_finding(names: tuple[str, ...]) -> Finding:
    if not names:
        text = (
            "--assume-dropout has no effect: the network has Dropout already, or no place where it "
            "is usual"
        )
        return Finding("no_dropout", text)
    text = (
        f"{len(names):,} Dropout assumed, as asked, behind {listed(names)}: an inference export "
        "doesn't tell where Dropout was"
    )
    return Finding("dropout_assumed", text, names[0])


def _in_place_findings(graph: Graph) -> Iterator[Finding]:
    """What is assumed of activations that keep less in place, either way."""
    if assumed := in_place_activations(graph, None):
        sizes = [graph.tensors[name].size_bytes for name in assumed.values()]
        text = (
            f"{plural(len(assumed), 'activation')} behind BatchNormalization taken to write over "
            f"their input, as networks of such blocks do: {listed(tuple(assumed))}; if the network "
            f"has inplace=False, they keep {format_bytes(sum_if_known(sizes))} more: "
            "--no-in-place-activations"
        )
        yield Finding("activations_in_place", text, next(iter(assumed)))
    if kept := out_of_place_activations(graph):
        text = (
            f"{plural(len(kept), 'activation')} taken to keep an input that one in place would "
            f"write over: {listed(kept)}; if the network has inplace=True, say "
            "--in-place-activations"
        )
        yield Finding("activations_out_of_place", text, kept[0])


def _attention_finding(graph: Graph, softmaxes: tuple[Node, ...]) -> Finding:
    sizes = [graph.tensors[node.outputs[0]].size_bytes for node in softmaxes]
    text = (
        f"{plural(len(softmaxes), 'attention')} counted as the products and the softmax of the "
        f"file: {listed([node.name for node in softmaxes])}; where the network calls "
        "scaled_dot_product_attention, one kernel runs them and keeps "
        f"{format_bytes(sum_if_known(sizes))} of weights less"
    )
    return Finding("attention_as_products", text, softmaxes[0].name)


def _no_match(pattern: str) -> str:
    return f"--freeze {pattern!r}: no trained parameter has a name of that pattern"
