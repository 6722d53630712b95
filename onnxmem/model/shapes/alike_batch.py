"""Another batch for a large graph that fixes it, from nodes that are alike.

The rules are those of ``rebatching``, for one node at a time: nodes are alike where these go by the
same, which is the kinds of the inputs at both batches and the batch's place in each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import onnx

from onnxmem.model.shapes.alike import LEFT_OUT, Alike, Numbers, UnlikeError
from onnxmem.model.shapes.batch_mixing import operands_with_batch
from onnxmem.model.shapes.batch_place import Place
from onnxmem.model.shapes.kinds import Kind
from onnxmem.model.shapes.rebatching import Rebatching, indexes_samples
from onnxmem.model.value_types import Known

Shapes = Mapping[str, Sequence[int]]

_Moved = tuple[int, int, Place | None]
"""The kinds of a tensor at the old and at the new batch, and the batch's place."""

_NOT_GIVEN: Final = (LEFT_OUT, LEFT_OUT, None)


@dataclass(slots=True)
class AlikeInBatch:
    """A graph at two batches: the one that the file fixes, and another."""

    alike: Alike
    old: int
    new: int
    met: list[_Moved] = field(default_factory=list)
    places: dict[_Moved, int] = field(default_factory=dict)
    """All that were met, and the place of each among them."""

    def types(self, old_shapes: Shapes, new_shapes: Shapes) -> Mapping[str, Known]:
        """The types of all tensors at the new batch.

        :raises UnlikeError: they do not follow from nodes that are alike.
        """
        alike, graph = self.alike, self.alike.model.graph
        if any(indexes_samples(tensor, self.old) for tensor in _constants(graph)):
            raise UnlikeError
        at_old = alike.numbers_at(old_shapes)
        of = self._given(at_old, alike.stored | alike.given(new_shapes))
        answers: dict[tuple[int, ...], tuple[int, ...]] = {}
        for step in alike.steps:
            inputs = [of[name] for name in step.inputs]
            key = (step.likeness, *inputs)
            made = answers.get(key)
            if made is None:
                alike.give_up_after(len(answers))
                made = answers[key] = self._asked(graph.node[step.place], inputs, at_old)
            of.update(zip(step.outputs, made, strict=True))
        for value in graph.output:
            self._refuse_left_behind(self.met[of[value.name]])
        news = [alike.kinds.kinds[new].known for _, new, _ in self.met]
        return {name: news[at] for name, at in of.items() if name}
