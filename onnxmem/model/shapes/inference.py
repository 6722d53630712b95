"""Shapes of every tensor that can be known, by three engines in turn.

onnx's own inference runs over the whole graph in C++ and leaves few shapes open. Only then do the
others run: a walk that works shape arithmetic out (``propagation``), and onnx-shape-inference for
operators that onnx has no inference for (``symbolic``). onnx's data propagation stays off: it
follows the elements of any long vector, and a file of 89 bytes makes it take 9.8 GB. The file's own
word (``value_info``) is used where nothing derives a shape, and marked.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import onnx
import onnx.shape_inference

from onnxmem.errors import Finding, listed
from onnxmem.model.binding import Binding, given_inputs, input_dims
from onnxmem.model.bounds import BOUNDS, FEW_DIMS, is_past_all, variable
from onnxmem.model.constants import Array
from onnxmem.model.shapes.batch_constants import without_stand_ins
from onnxmem.model.shapes.declared import Declared, use_declared
from onnxmem.model.shapes.native_faults import ends_the_process
from onnxmem.model.shapes.propagation import Walked, propagate
from onnxmem.model.shapes.rebatching import Rebatched, rebatch
from onnxmem.model.shapes.symbolic import infer_symbolically
from onnxmem.model.traversal import graphs_in
from onnxmem.model.value_types import Known, forget_shapes, known_types

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Graph inputs and their shapes."""

_MAX_ROUNDS = 3
"""What one engine finds may help the other; more rounds have never found more."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A model whose ``value_info`` holds what is known of its shapes."""

    proto: onnx.ModelProto
    assumed: frozenset[str]
    """Tensors of the top-level graph whose shapes nothing derives."""
    follows_batch: bool
    """False: constants keep the graph, or part of it, at the batch that the file fixes."""
    findings: tuple[Finding, ...]
    has_new_constants: bool = False
    """Whether some were written anew."""
    types: Mapping[str, Known] | None = None
    """The ``known_types`` of the top-level graph, where they are at hand."""


def with_shapes(
    model: onnx.ModelProto,
    binding: Binding,
    values: Mapping[str, Array] = MappingProxyType({}),
    at_olds: MutableMapping[Shapes, onnx.ModelProto] | None = None,
) -> Shaped:
    """Set the inputs' dims and infer the shapes of everything else.

    ``values`` are the elements of inputs, where they are known. ``at_olds`` keeps what was inferred
    last of the model at the batch that it fixes, from which every other batch starts.
    """
    bound = _with_bound_inputs(model, binding.shapes)
    if binding.old_batch is None or binding.batch is None:
        shaped = _with_declared(bound, model, binding, values)
        if at_olds is not None and shaped.types is not None and _fixes_all_dims(model):
            at_olds.clear()
            at_olds[tuple(binding.shapes.items())] = shaped.proto
        return shaped
    at_old = _at_old_batch(model, binding, at_olds)
    at_new = _inferred_whole(bound)
    rebatched = rebatch(bound, at_old, binding.old_batch, binding.batch, at_new)
    # What the file declares speaks of the old batch: it is no help here.
    if rebatched.is_rewritten:
        at_new = _inferred_whole(bound)
    walked = completed(at_new, values)
    failures = [*rebatched.failures, *lost_types(at_new.graph, at_old.graph)]
    constants = _constant_findings(binding, rebatched)
    without_stand_ins(at_new.graph, rebatched.stand_ins, rebatched.grown)
    findings = (
        *_batch_findings(binding, failures),
        *constants,
        *_walk_findings(at_new, walked),
    )
    return Shaped(
        at_new,
        frozenset(failures),
        not failures,
        findings,
        has_new_constants=rebatched.counts_on or bool(rebatched.grown),
    )


def _at_old_batch(
    model: onnx.ModelProto,
    binding: Binding,
    kept: MutableMapping[Shapes, onnx.ModelProto] | None,
) -> onnx.ModelProto:
    """The model with its shapes at the batch that it fixes, the other dims as bound."""
    shapes = binding.shapes_at_old_batch
    key = tuple(shapes.items())
    if kept is not None and key in kept:
        return kept[key]
    at_old, _ = inferred(_with_bound_inputs(model, shapes))
    if kept is not None:
        kept.clear()
        kept[key] = at_old
    return at_old


