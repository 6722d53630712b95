"""The tensors that variables of a network's code hold, longer than any operator needs them.

A variable holds a tensor until it is assigned anew or its function returns; the arguments of a
module are held until the module's call returns (``_call_impl`` of torch/nn/modules/module.py). So a
tensor that no backward formula reads may be alive while later lines run.

torch.export writes the lines of Python that made each call into a node's metadata, from which
``_Code`` follows the functions that run: which line assigns which names, and where each function
returns. A file of another exporter has no lines. There ``_by_modules`` takes what several calls
read for a variable, and ``all_held`` is the most that variables may hold: each tensor until the
module returns in which it was computed or which it was handed to.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

from onnxmem.model.graph import STACK_TRACE, Graph, Node
from onnxmem.model.module_paths import paths_of
from onnxmem.runtimes.torch.blocks import COMPUTE_INTENSIVE
from onnxmem.runtimes.torch.framework import data_reads
from onnxmem.runtimes.torch.tape import Tape

_FRAME: Final = re.compile(r'File "([^"]*)", line (\d+), in (\S+)\n *(.*)')
_TARGETS: Final = re.compile(r"([\w, ()*]+?)(?: [-+*/@]|: [^=]*)?=(?!=)\s*(.*)")
"""An assignment to names: ``a, b = ...``, ``x += ...``; not one to ``self.x``."""
_APPENDED: Final = re.compile(r"(\w+)\.append\(")
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_MEMBER: Final = re.compile(r"\d+(_\d+)?$")
"""The number of a member of a list of modules, and of its second call."""
_COMPREHENSION: Final = re.compile(r"[\[({].* for \w")
"""A loop within an expression, whose line assigns once."""
_MODULE_CALL: Final = "forward"
_MAX_FRAMES: Final = 64
"""Functions nest less deeply; lines of a hostile file do not."""

_REBINDING: Final = frozenset({"Add", "Div", "Mul", "Sub"})


def variables(
    nodes: Sequence[Node], callers: Mapping[str, str], tape: Tape
) -> Mapping[str, Sequence[str]]:
    """The tensors that variables hold, by the node at whose end each is let go."""
    if has_lines(nodes):
        return _Code(nodes, tape).held()
    return _by_modules(nodes, callers, tape)


def has_lines(nodes: Sequence[Node]) -> bool:
    """Whether a file says which lines of code made its nodes."""
    return any(STACK_TRACE in node.metadata for node in nodes)


def all_held(nodes: Sequence[Node], tape: Tape) -> Mapping[str, Sequence[str]]:
    """The most that variables may hold, by the node at whose end each is let go."""
    paths = _paths(nodes)
    # The network's own `forward` returns last of all, but assigns its variables anew before that.
    following = _next_products(nodes)
    ends = [own or next_ for own, next_ in zip(_module_ends(nodes, paths), following, strict=True)]
    found: dict[str, list[str]] = {}
    written: dict[str, tuple[str, ...]] = {}
    outer: Counter[str] = Counter()
    for node, path, last in zip(nodes, paths, ends, strict=True):
        for name in node.writes:
            written[name] = path
            if last and tape.allocates_storage(name):
                found.setdefault(last[-1], []).append(name)
        for name in dict.fromkeys(data_reads(node)):
            depth = num_shared(path, written.get(name, path))
            if name not in written or name not in tape.storages:
                continue
            outer[name] += depth == 0
            if depth < len(last):
                found.setdefault(last[depth], []).append(name)
    # What two calls of the network's own read may be in a list, which lives until it returns.
    if any(paths):
        listed = [name for name, count in outer.items() if count > 1]
        found.setdefault(nodes[-1].name, []).extend(listed)
    return found


def most_held_bytes(tape: Tape, saved: Container[str]) -> int:
    """The most bytes at once that variables may hold beside the storages that are saved."""
    # A difference array over the nodes: up where a tensor was last read, down where it is let go.
    nodes = tape.graph.nodes
    position = {node.name: index for index, node in enumerate(nodes)}
    last_read: dict[str, int] = {}
    for index, node in enumerate(nodes):
        last_read.update(dict.fromkeys(node.inputs, index))
    until: dict[str, int] = {}
    for last, names in all_held(nodes, tape).items():
        for name in names:
            storage = tape.storages[name]
            until[storage] = max(until.get(storage, 0), position[last])
    changes = [0] * (len(nodes) + 1)
    for name, end in until.items():
        if name not in saved and last_read.get(name, end) < end:
            size_bytes = tape.size_bytes(name) or 0
            changes[last_read[name]] += size_bytes
            changes[end] -= size_bytes
    return max(accumulate(changes))


def _paths(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """The modules around each node; none where the name is that of another node, and more."""
    names = {node.name for node in nodes}
    return [() if path[:1] and path[0] in names else path for path in paths_of(nodes)]


def _module_ends(nodes: Sequence[Node], paths: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The last node of each module that a node is in, from the outermost."""
    found: list[tuple[str, ...]] = []
    last: list[str] = []
    after: tuple[str, ...] = ()
    # Backwards, so that the first node seen of a module is its last. `last` has one node for each
    # module around the node at hand; what the next path does not share has ended.
    for node, path in reversed(tuple(zip(nodes, paths, strict=True))):
        del last[num_shared(path, after) :]
        last += [node.name] * (len(path) - len(last))
        found.append(tuple(last))
        after = path
    found.reverse()
    return found


