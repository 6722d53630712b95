"""The modules of a network that the nodes and tensors of its file come from.

torch.export writes the modules around each node into its metadata (``pkg.torch.onnx.name_scopes``:
``['', 'layers', 'layers.0', 'layers.0.attn', 'matmul_3']``); other exporters make them the node's
name: ``/layers/layers.0/attn/MatMul``.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from onnxmem.model.graph import Node

_NAME_SCOPES: Final = "pkg.torch.onnx.name_scopes"
# The list is written as Python prints it. It is matched, not evaluated: the text is that of a file.
_QUOTED: Final = re.compile(r"'([^']*)'")
_MAX_DEPTH: Final = 32
"""Modules nest less deeply; names of a hostile file do not."""

Modules = tuple[str, ...]
"""The modules around a node, from the outermost to the innermost."""


def modules_of(node: Node) -> Modules:
    """The modules around a node; empty if the file does not name them."""
    scopes = node.metadata.get(_NAME_SCOPES)
    names = _QUOTED.findall(scopes) if scopes is not None else node.name.split("/")
    return tuple(filter(None, names[:-1]))[:_MAX_DEPTH]


def paths_of(nodes: Sequence[Node]) -> list[Modules]:
    """The modules around each node, in order.

    A node that a pass of the exporter inserted names none: it is in those of the next one.
    """
    found: list[Modules] = []
    after: Modules = ()
    # From the end: the modules of the next node that names some are known when one without is
    # reached.
    for node in reversed(nodes):
        if _NAME_SCOPES in node.metadata or "/" in node.name:
            after = modules_of(node)
        found.append(after)
    found.reverse()
    return found


def dotted_path(names: Iterable[str]) -> str:
    """One path of names from the outermost module on.

    >>> dotted_path(["layers", "layers.0", "conv1"])
    'layers.0.conv1'
    """
    # A child is named by its whole path (torch.export), by its place in the module that called it,
    # or, in an nn.Sequential, by the name of that module and its own: "body", "body.0".
    parts: list[str] = []
    for name in filter(None, names):
        if parts and name.startswith(f"{parts[-1]}."):
            parts.pop()
        parts.append(name)
    return ".".join(parts)
