"""Views, and operators that move, gather or scatter elements: nothing is computed.

Five operators are views in every runtime: their output is their input's bytes. Four more are
strided views in PyTorch, where onnxruntime copies. A weight that one of these reads is a trained
parameter, as one that a layer reads is: a class token, a table of positions.

Indices are saved for backward; the data mostly are not, for the gradient needs only their shape.
The FLOPs of a search depend on its data: unknown.
"""

from onnxmem.ops.formulas import one_per_element, one_per_input_element
from onnxmem.ops.spec import Gradient, GradientRule, OpSpec, Saved, unknown


def _view(
    op_type: str, inputs: tuple[str, ...], output: str, rule: GradientRule | None = None
) -> OpSpec:
    """A view of the first input; with a ``rule`` for its gradient, a view in PyTorch only."""
    pair = ((inputs[0], output.lstrip("*")),)
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
        alias=pair if rule is None else (),
        autograd_view=pair,
        gradients=() if rule is None else (Gradient(inputs[0], rule),),
        parameters=inputs[:1],
        source="torch permute, slice, split, expand: strided views"
        if rule
        else "onnxruntime 1.31.1 KernelDef Alias(0, 0); torch view",
    )


def _copy(
    op_type: str, inputs: tuple[str, ...], output: str, torch: str, *, trained: bool = False
) -> OpSpec:
    """Copy elements to new positions; the gradient is copied back, and reads no tensor.

    ``trained``: networks apply it to a parameter itself.
    """
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
        parameters=(inputs[0].lstrip("*"),) if trained else (),
        source=f"torch {torch}",
    )


_MOVES = (
    _view("Reshape", ("data", "shape"), "reshaped"),  # dX = reshape(dY)
    _view("Flatten", ("input",), "output"),  # dX = reshape(dY)
    _view("Squeeze", ("data", "axes"), "squeezed"),  # dX = reshape(dY)
    _view("Unsqueeze", ("data", "axes"), "expanded"),  # dX = reshape(dY)
    _view("Identity", ("input",), "output"),  # dX = dY
    _view("Transpose", ("data",), "transposed", GradientRule.PERMUTED),  # dX = transpose(dY)
    # dX = 0 with dY in the slice, as large as X
    _view("Slice", ("data", "starts", "ends", "axes", "steps"), "output", GradientRule.NEW),
    _view("Split", ("input", "split"), "*outputs", GradientRule.NEW),  # dX = concat(dY...)
    _view(
        "Expand", ("input", "shape"), "output", GradientRule.NEW
    ),  # dX = sum(dY) over the new axes
    OpSpec(
        op_type="Concat",
        inputs=("*inputs",),
        outputs=("concat_result",),
        parameters=("inputs",),
        gradients=(Gradient("inputs", GradientRule.SLICED),),  # each dX = its part of dY
        source="torch cat",
    ),
    _copy("Tile", ("input", "repeats"), "output", "repeat", trained=True),  # dX = sum(dY) of tiles
    # dX = the middle of dY; the reflect and edge modes save X as well, which is left out here
    _copy("Pad", ("data", "pads", "constant_value", "axes"), "output", "constant_pad_nd"),
    # dX = dY, padded and cut the other way
    _copy("CenterCropPad", ("input_data", "shape"), "output_data", "slice and constant_pad_nd"),
    _copy("DepthToSpace", ("input",), "output", "pixel_shuffle"),  # dX = space_to_depth(dY)
    _copy("SpaceToDepth", ("input",), "output", "pixel_unshuffle"),  # dX = depth_to_space(dY)
    OpSpec(
        op_type="Trilu",
        inputs=("input", "k"),
        outputs=("output",),
        may_inplace=(("input", "output"),),
        source="onnxruntime 1.31.1 CPU kernel; torch tril",  # dX = trilu(dY)
    ),
    OpSpec(
        op_type="ReverseSequence",
        inputs=("input", "sequence_lens"),
        outputs=("Y",),
        saved=(Saved("sequence_lens"),),  # dX = reverse_sequence(dY, sequence_lens)
        source="ONNX operator document",
    ),
    OpSpec(
        op_type="Col2Im",
        inputs=("input", "image_shape", "block_shape"),
        outputs=("output",),
        flops=one_per_input_element,  # overlapping blocks add up; dX = im2col(dY)
        source="torch derivatives.yaml: col2im",
    ),
    OpSpec(
        op_type="OneHot",
        inputs=("indices", "depth", "values"),
        outputs=("output",),
        differentiable=False,
        source="ONNX operator document: its data are indices",
    ),
    OpSpec(
        op_type="NonZero",
        inputs=("X",),
        outputs=("Y",),
        differentiable=False,
        flops=one_per_input_element,  # a comparison each
        source="ONNX operator document: its result is indices",
    ),
    OpSpec(
        op_type="EyeLike",
        inputs=("input",),
        outputs=("output",),
        differentiable=False,
        source="ONNX operator document: reads the shape alone",
    ),
    OpSpec(
        op_type="Range",
        inputs=("start", "limit", "delta"),
        outputs=("output",),
        differentiable=False,
        flops=one_per_element,  # start + i * delta, by repeated addition
        source="ONNX operator document; onnxruntime 1.31.1 CPU kernel",
    ),
)


