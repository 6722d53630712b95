"""What the forward pass of a graph leaves behind for its backward pass, node by node.

A graph, its parameters and a precision go in, a ``Tape`` comes out (``tape_of``): which tensors
share a storage, which require a gradient, which nodes the backward pass goes through, and what each
of them saves. That is the inputs and outputs that its record lists, and what its formula makes
besides: a mask, indices, statistics. Graph inputs and weights are held anyway and add nothing. A
saved view keeps the whole storage that it looks into, and saving it twice costs nothing more.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from onnxmem.model.graph import DType, Graph, Node, Role, record
from onnxmem.model.parameters import Parameters
from onnxmem.ops.registry import UNKNOWN
from onnxmem.ops.spec import Attribute, Call, Gradient, Operand, OpSpec, known_dims, nothing
from onnxmem.runtimes.torch.framework import ATTENTION, constant_tensors, data_reads
from onnxmem.runtimes.torch.precision import LISTS, Autocast, CastGraph, Precision, with_casts
from onnxmem.runtimes.torch.recurrent import RECURRENT, Layer, layer_of, packed_weights
from onnxmem.runtimes.torch.strides import (
    MATRIX_RANK,
    Dims,
    Strides,
    axes_order,
    contiguous,
    copied_elements,
    expanded,
    is_product,
    is_row_major,
    like,
    permuted,
    reshaped,
)

_KEEPING_OUTPUT = frozenset({"Relu", "Sigmoid", "Tanh"})


_KEEPING_INPUT = frozenset({"Celu", "Elu", "LeakyRelu", "Selu"})
"""They keep their output where they run in place."""


_HEADS = (0, 2, 1, 3)
"""Attention kernels write [batch, rows, heads, width], and hand out [batch, heads, rows, width]."""


_HANDING_ON = frozenset({"Cast", "CastLike", "Dropout", "Slice"})
"""Operators that may hand their input on as it is."""


_LOOKING = _HANDING_ON | {"Gather"}
"""Operators that may look into a storage where their record does not say so."""


_Slot = tuple[slice, slice]
"""The indices of a schema's slot among a node's inputs, and among its outputs."""


@record
class View:
    """A tensor as a look into a storage."""

    storage: str
    """The tensor that was first written there."""
    strides: Strides | None
    """``None`` where shapes are unknown: taken as row-major order."""


@record
class SavedTensors:
    """What one node keeps from forward to backward."""

    storages: tuple[str, ...] = ()
    """First tensors of the storages that hold what is kept."""
    copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of operands' copies that are saved instead of them."""
    transient_copies: tuple[tuple[str, int | None], ...] = ()
    """(label, bytes) of copies that are gone when the node is done."""
    extra_bytes: int | None = 0
    inner: tuple[tuple[str, int | None], ...] = ()
    """(tensor, bytes) of what the node's subgraphs make, all of it."""


@dataclass(frozen=True, slots=True)
class Tape:
    """A graph as an eager framework runs it; sizes are bytes in the precision requested."""

    graph: Graph
    parameters: Parameters
    precision: Precision
    views: Mapping[str, View]
    storages: Mapping[str, str]
    """Tensors by the storage that they are in, where a node of the step allocates it."""
    reached: frozenset[str]
    """Tensors that require a gradient."""
    backward_nodes: tuple[Node, ...]
    """The nodes that a backward pass goes through, in forward order."""
    constants: frozenset[str]
    """What a framework works out before the step: it takes no memory in it."""
    packed: Mapping[str, tuple[str, ...]]
    """Weights that nodes put together, by the parameters that the framework reads instead."""
    cached: frozenset[str]
    """The parameters' copies that autocast holds as long as it is on."""
    callers: Mapping[str, str]
    """Autocast's casts by the nodes that they are made for."""
    saved: Mapping[str, SavedTensors] = field(default_factory=dict)
    """By node."""
    assumed_nodes: tuple[str, ...] = ()
    """Nodes without a record, and those with subgraphs: everything they read or make is kept."""
    sizes: dict[tuple[object, ...], int | None] = field(default_factory=dict)
    """Bytes of the tensors that were read, by shape and type: a large graph has few."""
    gradients: dict[tuple[int, int], Gradient] = field(default_factory=dict)
    """How gradients are made, by operator, as its identity, and input, as far as requested."""
    widths: dict[DType | None, int] = field(default_factory=dict)
    """Bits per element by type, as far as they were requested."""

    def dims(self, name: str) -> Dims | None:
        """The dims of a tensor, if all are known."""
        return known_dims(self.graph.tensors[name].shape)

    def operand(self, name: str) -> Operand:
        """A tensor as formulas see it, in the precision of activations."""
        tensor = self.graph.tensors[name]
        bits = self.precision.bits_in_step(tensor)
        return Operand(tensor.shape, bits, self.graph.values.get(name))

    def size_bytes(self, name: str) -> int | None:
        """Bytes of a tensor as the step holds it."""
        tensor = self.graph.tensors[name]
        key = tensor.shape, tensor.dtype
        if key not in self.sizes:
            self.sizes[key] = self.operand(name).size_bytes
        return self.sizes[key]

    def bits(self, name: str) -> int:
        """Bits per element of a tensor as the step holds it, and of its gradient; 0 is unknown."""
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
        """The sizes of a recurrent node; ``None`` where it is none or one is unknown."""
        if node.op_type not in RECURRENT or node.domain or node.subgraphs:
            return None
        return layer_of(node.onnx_op, self.call(node))

    def makes_storage(self, name: str) -> bool:
        """Whether a node that writes a tensor allocates what goes on: no view, constant or copy."""
        return self.storages.get(name) == name and name not in self.cached


