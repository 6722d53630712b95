"""Classical models of the ai.onnx.ml domain: their weights are attributes, and are not trained."""

from onnxmem.ops.formulas import (
    multiply_add,
    num_elements,
    one_per_element,
    per_element,
    shape_at,
    times,
)
from onnxmem.ops.spec import Call, Formula, OpSpec, nothing, unknown


def _linear_macs(output: int) -> Formula:
    """X: [N, C] times coefficients [C, targets] -> [N, targets]."""

    def formula(call: Call) -> int | None:
        shape = shape_at(call)
        return times(shape[-1] if shape else None, num_elements(call.output_at(output)))

    return formula


def _ml(
    op_type: str,
    *outputs: str,
    inputs: tuple[str, ...] = ("X",),
    flops: Formula = unknown,
    macs: Formula = nothing,
    inplace: bool = False,
) -> OpSpec:
    return OpSpec(
        op_type=op_type,
        domain="ai.onnx.ml",
        inputs=inputs,
        outputs=outputs,
        may_inplace=((inputs[0], outputs[0]),) if inplace else (),
        differentiable=False,
        macs=macs,
        flops=flops,
        source="onnxruntime 1.31.1 CPU kernel; ONNX-ML operator document",
    )


OPS = (
    _ml("Scaler", "Y", flops=per_element(2), inplace=True),  # (X - offset) * scale
    _ml("Normalizer", "Y", inplace=True),
    _ml("Binarizer", "Y", flops=one_per_element),  # a comparison each
    _ml("Imputer", "Y", flops=one_per_element),  # a comparison each
    _ml("LinearRegressor", "Y", macs=_linear_macs(0), flops=multiply_add(_linear_macs(0))),
    _ml("LinearClassifier", "Y", "Z", macs=_linear_macs(1), flops=multiply_add(_linear_macs(1))),
    _ml("SVMRegressor", "Y", macs=unknown),
    _ml("SVMClassifier", "Y", "Z", macs=unknown),
    _ml("TreeEnsemble", "Y", inplace=True),
    _ml("TreeEnsembleRegressor", "Y", inplace=True),
    _ml("TreeEnsembleClassifier", "Y", "Z"),
    _ml("ArrayFeatureExtractor", "Z", inputs=("X", "Y"), flops=nothing),
    _ml("CastMap", "Y", flops=nothing),
    _ml("CategoryMapper", "Y", flops=nothing),
    _ml("DictVectorizer", "Y", flops=nothing),
    _ml("FeatureVectorizer", "Y", inputs=("*X",), flops=nothing),
    _ml("LabelEncoder", "Y", flops=nothing),
    _ml("OneHotEncoder", "Y", flops=nothing),
    _ml("ZipMap", "Z", flops=nothing),
)
