"""Which layers had a BatchNormalization that an exporter or an optimizer folded into them.

A fold leaves the layer with other weights and a bias. What distinguishes it from a layer that
had a bias from the start are the names that the folding tool gives the result:

- torch.onnx's script exporter (``fuseConvBatchNorm`` of
  torch/csrc/jit/passes/onnx/eval_peephole.cpp) creates the output, the weight and the bias anew, in
  this order, so that their numbers are consecutive: ``onnx::Conv_66`` and ``onnx::Conv_67``, or
  ``66`` and ``67`` with output ``65`` before PyTorch 1.11. It folds into Conv only. A weight that
  constant folding computed (weight_norm) has such a name too; its bias has its own.
- torch.export with onnxscript's optimizer (onnxscript/rewriter/rules/common/_fuse_batchnorm.py)
  keeps the metadata, the output's name (``getitem``) and the names of weight and bias; where there
  was no bias, it is ``<weight>_bias``. It folds into Conv, ConvTranspose and Gemm.
- onnxruntime (core/optimizer/conv_bn_fusion.cc): ``ConvBnFusion_W_...``, ``ConvBnFusion_BN_B_...``.
- tf2onnx (optimizer/back_to_back_optimizer.py): ``..._weights_fused_bn``, ``..._bias_fused_bn``;
  TensorFlow's fold_old_batch_norms.cc: ``..._bn_offset``; TFLite joins the names of all that it
  fused with ``;``.
- keras2onnx (onnxconverter_common/optimizer.py, ``ConvBatchNormSolution``): ``..._W_new``,
  ``..._B_new``.
- onnxslim (core/pattern/fusion/convbn.py) and onnxruntime keep the BatchNormalization's output.
- onnxsim names the results of onnxoptimizer's fuse_bn_into_conv ``_v_81`` and ``_v_82``, and lists
  the nodes that it removed in the model's metadata.
- Ultralytics (engine/exporter.py) fuses in Python before the export and keeps all names; it signs
  its files, and its module of convolution and normalization calls the convolution ``conv``.
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from onnxmem.model.graph import FX_NODE, Graph, Node, Role
from onnxmem.model.parameters import Readers, readers_of
from onnxmem.ops.spec import known_dims
from onnxmem.runtimes.torch.strides import CONVOLUTIONS

_BIAS: Final = 2
"""Index of the bias among the inputs."""
_FX_TARGET: Final = re.compile(r"\[target=([\w.:]+)\]")
_FX_OUTPUT: Final = re.compile(r"(^|/)(getitem|\w*batch_norm\w*?)(_\d+)?$")
"""The name that torch.export gives the output of a normalization, which the layer inherits."""
_NUMBERED: Final = re.compile(r"(?:^|/)(onnx::Conv_)?(\d+)$")
_NORM: Final = re.compile("batch_?norm", re.IGNORECASE)
_FUSED_NAME: Final = re.compile(
    r"(^|/)ConvBnFusion_(W|BN_B)_|_(weights|bias)_fused_bn(:\d+)?$|_bn_offset(:\d+)?$"
)
_ONNXSIM_NAME: Final = re.compile(r"(^|/)_v_\d+$")
_GENERATED_NAME: Final = re.compile(
    r"(^|/)((onnx::\w+_)?\d+|_?v_?\d+|val_\d+|const_fold_opt__\d+)$"
)
"""Names of weights that a tool computed."""
_WEIGHT_WORD: Final = re.compile(r"(?<![A-Za-z])(weights?|kernel|filters?|W|w)(?![A-Za-z])")
_BIAS_WORD: Final = re.compile(r"(?<![A-Za-z])(bias|biases|B|b)(?![A-Za-z])")
_STATISTICS: Final = re.compile(r"(running|moving)_mean(:\d+)?$")
_OTHER_NORMS: Final = frozenset(
    {"GroupNormalization", "InstanceNormalization", "LayerNormalization"}
)
_LAYOUT: Final = frozenset({"Flatten", "Reshape", "Shape", "Squeeze", "Transpose", "Unsqueeze"})
_ACTIVATIONS: Final = frozenset(
    {
        *("Clip", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish"),
        *("PRelu", "Relu", "Selu", "Sigmoid", "Softplus", "Tanh"),
    }
)
_INDEXED: Final = re.compile(r"^(.*?)(\d+)$")


class Origin(Enum):
    """Whether a BatchNormalization was folded into a layer."""

    FOLDED = auto()
    PLAIN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class FoldedLayers:
    """The layers of a graph by what the file shows of a BatchNormalization folded into them."""

    certain: tuple[Node, ...]
    """The file shows the fold."""
    possible: tuple[Node, ...]
    """The file does not distinguish a fold from a bias."""


@dataclass(frozen=True, slots=True)
class BatchNorms:
    """The BatchNormalizations that an export folded away, by the layers that they were folded into.

    A layer is in at most one of the three.
    """

    put_back: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """The file shows them, and the training configuration leaves them out."""
    unknown: tuple[str, ...] = ()
    """The file does not show whether there was one; the figures assume none."""


def folded_layers(graph: Graph) -> FoldedLayers:
    """The layers that a BatchNormalization followed, and those that one may have followed."""
    # A tool that folds does so throughout the file: where some layers show it, the others had none.
    # A layer of unknown shape is left out: a normalization of unknown size would add nothing.
    traces = _Traces(graph)
    layers = (n for n in graph.nodes if n.onnx_op in CONVOLUTIONS or n.onnx_op == "Gemm")
    known = (n for n in layers if known_dims(graph.tensors[n.outputs[0]].shape) is not None)
    origins = [(node, traces.origin(node)) for node in known]
    certain = tuple(node for node, origin in origins if origin is Origin.FOLDED)
    possible = tuple(node for node, origin in origins if origin is Origin.UNKNOWN)
    return FoldedLayers(certain, () if certain else possible)


def has_own_bias(node: Node) -> bool:
    """Whether a folded layer had a bias already: its name still matches the weight's."""
    return len(node.inputs) > _BIAS and _is_pair(node.inputs[1], node.inputs[_BIAS])


