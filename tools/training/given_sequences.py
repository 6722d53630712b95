"""Transformers of `tests/data/training`, written to give the same graphs and the same steps."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from gpu_truth import Block
from torch import nn


class PostNormBlock(Block):
    """As `Block`, but each sum is normalized instead of what is added to it."""

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
        self.bl = nn.Sequential(*(PostNormBlock(768, 12, 0.1, None) for _ in range(12)))
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
