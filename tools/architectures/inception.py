"""Inception v3 without its auxiliary classifier: parallel branches, concatenated."""

import torch
from torch import Tensor, nn

Kernel = int | tuple[int, int]


class Branches(nn.Module):
    """Branches over one input, their outputs concatenated by channel."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, sum of the branches' channels, H', W']."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _conv(
    channels: int, width: int, kernel: Kernel, stride: int = 1, padding: Kernel = 0
) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, padding, bias=False),
        nn.BatchNorm2d(width, eps=0.001),
        nn.ReLU(inplace=True),
    )


def _pooled(channels: int, width: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), _conv(channels, width, 1))


def _block_35(channels: int, pool_width: int) -> nn.Module:
    """At 35 x 35: 1x1, 5x5, double 3x3 and pooling."""
    return Branches(
        _conv(channels, 64, 1),
        nn.Sequential(_conv(channels, 48, 1), _conv(48, 64, 5, padding=2)),
        nn.Sequential(
            _conv(channels, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, padding=1)
        ),
        _pooled(channels, pool_width),
    )


def _reduction_to_17(channels: int) -> nn.Module:
    return Branches(
        _conv(channels, 384, 3, stride=2),
        nn.Sequential(
            _conv(channels, 64, 1), _conv(64, 96, 3, padding=1), _conv(96, 96, 3, stride=2)
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _row(channels: int, width: int, length: int) -> nn.Module:
    return _conv(channels, width, (1, length), padding=(0, length // 2))


def _column(channels: int, width: int, length: int) -> nn.Module:
    return _conv(channels, width, (length, 1), padding=(length // 2, 0))


def _block_17(width: int, channels: int = 768) -> nn.Module:
    """At 17 x 17: 7x7 convolutions split into a row and a column."""
    return Branches(
        _conv(channels, 192, 1),
        nn.Sequential(_conv(channels, width, 1), _row(width, width, 7), _column(width, 192, 7)),
        nn.Sequential(
            _conv(channels, width, 1),
            _column(width, width, 7),
            _row(width, width, 7),
            _column(width, width, 7),
            _row(width, 192, 7),
        ),
        _pooled(channels, 192),
    )


def _reduction_to_8(channels: int = 768) -> nn.Module:
    return Branches(
        nn.Sequential(_conv(channels, 192, 1), _conv(192, 320, 3, stride=2)),
        nn.Sequential(
            _conv(channels, 192, 1),
            _row(192, 192, 7),
            _column(192, 192, 7),
            _conv(192, 192, 3, stride=2),
        ),
        nn.MaxPool2d(3, stride=2),
    )


def _block_8(channels: int) -> nn.Module:
    """At 8 x 8: branches that split once more."""
    return Branches(
        _conv(channels, 320, 1),
        nn.Sequential(_conv(channels, 384, 1), Branches(_row(384, 384, 3), _column(384, 384, 3))),
        nn.Sequential(
            _conv(channels, 448, 1),
            _conv(448, 384, 3, padding=1),
            Branches(_row(384, 384, 3), _column(384, 384, 3)),
        ),
        _pooled(channels, 192),
    )


def inception_v3() -> nn.Module:
    """Inception v3 with 1000 classes: [N, 3, 299, 299] -> [N, 1000]."""
    stem = (
        _conv(3, 32, 3, stride=2),
        _conv(32, 32, 3),
        _conv(32, 64, 3, padding=1),
        nn.MaxPool2d(3, stride=2),
        _conv(64, 80, 1),
        _conv(80, 192, 3),
        nn.MaxPool2d(3, stride=2),
    )
    return nn.Sequential(
        *stem,
        *(_block_35(192, 32), _block_35(256, 64), _block_35(288, 64), _reduction_to_17(288)),
        *(_block_17(width) for width in (128, 160, 160, 192)),
        *(_reduction_to_8(), _block_8(1280), _block_8(2048)),
        *(nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(2048, 1000)),
    )
