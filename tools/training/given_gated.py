"""Networks of `tests/data/training` that scale their features, or mix activations and norms."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from torch import nn
from torch.nn import functional


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate that two 1x1 convolutions make of the channels' means."""

    def __init__(self, width: int, squeezed: int) -> None:
        super().__init__()
        self.a = nn.Conv2d(width, squeezed, 1)
        self.b = nn.Conv2d(squeezed, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = functional.adaptive_avg_pool2d(x, 1)
        return x * self.b(functional.silu(self.a(gate))).sigmoid()


def _conv_bn(num_in: int, num_out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(num_out),
    )


def _activated(num_in: int, num_out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    return _conv_bn(num_in, num_out, kernel, stride, groups).append(nn.SiLU(inplace=True))


class GatedResidual(nn.Module):
    """Expand, convolve each channel, gate, project; its input added where the shapes agree."""

    def __init__(self, num_in: int, num_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = num_in * expansion
        self.residual = stride == 1 and num_in == num_out
        layers = [_activated(num_in, width, 1, 1, 1)] if expansion > 1 else []
        self.c = nn.Sequential(
            *layers,
            _activated(width, width, kernel, stride, width),
            SqueezeExcite(width, num_in // 4),
            _conv_bn(width, num_out, 1, 1, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(x) + x if self.residual else self.c(x)


class EfficientNetB0(nn.Module):
    """EfficientNet-B0 (Tan and Le, 2019), without dropping of whole residuals."""

    stages = (
        *((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3)),
        *((6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3)),
    )
    """Expansion, channels, blocks, stride and kernel of each."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [_activated(3, 32, 3, 2, 1)]
        num_in = 32
        for expansion, width, depth, stride, kernel in self.stages:
            for index in range(depth):
                first_stride = stride if index == 0 else 1
                features.append(GatedResidual(num_in, width, kernel, first_stride, expansion))
                num_in = width
        features.append(_activated(num_in, 1280, 1, 1, 1))
        self.f = nn.Sequential(*features)
        self.c = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(functional.adaptive_avg_pool2d(self.f(x), 1).flatten(1))


class ScaledBlock(nn.Module):
    """A 7x7 convolution of each channel, then a layer of four times the width, scaled, added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.n = nn.LayerNorm(width)
        self.a = nn.Linear(width, 4 * width)
        self.b = nn.Linear(4 * width, width)
        self.act = nn.GELU()
        self.g = nn.Parameter(torch.ones(width) * 1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.n(self.dw(x).permute(0, 2, 3, 1))
        h = self.b(self.act(self.a(h))) * self.g
        return x + h.permute(0, 3, 1, 2)


class ConvNextLike(nn.Module):
    """ConvNeXt-T (Liu and others, 2022) without the norms around its downsampling."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        num_in, patch = 3, 4
        for width, depth in ((96, 3), (192, 3), (384, 9), (768, 3)):
            layers.append(nn.Conv2d(num_in, width, patch, patch))
            layers += [ScaledBlock(width) for _ in range(depth)]
            num_in, patch = width, 2
        self.f = nn.Sequential(*layers)
        self.n = nn.LayerNorm(num_in)
        self.h = nn.Linear(num_in, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.h(self.n(self.f(x).mean((2, 3))))


class InstanceNormMix(nn.Module):
    """Instance norms, five activations, a nearest upsampling and an average pool."""

    def __init__(self) -> None:
        super().__init__()
        self.c1 = nn.Conv2d(3, 32, 3, padding=1)
        self.g1 = nn.InstanceNorm2d(32, affine=True)
        self.c2 = nn.Conv2d(32, 32, 3, padding=1)
        self.g2 = nn.InstanceNorm2d(32, affine=True)
        self.c3 = nn.Conv2d(32, 64, 3, 2, 1)
        self.up = nn.Conv2d(64, 32, 1)
        self.o = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.leaky_relu(self.g1(self.c1(x)), 0.1)
        x = x + torch.tanh(self.g2(self.c2(x)))
        h = self.up(functional.elu(self.c3(x)))
        # Both names hold on to what no formula reads: at the peak it is still there.
        h = functional.interpolate(h, scale_factor=2, mode="nearest")
        x = functional.avg_pool2d(x * torch.sigmoid(h), 2)
        return self.o(x.mean((2, 3)))
