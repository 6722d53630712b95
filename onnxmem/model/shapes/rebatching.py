"""Another batch for a model that fixes it: constants that carry the old one.

Exporters write the batch of the example input into constants: the targets of Reshape and Expand,
class tokens and masks that are folded to ``[batch, 1, ...]``. The nodes are walked in running order
with their shapes at the old batch at hand, and each tensor's place of the batch (``batch_place``).

A Reshape's target grows along the dim that the batch lands in, a Resize's sizes where the data has
the batch. An Expand's target grows in its
leading place, unless it follows already. A constant that meets a batch along the batch's own axis,
in elementwise arithmetic, in a Concat along another axis or as a recurrent layer's state, is as
long as the batch and grows with it. A constant of shape ``[batch, 1, ...]`` that counts 0, 1, 2...
indexes the samples, and counts on.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper

from onnxmem.model.constants import Array
from onnxmem.model.shapes.batch_indices import count_on
from onnxmem.model.shapes.batch_mixing import operands_with_batch
from onnxmem.model.shapes.batch_place import Place, grown, inherited, landing
from onnxmem.model.shapes.batch_targets import Source, expanded, reshaped, resized
from onnxmem.model.shapes.folding import Folder, type_with_value
from onnxmem.model.shapes.node_inference import NodeInference
from onnxmem.model.shapes.propagation import add_known, add_types
from onnxmem.model.traversal import onnx_op
from onnxmem.model.value_types import dense_type, dims_of, is_complete
from onnxmem.ops.spec import Dims

_ROW_MAJOR = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
"""Operators that keep the order of the elements and change the dims alone."""
_LARGEST_DIM = 2**63 - 1
_TARGETS = {"Reshape": 1, "Expand": 1, "Resize": 3}
"""The input that says how long the output's dims are to be."""


@dataclass(frozen=True, slots=True)
class Rebatched:
    """What became of the constants."""

    failures: tuple[str, ...]
    """Outputs of nodes whose target could not be read again."""
    stand_ins: Mapping[str, str]
    """New target -> the constant that it stands in for while shapes are inferred."""
    is_rewritten: bool
    """Whether any constant was."""
    counts_on: bool
    """Whether constants that index the samples were, for good."""


def rebatch(
    model: onnx.ModelProto,
    at_old: onnx.ModelProto,
    old: int,
    new: int,
    at_new: onnx.ModelProto | None = None,
) -> Rebatched:
    """Rewrite, in place, the constants of a model whose inputs have a new batch already.

    ``at_old`` is the same model with the shapes of the old batch inferred, ``at_new`` with what
    onnx says of the new one while the constants stand, where it was asked.
    """
    old_types: dict[str, onnx.TypeProto] = {}
    add_types(at_old.graph, old_types)
    told: dict[str, onnx.TypeProto] = {}
    counted = count_on(model.graph, old, new)
    if at_new is not None and not counted:
        add_types(at_new.graph, told)
    engines = NodeInference(model), Folder(model.opset_import)
    walk = Rebatching(model, old_types, old, new, engines, told)
    failures = tuple(walk.failures())
    return Rebatched(failures, walk.stand_ins, counted or bool(walk.stand_ins), counted)


def without_stand_ins(model: onnx.ModelProto, stand_ins: Mapping[str, str]) -> None:
    """Put the file's own constants back, in place: their bytes are the model's."""
    for node in model.graph.node:
        for place, name in enumerate(node.input):
            if name in stand_ins:
                node.input[place] = stand_ins[name]
    kept = [tensor for tensor in model.graph.initializer if tensor.name not in stand_ins]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)


