"""Measure a step of many small networks, an operator or two each, and export each in three ways.

    PYTHONPATH=tools python tools/training/operators.py

writes tests/data/training_operators.json.gz.

Sizes are distinct primes, so that a wrong term cannot hide behind another.
"""

import argparse
import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from autocast_truth import cuda_lists
from exporting_steps import EXPORTERS, ExportFailureError, export
from settings import Network, Settings, Tensors
from step import measure
from torch import nn
from torch.nn import functional

FILE = Path(__file__).parents[2] / "tests" / "data" / "training_operators.json.gz"
BATCH = 5
FIGURES = ("saved_activation_bytes", "forward_peak_bytes", "backward_peak_bytes", "peak_bytes")

WIDTH = 24
ROWS = 7
CHANNELS = 12
SIDE = (10, 14)

Function = Callable[..., torch.Tensor]


class _Around(nn.Module):
    """A function or module between two layers, so that a gradient comes in and goes on."""

    def __init__(self, first: nn.Module, function: Function, last: nn.Module) -> None:
        super().__init__()
        self.first, self.last = first, last
        self.function = function

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.last(self.function(self.first(data)))


def _rows(function: Function, width: int = WIDTH) -> Callable[[], nn.Module]:
    return lambda: _Around(nn.Linear(11, WIDTH), function, nn.Linear(width, 3))


def _images(function: Function, channels: int = CHANNELS) -> Callable[[], nn.Module]:
    return lambda: _Around(nn.Conv2d(2, CHANNELS, 1), function, nn.Conv2d(channels, 3, 1))


def _volumes(function: Function, channels: int = CHANNELS) -> Callable[[], nn.Module]:
    return lambda: _Around(nn.Conv3d(2, CHANNELS, 1), function, nn.Conv3d(channels, 3, 1))


def _made(make: Callable[[], nn.Module], around: Callable[..., Any], *more: int) -> Any:  # noqa: ANN401
    """The network around a module that is made anew with it."""

    def build() -> nn.Module:
        network: nn.Module = around(make(), *more)()
        return network

    return build


def _row_input(batch: int) -> Tensors:
    return (torch.zeros(batch, ROWS, 11),)


def _vector_input(batch: int) -> Tensors:
    return (torch.zeros(batch, 11),)


def _image_input(batch: int) -> Tensors:
    return (torch.zeros(batch, 2, *SIDE),)


def _volume_input(batch: int) -> Tensors:
    return (torch.zeros(batch, 2, 4, *SIDE),)


