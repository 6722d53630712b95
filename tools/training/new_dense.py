"""Networks whose output is an image or a map: diffusion U-Net, segmentation, super-resolution."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import math

import torch
from torch import nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """GroupNorm, SiLU and a convolution, twice, with the embedding of the time step between."""

    def __init__(self, num_in: int, num_out: int, embedding: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(8, num_in)
        self.conv1 = nn.Conv2d(num_in, num_out, 3, padding=1)
        self.time = nn.Linear(embedding, num_out)
        self.norm2 = nn.GroupNorm(8, num_out)
        self.conv2 = nn.Conv2d(num_out, num_out, 3, padding=1)
        self.act = nn.SiLU()
        self.skip = nn.Conv2d(num_in, num_out, 1) if num_in != num_out else nn.Identity()

    def forward(self, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
        h = self.conv1(self.act(self.norm1(x)))
        h = h + self.time(self.act(embedding))[:, :, None, None]
        h = self.conv2(self.act(self.norm2(h)))
        return h + self.skip(x)


class SpatialAttention(nn.Module):
    """One head over the positions of a map."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=1)
        q = q.reshape(batch, channels, height * width).permute(0, 2, 1)
        k = k.reshape(batch, channels, height * width)
        weights = torch.bmm(q, k) * (channels**-0.5)
        weights = functional.softmax(weights, dim=2)
        v = v.reshape(batch, channels, height * width)
        h = torch.bmm(v, weights.permute(0, 2, 1))
        return x + self.out(h.reshape(batch, channels, height, width))


class DiffusionUNet(nn.Module):
    """Noise of an image at a time step, by a U-Net of two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(64, 128), nn.SiLU(), nn.Linear(128, 128))
        self.conv_in = nn.Conv2d(3, 64, 3, padding=1)
        self.down1 = ResidualBlock(64, 64, 128)
        self.downsample = nn.Conv2d(64, 64, 3, stride=2, padding=1)
        self.down2 = ResidualBlock(64, 128, 128)
        self.middle = ResidualBlock(128, 128, 128)
        self.attention = SpatialAttention(128)
        self.up2 = ResidualBlock(256, 128, 128)
        self.upsample = nn.Upsample(scale_factor=2, mode="nearest")
        self.up_conv = nn.Conv2d(128, 128, 3, padding=1)
        self.up1 = ResidualBlock(192, 64, 128)
        self.norm_out = nn.GroupNorm(8, 64)
        self.conv_out = nn.Conv2d(64, 3, 3, padding=1)

    @staticmethod
    def embed(steps: torch.Tensor) -> torch.Tensor:
        """Sines and cosines of the time step."""
        rates = torch.exp(-math.log(10000.0) * torch.arange(32, dtype=torch.float32) / 32)
        angles = steps[:, None] * rates[None, :]
        return torch.cat([angles.sin(), angles.cos()], dim=-1)

    def forward(self, x: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
        embedding = self.mlp(self.embed(steps))
        h1 = self.down1(self.conv_in(x), embedding)
        h2 = self.down2(self.downsample(h1), embedding)
        h = self.attention(self.middle(h2, embedding))
        h = self.up2(torch.cat([h, h2], dim=1), embedding)
        h = self.up_conv(self.upsample(h))
        h = self.up1(torch.cat([h, h1], dim=1), embedding)
        return self.conv_out(functional.silu(self.norm_out(h)))


class Segmenter(nn.Module):
    """Dilated convolutions at several rates, pooled context, and a bilinear resize to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1, bias=False),
            nn.BatchNorm2d(32),
            nn.ELU(inplace=True),
            nn.Conv2d(32, 64, 3, 2, 1, bias=False),
            nn.BatchNorm2d(64),
            nn.ELU(inplace=True),
        )
        self.rates = nn.ModuleList(
            nn.Conv2d(64, 32, 3, padding=rate, dilation=rate) for rate in (1, 6, 12)
        )
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(64, 32, 1), nn.ReLU())
        self.project = nn.Sequential(
            nn.Conv2d(128, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.Dropout(0.5)
        )
        self.classifier = nn.Conv2d(64, 21, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = x.shape[-2:]
        features = self.stem(x)
        branches = [functional.relu(conv(features)) for conv in self.rates]
        pooled = functional.interpolate(
            self.pooled(features), size=features.shape[-2:], mode="bilinear", align_corners=False
        )
        out = self.classifier(self.project(torch.cat([*branches, pooled], dim=1)))
        return functional.interpolate(out, size=size, mode="bilinear", align_corners=False)


class SuperResolution(nn.Module):
    """An image at three times the size, by residual PReLU blocks and a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.ReflectionPad2d(1), nn.Conv2d(3, 48, 3), nn.PReLU())
        self.body = nn.ModuleList(
            nn.Sequential(nn.Conv2d(48, 48, 3, padding=1), nn.PReLU(48), nn.Conv2d(48, 48, 1))
            for _ in range(4)
        )
        self.tail = nn.Sequential(nn.Conv2d(48, 27, 3, padding=1), nn.PixelShuffle(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.head(x)
        first = h
        for block in self.body:
            h = h + 0.1 * block(h)
        return torch.sigmoid(self.tail(h + first))
