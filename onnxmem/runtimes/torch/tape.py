"""What autograd saves in the forward pass of a graph, node by node.

``tape_of`` takes a graph, its parameters and a precision, and returns a ``Tape``: which tensors
share a storage, which require a gradient, which nodes the backward pass goes through, and what each
of them saves. That is the inputs and outputs that its record lists, and what its formula computes
besides: a mask, indices, statistics. Graph inputs and weights are allocated anyway and add nothing.
A saved view keeps its whole storage alive, and saving a storage twice costs nothing more.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from onnxmem.model.graph import DType, Graph, Node, Role, record
from onnxmem.model.parameters import Parameters
from onnxmem.ops.registry import UNKNOWN
from onnxmem.ops.spec import Call, Gradient, Operand, OpSpec, known_dims, nothing
from onnxmem.runtimes.torch.einsum import operand_calls
from onnxmem.runtimes.torch.framework import (
    ATTENTION,
    CUDNN_RNN,
    constant_tensors,
    data_reads,
    is_flash_attention,
)
from onnxmem.runtimes.torch.hooks import vectors_without_gradient
from onnxmem.runtimes.torch.precision import Autocast, CastGraph, Precision, with_casts
from onnxmem.runtimes.torch.recurrent import (
    RECURRENT,
    FusedLayers,
    Layer,
    fused_layers_of,
    layer_of,
    packed_weights,
)
from onnxmem.runtimes.torch.strides import (
    MATRIX_RANK,
    Dims,
    copied_elements,
    is_matmul,
    is_row_major,
)
from onnxmem.runtimes.torch.views import View, find_views, in_place_arithmetic, is_identity

_BEFORE_FLASH_2 = ("1.12", "2.0")
"""Releases of PyTorch before FlashAttention 2."""
_Slot = tuple[slice, slice]
"""The indices of a schema's slot among a node's inputs, and among its outputs."""


@record
class SavedTensors:
    """What one node saves for backward."""

    storages: tuple[str, ...] = ()
    """The storages of the saved inputs and outputs, by their first tensors."""
    copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of operands' copies that are saved instead of them."""
    transient_copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of copies that are freed when the node is done."""
    extra_bytes: int | None = 0
    inner: tuple[tuple[str, int | None], ...] = ()
    """(tensor, bytes) of every output of the nodes in the node's subgraphs."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A graph as an eager framework runs it; sizes are bytes in the requested precision."""

    graph: Graph
    parameters: Parameters
    precision: Precision
    views: Mapping[str, View]
    storages: Mapping[str, str]
    """Tensors by the storage that they are in, where a node of the step allocates it."""
    requires_grad: frozenset[str]
    """Tensors that require a gradient."""
    backward_nodes: tuple[Node, ...]
    """The nodes that the backward pass goes through, in forward order."""
    constants: frozenset[str]
    """What a framework computes before the step: it takes no memory in it."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes pack, by the parameters that the framework reads instead."""
    cached: frozenset[str]
    """The copies of parameters in autocast's cache."""
    callers: Mapping[str, str]
    """Nodes that run inside another one's call, which holds what they read: autocast's casts, and
    operands of an Einsum."""
    widening: tuple[str, ...] = ()
    """Constants taken for float32 under autocast, whose results would have 16 bits otherwise."""
    narrowed: tuple[str, ...] = ()
    """Nodes assumed to run in place, whose results would be float32 under autocast otherwise."""
    saved: Mapping[str, SavedTensors] = field(default_factory=dict)
    """By node."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes without a record or with subgraphs: everything they read or write is saved."""
    sizes: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    """Memo of ``size_bytes`` by shape and type: a large graph has few."""
    gradients: dict[tuple[int, int], Gradient] = field(default_factory=dict)
    """Memo of gradient rules, by the operator's identity and the index of the input."""
    widths: dict[DType | None, int] = field(default_factory=dict)
    """Memo of ``bits`` by type."""

    def dims(self, name: str) -> Dims | None:
        """The dims of a tensor, if all are known."""
        return known_dims(self.graph.tensors[name].shape)

    def operand(self, name: str) -> Operand:
        """A tensor as formulas see it, in the precision of activations."""
        tensor = self.graph.tensors[name]
        bits = self.precision.bits_in_step(tensor)
        return Operand(tensor.shape, bits, self.graph.values.get(name))

    def size_bytes(self, name: str) -> int | None:
        """Bytes of a tensor in the step."""
        # Looked up at every reference to a storage, once more by each checkpointing schedule.
        tensor = self.graph.tensors[name]
        key = tensor.shape, tensor.dtype, tensor.max_elements
        if key not in self.sizes:
            operand = self.operand(name)
            if tensor.max_elements is not None:
                operand = replace(operand, shape=(tensor.max_elements,))
            self.sizes[key] = operand.size_bytes
        return self.sizes[key]

    def bits(self, name: str) -> int:
        """Bits per element of a tensor in the step, and of its gradient; 0 is unknown."""
        tensor = self.graph.tensors[name]
        if tensor.dtype not in self.widths:
            self.widths[tensor.dtype] = self.precision.bits_in_step(tensor) or 0
        return self.widths[tensor.dtype]

    def call(self, node: Node) -> Call:
        """A node as its formulas see it."""
        inputs, outputs = (
            tuple(self.operand(name) if name else None for name in names)
            for names in (node.inputs, node.outputs)
        )
        return Call(inputs, outputs, node.attributes)

    def layer(self, node: Node) -> Layer | None:
        """The sizes of a recurrent node; ``None`` for other nodes, or where a size is unknown."""
        if node.op_type not in RECURRENT or node.domain or node.subgraphs:
            return None
        return layer_of(node.onnx_op, self.call(node))

    def fused_layers(self, node: Node) -> FusedLayers | None:
        """The sizes of a call of cuDNN; ``None`` for other nodes, or where a size is unknown."""
        if node.operator is not CUDNN_RNN:
            return None
        return fused_layers_of(self.call(node), is_bfloat16=self.precision.is_bfloat16)

    def convolution_bytes(self, node: Node) -> int:
        """Bytes of what a convolution of cuDNN reads and writes; 0: PyTorch's own kernel runs.

        That is a depthwise convolution's (``use_cudnn_depthwise`` of
        aten/src/ATen/native/Convolution.cpp has exceptions in 16 bits, which are left out).
        """
        dims, group = self.dims(node.inputs[0]), node.attributes.get("group", 1)
        if dims is not None and group != 1 and group in dims[1:2]:
            return 0
        names = filter(None, (*node.inputs[:2], *node.outputs[:1]))
        return sum(self.size_bytes(name) or 0 for name in names)

    def has_steps_first(self, name: str) -> bool:
        """Whether a sequence is [T, B, ...] in memory, so that layers read it without a copy."""
        dims = self.dims(name)
        return dims is None or is_row_major(dims, self.views[name].strides)

    def allocates_storage(self, name: str) -> bool:
        """Whether writing a tensor allocates a storage that later nodes read.

        A view, a constant and a cached copy of a parameter do not.
        """
        return self.storages.get(name) == name and name not in self.cached


