"""What the file says: a model without its weights, shapes bound and inferred, as typed records."""

from onnxmem.model.binding import Request
from onnxmem.model.building import BoundModel, Prepared, build, prepare
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.model.graph import DType, Graph, Node, Role, Tensor

__all__ = [
    "BoundModel",
    "DType",
    "Graph",
    "ModelFile",
    "ModelSource",
    "Node",
    "Prepared",
    "Request",
    "Role",
    "Tensor",
    "build",
    "load",
    "prepare",
]
