"""Constants, control flow, sequences, optionals, random numbers and text.

The branches of an If compute and save for backward what their nodes do. The number of a loop's
iterations depends on its inputs' values: its FLOPs and what it saves for backward are unknown.
"""

from onnxmem.ops.formulas import one_per_element
from onnxmem.ops.spec import Formula, OpSpec, nothing, unknown


def _constant(
    op_type: str, inputs: tuple[str, ...], output: str, flops: Formula = nothing
) -> OpSpec:
    """An output that does not depend on a tensor with a gradient."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=(output,),
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


def _text(op_type: str, inputs: tuple[str, ...], *outputs: str, flops: Formula = nothing) -> OpSpec:
    """Operators on strings: no numbers, no gradient."""
    return OpSpec(
        op_type=op_type,
        inputs=inputs,
        outputs=outputs,
        differentiable=False,
        flops=flops,
        source="ONNX operator document: no gradient",
    )


OPS = (
    _constant("Constant", (), "output"),
    _constant("ConstantOfShape", ("input",), "output"),
    _constant("Shape", ("data",), "shape"),
    _constant("Size", ("data",), "size"),
    _constant("RandomNormal", (), "output", one_per_element),
    _constant("RandomNormalLike", ("input",), "output", one_per_element),
    _constant("RandomUniform", (), "output", one_per_element),
    _constant("RandomUniformLike", ("input",), "output", one_per_element),
    _constant("Bernoulli", ("input",), "output", one_per_element),  # a comparison each
    _constant("Multinomial", ("input",), "output", unknown),  # a search through running sums
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
    _constant("SequenceEmpty", (), "output"),
    _constant("SequenceLength", ("input_sequence",), "length"),
    _constant("OptionalHasElement", ("input",), "output"),
    _text("StringConcat", ("X", "Y"), "Z"),
    _text("StringNormalizer", ("X",), "Y"),
    _text("StringSplit", ("X",), "Y", "Z"),
    _text("RegexFullMatch", ("X",), "Y"),
    _text("TfIdfVectorizer", ("X",), "Y", flops=unknown),  # counts and weights n-grams
    _text("ImageDecoder", ("encoded_stream",), "image", flops=unknown),  # the format decides
)
