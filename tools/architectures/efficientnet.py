"""EfficientNet-B0: inverted residuals with squeeze-and-excitation and SiLU."""

from torch import Tensor, nn

STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Expansion, kernel, first stride, output channels and repeats of each stage (table 1)."""


def _conv(channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.SiLU(inplace=True),
    )


class SqueezeExcitation(nn.Module):
    """Scales each channel by what two 1x1 convolutions make of the channel means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.scale = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, squeezed, 1),
            nn.SiLU(inplace=True),
            nn.Conv2d(squeezed, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, C, H, W]."""
        scaled: Tensor = x * self.scale(x)
        return scaled


class MBConv(nn.Module):
    """Expand, filter each channel, excite, project; a shortcut where the shape allows it."""

    def __init__(self, channels: int, width: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        hidden = channels * expansion
        expand = (_conv(channels, hidden, 1),) if expansion != 1 else ()
        self.block = nn.Sequential(
            *expand,
            _conv(hidden, hidden, kernel, stride, groups=hidden),
            SqueezeExcitation(hidden, channels // 4),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.has_shortcut = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride]."""
        y: Tensor = self.block(x)
        return x + y if self.has_shortcut else y


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0 with 1000 classes: [N, 3, H, W] -> [N, 1000]; no stochastic depth."""
    layers: list[nn.Module] = [_conv(3, 32, 3, 2)]
    channels = 32
    for expansion, kernel, first_stride, width, repeats in STAGES:
        for block in range(repeats):
            stride = 1 if block else first_stride
            layers.append(MBConv(channels, width, expansion, kernel, stride))
            channels = width
    return nn.Sequential(
        *layers,
        _conv(channels, 1280, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(1280, 1000),
    )
