"""What recurrent layers save: in one call of cuDNN, as on CUDA, or cell by cell, as on the CPU.

T steps, B samples, H hidden, I inputs, D directions, L layers.

``FusedLayers``: a module of PyTorch is one call of cuDNN (aten/src/ATen/native/cudnn/RNN.cpp),
which keeps what it needs in a reserve space and runs in a workspace. Their sizes are not public:
the formulas are read off 801 layers that ``tools/training/cudnn_rnn.py`` measured with cuDNN 9.19
on an H200. ``recurrent_calls`` finds the layers of a module, which an exporter writes as a node for
each, the output of one reordered for the next. cuDNN runs what PyTorch's modules can ask for: no
peepholes, no other activations, no lone reverse direction. Other layers remain cells.

``Layer``: PyTorch's own cells (aten/src/ATen/native/RNN.cpp). The input's matmuls of all steps run
as one; then each step saves its gates and states. Under autocast the products are of 16 bits, and
what is computed with a state has the state's type: that of the module's input, as which ``LSTM``
and ``GRU`` of torch/nn/modules/rnn.py make the first ones. An RNN's state is its gate.

PyTorch has two matrices and two vectors for each layer and direction; ONNX wants them with another
order of gates and packed into three tensors. Where a file does that with nodes, the framework does
nothing: the layer reads the parameters themselves and computes their gradients
(``packed_weights``).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from onnxmem.model.graph import Graph, Node, Role
from onnxmem.model.module_paths import paths_of
from onnxmem.model.parameters import Parameters
from onnxmem.ops.spec import Call, known_dims
from onnxmem.runtimes.torch.composites.rewriting import GraphView, Match
from onnxmem.runtimes.torch.framework import CUDNN_RNN

_GATES = {"GRU": 3, "LSTM": 4, "RNN": 1}
RECURRENT = tuple(_GATES)
"""The operators."""
_SAVED_PER_STEP = {"GRU": (5, 1), "LSTM": (4, 2), "RNN": (0, 0)}
"""Vectors of H that LSTMCell, GRUCell and SimpleCell of RNN.cpp save in each step, and h.

As gates and as states, which have two types under autocast. LSTM: four gates; c, tanh(c). GRU:
three gates, its new gate twice; h - n.
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
    """Of what a product reads of X: itself, or a copy."""
    gates_bytes: int
    """Of all steps' gates in one direction."""
    saved_bytes: int
    """Of one step in one direction."""
    output_bytes: int
    """Of Y."""
    copies_input: bool = False
    """Whether each direction's product reads a copy of X of fewer bits."""
    copies_state: bool = False
    """Whether each step's product reads a copy of h of fewer bits: h itself is not saved."""

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
        # The list of the steps' h is alive until all directions are joined.
        states_bytes = self.output_bytes if self.copies_state else 0
        return self.gates_bytes + states_bytes + parts_bytes + joined_bytes


_NUM_WEIGHTS = 3
_FIRST_WEIGHT = 3
_MIB = 2**20


def is_recurrent(node: Node) -> bool:
    """Whether a node is a recurrent layer, or several in one call."""
    return node.onnx_op in _GATES or node.operator is CUDNN_RNN


def are_cells(node: Node) -> bool:
    """Whether a node is a recurrent layer that runs cell by cell."""
    return node.onnx_op in _GATES and not node.subgraphs


