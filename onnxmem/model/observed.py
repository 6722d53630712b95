"""The shapes that runs of a model had where the data decide them, and the file that keeps them.

A run of a graph has the shapes of its tensors, and the runs of the subgraphs that its nodes opened:
one of an If, one per iteration of a Loop or a Scan. Names are those of the file, without a scope:
they also hold in a graph that onnxruntime optimized.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from math import prod
from typing import Any, ClassVar, Final

from onnxmem.errors import UsageError, shortened
from onnxmem.files import parsed_json, read_text, reason_of
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph, Role, Tensor, body_prefix
from onnxmem.model.intervals.limits import Limits
from onnxmem.ops.spec import Dims, known_dims
from onnxmem.version import __version__

SCHEMA: Final = "onnxmem.observed"
SCHEMA_VERSION: Final = "1.0"
RANDOM: Final = "random "
"""The source of a run of random inputs, before its seed."""
_MOST_ITERATIONS: Final = 1_000_000
_MOST_BYTES: Final = 64 * 2**20


class ObservedFileError(UsageError):
    """A file of observed shapes cannot be read, or is of another model."""

    code: ClassVar[str] = "observed"


@dataclass(frozen=True, slots=True)
class GraphRun:
    """One run of one graph: what it omits is as in every run."""

    shapes: Mapping[str, Dims] = field(default_factory=dict)
    bodies: Mapping[str, "BodyRuns"] = field(default_factory=dict)
    """By the first output of the node that has the subgraph."""


@dataclass(frozen=True, slots=True)
class BodyRuns:
    """The runs of a node's subgraph."""

    attribute: str
    """Which subgraph ran, as ``then_branch``."""
    runs: tuple[GraphRun, ...]


NO_RUN: Final = GraphRun()


@dataclass(frozen=True, slots=True)
class Observed:
    """Runs of one model at one binding of its dims."""

    model: str
    """The name of its file."""
    digest: str
    """``digest_of`` the model."""
    inputs: Mapping[str, Dims]
    """The shapes of the inputs."""
    sources: tuple[str, ...]
    """What each run was fed: ``random 0``, or the name of a file."""
    runs: tuple[GraphRun, ...]

    @property
    def are_random(self) -> bool:
        """Whether all runs were of random inputs."""
        return all(source.startswith(RANDOM) for source in self.sources)

    def to_dict(self) -> dict[str, Any]:
        """As ``onnxmem schema observed`` describes it."""
        return {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "onnxmem", "version": __version__},
            "model": self.model,
            "digest": self.digest,
            "inputs": {name: list(dims) for name, dims in self.inputs.items()},
            "runs": [
                {"source": source, **_written(run)}
                for source, run in zip(self.sources, self.runs, strict=True)
            ],
        }

    def to_json(self) -> str:
        """The text of the file."""
        return json.dumps(self.to_dict(), separators=(",", ":")) + "\n"

    def refuse_other(self, model: ModelFile) -> None:
        """Refuse shapes of another model.

        :raises ObservedFileError: it is another one.
        """
        if self.digest != digest_of(model):
            message = (
                f"the observed shapes are of another model, {shortened(self.model)}; "
                f"run it again with --observe"
            )
            raise ObservedFileError(message)

    def refuse_other_inputs(self, graph: Graph) -> None:
        """Refuse shapes that belong to other shapes of the inputs.

        :raises ObservedFileError: with the first input that differs, or a tensor that is unknown.
        """
        name = self.other_input(graph)
        if name is not None:
            seen = self.inputs.get(name)
            at = "no shape" if seen is None else ",".join(map(str, seen))
            message = (
                f"the observed runs had {shortened(name)} at {at}; observe them at the "
                f"requested dims, or request those: --shape {shortened(name)}:{at}"
            )
            raise ObservedFileError(message)

    def other_input(self, graph: Graph) -> str | None:
        """The first input of another shape than the runs had; ``None``: all have theirs."""
        shapes = ((name, graph.tensors[name].shape) for name in graph.inputs)
        return next((name for name, shape in shapes if self.inputs.get(name) != shape), None)

    def refuse_joining(self, other: "Observed") -> None:
        """Refuse runs of the same model whose inputs have other shapes.

        :raises ObservedFileError: with the first input that differs.
        """
        for name in {**self.inputs, **other.inputs}:
            shapes = [each.inputs.get(name) for each in (self, other)]
            if shapes[0] != shapes[1]:
                rows = ("none" if dims is None else ",".join(map(str, dims)) for dims in shapes)
                message = (
                    f"the observed runs of {shortened(self.model)} had {shortened(name)} at "
                    f"{' and at '.join(rows)}; pass runs at one of these shapes"
                )
                raise ObservedFileError(message)


def digest_of(model: ModelFile) -> str:
    """A digest of a model: of its graph and small constants, not of its large weights."""
    # Maps have no order in protobuf, so a digest needs the deterministic form.
    content = model.proto.SerializeToString(deterministic=True)
    return hashlib.sha256(content).hexdigest()


