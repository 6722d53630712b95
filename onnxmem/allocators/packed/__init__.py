"""Offsets in one block: sizes and lifetimes in, an offset for each allocation out."""

from onnxmem.allocators.packed.packing import Arena, pack

__all__ = ["Arena", "pack"]