def _with_declared(
    bound: onnx.ModelProto, model: onnx.ModelProto, binding: Binding, values: Mapping[str, Array]
) -> Shaped:
    proto, walked = inferred(bound, values)
    if not _is_as_declared(model, binding):
        # What the file declares speaks of other inputs.
        findings = tuple(_walk_findings(proto, walked))
        return Shaped(proto, frozenset(), follows_batch=True, findings=findings, types=walked.types)
    declared = use_declared(proto, model, binding.dims, walked.types)
    if declared.used:
        propagate(proto, values, frozenset(declared.used))
    findings = (*_declared_findings(declared), *_walk_findings(proto, walked))
    types = None if declared.has_changed else walked.types
    return Shaped(
        proto,
        frozenset(declared.used),
        follows_batch=True,
        findings=findings,
        types=types,
    )


def _fixes_all_dims(model: onnx.ModelProto) -> bool:
    """Whether the file gives a number for every dim of its inputs."""
    dims = [dim for value in given_inputs(model.graph) for dim in input_dims(value) or ()]
    return all(isinstance(dim, int) for dim in dims)


def _is_as_declared(model: onnx.ModelProto, binding: Binding) -> bool:
    """Whether every number that the file gives for a dim of an input is the one in effect."""
    pairs = (
        pair
        for value in given_inputs(model.graph)
        for pair in zip(input_dims(value) or (), binding.shapes.get(value.name, ()), strict=False)
    )
    return all(declared == dim for declared, dim in pairs if isinstance(declared, int))


def _refusals(refused: Mapping[str, str]) -> Iterator[Finding]:
    """Inputs that do not fit each other: of the node that comes first, the reason."""
    if refused:
        reason = next(iter(refused.values()))
        text = f"shapes that do not fit: no output of {listed(list(refused))} can be; {reason}"
        yield Finding("contradictory_inputs", text)


def _walk_findings(proto: onnx.ModelProto, walked: Walked) -> Iterator[Finding]:
    yield from _refusals(walked.refused)
    if walked.highest_rank:
        text = f"a tensor of {walked.highest_rank:,} dims is of unknown size: over {BOUNDS.rank}"
        yield Finding("bound_reached", f"{text} ({variable('rank')}), or past all sizes")
    if walked.left_out and num_open(proto):
        text = f"shapes may stay open for want of the values of {listed(walked.left_out)}: over"
        yield Finding("bound_reached", f"{text} {BOUNDS.elements:,} ({variable('elements')})")


def _declared_findings(declared: Declared) -> Iterator[Finding]:
    if declared.used:
        text = f"shapes that the file declares and nothing derives: {listed(declared.used)}"
        yield Finding("declared_shapes", text)
    if declared.contradicted:
        text = f"declared shapes that differ from the derived: {listed(declared.contradicted)}"
        yield Finding("contradicted_shapes", text)


def _batch_findings(binding: Binding, failures: list[str]) -> tuple[Finding, ...]:
    if not failures:
        return ()
    text = (
        f"the batch is fixed at {binding.old_batch} by constants in the graph, which no reading "
        f"brings to {binding.batch} at {listed(failures)}; export with a symbolic batch"
    )
    return (Finding("batch_fixed", text),)


def _constant_findings(binding: Binding, rebatched: Rebatched) -> Iterator[Finding]:
    old, new = binding.old_batch, binding.batch
    grown = list(dict.fromkeys(rebatched.stand_ins[name] for name in sorted(rebatched.grown)))
    if grown:
        text = (
            f"constants as long as the batch are counted at {new} in place of {old}: "
            f"{listed(grown)}; exported at {new}, others may be folded"
        )
        yield Finding("batch_in_constants", text)
    if rebatched.guessed:
        text = f"tensors of one sample are taken to be {new} long: {listed(rebatched.guessed)}"
        yield Finding("batch_of_one", f"{text}; export with a symbolic batch to be certain")
    if rebatched.shared:
        text = f"tensors of one sample are taken to serve all {new}: {listed(rebatched.shared)}"
        yield Finding("batch_of_one", f"{text}; export with a symbolic batch to be certain")


