"""Optimizers that torch.optim has not: by lion-pytorch, timm and bitsandbytes."""

from onnxmem.runtimes.torch.optimizers.optimizer import Optimizer
from onnxmem.runtimes.torch.optimizers.scripts import Script, each, together
from onnxmem.runtimes.torch.optimizers.states import CODE_BYTES, bytewise_moments, moments

OF_OTHERS = (
    Optimizer(
        name="lion",
        state_of=moments(1),
        single=each("clone update -clone -update"),
        formula="1 x parameters (momentum)",
        source="Chen et al. 2023 (arXiv 2302.06675); temporaries probed: lion-pytorch 0.2.5, whose "
        "Lion is a loop",
    ),
    Optimizer(
        name="lamb",
        state_of=moments(2),
        single=each("-grad grad root denom -root update"),
        foreach=together("grad denom update"),
        formula="2 x parameters (first moment, second moment)",
        source="You et al. 2019 (arXiv 1904.00962); temporaries probed: timm 1.0.31, gradients "
        "clipped, foreach in one piece as on GPUs with less than 64 MiB of level 2 cache",
    ),
    Optimizer(
        name="adam8bit",
        state_of=bytewise_moments,
        shared_state_bytes=2 * CODE_BYTES,
        single=Script(),
        formula="2 bytes a parameter + 2 x 4 bytes for each 256; "
        "8 bytes a parameter in tensors below 4096 elements; + 2048 bytes of tables",
        source="Dettmers et al. 2021 (arXiv 2110.02861); bitsandbytes Optimizer2State, a kernel a "
        "tensor",
    ),
)
