"""What an operator still lacks: record, shapes, in-place pairs, what is saved for backward, FLOPs.

``python tests/ops/test_new_operator.py com.microsoft::Gelu`` prints the list for one operator.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx.defs
import onnx_shape_inference
import pytest

from onnxmem.model.shapes.microsoft import _BLOCKED, _EQUIVALENTS, _RULES, MICROSOFT, NCHWC
from onnxmem.model.shapes.onnx_rules import _RULES as ONNX_RULES
from onnxmem.ops.registry import OPERATORS, UNKNOWN, lookup
from onnxmem.ops.spec import OpSpec, nothing, unknown

KERNELS = Path(__file__).parents[1] / "data" / "onnxruntime_inplace_cpu.json"

onnx_shape_inference.registry.collect()
OWN_RULES = (
    {(MICROSOFT, op_type) for op_type in _RULES}
    | {(NCHWC, op_type) for op_type in _BLOCKED}
    | _EQUIVALENTS.keys()
    | ONNX_RULES.keys()
)

COUNT_FOLLOWS_FROM_DATA = frozenset(
    "ImageDecoder Loop MaxRoiPool MelWeightMatrix Multinomial NonMaxSuppression Scan SequenceMap "
    "TfIdfVectorizer TopK Unique ai.onnx.ml::Normalizer ai.onnx.ml::SVMClassifier "
    "ai.onnx.ml::SVMRegressor ai.onnx.ml::TreeEnsemble ai.onnx.ml::TreeEnsembleClassifier "
    "ai.onnx.ml::TreeEnsembleRegressor ai.onnx.preview::FlexAttention "
    "com.microsoft::QMoE".split()
)
"""Searches, loops and functions of an attribute: no formula of shapes gives their FLOPs."""

GRADIENT_READS_NOTHING = frozenset(
    "AffineGrid Col2Im CumSum DFT DequantizeLinear GlobalAveragePool Resize Upsample "
    "com.microsoft.nchwc::GlobalAveragePool com.microsoft.nchwc::Upsample com.microsoft::BiasAdd "
    "com.microsoft::DequantizeLinear".split()
)
"""Linear in their input: the gradient is the same operation on dY, into a new tensor."""

NO_SHAPES_YET = frozenset(
    "com.microsoft::DecoderMaskedSelfAttention com.microsoft::FusedMatMulActivation "
    "com.microsoft::NhwcConv".split()
)
"""No engine knows their outputs: a file's own ``value_info`` counts, and is marked as assumed."""


def title(domain: str, op_type: str) -> str:
    return f"{domain}::{op_type}" if domain else op_type


def lacks(op_type: str, domain: str) -> Iterator[str]:
    """What a contributor still has to write, and where."""
    name = title(domain, op_type)
    if not has_shapes(op_type, domain) and name not in NO_SHAPES_YET:
        where = "microsoft.py" if domain in {MICROSOFT, NCHWC} else "onnx_rules.py"
        yield f"shape: no engine has a rule; write one in _RULES of onnxmem/model/shapes/{where}"
    spec = lookup(op_type, domain)
    if spec is UNKNOWN:
        yield "record: none; add an OpSpec to its family in onnxmem/ops/"
        return
    yield from lacks_in_record(spec, name)
    yield from lacks_in_place(spec)


def lacks_in_record(spec: OpSpec, name: str) -> Iterator[str]:
    if not (spec.inputs or spec.outputs):
        yield "record: names neither inputs nor outputs"
    if spec.flops is unknown and name not in COUNT_FOLLOWS_FROM_DATA:
        yield "FLOPs: unknown; write flops=, or name it in COUNT_FOLLOWS_FROM_DATA"
    computes = spec.differentiable and spec.flops is not nothing
    says = spec.saved or spec.gradients or spec.saved_extra_bytes is not nothing
    if computes and not says and name not in GRADIENT_READS_NOTHING:
        yield "saved for backward: saved= and gradients= are empty; if the gradient reads nothing, "
        yield "    name it in GRADIENT_READS_NOTHING; if there is none, differentiable=False"


def lacks_in_place(spec: OpSpec) -> Iterator[str]:
    """Pairs that onnxruntime's newest CPU kernel overwrites and the record does not name."""
    found = {
        (spec.input_index(input_), spec.output_index(output))
        for input_, output in (*spec.may_inplace, *spec.alias)
    }
    for domain, op_type, input_, output, _, until in json.loads(KERNELS.read_text("utf-8"))["rows"]:
        is_newest = (domain, op_type) == (spec.domain, spec.op_type) and until is None
        if is_newest and (input_, output) not in found:
            yield f"in-place: onnxruntime writes output {output} over input {input_}; may_inplace="


def has_shapes(op_type: str, domain: str) -> bool:
    """Whether onnx, onnx-shape-inference or our own rules know the operator's outputs."""
    return (
        has_onnx_function(op_type, domain)
        or onnx_shape_inference.registry.has(domain, op_type)
        or (domain, op_type) in OWN_RULES
    )


def has_onnx_function(op_type: str, domain: str) -> bool:
    schemas = onnx.defs.get_all_schemas_with_history()
    return any(
        each.has_type_and_shape_inference_function
        for each in schemas
        if (each.name, each.domain) == (op_type, domain)
    )


@pytest.mark.parametrize("domain", sorted({domain for domain, _ in OPERATORS}))
def test_every_record_is_complete(domain: str) -> None:
    lacking = {
        op_type: found
        for each, op_type in OPERATORS
        if each == domain and (found := list(lacks(op_type, domain)))
    }
    assert lacking == {}


def test_an_operator_without_anything_lacks_a_shape_and_a_record() -> None:
    shape, record = lacks("NoSuchOperator", "com.example")
    assert (shape.partition(":")[0], record.partition(":")[0]) == ("shape", "record")


def test_an_empty_record_lacks_its_facts() -> None:
    spec = OpSpec(op_type="Relu", flops=unknown, source="test")
    parts = [line.partition(":")[0] for line in (*lacks_in_record(spec, "Op"),)]
    assert parts[:3] == ["record", "FLOPs", "saved for backward"]


def test_a_pair_that_the_kernel_overwrites_is_missed() -> None:
    spec = OpSpec(op_type="Relu", inputs=("X",), outputs=("Y",), source="test")
    assert [line.partition(":")[0] for line in lacks_in_place(spec)] == ["in-place"]


def test_exceptions_name_operators_with_a_record() -> None:
    names = COUNT_FOLLOWS_FROM_DATA | GRADIENT_READS_NOTHING | NO_SHAPES_YET
    assert names <= {title(domain, op_type) for domain, op_type in OPERATORS}


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        its_domain, _, its_name = asked.rpartition("::")
        lines = list(lacks(its_name, its_domain)) or ["nothing"]
        sys.stdout.write("\n".join([f"{asked} lacks:", *(f"  {line}" for line in lines), ""]))