@dataclass(frozen=True, slots=True)
class FusedLayers:
    """The sizes of one call of cuDNN, as measured on Hopper with cuDNN 9.19."""

    mode: str
    """The operator of the layers."""
    num_steps: int
    num_samples: int
    num_inputs: int
    num_hidden: int
    num_layers: int
    num_directions: int
    has_dropout: bool
    num_weights: int
    """Elements of all matrices and biases."""
    num_biases: int
    bits: int
    is_bfloat16: bool

    @property
    def input_bytes(self) -> int:
        """Of X."""
        return self._bytes(self.num_steps * self.num_samples * self.num_inputs)

    @property
    def output_bytes(self) -> int:
        """Of Y: [T, B, D x H]."""
        return self._bytes(self._num_states)

    @property
    def reserve_bytes(self) -> int:
        """What the forward pass keeps for the backward pass.

        For each hidden value of each layer, LSTM keeps 5 numbers, GRU 6, RNN 1; the outputs between
        layers come on top, and for Dropout a bit for each of them and direction. cuDNN aligns its
        parts: up to 288 bytes more.
        """
        kept = {"LSTM": 5, "GRU": 6, "RNN": 1}[self.mode]
        between = self.num_layers - 1
        masks = between * self.num_directions * self._num_states if self.has_dropout else 0
        return self._bytes((kept * self.num_layers + between) * self._num_states) + masks // 8 + 256

    def workspace_bytes(self, *, is_forward: bool) -> int:
        """What a pass takes while it runs: 8 MiB for each layer and direction, and buffers.

        Within 1 % for 766 of the 801 measured layers, within 5.2 % for all.
        """
        directions, steps = self.num_directions, self.num_steps * self.num_samples
        widest = steps * max(self.num_inputs, directions * self.num_hidden)
        inputs, runs = steps * self.num_inputs, directions * self.num_layers
        state = self.num_samples * self.num_hidden
        more = 2 * (directions - 1)
        if self.mode == "LSTM":
            buffers = inputs + 2 * directions * widest + (10 + more) * runs * state
        else:
            buffers = (2 if runs == 1 else 1) * inputs
            is_single = self.mode == "RNN" and self.num_layers == 1
            buffers += (directions if is_single else 2 * directions - 1) * widest
            buffers += (5 + more) * runs * state
        if self.has_dropout and directions == 1 and self.mode != "RNN":
            buffers += self._num_states
        if self._is_persistent(is_forward=is_forward):
            buffers += {"LSTM": 16, "GRU": 14, "RNN": 9}[self.mode] * steps * self.num_hidden
        numbers = 3 * self._num_states + buffers + self.num_weights - self.num_biases
        return runs * 8 * _MIB + self._bytes(numbers)

    @property
    def weights_bytes(self) -> int:
        """Of the matrices and biases in one buffer, and of its gradient."""
        return self._bytes(self.num_weights)

    @property
    def states_bytes(self) -> int:
        """Of the gradients of the initial and of the last states, which are zeros or discarded."""
        kinds = 2 if self.mode == "LSTM" else 1
        runs = self.num_layers * self.num_directions
        return 2 * kinds * runs * self._bytes(self.num_samples * self.num_hidden)

    @property
    def copies_weights(self) -> bool:
        """Whether each call gathers the weights in a buffer of its own, which it saves.

        ``RNNBase.flatten_parameters`` lets parameters share one buffer, unless cuDNN is not
        "acceptable" for their type: ``CUDNN_TENSOR_DTYPES`` of torch/backends/cudnn lacks bfloat16.
        """
        return self.is_bfloat16

    @property
    def _num_states(self) -> int:
        return self.num_steps * self.num_samples * self.num_directions * self.num_hidden

    def _bytes(self, numbers: int) -> int:
        return numbers * self.bits // 8

    def _is_persistent(self, *, is_forward: bool) -> bool:
        """Whether a pass runs as one kernel: ``get_algo`` of RNN.cpp, on large recent GPUs."""
        # ``use_rnn_persist_small_h``: small states, in any number of layers and directions.
        most = {"RNN": 384 if is_forward else 256}.get(self.mode, 192 if is_forward else 128)
        is_half = self.bits == 16 and not self.is_bfloat16  # noqa: PLR2004 - float16
        if self.num_hidden <= most:
            return is_half or self.bits == 32  # noqa: PLR2004 - float32
        # ``use_persist_common_heuristics`` and ``use_persist_device_heuristics``, which apply to
        # float16 alone: one layer and direction, sizes that are multiples of a tile, few samples,
        # and for RNN not both many samples and large states.
        is_slow = self.mode == "RNN" and self.num_samples >= 96 and self.num_hidden >= 896  # noqa: PLR2004 - as there
        return (
            is_half
            and self.mode != "GRU"
            and self.num_layers * self.num_directions == 1
            and self.num_hidden <= 1024  # noqa: PLR2004 - as there
            and self.num_hidden % 128 == self.num_inputs % 128 == 0
            and self.num_samples % 8 == 0
            and self.num_samples <= 128  # noqa: PLR2004 - as there
            and not is_slow
        )