@dataclass(slots=True)
class _Traces:
    """The evidence in a file, collected once."""

    graph: Graph
    readers: Readers = field(init=False)
    numbers: frozenset[int] = field(init=False)
    """The numbers of weights that have a number for a name."""
    statistics: Counter[int | None] = field(init=False)
    """Running means that no node reads: how many, by their channels."""
    biased: Counter[int | None] = field(init=False)
    """How many convolutions have a bias, by their channels."""
    modules: frozenset[str] = field(init=False)
    """The module paths in the names that the script exporter gives nodes."""
    is_unfolded: bool = field(init=False)
    """Whether a Conv is still followed by a BatchNormalization, or the network has other norms."""

    def __post_init__(self) -> None:
        graph, tensors = self.graph, self.graph.tensors
        self.readers = readers_of(graph)
        # What speaks for a BatchNormalization that is gone: weights with numbers for names, as the
        # folding of PyTorch's old exporter leaves them, and running statistics that no node reads
        # any more.
        numbers = (_NUMBERED.search(w.name) for w in tensors.values() if w.role is Role.WEIGHT)
        self.numbers = frozenset(int(found[2]) for found in numbers if found)
        unread = (t for t in tensors.values() if t.role is Role.UNREAD)
        means = [t.num_elements for t in unread if _STATISTICS.search(t.name)]
        convolutions = [node for node in graph.nodes if node.onnx_op in CONVOLUTIONS]
        self.statistics = Counter(means)
        self.biased = Counter(self._channels(node) for node in convolutions if _bias(node))
        self.modules = frozenset(_module(node) for node in graph.nodes)
        self.is_unfolded = any(node.onnx_op in _OTHER_NORMS for node in graph.nodes) or any(
            node.onnx_op == "Conv" and "BatchNormalization" in self._read_by(node)
            for node in convolutions
        )

    def origin(self, node: Node) -> Origin:
        """Whether the file shows that a BatchNormalization was folded into a layer."""
        # From the most to the least certain: a tool's signature or name; torch.export's metadata,
        # which names the source of every node; then what only stored weights can be.
        weight, bias = node.inputs[1], _bias(node)
        target = _FX_TARGET.search(node.metadata.get(FX_NODE, ""))
        if self._is_fused_by_ultralytics(node) or _has_trace(node) or self._is_numbered(node):
            return Origin.FOLDED
        if target is not None:
            return Origin.FOLDED if "batch_norm" in target[1] else Origin.PLAIN
        if node.onnx_op == "Gemm" or not self._could_be_folded(weight, bias):
            return Origin.PLAIN
        return self._origin_of_stored(node, weight, bias)

    def _origin_of_stored(self, node: Node, weight: str, bias: str) -> Origin:
        """The same for a convolution whose weight and bias are stored in the file."""
        if self._is_simplified(weight, bias):
            return Origin.FOLDED
        # A folded BatchNormalization may leave its running statistics behind, unread. If there are
        # as many as biased convolutions of that width, each belongs to one of them.
        if means := self.statistics[self._channels(node)]:
            is_each = means == self.biased[self._channels(node)]
            return Origin.FOLDED if is_each else Origin.UNKNOWN
        if self.is_unfolded or self._read_by(node) <= _LAYOUT or _keeps_bias(weight, bias):
            return Origin.UNKNOWN if self._lacks_module(node) else Origin.PLAIN
        return Origin.UNKNOWN

    def _could_be_folded(self, weight: str, bias: str) -> bool:
        """Whether a layer's weight and bias are both stored, as a fold leaves them."""
        return bool(bias) and all(
            self.graph.tensors[name].role is Role.WEIGHT for name in (weight, bias)
        )

    def _is_fused_by_ultralytics(self, node: Node) -> bool:
        is_signed = self.graph.metadata.get("author") == "Ultralytics"
        return is_signed and bool(_bias(node)) and node.inputs[1].endswith(".conv.weight")

    def _is_numbered(self, node: Node) -> bool:
        """Whether the output, the weight and the bias were numbered one after the other."""
        weight, bias = (_NUMBERED.search(name) for name in (node.inputs[1], _bias(node)))
        if node.onnx_op != "Conv" or not (weight and bias) or weight[1] != bias[1]:
            return False
        first, output = int(weight[2]), _NUMBERED.search(node.outputs[0])
        if int(bias[2]) != first + 1:
            return False
        if weight[1]:
            return first - 1 not in self.numbers
        return output is not None and int(output[2]) == first - 1

    def _is_simplified(self, weight: str, bias: str) -> bool:
        removed = self.graph.metadata.get("onnxsim.removed_nodes", "")
        are_onnxsim_names = _ONNXSIM_NAME.search(weight) and _ONNXSIM_NAME.search(bias)
        return bool(are_onnxsim_names) and "BatchNormalization (" in removed

    def _lacks_module(self, node: Node) -> bool:
        """Whether a module is missing between a layer and its activation.

        In a network that was fused in Python the other modules have their names still: ``0`` and
        ``2`` of a Sequential, or ``conv`` and ``act`` of one block.
        """
        module = _module(node)
        parent, _, name = module.rpartition("/")
        if self.is_unfolded or not module:
            return False
        if name == "conv" and f"{parent}/act" in self.modules:
            return True
        readers = (each for each in self.readers.get(node.outputs[0], ()))
        return any(_is_one_apart(name, each) for each in readers)

    def _read_by(self, node: Node) -> frozenset[str]:
        return frozenset(each.onnx_op for each in self.readers.get(node.outputs[0], ()))

    def _channels(self, node: Node) -> int | None:
        return self.graph.tensors[_bias(node) or node.inputs[1]].num_elements