@dataclass(frozen=True, slots=True)
class _ViewCall:
    """One operator that looks into a storage: what its strides follow from."""

    attributes: Mapping[str, Attribute]
    before: Dims
    strides: Strides
    after: Dims


def tape_of(
    graph: Graph,
    parameters: Parameters,
    precision: Precision,
    outputs: tuple[str, ...],
    *,
    in_place: bool | None = False,
) -> Tape:
    """Work out what the forward pass keeps where a loss reads ``outputs``.

    ``in_place`` says which activations write over their input: see ``in_place_activations``.
    """
    constants = constant_tensors(graph, parameters)
    run = _as_run(graph, parameters, precision, constants)
    graph, packed = run.graph, run.packed
    reached = requiring_gradient(graph, parameters)
    backward_nodes = tuple(
        node
        for node in _find_backward_nodes(graph, reached, outputs)
        if not packed or not packed.keys() >= set(node.writes)
    )
    views_by_name = views(graph, in_place=in_place)
    empty = Tape(
        graph=graph,
        parameters=parameters,
        precision=precision,
        views=views_by_name,
        storages=_allocated(graph, views_by_name, constants.union(packed)),
        reached=reached,
        backward_nodes=backward_nodes,
        constants=constants,
        packed=packed,
        cached=run.cached,
        callers=run.callers,
    )
    ledger = _Saving(empty)
    saved = {node.name: ledger.keep(node) for node in backward_nodes}
    return replace(empty, saved=saved, assumed_nodes=tuple(ledger.assumed))


def _allocated(
    graph: Graph, views_by_name: Mapping[str, View], known: frozenset[str]
) -> Mapping[str, str]:
    """The storages of tensors that nodes allocate: not of inputs, weights and what is known."""
    tensors = graph.tensors
    return {
        name: view.storage
        for name, view in views_by_name.items()
        if tensors[view.storage].role is Role.ACTIVATION and view.storage not in known
    }


def _as_run(
    graph: Graph, parameters: Parameters, precision: Precision, constants: frozenset[str]
) -> CastGraph:
    """The graph with the casts that the precision makes, if it makes any."""
    packed = packed_weights(graph, parameters)
    if precision.autocast is None:
        return CastGraph(graph, frozenset(), {}, packed)
    autocast = Autocast(
        low=precision.autocast,
        lists=LISTS[precision.autocast_device],
        trained=frozenset(graph.tensors[name].storage_key for name in parameters.trained),
        constants=constants,
        packed=packed,
    )
    return with_casts(graph, autocast)


def requiring_gradient(graph: Graph, parameters: Parameters) -> frozenset[str]:
    """Name the tensors that a gradient reaches: trained parameters and what is made from them.

    It passes from floating input to floating output through every differentiable operator; a node
    with subgraphs passes it from whatever its bodies read.
    """
    trained = {graph.tensors[name].storage_key for name in parameters.trained}
    tensors = graph.tensors.items()
    reached = {name for name, tensor in tensors if (tensor.storage or tensor.name) in trained}
    for node in graph.nodes:
        reads = _all_reads(node) if node.subgraphs else data_reads(node)
        if node.operator.differentiable and not reached.isdisjoint(reads):
            reached.update([name for name in node.writes if _is_floating(graph, name)])
    return frozenset(reached)


