"""One kind of model: its name, how it is made, and what it is run with."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
from graphs import model_of

Numbers = Sequence[float | str | bool]


@dataclass(frozen=True, slots=True)
class Kind:
    """A model that is built on request."""

    name: str
    make: Callable[[], onnx.ModelProto]
    feeds: Mapping[str, Numbers] = field(default_factory=dict)
    """Elements of inputs that cannot have arbitrary ones, repeated as needed."""
    open: Collection[str] = ()
    """Tensors whose shapes depend on the elements of feeds or of computed tensors."""
    runs: bool = True
    """False: onnxruntime rejects it or lacks a kernel; it must be analyzed all the same."""
    plain: Callable[[], onnx.ModelProto] | None = None
    """The same graph in a valid form, which is run instead if onnxruntime rejects this one."""


def header(opset: int | None = 12, *, ir_version: int = 7, **domains: int) -> str:
    """The head of a model; no opset: ONNX's own domain is not imported."""
    own = {} if opset is None else {"": opset}
    versions = own | {_DOMAINS[name]: version for name, version in domains.items()}
    listed = ", ".join(f'"{name}": {version}' for name, version in versions.items())
    return f"<ir_version: {ir_version}, opset_import: [{listed}]>"


_DOMAINS = {
    "ms": "com.microsoft",
    "ml": "ai.onnx.ml",
    "nchwc": "com.microsoft.nchwc",
    "nhwc": "com.ms.internal.nhwc",
    "own": "own",
}


def kinds_of(
    head: str,
    graphs: Mapping[str, str],
    feeds: Mapping[str, Numbers] | None = None,
    by_elements: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Kind, ...]:
    """A kind for each of the graphs in ONNX text, by its name; all of them use ``feeds``.

    ``by_elements`` names the tensors, by the graph, whose shapes only elements tell.
    """
    return tuple(
        Kind(name, text_maker(head, text), feeds or {}, by_elements.get(name, "").split())
        for name, text in graphs.items()
    )


def text_maker(head: str, text: str) -> Callable[[], onnx.ModelProto]:
    """A builder of a model from ONNX text, with a few small numbers as weights."""
    return lambda: with_weights(model_of(f"{head} {text}"))


def with_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Add elements to the weights without any, in place."""
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            value = (np.arange(prod(tensor.dims)) % 5).reshape(tensor.dims).astype(dtype)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    return model
