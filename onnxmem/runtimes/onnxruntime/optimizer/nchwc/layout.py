"""What is known of values in blocks while a graph is transformed.

Source: onnxruntime/core/optimizer/nchwc_transformer.cc, ``NchwcArgument`` and its ``Shape``.
"""

from dataclasses import dataclass, field

from onnxmem.runtimes.onnxruntime.optimizer.attributes import put
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, Node
from onnxmem.runtimes.onnxruntime.optimizer.matching import NCHWC
from onnxmem.runtimes.onnxruntime.optimizer.rewriting import NewNode, add_node

CHANNEL_ALIGNMENT = 4
"""ReorderInput takes channels in fours."""
NUM_DIMS = 4

Origin = tuple[str, int]
"""The value that a dim comes from, and how often it was halved since."""
Origins = tuple[Origin, Origin, Origin, Origin]


@dataclass(slots=True)
class Blocked:
    """A value that some node makes in blocks."""

    node: Node
    """The node that makes it."""
    num_uses: int
    """Uses of the value in its plain layout, the graph output counted as one."""
    num_plain_uses: int
    """Those of them that still want the plain layout."""
    channels: int
    """Without the padding up to whole blocks."""
    origins: Origins

    @property
    def name(self) -> str:
        """The value in blocks."""
        return self.node.outputs[0]


@dataclass(slots=True)
class Layout:
    """A graph on its way to blocks."""

    graph: Graph
    block: int
    """Channels of a block: 8 or 16."""
    values: dict[str, Blocked] = field(default_factory=dict)
    """Values in blocks by their plain name."""
    removed: list[Node] = field(default_factory=list)
    """Nodes to take out at the end."""
    reordered_inputs: dict[str, str] = field(default_factory=dict)
    filters: dict[tuple[str, bool], str] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    targets: dict[tuple[int, bool], str] = field(default_factory=dict)
    """Targets of the Reshapes that split channels into blocks or join them again."""
    from_channels_last: dict[str, Node] = field(default_factory=dict)
    """Transposes from channels-last values by what they write."""

    def padded(self, channels: int) -> int:
        """Channels in whole blocks."""
        return -(-channels // self.block) * self.block

    def plain(self, name: str) -> Origins:
        """The dims of a value that come from nowhere else."""
        origin = (name, 0)
        return origin, origin, origin, origin

    def take(self, name: str) -> Blocked:
        """Use a value in blocks once."""
        found = self.values[name]
        found.num_plain_uses -= 1
        return found

    def record(self, old: Node, new: Node, channels: int, origins: Origins) -> None:
        """Note that a node makes in blocks what another made plain."""
        plain = old.outputs[0]
        uses = self._uses(old)
        reordered = self.graph.fresh_name("reorder")
        self.graph.set_outputs(new, [reordered])
        self.values[plain] = Blocked(new, uses, uses, channels, origins)
        if new is not old:
            self.removed.append(old)

    def fuse(self, old: Node, into: Blocked) -> None:
        """Note that a node's work is done by the one before it."""
        uses = self._uses(old)
        self.values[old.outputs[0]] = Blocked(into.node, uses, uses, into.channels, into.origins)
        self.removed.append(old)

    def _uses(self, node: Node) -> int:
        return self.graph.num_edges(node) + self.graph.is_output(node)

    def in_blocks(self, name: str) -> tuple[str, Origins | None]:
        """A plain value for a node that reads blocks, reordered if no node makes it so."""
        if name in self.values:
            found = self.take(name)
            return found.name, found.origins
        if name not in self.reordered_inputs:
            self.reordered_inputs[name] = self._reorder(name)
        return self.reordered_inputs[name], None

    def _reorder(self, name: str) -> str:
        reordered = self.graph.fresh_name("reorder")
        transpose = self.from_channels_last.get(name)
        source = name if transpose is None else transpose.inputs[0]
        node_name = self.graph.fresh_node_name("ReorderInput")
        made = add_node(
            self.graph, NewNode("ReorderInput", [source], [reordered], NCHWC, node_name)
        )
        if transpose is not None:
            put(made, "channels_last", 1)
            self.removed.append(transpose)
        return reordered

    def finish(self) -> bool:
        """Give plain readers their layout back, and remove what is replaced.

        onnxruntime walks a table hashed by addresses here, so the order in which it adds these
        nodes, and hence runs them, differs from one process to the next; here it is theirs.
        """
        for name, found in self.values.items():
            if found.num_plain_uses > 0:
                node_name = self.graph.fresh_node_name("ReorderOutput")
                new = NewNode("ReorderOutput", [found.name], [], NCHWC, node_name)
                made = add_node(self.graph, new)
                put(made, "channels", found.channels)
                self.graph.set_outputs(made, [name])
        for node in dict.fromkeys(self.removed):
            self.graph.remove(node)
        return bool(self.removed)
