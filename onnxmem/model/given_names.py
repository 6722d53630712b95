"""The names that a question says something of: a dim or an input that the model lacks is a slip."""

from collections.abc import Iterable

import onnx

from onnxmem.errors import ShapeError, listed, nearest
from onnxmem.model.binding import given_inputs, input_symbols
from onnxmem.model.given_values import GivenValueError


def refuse_unknown_names(
    model: onnx.ModelProto, dims: Iterable[str], values: Iterable[str] = ()
) -> None:
    """Refuse a dim and a value that change nothing, where they are given for this model alone.

    :raises ShapeError: no input has a dim of that name.
    :raises GivenValueError: there is no input of that name.
    """
    given = given_inputs(model.graph)
    symbols = input_symbols(given)
    for name in dims:
        if name not in symbols:
            there = f"the dims are {listed(symbols)}" if symbols else "all dims are numbers"
            hint = nearest(name, symbols)
            message = f"--dim {name}: no input has a dim of that name; {hint}{there}"
            raise ShapeError(message)
    inputs = [value.name for value in given]
    for name in values:
        if name not in inputs:
            there = f"{nearest(name, inputs)}the inputs are {listed(inputs)}"
            message = f"--value {name}: the model has no input of that name; {there}"
            raise GivenValueError(message)