def _heads(data: torch.Tensor) -> torch.Tensor:
    return data.reshape(data.shape[0], ROWS, 4, WIDTH // 4).transpose(1, 2)


def _joined(data: torch.Tensor) -> torch.Tensor:
    return data.transpose(1, 2).reshape(data.shape[0], ROWS, WIDTH)


def _attention_by_hand(data: torch.Tensor) -> torch.Tensor:
    heads = _heads(data)
    scores = (heads @ heads.transpose(-2, -1)) / 6**0.5
    return _joined(scores.softmax(-1) @ heads)


def _fused_attention(data: torch.Tensor) -> torch.Tensor:
    heads = _heads(data)
    return _joined(functional.scaled_dot_product_attention(heads, heads * 2, heads + 1))


def _causal_attention(data: torch.Tensor) -> torch.Tensor:
    heads = _heads(data)
    return _joined(
        functional.scaled_dot_product_attention(heads, heads * 2, heads + 1, is_causal=True)
    )


def _rms_norm(data: torch.Tensor) -> torch.Tensor:
    return data * torch.rsqrt(data.pow(2).mean(-1, keepdim=True) + 1e-6)


def _three_parts(data: torch.Tensor) -> torch.Tensor:
    first, second, third = data.reshape(data.shape[0], ROWS, 3, 8).permute(2, 0, 1, 3).unbind(0)
    return first * second + third


def _two_parts(data: torch.Tensor) -> torch.Tensor:
    left, right = data.chunk(2, -1)
    return left * right.exp()


def _rotated(data: torch.Tensor) -> torch.Tensor:
    half = data.shape[-1] // 2
    return torch.cat((-data[..., half:], data[..., :half]), -1) * 2 + data


def _masked(data: torch.Tensor) -> torch.Tensor:
    mask = torch.triu(torch.ones(ROWS, WIDTH, dtype=torch.bool), 1)
    return data.masked_fill(mask, -1e9).softmax(-1)


def _shuffled(data: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = data.shape
    grouped = data.reshape(batch, 3, channels // 3, height, width)
    return grouped.transpose(1, 2).reshape(batch, channels, height, width)


class _Experts(nn.Module):
    """Every row by every matrix: each operand of the product is permuted."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, WIDTH, 8))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return torch.einsum("brw,ewv->brev", data, self.weight).flatten(2)


class _Vector(nn.Module):
    """A matrix by a vector."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data * torch.matmul(data, self.weight).unsqueeze(-1)


class _Gate(nn.Module):
    """A function of a parameter alone."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return data * torch.sigmoid(-self.rate)


class _Warp(nn.Module):
    """A sampled image, at positions that are moved."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("grid", torch.rand(1, 9, 11, 2))

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        moved = self.grid + data.mean((1, 2, 3)).reshape(-1, 1, 1, 1)
        return functional.grid_sample(data, moved, align_corners=False)


class _SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.attention(data, data, data, need_weights=False)[0]


class _Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        return self.layer(data)[0]


OF_ROWS: dict[str, Callable[[], nn.Module]] = {
    "relu": _rows(functional.relu),
    "leaky_relu": _rows(functional.leaky_relu),
    "elu": _rows(functional.elu),
    "sigmoid": _rows(torch.sigmoid),
    "tanh": _rows(torch.tanh),
    "gelu": _rows(functional.gelu),
    "gelu_tanh": _rows(lambda x: functional.gelu(x, approximate="tanh")),
    "silu": _rows(functional.silu),
    "mish": _rows(functional.mish),
    "softplus": _rows(functional.softplus),
    "softsign": _rows(functional.softsign),
    "hardswish": _rows(functional.hardswish),
    "hardsigmoid": _rows(functional.hardsigmoid),
    "relu6": _rows(functional.relu6),
    "clamp": _rows(lambda x: x.clamp(-1, 1)),
    "glu": _rows(functional.glu, WIDTH // 2),
    "prelu": _made(nn.PReLU, _rows),
    "exp": _rows(torch.exp),
    "log": _rows(lambda x: torch.log(x + 2)),
    "sqrt": _rows(lambda x: torch.sqrt(x + 2)),
    "rsqrt": _rows(lambda x: torch.rsqrt(x + 2)),
    "reciprocal": _rows(lambda x: torch.reciprocal(x + 2)),
    "abs": _rows(torch.abs),
    "sin_cos": _rows(lambda x: torch.sin(x) + torch.cos(x)),
    "erf": _rows(torch.erf),
    "pow": _rows(lambda x: x.pow(3)),
    "divide": _rows(lambda x: x / (x + 2)),
    "divide_rows": _rows(lambda x: x / (x.mean(-1, keepdim=True) + 2)),
    "multiply_rows": _rows(lambda x: x * x.mean(-1, keepdim=True)),
    "square": _rows(lambda x: x * x),
    "subtract": _rows(lambda x: x.exp() - x),
    "maximum": _rows(lambda x: torch.maximum(x, x * 2)),
    "where": _rows(lambda x: torch.where(x > 0, x, x * 2)),
    "softmax": _rows(lambda x: x.softmax(-1)),
    "log_softmax": _rows(lambda x: x.log_softmax(-1)),
    "masked_softmax": _rows(_masked),
    "mean": _rows(lambda x: x.mean(1)),
    "sum": _rows(lambda x: x.sum(1)),
    "amax": _rows(lambda x: x.amax(1)),
    "normalize": _rows(lambda x: functional.normalize(x, dim=-1)),
    "standardize": _rows(lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)),
    "layer_norm": _made(lambda: nn.LayerNorm(WIDTH), _rows),
    "rms_norm": _rows(_rms_norm),
    "dropout": _rows(lambda x: functional.dropout(x, 0.5)),
    "dropout_none": _rows(lambda x: functional.dropout(x, 0.0)),
    "linear": _made(lambda: nn.Linear(WIDTH, 13), _rows, 13),
    "linear_no_bias": _made(lambda: nn.Linear(WIDTH, 13, bias=False), _rows, 13),
    "linear_of_turned": _rows(lambda x: (x.transpose(1, 2) @ x) @ x.transpose(1, 2), ROWS),
    "attention": _rows(_attention_by_hand),
    "fused_attention": _rows(_fused_attention),
    "causal_attention": _rows(_causal_attention),
    "self_attention": _made(_SelfAttention, _rows),
    "einsum": _rows(lambda x: torch.einsum("brw,bsw->brs", x, x * 2), ROWS),
    "einsum_experts": _made(_Experts, _rows),
    "einsum_batch": _rows(lambda x: torch.einsum("brw,bsw->bws", x, x.exp()), ROWS),
    "einsum_outer": _rows(lambda x: torch.einsum("brw,bw->brw", x, x.mean(1))),
    "einsum_three": _rows(lambda x: torch.einsum("brw,bsw,bsv->brv", x, x.exp(), x.tanh())),
    "matrix_by_vector": _made(_Vector, _rows),
    "function_of_a_parameter": _made(_Gate, _rows),
    "rms_norm_module": _made(lambda: nn.RMSNorm(WIDTH), _rows),
    "vector_norm": _rows(lambda x: x / (x.norm(dim=1, keepdim=True) + 1)),
    "cumulative_sum": _rows(lambda x: x.cumsum(1)),
    "logsumexp": _rows(lambda x: x * x.logsumexp(-1, keepdim=True)),
    "unbind": _rows(_three_parts, 8),
    "chunk": _rows(_two_parts, WIDTH // 2),
    "rotate_half": _rows(_rotated),
    "roll": _rows(lambda x: torch.roll(x, 2, 1)),
    "select": _rows(lambda x: x[:, 0] + x[:, 1]),
    "slice": _rows(lambda x: x[:, 2:] * 2),
    "concat": _rows(lambda x: torch.cat((x.relu(), x.tanh()), -1), 2 * WIDTH),
    "stack": _rows(lambda x: torch.stack((x.relu(), x.tanh()), 1)),
    "expand": _rows(lambda x: x[:, :1].expand(-1, ROWS, -1) * x),
    "repeat": _rows(lambda x: x.repeat(1, 2, 1)),
    "flatten": _rows(lambda x: x.flatten(1), ROWS * WIDTH),
    "turn_and_flatten": _rows(lambda x: x.transpose(1, 2).flatten(1), ROWS * WIDTH),
    "pad": _rows(lambda x: functional.pad(x, (0, 0, 1, 2))),
    "residual": _rows(lambda x: x + x.relu()),
    "fork": _rows(lambda x: x.relu() + x.tanh() + x.exp()),
    "lstm": _made(lambda: _Recurrent(nn.LSTM(WIDTH, 13, batch_first=True)), _rows, 13),
    "gru": _made(lambda: _Recurrent(nn.GRU(WIDTH, 13, batch_first=True)), _rows, 13),
    "transformer_layer": _made(
        lambda: nn.TransformerEncoderLayer(WIDTH, 4, 53, batch_first=True), _rows
    ),
}

OF_VECTORS: dict[str, Callable[[], nn.Module]] = {
    "linear_of_vectors": _made(lambda: nn.Linear(WIDTH, 13), _rows, 13),
    "batch_norm_of_vectors": _made(lambda: nn.BatchNorm1d(WIDTH), _rows),
}

OF_VOLUMES: dict[str, Callable[[], nn.Module]] = {
    "conv3d": _made(lambda: nn.Conv3d(CHANNELS, 7, 3, padding=1), _volumes, 7),
    "max_pool3d": _made(lambda: nn.MaxPool3d(2), _volumes),
    "average_pool3d": _made(lambda: nn.AvgPool3d(2), _volumes),
    "replication_pad3d": _volumes(
        lambda x: functional.pad(x, (1, 1, 2, 1, 1, 1), mode="replicate")
    ),
    "upsample_trilinear": _made(lambda: nn.Upsample(scale_factor=2, mode="trilinear"), _volumes),
}

OF_IMAGES: dict[str, Callable[[], nn.Module]] = {
    "conv": _made(lambda: nn.Conv2d(CHANNELS, 7, 3, padding=1), _images, 7),
    "conv_depthwise": _made(lambda: nn.Conv2d(CHANNELS, CHANNELS, 3, groups=CHANNELS), _images),
    "conv_transpose": _made(lambda: nn.ConvTranspose2d(CHANNELS, 7, 4, 2, 1), _images, 7),
    "batch_norm": _made(lambda: nn.BatchNorm2d(CHANNELS), _images),
    "conv_batch_norm_relu": _made(
        lambda: nn.Sequential(nn.Conv2d(CHANNELS, 7, 3, bias=False), nn.BatchNorm2d(7), nn.ReLU()),
        *(_images, 7),
    ),
    "group_norm": _made(lambda: nn.GroupNorm(3, CHANNELS), _images),
    "instance_norm": _made(lambda: nn.InstanceNorm2d(CHANNELS, affine=True), _images),
    "max_pool": _made(lambda: nn.MaxPool2d(2), _images),
    "average_pool": _made(lambda: nn.AvgPool2d(2), _images),
    "global_average_pool": _made(lambda: nn.AdaptiveAvgPool2d(1), _images),
    "adaptive_pool": _made(lambda: nn.AdaptiveAvgPool2d((5, 7)), _images),
    "upsample": _made(lambda: nn.Upsample(scale_factor=2), _images),
    "upsample_bilinear": _made(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _images),
    "grid_sample": _made(_Warp, _images),
    "reflection_pad": _images(lambda x: functional.pad(x, (1, 2, 2, 1), mode="reflect")),
    "replication_pad": _images(lambda x: functional.pad(x, (1, 2, 2, 1), mode="replicate")),
    "spectral_norm": _made(
        lambda: nn.utils.spectral_norm(nn.Conv2d(CHANNELS, 7, 3, padding=1)), _images, 7
    ),
    "weight_norm": _made(
        lambda: nn.utils.weight_norm(nn.Conv2d(CHANNELS, 7, 3, padding=1)), _images, 7
    ),
    "pixel_shuffle": _made(lambda: nn.PixelShuffle(2), _images, CHANNELS // 4),
    "channel_shuffle": _images(_shuffled),
    "channels_last": _images(lambda x: (x.permute(0, 2, 3, 1).tanh() * 2).permute(0, 3, 1, 2)),
    "channel_gate": _images(lambda x: x * x.mean((2, 3), keepdim=True).sigmoid()),
}


def _networks() -> list[Network]:
    groups = (
        *((OF_ROWS, _row_input), (OF_VECTORS, _vector_input)),
        *((OF_IMAGES, _image_input), (OF_VOLUMES, _volume_input)),
    )
    return [
        Network(name, build, inputs, (BATCH, BATCH), "mse")
        for cases, inputs in groups
        for name, build in cases.items()
    ]


def _row(network: Network) -> dict[str, Any]:
    figures = measure(network, BATCH, Settings(attention="fused"))
    with cuda_lists():
        lower = measure(network, BATCH, Settings(attention="fused", autocast=True))
    files: dict[str, str] = {}
    failures: dict[str, str] = {}
    for exporter in EXPORTERS:
        try:
            data = export(network, exporter, ("x",), 17, trained=True)
        except ExportFailureError as failure:
            failures[exporter] = str(failure)
        else:
            files[exporter] = base64.b64encode(data).decode()
    row: dict[str, Any] = {"case": network.name, "batch": BATCH}
    row |= {name: figures[name] for name in FIGURES}
    row["mixed-bf16"] = {name: lower[name] for name in FIGURES}
    return row | {"files": files, "export_failures": failures}


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE)
    out = parser.parse_args().out
    meta = {
        "what": (
            "One steady step of small networks (loss mse, SGD), as PyTorch takes it: in float32, "
            "and in bfloat16 under autocast by CUDA's lists."
        ),
        "how": "tools/training/operators.py, the counter of tools/training/live_bytes.py",
        "torch": torch.__version__,
    }
    text = json.dumps({"meta": meta, "rows": [_row(network) for network in _networks()]})
    out.write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    _main()
