"""What recurrent layers save, as PyTorch's own cells run them (aten/src/ATen/native/RNN.cpp).

All steps' products with the input are made at once; then each step saves its gates and states. T
steps, B samples, H hidden, I inputs, D directions. cuDNN packs what it saves into a reserve of its
own, of no public size: a GPU may hold more or less.

PyTorch has four matrices and vectors for each layer and direction; ONNX wants them in another order
of gates and packed into three tensors. Where a file does that by nodes, the framework does nothing:
the layer reads the parameters themselves, and makes their gradients (``packed_weights``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Call, known_dims

_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
RECURRENT = tuple(_GATES)
"""The operators."""
_KEPT_PER_STEP = {"GRU": 7, "LSTM": 7, "RNN": 1}
"""Vectors of H. LSTM: four gates, c, tanh(c), h. GRU: three gates, its new gate twice, h - n, h."""
_RANK = 3
_MOST_SINGLE_STEPS = 1024
_ENDS = 4
"""Steps at either end of a longer sequence that have blocks of their own."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The sizes of one recurrent node; bytes."""

    num_steps: int
    num_directions: int
    input_bytes: int
    """Of X, and of its row-major copy."""
    gates_bytes: int
    """Of all steps' gates in one direction."""
    kept_bytes: int
    """Of one step in one direction."""
    output_bytes: int
    """Of Y."""

    @property
    def runs(self) -> tuple[int, ...]:
        """How many steps each block of a direction stands for, in order: one, as in PyTorch.

        From step to step what is alive rises or falls by the same bytes, so that a peak is at the
        first or at the last ones: the middle of a long sequence can be one block.
        """
        if self.num_steps <= _MOST_SINGLE_STEPS:
            return (1,) * self.num_steps
        return (*(1,) * _ENDS, self.num_steps - 2 * _ENDS, *(1,) * _ENDS)

    def blocks_of(self, name: str, *, copies_input: bool) -> tuple[tuple[str, int], ...]:
        """(label, bytes) of what a node of that name keeps: copies of X, then each step's.

        The first states are saved and the last ones are not: they cancel out.
        """
        copies = [(f"input of {name}", self.input_bytes)] * (self.num_directions * copies_input)
        steps = [
            ("a step" if count == 1 else f"{count} steps", count * self.kept_bytes)
            for count in self.runs
        ] * self.num_directions
        return (*copies, *((f"{what} of {name}", size_bytes) for what, size_bytes in steps))

    def transient_bytes(self, *, writes_output: bool) -> int:
        """Bytes that are gone when the node is done: gates, and Y of each direction before joined.

        ``writes_output``: Y counts as the node's output.
        """
        parts_bytes = self.output_bytes if self.num_directions > 1 else 0
        joined_bytes = 0 if writes_output else self.output_bytes
        return self.gates_bytes + parts_bytes + joined_bytes


def is_recurrent(op_type: str) -> bool:
    """Whether an operator is a recurrent layer."""
    return op_type in _GATES


def layer_of(op_type: str, call: Call) -> Layer | None:
    """Read the sizes of a recurrent node; ``None`` where it is none or one is unknown."""
    data, recurrence = call.input_at(0), call.input_at(2)
    if op_type not in _GATES or data is None or recurrence is None or data.bits is None:
        return None
    read, matrix = known_dims(data.shape), known_dims(recurrence.shape)
    if read is None or matrix is None or {len(read), len(matrix)} != {_RANK}:
        return None
    steps, samples = (read[1], read[0]) if call.attributes.get("layout") else read[:2]
    hidden_bytes = samples * matrix[2] * data.bits // 8
    return Layer(
        num_steps=steps,
        num_directions=matrix[0],
        input_bytes=prod(read) * data.bits // 8,
        gates_bytes=steps * _GATES[op_type] * hidden_bytes,
        kept_bytes=_KEPT_PER_STEP[op_type] * hidden_bytes,
        output_bytes=steps * matrix[0] * hidden_bytes,
    )


_WEIGHTS_AT = slice(1, 4)
_LAYOUT = frozenset(
    {"Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def packed_weights(graph: Graph, parameters: Parameters) -> Mapping[str, tuple[str, ...]]:
    """Map each tensor that nodes pack from weights to the parameters that it is made of.

    What lies between is in the mapping too: none of it takes memory in a step.
    """
    recurrent = [node for node in graph.nodes if is_recurrent(node.onnx_op)]
    if not recurrent:
        return {}
    makers = {name: node for node in graph.nodes for name in node.writes}
    trained = {graph.tensors[name].storage_key: name for name in parameters.trained}
    found: dict[str, tuple[str, ...]] = {}
    for node in recurrent:
        for name in filter(None, node.inputs[_WEIGHTS_AT]):
            found.update(_unpacked(graph, makers, trained, name))
    return found


def _unpacked(
    graph: Graph, makers: Mapping[str, Node], trained: Mapping[str, str], name: str
) -> dict[str, tuple[str, ...]]:
    """The tensors on the way to a packed one, each with all its parameters; none if it is not."""
    passed: list[str] = []
    sources: dict[str, None] = {}
    for text in _walk(makers, name):
        maker = makers.get(text)
        if maker is not None:
            if maker.onnx_op not in _LAYOUT:
                return {}
            passed.append(text)
        elif graph.tensors[text].role is not Role.WEIGHT:
            return {}
        elif (key := graph.tensors[text].storage_key) in trained:
            sources[trained[key]] = None
    return dict.fromkeys(passed, tuple(sources)) if sources else {}


def _walk(makers: Mapping[str, Node], name: str) -> Iterator[str]:
    """A tensor and what layout operators make it of, back to where they start."""
    waiting, seen = [name], {name}
    while waiting:
        name = waiting.pop()
        yield name
        maker = makers.get(name)
        if maker is not None and maker.onnx_op in _LAYOUT:
            pieces = maker.inputs if maker.onnx_op == "Concat" else maker.inputs[:1]
            waiting += [piece for piece in pieces if piece not in seen]
            seen.update(pieces)