def fused_layers_of(call: Call, *, is_bfloat16: bool) -> FusedLayers | None:
    """Read the sizes of a call of cuDNN; ``None`` where one is unknown, or has another rank."""
    data, recurrence = call.input_at(0), call.input_at(_FIRST_WEIGHT + 1)
    if data is None or recurrence is None or not data.bits:
        return None
    read, matrix = known_dims(data.shape), known_dims(recurrence.shape)
    weights = [each.num_elements for each in call.inputs[_FIRST_WEIGHT:] if each is not None]
    biases = [
        each.num_elements
        for each in call.inputs[_FIRST_WEIGHT + 2 :: _NUM_WEIGHTS]
        if each is not None
    ]
    if read is None or matrix is None or None in weights:
        return None
    if {len(read), len(matrix)} != {_RANK}:
        return None
    return FusedLayers(
        # Of each layer W [D, gates x H, I], R [D, gates x H, H] and B, in turn.
        mode=str(call.attributes["mode"]),
        num_steps=read[0],
        num_samples=read[1],
        num_inputs=read[2],
        num_hidden=matrix[2],
        num_layers=len(call.inputs[_FIRST_WEIGHT:]) // _NUM_WEIGHTS,
        num_directions=matrix[0],
        has_dropout=bool(call.attributes["has_dropout"]),
        num_weights=sum(filter(None, weights)),
        num_biases=sum(filter(None, biases)),
        bits=data.bits,
        is_bfloat16=is_bfloat16,
    )


def layer_of(op_type: str, call: Call) -> Layer | None:
    """Read the sizes of a recurrent node; ``None`` for other nodes, or where one is unknown."""
    data, recurrence = call.input_at(0), call.input_at(2)
    if op_type not in _GATES or data is None or recurrence is None or data.bits is None:
        return None
    read, matrix = known_dims(data.shape), known_dims(recurrence.shape)
    if read is None or matrix is None or {len(read), len(matrix)} != {_RANK}:
        return None
    steps, samples = (read[1], read[0]) if call.attributes.get("layout") else read[:2]
    num_hidden = samples * matrix[2]
    written = (each.bits for each in call.outputs if each is not None and each.bits)
    # Products read copies of 16 bits under autocast, as matrices are there.
    gate_bits = recurrence.bits or data.bits
    gate_bytes = num_hidden * gate_bits // 8
    state_bytes = num_hidden * max(written, default=data.bits) // 8
    gates, states = _SAVED_PER_STEP[op_type]
    return Layer(
        num_steps=steps,
        num_directions=matrix[0],
        input_bytes=prod(read) * gate_bits // 8,
        gates_bytes=steps * _GATES[op_type] * gate_bytes,
        # The next step's product reads h in the type of the gates.
        saved_bytes=(gates + 1) * gate_bytes + states * state_bytes,
        output_bytes=steps * matrix[0] * state_bytes,
        copies_input=gate_bits != data.bits,
        copies_state=state_bytes != gate_bytes,
    )


