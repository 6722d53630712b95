"""The shape of every tensor that can be known."""

from onnxmem.model.shapes.inference import Shaped, Shapes, with_shapes

__all__ = ["Shaped", "Shapes", "with_shapes"]
