"""Networks with and without BatchNormalization, narrow, for what exporters fold away.

`HELD_OUT` are those that no rule was derived from.
"""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # small networks, each of one idea

from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch
import torchvision.models as vision
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


@dataclass(frozen=True, slots=True)
class Case:
    """A network, the shape of a sample, and whether it has BatchNormalization."""

    name: str
    build: Callable[[], nn.Module]
    sample: tuple[int, ...]
    has_batchnorm: bool


def _block(num_in: int, num_out: int) -> list[nn.Module]:
    return [nn.Conv2d(num_in, num_out, 3, padding=1), nn.BatchNorm2d(num_out), nn.ReLU()]


class UNet(nn.Module):
    """Convolutions with a bias, and a transposed one that is normalized too."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(*_block(3, 11), *_block(11, 13))
        self.middle = nn.Sequential(nn.MaxPool2d(2), *_block(13, 17))
        self.up = nn.Sequential(nn.ConvTranspose2d(17, 19, 2, 2), nn.BatchNorm2d(19), nn.ReLU())
        self.head = nn.Sequential(*_block(32, 7), nn.Conv2d(7, 5, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.down(x)
        return self.head(torch.cat((kept, self.up(self.middle(kept))), 1))


def _mlp() -> nn.Module:
    layers: list[nn.Module] = []
    for num_in, num_out in ((31, 127), (127, 101), (101, 61)):
        layers += [nn.Linear(num_in, num_out), nn.BatchNorm1d(num_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(61, 10))


class WaveNet(nn.Module):
    """Dilated convolutions with weight normalization, gated."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(1, 13, 1)
        self.layers = nn.ModuleList(
            weight_norm(nn.Conv1d(13, 26, 3, dilation=2**k, padding=2**k)) for k in range(4)
        )
        self.skips = nn.ModuleList(nn.Conv1d(13, 13, 1) for _ in range(4))
        self.end = nn.Conv1d(13, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.start(x)
        for layer, skip in zip(self.layers, self.skips, strict=True):
            gate, value = layer(x).chunk(2, 1)
            x = x + skip(torch.sigmoid(gate) * torch.tanh(value))
        return self.end(functional.relu(x))


class UNet3d(nn.Module):
    """A volume by convolutions with a bias, group and instance norms between."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU())
        self.middle = nn.Sequential(
            nn.Conv3d(8, 12, 3, 2, 1), nn.InstanceNorm3d(12, affine=True), nn.ReLU()
        )
        self.up = nn.ConvTranspose3d(12, 8, 2, 2)
        self.head = nn.Conv3d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = self.down(x)
        return self.head(torch.cat((kept, self.up(self.middle(kept))), 1))


class Classifier(nn.Module):
    """An LSTM and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(11, 23, 2, batch_first=True)
        self.head = nn.Linear(23, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.lstm(x)
        return self.head(out[:, -1])


class Encoder(nn.Module):
    """Two layers of a transformer, with LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 61, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(x))


def _nerf() -> nn.Module:
    layers: list[nn.Module] = []
    for num_in, num_out in ((63, 127), (127, 127), (127, 67)):
        layers += [nn.Linear(num_in, num_out), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(67, 4))


def _upscaler() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 23, 5, padding=2),
        nn.Tanh(),
        nn.Conv2d(23, 11, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(11, 9, 3, padding=1),
        nn.PixelShuffle(3),
    )


def _timm(name: str, **given: object) -> Callable[[], nn.Module]:
    return lambda: timm.create_model(name, num_classes=10, **given)


def _vision(name: str, **given: object) -> Callable[[], nn.Module]:
    return lambda: getattr(vision, name)(num_classes=10, **given)


_IMAGE = (3, 64, 64)

CASES = (
    Case("resnet18", _vision("resnet18"), _IMAGE, has_batchnorm=True),
    Case("mobilenet_v2", _vision("mobilenet_v2", width_mult=0.25), _IMAGE, has_batchnorm=True),
    Case(
        "densenet",
        _timm("densenet121", growth_rate=8, block_config=(2, 3)),
        _IMAGE,
        has_batchnorm=True,
    ),
    Case("regnet_y", _timm("regnety_002"), _IMAGE, has_batchnorm=True),
    Case("shufflenet", _vision("shufflenet_v2_x0_5"), _IMAGE, has_batchnorm=True),
    Case("unet", UNet, (3, 32, 32), has_batchnorm=True),
    Case("mlp_batchnorm", _mlp, (31,), has_batchnorm=True),
    Case("vgg", _timm("vgg11", features_only=True), _IMAGE, has_batchnorm=False),
    Case("vit", _timm("vit_tiny_patch16_224", img_size=64, depth=2), _IMAGE, has_batchnorm=False),
    Case("wavenet", WaveNet, (1, 101), has_batchnorm=False),
    Case("unet_3d", UNet3d, (1, 8, 8, 8), has_batchnorm=False),
    Case("nerf", _nerf, (63,), has_batchnorm=False),
    Case("lstm", Classifier, (13, 11), has_batchnorm=False),
)

HELD_OUT = (
    Case("efficientnet", _timm("efficientnet_lite0"), _IMAGE, has_batchnorm=True),
    Case("mnasnet", _vision("mnasnet0_5"), _IMAGE, has_batchnorm=True),
    Case("googlenet", _vision("googlenet", aux_logits=False), _IMAGE, has_batchnorm=True),
    Case("dla", _timm("dla46_c"), _IMAGE, has_batchnorm=True),
    Case("hrnet", _timm("hrnet_w18_small"), _IMAGE, has_batchnorm=True),
    Case("vgg_batchnorm", _timm("vgg11_bn", features_only=True), _IMAGE, has_batchnorm=True),
    Case("convnext", _timm("convnext_atto"), _IMAGE, has_batchnorm=False),
    Case("encoder", Encoder, (17, 32), has_batchnorm=False),
    Case("upscaler", _upscaler, (1, 32, 32), has_batchnorm=False),
    Case("squeezenet", _vision("squeezenet1_1"), _IMAGE, has_batchnorm=False),
    Case("norm_free", _timm("nf_regnet_b0"), _IMAGE, has_batchnorm=False),
)