_LAYOUT = frozenset(
    {"Cast", "Concat", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)


def packed_weights(graph: Graph, parameters: Parameters) -> Mapping[str, tuple[str, ...]]:
    """Map each tensor that nodes pack from weights to the parameters that it consists of.

    Intermediate tensors are in the mapping too: none of them takes memory in a step.
    """
    recurrent = [node for node in graph.nodes if is_recurrent(node)]
    if not recurrent:
        return {}
    producers = {name: node for node in graph.nodes for name in node.writes}
    trained = {graph.tensors[name].storage_key: name for name in parameters.trained}
    found: dict[str, tuple[str, ...]] = {}
    for node in recurrent:
        for name in filter(None, _weights(node)):
            found.update(_unpacked(graph, producers, trained, name))
    return found


def _weights(node: Node) -> tuple[str, ...]:
    if node.operator is CUDNN_RNN:
        return node.inputs[_FIRST_WEIGHT:]
    return node.inputs[1 : 1 + _NUM_WEIGHTS]


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


_ACTIVATIONS = {
    "LSTM": (("sigmoid", "tanh", "tanh"),),
    "GRU": (("sigmoid", "tanh"),),
    "RNN": (("tanh",), ("relu",)),
}
"""Of one direction."""
_NOT_OF_CUDNN = ("clip", "input_forget", "layout")
_RANK_OF_Y = 4
_SEQUENCE_LENS, _PEEPHOLES = 4, 7
_H, _C = 5, 6


def recurrent_calls(view: GraphView) -> Iterator[Match]:
    """Find the layers of each module, with what reorders and drops their outputs between."""
    positions = {node.name: index for index, node in enumerate(view.graph.nodes)}
    paths = dict(zip(positions, paths_of(view.graph.nodes), strict=True))
    used: set[str] = set()
    for node in view.graph.nodes:
        if node.name not in used and _is_of_cudnn(node):
            layers = _layers_of_module(view, node, paths)
            if not _ends_before_readers(view, layers, positions):
                layers = [_WrittenLayer(node, (node,), node.outputs[0])]
            used.update(layer.node.name for layer in layers)
            yield _match(view, layers)


@dataclass(frozen=True, slots=True)
class _WrittenLayer:
    """One layer of a module."""

    node: Node
    nodes: tuple[Node, ...]
    """With those before it that drop outputs of the layer before, and those that reorder its own
    output to [T, B, D x H]."""
    output: str
    has_dropout: bool = False
    """Before it."""


def _layers_of_module(
    view: GraphView, first: Node, paths: dict[str, tuple[str, ...]]
) -> list[_WrittenLayer]:
    """All layers of a module from its first one on."""
    layers = [_written_layer(view, first)]
    while (after := _next(view, layers[-1])) is not None and _are_alike(first, after.node, paths):
        layers.append(after)
    return layers


def _is_of_cudnn(node: Node) -> bool:
    if node.onnx_op not in RECURRENT or node.subgraphs:
        return False
    given = node.attributes
    if any(given.get(name) for name in _NOT_OF_CUDNN) or given.get("direction") == "reverse":
        return False
    # PyTorch multiplies with the reset gate after the product with h, which ONNX has only with
    # this.
    if node.onnx_op == "GRU" and not given.get("linear_before_reset"):
        return False
    activations = given.get("activations")
    if isinstance(activations, tuple):
        known = _ACTIVATIONS[node.onnx_op]
        named = tuple(str(each).lower() for each in activations)
        # ONNX names the activations of each direction, one after the other.
        if named not in {each * times for each in known for times in (1, 2)}:
            return False
    return not any(node.inputs[index : index + 1] > ("",) for index in (_SEQUENCE_LENS, _PEEPHOLES))


def _written_layer(view: GraphView, node: Node, before: Node | None = None) -> _WrittenLayer:
    """A layer, after a Dropout if one is given."""
    nodes = (*(() if before is None else (before,)), node)
    name = node.outputs[0]
    reordering = _reordering(view, name) if name else ()
    output = reordering[-1].outputs[0] if reordering else name
    return _WrittenLayer(node, (*nodes, *reordering), output, before is not None)


def _reordering(view: GraphView, name: str) -> tuple[Node, ...]:
    """The nodes that join the directions of Y, [T, D, B, H]: none, or to [T, B, D x H]."""
    first = _only_reader(view, name)
    if first is None:
        return ()
    if first.onnx_op == "Squeeze":
        return (first,) if _shape_of(view, first) == _joined(view, name) else ()
    if first.onnx_op != "Transpose" or first.attributes.get("perm") != (0, 2, 1, 3):
        return ()
    second = _only_reader(view, first.outputs[0])
    if second is None or second.onnx_op != "Reshape":
        return ()
    return (first, second) if _shape_of(view, second) == _joined(view, name) else ()


def _joined(view: GraphView, name: str) -> tuple[int | None, ...] | None:
    """The shape of Y as [T, B, D x H]."""
    dims = view.dims(name)
    if dims is None or len(dims) != _RANK_OF_Y:
        return None
    return dims[0], dims[2], dims[1] * dims[3]


def _shape_of(view: GraphView, node: Node) -> tuple[int | None, ...]:
    return view.dims(node.outputs[0]) or ()


def _only_reader(view: GraphView, name: str) -> Node | None:
    return view.readers.get(name) if view.reads[name] == 1 else None


def _next(view: GraphView, layer: _WrittenLayer) -> _WrittenLayer | None:
    """The layer that reads the output of another, perhaps after a Dropout."""
    # Y as it is, [T, D, B, H], is no input of a layer: without reordering this layer is the last.
    if layer.output == layer.node.outputs[0]:
        return None
    reader = _only_reader(view, layer.output)
    before = None
    if reader is not None and reader.onnx_op == "Dropout" and reader.inputs[0] == layer.output:
        before, reader = reader, _only_reader(view, reader.outputs[0])
    if reader is None or not _is_of_cudnn(reader):
        return None
    is_data = reader.inputs[0] == (layer.output if before is None else before.outputs[0])
    return _written_layer(view, reader, before) if is_data else None


def _are_alike(first: Node, node: Node, paths: dict[str, tuple[str, ...]]) -> bool:
    """Whether a node can be a further layer of a module: the same sizes, in the same module."""
    names = ("hidden_size", "direction", "activations")
    return (
        first.onnx_op == node.onnx_op
        and all(first.attributes.get(name) == node.attributes.get(name) for name in names)
        and paths[first.name] == paths[node.name]
    )


def _ends_before_readers(
    view: GraphView, layers: list[_WrittenLayer], positions: dict[str, int]
) -> bool:
    """Whether all that reads a state of a layer runs after the last node of the last layer."""
    end = positions[layers[-1].nodes[-1].name]
    inside = {node.name for layer in layers for node in layer.nodes}
    states = {name for layer in layers for name in layer.node.outputs[1:] if name}
    readers = (node for node in view.graph.nodes[:end] if node.name not in inside)
    return all(states.isdisjoint(node.reads) for node in readers)


def _match(view: GraphView, layers: list[_WrittenLayer]) -> Match:
    first = layers[0].node
    states = [name for layer in layers for name in layer.node.outputs[1:] if view.reads[name]]
    # Of each layer W, R and B, ``""`` for what is left out, as `_FIRST_WEIGHT` counts them.
    weights = [name for layer in layers for name in (*layer.node.inputs[1:4], "", "")[:3]]
    initial = (*first.inputs, *("",) * _PEEPHOLES)
    return Match(
        tuple(node for layer in layers for node in layer.nodes),
        CUDNN_RNN,
        (first.inputs[0], initial[_H], initial[_C], *weights),
        (layers[-1].output, *states),
        {
            "mode": first.onnx_op,
            "has_dropout": int(any(layer.has_dropout for layer in layers)),
        },
    )
