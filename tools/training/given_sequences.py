"""Transformers of `tests/data/training`, written to give the same graphs and the same steps."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Self-attention of separate projections, written out; `length` given makes it causal."""

    mask: torch.Tensor | None

    def __init__(self, width: int, num_heads: int, dropout: float, length: int | None) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.head_width = width // num_heads  # computed here, it is a constant of the graph
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.o = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        mask = None
        if length is not None:
            mask = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.num_heads, self.head_width)
        q = self.q(x).view(heads).transpose(1, 2)
        k = self.k(x).view(heads).transpose(1, 2)
        v = self.v(x).view(heads).transpose(1, 2)
        a = q @ k.transpose(-2, -1) / math.sqrt(self.head_width)
        if self.mask is not None:
            a = a.masked_fill(self.mask, -1e9)
        a = self.drop(a.softmax(-1))
        out: torch.Tensor = self.o((a @ v).transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Normalized first, then attention and a GELU layer of four times the width."""

    def __init__(self, width: int, num_heads: int, dropout: float, length: int | None) -> None:
        super().__init__()
        self.at = Attention(width, num_heads, dropout, length)
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)
        self.act = nn.GELU()
        self.d1 = nn.Dropout(dropout)
        self.d2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.d1(self.at(self.n1(x)))
        return x + self.d2(self.f2(self.act(self.f1(self.n2(x)))))


class LanguageModel(nn.Module):
    """Tokens in, logits of every position out, flattened."""

    def __init__(
        self, vocabulary: int, length: int, width: int, num_heads: int, depth: int
    ) -> None:
        super().__init__()
        self.we = nn.Embedding(vocabulary, width)
        self.pe = nn.Parameter(torch.zeros(1, length, width))
        self.dr = nn.Dropout(0.1)
        self.bl = nn.Sequential(*(Block(width, num_heads, 0.1, length) for _ in range(depth)))
        self.ln = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dr(self.we(x) + self.pe)
        h = self.bl(h)
        logits: torch.Tensor = self.head(self.ln(h)).flatten(0, 1)
        return logits


class PostNormBlock(nn.Module):
    """As `Block`, but each sum is normalized instead of what is added to it."""

    def __init__(self, width: int, num_heads: int, dropout: float) -> None:
        super().__init__()
        self.at = Attention(width, num_heads, dropout, None)
        self.n1 = nn.LayerNorm(width)
        self.n2 = nn.LayerNorm(width)
        self.f1 = nn.Linear(width, 4 * width)
        self.f2 = nn.Linear(4 * width, width)
        self.act = nn.GELU()
        self.d1 = nn.Dropout(dropout)
        self.d2 = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.n1(x + self.d1(self.at(x)))
        return self.n2(x + self.d2(self.f2(self.act(self.f1(x)))))


class BertBase(nn.Module):
    """Tokens in, two classes out, read off the first position; no pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.we = nn.Embedding(30522, 768)
        self.pe = nn.Parameter(torch.zeros(1, 128, 768))
        self.ln = nn.LayerNorm(768)
        self.dr = nn.Dropout(0.1)
        self.bl = nn.Sequential(*(PostNormBlock(768, 12, 0.1) for _ in range(12)))
        self.cls = nn.Linear(768, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.dr(self.ln(self.we(x) + self.pe))
        logits: torch.Tensor = self.cls(self.bl(h)[:, 0])
        return logits


class VisionTransformer(nn.Module):
    """ViT-Tiny of 16x16 patches, its dropout at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.pt = nn.Conv2d(3, 192, 16, 16)
        self.cls = nn.Parameter(torch.zeros(1, 1, 192))
        self.pe = nn.Parameter(torch.zeros(1, 197, 192))
        self.bl = nn.Sequential(*(Block(192, 3, 0.0, None) for _ in range(12)))
        self.ln = nn.LayerNorm(192)
        self.hd = nn.Linear(192, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.pt(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.cls.expand(h.shape[0], -1, -1), h], 1) + self.pe
        logits: torch.Tensor = self.hd(self.ln(self.bl(h))[:, 0])
        return logits
