"""One convolution block twice, plain and depthwise separable: same input, same output.

The separable one has about an eighth of the weights and of the multiply-adds, and one more
activation.
"""

from torch import nn

IN_CHANNELS, OUT_CHANNELS = 64, 128


def plain_conv_block() -> nn.Module:
    """A 3x3 convolution, BatchNorm, ReLU: [N, 64, H, W] -> [N, 128, H, W]."""
    return nn.Sequential(
        nn.Conv2d(IN_CHANNELS, OUT_CHANNELS, 3, padding=1, bias=False),
        nn.BatchNorm2d(OUT_CHANNELS),
        nn.ReLU(inplace=True),
    )


def depthwise_separable_block() -> nn.Module:
    """A 3x3 convolution per channel and a 1x1 across them, BatchNorm and ReLU after each."""
    return nn.Sequential(
        nn.Conv2d(IN_CHANNELS, IN_CHANNELS, 3, padding=1, groups=IN_CHANNELS, bias=False),
        nn.BatchNorm2d(IN_CHANNELS),
        nn.ReLU(inplace=True),
        nn.Conv2d(IN_CHANNELS, OUT_CHANNELS, 1, bias=False),
        nn.BatchNorm2d(OUT_CHANNELS),
        nn.ReLU(inplace=True),
    )
