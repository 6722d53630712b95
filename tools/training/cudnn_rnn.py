"""What cuDNN keeps and takes for recurrent layers in training, on a CUDA GPU.

    python tools/training/cudnn_rnn.py FILE.jsonl

A line for each layer of ``layers()``: bytes of the reserve space that the forward pass leaves for
the backward pass, which cuDNN asks for and PyTorch allocates
(aten/src/ATen/native/cudnn/RNN.cpp), and of both passes' peaks beyond what is alive before them.
Sizes are distinct primes where cuDNN lets them be, so that a term can be told from the others.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import nn

CUDA = torch.device("cuda", 0)
TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Layer:
    """A recurrent module of PyTorch and the sizes of its input."""

    kind: str
    steps: int = 29
    samples: int = 11
    inputs: int = 83
    hidden: int = 431
    layers: int = 1
    is_bidirectional: bool = False
    dropout: float = 0.0
    precision: str = "fp32"


def layers() -> Iterator[Layer]:
    """Every layer that is measured; one size moves at a time, then several."""
    for kind, precision in itertools.product(("LSTM", "GRU", "RNN"), TYPES):
        plain = Layer(kind, precision=precision)
        yield plain
        yield from _of_other_sizes(plain)
        for num_layers, is_bidirectional in itertools.product((1, 2, 3, 5), (False, True)):
            yield from _stacked(
                replace(plain, layers=num_layers, is_bidirectional=is_bidirectional)
            )


def _of_other_sizes(plain: Layer) -> Iterator[Layer]:
    for steps in (1, 2, 7, 58, 101):
        yield replace(plain, steps=steps)
    for samples in (1, 2, 16, 32, 37, 64, 128, 130):
        yield replace(plain, samples=samples)
    for inputs in (1, 64, 128, 257, 1031):
        yield replace(plain, inputs=inputs)
    for hidden in (17, 64, 113, 128, 131, 192, 193, 251, 257, 384, 389, 512, 1024, 1031):
        yield replace(plain, hidden=hidden)
        yield replace(plain, hidden=hidden, samples=32, inputs=128)


def _stacked(plain: Layer) -> Iterator[Layer]:
    for hidden in (113, 431):
        more = replace(plain, hidden=hidden)
        yield more
        yield replace(more, steps=67, samples=23)
        if plain.layers > 1:
            yield replace(more, dropout=0.3)


def measure(layer: Layer) -> dict[str, int | str]:
    """The figures of one layer, after a first call that makes handles and dropout states."""
    module = getattr(nn, layer.kind)(
        layer.inputs,
        layer.hidden,
        layer.layers,
        bidirectional=layer.is_bidirectional,
        dropout=layer.dropout,
    ).to(CUDA, TYPES[layer.precision])
    shape = (layer.steps, layer.samples, layer.inputs)
    data = torch.rand(shape, device=CUDA, dtype=TYPES[layer.precision], requires_grad=True)
    module(data)[0].sum().backward()
    module.zero_grad(set_to_none=True)
    data.grad = None
    before = _start()
    output, states = module(data)
    forward = _end() - before
    node = output.grad_fn
    found = {
        "forward_peak_bytes": forward,
        "forward_left_bytes": torch.cuda.memory_stats(CUDA)["requested_bytes.all.current"] - before,
        "output_bytes": output.numel() * output.element_size(),
        "reserve_bytes": node._saved_result3.numel(),  # noqa: SLF001 - autograd's own name
        "weights_bytes": node._saved_result4.numel() * output.element_size(),  # noqa: SLF001
    }
    gradient = torch.ones_like(output)
    del states
    before = _start()
    output.backward(gradient)
    return found | {
        "backward_peak_bytes": _end() - before,
        "backward_left_bytes": torch.cuda.memory_stats(CUDA)["requested_bytes.all.current"]
        - before,
    }


def _start() -> int:
    torch.cuda.synchronize(CUDA)
    torch.cuda.reset_peak_memory_stats(CUDA)
    current: int = torch.cuda.memory_stats(CUDA)["requested_bytes.all.current"]
    return current


def _end() -> int:
    torch.cuda.synchronize(CUDA)
    peak: int = torch.cuda.memory_stats(CUDA)["requested_bytes.all.peak"]
    return peak


def main() -> None:
    """Write the file that the argument names."""
    about = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "device": torch.cuda.get_device_name(CUDA),
    }
    with Path(sys.argv[1]).open("w", encoding="utf-8") as file:
        file.write(json.dumps(about) + "\n")
        for layer in dict.fromkeys(layers()):
            try:
                found = measure(layer)
            except (RuntimeError, AttributeError) as fault:
                found = {"error": f"{type(fault).__name__}: {fault}"[:300]}
            file.write(json.dumps(asdict(layer) | found) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