def runs_of(
    given: Sequence[Observed], model: ModelFile, *, one_of_several: bool
) -> Observed | None:
    """All runs of a model among those of several; ``None``: there are none.

    :raises ObservedFileError: all are of other models, and this model is the only one; or those of
        this model are at several shapes of its inputs.
    """
    if not given:
        return None
    digest = digest_of(model)
    own = [each for each in given if each.digest == digest]
    if not own:
        if not one_of_several:
            given[0].refuse_other(model)
        return None
    # Equal dims of the inputs are all that joining needs: runs are compared with the graph one by
    # one.
    first = own[0]
    for other in own[1:]:
        first.refuse_joining(other)
    return replace(
        first,
        sources=tuple(source for each in own for source in each.sources),
        runs=tuple(run for each in own for run in each.runs),
    )


def by_inputs(given: Sequence[Observed], model: ModelFile) -> list[Observed]:
    """All runs of a model, joined where the shapes of their inputs are equal.

    :raises ObservedFileError: all are of other models.
    """
    groups: list[list[Observed]] = []
    digest = digest_of(model)
    for each in given:
        if each.digest == digest:
            same = next((group for group in groups if group[0].inputs == each.inputs), None)
            groups.append([each]) if same is None else same.append(each)
    if not groups:
        given[0].refuse_other(model)
    return [found for group in groups if (found := runs_of(group, model, one_of_several=True))]


def read_observed(path: str) -> Observed:
    """Read a file that ``--save-observed`` wrote.

    :raises ObservedFileError: it cannot be read, or is not such a file.
    """
    try:
        document = parsed_json(read_text(path, most_bytes=_MOST_BYTES))
    except OSError as fault:
        message = f"{shortened(path)} cannot be read: {reason_of(fault)}; check --observed"
        raise ObservedFileError(message) from fault
    except ValueError as fault:
        message = f"{shortened(path)} is not a file of observed shapes: {reason_of(fault)}"
        raise ObservedFileError(message) from fault
    try:
        return _read(document)
    except (KeyError, TypeError, ValueError, AttributeError) as fault:
        message = (
            f"{shortened(path)} is not a file of observed shapes of schema {SCHEMA} 1.x; "
            "write one with --observe and --save-observed"
        )
        raise ObservedFileError(message) from fault


def _read(document: Any) -> Observed:  # noqa: ANN401 - JSON from a file
    if document["schema"] != SCHEMA or document["schema_version"].partition(".")[0] != "1":
        raise ValueError
    runs = document["runs"]
    if not runs:
        raise ValueError
    return Observed(
        model=_text(document["model"]),
        digest=_text(document["digest"]),
        inputs={name: _dims(dims) for name, dims in document["inputs"].items()},
        sources=tuple(_text(run["source"]) for run in runs),
        runs=tuple(map(read_run, runs)),
    )


def read_run(row: Mapping[str, Any]) -> GraphRun:
    """Read the run of a graph from JSON.

    :raises ValueError: or another error of a value of the wrong type.
    """
    return GraphRun(
        {name: _dims(dims) for name, dims in row.get("shapes", {}).items()},
        {
            name: BodyRuns(_text(body["graph"]), tuple(_repeated(body["runs"])))
            for name, body in row.get("bodies", {}).items()
        },
    )


def _repeated(rows: Sequence[Mapping[str, Any]]) -> Iterator[GraphRun]:
    # In all rows together.
    left = _MOST_ITERATIONS
    for row in rows:
        times = row.get("times", 1)
        # ``times`` is whatever the file says: it is bounded before a list of so many runs is made.
        left -= _dims([times])[0]
        if left < 0:
            raise ValueError
        yield from [read_run(row)] * times


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _dims(value: object) -> Dims:
    if not isinstance(value, list) or any(type(dim) is not int or dim < 0 for dim in value):
        raise TypeError
    return tuple(value)


def _written(run: GraphRun) -> dict[str, Any]:
    row: dict[str, Any] = {"shapes": {name: list(dims) for name, dims in run.shapes.items()}}
    bodies = {}
    for name, body in run.bodies.items():
        rows = []
        for each, equal in groupby(body.runs):
            times = len(list(equal))
            rows.append({**({"times": times} if times > 1 else {}), **_written(each)})
        bodies[name] = {"graph": body.attribute, "runs": rows}
    return row | ({"bodies": bodies} if bodies else {})


# --------------------------------------------------------------------------------------------------
# The graph of a run.


def deciding_only(run: GraphRun, graph: Graph, prefix: str = "") -> GraphRun:
    """The run without the shapes that the graph has already."""
    shapes = {
        name: dims
        for name, dims in run.shapes.items()
        if (tensor := graph.tensors.get(prefix + name)) is not None and tensor.shape != dims
    }
    bodies = {}
    for node in graph.nodes:
        # A run names a node with subgraphs by its first output, without the scope of its graph.
        local = node.writes[0].removeprefix(prefix) if node.subgraphs else ""
        seen = run.bodies.get(local)
        body = None if seen is None else dict(node.subgraphs).get(seen.attribute)
        if seen is not None and body is not None:
            inner = body_prefix(node, seen.attribute, body)
            runs = tuple(deciding_only(each, body, inner) for each in seen.runs)
            bodies[local] = replace(seen, runs=runs)
    return GraphRun(shapes, bodies)


