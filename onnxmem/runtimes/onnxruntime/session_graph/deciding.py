"""Which inputs decide what a run does, where their values are not known."""

from collections.abc import Mapping
from typing import Final

import onnx

from onnxmem.model.constants import Array
from onnxmem.model.graph import Graph
from onnxmem.model.input_values import fitted, may_be_setting
from onnxmem.runtimes.onnxruntime.allocation.course import Course, undecided
from onnxmem.runtimes.onnxruntime.session_graph.rehearsal import MAX_ASKED, rehearsed

MAX_INPUTS: Final = 8
"""Small inputs that are tried, in the order of the graph's."""


def deciding_inputs(
    model: onnx.ModelProto, graph: Graph, values: Mapping[str, Array], course: Course
) -> dict[str, tuple[str, ...]]:
    """By the name of a node that is undecided: the inputs whose values would decide it.

    The run is rehearsed as if every small input were known, and then without each of them: what is
    undecided the first time follows from computed data, and what one of them opens again from it.
    """
    tensors = (graph.tensors[name] for name in graph.inputs if name not in values)
    settings = list(filter(may_be_setting, tensors))[:MAX_INPUTS]
    tried = {tensor.name: fitted(tensor, (1,)) for tensor in settings}

    def opened(given: Mapping[str, Array]) -> set[str]:
        share = MAX_ASKED // (len(tried) + 1)
        return set(undecided(rehearsed(model, graph, {**values, **given}, share)).names())

    names = undecided(course).names()
    if not names or not tried:
        return {}
    without = {
        left_out: opened({name: value for name, value in tried.items() if name != left_out})
        for left_out in tried
    }
    never = opened(tried)
    found = {
        name: tuple(each for each in tried if name in without[each])
        for name in names
        if name not in never
    }
    return {name: inputs for name, inputs in found.items() if inputs}