@dataclass(slots=True)
class Rebatching:
    """Mutable: what is known grows from node to node."""

    model: onnx.ModelProto
    old_types: Mapping[str, onnx.TypeProto]
    old: int
    new: int
    engines: tuple[NodeInference, Folder]
    told: Mapping[str, onnx.TypeProto] = field(default_factory=dict)
    """What onnx says of the new batch where nothing that comes before was rewritten."""
    touched: set[str] = field(default_factory=set)
    """New constants, and all that follows from one."""
    types: dict[str, onnx.TypeProto] = field(default_factory=dict)
    values: dict[str, Array] = field(default_factory=dict)
    old_dims: dict[str, Dims] = field(default_factory=dict)
    """Of ``old_types``, as far as they were asked for."""
    places: dict[str, Place] = field(default_factory=dict)
    producers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)

    def failures(self) -> Iterator[str]:
        """Walk and rewrite; yields the outputs of nodes that cannot follow the batch."""
        graph = self.model.graph
        add_known(graph, self.types, self.values)
        for value in graph.input:
            self.place(value.name, ())
        for node in graph.node:
            if not self.takes(node):
                yield node.output[0]
            self.producers.update(dict.fromkeys(node.output, node))
        yield from self._left_behind(graph)

    def takes(self, node: onnx.NodeProto) -> bool:
        """Rewrite a node's constants and infer what it makes; false where it cannot follow."""
        follows = self._grow_operands(node) and self._follows(node)
        self._infer(node)
        return follows

    def _infer(self, node: onnx.NodeProto) -> None:
        if not self.touched.isdisjoint(node.input):
            self.touched.update(node.output)
        told = {name: self.told[name] for name in node.output if name in self.told}
        is_told = self.touched.isdisjoint(node.output) and all(map(is_complete, told.values()))
        asker, folder = self.engines
        if not (is_told and len(told) == len(node.output)):
            told = asker.output_types(node, self.types, self.values)
        self.types.update(told)
        for name, value in folder.values_of(node, self.values, self.types).items():
            self.values[name] = value
            if not is_complete(self.types.get(name)):
                self.types[name] = type_with_value(self.types.get(name), value)
        for name in node.output:
            self.place(name, node.input, is_row_major=onnx_op(node) in _ROW_MAJOR)

    def place(self, name: str, inputs: Sequence[str], *, is_row_major: bool = False) -> None:
        """Find the batch in a tensor whose shape is known at both batches."""
        old, new = self._old(name), dims_of(self.types.get(name))
        if not old or not new or old == new:
            return
        sources = [(self.places[i], self._old(i)) for i in inputs if i in self.places]
        if is_row_major and sources:
            place = landing(sources[0][0].elements_before(sources[0][1]), old, self.old)
        else:
            place = inherited(old, new, sources)
        if place is not None:
            self.places[name] = place

    def _old(self, name: str) -> Dims:
        if name not in self.old_dims:
            self.old_dims[name] = dims_of(self.old_types.get(name)) or ()
        return self.old_dims[name]

    def _follows(self, node: onnx.NodeProto) -> bool:
        """Rewrite a target that carries the old batch; false where none can be found."""
        index = _TARGETS.get(onnx_op(node))
        if index is None:
            return True
        name = node.input[index] if index < len(node.input) else ""
        asked, before = self.values.get(name), dims_of(self.old_types.get(node.output[0]))
        data = dims_of(self.types.get(node.input[0])) if node.input else None
        if asked is None or before is None or data is None or asked.dtype.kind not in "iu":
            return True
        dims = tuple(int(dim) for dim in asked.ravel())
        target: Dims | None
        if onnx_op(node) == "Expand":
            target = expanded(dims, before, data, self.old, self.new)
            self._grow_expanded(node, dims, data)
        else:
            source = Source(self._old(node.input[0]), data, self.places.get(node.input[0]))
            rule = resized if onnx_op(node) == "Resize" else reshaped
            target = rule(dims, before, source, self.old, self.new)
        if target and max(target) > _LARGEST_DIM:
            return False
        if target:
            self._set_target(node, index, target)
        return target != ()

    def _set_target(self, node: onnx.NodeProto, index: int, target: Dims) -> None:
        value = np.array(target, np.int64)
        self._stand_in(node, index, onnx.numpy_helper.from_array(value), value)

    def _grow_expanded(self, node: onnx.NodeProto, dims: Dims, data: Dims) -> None:
        """Let data as long as the old batch meet a target that has the new one there, once."""
        shift = len(dims) - len(data)
        for axis, dim in enumerate(data):
            if shift >= 0 and dim == self.old != 1 and dims[axis + shift] == self.new:
                self._grow(node, 0, Place(axis))
                return

    def _grow_operands(self, node: onnx.NodeProto) -> bool:
        """Let the operands that are as long as the old batch be as long as the new one."""
        old = {name: self._old(name) for name in node.input if name}
        found = list(operands_with_batch(node, self.places, old))
        followed = [self._grow_at_source(node, index, place) for index, place in found]
        return all(followed)

    def _grow_at_source(self, node: onnx.NodeProto, index: int, place: Place) -> bool:
        """Grow an operand where it comes from: a constant, or an Expand that made it long.

        Between the two stand only nodes that keep its shape. False: there is no such source, and
        the operand alone has grown.
        """
        chain, source = [(node, index)], node.input[index]
        while source in self.producers and onnx_op(self.producers[source]) != "Constant":
            producer = self.producers[source]
            asked = self.values.get(producer.input[1]) if len(producer.input) > 1 else None
            if onnx_op(producer) == "Expand" and asked is not None:
                dims = self._old(source)
                self._set_target(producer, 1, grown(dims, place, self.old, self.new))
                chain.append((producer, 0))
                break
            if not producer.input or self._old(producer.input[0]) != self._old(source):
                self._grow(node, index, place)
                return False
            chain.append((producer, 0))
            source = producer.input[0]
        else:
            self._grow(*chain[-1], place)
        for producer, _ in reversed(chain[1:]):
            self._infer(producer)
        return True

    def _grow(self, node: onnx.NodeProto, index: int, place: Place) -> None:
        name = node.input[index]
        tensor = onnx.TensorProto(
            data_type=self.old_types[name].tensor_type.elem_type,
            dims=grown(self._old(name), place, self.old, self.new),
            data_location=onnx.TensorProto.EXTERNAL,
        )
        self._stand_in(node, index, tensor, None)

    def _stand_in(
        self, node: onnx.NodeProto, index: int, tensor: onnx.TensorProto, value: Array | None
    ) -> None:
        """Give a node an operand of its own: the old constant may serve other nodes too."""
        tensor.name = f"{node.output[0]}/stand_in_{len(self.stand_ins)}"
        self.model.graph.initializer.append(tensor)
        present = node.input[index]
        self.stand_ins[tensor.name] = self.stand_ins.get(present, present)
        self.touched.add(tensor.name)
        node.input[index] = tensor.name
        self.types[tensor.name] = dense_type(tensor.data_type, tensor.dims)
        if value is not None:
            self.values[tensor.name] = value

    def _left_behind(self, graph: onnx.GraphProto) -> Iterator[str]:
        """Outputs that led with the old batch and have not grown anywhere."""
        for value in graph.output:
            old, new = self._old(value.name), dims_of(self.types.get(value.name))
            if old and old == new and old[0] == self.old:
                yield value.name