def inferred(
    bound: onnx.ModelProto, values: Mapping[str, Array] = MappingProxyType({})
) -> tuple[onnx.ModelProto, Walked]:
    """Run the engines until nothing is open or none of them helps.

    Comes back: the model with its shapes, and what was learnt beside them.
    """
    proto = _inferred_whole(bound)
    return proto, completed(proto, values)


def completed(proto: onnx.ModelProto, values: Mapping[str, Array]) -> Walked:
    """Let the other engines find what onnx has left open of the whole graph, in place."""
    types = [(graph, known_types(graph)) for graph in graphs_in(proto.graph)]
    highest_rank = _forget_high_ranks(types)
    if highest_rank:
        # To derive them again, node by node, would take the square of the ranks.
        return Walked({}, {}, highest_rank=highest_rank)
    if not any(open_names(graph, known) for graph, known in types):
        return Walked({}, {}, types=types[0][1])
    walked = propagate(proto, values)
    for _ in range(_MAX_ROUNDS):
        known = known_types(proto.graph)
        if not num_open(proto, known):
            return replace(walked, types=known)
        if not infer_symbolically(proto, walked.values, walked.refused.keys()):
            break
        walked = propagate(proto, values)
    return walked


def _inferred_whole(bound: onnx.ModelProto) -> onnx.ModelProto:
    """What onnx says of the whole graph; where it cannot be asked, the walk starts from nothing."""
    bodies = (bound.graph.node, *(function.node for function in bound.functions))
    opsets = {entry.domain: entry.version for entry in bound.opset_import}
    if any(ends_the_process(nodes, opsets) for nodes in bodies):
        return bound
    try:
        return onnx.shape_inference.infer_shapes(bound)
    except Exception:  # noqa: BLE001 - it refuses models that run
        return bound


def _forget_high_ranks(types: Iterable[tuple[onnx.GraphProto, Mapping[str, Known]]]) -> int:
    """Clear the shapes past the bound, in place; the highest rank of these, 0 where none is.

    ``types`` are all graphs with their ``known_types``: no such shape is complete.
    """
    highest = 0
    for graph, known in types:
        if all(each.is_complete for each in known.values()):
            continue
        for value in (*graph.input, *graph.output, *graph.value_info):
            dims = value.type.tensor_type.shape.dim
            rank = len(dims)
            if rank > FEW_DIMS and is_past_all([dim.dim_value for dim in dims]):
                value.type.tensor_type.ClearField("shape")
                highest = max(highest, rank)
    return highest


def num_open(model: onnx.ModelProto, types: Mapping[str, Known] | None = None) -> int:
    """Count the node outputs whose type is not complete, subgraphs included.

    ``types`` are the ``known_types`` of the model's graph, where they are at hand.
    """
    outer, *inner = graphs_in(model.graph)
    return len(open_names(outer, types)) + sum(len(open_names(graph)) for graph in inner)


def lost_types(graph: onnx.GraphProto, before: onnx.GraphProto) -> list[str]:
    """Outputs known before and open now, of nodes whose inputs are known: where a batch stops."""
    lost = open_names(graph) - open_names(before)
    return [
        node.output[0]
        for node in graph.node
        if not lost.isdisjoint(node.output) and lost.isdisjoint(node.input)
    ]


def open_names(graph: onnx.GraphProto, types: Mapping[str, Known] | None = None) -> set[str]:
    """The node outputs of one graph whose type is not complete.

    ``types`` are the graph's ``known_types``, where they are at hand.
    """
    known = known_types(graph) if types is None else types
    complete = {name for name, each in known.items() if each.is_complete} | {""}
    found = {name for node in graph.node for name in node.output[:] if name not in complete}
    if not found:
        return found
    return found.difference(
        *(node.output for node in graph.node if node.op_type == "Constant" and not node.domain)
    )


def _with_bound_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """Copy a model with numbers for the inputs' dims and without the shapes that it declares."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for graph in graphs_in(bound.graph):
        forget_shapes(graph)
    for value in given_inputs(bound.graph):
        if value.name in shapes:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in shapes[value.name]
            )
    return bound