def _next_products(nodes: Sequence[Node]) -> list[tuple[str, ...]]:
    """The second product behind each node: where no module is named, a block has two at least."""
    products = [n for n, node in enumerate(nodes) if node.op_type in COMPUTE_INTENSIVE]
    # Behind the last products, the end follows.
    products += [len(nodes) - 1] * 2
    firsts = (bisect_left(products, index + 1) for index in range(len(nodes)))
    return [(nodes[products[min(first, len(products) - 2) + 1]].name,) for first in firsts]


@dataclass(frozen=True, slots=True)
class _Frame:
    """A function that runs, and the line in it that does."""

    call: tuple[object, ...]
    """What identifies the call: the lines that led to it, and the modules around."""
    line: int
    text: str
    module: str
    """The module that the line calls, if it does."""

    def is_next_turn(self, before: "_Frame") -> bool:
        """Whether a loop calls the next member of a list of modules: ``x = layer(x)``."""
        if self.module == before.module or self.line != before.line:
            return False
        if _COMPREHENSION.search(self.text):
            return False
        stems = {_MEMBER.sub("", each.module) for each in (self, before)}
        return len(stems) == 1 and all(_MEMBER.search(each.module) for each in (self, before))


@dataclass(slots=True)
class _Call:
    """A function in progress."""

    frame: _Frame
    start: int
    """Index of the first node of the line in progress."""
    first: int
    """Index of the first node of the call."""
    names: dict[str, list[str]] = field(default_factory=dict)
    """Tensors by the variables that hold them."""


@dataclass(slots=True)
class _Code:
    """Follows the lines of code of some nodes."""

    nodes: Sequence[Node]
    tape: Tape
    found: dict[str, list[str]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)
    """The index of the node that writes each tensor."""
    last_read: dict[str, int] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)

    def held(self) -> Mapping[str, Sequence[str]]:
        """The tensors that variables and arguments hold, by the node at whose end they are let go.

        What is only read before is left out.
        """
        for index, node in enumerate(self.nodes):
            self.written.update(dict.fromkeys(node.writes, index))
            self.last_read.update(dict.fromkeys(data_reads(node), index))
        paths = paths_of(self.nodes)
        frames: list[_Frame] = []
        for index, (node, path) in enumerate(zip(self.nodes, paths, strict=True)):
            # A node that a pass of the exporter inserted runs on the line of the one before.
            frames = _frames(node, path) or frames
            self._advance(index, frames)
        self._return_to(0, len(self.nodes))
        return self.found

    def _advance(self, index: int, frames: Sequence[_Frame]) -> None:
        """End the calls and lines that do not run any more, and begin those that do."""
        depth = 0
        for call, frame in zip(self.calls, frames, strict=False):
            if call.frame.call != frame.call:
                break
            depth += 1
            if call.frame.line != frame.line or frame.is_next_turn(call.frame):
                break
        self._return_to(depth, index)
        if depth:
            call, frame = self.calls[-1], frames[depth - 1]
            if call.frame.line != frame.line or frame.is_next_turn(call.frame):
                self._end_line(call, index)
                call.start = index
            if frame.module or call.frame.line != frame.line:
                call.frame = frame
        self.calls += [_Call(frame, index, index) for frame in frames[depth:]]

    def _return_to(self, depth: int, index: int) -> None:
        """Let go of the variables of the functions that returned before a node."""
        while len(self.calls) > depth:
            call = self.calls.pop()
            self._end_line(call, index)
            for names in call.names.values():
                self._let_go(names, index)

    def _end_line(self, call: _Call, index: int) -> None:
        """Assign what a line computed; what the names held before is let go."""
        text = call.frame.text
        appended = _APPENDED.match(text)
        targets = None if appended else _TARGETS.fullmatch(text)
        if appended is None and targets is None:
            return
        # What is read behind the line, or is an output: intermediate results of a line have no
        # name.
        values = [
            name
            for node in self.nodes[call.start : index]
            for name in node.writes
            if self.last_read.get(name, -1) >= index or name in self.tape.graph.outputs
        ]
        if appended is not None:
            call.names.setdefault(appended[1], []).extend(values[-1:])
        elif targets is not None:
            names = _NAME.findall(targets[1])
            is_single = len(names) == 1 and not targets[2].startswith(("[", "("))
            # Which of several names has which tensor is not known: the first one keeps them all.
            for number, name in enumerate(names):
                self._let_go(call.names.pop(name, ()), index)
                if number == 0:
                    call.names[name] = values[-1:] if is_single else values

    def _let_go(self, names: Sequence[str], index: int) -> None:
        last = self.nodes[index - 1].name
        held = (name for name in names if self.last_read.get(name, -1) < index)
        self.found.setdefault(last, []).extend(held)


