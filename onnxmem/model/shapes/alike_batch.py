"""Another batch for a large graph that fixes it, from nodes that are alike.

The rules are those of ``rebatching``, for one node at a time: two nodes are alike that are so at
either batch and whose inputs hold the batch in the same place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.shapes.alike import LEFT_OUT, Alike, Numbers, UnlikeError
from onnxmem.model.shapes.batch_indices import indices_of_samples
from onnxmem.model.shapes.batch_mixing import operands_with_batch
from onnxmem.model.shapes.batch_origins import may_be_of_a_sample
from onnxmem.model.shapes.batch_place import Place
from onnxmem.model.shapes.rebatching import Rebatching
from onnxmem.model.value_types import Known, dims_of

Shapes = Mapping[str, Sequence[int]]

_Moved = tuple[int, int, Place | None]
"""The kinds of a tensor at the old and at the new batch, and the batch's place in it."""
_LEFT_OUT: Final[_Moved] = (LEFT_OUT, LEFT_OUT, None)


@dataclass(slots=True)
class AlikeInBatch:
    """A graph at two batches: the one that the file fixes, and another."""

    alike: Alike
    old: int
    new: int
    met: dict[_Moved, int] = field(default_factory=dict)
    """All that tensors were met as, and the number of each."""
    moves: list[_Moved] = field(default_factory=list)
    """The same by number."""

    def types(self, old_shapes: Shapes, new_shapes: Shapes) -> Mapping[str, Known]:
        """The types of all tensors at the new batch.

        :raises UnlikeError: they do not follow from nodes that are alike, or no reading of the
            graph brings all of it to the new batch.
        """
        alike, graph = self.alike, self.alike.model.graph
        if indices_of_samples(graph, self.old):
            raise UnlikeError
        at_old = alike.numbers_at(old_shapes)
        of = self._given(at_old, alike.stored | alike.numbers_given(new_shapes))
        answers: dict[tuple[int, ...], list[int]] = {}
        for step in alike.steps:
            inputs = [of[name] for name in step.inputs]
            key = (step.likeness, *inputs)
            made = answers.get(key)
            if made is None:
                alike.give_up_after(len(answers))
                olds = [at_old[name] for name in step.outputs]
                made = answers[key] = self._asked(alike.nodes[step.place], inputs, olds)
            if len(made) == 1:
                of[step.outputs[0]] = made[0]
            else:
                of.update(zip(step.outputs, made, strict=True))
        self._refuse_left_behind(of[value.name] for value in graph.output)
        kinds = alike.kinds.kinds
        news = [None if new == LEFT_OUT else kinds[new].known for _, new, _ in self.moves]
        types = {name: known for name, at in of.items() if (known := news[at])}
        alike.refuse_other_outputs(types)
        return types

    def _given(self, at_old: Numbers, at_new: Numbers) -> Numbers:
        """What stands before the first node; an input has its batch where its dims differ."""
        of = {}
        for name, new in at_new.items():
            if name in self.alike.stored:
                of[name] = self._number((new, new, None))
            else:
                walk = self._walk({name: at_old[name]})
                walk.types[name] = self.alike.kinds.kinds[new].type
                walk.place(name, ())
                of[name] = self._number((at_old[name], new, walk.places.get(name)))
        return of

    def _number(self, moved: _Moved) -> int:
        if moved not in self.met:
            self.met[moved] = len(self.moves)
            self.moves.append(moved)
        return self.met[moved]

    def _walk(self, olds: Numbers) -> Rebatching:
        """The rules of one node, with what its tensors are at the old batch."""
        kinds, alike = self.alike.kinds.kinds, self.alike
        types = {name: kinds[at].type for name, at in olds.items() if at != LEFT_OUT}
        model = onnx.ModelProto(ir_version=alike.model.ir_version)
        return Rebatching(model, types, self.old, self.new, (alike.asker, alike.folder))

    def _asked(self, met: onnx.NodeProto, inputs: Sequence[int], olds: Sequence[int]) -> list[int]:
        """What a node's outputs are.

        :raises UnlikeError: it cannot follow, or by more than its own constants alone.
        """
        node = onnx.NodeProto()
        node.CopyFrom(met)
        moved = {name: self.moves[at] for name, at in zip(met.input, inputs, strict=True) if name}
        walk = self._walk(
            {name: old for name, (old, _, _) in moved.items()}
            | dict(zip(met.output, olds, strict=True))
        )
        kinds = self.alike.kinds.kinds
        for name, (_, new, place) in moved.items():
            walk.types[name] = kinds[new].type
            value = kinds[new].value
            if value is not None:
                walk.values[name] = value
            if place is not None:
                walk.places[name] = place
        self._refuse_growth_elsewhere(node, walk)
        if not walk.takes(node):
            raise UnlikeError
        news = self.alike.made(node, walk.types, walk.values)
        return [
            self._number((old, new, walk.places.get(name)) if name else _LEFT_OUT)
            for name, old, new in zip(node.output, olds, news, strict=True)
        ]

    def _refuse_growth_elsewhere(self, node: onnx.NodeProto, walk: Rebatching) -> None:
        """An operand that must be as long as the batch grows where it comes from.

        :raises UnlikeError: there is one, or one that may have to be.
        """
        old = {name: dims_of(walk.old_types[name]) or () for name in node.input if name}
        for meeting in operands_with_batch(node, walk.places, old, self.old):
            name = node.input[meeting.index]
            if meeting.is_certain or name not in self.alike.stored:
                raise UnlikeError
            if may_be_of_a_sample(old[name], walk.values.get(name)):
                raise UnlikeError

    def _refuse_left_behind(self, outputs: Iterable[int]) -> None:
        """Outputs that led with the old batch and have not grown anywhere."""
        kinds = self.alike.kinds.kinds
        for old, new, _ in (self.moves[at] for at in outputs):
            before, after = (kinds[at].known.shape for at in (old, new))
            if before and before == after and before[0] == self.old:
                raise UnlikeError
