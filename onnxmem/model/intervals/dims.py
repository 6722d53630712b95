"""The dims of a node's outputs by the intervals of its inputs: a rule per operator.

A rule returns the dims of each output, ``None`` where it does not know the rank. The rules are of
four kinds:

1. ``selecting``: how many elements there are is decided by data or by a value. NonZero has at most
   as many columns as its input has elements, NonMaxSuppression selects at most the boxes of each
   class, TopK the upper end of k.
2. ``moving``: elements get another shape or position, as by Reshape, Expand and Gather.
3. ``combining``: several inputs have dims that must agree, or are broadcast.
4. ``sizing``: an input is the size of the output, or a number from which it is computed.

All others are inferred by onnx (``inferred``).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.model.graph import Node
from onnxmem.model.intervals import combining, moving, selecting, sizing
from onnxmem.model.intervals.site import Rule
from onnxmem.model.shapes.microsoft import MICROSOFT

_BROADCASTING: Final = (
    "Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less "
    "LessOrEqual Max Mean Min Mod Mul Or Pow Sub Sum Where Xor".split()
)

REDUCING: Final = tuple(
    f"Reduce{each}" for each in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
)

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        **dict.fromkeys(_BROADCASTING, combining.elementwise),
        **dict.fromkeys(REDUCING, sizing.reduced),
        "AffineGrid": sizing.grid,
        "BlackmanWindow": sizing.window,
        "CenterCropPad": sizing.cropped,
        "Col2Im": sizing.image_of_columns,
        "Compress": selecting.compressed,
        "Concat": combining.concatenated,
        "ConstantOfShape": selecting.of_shape,
        "DFT": sizing.transform,
        "Einsum": combining.einsum,
        "Expand": moving.expanded,
        "Flatten": moving.flattened,
        "Gather": moving.gathered,
        "GatherElements": moving.like(1),
        "GatherND": moving.gathered_nd,
        "Gemm": combining.gemm,
        "HammingWindow": sizing.window,
        "HannWindow": sizing.window,
        "MatMul": combining.multiplied,
        "MaxUnpool": sizing.of_sizes(2),
        "MelWeightMatrix": sizing.mel_weights,
        "NonMaxSuppression": selecting.selected_boxes,
        "NonZero": selecting.non_zero,
        "OneHot": selecting.one_hot,
        "Pad": moving.padded,
        "PRelu": moving.like(0),
        "Range": selecting.ranged,
        "Reshape": moving.reshaped,
        "Resize": sizing.resized,
        "STFT": sizing.short_transforms,
        "ScatterElements": moving.like(0),
        "ScatterND": moving.like(0),
        "Slice": selecting.sliced,
        "Split": moving.split,
        "Squeeze": moving.squeezed,
        "StringNormalizer": selecting.normalized_strings,
        "StringSplit": selecting.split_strings,
        "Tile": moving.tiled,
        "TopK": selecting.top,
        "Unique": selecting.unique,
        "Unsqueeze": moving.unsqueezed,
        "Upsample": sizing.resized,
    }
)
"""By the operator of ONNX's default domain."""

SEARCHING: Final = frozenset({"BeamSearch", "WhisperBeamSearch"})
GENERATING: Final = SEARCHING | {"GreedySearch", "Sampling"}
"""Operators of com.microsoft that run a decoder, a graph, until a text ends."""

MICROSOFT_RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {
        "BeamSearch": sizing.searched,
        "BifurcationDetector": sizing.merged_tokens,
        "ConvTransposeWithDynamicPads": sizing.transposed_convolution,
        "CropAndResize": sizing.regions,
        "DynamicTimeWarping": sizing.path,
        "GreedySearch": sizing.generated,
        "Pad": moving.padded,
        "Range": sizing.counted,
        "Sampling": sizing.generated,
        "Tokenizer": selecting.tokens,
        "Unique": selecting.unique_numbers,
        "WhisperBeamSearch": sizing.searched,
    }
)
"""By the operator of onnxruntime's domain, com.microsoft."""


def rule_of(node: Node) -> Rule | None:
    """The rule of a node's operator; ``None``: it has none."""
    if node.domain == MICROSOFT:
        return MICROSOFT_RULES.get(node.op_type)
    return RULES.get(node.onnx_op)


ALL_ELEMENTS: Final = frozenset(
    "Abs Cast Ceil Clip Elu Erf Exp Flatten Floor Gelu HardSigmoid HardSwish Identity IsNaN "
    "LeakyRelu Log LogSoftmax Neg Not Reciprocal Relu Reshape Round Selu Sigmoid Sign Softmax "
    "Softplus Sqrt Squeeze Tanh Transpose Unsqueeze".split()
)
"""Operators whose output has exactly the elements of their first input."""
