"""How far an analysis of a large graph is from the least that it can take, and where its time goes.

Usage: python tools/benchmarks/floor.py [NODES]

Prints CPU seconds, the least of some rounds that take turns, on the graph of ``scale.py``: the
floor's parts, which are there in any analysis in Python; the stages of ours, each with what it is
given at hand; and the whole analysis, with what no row above names. Beside them, what onnx's
inference takes of the whole graph, which ours does not ask for where nodes are alike. Imports are
not among them.
"""

import gc
import sys
import time
from collections.abc import Callable
from functools import partial

import onnx
import onnx.shape_inference
from scale import chain

from onnxmem import analyze
from onnxmem.analysis.compute import compute
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.model.parameters import parameters
from onnxmem.runtimes.ideal.activation_memory import activation_memory

ROUNDS = 5

Works = dict[str, Callable[[], object]]


def walked(graph: onnx.GraphProto) -> int:
    """One walk: names become numbers, as lifetimes need them."""
    numbers: dict[str, int] = {}
    places = 0
    for node in graph.node:
        for name in (*node.input[:], *node.output[:]):
            places += numbers.setdefault(name, len(numbers))
    return places


def stages(data: bytes) -> Works:
    """The stages of an analysis, each of what the one before has made."""
    file = load(data)
    prepared = prepare(file)
    bound = build(prepared, Request())
    fresh = [prepare(file) for _ in range(ROUNDS)]
    return {
        "payloads skipped, parsed": partial(load, data),
        "order, arity, names": partial(prepare, file),
        "records and types": lambda: build(fresh.pop(), Request()),
        "another batch": partial(build, prepared, Request(batch=5)),
        "lifetimes and peaks": partial(activation_memory, bound.graph),
        "arithmetic": partial(compute, bound.graph),
        "parameters": partial(parameters, bound.graph),
    }


def least(works: Works) -> dict[str, float]:
    """The least CPU seconds of each, in turns; the collector of cycles waits."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            gc.collect()
            gc.disable()
            started = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - started)
            gc.enable()
    return found


def main() -> None:
    """Print a row for each part, their sum, the stages, and the analysis."""
    num_nodes = int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else 50_000
    data = chain(num_nodes).SerializeToString()
    model = onnx.ModelProto.FromString(data)
    floors: Works = {
        "protobuf's parse": lambda: onnx.ModelProto.FromString(data),
        "one walk over all names": lambda: walked(model.graph),
    }
    others: Works = {
        "the whole analysis": lambda: analyze(data),
        "onnx's inference, beside it": lambda: onnx.shape_inference.infer_shapes(model),
    }
    ours = stages(data)
    seconds = least({**floors, **ours, **others})
    floor = sum(seconds[name] for name in floors)
    rest = seconds["the whole analysis"] - sum(seconds[name] for name in ours)
    rows = {
        **{name: seconds[name] for name in floors},
        "floor": floor,
        **{name: seconds[name] for name in ours},
        "all else": rest,
        **{name: seconds[name] for name in others},
    }
    for name, part in rows.items():
        print(f"{name:30}{part:8.3f} s{part / floor:8.2f} x floor")


if __name__ == "__main__":
    main()
