"""What an exporter computed or merged when it wrote the file, and the network runs in every step.

torch.export names the operands of the call that each node comes from (``fx_node``): ``%p_...`` for
a parameter, and after its operator for what the network computes (``%pad``, ``%mul_4``).
onnxscript's optimizer then merges a Pad into the Conv behind it
(onnxscript/rewriter/rules/common/_fuse_pad_into_conv.py) and computes what depends on stored
tensors alone (onnxscript/optimizer/_constant_folding.py): a weight that ``weight_norm`` computes,
or ``1 - p`` of a parameter. What a step saves of these is put back, and no gradient passes through
an operand that the call has as ``%detach``.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import FX_NODE, Graph, Node, Role, Tensor
from onnxmem.model.module_paths import dotted_path, modules_of
from onnxmem.model.parameters import Readers, is_product, is_table, readers_of
from onnxmem.ops.registry import lookup
from onnxmem.ops.spec import OpSpec, Shape, known_dims
from onnxmem.runtimes.torch.framework import (
    CONTIGUOUS,
    DETACH,
    FRAMEWORK,
    PARAMETER_FUNCTION,
    WEIGHT_NORM,
)
from onnxmem.runtimes.torch.strides import CONVOLUTIONS, Dims
from onnxmem.units import plural

_HIERARCHY: Final = "pkg.torch.onnx.class_hierarchy"
_ARGUMENTS: Final = re.compile(r"\]\(args = \((.*)\), kwargs")
_ARGUMENT: Final = re.compile(r"%\w+|\[[^\]]*\]|[^\s,\[\]]+")
_BATCH_NORM: Final = re.compile(r"\[target=torch\.ops\.aten\.\w*batch_norm")
_NUMBER: Final = re.compile(r"-?\d+")
_PADDED: Final = re.compile(r"%_?(constant_)?pad(_nd)?(_default)?(_\d+)?")
"""What ``functional.pad`` returns, in the name that torch.export gives it."""
_DETACHED: Final = re.compile(r"%detach(_\d+)?")
_CLONE: Final = re.compile(r"%(clone|contiguous)(_\d+)?")
"""What ``contiguous`` returns, and a Dropout of ratio 0: no copy in a network."""
_VIEW: Final = re.compile(r"\[target=torch\.ops\.aten\.view\.")
"""A call that reads what ``contiguous`` returns; onnxscript's optimizer drops the node of that.
``_unsafe_view`` reads the copy that ``reshape`` made in the trace: by the strides there, which may
be others in a step."""
_CONTIGUOUS: Final = re.compile(r"\[target=torch\.ops\.aten\.clone\..*contiguous_format")
_PARAMETRIZED: Final = "torch.nn.utils.parametrize."
"""The module of the class that a layer gets whose weight is computed by a parametrization."""
_PARAMETER: Final = re.compile(r"\[target=torch\.ops\.aten\.linear\..*?args = \(%\w+, %p_(\w+)")
"""The weight of a linear layer, by the name that torch.export gives to the parameter."""
_DOT: Final = re.compile(r"\W")
_NORMED: Final = re.compile(r"(%|^|/)_?(mul|weight_norm\w*?)(_\d+)?$")
"""What ``weight_norm`` returns: it ends in ``v * (g / norm)``."""
_COMPUTED: Final = re.compile(r"(%|^|/)(add|div|sub)(_\d+)?$")
"""What ``spectral_norm`` (``weight / sigma``) and standardized weights end in."""
_OF_PARAMETER: Final = re.compile(r"(^|/)(add|div|exp|mul|neg|rsub|sub)(_\d+)?$")
_SQUASHED: Final = re.compile(r"(?:^|/)(sigmoid|softplus|tanh)(?:_\d+)?$")
"""What bounds a parameter: nobody computes it of a mask or a table in every step."""
_ACTIVATIONS: Final = {"sigmoid": "Sigmoid", "softplus": "Softplus", "tanh": "Tanh"}
_RULES: Final = "pkg.onnxscript.rewriter.rule_name"
_MERGED_PADDING: Final = "FuseConvPad"
"""The rule of onnxscript's optimizer that merges a Pad; a node names those applied to it."""
_PADDING: Final = 4
"""Its index among the arguments of a convolution."""
_BATCH_AND_CHANNELS: Final = 2
"""The axes of a convolution's operand that are not padded."""
_WEIGHT: Final = 1
"""Its index among those of a convolution and of ``linear``, and among a node's inputs."""
_LAYERS: Final = frozenset({*CONVOLUTIONS, "Gemm", "MatMul"})
_ELEMENTWISE: Final = frozenset({"Add", "Div", "Mul", "Sub"})