def _bias(node: Node) -> str:
    return node.inputs[_BIAS] if len(node.inputs) > _BIAS else ""


def _has_trace(node: Node) -> bool:
    """Whether the names of a layer show that a normalization was folded into it."""
    weight, bias, output = node.inputs[1], _bias(node), node.outputs[0]
    if "FuseBatchNorm" in node.metadata.get("pkg.onnxscript.rewriter.rule_name", ""):
        return True
    if weight.endswith("_W_new") and bias.endswith("_B_new"):
        return True
    if bias == f"{weight}_bias" or _FUSED_NAME.search(weight) or _FUSED_NAME.search(bias):
        return True
    return bool(_FX_OUTPUT.search(output)) or any(
        _NORM.search(name.rpartition("/")[2]) for name in output.split(";")
    )


def _is_pair(weight: str, bias: str) -> bool:
    """Whether two names differ only in the words for weight and bias."""
    stem = _without(_WEIGHT_WORD, weight)
    return stem is not None and stem == _without(_BIAS_WORD, bias)


def _without(word: re.Pattern[str], name: str) -> str | None:
    """A name without the last occurrence of a word; ``None`` if it does not have the word."""
    indices = list(word.finditer(name))
    return name[: indices[-1].start()] + "*" + name[indices[-1].end() :] if indices else None


def _keeps_bias(weight: str, bias: str) -> bool:
    """Whether a bias has the name that its layer gave it, which folds in a file change."""
    layer, word, _ = (_without(_BIAS_WORD, bias) or "").partition("*")
    if not word:
        return "BiasAdd" in bias
    return (
        _is_pair(weight, bias)
        or bool(_GENERATED_NAME.search(weight))
        or weight.startswith(layer or "*")
    )


def _module(node: Node) -> str:
    """The path of the module that a node of the script exporter belongs to."""
    return node.name.rpartition("/")[0]


def _is_one_apart(name: str, reader: Node) -> bool:
    """Whether exactly one module of a Sequential is missing between a layer and its activation."""
    layer = _INDEXED.search(name)
    other = _INDEXED.search(_module(reader).rpartition("/")[2])
    if reader.onnx_op not in _ACTIVATIONS or layer is None or other is None:
        return False
    return layer[1] == other[1] and int(other[2]) == int(layer[2]) + 2