def _scatter(op_type: str, since_version: int = 1, *, inplace: bool) -> OpSpec:
    """Overwrite elements of a copy of the data.

    Without a reduction or with ``add`` the indices are enough; ``mul``, ``min`` and ``max`` read
    data, updates and output as well, which is left out here.
    """
    return OpSpec(
        op_type=op_type,
        since_version=since_version,
        inputs=("data", "indices", "updates"),
        outputs=("output",),
        may_inplace=(("data", "output"),) if inplace else (),
        saved=(Saved("indices"),),  # ddata = dY, 0 at indices; dupdates = dY[indices]
        source="onnxruntime 1.31.1 CPU kernel; torch derivatives.yaml: scatter, index_put",
    )


_INDEXING = (
    OpSpec(
        op_type="Gather",
        inputs=("data", "indices"),
        outputs=("output",),
        parameters=("data",),  # an embedding
        saved=(Saved("indices"),),  # ddata = 0, plus dY at indices: as large as data
        source="torch derivatives.yaml: embedding, index_select",
    ),
    OpSpec(
        op_type="GatherElements",
        inputs=("data", "indices"),
        outputs=("output",),
        parameters=("data",),
        saved=(Saved("data"), Saved("indices")),  # ddata = 0, plus dY at indices; saves data too
        source="torch derivatives.yaml: gather",
    ),
    OpSpec(
        op_type="GatherND",
        inputs=("data", "indices"),
        outputs=("output",),
        parameters=("data",),  # a table of relative positions
        saved=(Saved("indices"),),  # ddata = 0, plus dY at indices
        source="torch derivatives.yaml: index",
    ),
    _scatter("ScatterElements", inplace=True),
    _scatter("ScatterND", inplace=False),
    _scatter("Scatter", inplace=True),
    _scatter("Scatter", 11, inplace=False),  # deprecated: no kernel
    OpSpec(
        op_type="TensorScatter",
        inputs=("past_cache", "update", "write_indices"),
        outputs=("present_cache",),
        may_inplace=(("past_cache", "present_cache"),),
        saved=(Saved("write_indices"),),  # dpast = dY, 0 where written; dupdate = dY where written
        source="onnxruntime 1.31.1 CPU kernel",
    ),
    OpSpec(
        op_type="Compress",
        inputs=("input", "condition"),
        outputs=("output",),
        saved=(Saved("condition"),),  # dX = 0, dY where condition
        source="ONNX operator document",
    ),
    OpSpec(
        op_type="TopK",
        inputs=("X", "K"),
        outputs=("Values", "Indices"),
        saved=(Saved("Indices"),),  # dX = 0, plus dY at Indices
        flops=unknown,
        source="torch derivatives.yaml: topk",
    ),
    OpSpec(
        op_type="Unique",
        inputs=("X",),
        outputs=("Y", "indices", "inverse_indices", "counts"),
        differentiable=False,
        flops=unknown,
        source="torch derivatives.yaml: _unique2, not differentiable",
    ),
    OpSpec(
        op_type="NonMaxSuppression",
        inputs=(
            "boxes",
            "scores",
            "max_output_boxes_per_class",
            "iou_threshold",
            "score_threshold",
        ),
        outputs=("selected_indices",),
        differentiable=False,
        flops=unknown,
        source="ONNX operator document: its result is indices",
    ),
)

OPS = (*_MOVES, *_INDEXING)