@dataclass(frozen=True, slots=True)
class Unfolded:
    """A graph with what was merged or computed put back, and the notes on it."""

    graph: Graph
    findings: tuple[Finding, ...]


def unfolded(graph: Graph) -> Unfolded:
    """Put back the padding, the weight norms and the functions of parameters."""
    graph = _with_shared_weights(graph)
    unfolding = _Unfolding(graph, dict(graph.tensors), viewed=_viewed_clones(graph))
    for node in graph.nodes:
        unfolding.run(node)
    if not (unfolding.padded or unfolding.computed or unfolding.is_cut or unfolding.copies):
        return Unfolded(graph, ())
    whole = replace(graph, nodes=tuple(unfolding.nodes), tensors=unfolding.tensors)
    return Unfolded(whole, tuple(_findings(unfolding)))


@dataclass(slots=True)
class _Unfolding:
    graph: Graph
    tensors: dict[str, Tensor]
    nodes: list[Node] = field(default_factory=list)
    padded: list[str] = field(default_factory=list)
    """The convolutions whose padding was put back."""
    layers: list[str] = field(default_factory=list)
    """The layers whose weight is computed."""
    computed: set[str] = field(default_factory=set)
    """Weights of the file that the network computes."""
    copies: dict[str, tuple[str, str]] = field(default_factory=dict)
    """What ``contiguous`` returns, by its name in torch.export: its operand and the tensor."""
    viewed: frozenset[str] = frozenset()
    """The names in torch.export of the clones that are viewed, and have no node in the file."""
    is_cut: bool = False
    """Whether the gradient of an operand is cut."""
    _readers: Readers | None = None
    _weights_of_modules: Mapping[tuple[str, Shape | None], str] | None = None

    @property
    def readers(self) -> Readers:
        """The readers of all tensors of the file, computed on first use: few models need them."""
        if self._readers is None:
            self._readers = readers_of(self.graph)
        return self._readers

    @property
    def weights_of_modules(self) -> Mapping[tuple[str, Shape | None], str]:
        """The first weight of each module and shape, computed on first use."""
        if self._weights_of_modules is None:
            found: dict[tuple[str, Shape | None], str] = {}
            for name, tensor in self.graph.tensors.items():
                if tensor.role is Role.WEIGHT:
                    found.setdefault((name.rpartition(".")[0], tensor.shape), name)
            self._weights_of_modules = found
        return self._weights_of_modules

    def run(self, node: Node) -> None:
        """Append a node, after what the network runs before it."""
        if node.onnx_op in _LAYERS:
            self._compute_weight(node)
        if node.onnx_op in _ELEMENTWISE:
            self._compute_operands(node)
            node = self._with_detached_operands(node)
        node = self._with_contiguous_operand(node)
        padded = self._padded(node) if node.onnx_op == "Conv" else None
        self.nodes.append(node if padded is None else self._behind_padding(node, padded))

    def _with_detached_operands(self, node: Node) -> Node:
        """Cut the gradient of operands that the network has detached, which no node tells."""
        arguments = _arguments(node)
        # Arguments index the node's inputs only where there are as many of both.
        if len(arguments) != len(node.inputs):
            return node
        inputs = list(node.inputs)
        for index, (argument, name) in enumerate(zip(arguments, node.inputs, strict=True)):
            if name and _DETACHED.fullmatch(argument):
                inputs[index] = f"{name} detached for {node.name}, input {index}"
                shape = self.tensors[name].shape
                self._insert(
                    node, DETACH, f"{node.name}/detach_{index}", (name,), inputs[index], shape
                )
                self.is_cut = True
        return replace(node, inputs=tuple(inputs))

    def _with_contiguous_operand(self, node: Node) -> Node:
        """Let a node read what ``contiguous`` returned, if the file has no node of it."""
        if node.onnx_op == "Identity" and _CONTIGUOUS.search(node.metadata.get(FX_NODE, "")):
            self.copies[node.name] = node.inputs[0], node.outputs[0]
            return replace(node, op_type=CONTIGUOUS.op_type, domain=FRAMEWORK, operator=CONTIGUOUS)
        clone = next(iter(_arguments(node)), "") if self.viewed and any(node.inputs[:1]) else ""
        if clone not in self.viewed:
            return node
        data = node.inputs[0]
        found = self.copies.get(clone)
        # One copy serves every view of the same `contiguous`, as in the network.
        if found is None:
            found = self.copies[clone] = data, f"{clone[1:]} of {data}"
            shape = self.tensors[data].shape
            self._insert(node, CONTIGUOUS, f"{node.name}/contiguous", (data,), found[1], shape)
        return replace(node, inputs=(found[1], *node.inputs[1:])) if found[0] == data else node

    def _padded(self, node: Node) -> Dims | None:
        """The dims of a convolution's operand after padding that is an operator of its own."""
        found = node.attributes.get("pads", ())
        dims = known_dims(self.tensors[node.inputs[0]].shape)
        pads = [pad for pad in found if isinstance(pad, int)] if isinstance(found, tuple) else []
        if dims is None or not pads:
            return None
        is_merged = _MERGED_PADDING in node.metadata.get(_RULES, "")
        half = len(pads) // 2
        # `pads` has a start and an end for each axis of [N, C, *spatial] but the first two.
        if len(pads) % 2 or half != len(dims) - _BATCH_AND_CHANNELS:
            return None
        before, after = pads[:half], pads[half:]
        arguments = _arguments(node)
        # A layer that a BatchNormalization was folded into has the call of that.
        if not arguments or _BATCH_NORM.search(node.metadata[FX_NODE]):
            # No convolution of PyTorch pads one side more than the other, and few that a Pad stands
            # before pad once more.
            own = (0,) * half if is_merged or before != after else tuple(before)
        elif _PADDED.fullmatch(arguments[0]):
            own = _numbers(arguments[_PADDING] if len(arguments) > _PADDING else "[0]", half)
        else:
            return None
        if any(not 0 <= c <= min(a, b) for a, b, c in zip(before, after, own, strict=True)):
            # Not a call that a Pad was merged into: what is left of the pads would cut the operand.
            return None
        # What the layer pads itself is not in the output of the Pad.
        sizes = zip(dims[_BATCH_AND_CHANNELS:], before, after, own, strict=True)
        padded = (size + a + b - 2 * c for size, a, b, c in sizes)
        whole = (*dims[:_BATCH_AND_CHANNELS], *padded)
        # `constant_pad_nd` of aten/src/ATen/native/PadNd.cpp copies also where it pads nothing.
        return whole if is_merged or whole != dims else None

    def _behind_padding(self, node: Node, dims: Dims) -> Node:
        data = node.inputs[0]
        name = f"{node.name}/Pad"
        self._insert(node, lookup("Pad"), name, (data,), f"{name}_output", dims)
        self.padded.append(node.name)
        return replace(node, inputs=(f"{name}_output", *node.inputs[1:]))

    def _compute_weight(self, node: Node) -> None:
        """Compute the weight of a layer, if the network does in every step."""
        name = node.inputs[_WEIGHT]
        dims = known_dims(self.tensors[name].shape)
        if self.tensors[name].role is not Role.WEIGHT or dims is None or len(dims) < 2:  # noqa: PLR2004 - a matrix
            return
        arguments = _arguments(node)
        source = arguments[_WEIGHT] if len(arguments) > _WEIGHT else name
        if _NORMED.search(source):
            # One length for each row; torch.export transposes the weights of linear layers.
            is_first = node.onnx_op in CONVOLUTIONS or node.attributes.get("transB")
            axis = 0 if is_first else 1
            lengths = tuple(dim if index == axis else 1 for index, dim in enumerate(dims))
            v, g = ("_v", "_g") if _keeps_weight(node) else (" original1", " original0")
            direction = self._weight(f"{name}{v}", name, dims)
            parts = direction, self._weight(f"{name}{g}", name, lengths)
            self._compute(node, WEIGHT_NORM, parts, name)
            self.layers.append(node.name)
        elif _COMPUTED.search(source):
            suffix = "_orig" if _keeps_weight(node) else " original"
            original = self._weight(f"{name}{suffix}", name, dims)
            self._compute(node, PARAMETER_FUNCTION, (original,), name)
            self.layers.append(node.name)

    def _compute_operands(self, node: Node) -> None:
        """Compute operands that were folded from a parameter of the module that reads them."""
        for name in filter(None, node.inputs):
            tensor = self.tensors[name]
            if tensor.role is not Role.WEIGHT or (tensor.num_elements or 1) == 1:
                continue
            if is_product(node, tensor):
                # Of the layer's weight the file has the number of rows alone.
                source = self._weight(f"{name} of", name, (known_dims(tensor.shape) or ())[-1:])
                self._compute(node, PARAMETER_FUNCTION, (source,), name)
            elif found := _SQUASHED.search(name):
                source = self._weight(f"{name} of", name, known_dims(tensor.shape) or ())
                self._compute(node, lookup(_ACTIVATIONS[found[1]]), (source,), name)
            elif _OF_PARAMETER.search(name) and (source := self._parameter_like(node, tensor)):
                self._compute(node, PARAMETER_FUNCTION, (source,), name)

    def _parameter_like(self, node: Node, folded: Tensor) -> str:
        """A parameter of a node's module with the shape of a folded tensor; empty if none has."""
        module = dotted_path(modules_of(node))
        if not module or is_table(folded, self.readers):
            return ""
        return self.weights_of_modules.get((module, folded.shape), "")

    def _compute(self, node: Node, operator: OpSpec, inputs: tuple[str, ...], name: str) -> None:
        """Insert what computes a weight of the file, which is an activation from then on."""
        shape = self.tensors[name].shape
        self._insert(
            node, operator, f"{node.name}/{operator.op_type} of {name}", inputs, name, shape
        )
        self.computed.add(name)

    def _weight(self, name: str, like: str, dims: Dims) -> str:
        self.tensors[name] = Tensor(name, self.tensors[like].dtype, dims, Role.WEIGHT)
        return name

    def _insert(
        self,
        before: Node,
        operator: OpSpec,
        name: str,
        inputs: tuple[str, ...],
        output: str,
        shape: Shape | None,
    ) -> None:
        dtype = self.tensors[inputs[0]].dtype
        self.tensors[output] = Tensor(output, dtype, shape, Role.ACTIVATION)
        domain = operator.domain if operator.domain == FRAMEWORK else ""
        self.nodes.append(
            Node(
                *(name, operator.op_type, domain, inputs, (output,), operator),
                metadata=before.metadata,
            )
        )


