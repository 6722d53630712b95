"""ResNets of mmaction2's recognizers, in two and three dims."""

# ruff: noqa: D102  # what `forward` computes is its class docstring

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Blocks in each stage, by depth."""
_BOTTLENECK_DEPTH = 50
_DEEP_STAGE = 23


class Shift(nn.Module):
    """An eighth of the channels from the next frame and an eighth from the last.

    mmaction/models/backbones/resnet_tsm.py: TemporalShift.shift.
    """

    def __init__(self, conv: nn.Module, segments: int) -> None:
        super().__init__()
        self.conv = conv
        self.segments = segments

    def forward(self, x: Tensor) -> Tensor:
        _, channels, height, width = x.shape
        x = x.view(-1, self.segments, channels, height * width)
        fold = channels // 8
        left, middle, right = x[:, :, :fold], x[:, :, fold : 2 * fold], x[:, :, 2 * fold :]
        zeros = torch.zeros_like(left[:, :1])
        left = torch.cat((left[:, 1:], zeros), 1)
        middle = torch.cat((torch.zeros_like(middle[:, :1]), middle[:, :-1]), 1)
        x = torch.cat((left, middle, right), 2).view(-1, channels, height, width)
        shifted: Tensor = self.conv(x)
        return shifted


def _conv2d(width: int, out: int, kernel: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(width, out, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out))


class Block2d(nn.Module):
    """A basic block or a bottleneck; the stride is that of its 3x3 convolution."""

    def __init__(self, inputs: int, width: int, depth: int, stride: int, shifted: int) -> None:
        super().__init__()
        is_bottleneck = depth >= _BOTTLENECK_DEPTH
        outputs = width * 4 if is_bottleneck else width
        if is_bottleneck:
            layers = [
                _conv2d(inputs, width, 1),
                _conv2d(width, width, 3, stride),
                _conv2d(width, outputs, 1),
            ]
        else:
            layers = [_conv2d(inputs, width, 3, stride), _conv2d(width, width, 3)]
        if shifted:
            layers[0][0] = Shift(layers[0][0], shifted)
        self.layers = nn.ModuleList(layers)
        self.relu = nn.ReLU(inplace=True)
        is_same = stride == 1 and inputs == outputs
        self.downsample = None if is_same else _conv2d(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers[:-1]:
            out = self.relu(layer(out))
        out = self.layers[-1](out)
        shortcut = x if self.downsample is None else self.downsample(x)
        joined: Tensor = self.relu(out + shortcut)
        return joined


class ResNet2d(nn.Module):
    """mmaction/models/backbones/resnet.py."""

    def __init__(
        self,
        depth: int,
        channels: int = 3,
        *,
        shifted: int = 0,
    ) -> None:
        super().__init__()
        relu = nn.ReLU(inplace=True)
        self.stem = nn.Sequential(_conv2d(channels, 64, 7, 2), relu, nn.MaxPool2d(3, 2, 1))
        rounds = 2 if BLOCKS[depth][2] >= _DEEP_STAGE else 1
        expansion = 4 if depth >= _BOTTLENECK_DEPTH else 1
        inputs = 64
        stages = []
        for index, blocks in enumerate(BLOCKS[depth]):
            width = 64 * 2**index
            stage: list[nn.Module] = []
            for block in range(blocks):
                stride = 2 if block == 0 and index else 1
                # ResNetTSM.make_temporal_shift: every second block of the deep ones
                segments = shifted if block % rounds == 0 else 0
                stage.append(Block2d(inputs, width, depth, stride, segments))
                inputs = width * expansion
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x


def _conv3d(
    width: int, out: int, kernel: tuple[int, int], stride: int = 1, *, is_active: bool = True
) -> nn.Sequential:
    time, space = kernel
    conv = nn.Conv3d(
        width,
        out,
        (time, space, space),
        (1, stride, stride),
        (time // 2, space // 2, space // 2),
        bias=False,
    )
    layers: list[nn.Module] = [conv, nn.BatchNorm3d(out)]
    return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if is_active else []))


class Block3d(nn.Module):
    """A bottleneck whose first convolution covers three frames where it is inflated."""

    def __init__(self, inputs: int, width: int, stride: int, *, is_inflated: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _conv3d(inputs, width, (3 if is_inflated else 1, 1)),
            _conv3d(width, width, (1, 3), stride),
            _conv3d(width, width * 4, (1, 1), is_active=False),
        )
        self.relu = nn.ReLU(inplace=True)
        is_same = stride == 1 and inputs == width * 4
        self.downsample = (
            None if is_same else _conv3d(inputs, width * 4, (1, 1), stride, is_active=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        joined: Tensor = self.relu(self.layers(x) + shortcut)
        return joined


class ResNet3d(nn.Module):
    """mmaction/models/backbones/resnet3d.py and resnet3d_slowonly.py."""

    def __init__(
        self,
        depth: int,
        channels: int = 3,
        *,
        inflate: Sequence[int | Sequence[int]],
        stem: tuple[int, int] = (1, 1),
        has_pool2: bool = True,
    ) -> None:
        super().__init__()
        time, time_stride = stem
        conv = nn.Conv3d(
            channels, 64, (time, 7, 7), (time_stride, 2, 2), (time // 2, 3, 3), bias=False
        )
        self.stem = nn.Sequential(conv, nn.BatchNorm3d(64), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool3d((1, 3, 3), (time_stride, 2, 2), (0, 1, 1))
        self.pool2 = (
            nn.MaxPool3d((2, 1, 1), (2, 1, 1)) if time > 1 and has_pool2 and stem[1] > 1 else None
        )
        inputs = 64
        stages = []
        for index, blocks in enumerate(BLOCKS[depth]):
            width = 64 * 2**index
            each = inflate[index]
            flags = [each] * blocks if isinstance(each, int) else list(each)
            stage = []
            for block in range(blocks):
                stride = 2 if block == 0 and index else 1
                stage.append(Block3d(inputs, width, stride, is_inflated=bool(flags[block])))
                inputs = width * 4
            stages.append(nn.Sequential(*stage))
        self.stages = nn.ModuleList(stages)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        for index, stage in enumerate(self.stages):
            x = stage(x)
            if index == 0 and self.pool2 is not None:
                x = self.pool2(x)
        return x
