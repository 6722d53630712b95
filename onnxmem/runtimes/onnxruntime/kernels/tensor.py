"""Copies and views, resizing, sequences and control flow.

Copies allocate nothing; ScatterElements and GatherND have offsets in vectors outside the arena.
Resize and Upsample allocate the positions and weights of each output row and column, and the result
of the first pass of an antialiasing filter; nearest and cubic kernels allocate nothing without
``antialias``. Scan has two buffers for each state between its iterations. If and Loop allocate
nothing themselves; the nodes of their subgraphs have scratch of their own.
"""

from collections.abc import Iterable
from math import ceil

from onnxmem.ops.spec import Dims
from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    ALWAYS,
    FIRST,
    FLOAT_BYTES,
    Kernel,
    KernelCall,
    UnknownError,
    axis_of,
    nothing,
    product,
    since,
)

_IMAGE = 16
"""Bytes of two 32-bit indices and two weights, for an output row or column of an image."""
_VOLUME = 24
"""Bytes of two 64-bit indices and two weights, for an output position along an axis of a volume."""
_SUPPORT = {"linear": 2, "cubic": 4}
"""Input positions that the filter covers at scale 1."""
_SCALES = 2
"""Index of Resize's ``scales``."""
_FIRST_SCAN_OPSET = 9
"""Version before which Scan had a batch of sequences."""
_NUM_STATE_BUFFERS = 2


def _resized(call: KernelCall) -> tuple[int, ...]:
    """X: [*D] -> Y: [*D']: nothing if no dim changes."""
    mode, image, result = call.text("mode", "nearest"), call.dims(0), call.out_dims()
    if image == result or mode not in _SUPPORT:
        return ()
    if call.integer("antialias", 0):
        return tuple(_filtered(call, _SUPPORT[mode], image, result))
    return _interpolated(image, result) if mode == "linear" else ()


def _interpolated(image: Dims, result: Dims) -> tuple[int, ...]:
    """Rows and columns of an image, channels first or last; else positions along three axes."""
    axes = _image_axes(image, result)
    # SetupUpsampleBilinear, SetupUpsampleTrilinear: indices and weights in one block. They depend
    # on one coordinate each, hence a sum, not a product, of the dims.
    if axes:
        return (_IMAGE * sum(result[axis] for axis in axes),)
    return (_VOLUME * sum(result[-3:]),)


def _image_axes(image: Dims, result: Dims) -> tuple[int, ...]:
    """The axes of height and width; none if the input is not an image."""
    rank = len(image)
    if rank == 2:  # noqa: PLR2004 - one image of one channel
        return (0, 1)
    if rank != 4:  # noqa: PLR2004 - images with channels
        return ()
    return (1, 2) if image[1:3] != result[1:3] and image[3] == result[3] else (2, 3)


def _filtered(call: KernelCall, support: int, image: Dims, result: Dims) -> Iterable[int]:
    """A window of weights for each output position of each axis, then one image with only its width
    resized, in the type of the input.
    """
    axes = _image_axes(image, result)
    # UpsampleBaseAntiAlias: SetupUpsampleFilterAntiAlias makes the weights of the width before
    # those of the height. Bounds of windows are in vectors outside the arena.
    for axis in axes[::-1]:
        # Enlarging keeps the support of scale 1; reducing covers all elements that an output
        # replaces.
        window = ceil(support / 2 * max(1 / _scale(call, axis), 1.0)) * 2 + 1
        yield FLOAT_BYTES * window * result[axis]
    rows, columns = axes
    channels = product(image[1:]) // (image[rows] * image[columns])
    yield call.element_bytes() * channels * image[rows] * result[columns]


def _scale(call: KernelCall, axis: int) -> float:
    """The scale of an axis: the node's, or output over input size."""
    if not call.has(_SCALES) or call.dims(_SCALES) == (0,):
        if call.text("keep_aspect_ratio_policy", "stretch") != "stretch":
            raise UnknownError
        return call.out_dims()[axis] / call.dims(0)[axis]
    rank = len(call.dims(0))
    axes = [axis_of(each, rank) for each in call.integers("axes", range(rank))]
    return float(call.values(_SCALES)[axes.index(axis)])


