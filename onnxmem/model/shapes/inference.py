"""Infer the shapes of all tensors, with three engines in turn.

1. onnx's shape inference runs over the whole graph in C++ and leaves few shapes unknown. Its data
   propagation is disabled: it stores the elements of vectors of any length, and a file of 89 bytes
   makes it take 9.8 GB. Nodes that it gives other dims than onnxruntime are hidden from it, with
   what follows from them (``corrections``).
2. If shapes are unknown, ``propagation`` visits the nodes one by one, computes shape arithmetic and
   applies our own rules.
3. What is still unknown is passed to onnx-shape-inference (``infer_symbolically``), which has shape
   functions for more operators. That library stores the elements of every integer vector and gives
   a Reshape as many dims as its target has elements, without a limit: a file of 1 kB that doubles a
   vector thirty times would take all memory. So it gets only the nodes whose outputs are unknown,
   with what is known of their inputs, but no Reshape or Expand with a long target and no Concat
   that may produce a long list. Its results for Split and Squeeze with a second input that is not
   constant, for a Slice of an unknown dim, and for an If of which it knows only one branch, are
   wrong, so these are excluded. It is imported on first use, which takes a quarter of a second.

Shapes that the file declares (``value_info``) are used only if none can be inferred, and marked.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import onnx
import onnx.numpy_helper
import onnx.shape_inference

from onnxmem.errors import Finding, listed
from onnxmem.model.binding import Binding, evaluated, input_dims
from onnxmem.model.bounds import BOUNDS, FEW_DIMS, is_past_all, variable
from onnxmem.model.constants import Array
from onnxmem.model.shapes.corrections import has_other_dims, nodes_that_may_differ
from onnxmem.model.shapes.node_inference import (
    ends_the_process,
    has_long_target,
    has_odd_parts,
    may_be_long_list,
)
from onnxmem.model.shapes.propagation import Walked, propagate
from onnxmem.model.traversal import graphs_in, nodes_in, onnx_op, opset_versions, subgraphs
from onnxmem.model.value_types import (
    Known,
    dense_type,
    forget_shapes,
    is_complete,
    known_types,
    merged,
    shape_of,
)
from onnxmem.ops.spec import Shape

if TYPE_CHECKING:
    from onnxmem.model.shapes.batch_rewrite import RewrittenBatch


@dataclass(frozen=True, slots=True)
class Declared:
    """How declared shapes were used; names of tensors, without scope."""

    used: tuple[str, ...]
    """Tensors whose shape could not be inferred: the declared one is used."""
    contradicted: tuple[str, ...]
    """Tensors with another declared than inferred shape: the inferred one is used."""
    has_changed: bool = False
    """Whether any type of the model was changed."""


def _use_declared(
    model: onnx.ModelProto,
    original: onnx.ModelProto,
    dims: Mapping[str, int],
    derived: Mapping[str, Known] | None,
) -> Declared:
    """Complete types of ``model``, in place, by the ``value_info`` of the original.

    ``dims`` are the numbers of symbols; declarations with other symbols are ignored. ``derived``
    are the ``known_types`` of the model's graph, if they are known already.
    """
    used: list[str] = []
    contradicted: list[str] = []
    has_changed = False
    known = derived or {}
    for graph, source in _pairs(model.graph, original.graph):
        bound = (
            (value.name, _bound(value.type, dims)) for value in (*source.value_info, *source.output)
        )
        found = _complete(graph, [each for each in bound if not _agrees(known, *each)])
        # ``derived`` belongs to the main graph, which is the first pair.
        known = {}
        used += found.used
        contradicted += found.contradicted
        has_changed |= found.has_changed
    return Declared(tuple(used), tuple(contradicted), has_changed)


def _complete(
    graph: onnx.GraphProto, declarations: Sequence[tuple[str, onnx.TypeProto | None]]
) -> Declared:
    """Complete the types of one graph by declarations that do not agree with its own.

    An inferred shape wins over a declared one: ``value_info`` often belongs to another batch, or to
    the graph before a tool changed it. A declared present key-value tensor as long as the past that
    it may share a buffer with is the exception.
    """
    names = {name for name, declared_type in declarations if declared_type is not None} - {""}
    if not names:
        return Declared((), ())
    types = {
        value.name: value for value in (*graph.value_info, *graph.output) if value.name in names
    }
    written = {name for node in graph.node for name in node.output[:]} & names
    read, buffers = {value.name: value.type for value in graph.input}, _buffers(graph)
    used: list[str] = []
    contradicted: list[str] = []
    has_changed = False
    for name, declared_type in declarations:
        if declared_type is None or name not in written:
            continue
        entry = types.get(name)
        if entry is not None and _differ(shape_of(entry.type), shape_of(declared_type)):
            past = read.get(buffers.get(name, ""))
            if past is not None and shape_of(declared_type) == shape_of(past):
                entry.type.CopyFrom(declared_type)
                has_changed = True
            else:
                contradicted.append(name)
        elif entry is None or not is_complete(entry.type):
            entry = entry or graph.value_info.add(name=name)
            entry.type.CopyFrom(declared_type)
            used.append(name)
    return Declared(tuple(used), tuple(contradicted), has_changed or bool(used))


def agree(original: onnx.GraphProto, dims: Mapping[str, int], types: Mapping[str, Known]) -> bool:
    """Whether all declared types of a graph are complete and agree with the inferred ones."""
    return agree_with(
        ((v.name, v.type) for v in (*original.value_info, *original.output)), dims, types
    )


def agree_with(
    declared: Iterable[tuple[str, onnx.TypeProto]],
    dims: Mapping[str, int],
    types: Mapping[str, Known],
) -> bool:
    """The same for declared types by name."""
    bound = ((name, _bound(proto, dims)) for name, proto in declared)
    return all(proto is None or _agrees(types, name, proto) for name, proto in bound)


def _pairs(
    graph: onnx.GraphProto, source: onnx.GraphProto
) -> Iterator[tuple[onnx.GraphProto, onnx.GraphProto]]:
    """Each graph of a model with the corresponding graph of its original."""
    # Inference adds no node and keeps their order, so that equal indices are the same node.
    stack = [(graph, source)]
    while stack:
        graph, source = stack.pop()
        yield graph, source
        originals = [(index, node) for index, node in enumerate(source.node) if node.attribute]
        for index, original in originals:
            if bodies := subgraphs(original):
                pairs = zip(subgraphs(graph.node[index]), bodies, strict=True)
                stack.extend((inner, other) for (_, inner), (_, other) in pairs)


def _buffers(graph: onnx.GraphProto) -> dict[str, str]:
    """Present -> past key-value tensors that may share one buffer of maximal length.

    The present of GroupQueryAttention has the length of its past or of all tokens, whichever is
    longer (contrib ops, ``BaseGroupQueryAttentionTypeAndShapeInference``); the number of tokens is
    the value of an input.
    """
    return {
        present: past
        for node in graph.node
        if node.op_type == "GroupQueryAttention" and node.domain == "com.microsoft"
        for past, present in zip(node.input[3:5], node.output[1:3], strict=False)
        if past and present
    }


def _agrees(types: Mapping[str, Known], name: str, declared_type: onnx.TypeProto | None) -> bool:
    """Whether a known type is complete and equal to the declared one."""
    known = types.get(name)
    if declared_type is None or known is None or not known.is_complete:
        return False
    return not _differ(known.shape, shape_of(declared_type))


def _differ(derived: Shape | None, declared: Shape | None) -> bool:
    """Whether two shapes contradict each other: different ranks, or different numbers in a dim."""
    if derived is None or declared is None:
        return False
    pairs = zip(derived, declared, strict=False)
    return len(derived) != len(declared) or any(a != b for a, b in pairs if None not in {a, b})


def _bound(proto: onnx.TypeProto, dims: Mapping[str, int]) -> onnx.TypeProto | None:
    """A declared type with numbers for its symbols; ``None`` if a dim stays unknown."""
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    numbers = [
        dim.dim_value if dim.HasField("dim_value") else evaluated(dim.dim_param, dims)
        for dim in proto.tensor_type.shape.dim
    ]
    known = [number for number in numbers if number is not None and number >= 0]
    if len(known) < len(numbers) or not proto.tensor_type.elem_type:
        return None
    return dense_type(proto.tensor_type.elem_type, known)


CONTRADICTORY = "contradictory_inputs"
"""The code of the finding on nodes whose inputs do not fit together."""

_MAX_DIM = 2**63 - 1
_RANK_IS_A_LENGTH = frozenset({"Expand", "Reshape"})
"""Operators whose output has a dim for each element of their second input."""
_WRONG_WITHOUT_CONSTANTS = frozenset({"Split", "Squeeze"})
_HIDDEN = "Hidden"
"""An operator that onnx does not know."""
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})

_Types = Mapping[str, onnx.TypeProto]


def infer_symbolically(
    model: onnx.ModelProto, values: Mapping[str, Array], refused: AbstractSet[str]
) -> bool:
    """Complete types of the top-level graph in place; true if any was completed.

    ``values`` are those of small constants. ``refused`` are outputs of nodes whose inputs do not
    fit; they and what depends on them are excluded.
    """
    graph = model.graph
    entries = {value.name: value for value in (*graph.value_info, *graph.output)}
    types = {value.name: value.type for value in (*graph.input, *entries.values())}
    types |= {t.name: dense_type(t.data_type, t.dims) for t in graph.initializer}
    nodes = list(_open_nodes(graph, types, values, refused))
    derived = _derived(_part(model, nodes, types, values)) if nodes else {}
    for name, found in derived.items():
        if name not in entries:
            entries[name] = graph.value_info.add(name=name)
        entries[name].type.CopyFrom(merged(entries[name].type, found))
    return bool(derived)


def _open_nodes(
    graph: onnx.GraphProto, types: _Types, values: Mapping[str, Array], refused: AbstractSet[str]
) -> Iterator[onnx.NodeProto]:
    """Nodes with unknown outputs that do not depend on a node that the library gets wrong."""
    # ``left_out`` has every unknown tensor that is excluded so far. Nodes are in topological order,
    # so a node that depends on one sees it there.
    left_out = set(refused)
    for node in graph.node:
        unknown = {name for name in node.output if name and not is_complete(types.get(name))}
        if not unknown:
            continue
        if left_out.isdisjoint((*node.input, *unknown)) and _is_sound(node, types, values):
            yield node
        else:
            left_out |= unknown


_WRONG_TYPES = frozenset({"QGemm"})
"""Operators of onnxruntime for which the library returns the type of the scale."""


def _is_sound(node: onnx.NodeProto, types: _Types, values: Mapping[str, Array]) -> bool:
    """Whether the library's result for a node is right."""
    if node.op_type in _WRONG_TYPES:
        return False
    operator, operands = onnx_op(node), node.input[1:]
    if operator in _WRONG_WITHOUT_CONSTANTS:
        return values.keys() >= {*operands} and not has_odd_parts(node)
    if operator in _RANK_IS_A_LENGTH:
        return not has_long_target(node, types)
    if operator == "Concat":
        return not may_be_long_list(node, types)
    if operator == "Slice":
        # It takes a dim that it does not know for a long one, so that any stop is within it.
        return is_complete(types.get(node.input[0]))
    return operator not in _CONTROL_FLOW


