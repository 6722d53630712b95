"""``find_cache``: where to begin reading."""

from typing import TYPE_CHECKING

from onnxmem.errors import Finding
from onnxmem.kv_cache.candidates import candidates
from onnxmem.model import Prepared

if TYPE_CHECKING:
    from onnxmem.kv_cache.cache import KvCache


def find_cache(prepared: Prepared) -> "tuple[KvCache | None, tuple[Finding, ...]]":
    """The cache of a model, and what is named like one and is none; no dim need be bound."""
    found = tuple(candidates(prepared))
    if not found:
        return None, ()
    from onnxmem.kv_cache.recognising import recognise

    return recognise(prepared, found)