@dataclass(slots=True)
class Shapes:
    """Mutable: by the scoped name of a tensor, its shapes in one run."""

    of: dict[str, set[Dims]] = field(default_factory=dict)
    sequences: Mapping[str, int] = field(default_factory=dict)
    """By the scoped name of a sequence, the elements of all its tensors, the most in one run."""
    idle: set[str] = field(default_factory=set)
    """Tensors of subgraphs that did not run."""
    once: set[str] = field(default_factory=set)
    """Tensors of subgraphs that ran once: their shapes are those of a first iteration."""
    iterations: dict[str, int] = field(default_factory=dict)
    """The most of each Loop, by its name."""

    def shows(self, name: str) -> bool:
        """Whether the run has the size of a tensor."""
        return name in self.of or name in self.sequences or name in self.idle

    def limits(self) -> Limits:
        """The largest of each dim, and of the iterations of each Loop."""
        found = {}
        for name, shapes in self.of.items():
            if len({len(dims) for dims in shapes}) == 1:
                for axis, dims in enumerate(zip(*shapes, strict=True)):
                    found[f"{name}:{axis}"] = 0, max(dims)
        return found | {f"{name}:iterations": (0, most) for name, most in self.iterations.items()}

    def refuse_more(self, limits: Limits, requested: Mapping[str, str]) -> None:
        """Refuse a run that is beyond the upper ends that a user set.

        ``requested`` has their names as the user wrote them.

        :raises ObservedFileError: with the first dim that is.
        """
        elements = {name: (0, max(map(prod, shapes))) for name, shapes in self.of.items()}
        for name, (_, seen) in {**elements, **self.limits()}.items():
            most = limits.get(name, (0, seen))[1]
            if seen > most:
                flag = f"--max {shortened(requested.get(name, name))}={most}"
                message = (
                    f"{flag}: an observed run had {seen:,} there; raise it, or omit these runs"
                )
                raise ObservedFileError(message)


def shapes_of(run: GraphRun, graph: Graph) -> Shapes:
    """The shapes of a run by scoped names."""
    found = Shapes()
    _add_shapes((run,), graph, "", found)
    return found


def _add_shapes(runs: Sequence[GraphRun], graph: Graph, prefix: str, found: Shapes) -> None:
    """Add those of all runs of one graph."""
    # A graph optimizer may have removed a tensor of the run.
    names = {name for run in runs for name in run.shapes}
    for name in (name for name in names if prefix + name in graph.tensors):
        # An iteration omits a shape that is the graph's, which is that of the first one.
        usual = known_dims(graph.tensors[prefix + name].shape)
        shapes = {run.shapes.get(name, usual) for run in runs}
        found.of.setdefault(prefix + name, set()).update(
            dims for dims in shapes if dims is not None
        )
    for node in (node for node in graph.nodes if node.subgraphs):
        local = node.writes[0].removeprefix(prefix)
        seen = [run.bodies[local] for run in runs if local in run.bodies]
        if node.op_type == "Loop" and seen:
            found.iterations[node.name] = max(len(each.runs) for each in seen)
        for attribute, body in node.subgraphs:
            inner = [run for each in seen if each.attribute == attribute for run in each.runs]
            if len(inner) == 1:
                found.once.update(name for each in body.nodes for name in each.writes)
            if inner:
                _add_shapes(inner, body, body_prefix(node, attribute, body), found)
            # The node ran, and this body in none of its runs.
            elif seen:
                found.idle.update(name for each in body.all_nodes() for name in each.writes)


def graph_of(graph: Graph, upper: Graph, seen: Shapes) -> Graph:
    """The graph with the shapes of a run; ``upper`` has those of tensors that it does not show.

    A tensor of a body has its largest shape, one of a branch that did not run no bytes.
    """
    changed = {}
    for name, tensor in upper.tensors.items():
        if tensor.role is Role.ACTIVATION and name in seen.idle:
            changed[name] = replace(tensor, max_elements=0)
        elif name in seen.of:
            changed[name] = _observed(tensor, seen.of[name])
        elif name in seen.sequences:
            changed[name] = _observed(tensor, {(seen.sequences[name],)})
        elif name in seen.once and not graph.tensors[name].is_open:
            changed[name] = graph.tensors[name]
    return graph.with_tensors({**upper.tensors, **changed})


def _observed(tensor: Tensor, shapes: set[Dims]) -> Tensor:
    # Of shapes with equally many elements always the same one, in whatever order a set has them.
    largest = max(shapes, key=lambda dims: (prod(dims), dims))
    dynamic = tensor.dynamic if len(tensor.dynamic) == len(largest) else ()
    return replace(tensor, shape=largest, dynamic=dynamic, max_elements=None)
