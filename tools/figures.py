"""What torch itself says of a network: the figures that onnxmem's are held against.

None of them comes from the ONNX file, so an exporter that folds or unties weights makes the two
differ; the README says where.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from exporting import build_network
from recipe import Recipe
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def torch_figures(recipe: Recipe) -> dict[str, Any]:
    """The row of `expected.json` for `recipe`."""
    network = build_network(recipe)
    parameters = [p for p in network.parameters() if p.requires_grad]
    num_parameters = _num_elements(parameters)
    if recipe.published_parameters not in (None, num_parameters):
        message = f"{recipe.name}: {num_parameters} parameters, not {recipe.published_parameters}"
        raise ValueError(message)
    buffers = _buffers(network)
    inputs = recipe.inputs()
    samples = next(iter(inputs.values())).shape[0]
    macs = None if recipe.script else _forward_macs(recipe, network) // samples
    return {
        "parameters": num_parameters,
        "parameter_bytes": _size_bytes(parameters),
        "published_parameters": recipe.published_parameters,
        "buffer_elements": _num_elements(buffers),
        "buffer_bytes": _size_bytes(buffers),
        "quantized": _quantized(recipe, network),
        "forward_macs_per_sample": macs,
        "macs_batch": samples,
        "inputs": {
            name: {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            for name, tensor in inputs.items()
        },
        "dims": recipe.bound_dims,
        "batch": recipe.batch,
        "training": recipe.training,
        "exporter": recipe.exporter,
        "opset": recipe.opset,
    }


def _buffers(network: nn.Module) -> list[Tensor]:
    """Values that are kept and not trained; BatchNorm's step counters are never exported."""
    frozen = [p for p in network.parameters() if not p.requires_grad]
    named = network.named_buffers()
    return frozen + [b for name, b in named if not name.endswith("num_batches_tracked")]


def _quantized(recipe: Recipe, network: nn.Module) -> dict[str, int | None] | None:
    """Weights of the layers that are quantized, None for a float model."""
    if recipe.quantization is None:
        return None
    layers = (m for m in network.modules() if isinstance(m, nn.Linear | nn.Conv2d))
    return {
        "bits": recipe.quantization.bits,
        "block_size": recipe.quantization.block_size,
        "elements": _num_elements(layer.weight for layer in layers),
    }


def _num_elements(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _size_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _forward_macs(recipe: Recipe, network: nn.Module) -> int:
    """Multiply-adds of convolutions and matrix products, attention's included.

    The kernels that fuse attention and recurrent layers hide their products from the counter,
    so they are switched off.
    """
    counter = FlopCounterMode(display=False)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # mkldnn.flags warns about GPUs that are not here
        with torch.backends.mkldnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH), counter:
            network.eval()(*recipe.inputs().values())
    return counter.get_total_flops() // 2
