"""U-Net with padded convolutions, BatchNorm and transposed convolutions."""

from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512, 1024)
"""Channels at each depth."""


def _double_conv(channels: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Four steps down, four up; each step up reads what the same depth wrote on the way down."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.stem = _double_conv(3, WIDTHS[0])
        self.pool = nn.MaxPool2d(2)
        pairs = tuple(pairwise(WIDTHS))
        self.down = nn.ModuleList(_double_conv(upper, lower) for upper, lower in pairs)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(lower, upper, 2, stride=2) for upper, lower in reversed(pairs)
        )
        self.merge = nn.ModuleList(_double_conv(lower, upper) for upper, lower in reversed(pairs))
        self.head = nn.Conv2d(WIDTHS[0], num_classes, 1)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores of each pixel: [N, 3, H, W] -> [N, classes, H, W]."""
        skips = [self.stem(image)]
        for down in self.down:
            skips.append(down(self.pool(skips[-1])))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        scores: Tensor = self.head(x)
        return scores


def unet() -> nn.Module:
    """U-Net with two classes."""
    return UNet(num_classes=2)
