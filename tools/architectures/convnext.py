"""ConvNeXt-Tiny: large depthwise kernels, LayerNorm and GELU."""

import torch
from torch import Tensor, nn

STAGES = ((96, 3), (192, 3), (384, 9), (768, 3))
"""Channels and number of blocks of each stage."""


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Block(nn.Module):
    """A 7x7 depthwise convolution, then a perceptron over the channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.mix = nn.Sequential(
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        y: Tensor = self.mix(self.filter(x).permute(0, 2, 3, 1))
        return x + self.scale * y.permute(0, 3, 1, 2)


def convnext_tiny() -> nn.Module:
    """ConvNeXt-Tiny with 1000 classes: [N, 3, H, W] -> [N, 1000]; no stochastic depth."""
    layers: list[nn.Module] = []
    channels = 3
    for index, (width, repeats) in enumerate(STAGES):
        if index:
            layers += [ChannelNorm(channels, eps=1e-6), nn.Conv2d(channels, width, 2, stride=2)]
        else:
            layers += [nn.Conv2d(channels, width, 4, stride=4), ChannelNorm(width, eps=1e-6)]
        layers += [Block(width) for _ in range(repeats)]
        channels = width
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(1),
        ChannelNorm(channels, eps=1e-6),
        nn.Flatten(),
        nn.Linear(channels, 1000),
    )
