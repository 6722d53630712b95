"""What is trained, and how: the networks and the switches of a training step."""

from dataclasses import dataclass

from gpu_truth import Network, Tensors

__all__ = ["OPTIMIZERS", "Network", "Settings", "Tensors"]
OPTIMIZERS = ("sgd", "momentum", "adam")


@dataclass(frozen=True, slots=True)
class Settings:
    """How it is trained.

    `loss` None takes the one of the network. `zero_grad` is "start" of the step, "backward",
    just before it, or "keep": at the start, filled with zeros. `micro_batches` accumulate
    gradients, the batch being that of each. `steps` is the step that is measured: 2 is steady, 1
    still has no optimizer state. `checkpoint` are module names run under `torch.utils.checkpoint`
    (not reentrant). `inplace_relu` None leaves the activations as they are built. `autocast` runs
    forward and loss in bfloat16. `attention` is one of `ATTENTION_KINDS` of cuda_like.py.
    `training` False leaves dropout out, as in an export in eval mode. `real_tensors` takes the
    memory that is counted.
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
    training: bool = True
    real_tensors: bool = False