def _scan(call: KernelCall) -> tuple[int, ...]:
    """state_0, ..., scan_0: [T, *D], ...: the T - 1 states between the input and the output, which
    alternate between two buffers. Scans along other axes than 0 are unknown.
    """
    num_states = len(call.op_call.inputs) - call.integer("num_scan_inputs", 0)
    axes = (*call.integers("scan_input_axes"), *call.integers("scan_output_axes"))
    if not call.is_at_least(_FIRST_SCAN_OPSET) or any(axes):
        raise UnknownError
    between = max(call.dims(num_states)[0] - 1, 0)
    # The first iteration reads the node's input and the last writes its output, so that T = 2 needs
    # one buffer and more iterations two, however many they are.
    sizes = (call.size_bytes(index) for index in range(num_states))
    return tuple(size for size in sizes for _ in range(min(between, _NUM_STATE_BUFFERS)))


_TENSOR = "core/providers/cpu/tensor: copies and views"
_TYPES_ONLY = "get_all_opkernel_def() of onnxruntime 1.31.1: types only"

KERNELS = (
    Kernel(
        "Flatten Identity Reshape Squeeze Unsqueeze",
        _TENSOR,
        nothing,
        cuda_aliases=FIRST,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.ExpandDims",
        "contrib_ops/cpu/expand_dims.h: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "AffineGrid Col2Im Crop DepthToSpace EyeLike GridSample NonZero Range Size SpaceToDepth"
        " Tile",
        _TENSOR,
        nothing,
    ),
    Kernel("OneHot Unique", _TENSOR, nothing, bfloat16=since(28)),
    Kernel("Pad", _TENSOR, nothing, bfloat16=since(21)),
    Kernel(
        "Compress Concat ConstantOfShape DynamicSlice GatherElements GatherND ReverseSequence"
        " Scatter ScatterElements Shape Slice Split TensorScatter Transpose",
        _TENSOR,
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel("Gather", _TENSOR, nothing, float16=ALWAYS, bfloat16=ALWAYS, reads_rows=True),
    Kernel("ScatterND", _TENSOR, nothing, cuda_may_inplace=FIRST, float16=ALWAYS, bfloat16=ALWAYS),
    Kernel("Expand", _TENSOR, nothing, float16=since(1)),
    Kernel("Trilu com.microsoft.Trilu", _TENSOR, nothing, cuda_may_inplace=FIRST),
    Kernel(
        "com.microsoft.GatherND com.microsoft.UnfoldTensor",
        "contrib_ops/cpu: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "com.microsoft.GatherPacked",
        "contrib_ops/cpu, gather_packed.cc: Compute; measured only",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
        reads_rows=True,
    ),
    Kernel("com.microsoft.GatherBlockQuantized", _TYPES_ONLY, float16=ALWAYS, reads_rows=True),
    Kernel(
        "com.microsoft.BifurcationDetector com.microsoft.CropAndResize"
        " com.microsoft.DynamicTimeWarping com.microsoft.GridSample com.microsoft.NGramRepeatBlock"
        " com.microsoft.Pad com.microsoft.QLinearConcat com.microsoft.Range com.microsoft.Unique",
        "contrib_ops/cpu: Compute",
        nothing,
    ),
    Kernel("Resize", "core/providers/cpu/tensor/upsample.cc, upsample_antialias.h", _resized),
    Kernel("Upsample", "core/providers/cpu/tensor/upsample.cc: BaseCompute", _resized),
    Kernel(
        "Optional OptionalGetElement",
        "core/providers/cpu/optional/optional_ops.cc: Compute",
        nothing,
        aliases=FIRST,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "OptionalHasElement",
        "core/providers/cpu/optional/optional_ops.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "ConcatFromSequence SequenceAt SequenceConstruct SequenceEmpty SequenceErase"
        " SequenceInsert SequenceLength",
        "core/providers/cpu/sequence/sequence_ops.cc: Compute",
        nothing,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
    Kernel(
        "SplitToSequence",
        "core/providers/cpu/sequence/sequence_ops.cc: SplitToSequence::ComputeImpl",
        nothing,
        float16=since(1),
    ),
    Kernel("If Loop", "core/providers/cpu/controlflow", nothing, float16=ALWAYS, bfloat16=ALWAYS),
    Kernel(
        "Scan",
        "core/providers/cpu/controlflow/scan_utils.cc: LoopStateVariable",
        _scan,
        float16=ALWAYS,
        bfloat16=ALWAYS,
    ),
)
