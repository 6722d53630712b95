"""What is trained, and how: the networks and the switches of a training step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

OPTIMIZERS = ("sgd", "momentum", "adam")

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True)
class Network:
    """What is trained: `build` makes the module, `inputs` what it reads at a batch."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Tensors]
    batches: tuple[int, int]
    loss: str = "cross-entropy"


@dataclass(frozen=True, slots=True)
class Settings:
    """How it is trained.

    `loss` None takes the one of the network. `zero_grad` is "start" of the step, "backward",
    just before it, or "keep": at the start, filled with zeros. `micro_batches` accumulate
    gradients, the batch being that of each. `steps` is the step that is measured: 2 is steady, 1
    still has no optimizer state. `checkpoint` are module names run under `torch.utils.checkpoint`
    (not reentrant). `inplace_relu` None leaves the activations as they are built. `autocast` runs
    forward and loss in bfloat16. `attention` is one of `ATTENTION_KINDS` of cuda_like.py.
    `real_tensors` takes the memory that is counted.
    """

    optimizer: str = "sgd"
    loss: str | None = None
    foreach: bool = True
    weight_decay: float = 0.0
    zero_grad: str = "start"
    micro_batches: int = 1
    steps: int = 2
    checkpoint: tuple[str, ...] = ()
    inplace_relu: bool | None = None
    autocast: bool = False
    attention: str = "math"
    real_tensors: bool = False
