"""What onnxruntime infers of its values' shapes while it loads and optimises a graph."""

from onnxmem.runtimes.onnxruntime.optimiser.shapes.inference import infer_node, resolve

__all__ = ["infer_node", "resolve"]
