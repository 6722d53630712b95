"""Which nodes of constants the optimiser computed, and what it made of them.

Source: ``core/optimizer/constant_folding.cc`` (``ConstantFolding::ApplyImpl``) and
``common_subexpression_elimination.cc``. A node is folded where all its inputs are constants and the
optimised graph has it no more. The shape of a tensor is a constant where its dims are numbers.
"""

from collections.abc import Iterator
from typing import Final

from onnxmem.model import Graph, Node
from onnxmem.runtimes.onnxruntime.prepacking import initializers
from onnxmem.runtimes.onnxruntime.process.terms import MadeWeight, Making

_STAYS_QUANTISED: Final = "DequantizeLinear"
"""It is folded last, and only where no operator that reads quantised weights took it."""


class Folding:
    """The constants of a model, by the node that is left of equal ones."""

    def __init__(self, model: Graph, session: Graph) -> None:
        self._model = model
        self._remaining = {name for node in session.all_nodes() for name in node.writes}
        self._left = initializers(session)
        self._stored = initializers(model)
        self._same: dict[str, str] = {}
        self._known: dict[object, str] = {}
        for name in self._stored:
            self._join(name, self._content(name))

    def latest(self, name: str) -> str:
        """The tensor that stands for a name, where equal ones were merged."""
        return self._same.get(name, name)

    def made(self) -> Iterator[MadeWeight]:
        """What the folded nodes make, in the order of the file."""
        for node in self._model.all_nodes():
            if not self._is_folded(node):
                continue
            inputs = tuple(self.latest(name) for name in node.inputs)
            key = (node.op_type, inputs, repr(sorted(node.attributes.items())))
            for place, name in enumerate(node.outputs):
                if name and self._join(name, (key, place)):
                    yield self._row(node, name)

    def _is_folded(self, node: Node) -> bool:
        if not node.writes or any(name in self._remaining for name in node.writes):
            return False
        if node.op_type == _STAYS_QUANTISED and node.outputs[0] not in self._left:
            return False
        if node.onnx_op in ("Shape", "Constant"):
            return True
        reads = node.reads
        return bool(reads) and all(name in self._same for name in reads)

    def _join(self, name: str, key: object) -> bool:
        """Whether a constant is the first of its content."""
        first = self._known.setdefault(key, name)
        self._same[name] = first
        return first == name

    def _content(self, name: str) -> object:
        values = self._model.values.get(name)
        tensor = self._stored[name]
        return name if values is None else (tensor.dtype, tensor.shape, values)

    def _row(self, node: Node, name: str) -> MadeWeight:
        known = {
            read: self._stored[read].size_bytes or 0 for read in node.reads if read in self._stored
        }
        source = max(known, key=known.__getitem__, default=None)
        size = self._model.tensors[name].size_bytes or 0
        source_bytes = 0 if source is None else known[source]
        return MadeWeight(name, size, Making.FOLDED, source, source_bytes)
