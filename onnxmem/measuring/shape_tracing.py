"""Runs in the child: inferences of the graph as the file has it, and the shape of every tensor.

onnxruntime's profile has the shapes of each node's outputs, of nodes in subgraphs too, once per
iteration, before those of the node that has the subgraph. Sequences and optionals are not in it,
nor the nodes of operators that onnxruntime expands to others.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import onnx

from onnxmem.children.running import JSON
from onnxmem.measuring.run_request import read_request
from onnxmem.measuring.tracing import Step, runs
from onnxmem.model.building import prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.traversal import onnx_op, subgraphs

_MODEL: Final = "observed.onnx"
_DATA: Final = "observed.data"


def trace_shapes(requests: Sequence[Mapping[str, Any]]) -> dict[str, JSON]:
    """Run a model with the inputs of each request, in one session.

    ``runs`` of the result has a run per request, as ``observed.read_run`` reads it; fewer where the
    profile is too small.
    """
    import onnxruntime as ort

    from onnxmem.measuring.process_run import CPU, mapped_feeds, native_options

    parsed = [read_request(each) for each in requests]
    # The names of functions' nodes, and the order, are those of the graph that is analyzed.
    model = prepare(ModelFile("", onnx.load(parsed[0].model), 0)).proto
    scopes = _Scopes()
    scopes.add(model.graph, None)
    onnx.save_model(model, _MODEL, save_as_external_data=True, location=_DATA, size_threshold=2**20)
    del model
    native = native_options(parsed[0])
    native.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    native.enable_profiling = True
    native.profile_file_prefix = "shapes"
    session = ort.InferenceSession(_MODEL, native, providers=[CPU])
    for each in parsed:
        session.run(None, mapped_feeds(each))
    found = runs(Path(session.end_profiling()))
    return {"runs": [scopes.run_of(steps) for steps in found]}


@dataclass(frozen=True, slots=True)
class _Place:
    """A node of the graph that runs."""

    outputs: tuple[str, ...]
    scope: tuple[str, str] | None
    """The node and the attribute of its graph; ``None``: the main graph."""
    op_type: str
    bodies: Mapping[str, bool]
    """By the attribute of a subgraph: whether a node of it is in the profile."""


Row = tuple[str, dict[str, list[int]], dict[str, JSON]]
"""A node that ran, the shapes of its outputs, and the runs of its subgraphs."""


@dataclass(slots=True)
class _Scopes:
    """Mutable: the nodes by the names that they are given here."""

    places: dict[str, _Place] = field(default_factory=dict)

    def add(self, graph: onnx.GraphProto, scope: tuple[str, str] | None) -> None:
        """Name the nodes of a graph and of its subgraphs."""
        for node in graph.node:
            node.name = name = f"observed_{len(self.places)}"
            bodies = dict(subgraphs(node))
            self.places[name] = _Place(
                tuple(node.output),
                scope,
                onnx_op(node),
                {
                    attribute: any(onnx_op(inner) != "Constant" for inner in body.node)
                    for attribute, body in bodies.items()
                },
            )
            for attribute, body in bodies.items():
                self.add(body, (name, attribute))

    def run_of(self, steps: Iterable[Step]) -> dict[str, JSON]:
        """The run of the main graph."""
        # By graph: the nodes that ran since the node that has it ended last.
        pending: dict[tuple[str, str] | None, list[Row]] = {}
        for step in steps:
            place = self.places.get(step.node)
            if place is None:
                continue
            outputs = [name for name in place.outputs if name]
            shapes = (
                {name: list(dims) for name, dims in zip(outputs, step.output_shapes, strict=True)}
                if len(outputs) == len(step.output_shapes)
                else {}
            )
            body = self._body(step.node, place, pending)
            bodies: dict[str, JSON] = {} if body is None else {outputs[0]: body}
            pending.setdefault(place.scope, []).append((step.node, shapes, bodies))
        return next(_iterations(pending.get(None, [])), {})

    @staticmethod
    def _body(name: str, place: _Place, pending: dict[tuple[str, str] | None, list[Row]]) -> JSON:
        """The runs of the subgraph that a node opened; ``None``: unknown which, or how often."""
        ran = {each: pending.pop((name, each), []) for each in place.bodies}
        chosen = next((each for each, rows in ran.items() if rows), None)
        if chosen is not None:
            return {"graph": chosen, "runs": list(_iterations(ran[chosen]))}
        if place.op_type != "If":
            (attribute, shows), *_ = (*place.bodies.items(), ("", False))
            return {"graph": attribute, "runs": []} if shows else None
        # A branch whose nodes a profile does not show may have run; it did if it is the only such
        # one.
        silent = [each for each, shows in place.bodies.items() if not shows]
        return {"graph": silent[0], "runs": [{}]} if len(silent) == 1 else None


def _iterations(rows: Sequence[Row]) -> Iterator[dict[str, JSON]]:
    """The runs of one graph: each node runs once in each."""
    seen: set[str] = set()
    shapes: dict[str, JSON] = {}
    bodies: dict[str, JSON] = {}
    for node, found, inner in rows:
        if node in seen:
            yield {"shapes": shapes, "bodies": bodies}
            seen, shapes, bodies = set(), {}, {}
        seen.add(node)
        shapes.update(found)
        bodies.update(inner)
    if seen:
        yield {"shapes": shapes, "bodies": bodies}
