"""Change the batch of a model with a fixed batch, by rewriting the constants that contain it.

Exporters write the batch of the example input into constants: the targets of Reshape and Expand,
class tokens and masks that are folded to ``[batch, 1, ...]``. The nodes are visited in topological
order, with their shapes at the old batch and the batch axis of each tensor.

The target of a Reshape changes on the axis that has the batch afterwards, the sizes of a Resize on
the batch axis of its data. The target of an Expand changes on axis 0, unless it follows already; if
the old batch is 1, only if the output is combined with the batch. An operand that is combined with
the batch along the batch axis, in elementwise arithmetic, in a MatMul, in a Concat along another
axis or as the state of a recurrent layer, must have the batch too, so its origin is rewritten. A
constant of shape ``[batch, 1, ...]`` with the elements 0, 1, 2... indexes samples and is extended.

While shapes are inferred, placeholders replace the constants. Afterwards the constants of the file
are restored, with one new constant for all that were resized to the same dims
(``without_placeholders``).
"""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import Array, constant_tensor
from onnxmem.model.shapes.batch_axes import (
    RECURRENT,
    BatchAxis,
    BatchOperand,
    Origin,
    OriginSearch,
    Source,
    computing_nodes,
    count_on,
    expanded,
    grown,
    inherited,
    is_state,
    landing,
    may_be_of_a_sample,
    operands_with_batch,
    reshaped,
    resized,
)
from onnxmem.model.shapes.folding import MAX_ELEMENTS, Folder, extent, type_with_value
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known, add_types
from onnxmem.model.traversal import onnx_op, outer_reads, subgraphs
from onnxmem.model.value_types import dense_type, dims_of, is_complete
from onnxmem.ops.spec import Dims

_ROW_MAJOR = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that change dims but not the order of elements."""
_MAX_TRIED = 20_000
"""Nodes that trials may visit again in total; operands beyond that are not changed but reported."""
_LARGEST_DIM = 2**63 - 1
_TARGETS = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""The index of the input that has the output's dims."""


@dataclass(frozen=True, slots=True)
class RewrittenBatch:
    """The result of rewriting."""

    failures: tuple[str, ...]
    """Outputs of nodes that cannot have the new batch."""
    placeholders: Mapping[str, str]
    """Placeholder -> the constant that it replaces while shapes are inferred."""
    is_rewritten: bool
    """Whether any constant was rewritten."""
    counts_on: bool
    """Whether constants that index samples were extended, permanently."""
    grown: frozenset[str] = frozenset()
    """The placeholders of data, which have the length of the batch."""
    guessed: tuple[str, ...] = ()
    """Tensors of an export at batch 1 that were assumed to have one copy per sample."""
    shared: tuple[str, ...] = ()
    """Tensors of an export at batch 1 that were assumed to be one for all samples."""


def rewrite_batch(
    model: onnx.ModelProto,
    at_old: onnx.ModelProto,
    old: int,
    new: int,
    at_new: onnx.ModelProto | None = None,
) -> RewrittenBatch:
    """Rewrite, in place, the constants of a model whose inputs have the new batch already.

    ``at_old`` is the same model with inferred shapes of the old batch, ``at_new`` with what onnx
    infers for the new one before constants are rewritten, if that succeeded.
    """
    old_types: dict[str, onnx.TypeProto] = {}
    add_types(at_old.graph, old_types)
    whole_types: dict[str, onnx.TypeProto] = {}
    counted = count_on(model.graph, old, new)
    # If constants were counted on, onnx inferred the new batch with what they were before.
    if at_new is not None and not counted:
        add_types(at_new.graph, whole_types)
    engines = NodeInference(model), Folder(model.opset_import)
    walk = BatchRewrite(model, old_types, old, new, engines, whole_types)
    failures = tuple(walk.failures())
    return RewrittenBatch(
        failures,
        walk.placeholders,
        counted or bool(walk.placeholders),
        counted,
        frozenset(walk.grown & walk.placeholders.keys()),
        tuple(walk.guessed),
        tuple(walk.shared),
    )


def _hollow(data_type: int, dims: Sequence[int]) -> onnx.TensorProto:
    """A tensor without elements."""
    location = onnx.TensorProto.EXTERNAL
    return onnx.TensorProto(data_type=data_type, dims=dims, data_location=location)