def _with_shared_weights(graph: Graph) -> Graph:
    """Let copies of a parameter share its storage: one for each call of a layer.

    torch.export transposes the weight of a linear layer when it writes the file, once for each
    call, and merges small copies alone (onnx_ir.passes.common.DeduplicateInitializersPass,
    ``size_limit``); a matrix that an embedding reads too keeps a copy in its own form.
    """
    # Placeholders are named after parameters, with _ for each dot.
    named = {_DOT.sub("_", name): name for name, each in graph.tensors.items() if _is_weight(each)}
    tensors: dict[str, Tensor] = {}
    for node in graph.nodes:
        found = _PARAMETER.search(node.metadata.get(FX_NODE, ""))
        name = node.inputs[_WEIGHT] if len(node.inputs) > _WEIGHT else ""
        if found is None or node.onnx_op not in _LAYERS or not _is_weight(graph.tensors[name]):
            continue
        # A parameter that the file has only transposed is not under its own name: the first copy
        # stands for it.
        copy, original = graph.tensors[name], graph.tensors[named.setdefault(found[1], name)]
        is_same = Counter(copy.shape) == Counter(original.shape)
        if copy is not original and is_same and copy.dtype == original.dtype:
            tensors[name] = replace(copy, storage=original.storage_key)
    return replace(graph, tensors={**graph.tensors, **tensors}) if tensors else graph


