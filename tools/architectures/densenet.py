"""DenseNet-121: each layer reads the concatenation of all before it in its block."""

import torch
from torch import Tensor, nn

BLOCK_LAYERS = (6, 12, 24, 16)
GROWTH = 32
"""Channels each layer adds."""


def _conv(channels: int, width: int, kernel: int) -> nn.Sequential:
    """BatchNorm, ReLU, convolution: the order of the paper."""
    return nn.Sequential(
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, width, kernel, padding=kernel // 2, bias=False),
    )


class DenseBlock(nn.Module):
    """Layers of a 1x1 bottleneck and a 3x3 convolution, all outputs kept."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                _conv(channels + GROWTH * layer, 4 * GROWTH, 1),
                _conv(4 * GROWTH, GROWTH, 3),
            )
            for layer in range(layers)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C + 32 * layers, H, W]."""
        pieces = [x]
        for layer in self.layers:
            pieces.append(layer(torch.cat(pieces, 1)))
        return torch.cat(pieces, 1)


def densenet121() -> nn.Module:
    """DenseNet-121 with 1000 classes: [N, 3, H, W] -> [N, 1000]."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    channels = 64
    for index, num_layers in enumerate(BLOCK_LAYERS):
        if index:
            layers += [_conv(channels, channels // 2, 1), nn.AvgPool2d(2, stride=2)]
            channels //= 2
        layers.append(DenseBlock(channels, num_layers))
        channels += GROWTH * num_layers
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
