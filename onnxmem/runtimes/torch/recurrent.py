"""What recurrent layers save, as PyTorch's own cells run them (aten/src/ATen/native/RNN.cpp).

The input's matmuls of all steps run as one; then each step saves its gates and states. T steps, B
samples, H hidden, I inputs, D directions. cuDNN packs what it saves into a reserve space of its
own, whose size is not public: a GPU may take more or less.

PyTorch has two matrices and two vectors for each layer and direction; ONNX wants them with another
order of gates and packed into three tensors. Where a file does that with nodes, the framework does
nothing: the layer reads the parameters themselves and computes their gradients
(``packed_weights``).
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
_SAVED_PER_STEP = {"GRU": 7, "LSTM": 7, "RNN": 1}
"""Vectors of H that LSTMCell, GRUCell and SimpleCell of RNN.cpp save in each step.

LSTM: four gates, c, tanh(c), h. GRU: three gates, its new gate twice, h - n, h.
"""
_RANK = 3
_MOST_SINGLE_STEPS = 1024
_NUM_END_STEPS = 4
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
    saved_bytes: int
    """Of one step in one direction."""
    output_bytes: int
    """Of Y."""

    @property
    def runs(self) -> tuple[int, ...]:
        """How many steps each block of a direction stands for, in order: one, as in PyTorch."""
        # Live bytes rise or fall by the same amount from step to step, so that a peak is at the
        # first or at the last steps: in a long sequence the middle can be one block.
        if self.num_steps <= _MOST_SINGLE_STEPS:
            return (1,) * self.num_steps
        ends = (1,) * _NUM_END_STEPS
        return (*ends, self.num_steps - 2 * _NUM_END_STEPS, *ends)

    def blocks_of(self, name: str, *, copies_input: bool) -> tuple[tuple[str, int], ...]:
        """(label, bytes) of what a node of that name saves: copies of X, then each step's."""
        # The initial states are saved and the last ones are not: the two cancel out.
        copies = [(f"input of {name}", self.input_bytes)] * (self.num_directions * copies_input)
        steps = [
            ("a step" if count == 1 else f"{count} steps", count * self.saved_bytes)
            for count in self.runs
        ] * self.num_directions
        return (*copies, *((f"{what} of {name}", size_bytes) for what, size_bytes in steps))

    def transient_bytes(self, *, writes_output: bool) -> int:
        """Bytes that are freed when the node is done: gates, and each direction's part of Y.

        ``writes_output``: Y counts as the node's output.
        """
        parts_bytes = self.output_bytes if self.num_directions > 1 else 0
        joined_bytes = 0 if writes_output else self.output_bytes
        return self.gates_bytes + parts_bytes + joined_bytes


def is_recurrent(op_type: str) -> bool:
    """Whether an operator is a recurrent layer."""
    return op_type in _GATES


def layer_of(op_type: str, call: Call) -> Layer | None:
    """Read the sizes of a recurrent node; ``None`` for other nodes, or where one is unknown."""
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
        saved_bytes=_SAVED_PER_STEP[op_type] * hidden_bytes,
        output_bytes=steps * matrix[0] * hidden_bytes,
    )


_WEIGHTS_AT = slice(1, 4)
_LAYOUT = frozenset(
    {"Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def packed_weights(graph: Graph, parameters: Parameters) -> Mapping[str, tuple[str, ...]]:
    """Map each tensor that nodes pack from weights to the parameters that it consists of.

    Intermediate tensors are in the mapping too: none of them takes memory in a step.
    """
    recurrent = [node for node in graph.nodes if is_recurrent(node.onnx_op)]
    if not recurrent:
        return {}
    producers = {name: node for node in graph.nodes for name in node.writes}
    trained = {graph.tensors[name].storage_key: name for name in parameters.trained}
    found: dict[str, tuple[str, ...]] = {}
    for node in recurrent:
        for name in filter(None, node.inputs[_WEIGHTS_AT]):
            found.update(_unpacked(graph, producers, trained, name))
    return found


def _unpacked(
    graph: Graph, producers: Mapping[str, Node], trained: Mapping[str, str], name: str
) -> dict[str, tuple[str, ...]]:
    """A packed tensor and the intermediate ones, each with all its parameters; else empty."""
    # All or nothing: a single source that is not a weight, or a node that computes, means that the
    # network itself computes the matrix in each step.
    intermediate: list[str] = []
    sources: dict[str, None] = {}
    for tensor in _ancestors(producers, name):
        producer = producers.get(tensor)
        if producer is not None:
            if producer.onnx_op not in _LAYOUT:
                return {}
            intermediate.append(tensor)
        elif graph.tensors[tensor].role is not Role.WEIGHT:
            return {}
        elif (key := graph.tensors[tensor].storage_key) in trained:
            sources[trained[key]] = None
    return dict.fromkeys(intermediate, tuple(sources)) if sources else {}


def _ancestors(producers: Mapping[str, Node], name: str) -> Iterator[str]:
    """A tensor and those that it is computed from, back to what layout operators do not produce."""
    pending, seen = [name], {name}
    while pending:
        name = pending.pop()
        yield name
        producer = producers.get(name)
        if producer is not None and producer.onnx_op in _LAYOUT:
            pieces = producer.inputs if producer.onnx_op == "Concat" else producer.inputs[:1]
            pending += [piece for piece in pieces if piece and piece not in seen]
            seen.update(pieces)