def _part(
    model: onnx.ModelProto,
    nodes: list[onnx.NodeProto],
    types: _Types,
    values: Mapping[str, Array],
) -> onnx.ModelProto:
    """A model of some nodes; their other inputs are constants or graph inputs."""
    part = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    written = {name for node in nodes for name in node.output}
    read = dict.fromkeys(n for node in nodes for n in node.input if n and n not in written)
    for name in read:
        if name in values:
            part.graph.initializer.append(onnx.numpy_helper.from_array(values[name], name))
        else:
            part.graph.input.add(name=name, type=types.get(name))
    # Types that are known inside the part help the library on, as a file's ``value_info`` would.
    for name in sorted(written & types.keys()):
        part.graph.value_info.add(name=name, type=types[name])
    part.graph.node.extend(nodes)
    return part


def _keep_off_stderr(*names: str) -> None:
    """Add a null handler to loggers, unless the program has configured logging.

    Python prints the warnings of a logger without a handler to stderr.
    """
    logging = importlib.import_module("logging")
    for logger in map(logging.getLogger, names):
        if not logger.hasHandlers():
            logger.addHandler(logging.NullHandler())


def _derived(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The types of tensors for which the library finds numbers for all dims."""
    ir = importlib.import_module("onnx_ir")
    library = importlib.import_module("onnx_shape_inference")
    _keep_off_stderr("onnx_ir", "onnx_shape_inference")
    try:
        graph = library.infer_symbolic_shapes(
            ir.from_proto(model), warn_on_missing=False, adopt_declared_symbols=False
        ).graph
    except Exception:  # noqa: BLE001 - only the results of the library are lost
        return {}
    found = {}
    known = {value.name for value in model.graph.value_info if is_complete(value.type)}
    for value in (output for node in graph for output in node.outputs):
        if value.shape is None or value.dtype is None or not value.name or value.name in known:
            continue
        # Symbols of the library are its own: a dim that is not a number stays unknown.
        dims = [dim for dim in value.shape.dims if isinstance(dim, int) and 0 <= dim <= _MAX_DIM]
        if len(dims) == len(value.shape.dims):
            found[value.name] = dense_type(value.dtype.value, dims)
    return found


Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Graph inputs and their shapes."""

_MAX_ROUNDS = 3
"""Rounds of the two engines, whose results may help each other; more never found more."""
_MOST_COPIED_TYPES = 1_000_000
"""Subgraphs times nodes of the main graph up to which onnx infers the whole model: about 0.3 s."""


@dataclass(frozen=True, slots=True)
class Shaped:
    """A model with inferred shapes in ``value_info``."""

    proto: onnx.ModelProto
    assumed: frozenset[str]
    """Tensors of the top-level graph whose shapes are only declared."""
    follows_batch: bool
    """False: because of constants, some tensors have the fixed batch of the file."""
    findings: tuple[Finding, ...]
    has_new_constants: bool = False
    """Whether some constants were resized."""
    types: Mapping[str, Known] | None = None
    """The ``known_types`` of the top-level graph, if they are known already."""


def with_shapes(
    model: onnx.ModelProto,
    binding: Binding,
    values: Mapping[str, Array] = MappingProxyType({}),
    shaped_at_old: MutableMapping[Shapes, onnx.ModelProto] | None = None,
) -> Shaped:
    """Set the dims of inputs and infer all other shapes.

    ``values`` are known values of inputs. ``shaped_at_old`` caches the model with the shapes of its
    fixed batch, from which other batches start.
    """
    bound = with_bound_inputs(model, binding.shapes)
    if binding.old_batch is None or binding.batch is None:
        shaped = _with_declared(bound, model, binding, values)
        if (
            shaped_at_old is not None
            and shaped.types is not None
            and _fixes_all_dims(model, binding)
        ):
            shaped_at_old.clear()
            shaped_at_old[tuple(binding.shapes.items())] = shaped.proto
        return shaped
    from onnxmem.model.shapes.batch_rewrite import rewrite_batch, without_placeholders

    # Which constants contain the batch shows only in the shapes at the old batch, where the graph
    # is consistent: so these are inferred first, whatever batch is requested.
    at_old = _at_old_batch(model, binding, shaped_at_old)
    at_new = _inferred_whole(bound)
    rewritten = rewrite_batch(bound, at_old, binding.old_batch, binding.batch, at_new)
    # Declared shapes are those of the old batch, so they are not used from here on.
    if rewritten.is_rewritten:
        at_new = _inferred_whole(bound)
    walked = completed(at_new, values)
    failures = [*rewritten.failures, *_lost_types(at_new.graph, at_old.graph)]
    constants = _constant_findings(binding, rewritten)
    without_placeholders(at_new.graph, rewritten.placeholders, rewritten.grown)
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
        has_new_constants=rewritten.counts_on or bool(rewritten.grown),
    )


