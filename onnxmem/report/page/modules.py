"""Names of tensors as paths of modules, so that what is alive at a peak can be summed by module.

PyTorch's exporters write the weight ``layers.0.conv1.weight`` and the node
``/layers/layers.0/conv1/Conv``: both are in the module ``layers.0.conv1``. The page's script has
the same rule, ``pathOf``.
"""

import re
from collections.abc import Iterable
from typing import Final

from onnxmem.model.module_paths import dotted_path

NO_MODULE: Final = "(no module)"
_DERIVED: Final = re.compile(r"^.* (?:of|beside) ")
"""What stands before a tensor's own name: gradients and states of it."""
_DEEPEST: Final = 8


def module_path(name: str) -> str:
    """The dotted path of a tensor or a node, its own name last.

    >>> module_path("/layers/layers.0/conv1/Conv_output_0")
    'layers.0.conv1.Conv_output_0'
    >>> module_path("state of layers.0.conv1.weight")
    'layers.0.conv1.weight'
    """
    return dotted_path(_DERIVED.sub("", name).split("/"))


def module_at(name: str, depth: int) -> str:
    """The module of a tensor, at most so many names deep."""
    return ".".join(module_path(name).split(".")[:-1][:depth]) or NO_MODULE


def useful_depth(sizes: Iterable[tuple[str, int]]) -> int | None:
    """The least depth at which no module has more than half of the bytes.

    ``None`` where names have no modules: then a sum by module says nothing.
    """
    sizes = list(sizes)
    for depth in range(1, _DEEPEST + 1):
        sums: dict[str, int] = {}
        for name, size_bytes in sizes:
            module = module_at(name, depth)
            sums[module] = sums.get(module, 0) + size_bytes
        if 2 * max(sums.values(), default=0) <= sum(sums.values()):
            return depth if len(sums.keys() - {NO_MODULE}) > 1 else None
    return None
