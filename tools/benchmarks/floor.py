"""How far an analysis of a large graph is from the least that it can take.

Usage: python tools/benchmarks/floor.py [NODES]

Prints CPU seconds, the least of some rounds that take turns: the floor's parts on the graph of
``scale.py``, and the whole analysis in the same process. Each part is there in any analysis in
Python that asks onnx: the file is parsed, onnx infers the shapes, and every name of every node is
read once. The law in the batch is not among them, whose second batch is told by nodes that are
alike.
"""

import sys
import time
from collections.abc import Callable

import onnx
import onnx.shape_inference
from scale import chain

from onnxmem import analyze

ROUNDS = 5


def walked(graph: onnx.GraphProto) -> int:
    """One walk: names become numbers, as lifetimes need them."""
    numbers: dict[str, int] = {}
    places = 0
    for node in graph.node:
        for name in (*node.input[:], *node.output[:]):
            places += numbers.setdefault(name, len(numbers))
    return places


def least(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The least CPU seconds of each, in turns."""
    found = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            started = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - started)
    return found


def main() -> None:
    """Print a row for each part, their sum, and the analysis."""
    num_nodes = int(sys.argv[1].replace(",", "")) if len(sys.argv) > 1 else 50_000
    data = chain(num_nodes).SerializeToString()
    model = onnx.ModelProto.FromString(data)
    parts = {
        "protobuf's parse": lambda: onnx.ModelProto.FromString(data),
        "one walk over all names": lambda: walked(model.graph),
        "onnx's inference": lambda: onnx.shape_inference.infer_shapes(model),
    }
    seconds = least({**parts, "the whole analysis": lambda: analyze(data)})
    whole = seconds.pop("the whole analysis")
    floor = sum(seconds.values())
    for name, part in {**seconds, "floor": floor, "the whole analysis": whole}.items():
        print(f"{name:28}{part:8.3f} s{part / floor:8.2f} x floor")


if __name__ == "__main__":
    main()