def tape_of(
    graph: Graph,
    parameters: Parameters,
    precision: Precision,
    outputs: tuple[str, ...],
    *,
    in_place: bool | None = False,
) -> Tape:
    """Determine what the forward pass saves where a loss reads ``outputs``.

    ``in_place`` selects the activations that overwrite their input: see ``in_place_activations``.
    """
    constants = constant_tensors(graph, parameters)
    # Casts first: they are nodes with views, gradients and saved tensors like any other.
    augmented = in_place_arithmetic(graph, in_place) if precision.autocast else {}
    run = _with_autocast(graph, parameters, precision, constants, augmented)
    graph, packed = run.graph, run.packed
    requires_grad = tensors_requiring_grad(graph, parameters)
    # Packing of weights is the file's own: the framework's layer reads the parameters themselves,
    # so that its gradients go to them without any node between.
    backward_nodes = tuple(
        node
        for node in _find_backward_nodes(graph, requires_grad, outputs, packed)
        if not packed or not packed.keys() >= set(node.writes)
    )
    views = find_views(graph, in_place=in_place, like_query=attentions_like_query(graph, precision))
    tape = Tape(
        graph=graph,
        parameters=parameters,
        precision=precision,
        views=views,
        storages=_allocated_storages(graph, views, constants.union(packed)),
        requires_grad=requires_grad,
        backward_nodes=backward_nodes,
        constants=constants,
        packed=packed,
        cached=run.cached,
        callers=_callers(graph, run.callers),
        widening=run.widening,
        narrowed=run.narrowed,
    )
    saver = _Saver(tape)
    saved = {node.name: saver.saved_by(node) for node in backward_nodes}
    return replace(tape, saved=saved, assumed_nodes=tuple(saver.assumed))