def _find_backward_nodes(
    graph: Graph, reached: frozenset[str], outputs: Iterable[str]
) -> tuple[Node, ...]:
    """List the nodes that a backward pass goes through: on a way from a parameter to an output."""
    wanted = {name for name in outputs if name in reached}
    through: list[Node] = []
    for node in reversed(graph.nodes):
        if not wanted.isdisjoint(node.writes):
            through.append(node)
            wanted.update(reached.intersection(data_reads(node)))
    return tuple(reversed(through))


def _all_reads(node: Node) -> Iterable[str]:
    """Name what a node reads the data of, and what its subgraphs read inside."""
    inner = (within for _, body in node.subgraphs for within in body.all_nodes())
    return (*data_reads(node), *(name for within in inner for name in within.reads))


def _is_floating(graph: Graph, name: str) -> bool:
    """Whether a gradient can be taken of a tensor; one of unknown type is taken to be floating."""
    dtype = graph.tensors[name].dtype
    return dtype is None or dtype.is_floating


@dataclass(slots=True)
class _Saving:
    """Mutable: enters what nodes keep, one after another."""

    tape: Tape
    assumed: list[str] = field(default_factory=list)
    slots: dict[int, tuple[tuple[_Slot, _Slot | None], ...]] = field(default_factory=dict)
    """What each operator, as its identity, lists as kept, and what must require a gradient."""

    def keep(self, node: Node) -> SavedTensors:
        """What one node's backward formula reads."""
        if is_identity(self.tape.graph, node):
            return SavedTensors()
        if node.operator is UNKNOWN or node.subgraphs:
            return self._everything(node)
        layer = self.tape.layer(node)
        if layer is not None:
            return self._layer(node, layer)
        names = self._saved(node)
        extra_bytes = self._extra_bytes(node)
        found = self._copies(node) if is_product(node) else {}
        if not found:
            return SavedTensors(self._storages(names), extra_bytes=extra_bytes)
        return SavedTensors(
            self._storages(name for name in names if name not in found),
            tuple(found[name] for name in names if name in found),
            tuple(copy for name, copy in found.items() if name not in names),
            extra_bytes,
        )

    def _saved(self, node: Node) -> tuple[str, ...]:
        """Name the tensors that a node's record lists as kept, given what requires a gradient."""
        operator = node.operator
        slots = self.slots.get(id(operator))
        if slots is None:
            slots = self.slots[id(operator)] = tuple(_saved_slots(operator))
        reached = self.tape.reached
        names: tuple[str, ...] = ()
        for slot, if_grad in slots:
            if if_grad is None or not reached.isdisjoint(_operands(node, if_grad)):
                names += _operands(node, slot)
        return tuple(dict.fromkeys(names)) if len(names) > 1 else names

    def _extra_bytes(self, node: Node) -> int | None:
        formula = node.operator.saved_extra_bytes
        return 0 if formula is nothing else formula(self.tape.call(node))

    def _layer(self, node: Node, layer: Layer) -> SavedTensors:
        """What a recurrent layer keeps: X or copies of it, the first states and each step's.

        Its matrices too, where they are copies that autocast made.
        """
        data = node.inputs[0]
        dims, strides = self.tape.dims(data), self.tape.views[data].strides
        copies_input = dims is not None and not is_row_major(dims, strides)
        transient_bytes = layer.transient_bytes(writes_output=bool(node.outputs[0]))
        packed = self.tape.packed
        matrices = (each for name in node.inputs[1:3] for each in packed.get(name, (name,)))
        return SavedTensors(
            self._storages((*(() if copies_input else (data,)), *matrices)),
            layer.blocks_of(node.name, copies_input=copies_input),
            ((f"gates of {node.name}", transient_bytes),),
        )

    def _storages(self, names: Iterable[str]) -> tuple[str, ...]:
        storages = self.tape.storages
        found = [storages[name] for name in names if name in storages]
        return tuple(dict.fromkeys(found) if len(found) > 1 else found)

    def _everything(self, node: Node) -> SavedTensors:
        """Keep every floating tensor that a node reads or makes, and all that its bodies make."""
        self.assumed.append(node.name)
        touched = [self.tape.graph.tensors[name] for name in (*node.reads, *node.writes)]
        floating = (each.name for each in touched if each.dtype is None or each.dtype.is_floating)
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
        mine = self.tape.dims(name)
        if mine is None or len(mine) <= MATRIX_RANK:
            return None
        strides, others = self.tape.views[name].strides, self.tape.dims(other)
        if others is None or strides is None:
            return None
        count = copied_elements(mine, strides, others)
        if count is None:
            return None
        return replace(self.tape.operand(name), shape=(count,)).size_bytes