def _at_old_batch(
    model: onnx.ModelProto,
    binding: Binding,
    cached: MutableMapping[Shapes, onnx.ModelProto] | None,
) -> onnx.ModelProto:
    """The model with the shapes of its fixed batch, the other dims as bound."""
    shapes = binding.shapes_at_old_batch
    key = tuple(shapes.items())
    if cached is not None and key in cached:
        return cached[key]
    at_old, _ = inferred(with_bound_inputs(model, shapes))
    if cached is not None:
        # One entry is enough: the batches of a search are new ones, and all have the same old one.
        cached.clear()
        cached[key] = at_old
    return at_old


def _with_declared(
    bound: onnx.ModelProto, model: onnx.ModelProto, binding: Binding, values: Mapping[str, Array]
) -> Shaped:
    proto, walked = inferred(bound, values)
    if not _is_as_declared(model, binding):
        # Declared shapes belong to other shapes of inputs.
        findings = tuple(_walk_findings(proto, walked))
        return Shaped(proto, frozenset(), follows_batch=True, findings=findings, types=walked.types)
    declared = _use_declared(proto, model, binding.dims, walked.types)
    # What depends on these was unknown so far.
    if declared.used:
        propagate(proto, values, frozenset(declared.used))
    findings = (*_declared_findings(declared), *_walk_findings(proto, walked))
    # Types that were known before a declaration changed one are out of date.
    types = None if declared.has_changed else walked.types
    return Shaped(
        proto,
        frozenset(declared.used),
        follows_batch=True,
        findings=findings,
        types=types,
    )


