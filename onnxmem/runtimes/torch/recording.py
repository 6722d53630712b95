"""The forward pass of a graph put on a tape, as an eager framework runs it before a loss."""

from collections.abc import Mapping
from dataclasses import replace

from onnxmem.model.graph import Graph, Role
from onnxmem.model.parameters import Parameters
from onnxmem.runtimes.torch.autocast import LISTS
from onnxmem.runtimes.torch.casting import Autocast, CastGraph, with_casts
from onnxmem.runtimes.torch.constants import constant_tensors
from onnxmem.runtimes.torch.gradients import backward_nodes, requiring_gradient
from onnxmem.runtimes.torch.ledger import Ledger
from onnxmem.runtimes.torch.packing import packed_weights
from onnxmem.runtimes.torch.precision import Precision
from onnxmem.runtimes.torch.storages import View, views
from onnxmem.runtimes.torch.tape import Tape


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
    way_back = tuple(
        node
        for node in backward_nodes(graph, reached, outputs)
        if not packed or not packed.keys() >= set(node.writes)
    )
    looks = views(graph, in_place=in_place)
    empty = Tape(
        graph=graph,
        parameters=parameters,
        precision=precision,
        views=looks,
        storages=_allocated(graph, looks, constants.union(packed)),
        reached=reached,
        way_back=way_back,
        constants=constants,
        packed=packed,
        cached=run.cached,
        callers=run.callers,
    )
    ledger = Ledger(empty)
    kept = {node.name: ledger.keep(node) for node in way_back}
    return replace(empty, kept=kept, assumed_nodes=tuple(ledger.assumed))


def _allocated(graph: Graph, looks: Mapping[str, View], known: frozenset[str]) -> Mapping[str, str]:
    """The storages of tensors that nodes allocate: not of inputs, weights and what is known."""
    tensors = graph.tensors
    return {
        name: look.storage
        for name, look in looks.items()
        if tensors[look.storage].role is Role.ACTIVATION and look.storage not in known
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