def _saved_slots(operator: OpSpec) -> Iterator[tuple[_Slot, _Slot | None]]:
    for saved in operator.saved:
        if_grad = None if saved.if_grad is None else _slot(operator, saved.if_grad)
        yield _slot(operator, saved.name), if_grad


def _slot(operator: OpSpec, name: str) -> _Slot:
    return _places(name, operator.inputs), _places(name, operator.outputs)


def _places(name: str, slots: tuple[str, ...]) -> slice:
    """Where the operands of a slot stand, a variadic one's too; nowhere if there is none."""
    if name in slots:
        index = slots.index(name)
        return slice(index, index + 1)
    return slice(slots.index(f"*{name}"), None) if f"*{name}" in slots else slice(0)


def _operands(node: Node, slot: _Slot) -> tuple[str, ...]:
    """Name the operands at a slot, the inputs', or the outputs' where no input is there."""
    inputs, outputs = slot
    names = node.inputs[inputs]
    found = tuple(filter(None, names)) if "" in names else names
    return found or tuple(filter(None, node.outputs[outputs]))


def views(graph: Graph, *, in_place: bool | None = False) -> Mapping[str, View]:
    """Find the storage of every tensor of a graph; subgraphs are left out.

    ``in_place`` says which activations write over their input: see ``in_place_activations``.
    """
    found: dict[str, View] = {}
    over = in_place_activations(graph, in_place)
    for node in graph.nodes:
        for name in node.reads:
            if name not in found:
                found[name] = _own_storage(graph, name)
        if node.name in over:
            found[node.outputs[0]] = found[over[node.name]]
            continue
        may_look = node.operator.autograd_view or node.op_type in _LOOKING
        for index, name in [(index, name) for index, name in enumerate(node.outputs) if name]:
            view = _view(graph, node, index, found) if may_look else None
            found[name] = view or _new_storage(graph, node, name, found)
    for name in graph.outputs:
        if name not in found:
            found[name] = _own_storage(graph, name)
    return found


def is_identity(graph: Graph, node: Node) -> bool:
    """Whether a node hands its input on: a Dropout that drops nothing, a Cast to the same type."""
    if node.op_type not in _HANDING_ON:
        return False
    operator = node.onnx_op
    if operator == "Dropout":
        return node.operator.saved_extra_bytes(graph.call(node)) == 0
    if operator in {"Cast", "CastLike"} and node.reads and node.writes:
        source, result = (graph.tensors[names[0]].dtype for names in (node.reads, node.writes))
        return source is not None and source == result
    return operator == "Slice" and _is_everything(graph, node)


def in_place_activations(graph: Graph, requested: bool | None) -> Mapping[str, str]:  # noqa: FBT001 - an option
    """Map each activation that writes over its input to that input.

    ``requested`` is ``TrainingConfig.in_place_activations``: all that may (true), none (false), or
    those that would else save their input and follow a BatchNormalization (``None``). Networks
    of such blocks (Darknet, CSPNet, YOLO) have ``inplace=True`` in their code; no file shows it.
    """
    if requested is False:
        return {}
    found = _possible(graph)
    if requested:
        return {name: data for name, (data, _) in found.items()}
    return {
        name: data
        for name, (data, producer) in found.items()
        if producer == "BatchNormalization" and name in _names(graph, _KEEPING_INPUT)
    }


def inputs_saved_in_vain(graph: Graph) -> tuple[str, ...]:
    """Name the activations that keep their input as it is assumed, and would not in place.

    ReLU, Sigmoid and Tanh keep their output either way: in place they save nothing that is kept.
    """
    assumed = in_place_activations(graph, None)
    keeping = _names(graph, _KEEPING_INPUT)
    return tuple(name for name in _possible(graph) if name in keeping and name not in assumed)


def _names(graph: Graph, operators: frozenset[str]) -> frozenset[str]:
    return frozenset(node.name for node in graph.nodes if node.onnx_op in operators)


def _possible(graph: Graph) -> Mapping[str, tuple[str, str]]:
    """Map each activation that may write over its input to that input and the operator behind it.

    Its backward formula reads its output, so nothing is lost; what makes the input must not read
    what is overwritten in its own, and nothing else may read it. (Clip and the like keep a copy of
    their input when they run in place: nothing is gained.)
    """
    activations = [node for node in graph.nodes if node.onnx_op in _KEEPING_OUTPUT | _KEEPING_INPUT]
    if not activations:
        return {}
    reads = Counter(name for node in graph.nodes for name in data_reads(node))
    reads.update(graph.outputs)
    producers = {name: node for node in graph.nodes for name in node.writes}
    found: dict[str, tuple[str, str]] = {}
    for node in activations:
        data = next(iter(node.inputs), "")
        producer = producers.get(data)
        if producer is not None and reads[data] == 1 and _needs_no_output(producer):
            found[node.name] = data, producer.onnx_op
    return found