def _frames(node: Node, path: tuple[str, ...]) -> list[_Frame]:
    """The functions that a node runs in, from the outermost; none if the file has no lines."""
    found: list[_Frame] = []
    called_from: tuple[object, ...] = ()
    num_modules = -1
    for file, line, function, text in _FRAME.findall(node.metadata.get(STACK_TRACE, "")):
        # Comprehensions have no variables of their own that live on.
        if function.startswith("<"):
            continue
        num_modules += function == _MODULE_CALL
        depth = max(num_modules, 0)
        call = (*called_from, file, function, *path[:depth])
        module = next(iter(path[depth:]), "")
        found.append(_Frame(call, int(line), text.strip(), module))
        called_from = (*call, line)
    return found[:_MAX_FRAMES]


def _by_modules(
    nodes: Sequence[Node], callers: Mapping[str, str], tape: Tape
) -> Mapping[str, Sequence[str]]:
    """The tensors that variables hold, by the last node of the module whose ``forward`` runs then.

    Variables live until ``forward`` returns. ``a, b = x.chunk(2, -1)`` unpacks the pieces of a
    Split into variables; and what two calls read has a name, for an expression is read once. The
    sum or product that reads it last assigns that name anew: ``x = x + f(x)``. Views are left out:
    where the network has ``contiguous``, which exporters drop, the variable holds a copy instead.
    """
    paths = _paths(nodes)
    read = _read_twice(nodes, paths, callers)
    found: dict[str, list[str]] = {}
    last: list[str] = []
    after: tuple[str, ...] = ()
    # Backwards, as in `_module_ends`.
    for node, path in reversed(tuple(zip(nodes, paths, strict=True))):
        del last[num_shared(path, after) :]
        last += [node.name] * (len(path) - len(last))
        if node.onnx_op == "Split" and last:
            found.setdefault(last[-1], []).extend(node.writes)
        elif read and node.name not in callers:
            for name in filter(tape.allocates_storage, node.writes):
                depth = _depth_of_variable(tape.graph, name, path, read.get(name, ()))
                if depth:
                    found.setdefault(last[depth - 1], []).append(name)
        after = path
    return found


_Read = tuple[Node, tuple[str, ...]]
"""A node that reads a tensor, and the modules around it."""


def _read_twice(
    nodes: Sequence[Node], paths: Sequence[tuple[str, ...]], callers: Mapping[str, str]
) -> Mapping[str, Sequence[_Read]]:
    """The reads of each tensor that several calls read, in order; none if no modules are named."""
    if not any(paths):
        return {}
    named = {node.name: node for node in nodes} if callers else {}
    found: dict[str, list[_Read]] = {}
    for node, path in zip(nodes, paths, strict=True):
        caller = named[callers[node.name]] if node.name in callers else node
        for name in dict.fromkeys(data_reads(node)):
            reads = found.setdefault(name, [])
            if all(reader is not caller for reader, _ in reads):
                reads.append((caller, path))
    return {name: reads for name, reads in found.items() if len(reads) > 1}


def _depth_of_variable(
    graph: Graph, name: str, path: tuple[str, ...], reads: Sequence[_Read]
) -> int:
    """How many modules are around the ``forward`` of which a tensor is a variable; 0 if of none."""
    depth = min((num_shared(path, reader_path) for _, reader_path in reads), default=0)
    calls = {
        reader_path[: depth + 1] if len(reader_path) > depth else reader.name
        for reader, reader_path in reads
    }
    if depth == 0 or len(calls) < 2:  # noqa: PLR2004 - a call reads an expression without a name
        return 0
    reader, reader_path = reads[-1]
    is_own = len(reader_path) == depth and reader.onnx_op in _REBINDING
    shapes = {graph.tensors[each].shape for each in (name, reader.outputs[0])}
    return 0 if is_own and len(shapes) == 1 else depth


def num_shared(path: tuple[str, ...], other: tuple[str, ...]) -> int:
    """How many modules two paths begin with in common."""
    pairs = enumerate(zip(path, other, strict=False))
    return next((n for n, (one, two) in pairs if one != two), min(len(path), len(other)))
