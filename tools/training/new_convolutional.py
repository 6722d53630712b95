"""Convolutional networks as people write them, none of them of `tests/data/training`."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def _conv_bn(
    num_in: int, num_out: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    convolution = nn.Conv2d(num_in, num_out, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(num_out)]


def channel_shuffle(x: torch.Tensor, groups: int) -> torch.Tensor:
    """Deal the channels out anew, one of each group in turn."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


class ShuffleUnit(nn.Module):
    """Half of the channels through a depthwise branch (ShuffleNet V2), or all of them to halve."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        half = num_out // 2
        self.branch1 = nn.Sequential()
        if stride > 1:
            self.branch1 = nn.Sequential(
                *_conv_bn(num_in, num_in, 3, stride, num_in),
                *_conv_bn(num_in, half, 1),
                nn.ReLU(inplace=True),
            )
        self.branch2 = nn.Sequential(
            *_conv_bn(num_in if stride > 1 else half, half, 1),
            nn.ReLU(inplace=True),
            *_conv_bn(half, half, 3, stride, half),
            *_conv_bn(half, half, 1),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stride == 1:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNet(nn.Module):
    """ShuffleNet V2 of three stages."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(*_conv_bn(3, 24, 3, 2), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        units: list[nn.Module] = []
        num_in = 24
        for width, depth in ((116, 4), (232, 6), (464, 3)):
            for index in range(depth):
                units.append(ShuffleUnit(num_in, width, 2 if index == 0 else 1))
                num_in = width
        self.stages = nn.Sequential(*units)
        self.conv5 = nn.Sequential(*_conv_bn(num_in, 512, 1), nn.ReLU(inplace=True))
        self.fc = nn.Linear(512, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.conv1(x))
        x = self.conv5(self.stages(x))
        x = x.mean([2, 3])
        return self.fc(x)