def attentions_like_query(graph: Graph, precision: Precision) -> frozenset[str]:
    """Name the attentions whose output is laid out like the query: those of FlashAttention 2.

    ``mha_fwd`` of aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp allocates
    ``empty_like(q)``. PyTorch has it since 2.2; the kernel of 2.0 packed its rows.
    """
    if precision.torch in _BEFORE_FLASH_2:
        return frozenset()
    attentions = (node for node in graph.nodes if node.operator is ATTENTION)
    return frozenset(
        node.name
        for node in attentions
        if is_flash_attention(
            precision.bits_in_step(graph.tensors[node.inputs[0]]), has_mask=any(node.inputs[3:])
        )
    )


def _callers(graph: Graph, of_casts: Mapping[str, str]) -> Mapping[str, str]:
    """Nodes by the node at whose end their operands are no longer referenced by a call."""
    calls = operand_calls(graph.nodes)
    return {**{cast: calls.get(name, name) for cast, name in of_casts.items()}, **calls}


def _allocated_storages(
    graph: Graph, views: Mapping[str, View], known: frozenset[str]
) -> Mapping[str, str]:
    """The storages that nodes allocate: not those of inputs, weights and constants."""
    tensors = graph.tensors
    return {
        name: view.storage
        for name, view in views.items()
        if tensors[view.storage].role is Role.ACTIVATION and view.storage not in known
    }


def _with_autocast(
    graph: Graph,
    parameters: Parameters,
    precision: Precision,
    constants: frozenset[str],
    in_place: Mapping[str, bool],
) -> CastGraph:
    """The graph with autocast's casts, if the precision uses autocast."""
    packed = packed_weights(graph, parameters)
    if precision.autocast is None:
        return CastGraph(graph, frozenset(), {}, packed)
    autocast = Autocast(
        low=precision.autocast,
        lists=precision.lists,
        trained=frozenset(graph.tensors[name].storage_key for name in parameters.trained),
        constants=constants,
        packed=packed,
        in_place=in_place,
    )
    return with_casts(graph, autocast)


def tensors_requiring_grad(graph: Graph, parameters: Parameters) -> frozenset[str]:
    """Name the tensors that require a gradient: trained parameters and what is computed from them.

    ``requires_grad`` passes from a floating input to the floating outputs of a differentiable
    operator; through a node with subgraphs from everything that their nodes read.
    """
    trained = {graph.tensors[name].storage_key for name in parameters.trained}
    tensors = graph.tensors.items()
    # By storage: tied weights are one parameter under several names.
    found = {name for name, tensor in tensors if (tensor.storage or tensor.name) in trained}
    detached = vectors_without_gradient(graph)
    for node in graph.nodes:
        reads = _all_reads(node) if node.subgraphs else data_reads(node)
        if node.operator.differentiable and not found.isdisjoint(reads):
            written = (name for name in node.writes if name not in detached)
            found.update([name for name in written if _is_floating(graph, name)])
    return frozenset(found)


