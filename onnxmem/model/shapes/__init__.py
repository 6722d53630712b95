"""The shape of every tensor that can be known."""

from onnxmem.model.shapes.inference import Shaped, with_shapes

__all__ = ["Shaped", "with_shapes"]
