"""Types at a batch other than the fixed one of the file, one rewrite for each distinct node.

``batch_rewrite`` resizes the constants that the batch is written in. Here that is done once for all
nodes that are equal at both batches; a graph with other needs is rewritten as a whole.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.shapes.batch_axes import (
    BatchAxis,
    indices_of_samples,
    may_be_of_a_sample,
    operands_with_batch,
)
from onnxmem.model.shapes.batch_rewrite import BatchRewrite
from onnxmem.model.shapes.type_memo import LEFT_OUT, MemoMissError, Shapes, TypeIds, TypeMemo
from onnxmem.model.value_types import Known, dims_of

_Moved = tuple[int, int, BatchAxis | None]
"""The type ids of a tensor at the old and at the new batch, and the axis of the batch in it."""
_NOT_MOVED: Final[_Moved] = (LEFT_OUT, LEFT_OUT, None)


@dataclass(slots=True)
class BatchMemo:
    """A graph at two batches: the fixed one of the file, and another.

    Like ``TypeMemo``, but the id of a tensor stands for its types at both batches and for its batch
    axis (``_Moved``), on which the rules of ``batch_rewrite`` depend.
    """

    memo: TypeMemo
    old: int
    new: int
    ids: dict[_Moved, int] = field(default_factory=dict)
    """Ids by pairs of types with a batch axis."""
    moves: list[_Moved] = field(default_factory=list)
    """The inverse of ``ids``."""

    def types(self, old_shapes: Shapes, new_shapes: Shapes) -> Mapping[str, Known]:
        """The types of all tensors at the new batch.

        Nodes share a result if they do at both batches and if their inputs have the batch on the
        same axis, because the rewrite of a node reads nothing else.

        :raises MemoMissError: a type cannot be inferred, or a node cannot have the new batch.
        """
        memo, graph = self.memo, self.memo.model.graph
        has_bodies = any(step.declared is not None for step in memo.steps)
        # Both would be rewritten, which changes more than the node that is looked at.
        if has_bodies or indices_of_samples(graph, self.old):
            raise MemoMissError
        at_old = memo.type_ids_at(old_shapes)
        ids = self._initial_ids(at_old, memo.stored | memo.input_type_ids(new_shapes))
        results: dict[tuple[int, ...], list[int]] = {}
        for visited, step in enumerate(memo.steps):
            inputs = [ids[name] for name in step.inputs]
            key = (step.signature, *inputs)
            outputs = results.get(key)
            if outputs is None:
                # A node that is unlike the ones before at either batch counts as distinct.
                memo.refuse_more_than(len(results), visited)
                olds = [at_old[name] for name in step.outputs]
                outputs = results[key] = self._inferred(memo.nodes[step.index], inputs, olds)
            if len(outputs) == 1:
                ids[step.outputs[0]] = outputs[0]
            else:
                ids.update(zip(step.outputs, outputs, strict=True))
        self._refuse_left_behind(ids[value.name] for value in graph.output)
        interned = memo.interner.interned
        news = [None if new == LEFT_OUT else interned[new].known for _, new, _ in self.moves]
        types = {name: known for name, i in ids.items() if (known := news[i])}
        memo.refuse_other_outputs(types)
        return types

    def _initial_ids(self, at_old: TypeIds, at_new: TypeIds) -> TypeIds:
        """The ids of stored tensors and inputs; the batch axis is that on which dims differ."""
        ids = {}
        for name, new in at_new.items():
            if name in self.memo.stored:
                ids[name] = self._id_of((new, new, None))
            else:
                walk = self._walk({name: at_old[name]})
                walk.types[name] = self.memo.interner.interned[new].type
                walk.find_batch(name, ())
                ids[name] = self._id_of((at_old[name], new, walk.batch_axes.get(name)))
        return ids

    def _id_of(self, moved: _Moved) -> int:
        if moved not in self.ids:
            self.ids[moved] = len(self.moves)
            self.moves.append(moved)
        return self.ids[moved]

    def _walk(self, olds: TypeIds) -> BatchRewrite:
        """A rewrite of a single node, with the types of its tensors at the old batch."""
        memo, interned = self.memo, self.memo.interner.interned
        types = {name: interned[i].type for name, i in olds.items() if i != LEFT_OUT}
        model = onnx.ModelProto(ir_version=memo.model.ir_version)
        return BatchRewrite(model, types, self.old, self.new, (memo.inference, memo.folder))

    def _inferred(
        self, original: onnx.NodeProto, inputs: Sequence[int], olds: Sequence[int]
    ) -> list[int]:
        """The ids of a node's outputs.

        :raises MemoMissError: it cannot have the batch, or other nodes would have to be rewritten.
        """
        node = onnx.NodeProto()
        node.CopyFrom(original)
        moved = {n: self.moves[i] for n, i in zip(original.input, inputs, strict=True) if n}
        walk = self._walk(
            {name: old for name, (old, _, _) in moved.items()}
            | dict(zip(original.output, olds, strict=True))
        )
        interned = self.memo.interner.interned
        for name, (_, new, axis) in moved.items():
            # Of a graph the rules read only this of each operand; what else they would reach for is
            # refused below, so the node alone gives the result of the whole.
            walk.types[name] = interned[new].type
            value = interned[new].value
            if value is not None:
                walk.values[name] = value
            if axis is not None:
                walk.batch_axes[name] = axis
        self._refuse_growth_elsewhere(node, walk)
        if not walk.rewrite_node(node):
            raise MemoMissError
        news = self.memo.output_type_ids(node, walk.types, walk.values)
        return [
            self._id_of((old, new, walk.batch_axes.get(name)) if name else _NOT_MOVED)
            for name, old, new in zip(node.output, olds, news, strict=True)
        ]

    def _refuse_growth_elsewhere(self, node: onnx.NodeProto, walk: BatchRewrite) -> None:
        """Check that no operand has to be resized, which would change the node that computes it.

        :raises MemoMissError: there is such an operand, or there may be one.
        """
        old = {name: dims_of(walk.old_types[name]) or () for name in node.input if name}
        for operand in operands_with_batch(node, walk.batch_axes, old, self.old):
            name = node.input[operand.index]
            if operand.is_certain or name not in self.memo.stored:
                raise MemoMissError
            if may_be_of_a_sample(old[name], walk.values.get(name)):
                raise MemoMissError

    def _refuse_left_behind(self, outputs: Iterable[int]) -> None:
        """Check that no output still has the old batch on axis 0.

        :raises MemoMissError: there is one.
        """
        interned = self.memo.interner.interned
        for old, new, _ in (self.moves[i] for i in outputs):
            before, after = (interned[i].known.shape for i in (old, new))
            if before and before == after and before[0] == self.old:
                raise MemoMissError
