"""A transformer whose attention stays inside windows, shifted in every second block."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from torch import nn
from torch.nn import functional


def partition(x: torch.Tensor, window: int) -> torch.Tensor:
    """A map cut into square windows, all windows along the first axis."""
    batch, height, width, channels = x.shape
    x = x.view(batch, height // window, window, width // window, window, channels)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window, window, channels)


def merge(windows: torch.Tensor, window: int, height: int, width: int) -> torch.Tensor:
    """The map that `partition` cut."""
    num_windows = (height // window) * (width // window)
    batch = windows.shape[0] // num_windows
    x = windows.view(batch, height // window, width // window, window, window, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(batch, height, width, -1)


class WindowAttention(nn.Module):
    """Attention inside windows, with a learned bias of each relative position."""

    index: torch.Tensor

    def __init__(self, width: int, window: int, num_heads: int) -> None:
        super().__init__()
        self.window, self.num_heads = window, num_heads
        self.scale = (width // num_heads) ** -0.5
        self.bias_table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, num_heads))
        grid = torch.stack(
            torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        ).flatten(1)
        relative = grid[:, :, None] - grid[:, None, :] + window - 1
        self.register_buffer("index", relative[0] * (2 * window - 1) + relative[1])
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.attn_drop = nn.Dropout(0.0)
        self.proj_drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        rows, length, width = x.shape
        qkv = self.qkv(x).reshape(rows, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * self.scale) @ k.transpose(-2, -1)
        bias = self.bias_table[self.index.view(-1)].view(length, length, -1)
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)
        if mask is not None:
            windows = mask.shape[0]
            attn = attn.view(rows // windows, windows, self.num_heads, length, length)
            attn = attn + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, length, length)
        attn = self.attn_drop(functional.softmax(attn, dim=-1))
        x = (attn @ v).transpose(1, 2).reshape(rows, length, width)
        return self.proj_drop(self.proj(x))


class WindowBlock(nn.Module):
    """Window attention, its windows shifted in every second block, and a GELU layer."""

    mask: torch.Tensor | None

    def __init__(self, width: int, size: int, shift: int) -> None:
        super().__init__()
        self.size, self.shift, self.window = size, shift, 7
        self.norm1 = nn.LayerNorm(width)
        self.attn = WindowAttention(width, self.window, width // 32)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )
        self.register_buffer("mask", self._mask() if shift else None)

    def _mask(self) -> torch.Tensor:
        regions = torch.zeros(1, self.size, self.size, 1)
        borders = (0, self.size - self.window, self.size - self.shift, self.size)
        for row in range(3):
            for column in range(3):
                rows = slice(borders[row], borders[row + 1])
                regions[:, rows, slice(borders[column], borders[column + 1])] = 3 * row + column
        windows = partition(regions, self.window).view(-1, self.window**2)
        apart = windows.unsqueeze(1) - windows.unsqueeze(2)
        return apart.masked_fill(apart != 0, -100.0).masked_fill(apart == 0, 0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shortcut = x
        x = self.norm1(x).view(batch, self.size, self.size, width)
        if self.shift:
            x = torch.roll(x, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = partition(x, self.window).view(-1, self.window**2, width)
        windows = self.attn(windows, self.mask).view(-1, self.window, self.window, width)
        x = merge(windows, self.window, self.size, self.size)
        if self.shift:
            x = torch.roll(x, shifts=(self.shift, self.shift), dims=(1, 2))
        x = shortcut + x.view(batch, length, width)
        return x + self.mlp(self.norm2(x))


class PatchMerging(nn.Module):
    """Four neighbors side by side, projected to twice the width."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, _, width = x.shape
        x = x.view(batch, self.size, self.size, width)
        corners = [x[:, row::2, column::2, :] for column in (0, 1) for row in (0, 1)]
        x = torch.cat(corners, -1).view(batch, -1, 4 * width)
        return self.reduction(self.norm(x))


class SwinLike(nn.Module):
    """Two stages of windowed attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 64, 4, 4)
        self.norm0 = nn.LayerNorm(64)
        self.layers = nn.Sequential(
            *(WindowBlock(64, 28, 0), WindowBlock(64, 28, 3), PatchMerging(64, 28)),
            *(WindowBlock(128, 14, 0), WindowBlock(128, 14, 3)),
        )
        self.norm = nn.LayerNorm(128)
        self.avgpool = nn.AdaptiveAvgPool1d(1)
        self.head = nn.Linear(128, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm0(self.patch_embed(x).flatten(2).transpose(1, 2))
        x = self.norm(self.layers(x))
        x = torch.flatten(self.avgpool(x.transpose(1, 2)), 1)
        return self.head(x)