def _fixes_all_dims(model: onnx.ModelProto, binding: Binding) -> bool:
    """Whether all dims of inputs are numbers in the file."""
    values = (value for value in model.graph.input if value.name in binding.shapes)
    return all(isinstance(dim, int) for value in values for dim in input_dims(value) or ())


def _is_as_declared(model: onnx.ModelProto, binding: Binding) -> bool:
    """Whether all dims of inputs that are numbers in the file have these numbers in effect."""
    pairs = (
        pair
        for value in model.graph.input
        for pair in zip(input_dims(value) or (), binding.shapes.get(value.name, ()), strict=False)
    )
    return all(declared == dim for declared, dim in pairs if isinstance(declared, int))


def _refusals(refused: Mapping[str, str]) -> Iterator[Finding]:
    """A finding on nodes whose inputs do not fit, with the reason of the first."""
    if refused:
        reason = next(iter(refused.values()))
        text = f"shapes contradict each other: {listed(list(refused))} cannot be computed; {reason}"
        yield Finding(CONTRADICTORY, text)


def _walk_findings(proto: onnx.ModelProto, walked: Walked) -> Iterator[Finding]:
    yield from _refusals(walked.refused)
    if walked.highest_rank:
        text = f"a tensor with {walked.highest_rank:,} dims has an unknown size: the limit is"
        text += f" {BOUNDS.rank} dims ({variable('rank')}), and 2^256 elements"
        yield Finding("bound_reached", text)
    if walked.left_out and _num_open(proto):
        text = f"shapes may be unknown because the values of {listed(walked.left_out)} have over"
        text += f" {BOUNDS.elements:,} elements ({variable('elements')})"
        yield Finding("bound_reached", text)


