"""Constants, control flow, sequences, optionals, random numbers and text.

The branches of an If compute and save for backward what their nodes do. The number of a loop's
iterations depends on its inputs' values: its FLOPs and what it saves for backward are unknown.
"""

from onnxmem.ops.formulas import one_per_element
from onnxmem.ops.spec import Formula, OpSpec, nothing, unknown


def _no_gradient(
    op_type: str, inputs: tuple[str, ...], *outputs: str, flops: Formula = nothing
) -> OpSpec:
    """Outputs that do not depend on a tensor with a gradient: constants, shapes, strings."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=outputs,
        differentiable=False,
        flops=flops,
        source="ONNX operator document: no gradient",
    )


def _loop(op_type: str, inputs: tuple[str, ...], output: str) -> OpSpec:
    """A body of which every iteration saves tensors of its own."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
        saved_extra_bytes=unknown,
        macs=unknown,
        flops=unknown,
        source="ONNX operator document: iterations depend on the data",
    )


def _container(op_type: str, inputs: tuple[str, ...], output: str) -> OpSpec:
    """Insert tensors into a sequence or an optional, or extract them, as their gradients are."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
        source="ONNX operator document: moves tensors, computes nothing",
    )


OPS = (
    _no_gradient("Constant", (), "output"),
    _no_gradient("ConstantOfShape", ("input",), "output"),
    _no_gradient("Shape", ("data",), "shape"),
    _no_gradient("Size", ("data",), "size"),
    _no_gradient("RandomNormal", (), "output", flops=one_per_element),
    _no_gradient("RandomNormalLike", ("input",), "output", flops=one_per_element),
    _no_gradient("RandomUniform", (), "output", flops=one_per_element),
    _no_gradient("RandomUniformLike", ("input",), "output", flops=one_per_element),
    _no_gradient("Bernoulli", ("input",), "output", flops=one_per_element),  # a comparison each
    # a search through running sums
    _no_gradient("Multinomial", ("input",), "output", flops=unknown),
    OpSpec(
        op_type="If",
        inputs=("cond",),
        outputs=("*outputs",),
        source="ONNX operator document: chooses a branch",
    ),
    _loop("Loop", ("M", "cond", "*v_initial"), "*v_final_and_scan_outputs"),
    _loop("Scan", ("*initial_state_and_scan_inputs",), "*final_state_and_scan_outputs"),
    _loop("SequenceMap", ("input_sequence", "*additional_inputs"), "*out_sequence"),
    _container("SequenceConstruct", ("*inputs",), "output_sequence"),
    _container("SequenceAt", ("input_sequence", "position"), "tensor"),
    _container("SequenceInsert", ("input_sequence", "tensor", "position"), "output_sequence"),
    _container("SequenceErase", ("input_sequence", "position"), "output_sequence"),
    _container("SplitToSequence", ("input", "split"), "output_sequence"),
    _container("ConcatFromSequence", ("input_sequence",), "concat_result"),
    _container("Optional", ("input",), "output"),
    _container("OptionalGetElement", ("input",), "output"),
    _no_gradient("SequenceEmpty", (), "output"),
    _no_gradient("SequenceLength", ("input_sequence",), "length"),
    _no_gradient("OptionalHasElement", ("input",), "output"),
    _no_gradient("StringConcat", ("X", "Y"), "Z"),
    _no_gradient("StringNormalizer", ("X",), "Y"),
    _no_gradient("StringSplit", ("X",), "Y", "Z"),
    _no_gradient("RegexFullMatch", ("X",), "Y"),
    _no_gradient("TfIdfVectorizer", ("X",), "Y", flops=unknown),  # counts and weights n-grams
    _no_gradient("ImageDecoder", ("encoded_stream",), "image", flops=unknown),  # the format decides
)
