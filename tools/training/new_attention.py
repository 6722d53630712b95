"""Transformers as people write them, none of them of `tests/data/training`."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Divides by the root of the mean square, in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        input_dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(input_dtype)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """The halves of the last axis changed over, the second negated."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(hidden: torch.Tensor, times: int) -> torch.Tensor:
    """Each head of keys or values once for each query head that reads it."""
    batch, heads, length, width = hidden.shape
    hidden = hidden[:, :, None, :, :].expand(batch, heads, times, length, width)
    return hidden.reshape(batch, heads * times, length, width)


class GroupedAttention(nn.Module):
    """Rotary positions; eight query heads, two of keys and values."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = width // 8
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, 2 * self.head, bias=False)
        self.v_proj = nn.Linear(width, 2 * self.head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.head).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, -1, self.head).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.head).transpose(1, 2)
        q = (q * cos) + (rotate_half(q) * sin)
        k = (k * cos) + (rotate_half(k) * sin)
        k = repeat_kv(k, 4)
        v = repeat_kv(v, 4)
        weights = torch.matmul(q, k.transpose(2, 3)) * self.head**-0.5
        weights = weights + mask
        weights = functional.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        weights = functional.dropout(weights, p=0.0, training=self.training)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous()
        return self.o_proj(out.reshape(batch, length, -1))


class DecoderLayer(nn.Module):
    """Attention and a gated SiLU layer, each after an RMS norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.self_attn = GroupedAttention(width)
        self.gate_proj = nn.Linear(width, 3 * width, bias=False)
        self.up_proj = nn.Linear(width, 3 * width, bias=False)
        self.down_proj = nn.Linear(3 * width, width, bias=False)
        self.act_fn = nn.SiLU()
        self.input_layernorm = RMSNorm(width)
        self.post_attention_layernorm = RMSNorm(width)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        residual = x
        x = self.input_layernorm(x)
        x = self.self_attn(x, cos, sin, mask)
        x = residual + x
        residual = x
        x = self.post_attention_layernorm(x)
        x = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return residual + x


class LlamaLike(nn.Module):
    """A small decoder in the style of Llama."""

    inv_freq: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(4000, 256)
        self.layers = nn.ModuleList(DecoderLayer(256) for _ in range(3))
        self.norm = RMSNorm(256)
        self.lm_head = nn.Linear(256, 4000, bias=False)
        inv_freq = 1.0 / (10000.0 ** (torch.arange(0, 32, 2, dtype=torch.float32) / 32))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        positions = torch.arange(length, dtype=torch.float32)
        freqs = positions[:, None] * self.inv_freq[None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos()[None, None], emb.sin()[None, None]
        mask = torch.full((length, length), torch.finfo(x.dtype).min).triu(1)[None, None]
        for layer in self.layers:
            x = layer(x, cos, sin, mask)
        return self.lm_head(self.norm(x))


class FusedAttention(nn.Module):
    """One projection for queries, keys and values, and torch's own attention."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.size()
        q, k, v = self.c_attn(x).split(width, dim=2)
        shape = (batch, length, self.num_heads, width // self.num_heads)
        q = q.view(shape).transpose(1, 2)
        k = k.view(shape).transpose(1, 2)
        v = v.view(shape).transpose(1, 2)
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=0.0, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        return self.resid_dropout(self.c_proj(y))


class NanoGpt(nn.Module):
    """A small decoder in the style of nanoGPT, its tanh-GELU written by torch."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(3000, 192)
        self.wpe = nn.Embedding(128, 192)
        self.drop = nn.Dropout(0.1)
        self.attns = nn.ModuleList(FusedAttention(192, 6) for _ in range(3))
        self.ln_1 = nn.ModuleList(nn.LayerNorm(192) for _ in range(3))
        self.ln_2 = nn.ModuleList(nn.LayerNorm(192) for _ in range(3))
        self.mlps = nn.ModuleList(
            nn.Sequential(nn.Linear(192, 768), nn.GELU(approximate="tanh"), nn.Linear(768, 192))
            for _ in range(3)
        )
        self.ln_f = nn.LayerNorm(192)
        self.lm_head = nn.Linear(192, 3000, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(0, idx.shape[1], dtype=torch.long)
        x = self.drop(self.wte(idx) + self.wpe(positions))
        for attn, ln_1, ln_2, mlp in zip(self.attns, self.ln_1, self.ln_2, self.mlps, strict=True):
            x = x + attn(ln_1(x))
            x = x + mlp(ln_2(x))
        return self.lm_head(self.ln_f(x))


class EncoderClassifier(nn.Module):
    """torch's encoder layers over a text, their mean as its class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2000, 128)
        self.positions = nn.Parameter(torch.zeros(96, 128))
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.classifier = nn.Linear(128, 20)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * 128**0.5 + self.positions
        return self.classifier(self.encoder(x).mean(dim=1))
