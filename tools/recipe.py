"""A recipe says all that one model file is made from."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import onnx
from torch import Tensor, nn

Exporter = Literal["torchscript", "dynamo"]


@dataclass(frozen=True, slots=True)
class Quantization:
    """Weights of convolutions and linear layers made small after the export."""

    bits: int
    block_size: int | None
    """Weights that share a scale along the input axis; None: one scale per output channel."""

    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto]
    """The quantized model of a float one."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A network, the inputs to export it with, and the exporter's settings."""

    name: str
    """File name without `.onnx`."""

    what: str
    """The network in a few words."""

    source: str
    """The paper or library that defines the architecture."""

    build: Callable[[], nn.Module]
    """Makes the network; its weights are drawn again before the export."""

    inputs: Callable[[], Mapping[str, Tensor]]
    """Makes the inputs to export with, by name and in the order of `forward`."""

    outputs: tuple[str, ...] = ("logits",)
    """Names of the graph outputs."""

    dims: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    """The symbolic dimensions of each input and output: axis to symbol."""

    exporter: Exporter = "torchscript"
    opset: int = 17
    training: bool = False
    """Whether it is exported as it trains: Dropout kept, BatchNorm not folded."""

    script: bool = False
    """Whether it is compiled rather than traced, which keeps its loops and branches."""

    licence: str = "written here"
    """Licence of the code that defines the network, where that is a library's."""

    published_parameters: int | None = None
    """Trainable parameters it is known to have; the export fails if torch counts another number."""

    quantization: Quantization | None = None
    """What is done to the exported model while it still has its weights."""

    @property
    def batch(self) -> str | int:
        """The symbol of the batch, or the number it is fixed at."""
        name, tensor = next(iter(self.inputs().items()))
        return self.dims.get(name, {}).get(0, tensor.shape[0])

    @property
    def bound_dims(self) -> dict[str, int]:
        """The number each symbol has in the inputs of the export."""
        return {
            symbol: tensor.shape[axis]
            for name, tensor in self.inputs().items()
            for axis, symbol in self.dims.get(name, {}).items()
        }
