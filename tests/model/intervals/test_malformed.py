"""Nodes that no runtime accepts: their rules find nothing, and stop nothing."""

from random import Random

import onnx
import pytest
from graphs import model_of
from model.intervals.test_rules import CASES, SEQUENCE_CASES, model_with
from onnx import helper

import onnxmem
from onnxmem.errors import OnnxmemError

BODIES = [*(body for operator, body, _ in CASES if operator != "Upsample")]
BODIES += [body for body, _ in SEQUENCE_CASES]
OPERATORS = sorted({operator for operator, _, _ in CASES})
INTEGERS = (-(2**63), -9, -1, 0, 1, 5, 2**31, 2**62)


def malformed(seed: int) -> onnx.ModelProto:
    """A valid model with some inputs, attributes, operators or weights replaced."""
    draws = Random(seed)  # noqa: S311 - no secret
    model = model_with(draws.choice(BODIES))
    names = [name for node in model.graph.node for name in node.output]
    names += [value.name for value in model.graph.input]
    for _ in range(draws.randint(1, 3)):
        node = draws.choice(model.graph.node)
        match draws.randrange(6):
            case 0:
                del node.input[draws.randint(0, len(node.input)) :]
            case 1 if node.input:
                node.input[draws.randrange(len(node.input))] = draws.choice(["", *names])
            case 2:
                node.input.append(draws.choice(names))
            case 3:
                node.op_type = draws.choice(OPERATORS)
            case 4 if not any(each.name == "axis" for each in node.attribute):
                node.attribute.append(helper.make_attribute("axis", draws.choice(INTEGERS)))
            case _:
                weight = draws.choice(model.graph.initializer)
                for index in range(len(weight.int64_data)):
                    weight.int64_data[index] = draws.choice(INTEGERS)
    return model


@pytest.mark.parametrize("first", range(0, 200, 100))
def test_a_malformed_node_stops_nothing(first: int) -> None:
    for seed in range(first, first + 100):
        try:
            analysis = onnxmem.analyze(malformed(seed))
            found = analysis.to_dict()
        except OnnxmemError:
            continue
        assert found["status"] in {"ok", "partial"}


def test_a_rank_beyond_the_bound_has_no_ends() -> None:
    """A file of a hundred bytes may ask for a million axes at once."""
    text = "agraph (float[2] x, int64[10000000] axes) => (float[K] y) {y = Unsqueeze(x, axes)}"
    found = onnxmem.analyze(model_of(text))
    assert found.status == "partial"


def test_a_constant_beyond_floats_warns_of_nothing() -> None:
    text = """agraph (float[2,3] x) => (y) <float[1] c = {1000.0}> {
        e = Exp(c)  y = NonZero(x)  z = Add(e, c) }"""
    assert onnxmem.analyze(model_of(text)).to_dict()["status"] == "partial"
