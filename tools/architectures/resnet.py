"""ResNet-50: bottleneck blocks with the stride in the 3x3 convolution ("v1.5")."""

import torch
from torch import Tensor, nn

RESNET50_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Bottleneck width and number of blocks of each stage."""

EXPANSION = 4
"""Output channels of a bottleneck over its width."""


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, width * EXPANSION, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width * EXPANSION)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or channels != width * EXPANSION:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, width * EXPANSION, 1, stride=stride, bias=False),
                nn.BatchNorm2d(width * EXPANSION),
            )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, 4 * width, H / stride, W / stride]."""
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        result: Tensor = self.relu(y + self.downsample(x))
        return result


class ResNet(nn.Module):
    """A 7x7 stem, four stages of bottlenecks, global pooling, one fully connected layer."""

    def __init__(self, stages: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        channels = 64
        blocks: list[nn.Module] = []
        for index, (width, repeats) in enumerate(stages):
            for block in range(repeats):
                stride = 2 if index and not block else 1
                blocks.append(Bottleneck(channels, width, stride))
                channels = width * EXPANSION
        self.layers = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, 1000)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores: [N, 3, H, W] -> [N, 1000]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(image))))
        x = self.avgpool(self.layers(x))
        scores: Tensor = self.fc(torch.flatten(x, 1))
        return scores


def resnet50() -> nn.Module:
    """ResNet-50 with 1000 classes."""
    return ResNet(RESNET50_STAGES)