def _declared_findings(declared: Declared) -> Iterator[Finding]:
    if declared.used:
        text = f"shapes that cannot be inferred are taken from the file: {listed(declared.used)}"
        yield Finding("declared_shapes", text)
    if declared.contradicted:
        text = f"declared shapes differ from inferred ones: {listed(declared.contradicted)}"
        yield Finding("contradicted_shapes", text)


def _batch_findings(binding: Binding, failures: list[str]) -> tuple[Finding, ...]:
    if not failures:
        return ()
    text = (
        f"the batch size is fixed at {binding.old_batch} by constants that cannot be changed to "
        f"{binding.batch}, at {listed(failures)}; export with a symbolic batch"
    )
    return (Finding("batch_fixed", text),)


def _constant_findings(binding: Binding, rewritten: "RewrittenBatch") -> Iterator[Finding]:
    old, new = binding.old_batch, binding.batch
    grown = list(dict.fromkeys(rewritten.placeholders[name] for name in sorted(rewritten.grown)))
    if grown:
        text = (
            f"constants of the size of the batch are resized from {old} to {new}: "
            f"{listed(grown)}; an export at batch {new} may fold others"
        )
        yield Finding("batch_in_constants", text)
    if rewritten.guessed:
        text = f"dims of 1 are assumed to be the batch of {new}: {listed(rewritten.guessed)}"
        yield Finding("batch_of_one", f"{text}; export with a symbolic batch to be certain")
    if rewritten.shared:
        text = f"dims of 1 are assumed not to be the batch of {new}: {listed(rewritten.shared)}"
        yield Finding("batch_of_one", f"{text}; export with a symbolic batch to be certain")


def with_bound_inputs(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> onnx.ModelProto:
    """Copy a model with numbers for the dims of inputs, and without declared shapes."""
    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    # ``_complete`` compares the declared shapes with what is inferred without them.
    for graph in graphs_in(bound.graph):
        forget_shapes(graph)
    for value in bound.graph.input:
        if value.name in shapes:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.dim.extend(
                onnx.TensorShapeProto.Dimension(dim_value=dim) for dim in shapes[value.name]
            )
    return bound


def inferred(
    bound: onnx.ModelProto, values: Mapping[str, Array] = MappingProxyType({})
) -> tuple[onnx.ModelProto, Walked]:
    """Run the engines until all shapes are known or no engine finds more.

    Returns the model with its shapes, and the other results.
    """
    proto = _inferred_whole(bound)
    return proto, completed(proto, values)


def completed(proto: onnx.ModelProto, values: Mapping[str, Array]) -> Walked:
    """Complete, in place, what onnx has left unknown, with the other two engines."""
    types = [(graph, known_types(graph)) for graph in graphs_in(proto.graph)]
    highest_rank = _forget_high_ranks(types)
    if highest_rank:
        # Inferring them again, node by node, would take time quadratic in the ranks.
        return Walked({}, {}, highest_rank=highest_rank)
    if not any(open_names(graph, known) for graph, known in types):
        return Walked({}, {}, types=types[0][1])
    # Both engines only complete types and never change a known dim, so a round in which one finds
    # nothing new would repeat itself.
    walked = propagate(proto, values)
    for _ in range(_MAX_ROUNDS):
        known = known_types(proto.graph)
        if not _num_open(proto, known):
            return replace(walked, types=known)
        if not infer_symbolically(proto, walked.values, walked.refused.keys()):
            break
        walked = propagate(proto, values)
    return walked


def inferred_alone(bound: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, Array]] | None:
    """A model with its shapes, and the values of its graph, where nothing of it is to be reported.

    ``None``: inputs do not fit a node, or a limit is reached.
    """
    proto = _inferred_whole(bound)
    if _forget_high_ranks([(graph, known_types(graph)) for graph in graphs_in(proto.graph)]):
        return None
    walked = propagate(proto)
    return None if walked.refused or walked.left_out else (proto, walked.values)


