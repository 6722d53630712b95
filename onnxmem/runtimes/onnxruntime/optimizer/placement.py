"""Which nodes of a session on CUDA run on the CPU, and which values are in the host's memory.

onnxruntime assigns nodes between the basic level and the next, and inserts the copies last. Here
both come last: passes above the basic level put a node in the place of nodes of one provider, and
the new one has a kernel of that provider.
"""

from collections.abc import Collection
from heapq import heapify, heappop, heappush
from math import prod

import onnx

from onnxmem.runtimes.onnxruntime.kernels.cuda import CudaKernel, cuda_kernel
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node, execution_order
from onnxmem.runtimes.onnxruntime.optimizer.matching import (
    BFLOAT16,
    FLOAT16,
    has_cuda_kernel,
    integer,
)
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

_SMALL_ELEMENTS = 100
"""``kSmallInitializerThreshold``."""
_HALVES = frozenset({FLOAT16, BFLOAT16, 17, 18, 19, 20})
"""With the types of 8 bits, which never make a node run on the CPU."""
_ACTIVATIONS = {"GRU": ("sigmoid", "tanh"), "LSTM": ("sigmoid", "tanh", "tanh"), "RNN": ("tanh",)}
"""The only ones of cuDNN, by operator and for one direction."""
_PEEPHOLES = 7
"""The input of an LSTM."""

Placed = dict[int, CudaKernel]
"""The nodes of one graph that run on CUDA, by index."""


def place(graph: Graph) -> None:
    """Insert the copies between the host and CUDA, and note the values on the host.

    Source: onnxruntime/core/optimizer/transformer_memcpy.cc (``TransformerMemcpyImpl``).
    """
    placed = {id(inner): _on_cuda(inner) for inner in graph.graphs()}
    for inner in graph.graphs():
        _place(inner, placed)


# --------------------------------------------------------------------------------------------------
# The provider of each node: CUDA if it has a kernel, unless the node computes on small values of
# the host, as nodes that compute a shape do.
#
# onnxruntime/core/providers/cuda/cuda_execution_provider.cc (``GetCapability``) and
# onnxruntime/core/framework/fallback_cpu_capability.cc (``GetCpuPreferredNodes``).


def _on_cuda(graph: Graph) -> Placed:
    order = execution_order(graph)
    kernels = {node.index: kernel for node in order if (kernel := _kernel(graph, node)) is not None}
    position = {node.index: at for at, node in enumerate(order)}
    on_host = {
        name
        for node in order
        if node.index in kernels
        for name in map(node.output_at, kernels[node.index].host_outputs)
    }
    # The readers of values on the host, and behind them the readers of what runs there then.
    candidates = [position[reader.index] for name in on_host for reader in graph.readers(name)]
    # By position in the order of execution, as the queue of ``GetCpuPreferredNodes`` is: what a
    # node reads has its place before the node gets one.
    heapify(candidates)
    visited: set[int] = set()
    while candidates:
        at = heappop(candidates)
        if at in visited:
            continue
        visited.add(at)
        node = order[at]
        kernel = kernels.get(node.index)
        if kernel is None or _prefers_host(graph, node, kernel, on_host):
            kernels.pop(node.index, None)
            on_host.update(node.outputs)
            for reader in graph.children(node):
                heappush(candidates, position[reader.index])
    return kernels


def _kernel(graph: Graph, node: Node) -> CudaKernel | None:
    if not has_cuda_kernel(graph, node) or _falls_back(node):
        return None
    return cuda_kernel(node.domain, node.op_type, node.since_version)


def _falls_back(node: Node) -> bool:
    """Whether cuDNN or CUDA cannot do what the attributes of a node say."""
    if node.op_type == "Cast":
        return integer(node, "to") == onnx.TensorProto.STRING
    if node.op_type not in _ACTIVATIONS:
        return False
    if {"activation_alpha", "activation_beta", "clip"} & node.attributes.keys():
        return True
    if "activations" in node.attributes:
        names = [name.decode().lower() for name in node.attributes["activations"].strings]
        if names != [*2 * _ACTIVATIONS[node.op_type]][: len(names)]:
            return True
    if node.op_type == "GRU":
        given = node.attributes.get("linear_before_reset")
        return given is not None and given.i != 1
    return bool(integer(node, "input_forget")) or bool(node.input_at(_PEEPHOLES))


