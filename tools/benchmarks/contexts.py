"""Times ``fit`` of a language model over five contexts: SmolLM's decoder with all 30 layers.

``models/smollm_cached.onnx`` has its first four; the others are copies of the third one, each with
a cache of its own, and with the linear weights of that one.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import onnx

MODELS = Path(__file__).parents[2] / "models"
CONTEXTS = "512,1024,2048,4096,8192"
LAYERS = 30
_LAYERS = 4
"""Of the model that is there."""
_COPIED = 2
"""The layer that is copied: one between others."""


Value = TypeVar("Value", onnx.ValueInfoProto, onnx.TensorProto)


def deepened(model: onnx.ModelProto, layers: int) -> onnx.ModelProto:
    """The model with as many layers, by copies of one that stand behind it."""
    graph, nodes = model.graph, [*model.graph.node]
    start, stop = _first(model, _COPIED), _first(model, _COPIED + 1)
    block, others = nodes[start:stop], [*nodes[:start], *nodes[stop:]]
    before = _outputs(nodes[_first(model, _COPIED - 1) : start])
    inside = _outputs(block)
    # What a layer reads of the one before it, and what it hands on in its place.
    read = sorted({*before} & _inputs(block), key=before.index)
    handed = sorted(set(inside) & _inputs(nodes[stop:]), key=inside.index)
    own = _inputs(block) - _inputs(others) - {*before, *inside}
    current = dict(zip(read, handed, strict=True))
    for number in range(layers - _LAYERS):
        suffix = f".copy{number}"
        names = current | {name: name + suffix for name in (*inside, *own)}
        nodes[stop:stop] = [_renamed(node, names, suffix) for node in block]
        stop += len(block)
        for values in (graph.initializer, graph.input, graph.output):
            values.extend(
                [_renamed_value(each, suffix) for each in values if each.name in own | {*inside}]
            )
        current = {name: end + suffix for name, end in zip(read, handed, strict=True)}
    ends = {end: current[name] for name, end in zip(read, handed, strict=True)}
    for node in nodes[stop:]:
        node.input[:] = [ends.get(name, name) for name in node.input]
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return model


def _first(model: onnx.ModelProto, layer: int) -> int:
    """The first node that reads a weight of a layer."""
    name = f".layers.{layer}.input_layernorm"
    nodes = enumerate(model.graph.node)
    return next(at for at, node in nodes if any(name in each for each in node.input))


def _outputs(nodes: Iterable[onnx.NodeProto]) -> list[str]:
    return [name for node in nodes for name in node.output]


def _inputs(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    return {name for node in nodes for name in node.input}


def _renamed(node: onnx.NodeProto, names: Mapping[str, str], suffix: str) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.name += suffix
    copy.input[:] = [names.get(name, name) for name in node.input]
    copy.output[:] = [names[name] for name in node.output]
    return copy


def _renamed_value(value: Value, suffix: str) -> Value:
    copy = type(value)()
    copy.CopyFrom(value)
    copy.name += suffix
    return copy


def main() -> None:
    """Print the wall time and the memory of the better of two runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", metavar="FILE", help="write the model there too")
    keep = parser.parse_args().keep
    model = deepened(onnx.load(MODELS / "smollm_cached.onnx", load_external_data=False), LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        path = keep or str(Path(folder) / "smollm.onnx")
        onnx.save(model, path)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            words = ["fit", path, "--device", "RTX 4090", "--context", CONTEXTS, "-q"]
            subprocess.run(  # noqa: S603 - this file's own words
                [sys.executable, "-m", "onnxmem", *words], check=True, stdout=subprocess.DEVNULL
            )
            seconds.append(time.perf_counter() - start)
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"{len(model.graph.node):,} nodes: {min(seconds):.2f} s, {memory:,.0f} MiB")


if __name__ == "__main__":
    main()