def _constant_dims(graph: onnx.GraphProto) -> dict[str, Dims]:
    nodes = ((node.output[0], constant_tensor(node)) for node in graph.node)
    stored = [(tensor.name, tensor) for tensor in graph.initializer]
    stored += [(name, tensor) for name, tensor in nodes if tensor is not None]
    return {name: tuple(tensor.dims) for name, tensor in stored}


@dataclass(slots=True)
class BatchRewrite:
    """Visits nodes in order and rewrites their constants; mutable.

    Invariant: of every tensor of the nodes visited so far, ``types`` and ``values`` are those at
    the new batch, and ``batch_axes`` has the axis of those that have the batch.
    """

    model: onnx.ModelProto
    old_types: Mapping[str, onnx.TypeProto]
    old: int
    new: int
    engines: tuple[NodeInference, Folder]
    whole_types: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    """Types that onnx inferred at the new batch; valid for what no rewritten constant affects."""
    rewritten: set[str] = field(default_factory=set)
    """Rewritten constants and all tensors that depend on one."""
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    old_dims: dict[str, Dims] = field(default_factory=dict)
    """A cache of the dims in ``old_types``."""
    batch_axes: dict[str, BatchAxis] = field(default_factory=dict)
    producers: dict[str, tuple[int, onnx.NodeProto]] = field(default_factory=dict)
    """The nodes visited so far, numbered in order, by output."""
    constants: dict[str, Dims] = field(default_factory=dict)
    guessed: dict[str, None] = field(default_factory=dict)
    """As in ``RewrittenBatch``; a dict keeps the order."""
    shared: dict[str, None] = field(default_factory=dict)
    num_tried: int = 0
    """Nodes that trials have visited again."""
    placeholders: dict[str, str] = field(default_factory=dict)
    grown: set[str] = field(default_factory=set)
    """The placeholders of data."""

    def failures(self) -> Iterator[str]:
        """Visit and rewrite all nodes; yields the outputs of nodes that cannot have the batch."""
        graph = self.model.graph
        add_known(graph, self.types, self.values)
        self.constants = _constant_dims(graph)
        for value in graph.input:
            self.find_batch(value.name, ())
        for node in graph.node:
            if not self.rewrite_node(node):
                yield node.output[0]
            self.producers.update(dict.fromkeys(node.output, (len(self.producers), node)))
        yield from self._left_behind(graph)

    def rewrite_node(self, node: onnx.NodeProto) -> bool:
        """Rewrite the constants of a node and infer its outputs; false if it cannot follow."""
        follows = self._grow_operands(node) and self._follows(node)
        if self.old == 1 and onnx_op(node) in RECURRENT:
            self._grow_first_states(node)
        self._infer(node)
        return follows

    def _infer(self, node: onnx.NodeProto) -> None:
        # Types from the inference of the whole graph are reused as far as no rewritten constant
        # affects them: inferring nodes one by one takes several times as long.
        if not self.rewritten.isdisjoint(node.input):
            self.rewritten.update(node.output)
        found = {name: self.whole_types[name] for name in node.output if name in self.whole_types}
        is_whole = self.rewritten.isdisjoint(node.output) and all(map(is_complete, found.values()))
        inference, folder = self.engines
        if not (is_whole and len(found) == len(node.output)):
            found = inference.output_types(node, self.types, self.values)
        self.types.update(found)
        for name, value in folder.values_of(node, self.values, self.types).items():
            self.values[name] = value
            if not is_complete(self.types.get(name)):
                self.types[name] = type_with_value(self.types.get(name), value)
        for name in node.output:
            self.find_batch(name, node.input, is_row_major=onnx_op(node) in _ROW_MAJOR)

    def find_batch(self, name: str, inputs: Sequence[str], *, is_row_major: bool = False) -> None:
        """Find the batch axis of a tensor whose shape is known at both batches."""
        old, new = self._old(name), dims_of(self.types.get(name))
        # A shape that is the same at both batches has no batch in it.
        if not old or not new or old == new:
            return
        sources = [(self.batch_axes[i], self._old(i)) for i in inputs if i in self.batch_axes]
        if is_row_major and sources:
            batch_axis = landing(sources[0][0].elements_before(sources[0][1]), old, self.old)
        else:
            batch_axis = inherited(old, new, sources)
        if batch_axis is not None:
            self.batch_axes[name] = batch_axis

    def _old(self, name: str) -> Dims:
        if name not in self.old_dims:
            self.old_dims[name] = dims_of(self.old_types.get(name)) or ()
        return self.old_dims[name]

    def _follows(self, node: onnx.NodeProto) -> bool:
        """Rewrite a target that contains the old batch; false if there is no target for the new."""
        index = _TARGETS.get(onnx_op(node))
        if index is None:
            return True
        name = node.input[index] if index < len(node.input) else ""
        target_value, before = self.values.get(name), dims_of(self.old_types.get(node.output[0]))
        data = dims_of(self.types.get(node.input[0])) if node.input else None
        if (
            target_value is None
            or before is None
            or data is None
            or target_value.dtype.kind not in "iu"
        ):
            return True
        dims = tuple(int(dim) for dim in target_value.ravel())
        target: Dims | None
        if onnx_op(node) == "Expand":
            if self.old == 1 and node.input[0] not in self.batch_axes:
                # A 1 in the target may be the batch or not; that shows where the output is used.
                return True
            target = expanded(dims, before, data, self.old, self.new)
            if target and not self._grow_expanded(node, target):
                return False
        else:
            source = Source(self._old(node.input[0]), data, self.batch_axes.get(node.input[0]))
            rule = resized if onnx_op(node) == "Resize" else reshaped
            target = rule(dims, before, source, self.old, self.new)
        if target and max(target) > _LARGEST_DIM:
            return False
        if target:
            self._set_target(node, index, target)
        # A rule gives ``()`` if no target has the new batch, and ``None`` if the old one still
        # fits.
        return target != ()

    def _set_target(self, node: onnx.NodeProto, index: int, target: Dims) -> None:
        value = np.array(target, np.int64)
        self._add_placeholder(node, index, onnx.numpy_helper.from_array(value), value)

    def _grow_expanded(self, node: onnx.NodeProto, target: Dims) -> bool:
        """Resize data that has the old batch on an axis on which a target has the new one."""
        data = self._old(node.input[0])
        shift = len(target) - len(data)
        for axis, dim in enumerate(data):
            if dim == self.old != 1 and shift >= 0 and target[axis + shift] == self.new:
                is_with_batch = node.input[0] in self.batch_axes
                return is_with_batch or self._grow_at_origin(
                    node, BatchOperand(0, BatchAxis(axis), is_certain=True)
                )
        return True

    def _grow_operands(self, node: onnx.NodeProto) -> bool:
        """Resize operands that must have the batch; false if one cannot."""
        old = {name: self._old(name) for name in node.input if name}
        follows = True
        for operand in list(operands_with_batch(node, self.batch_axes, old, self.old)):
            name = node.input[operand.index]
            has_grown = self._grow_at_origin(node, operand)
            if operand.is_certain:
                follows &= has_grown
            elif has_grown:
                self.guessed[name] = None
            elif self._may_be_of_a_sample(name):
                self.shared[name] = None
        return follows

    def _grow_first_states(self, node: onnx.NodeProto) -> None:
        """Resize constants that are expanded to the batch, as an export at that batch has them.

        The default state of a recurrent layer of torch is ``zeros(layers, batch, hidden)``. The
        TorchScript exporter folds it, and adds an Expand to the computed batch.
        """
        for index in RECURRENT[onnx_op(node)]:
            name = node.input[index] if index < len(node.input) else ""
            _, producer = self.producers.get(name, (0, None))
            if producer is None or onnx_op(producer) != "Expand" or name not in self.batch_axes:
                continue
            batch_axis, dims = self.batch_axes[name], self.constants.get(producer.input[0], ())
            if len(dims) == len(self._old(name)) and dims[batch_axis.axis] == 1:
                self._grow(producer, 0, batch_axis)

    def _may_be_of_a_sample(self, name: str) -> bool:
        if name in self.constants:
            return may_be_of_a_sample(self.constants[name], self.values.get(name))
        nodes = computing_nodes(name, self.producers, self.batch_axes)
        return bool(nodes) and prod(self._old(name)) > 1

    def _grow_at_origin(self, node: onnx.NodeProto, operand: BatchOperand) -> bool:
        """Resize an operand by rewriting its origin; false if there is none."""
        index, name = operand.index, node.input[operand.index]
        search = self._search(
            is_certain=operand.is_certain, constants_first=onnx_op(node) in RECURRENT
        )
        if name in self.constants:
            if not operand.is_certain and not is_state(self.constants[name], self.values.get(name)):
                return False
            self._grow(node, index, operand.batch_axis)
            return True
        wanted = grown(self._old(name), operand.batch_axis, self.old, self.new)
        if self._grow_to(name, wanted, search):
            return True
        if operand.is_certain:
            # Later nodes get the new batch anyway, so that one failure does not spread.
            self._grow(node, index, operand.batch_axis)
        return False

    def _search(self, *, is_certain: bool, constants_first: bool = False) -> OriginSearch:
        return OriginSearch(
            constants=self.constants,
            old_dims=self._old,
            values=self.values,
            old=self.old,
            new=self.new,
            is_certain=is_certain,
            constants_first=constants_first,
        )

    def _grow_to(self, name: str, wanted: Dims, search: OriginSearch) -> bool:
        """Rewrite the origin that gives a tensor these dims, and all nodes after it."""
        # Several inputs may have the length of the batch by chance. Each is tried in turn, the most
        # likely first, and undone unless it gives exactly the dims that are wanted.
        nodes = computing_nodes(name, self.producers, self.batch_axes)
        for origin in search.origins(nodes):
            if self.num_tried >= _MAX_TRIED:
                return False
            trial = _Trial.of(self, nodes)
            if self._follows_from(origin, nodes) and dims_of(self.types.get(name)) == wanted:
                return True
            trial.undo()
        return False

    def _follows_from(self, origin: Origin, nodes: Sequence[onnx.NodeProto]) -> bool:
        """Rewrite an origin and visit the nodes after it again; false if one cannot follow."""
        if origin.target is None:
            self._grow(origin.node, origin.index, origin.batch_axis)
        else:
            self._set_target(origin.node, origin.index, origin.target)
        changed: set[str] = set()
        for node in nodes:
            # Only nodes behind a change can differ; all others keep their types.
            if node is not origin.node and changed.isdisjoint(node.input):
                continue
            self.num_tried += 1
            changed.update(node.output)
            self.forget(node)
            if not self.rewrite_node(node) or any(
                name not in self.types for name in node.output if name
            ):
                return False
        return True

    def _grow(self, node: onnx.NodeProto, index: int, batch_axis: BatchAxis) -> None:
        name = node.input[index]
        dims = grown(self._old(name), batch_axis, self.old, self.new)
        value = self.values.get(name)
        # Values of more elements are computed nowhere: at a batch of millions they take gigabytes.
        if (
            value is not None
            and extent(dims) <= MAX_ELEMENTS
            and batch_axis.outer == 1
            and value.shape[batch_axis.axis] == self.old
        ):
            # Elements matter if they are indices: those of existing samples are repeated.
            value = np.take(value, np.arange(self.new) % self.old, batch_axis.axis)
            tensor = onnx.numpy_helper.from_array(value)
        else:
            value = None
            tensor = _hollow(self.old_types[name].tensor_type.elem_type, dims)
        placeholder = self._add_placeholder(node, index, tensor, value)
        if name in self.constants:
            self.grown.add(placeholder)
        self.batch_axes[placeholder], self.old_dims[placeholder] = batch_axis, self._old(name)

    def _add_placeholder(
        self, node: onnx.NodeProto, index: int, tensor: onnx.TensorProto, value: Array | None
    ) -> str:
        """Replace an input of a node; other nodes may still read the old constant."""
        tensor.name = f"{node.output[0]}/placeholder_{len(self.placeholders)}"
        self.model.graph.initializer.append(tensor)
        present = node.input[index]
        # A placeholder may be replaced by another one: each refers to the constant of the file.
        self.placeholders[tensor.name] = self.placeholders.get(present, present)
        self.rewritten.add(tensor.name)
        node.input[index] = tensor.name
        self.types[tensor.name] = dense_type(tensor.data_type, tensor.dims)
        if value is not None:
            self.values[tensor.name] = value
        return tensor.name

    def forget(self, node: onnx.NodeProto) -> None:
        """Remove what is known of a node's outputs at the new batch."""
        for name in node.output:
            self.types.pop(name, None)
            self.values.pop(name, None)
            self.batch_axes.pop(name, None)

    def _left_behind(self, graph: onnx.GraphProto) -> Iterator[str]:
        """Graph outputs with the old batch on axis 0 that did not change, and cannot be changed."""
        for value in graph.output:
            old, new = self._old(value.name), dims_of(self.types.get(value.name))
            if old and old == new and old[0] == self.old:
                wanted = grown(old, BatchAxis(0), self.old, self.new)
                search = self._search(is_certain=self.old > 1)
                if not self._grow_to(value.name, wanted, search):
                    yield value.name