def _prefers_host(graph: Graph, node: Node, kernel: CudaKernel, on_host: Collection[str]) -> bool:
    for index, name in enumerate(node.inputs):
        # ``GetCpuPreferredNodes`` moves no node of half precision: the CPU has few kernels for it.
        if graph.elem_type_of(name) in _HALVES:
            return False
        # No kernel writes them, so no result has to be copied for them.
        if _is_small_constant(graph, name) or _is_input(graph, name):
            continue
        # A kernel that takes the value from the host itself needs no copy.
        if not name or name not in on_host or index in kernel.host_inputs:
            return False
    return True


def _is_input(graph: Graph, name: str) -> bool:
    return name in graph.inputs and name not in graph.initializers


def _is_small_constant(graph: Graph, name: str) -> bool:
    scope: Graph | None = graph
    while scope is not None and name:
        if name in scope.initializers:
            return prod(scope.initializers[name].dims) <= _SMALL_ELEMENTS
        if scope.has_value(name):
            return False
        scope = scope.outer
    return False


# --------------------------------------------------------------------------------------------------
# The copies, and where the values are. MemcpyFromHost and MemcpyToHost are written as Identity,
# which is what they compute.


def _place(graph: Graph, placed: dict[int, Placed]) -> None:
    on_cuda = placed[id(graph)]
    from_cuda: set[str] = set()
    from_host: set[str] = set()
    read_on_cuda: set[str] = set()
    read_on_host: set[str] = set()
    for node in execution_order(graph):
        kernel = on_cuda.get(node.index)
        for index, name in enumerate(node.inputs):
            is_here = kernel is not None and index not in kernel.host_inputs
            (read_on_cuda if is_here else read_on_host).add(name)
        if kernel is None:
            read_on_host.update(node.implicit)
        for index, name in enumerate(node.outputs):
            is_here = kernel is not None and index not in kernel.host_outputs
            (from_cuda if is_here else from_host).add(name)
    inputs = {name for name in graph.inputs if _is_input(graph, name)}
    # Only those that both read: an input that CUDA alone reads is copied before the run starts
    # (``utils::CopyInputsAcrossDevices``), so no node does it.
    for name in sorted(inputs & read_on_cuda & read_on_host):
        _copy_to_cuda(graph, name, on_cuda)
    for name in sorted((from_host & read_on_cuda) - {""}):
        _copy_to_cuda(graph, name, on_cuda)
    for name in sorted((from_cuda & read_on_host) - {""}):
        _copy_to_host(graph, name, on_cuda)
        from_host.add(name)
    # An initializer that both read is stored twice.
    stored = graph.initializers.keys() & read_on_host
    graph.host = {
        *(from_host - {""}),
        *(inputs & read_on_host),
        *(name for name in stored if not _is_read_on_cuda(graph, name, placed)),
    }


def _is_read_on_cuda(graph: Graph, name: str, placed: dict[int, Placed]) -> bool:
    """Whether a node on CUDA reads a value from there, also in a subgraph."""
    for reader in graph.readers(name):
        kernel = placed[id(graph)].get(reader.index)
        indices = [index for index, read in enumerate(reader.inputs) if read == name]
        if kernel is not None and not set(indices) <= set(kernel.host_inputs):
            return True
        if any(_is_read_on_cuda(body, name, placed) for body in reader.bodies.values()):
            return True
    return False


def _copy_to_cuda(graph: Graph, name: str, on_cuda: Placed) -> None:
    copy = _copy_for_cuda(graph, name, on_cuda)
    add_node(graph, NewNode("Identity", [name], [copy], "", f"MemcpyFromHost_{name}"))


def _copy_to_host(graph: Graph, name: str, on_cuda: Placed) -> None:
    producer, copy = graph.producers[name], _copy_for_cuda(graph, name, on_cuda)
    graph.set_outputs(producer, [copy if each == name else each for each in producer.outputs])
    add_node(graph, NewNode("Identity", [copy], [name], "", f"MemcpyToHost_{name}"))


def _copy_for_cuda(graph: Graph, name: str, on_cuda: Placed) -> str:
    """A new value that nodes on CUDA read in the place of one that others read on the host."""
    copy = graph.fresh_name(f"{name}_CUDAExecutionProvider")
    known = graph.type_of(name)
    if known is not None:
        graph.types[copy] = known
    for reader in graph.readers(name):
        kernel = on_cuda.get(reader.index)
        if kernel is not None:
            inputs = [
                copy if read == name and index not in kernel.host_inputs else read
                for index, read in enumerate(reader.inputs)
            ]
            graph.set_inputs(reader, inputs)
    return copy
