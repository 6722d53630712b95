"""Image networks of `tests/data/training`, written to give the same graphs and the same steps."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from collections import OrderedDict
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


class ConvNet(nn.Module):
    """Features, an average pool to a fixed size, and a classifier: AlexNet and the VGGs."""

    def __init__(self, features: nn.Sequential, pool: int, classifier: nn.Sequential) -> None:
        super().__init__()
        self.features = features
        self.avgpool = nn.AdaptiveAvgPool2d(pool)
        self.classifier = classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        logits: torch.Tensor = self.classifier(x)
        return logits


def mlp() -> nn.Module:
    """Four hidden layers of a hundred."""
    sizes = (1000, 100, 100, 100, 100)
    layers: list[nn.Module] = []
    for num_in, num_out in pairwise(sizes):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(OrderedDict(f=nn.Sequential(*layers, nn.Linear(100, 10))))


def alexnet() -> nn.Module:
    """AlexNet (Krizhevsky, 2014)."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)),
    )
    classifier = nn.Sequential(
        *(nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(inplace=True)),
        *(nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(inplace=True)),
        nn.Linear(4096, 1000),
    )
    return ConvNet(features, 6, classifier)


def vgg(depths: tuple[int, ...]) -> nn.Module:
    """VGG without normalization, `depths` convolutions a stage."""
    layers: list[nn.Module] = []
    channels = 3
    for width, depth in zip((64, 128, 256, 512, 512), depths, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    classifier = nn.Sequential(
        *(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        *(nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout()),
        nn.Linear(4096, 1000),
    )
    return ConvNet(nn.Sequential(*layers), 7, classifier)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_in, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: torch.Tensor = self.relu(out)
        return activated


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 ones, the last four times as wide, and a shortcut."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        num_out = 4 * width
        self.conv1 = nn.Conv2d(num_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, num_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(num_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if num_in != num_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        activated: torch.Tensor = self.relu(out)
        return activated


class ResNet(nn.Module):
    """ResNet (He and others, 2016): a stem, then `depths` blocks of each of four widths."""

    def __init__(
        self,
        block: Callable[[int, int, int], nn.Module],
        depths: tuple[int, ...],
        expansion: int,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        blocks = []
        num_in = 64
        for width, depth in zip((64, 128, 256, 512), depths, strict=True):
            for index in range(depth):
                stride = 2 if index == 0 and width > 64 else 1  # noqa: PLR2004  # the stem's width
                blocks.append(block(num_in, width, stride))
                num_in = width * expansion
        self.body = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(num_in, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(self.body(self.stem(x))), 1))
        return logits


def _conv_bn(num_in: int, num_out: int, kernel: int, stride: int, groups: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(num_out),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand, convolve each channel, project; added to its input where the shapes agree."""

    def __init__(self, num_in: int, num_out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = num_in * expansion
        self.residual = stride == 1 and num_in == num_out
        layers = [_conv_bn(num_in, width, 1, 1, 1)] if expansion > 1 else []
        self.conv = nn.Sequential(
            *layers,
            _conv_bn(width, width, 3, stride, width),
            nn.Conv2d(width, num_out, 1, bias=False),
            nn.BatchNorm2d(num_out),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.residual:
            return x + self.conv(x)
        projected: torch.Tensor = self.conv(x)
        return projected


class MobileNetV2(nn.Module):
    """MobileNetV2 (Sandler and others, 2018), width 1."""

    stages = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )
    """Expansion, channels, blocks and stride of each."""

    def __init__(self) -> None:
        super().__init__()
        features: list[nn.Module] = [_conv_bn(3, 32, 3, 2, 1)]
        num_in = 32
        for expansion, width, depth, stride in self.stages:
            for index in range(depth):
                first_stride = stride if index == 0 else 1
                features.append(InvertedResidual(num_in, width, first_stride, expansion))
                num_in = width
        features.append(_conv_bn(num_in, 1280, 1, 1, 1))
        self.features = nn.Sequential(*features)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        x = functional.adaptive_avg_pool2d(x, (1, 1))
        x = torch.flatten(x, 1)
        logits: torch.Tensor = self.classifier(x)
        return logits