@dataclass(frozen=True, slots=True)
class _Trial:
    """The state before a trial, to be restored if it fails."""

    walk: BatchRewrite
    nodes: Sequence[onnx.NodeProto]
    inputs: Sequence[Sequence[str]]
    types: Mapping[str, onnx.TypeProto]
    values: Mapping[str, Array]
    batch_axes: Mapping[str, BatchAxis]
    num_placeholders: int

    @classmethod
    def of(cls, walk: BatchRewrite, nodes: Sequence[onnx.NodeProto]) -> "_Trial":
        """Save what visiting these nodes again may change."""
        outputs = {name for node in nodes for name in node.output}
        return cls(
            walk,
            nodes,
            [tuple(node.input) for node in nodes],
            {name: walk.types[name] for name in outputs & walk.types.keys()},
            {name: walk.values[name] for name in outputs & walk.values.keys()},
            {name: walk.batch_axes[name] for name in outputs & walk.batch_axes.keys()},
            len(walk.placeholders),
        )

    def undo(self) -> None:
        """Restore the saved state, and remove the placeholders added since."""
        # Placeholders and their initializers are appended together, so both lists are cut by the
        # same number.
        walk = self.walk
        for node, names in zip(self.nodes, self.inputs, strict=True):
            walk.forget(node)
            node.input[:] = names
        walk.types.update(self.types)
        walk.values.update(self.values)
        walk.batch_axes.update(self.batch_axes)
        for name in [*walk.placeholders][self.num_placeholders :]:
            del walk.placeholders[name]
            del walk.model.graph.initializer[-1]


