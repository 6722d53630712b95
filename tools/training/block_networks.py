"""Networks of repeated blocks that hand on more than one tensor, or that stand in stages."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from new_attention import RMSNorm, repeat_kv, rotate_half
from new_windows import merge, partition
from settings import Network, Tensors
from torch import nn
from torch.nn import functional

VOCABULARY = 1000


def _heads(x: torch.Tensor, count: int) -> torch.Tensor:
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def _mlp(width: int, inner: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width))


class Attention(nn.Module):
    """Attention to a memory as products, with a bias that is an input."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, width, bias=False)
        self.v = nn.Linear(width, width, bias=False)
        self.o = nn.Linear(width, width, bias=False)

    def forward(
        self, x: torch.Tensor, memory: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        q, k, v = (
            _heads(layer(data), self.heads)
            for layer, data in ((self.q, x), (self.k, memory), (self.v, memory))
        )
        scores = torch.matmul(q, k.transpose(-1, -2))
        if bias is not None:
            scores = scores + bias
        weighted = torch.matmul(scores.softmax(-1), v)
        return self.o(weighted.transpose(1, 2).flatten(2))


class ConditionedBlock(nn.Module):
    """A diffusion transformer's block: both halves are scaled and shifted by a condition."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = _mlp(width, 4 * width)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shifts = self.modulation(condition).unsqueeze(1).chunk(6, -1)
        y = self.norm1(x) * (1 + shifts[1]) + shifts[0]
        q, k, v = (_heads(each, 4) for each in self.qkv(y).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + shifts[2] * self.proj(y)
        return x + shifts[5] * self.mlp(self.norm2(x) * (1 + shifts[4]) + shifts[3])


class DiffusionTransformer(nn.Module):
    """Patches of a latent, and a time step that conditions every block."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, width, 2, 2)
        self.positions = nn.Parameter(torch.zeros(1, 144, width))
        self.times = nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(ConditionedBlock(width) for _ in range(7))
        self.out = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        condition = self.times(time)
        for block in self.blocks:
            x = block(x, condition)
        return self.out(x)


class AttentionLayer(nn.Module):
    """The first layer of an encoder's block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.attention = Attention(width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.dropout(self.attention(y, y, bias))


class FeedForwardLayer(nn.Module):
    """The second one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = RMSNorm(width)
        self.wi = nn.Linear(width, 2 * width, bias=False)
        self.wo = nn.Linear(2 * width, width, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(self.wo(functional.relu(self.wi(self.norm(x)))))


class BiasedBlock(nn.Module):
    """Two layers in a list, as in T5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.ModuleList([AttentionLayer(width), FeedForwardLayer(width)])

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return self.layer[1](self.layer[0](x, bias))


class RelativeEncoder(nn.Module):
    """One bias of relative positions that every block reads."""

    distances: torch.Tensor

    def __init__(self, width: int = 112, length: int = 50) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.relative = nn.Embedding(32, 4)
        places = torch.arange(length)
        self.register_buffer("distances", (places - places[:, None]).clamp(-16, 15) + 16)
        self.block = nn.ModuleList(BiasedBlock(width) for _ in range(6))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = self.relative(self.distances).permute(2, 0, 1).unsqueeze(0)
        hidden = self.embed(x)
        for block in self.block:
            hidden = block(hidden, bias)
        return self.head(self.norm(hidden))


class DilatedLayer(nn.Module):
    """A gated convolution whose result goes on and into a sum beside it."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.gated = nn.Conv1d(width, 2 * width, 3, padding=dilation, dilation=dilation)
        self.residual = nn.Conv1d(width, width, 1)
        self.skip = nn.Conv1d(width, width, 1)

    def forward(self, x: torch.Tensor, skips: torch.Tensor) -> Tensors:
        tanh, gate = self.gated(x).chunk(2, 1)
        z = torch.tanh(tanh) * torch.sigmoid(gate)
        return x + self.residual(z), skips + self.skip(z)


class DilatedConvolutions(nn.Module):
    """WaveNet's layers: a residual stream and the sum of skips."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.start = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(DilatedLayer(width, 2 ** (n % 4)) for n in range(8))
        self.last = nn.Conv1d(width, 64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, skips = self.first(x), self.start(x)
        for layer in self.layers:
            hidden, skips = layer(hidden, skips)
        return self.last(functional.relu(skips + hidden))


class MixerBlock(nn.Module):
    """One mixes the tokens, one the channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.tokens = _mlp(tokens, 2 * tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channels = _mlp(width, 3 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer on 100 patches."""

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 8, 8)
        self.mixer = nn.Sequential(*(MixerBlock(100, width) for _ in range(6)))
        self.head = nn.Linear(width, 100)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixer(self.stem(x).flatten(2).transpose(1, 2)).mean(1))


class CrossBlock(nn.Module):
    """A decoder's block: to itself, to the memory, and the feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.to_self = Attention(width)
        self.to_memory = Attention(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, memory: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        y = x + queries
        x = self.norms[0](x + self.dropout(self.to_self(y, y)))
        x = self.norms[1](x + self.dropout(self.to_memory(x + queries, memory)))
        y = self.narrow(self.dropout(functional.relu(self.wide(x))))
        return self.norms[2](x + self.dropout(y))


class Detector(nn.Module):
    """Learned queries that read the memory of an image, as in DETR."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.backbone = nn.Conv2d(3, width, 8, 8)
        self.positions = nn.Parameter(torch.zeros(1, 144, width))
        self.queries = nn.Embedding(20, width)
        self.start = nn.Linear(width, width)
        self.decoder = nn.ModuleList(CrossBlock(width) for _ in range(5))
        self.head = nn.Linear(width, 31)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = self.backbone(x).flatten(2).transpose(1, 2) + self.positions
        queries = self.queries.weight.unsqueeze(0).expand(memory.shape[0], -1, -1)
        hidden = self.start(queries)
        for layer in self.decoder:
            hidden = layer(hidden, memory, queries)
        return self.head(hidden)


class RotaryBlock(nn.Module):
    """Grouped heads in fused attention, biases on three of four projections, as in Qwen2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width // 3)
        self.v = nn.Linear(width, width // 3)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)
        self.norm1 = RMSNorm(width)
        self.norm2 = RMSNorm(width)

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        y = self.norm1(x)
        q, k, v = _heads(self.q(y), 6), _heads(self.k(y), 2), _heads(self.v(y), 2)
        q = q * cos + rotate_half(q) * sin
        k = repeat_kv(k * cos + rotate_half(k) * sin, 3)
        v = repeat_kv(v, 3)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.o(y.transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class RotaryDecoder(nn.Module):
    """Tables of positions and a mask that every block reads."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor

    def __init__(self, width: int = 96, length: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(RotaryBlock(width) for _ in range(5))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(8) / 8)
        angles = torch.cat((angles, angles), -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((length, length), -1e9).triu(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for layer in self.layers:
            hidden = layer(hidden, self.cos, self.sin, self.mask)
        return self.head(self.norm(hidden))


class GatedBottleneck(nn.Module):
    """Grouped convolutions, then each channel scaled, and a projection where the size changes."""

    def __init__(self, num_in: int, num_out: int, stride: int) -> None:
        super().__init__()
        middle = num_out // 2
        self.body = nn.Sequential(
            *(nn.Conv2d(num_in, middle, 1, bias=False), nn.BatchNorm2d(middle), nn.ReLU()),
            nn.Conv2d(middle, middle, 3, stride, 1, groups=4, bias=False),
            *(nn.BatchNorm2d(middle), nn.ReLU()),
            *(nn.Conv2d(middle, num_out, 1, bias=False), nn.BatchNorm2d(num_out)),
        )
        self.squeeze = nn.Conv2d(num_out, num_out // 8, 1)
        self.excite = nn.Conv2d(num_out // 8, num_out, 1)
        self.shortcut = nn.Sequential(
            nn.Conv2d(num_in, num_out, 1, stride, bias=False), nn.BatchNorm2d(num_out)
        )
        self.is_same = num_in == num_out and stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.body(x)
        gate = self.excite(functional.relu(self.squeeze(y.mean((2, 3), keepdim=True))))
        return functional.relu(y * torch.sigmoid(gate) + (x if self.is_same else self.shortcut(x)))


class GatedResNeXt(nn.Module):
    """Stages of blocks, of which the first in each has a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 3, 2, 1)
        self.layer1 = self._stage(32, 64, 1, 2)
        self.layer2 = self._stage(64, 96, 2, 3)
        self.layer3 = self._stage(96, 128, 2, 2)
        self.fc = nn.Linear(128, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer3(self.layer2(self.layer1(self.stem(x))))
        return self.fc(x.mean((2, 3)))

    @staticmethod
    def _stage(num_in: int, num_out: int, stride: int, count: int) -> nn.Sequential:
        rest = (GatedBottleneck(num_out, num_out, 1) for _ in range(count - 1))
        return nn.Sequential(GatedBottleneck(num_in, num_out, stride), *rest)


class MixtureBlock(nn.Module):
    """Attention, then experts side by side, weighted by a router."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.router = nn.Linear(width, 5)
        self.experts = nn.ModuleList(_mlp(width, 2 * width) for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)
        x = x + self.attention(y, y)
        y = self.norm2(x)
        shares = self.router(y).softmax(-1)
        for index, expert in enumerate(self.experts):
            x = x + shares[..., index : index + 1] * expert(y)
        return x


class MixtureOfExperts(nn.Module):
    """A language model whose experts all run."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.transformer = nn.ModuleList(MixtureBlock(width) for _ in range(4))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x)
        for block in self.transformer:
            hidden = block(hidden)
        return self.head(hidden)


class ShiftedBlock(nn.Module):
    """Attention in windows, in every second block shifted by half of one."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.shift = shift
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = _mlp(width, 4 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        height, width = x.shape[1:3]
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, (-self.shift, -self.shift), (1, 2))
        windows = partition(y, 4).flatten(1, 2)
        y = merge(self.attention(windows, windows), 4, height, width)
        if self.shift:
            y = torch.roll(y, (self.shift, self.shift), (1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class WindowStage(nn.Module):
    """A module of its own around a list of blocks, with a projection before them."""

    def __init__(self, num_in: int, num_out: int, count: int) -> None:
        super().__init__()
        self.down = nn.Linear(4 * num_in, num_out) if num_in != num_out else None
        self.blocks = nn.ModuleList(ShiftedBlock(num_out, 2 * (n % 2)) for n in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.down is not None:
            corners = (x[:, row::2, column::2] for column in (0, 1) for row in (0, 1))
            x = self.down(torch.cat(tuple(corners), -1))
        for block in self.blocks:
            x = block(x)
        return x


class StagedWindows(nn.Module):
    """Three stages of blocks, as in Swin."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.layers = nn.Sequential(
            WindowStage(32, 32, 2), WindowStage(32, 64, 2), WindowStage(64, 128, 4)
        )
        self.head = nn.Linear(128, 60)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.patches(x).permute(0, 2, 3, 1))
        return self.head(x.mean((1, 2)))


def _tokens(batch: int, length: int) -> Tensors:
    return (torch.randint(0, VOCABULARY, (batch, length)),)


def _images(batch: int, size: int) -> Tensors:
    return (torch.randn(batch, 3, size, size),)


NETWORKS = (
    Network(
        "diffusion_transformer",
        DiffusionTransformer,
        lambda batch: (torch.randn(batch, 4, 24, 24), torch.randn(batch, 32)),
        (5, 9),
        "mse",
    ),
    Network("relative_encoder", RelativeEncoder, lambda batch: _tokens(batch, 50), (5, 9)),
    Network(
        "dilated", DilatedConvolutions, lambda batch: (torch.randn(batch, 1, 500),), (5, 9), "mse"
    ),
    Network("mixer", Mixer, lambda batch: _images(batch, 80), (6, 9)),
    Network("detector", Detector, lambda batch: _images(batch, 96), (5, 9), "mse"),
    Network("rotary_decoder", RotaryDecoder, lambda batch: _tokens(batch, 48), (3, 7)),
    Network("gated_resnext", GatedResNeXt, lambda batch: _images(batch, 64), (5, 9)),
    Network("mixture", MixtureOfExperts, lambda batch: _tokens(batch, 40), (5, 9)),
    Network("staged_windows", StagedWindows, lambda batch: _images(batch, 128), (3, 5)),
)
