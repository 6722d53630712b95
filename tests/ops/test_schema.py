"""Every record against ONNX's own operator schemas and onnxruntime's kernel registrations."""

import json
from collections.abc import Callable, Iterator

import onnx
import onnx.defs
import pytest
from paths import DATA

from onnxmem.ops.registry import OPERATORS, UNKNOWN, lookup
from onnxmem.ops.spec import OpSpec

Option = onnx.defs.OpSchema.FormalParameterOption

SPECS = [spec for versions in OPERATORS.values() for spec in versions]

ONNX_DOMAINS = ("", "ai.onnx.ml")

ONNX_VERSION = tuple(int(part) for part in onnx.__version__.split(".")[:2])

NEWEST = {
    domain: max(
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == domain
    )
    for domain in ONNX_DOMAINS
}

KNOWN_TO_ONNXRUNTIME_ALONE = {
    ("", "ParametricSoftplus"),
    ("", "ScaledTanh"),
    ("", "SimplifiedLayerNormalization"),
}

INPLACE = json.loads((DATA / "onnxruntime_inplace_cpu.json").read_text(encoding="utf-8"))["rows"]


def title(spec: OpSpec) -> str:
    return f"{spec.domain}::{spec.op_type}-{spec.since_version}"


def schema_of(spec: OpSpec) -> onnx.defs.OpSchema | None:
    """Find the newest schema of which the record speaks: the last before the next record.

    ``None`` if it is newer than the installed onnx.
    """
    later = [
        other.since_version
        for other in OPERATORS[spec.domain, spec.op_type]
        if other.since_version > spec.since_version
    ]
    newest = min(later) - 1 if later else NEWEST[spec.domain]
    if ONNX_VERSION < (1, 23) and not onnx.defs.has(spec.op_type, newest, spec.domain):
        return None
    return onnx.defs.get_schema(spec.op_type, newest, spec.domain)


def is_onnx(spec: OpSpec) -> bool:
    key = (spec.domain, spec.op_type)
    return spec.domain in ONNX_DOMAINS and key not in KNOWN_TO_ONNXRUNTIME_ALONE


def schema_names(parameters: list[onnx.defs.OpSchema.FormalParameter]) -> list[str]:
    return ["*" * (each.option == Option.Variadic) + each.name for each in parameters]


def named_inputs(spec: OpSpec) -> Iterator[str]:
    yield from (name for name, _ in (*spec.alias, *spec.may_inplace, *spec.autograd_view))
    yield from (*spec.parameters, *spec.buffers, *spec.quantized)
    yield from (saved.if_grad for saved in spec.saved if saved.if_grad is not None)


# One test for each rule: it names every record that breaks the rule.


def breaking(keeps: Callable[[OpSpec], bool]) -> list[str]:
    """Records that violate a rule."""
    return [title(spec) for spec in SPECS if not keeps(spec)]


def test_names_are_those_of_the_schema_in_order() -> None:
    for spec in SPECS:
        if is_onnx(spec) and (schema := schema_of(spec)) is not None:
            inputs, outputs = schema_names(list(schema.inputs)), schema_names(list(schema.outputs))
            assert list(spec.inputs) == inputs[: len(spec.inputs)], title(spec)
            assert list(spec.outputs) == outputs[: len(spec.outputs)], title(spec)


def test_facts_name_inputs_and_outputs_of_the_record() -> None:
    for spec in SPECS:
        inputs = {name.lstrip("*") for name in spec.inputs}
        outputs = {name.lstrip("*") for name in spec.outputs}
        written = {name for _, name in (*spec.alias, *spec.may_inplace, *spec.autograd_view)}
        assert set(named_inputs(spec)) <= inputs, title(spec)
        assert written <= outputs, title(spec)
        assert {saved.name for saved in spec.saved} <= inputs | outputs, title(spec)


def test_only_the_last_name_is_variadic() -> None:
    def keeps(spec: OpSpec) -> bool:
        return not any(name.startswith("*") for name in (*spec.inputs[:-1], *spec.outputs[:-1]))

    assert breaking(keeps) == []


def test_every_record_has_a_source() -> None:
    assert breaking(lambda spec: bool(spec.source)) == []


def test_an_operator_without_gradient_saves_nothing() -> None:
    assert breaking(lambda spec: spec.differentiable or not (spec.saved or spec.parameters)) == []


def test_a_tensor_is_saved_once_for_each_gradient_that_reads_it() -> None:
    def names_each_once(spec: OpSpec) -> bool:
        always = {saved.name for saved in spec.saved if saved.if_grad is None}
        is_certain = all(saved.if_grad is None or saved.name not in always for saved in spec.saved)
        return is_certain and len(spec.saved) == len(set(spec.saved))

    assert breaking(names_each_once) == []


def test_an_input_is_of_one_kind() -> None:
    assert breaking(lambda s: is_distinct([*s.parameters, *s.buffers, *s.quantized])) == []


def is_distinct(names: list[str]) -> bool:
    return len(names) == len(set(names))


@pytest.mark.parametrize("domain", ONNX_DOMAINS)
def test_every_onnx_operator_has_a_record(domain: str) -> None:
    known = {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if schema.domain == domain
    }
    assert {name for name in known if lookup(name, domain) is UNKNOWN} == set()


def test_five_operators_are_views() -> None:
    views = {op for (domain, op), (*_, spec) in OPERATORS.items() if spec.alias and not domain}
    assert views == {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}


def test_a_view_is_a_view_in_pytorch_too() -> None:
    assert all(set(spec.alias) <= set(spec.autograd_view) for spec in SPECS)
    strided = {spec.op_type for spec in SPECS if spec.autograd_view and not spec.alias}
    assert strided == {"Expand", "Slice", "Split", "Transpose"}


@pytest.mark.parametrize("domain", ONNX_DOMAINS)
def test_inputs_are_overwritten_where_onnxruntime_overwrites_them(domain: str) -> None:
    for op_type in [op_type for its_domain, op_type in OPERATORS if its_domain == domain]:
        rules = [
            rule
            for each_domain, each_type, *rule in INPLACE
            if (each_domain, each_type) == (domain, op_type)
        ]
        for opset in range(1 if domain else 7, NEWEST[domain] + 1):
            if (domain, op_type) not in KNOWN_TO_ONNXRUNTIME_ALONE and not onnx.defs.has(
                op_type, opset, domain
            ):
                continue
            expected = {
                (input_, output)
                for input_, output, since, until in rules
                if since <= opset <= (until or opset)
            }
            spec = lookup(op_type, domain, opset)
            found = {
                (spec.input_index(input_), spec.output_index(output))
                for input_, output in spec.may_inplace
            }
            assert found == expected, (op_type, opset)


def test_every_overwriting_kernel_has_a_record() -> None:
    assert {(domain, op) for domain, op, *_ in INPLACE} <= set(OPERATORS)