def _is_weight(tensor: Tensor) -> bool:
    return tensor.role is Role.WEIGHT


def _arguments(node: Node) -> list[str]:
    """The arguments of the call that torch.export wrote a node for; empty if it names none."""
    found = _ARGUMENTS.search(node.metadata.get(FX_NODE, ""))
    return [] if found is None else _ARGUMENT.findall(found[1])


def _keeps_weight(node: Node) -> bool:
    """Whether a layer keeps its computed weight: a hook does, and no parametrization."""
    return _PARAMETRIZED not in node.metadata.get(_HIERARCHY, "")


def _viewed_clones(graph: Graph) -> frozenset[str]:
    """What ``contiguous`` returned for a view, where the file has no node of it."""
    views = (node for node in graph.nodes if _VIEW.search(node.metadata.get(FX_NODE, "")))
    read = (next(iter(_arguments(node)), "") for node in views)
    return frozenset(n for n in read if _CLONE.fullmatch(n) and n[1:] not in graph.tensors)


def _numbers(text: str, count: int) -> tuple[int, ...]:
    """The numbers of a list; one of a single number is for every axis. Words are 0."""
    found = tuple(int(number) for number in _NUMBER.findall(text))
    return found if len(found) == count else (found[:1] or (0,)) * count


def _findings(unfolding: _Unfolding) -> Iterator[Finding]:
    if unfolding.padded:
        text = (
            f"{plural(len(unfolding.padded), 'padding')} put back that the export merged into "
            f"convolutions: {listed(unfolding.padded)}"
        )
        yield Finding("padding_put_back", text, unfolding.padded[0])
    if unfolding.layers:
        text = (
            f"the weights of {plural(len(unfolding.layers), 'layer')} are computed in every step, "
            f"as weight_norm and spectral_norm do: {listed(unfolding.layers)}; the export computed "
            "them once"
        )
        yield Finding("weights_computed", text, unfolding.layers[0])