def _needs_no_output(producer: Node) -> bool:
    saved = {saved.name for saved in producer.operator.saved}
    return saved.isdisjoint(producer.operator.outputs) and not producer.operator.autograd_view


def _is_everything(graph: Graph, node: Node) -> bool:
    """Whether a Slice takes all: Python's indexing makes no such call."""
    before, after = (known_dims(graph.tensors[n].shape) for n in (node.inputs[0], node.outputs[0]))
    steps = graph.values.get(node.inputs[4]) if len(node.inputs) > 4 else None  # noqa: PLR2004
    return before is not None and before == after and all(step > 0 for step in steps or ())


def _own_storage(graph: Graph, name: str) -> View:
    dims = known_dims(graph.tensors[name].shape)
    return View(name, None if dims is None else contiguous(dims))


def _new_storage(graph: Graph, node: Node, name: str, found: Mapping[str, View]) -> View:
    """Lay out what an operator writes: as its first operand of that shape, if it keeps strides."""
    dims = known_dims(graph.tensors[name].shape)
    if dims is not None and node.operator is ATTENTION and len(dims) == len(_HEADS):
        return View(name, permuted(contiguous(tuple(dims[axis] for axis in _HEADS)), _HEADS))
    if dims is None or not node.operator.keeps_strides:
        return _own_storage(graph, name)
    tensors = graph.tensors
    for read in node.reads:
        if tensors[read].shape == dims:
            return View(name, like(dims, found[read].strides))
    return View(name, contiguous(dims))


def _view(graph: Graph, node: Node, index: int, found: Mapping[str, View]) -> View | None:
    """See an output as a view of an input; ``None`` where it has a storage of its own."""
    output = node.outputs[index]
    viewed = _viewed_input(graph, node, index)
    if not viewed:
        return None
    source = found[viewed]
    before = known_dims(graph.tensors[viewed].shape)
    after = known_dims(graph.tensors[output].shape)
    if before is None or after is None or source.strides is None:
        return View(source.storage, None)
    call = _ViewCall(node.attributes, before, source.strides, after)
    strides = _STRIDES.get(node.onnx_op, _reshape)(call)
    return None if strides is None else View(source.storage, strides)


def _viewed_input(graph: Graph, node: Node, index: int) -> str | None:
    """Name the input that an output looks into."""
    if _is_select(graph, node) or (is_identity(graph, node) and index == 0):
        return next(iter(node.inputs), None)
    slot = node.operator.output_name(index)
    for source, result in node.operator.autograd_view:
        viewed = node.operator.input_index(source)
        if result == slot and viewed < len(node.inputs):
            return node.inputs[viewed]
    return None


def _is_select(graph: Graph, node: Node) -> bool:
    """Whether a Gather takes one slice by a constant number, as exporters write ``x[:, 0]``."""
    indices = node.inputs[1] if node.onnx_op == "Gather" and len(node.inputs) > 1 else ""
    return indices in graph.values and graph.tensors[indices].shape == ()


def _reshape(call: _ViewCall) -> Strides | None:
    return reshaped(call.before, call.strides, call.after)


def _transpose(call: _ViewCall) -> Strides | None:
    return permuted(call.strides, axes_order(call.attributes, len(call.before)))


def _expand(call: _ViewCall) -> Strides | None:
    if len(call.after) < len(call.before):
        return None
    return expanded(call.before, call.strides, call.after)


def _keep(call: _ViewCall) -> Strides | None:
    """Keep the strides: a piece of each axis, walked in steps of 1."""
    return call.strides


def _select(call: _ViewCall) -> Strides | None:
    axis = call.attributes.get("axis", 0)
    dropped = axis % len(call.before) if isinstance(axis, int) else 0
    return call.strides[:dropped] + call.strides[dropped + 1 :]


_STRIDES: Mapping[str, Callable[[_ViewCall], Strides | None]] = MappingProxyType(
    {
        "Cast": _keep,
        "Dropout": _keep,
        "Expand": _expand,
        "Gather": _select,
        "Slice": _keep,
        "Split": _keep,
        "Transpose": _transpose,
    }
)
"""How the strides change, by operator; every other view is a reshape."""
