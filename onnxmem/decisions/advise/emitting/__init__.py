"""Advised settings written out: as Python, as a file of settings, for a model server."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.decisions.advise.emitting.python_code import python_code
from onnxmem.decisions.advise.emitting.settings_file import settings_file
from onnxmem.decisions.advise.emitting.settled import Settled, settled
from onnxmem.decisions.advise.emitting.triton_config import triton_config

EMITTERS: Final[Mapping[str, Callable[[Settled], str]]] = MappingProxyType(
    {"python": python_code, "json": settings_file, "triton": triton_config}
)
"""Each form by its name; a session's settings alone have the first and the last."""

__all__ = ["EMITTERS", "Settled", "settled"]