def _find_backward_nodes(
    graph: Graph,
    requires_grad: frozenset[str],
    outputs: Iterable[str],
    packed: Mapping[str, tuple[str, ...]],
) -> tuple[Node, ...]:
    """List the nodes of the autograd graph: those on a path from a parameter to an output.

    What reads a packed weight reads the parameters, or autocast's copies of them.
    """
    # Invariant: `wanted` are the tensors whose gradient a node behind the current one computes.
    wanted = {name for name in outputs if name in requires_grad}
    found: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.writes):
            found.append(node)
            read = data_reads(node)
            wanted.update(requires_grad.intersection(read))
            for name in packed.keys() & read:
                wanted.update(requires_grad.intersection(packed[name]))
    return tuple(reversed(found))


def _all_reads(node: Node) -> Iterable[str]:
    """Name the tensors that a node and the nodes of its subgraphs read the data of."""
    inner = (within for _, body in node.subgraphs for within in body.all_nodes())
    return (*data_reads(node), *(name for within in inner for name in within.reads))


def _is_floating(graph: Graph, name: str) -> bool:
    """Whether a tensor can have a gradient; one of unknown type is assumed to be floating."""
    dtype = graph.tensors[name].dtype
    return dtype is None or dtype.is_floating


@dataclass(slots=True)
class _Saver:
    """Mutable: determines what nodes save, one after another."""

    tape: Tape
    assumed: list[str] = field(default_factory=list)
    slots: dict[int, tuple[tuple[_Slot, _Slot | None], ...]] = field(default_factory=dict)
    """The slots that each operator, by its identity, saves, and which must require a gradient."""

    def saved_by(self, node: Node) -> SavedTensors:
        """What one node's backward formula reads."""
        if is_identity(self.tape.graph, node):
            return SavedTensors()
        if node.operator is UNKNOWN or node.subgraphs:
            return self._everything(node)
        layer = self.tape.layer(node)
        if layer is not None:
            return self._layer(node, layer)
        fused = self.tape.fused_layers(node)
        if fused is not None:
            return self._fused_layers(node, fused)
        names = self._saved_names(node)
        extra_bytes = self._extra_bytes(node)
        copies = self._copies(node) if is_matmul(node) else {}
        # `matmul` runs as `bmm` on folded operands, and it is `bmm` that saves: where folding
        # copied an operand, the copy is saved and the operand itself is not.
        if not copies:
            return SavedTensors(self._storages(names), extra_bytes=extra_bytes)
        return SavedTensors(
            self._storages(name for name in names if name not in copies),
            tuple(copies[name] for name in names if name in copies),
            tuple(copy for name, copy in copies.items() if name not in names),
            extra_bytes,
        )

    def _saved_names(self, node: Node) -> tuple[str, ...]:
        """Name the tensors that a node's record lists as saved, given what requires a gradient.

        As generated from derivatives.yaml (VariableType.cpp): what only the gradient of one input
        reads is saved only if that input requires it (``should_compute_output``).
        """
        operator = node.operator
        slots = self.slots.get(id(operator))
        if slots is None:
            slots = self.slots[id(operator)] = tuple(_saved_slots(operator))
        requires_grad = self.tape.requires_grad
        names: tuple[str, ...] = ()
        for slot, if_grad in slots:
            if if_grad is None or not requires_grad.isdisjoint(_operands(node, if_grad)):
                names += _operands(node, slot)
        return tuple(dict.fromkeys(names)) if len(names) > 1 else names

    def _extra_bytes(self, node: Node) -> int | None:
        formula = node.operator.saved_extra_bytes
        return 0 if formula is nothing else formula(self.tape.call(node))

    def _layer(self, node: Node, layer: Layer) -> SavedTensors:
        """What a recurrent layer saves: X or copies of it, the initial states and each step's.

        Its matrices too, where they are copies that autocast made.
        """
        data = node.inputs[0]
        # `at::linear` of all steps at once reads X as one matrix: another layout is copied, for
        # each direction again, and so is one of another type.
        copies_input = layer.copies_input or not self.tape.has_steps_first(data)
        transient_bytes = layer.transient_bytes(writes_output=bool(node.outputs[0]))
        packed = self.tape.packed
        matrices = (each for name in node.inputs[1:3] for each in packed.get(name, (name,)))
        return SavedTensors(
            self._storages((*(() if copies_input else (data,)), *matrices)),
            layer.blocks_of(node.name, copies_input=copies_input),
            ((f"gates of {node.name}", transient_bytes),),
        )

    def _fused_layers(self, node: Node, layers: FusedLayers) -> SavedTensors:
        """What a call of cuDNN saves: input, output, weights and the reserve space."""
        copies = [(f"reserve space of {node.name}", layers.reserve_bytes)]
        # Under autocast the copies are those of ``_cudnn_rnn_cast_reflatten`` (RNN.cpp), which are
        # nodes of the cast graph and are saved by their names.
        if layers.copies_weights and self.tape.precision.autocast is None:
            copies.append((f"weights of {node.name}", layers.weights_bytes))
        if not node.outputs[0]:
            copies.append((f"output of {node.name}", layers.output_bytes))
        transient_bytes = layers.workspace_bytes(is_forward=True)
        if not self.tape.has_steps_first(node.inputs[0]):
            transient_bytes += layers.input_bytes
        packed = self.tape.packed
        names = (each for name in self._saved_names(node) for each in packed.get(name, (name,)))
        return SavedTensors(
            self._storages(names),
            tuple(copies),
            ((f"workspace of {node.name}", transient_bytes),),
        )

    def _storages(self, names: Iterable[str]) -> tuple[str, ...]:
        """The storages of saved tensors, each once: a SavedVariable only adds a reference."""
        storages = self.tape.storages
        found = [storages[name] for name in names if name in storages]
        return tuple(dict.fromkeys(found) if len(found) > 1 else found)

    def _everything(self, node: Node) -> SavedTensors:
        """Every floating tensor that a node reads or writes, and all that its subgraphs write."""
        # An upper bound for one iteration, reported in `assumed_nodes`.
        self.assumed.append(node.name)
        tensors = [self.tape.graph.tensors[name] for name in (*node.reads, *node.writes)]
        floating = (each.name for each in tensors if each.dtype is None or each.dtype.is_floating)
        inner = tuple(
            (name, self.tape.size_bytes(name))
            for _, body in node.subgraphs
            for within in body.all_nodes()
            for name in within.writes
        )
        return SavedTensors(storages=self._storages(floating), inner=inner)

    def _copies(self, node: Node) -> dict[str, tuple[str, int | None]]:
        """The operands that a MatMul copies: (label, bytes) by name."""
        left, right = node.inputs[:2]
        found = ((left, self._copy(left, right)), (right, self._copy(right, left)))
        return {
            name: (f"{name} as {node.name} reads it", size)
            for name, size in found
            if size is not None
        }

    def _copy(self, name: str, other: str) -> int | None:
        """Bytes of the copy of an operand; ``None`` where none is made or a shape is unknown."""
        dims = self.tape.dims(name)
        if dims is None or len(dims) <= MATRIX_RANK:
            return None
        strides, other_dims = self.tape.views[name].strides, self.tape.dims(other)
        if other_dims is None or strides is None:
            return None
        count = copied_elements(dims, strides, other_dims)
        if count is None:
            return None
        return replace(self.tape.operand(name), shape=(count,)).size_bytes


def _saved_slots(operator: OpSpec) -> Iterator[tuple[_Slot, _Slot | None]]:
    for saved in operator.saved:
        if_grad = None if saved.if_grad is None else _slot(operator, saved.if_grad)
        yield _slot(operator, saved.name), if_grad


def _slot(operator: OpSpec, name: str) -> _Slot:
    return _indices(name, operator.inputs), _indices(name, operator.outputs)


def _indices(name: str, slots: tuple[str, ...]) -> slice:
    """The indices of a slot's operands, a variadic one's too; empty if there is no such slot."""
    if name in slots:
        index = slots.index(name)
        return slice(index, index + 1)
    return slice(slots.index(f"*{name}"), None) if f"*{name}" in slots else slice(0)


def _operands(node: Node, slot: _Slot) -> tuple[str, ...]:
    """Name the inputs at a slot, or else the outputs."""
    inputs, outputs = slot
    names = node.inputs[inputs]
    found = tuple(filter(None, names)) if "" in names else names
    return found or tuple(filter(None, node.outputs[outputs]))
