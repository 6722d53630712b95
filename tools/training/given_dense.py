"""Networks of `tests/data/training` that concatenate: DenseNet, U-Net and SqueezeNet."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class DenseLayer(nn.Module):
    """A 1x1 and a 3x3 convolution of all that came before; norm and ReLU go first."""

    def __init__(self, num_in: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_in)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_in, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        x = torch.cat(features, 1)
        x = self.conv1(self.relu1(self.norm1(x)))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.Module):
    """Layers that each read the outputs of all before them, concatenated anew."""

    def __init__(self, num_in: int, growth: int, depth: int) -> None:
        super().__init__()
        self.ls = nn.ModuleList(DenseLayer(num_in + i * growth, growth) for i in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for layer in self.ls:
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet121(nn.Module):
    """DenseNet-121 (Huang and others, 2017), without checkpointing."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [
            *(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)),
            *(nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        ]
        width = 64
        for depth in (6, 12, 24, 16):
            if len(features) > 4:  # noqa: PLR2004  # the stem
                features.append(_transition(width))
                width //= 2
            features.append(DenseBlock(width, 32, depth))
            width += 32 * depth
        self.features = nn.Sequential(*features, nn.BatchNorm2d(width))
        self.classifier = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.relu(self.features(x), inplace=True)
        return self.classifier(functional.adaptive_avg_pool2d(x, (1, 1)).flatten(1))


def _transition(width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width // 2, 1, bias=False),
        nn.AvgPool2d(2, 2),
    )


def _conv_bn(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(num_out),
        nn.ReLU(inplace=True),
    )


def _two_convs(num_in: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(_conv_bn(num_in, num_out), _conv_bn(num_out, num_out))


class UNet(nn.Module):
    """Four levels down and up (Ronneberger and others, 2015), padded; two classes a pixel."""

    widths = (64, 128, 256, 512, 1024)

    def __init__(self) -> None:
        super().__init__()
        levels = tuple(pairwise(self.widths))
        down = [_two_convs(num_in, num_out) for num_in, num_out in pairwise((3, *self.widths[:-1]))]
        self.d = nn.ModuleList(down)
        self.mid = _two_convs(*levels[-1])
        upwards = levels[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(wide, half, 2, 2) for half, wide in upwards)
        self.u = nn.ModuleList(_two_convs(wide, half) for half, wide in upwards)
        self.out = nn.Conv2d(self.widths[0], 2, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for down in self.d:
            x = down(x)
            skips.append(x)
            x = self.pool(x)
        x = self.mid(x)
        for up, convs in zip(self.up, self.u, strict=True):
            x = convs(torch.cat([skips.pop(), up(x)], 1))
        return self.out(x)


class Fire(nn.Module):
    """Squeeze by a 1x1 convolution, then widen by a 1x1 and a 3x3 one side by side."""

    def __init__(self, num_in: int, squeezed: int, widened: int) -> None:
        super().__init__()
        self.q = nn.Conv2d(num_in, squeezed, 1)
        self.a = nn.Conv2d(squeezed, widened, 1)
        self.b = nn.Conv2d(squeezed, widened, 3, padding=1)
        self.r = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.r(self.q(x))
        return torch.cat([self.r(self.a(x)), self.r(self.b(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 (Iandola and others, 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, 2), nn.ReLU(inplace=True), _ceil_pool()),
            *(Fire(64, 16, 64), Fire(128, 16, 64), _ceil_pool()),
            *(Fire(128, 32, 128), Fire(256, 32, 128), _ceil_pool()),
            *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        )
        self.c = nn.Sequential(nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.adaptive_avg_pool2d(self.c(self.f(x)), 1).flatten(1)


def _ceil_pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2, ceil_mode=True)