def without_placeholders(
    graph: onnx.GraphProto, placeholders: Mapping[str, str], grown: AbstractSet[str]
) -> None:
    """Restore the targets of the file, in place, and merge resized constants of equal dims.

    A constant that is resized for all of its readers keeps its name; otherwise the resized one is a
    new constant. ``grown`` are the placeholders of data.
    """
    grown_as = {t.name: tuple(t.dims) for t in graph.initializer if t.name in grown}
    read = {name for each in graph.node for name in each.input} | {o.name for o in graph.output}
    read |= {name for each in graph.node for _, g in subgraphs(each) for name in outer_reads(g)}
    names: dict[tuple[str, Dims], str] = {}
    taken: set[str] = set()
    for placeholder, dims in grown_as.items():
        source = placeholders[placeholder]
        is_only = source not in read and source not in taken
        taken.add(names.setdefault((source, dims), source if is_only else placeholder))
    new = {**placeholders, **{s: names[placeholders[s], dims] for s, dims in grown_as.items()}}
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = new.get(name, name)
    of_placeholder = {t.name: t for t in graph.initializer if t.name in grown_as}
    replaced = {names[placeholders[s], d]: of_placeholder[s] for s, d in grown_as.items()}
    _replace_constants(graph, replaced, placeholders)


def _replace_constants(
    graph: onnx.GraphProto, new: Mapping[str, onnx.TensorProto], placeholders: Mapping[str, str]
) -> None:
    """Replace the elements of constants, and delete the placeholders that nothing reads now."""
    remaining = [t for t in graph.initializer if t.name not in placeholders or t.name in new]
    for tensor in remaining:
        if tensor.name in new and tensor.name not in placeholders:
            name = tensor.name
            tensor.CopyFrom(new[name])
            tensor.name = name
    for node in graph.node:
        if onnx_op(node) == "Constant" and node.output[0] in new:
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", new[node.output[0]]))
    del graph.initializer[:]
    graph.initializer.extend(remaining)
