"""What numpy makes of shape arithmetic is what onnx's reference operators make of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.folding import by_reference, run

OPSETS = st.sampled_from([14, 18, 21])
REFUSED = "refused"
DTYPES = ("int64", "int32", "uint8", "bool", "float32")
Made = Array | str | None

numbers = st.integers(-3, 4)
dims = st.lists(st.integers(0, 3), max_size=3)


@st.composite
def arrays(draw: st.DrawFn, dtypes: Sequence[str] = DTYPES) -> Array:
    shape = draw(dims)
    size = int(np.prod(shape))
    elements = draw(st.lists(numbers, min_size=size, max_size=size))
    return np.array(elements, "int64").astype(draw(st.sampled_from(dtypes))).reshape(shape)


def lists(elements: st.SearchStrategy[int] = numbers) -> st.SearchStrategy[Array]:
    """What operators are told places and dims in: a list, seldom a number, seldom not of int64."""
    told = st.lists(elements, max_size=3).map(lambda each: np.array(each, "int64"))
    return st.one_of(told, told, told, arrays(("int64", "int32", "bool")))


@st.composite
def pairs(draw: st.DrawFn) -> list[Array]:
    """Two of one dtype, most of which broadcast."""
    one = draw(arrays())
    other = draw(st.one_of(arrays((one.dtype.name,)), arrays()))
    return [one, draw(st.sampled_from([other, one[::-1] if one.ndim else other]))]


OPERANDS = {
    "Cast": st.tuples(arrays()),
    "Concat": st.lists(arrays(("int64", "int64", "float32")), min_size=1, max_size=3),
    "ConstantOfShape": st.tuples(lists()),
    "Expand": st.tuples(arrays(), lists(st.integers(0, 3))),
    "Gather": st.tuples(arrays(), st.one_of(arrays(("int64", "int32")), lists())),
    "Identity": st.tuples(arrays()),
    "Not": st.tuples(arrays()),
    "Range": st.tuples(*[numbers.map(lambda n: np.array(n, "int64"))] * 3),
    "Reshape": st.tuples(arrays(), lists(st.integers(-1, 3))),
    "Slice": st.one_of(
        st.tuples(arrays(), lists(), lists()),
        st.tuples(arrays(), lists(), lists(), lists(st.integers(-2, 2))),
        st.tuples(arrays(), lists(), lists(), lists(st.integers(-2, 2)), lists()),
        st.tuples(arrays(), lists(), lists(), st.none(), lists()),
    ),
    "Squeeze": st.one_of(st.tuples(arrays()), st.tuples(arrays(), lists(st.integers(-3, 2)))),
    "Unsqueeze": st.one_of(st.tuples(arrays()), st.tuples(arrays(), lists(st.integers(-3, 3)))),
    "Where": st.tuples(arrays(("bool", "bool", "int64")), arrays(), arrays()),
    **{
        name: st.one_of(pairs(), pairs(), st.lists(arrays(), min_size=1, max_size=3))
        for name in (
            *("Add", "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"),
            *("Max", "Min", "Mul", "Or", "Sub"),
        )
    },
}
ATTRIBUTES: Mapping[str, Mapping[str, st.SearchStrategy[Any]]] = {
    "Cast": {"to": st.sampled_from([1, 6, 7, 9, 10])},
    "Concat": {"axis": st.integers(-3, 3)},
    "ConstantOfShape": {
        "value": st.sampled_from(
            [numpy_helper.from_array(np.array([7], d), "") for d in ("int64", "float32", "bool")]
        )
    },
    "Gather": {"axis": st.integers(-3, 3)},
    "Reshape": {"allowzero": st.integers(0, 1)},
}


def node_of(
    op_type: str,
    inputs: Sequence[Array | None],
    **attributes: Any,  # noqa: ANN401 - as onnx
) -> onnx.NodeProto:
    names = ["" if each is None else f"x{place}" for place, each in enumerate(inputs)]
    return helper.make_node(op_type, names, ["y"], **attributes)


def ours(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> Made:
    with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
        try:
            return run(node, inputs)
        except Exception:  # noqa: BLE001 - as the folder takes it
            return REFUSED


def references(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Made:
    values = {f"x{place}": each for place, each in enumerate(inputs) if each is not None}
    with np.errstate(divide="raise", invalid="raise", over="ignore", under="ignore"):
        try:
            return np.asarray(by_reference(node, values, [helper.make_opsetid("", opset)])[0])
        except Exception:  # noqa: BLE001 - as the folder takes it
            return REFUSED


def said(made: Made) -> object:
    return made if isinstance(made, str | None) else (made.dtype, made.shape, made.tolist())


@pytest.mark.parametrize("op_type", OPERANDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_it_is_what_the_reference_makes(op_type: str, data: st.DataObject) -> None:
    inputs = data.draw(OPERANDS[op_type])
    told = ATTRIBUTES.get(op_type, {})
    attributes = {name: data.draw(each) for name, each in told.items() if data.draw(st.booleans())}
    node = node_of(op_type, inputs, **attributes)
    made = ours(node, inputs)
    if made is not None:
        assert said(made) == said(references(node, inputs, data.draw(OPSETS)))


@pytest.mark.parametrize("op_type", OPERANDS)
def test_it_is_made_of_what_exporters_write(op_type: str) -> None:
    """Else the law above would hold of an operator that is always left to the reference."""
    two, flags = np.array([[2, 3]], "int64"), np.array([[True, False]])
    zero, place = np.array(0, "int64"), np.array([0], "int64")
    operands: dict[str, list[Array]] = {
        "Cast": [two],
        "Concat": [two, two],
        "ConstantOfShape": [two[0]],
        "Expand": [two, np.array([5, 2])],
        "Gather": [two, zero],
        "Identity": [two],
        "Not": [flags],
        "Range": [zero, zero + 5, zero + 2],
        "Reshape": [two, two[0] - two[0] + [1, 2]],
        "Slice": [two, place, place + 1],
        "Squeeze": [two, place],
        "Unsqueeze": [two, place],
        "Where": [flags, two, two],
        "And": [flags, flags],
        "Or": [flags, flags],
    }
    attributes: dict[str, dict[str, Any]] = {
        "Cast": {"to": 6},
        "Concat": {"axis": 0},
        "ConstantOfShape": {"value": numpy_helper.from_array(np.array([7]), "")},
    }
    inputs = operands.get(op_type, [two, two])
    made = ours(node_of(op_type, inputs, **attributes.get(op_type, {})), inputs)
    assert isinstance(made, np.ndarray)


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("Add", ["x0", "x1"], ["y"], domain="own"),
        helper.make_node("Add", ["x0", "x1"], ["y"], axis=1),
        helper.make_node("Add", ["x0", "x1"], ["y", "z"]),
        helper.make_node("Add", ["x0", "x1"], [""]),
        helper.make_node("Mod", ["x0", "x1"], ["y"]),
    ],
    ids=["another domain", "an older version", "more outputs", "no output", "another operator"],
)
def test_others_are_left_to_the_reference(node: onnx.NodeProto) -> None:
    assert ours(node, [np.array([2]), np.array([3])]) is None
