"""What a training step depends on and a file does not show: the warnings on it.

Each doubt has a size. One of less than a twentieth of the peak is not worth a warning, so that one
stands only where the figure may be wrong; a hundredth is enough where the file shows nothing at all
of the call, so that no reader would look for it.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from onnxmem.errors import Finding, listed
from onnxmem.model.graph import FX_NODE, Graph, Node, Role
from onnxmem.model.parameters import Parameters, is_wide, named_buffers
from onnxmem.runtimes.torch.framework import ATTENTION, RSQRT
from onnxmem.runtimes.torch.strides import is_row_major
from onnxmem.runtimes.torch.tape import Tape, attentions_like_query
from onnxmem.units import format_bytes, plural

_SHARE: Final = 0.05
"""Of the peak: less is not worth a warning."""
_SHARE_OF_COPIES: Final = 0.01
"""The same of copies, of which exporters leave no trace."""
_WORD: Final = re.compile(r"\W")
_MEMBER: Final = re.compile(r"(.*?\.)(\d+)\.(.+)")
"""A parameter of a member of a list of modules: the list, its number, and the rest."""
_OWN_NAME: Final = re.compile(r"(?!val_\d|[a-z]\d*$)[A-Za-z_]\w*(\.\w+)*")
"""A name that a network gives to its tensors, not one that an exporter generates."""
_OF_LAYER: Final = re.compile(r"weight|kernel|bias|gamma|beta|(^|[._])[wb](_?\d+)?$", re.IGNORECASE)
"""Names of parameters of layers, of any framework."""
_EXTREMES: Final = frozenset({"ReduceMax", "ReduceMin"})
_AMAX: Final = re.compile(r"amax(_\d+)?|amin(_\d+)?")
_FEW_MEMBERS: Final = 3
_NUM_OPERANDS: Final = 3
"""The query, the key and the value of an attention."""


def matrices_in_doubt(graph: Graph, parameters: Parameters) -> tuple[str, ...]:
    """Matrices of the network's own that are multiplied, and may be buffers as well.

    A linear layer has a ``weight``, which exporters transpose. None where the file lists its
    parameters or names a buffer.
    """
    if graph.of_parameters or named_buffers(graph.nodes):
        return ()
    multiplied = {
        name for node in graph.nodes if node.onnx_op in {"Einsum", "MatMul"} for name in node.reads
    }
    matrices = [name for name in parameters.trained if is_wide(graph.tensors[name])]
    # The name of the tensor itself, after those of the modules.
    own = [name for name in matrices if not _OF_LAYER.search(name.rpartition(".")[2])]
    found = tuple(name for name in own if name in multiplied and _OWN_NAME.fullmatch(name))
    # Where no matrix is named as those of layers are, names tell nothing.
    return found if len(found) < len(matrices) else ()


def matrices_finding(
    names: Sequence[str], trained_bytes: int, frozen_bytes: int
) -> Iterator[Finding]:
    """The warning on matrices, with the peaks of both steps."""
    # A doubt that does not move the peak is not worth a warning.
    if abs(trained_bytes - frozen_bytes) > _SHARE * trained_bytes:
        text = (
            f"{plural(len(names), 'tensor')} that matmuls read counted as trained, which may be "
            f"buffers: {listed(names)}; the training peak is {format_bytes(trained_bytes)} if they "
            f"are trained and {format_bytes(frozen_bytes)} if not: --freeze NAME"
        )
        yield Finding("buffers_unknown", text, names[0])


def doubts(tape: Tape, peak_bytes: int) -> Iterator[Finding]:
    """The warnings on a step, but for those that take a second one to compare with."""
    yield from _unread_parameters(tape.graph)
    for found, share, code, text in (
        (_written_norms(tape), _SHARE, "rms_norms_written_out", _NORMS),
        (_maxima(tape), _SHARE, "maxima_subtracted", _MAXIMA),
        (_squares(tape), _SHARE, "squares_unknown", _SQUARES),
        (_amaxima(tape), _SHARE, "maxima_unknown", _AMAXIMA),
        (_operands(tape), _SHARE_OF_COPIES, "operands_unknown", _OPERANDS),
    ):
        total_bytes = sum(found.values())
        if total_bytes > share * peak_bytes:
            names = tuple(found)
            message = text.format(nodes=plural(len(names), "node"), size=format_bytes(total_bytes))
            yield Finding(code, f"{message}: {listed(names)}", names[0])


_NORMS: Final = (
    "{nodes} of an RMSNorm counted as written out; if the network calls nn.RMSNorm, which runs as "
    "one kernel, {size} less are saved"
)
_MAXIMA: Final = (
    "{nodes} of a maximum, subtracted before an exponential, counted with a gradient; if the "
    "network has it detached, up to {size} less are saved"
)
_AMAXIMA: Final = (
    "{nodes} of a maximum counted as amax, which shares its gradient among equal elements; if "
    "the network calls max(dim), which returns indices, up to {size} less are alive"
)
_SQUARES: Final = (
    "{nodes} of a square counted as x * x; if the network calls square or pow, which autocast runs "
    "in float32, {size} more are saved"
)
_OPERANDS: Final = (
    "{nodes} of an attention counted with a query, key and value that are views; if the network "
    "makes them contiguous, which the script exporter drops, up to {size} more are saved"
)


def _unread_parameters(graph: Graph) -> Iterator[Finding]:
    """Parameters that the network has and the file does not read."""
    words = {_WORD.sub("_", name): name for name in graph.of_parameters - graph.tensors.keys()}
    if words:
        texts = [node.metadata.get(FX_NODE, "") for node in graph.nodes]
        named = {name for text in texts for name in re.findall(r"%p_(\w+)", text)}
        missing = tuple(sorted(name for word, name in words.items() if word not in named))
    else:
        missing = _missing_of_members(graph)
    if missing:
        text = (
            f"{plural(len(missing), 'parameter')} of the network that the file does not read: "
            f"{listed(missing)}; no output depends on what is computed with them, but the network "
            "may run it in every step, which takes more than is counted"
        )
        yield Finding("parameters_not_read", text)


def _missing_of_members(graph: Graph) -> tuple[str, ...]:
    """The parameters that the last of several alike modules lacks, and all others have."""
    lists: dict[str, dict[int, set[str]]] = {}
    for name, tensor in graph.tensors.items():
        found = _MEMBER.fullmatch(name) if tensor.role is Role.WEIGHT else None
        if found is not None:
            lists.setdefault(found[1], {}).setdefault(int(found[2]), set()).add(found[3])
    missing: list[str] = []
    for path, members in lists.items():
        last = max(members)
        others = [names for number, names in members.items() if number != last]
        # Only the last of modules that are the same otherwise.
        if len(members) >= _FEW_MEMBERS and all(names == others[0] for names in others):
            is_part = members[last] < others[0]
            missing += (f"{path}{last}.{n}" for n in sorted(others[0] - members[last]) if is_part)
    return tuple(missing)


def _written_norms(tape: Tape) -> Mapping[str, int]:
    """What RMSNorms that may be one call save beside their operand, by the node of the product."""
    producers = {name: node for node in tape.graph.nodes for name in node.writes}
    readers = _readers(tape)
    found: dict[str, int] = {}
    for node in tape.backward_nodes:
        # The script exporter refuses nn.RMSNorm, and has the modules in its names.
        if node.onnx_op != "Mul" or FX_NODE in node.metadata or "/" in node.name:
            continue
        power = _power(node, producers)
        if power is not None:
            data = tape.storages.get(power.inputs[0])
            nodes = (power, node, *readers.get(node.outputs[0], ()))
            saved = {s for each in nodes if each.name in tape.saved for s in _saved(tape, each)}
            found[node.name] = sum(tape.size_bytes(name) or 0 for name in saved - {data})
    return found


def _saved(tape: Tape, node: Node) -> tuple[str, ...]:
    return tape.saved[node.name].storages


def _power(node: Node, producers: Mapping[str, Node]) -> Node | None:
    """The square of ``x * rsqrt(mean(x^2) + eps)``, which a Mul ends."""
    for name in node.inputs:
        root = producers.get(name)
        if root is None or root.operator is not RSQRT:
            continue
        added = producers.get(root.inputs[0])
        means = () if added is None else (producers.get(each) for each in added.inputs)
        mean = next((each for each in means if each is not None), None)
        if mean is not None and mean.onnx_op == "ReduceMean":
            return producers.get(mean.inputs[0])
    return None


def _readers(tape: Tape) -> Mapping[str, Sequence[Node]]:
    found: dict[str, list[Node]] = {}
    for node in tape.graph.nodes:
        for name in node.reads:
            found.setdefault(name, []).append(node)
    return found


def _maxima(tape: Tape) -> Mapping[str, int]:
    """What maxima save that are subtracted and then exponentiated, as in a stable softmax."""
    readers = _readers(tape)
    found: dict[str, int] = {}
    for node in tape.backward_nodes:
        if node.onnx_op != "ReduceMax" or FX_NODE in node.metadata:
            continue
        behind = [each for each in readers.get(node.outputs[0], ()) if each.onnx_op == "Sub"]
        # A softmax or log-sum-exp that is written out: the maximum cancels out of the result, so
        # many networks detach it.
        if any(e.onnx_op == "Exp" for sub in behind for e in readers.get(sub.outputs[0], ())):
            storages = tape.saved[node.name].storages
            found[node.name] = sum(tape.size_bytes(each) or 0 for each in storages)
    return found


def _amaxima(tape: Tape) -> Mapping[str, int]:
    """What maxima over one axis save, and have beside their gradient, more than ``max(dim)``."""
    found: dict[str, int] = {}
    for node in tape.backward_nodes:
        if node.onnx_op not in _EXTREMES or FX_NODE in node.metadata:
            continue
        before, after = (tape.dims(name) for name in (node.inputs[0], node.outputs[0]))
        # `max(dim)` takes one axis, and a name of torch.export tells.
        if before is None or after is None or _AMAX.fullmatch(node.outputs[0]):
            continue
        if len(before) == len(after):
            num_axes = sum(a != b for a, b in zip(before, after, strict=True))
        else:
            num_axes = len(before) - len(after)
        if num_axes == 1:
            temporary_bytes = node.operator.gradients[0].temporary_bytes(tape.call(node)) or 0
            saved_bytes = sum(tape.size_bytes(each) or 0 for each in _saved(tape, node))
            found[node.name] = saved_bytes + temporary_bytes
    return found


def _squares(tape: Tape) -> Mapping[str, int]:
    """What ``square`` would save under autocast beside its operand: a copy in float32."""
    if tape.precision.autocast is None:
        return {}
    return {
        # A 16-bit operand in float32 takes twice its bytes.
        node.name: 2 * (tape.size_bytes(node.inputs[0]) or 0)
        for node in tape.backward_nodes
        if node.onnx_op == "Mul"
        and node.inputs[0] == node.inputs[1]
        and FX_NODE not in node.metadata
        and "/" not in node.name
        and tape.bits(node.inputs[0]) < _FLOAT_BITS
    }


def _operands(tape: Tape) -> Mapping[str, int]:
    """What attentions would save more if the network made their operands contiguous.

    torch.onnx's symbolic of ``contiguous`` returns its operand (symbolic_opset9.py), and
    torch.export names the clone.
    """
    laid_out = attentions_like_query(tape.graph, tape.precision)
    savers = Counter(name for saved in tape.saved.values() for name in saved.storages)
    found: dict[str, int] = {}
    for node in tape.backward_nodes:
        if node.operator is not ATTENTION or FX_NODE in node.metadata:
            continue
        copied = [name for name in node.inputs[:_NUM_OPERANDS] if _is_scattered(tape, name)]
        # FlashAttention returns heads of rows then, which are copied where they are joined.
        joined = node.outputs if node.inputs[0] in copied and node.name in laid_out else ()
        # What no other node saves is freed once it is copied.
        freed = {tape.views[name].storage for name in copied}
        freed = {name for name in freed if savers[name] == 1}
        more = sum(tape.size_bytes(name) or 0 for name in (*copied, *joined))
        found[node.name] = more - sum(tape.size_bytes(name) or 0 for name in freed)
    return {name: size_bytes for name, size_bytes in found.items() if size_bytes > 0}


def _is_scattered(tape: Tape, name: str) -> bool:
    """Whether ``contiguous`` copies a tensor."""
    dims = tape.dims(name)
    return dims is not None and not is_row_major(dims, tape.views[name].strides)


_FLOAT_BITS: Final = 32
