"""Reading and writing elements by index, and the searches that make indices.

Indices are kept for the backward pass; the data mostly are not, for its gradient needs their shape
alone. What a search computes depends on its data: unknown.
"""

from onnxmem.ops.spec import OpSpec, Saved, unknown


def _scatter(op_type: str, since_version: int = 1, *, inplace: bool) -> OpSpec:
    """Overwrite elements of a copy of the data.

    Without a reduction or with ``add`` the indices are enough; ``mul``, ``min`` and ``max`` read
    data, updates and output as well, which is not told here.
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


OPS = (
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
        saved=(Saved("data"), Saved("indices")),  # ddata = 0, plus dY at indices; keeps data too
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
