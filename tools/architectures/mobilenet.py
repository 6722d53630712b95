"""MobileNetV2: inverted residuals over depthwise convolutions."""

from torch import Tensor, nn

MOBILENET_V2_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels, repeats and first stride of each stage (table 2 of the paper)."""


def conv_bn_relu6(
    channels: int, width: int, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Module:
    """Convolution, BatchNorm and ReLU6; the spatial size is divided by `stride`."""
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU6(inplace=True),
    )


class InvertedResidual(nn.Module):
    """Expand by a 1x1 convolution, filter each channel, project back without activation."""

    def __init__(self, channels: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers.append(conv_bn_relu6(channels, hidden, 1))
        layers += [
            conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden),
            nn.Conv2d(hidden, width, 1, bias=False),
            nn.BatchNorm2d(width),
        ]
        self.conv = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        """[N, C, H, W] -> [N, width, H / stride, W / stride]."""
        y: Tensor = self.conv(x)
        return x + y if self.has_shortcut else y


class MobileNetV2(nn.Module):
    """The network of width 1.0 with 1000 classes."""

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [conv_bn_relu6(3, 32, 3, 2)]
        channels = 32
        for expansion, width, repeats, first_stride in MOBILENET_V2_STAGES:
            for block in range(repeats):
                stride = 1 if block else first_stride
                blocks.append(InvertedResidual(channels, width, stride, expansion))
                channels = width
        self.features = nn.Sequential(*blocks, conv_bn_relu6(channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, image: Tensor) -> Tensor:
        """Class scores: [N, 3, H, W] -> [N, 1000]."""
        scores: Tensor = self.classifier(self.features(image).mean((2, 3)))
        return scores


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 with 1000 classes."""
    return MobileNetV2()