class ResNeXtBlock(nn.Module):
    """A bottleneck whose middle convolution has groups."""

    def __init__(self, num_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            *_conv_bn(num_in, width, 1),
            nn.ReLU(),
            *_conv_bn(width, width, 3, stride, 8),
            nn.ReLU(),
            *_conv_bn(width, 2 * width, 1),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or num_in != 2 * width:
            self.shortcut = nn.Sequential(*_conv_bn(num_in, 2 * width, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.conv(x) + self.shortcut(x))


class ResNeXt(nn.Module):
    """ResNeXt of six blocks, for small images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_conv_bn(3, 32, 3), nn.ReLU())
        blocks = []
        num_in = 32
        for width, stride in ((32, 1), (32, 1), (64, 2), (64, 1), (128, 2), (128, 1)):
            blocks.append(ResNeXtBlock(num_in, width, stride))
            num_in = 2 * width
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(num_in, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        x = functional.avg_pool2d(x, 8)
        x = x.view(x.size(0), -1)
        return self.head(x)


def dcgan_generator() -> nn.Module:
    """The generator of DCGAN: noise in, an image of values from -1 to 1 out."""
    layers: list[nn.Module] = []
    widths = (100, 256, 128, 64, 32)
    for index, (num_in, num_out) in enumerate(pairwise(widths)):
        stride, padding = (1, 0) if index == 0 else (2, 1)
        layers += [
            nn.ConvTranspose2d(num_in, num_out, 4, stride, padding, bias=False),
            nn.BatchNorm2d(num_out),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers, nn.ConvTranspose2d(32, 3, 4, 2, 1, bias=False), nn.Tanh())


class LayerNorm2d(nn.LayerNorm):
    """Normalizes over channels, which come second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, layer norm, a GELU layer, and a learned scale of each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        x = self.dwconv(x)
        x = x.permute(0, 2, 3, 1)
        x = self.norm(x)
        x = self.pwconv1(x)
        x = self.act(x)
        x = self.pwconv2(x)
        x = self.gamma * x
        x = x.permute(0, 3, 1, 2)
        return shortcut + x


class ConvNeXt(nn.Module):
    """ConvNeXt of three stages."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 48, 4, 4), LayerNorm2d(48, eps=1e-6)]
        for index, width in enumerate((48, 96, 192)):
            if index:
                layers += [LayerNorm2d(width // 2, eps=1e-6), nn.Conv2d(width // 2, width, 2, 2)]
            layers += [ConvNeXtBlock(width), ConvNeXtBlock(width)]
        self.features = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(192, eps=1e-6)
        self.head = nn.Linear(192, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.features(x)
        return self.head(self.norm(x.mean([-2, -1])))


class SqueezeExcite(nn.Module):
    """Scale channels by what their means say."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, channels // 4, 1)
        self.relu = nn.ReLU(inplace=True)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1)
        self.scale = nn.Hardsigmoid(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale(self.fc2(self.relu(self.fc1(self.avgpool(x)))))
        return scale * x


class MobileBlock(nn.Module):
    """An inverted residual of MobileNetV3."""

    def __init__(self, num_in: int, width: int, num_out: int, stride: int) -> None:
        super().__init__()
        self.add = stride == 1 and num_in == num_out
        self.block = nn.Sequential(
            *_conv_bn(num_in, width, 1),
            nn.Hardswish(inplace=True),
            *_conv_bn(width, width, 5, stride, width),
            nn.Hardswish(inplace=True),
            SqueezeExcite(width),
            *_conv_bn(width, num_out, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        if self.add:
            result += x
        return result


class SqueezeExciteNet(nn.Module):
    """MobileNetV3 in small."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(*_conv_bn(3, 16, 3, 2), nn.Hardswish(inplace=True)),
            MobileBlock(16, 64, 24, 2),
            MobileBlock(24, 72, 24, 1),
            MobileBlock(24, 96, 40, 2),
            MobileBlock(40, 240, 40, 1),
            MobileBlock(40, 240, 40, 1),
            *(*_conv_bn(40, 288, 1), nn.Hardswish(inplace=True)),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(288, 256),
            nn.Hardswish(inplace=True),
            nn.Dropout(p=0.2, inplace=True),
            nn.Linear(256, 100),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.flatten(self.avgpool(self.features(x)), 1)
        return self.classifier(x)


class InceptionBlock(nn.Module):
    """Four branches side by side, one of them an average pool."""

    def __init__(self, num_in: int, width: int) -> None:
        super().__init__()
        self.branch1 = self._conv(num_in, width, 1)
        self.branch3 = nn.Sequential(self._conv(num_in, width, 1), self._conv(width, width, 3))
        self.branch5 = nn.Sequential(
            self._conv(num_in, width, 1),
            self._conv(width, width, (1, 5)),
            self._conv(width, width, (5, 1)),
        )
        self.pool = self._conv(num_in, width // 2, 1)

    @staticmethod
    def _conv(num_in: int, num_out: int, kernel: int | tuple[int, int]) -> nn.Sequential:
        convolution = nn.Conv2d(num_in, num_out, kernel, padding="same", bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(num_out, eps=0.001), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = functional.avg_pool2d(x, kernel_size=3, stride=1, padding=1)
        outputs = [self.branch1(x), self.branch3(x), self.branch5(x), self.pool(pooled)]
        return torch.cat(outputs, 1)


class Inception(nn.Module):
    """Four blocks with pools between."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 32, 5, 2, 2), nn.LeakyReLU(0.1))
        self.block1 = InceptionBlock(32, 32)
        self.block2 = InceptionBlock(112, 48)
        self.block3 = InceptionBlock(168, 64)
        self.pool = nn.AvgPool2d(2, ceil_mode=True)
        self.dropout = nn.Dropout(0.1)
        self.fc = nn.Linear(224, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block1(self.stem(x))
        x = functional.max_pool2d(x, 3, 2)
        x = self.pool(self.block2(x))
        x = self.dropout(self.block3(x))
        x = functional.adaptive_avg_pool2d(x, 1).squeeze(-1).squeeze(-1)
        return self.fc(x)