def _inferred_whole(bound: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the shapes that onnx infers; unchanged if onnx would fail."""
    bodies = (bound.graph.node, *(function.node for function in bound.functions))
    opsets = opset_versions(bound)
    if any(ends_the_process(nodes, opsets) for nodes in bodies):
        return bound
    # For each subgraph onnx copies the types of all enclosing graphs (ShapeInferenceImplBase of
    # implementation.cc), which takes the square of a model with an If in every block. The walk over
    # the nodes finds the same without copies.
    num_subgraphs = sum(1 for _ in graphs_in(bound.graph)) - 1
    if num_subgraphs * len(bound.graph.node) > _MOST_COPIED_TYPES:
        return bound
    try:
        found = onnx.shape_inference.infer_shapes(bound)
    except Exception:  # noqa: BLE001 - it rejects models that run
        return bound
    return _inferred_around(bound) if has_other_dims(found) else found


def _inferred_around(bound: onnx.ModelProto) -> onnx.ModelProto:
    """The same where onnx infers other dims of a node than onnxruntime gives it.

    onnx sees an operator that it does not know in place of such nodes, so that nothing behind them
    is inferred from a wrong shape; the walk over the nodes does the rest.
    """
    hidden = onnx.ModelProto()
    hidden.CopyFrom(bound)
    for node in nodes_that_may_differ(hidden.graph):
        node.op_type = _HIDDEN
    found = onnx.shape_inference.infer_shapes(hidden)
    pairs = zip(nodes_in(found.graph.node), nodes_in(bound.graph.node), strict=True)
    for node, original in pairs:
        if node.op_type == _HIDDEN:
            node.op_type = original.op_type
    propagate(found)
    return found


def _forget_high_ranks(types: Iterable[tuple[onnx.GraphProto, Mapping[str, Known]]]) -> int:
    """Remove shapes beyond the limits, in place; returns their highest rank, or 0.

    ``types`` are all graphs with their ``known_types``, in which no such shape is complete.
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


def _num_open(model: onnx.ModelProto, types: Mapping[str, Known] | None = None) -> int:
    """The number of outputs of nodes with an incomplete type, subgraphs included.

    ``types`` are the ``known_types`` of the model's graph, if they are known already.
    """
    outer, *inner = graphs_in(model.graph)
    return len(open_names(outer, types)) + sum(len(open_names(graph)) for graph in inner)


def _lost_types(graph: onnx.GraphProto, before: onnx.GraphProto) -> list[str]:
    """Outputs with a known type before and an unknown one now, of nodes with known inputs."""
    # Only the first node of a chain is reported: for the others an input is lost as well.
    lost = open_names(graph) - open_names(before)
    return [
        node.output[0]
        for node in graph.node
        if not lost.isdisjoint(node.output) and lost.isdisjoint(node.input)
    ]


def open_names(graph: onnx.GraphProto, types: Mapping[str, Known] | None = None) -> set[str]:
    """The outputs of nodes of one graph with an incomplete type.

    ``types`` are the ``known_types`` of the graph, if they are known already.
    """
    known = known_types(graph) if types is None else types
    complete = {name for name, each in known.items() if each.is_complete} | {""}
    found = {name for node in graph.node for name in node.output[:] if name not in complete}
    if not found:
        return found
    return found.difference(
        *(node.output for node in graph.node if node.op_type == "Constant" and not node.domain)
    )
