"""Image networks of `tests/data/training`, written to give the same graphs and the same steps."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from gpu_truth import ConvNet
from torch import nn


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
