"""More networks of other kinds, for every precision; rules were worked out on them later."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from itertools import pairwise

import torch
from settings import Network, Tensors
from torch import nn
from torch.nn import functional


class LatentBlock(nn.Module):
    """Latents that attend to the inputs and then to each other."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_x, self.norm_z, self.norm_m = (nn.LayerNorm(width) for _ in range(3))
        self.cross = nn.MultiheadAttention(width, 4, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, z: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        memory = self.norm_x(x)
        z = z + self.cross(self.norm_z(z), memory, memory, need_weights=False)[0]
        return z + self.mlp(self.norm_m(z))


class Perceiver(nn.Module):
    """A few learned latents that read a long input again and again."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.inputs = nn.Linear(20, width)
        self.latents = nn.Parameter(torch.randn(11, width) * 0.02)
        self.layers = nn.ModuleList(LatentBlock(width) for _ in range(4))
        self.head = nn.Linear(width, 30)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        x = self.inputs(data)
        z = self.latents.expand(data.shape[0], -1, -1)
        for layer in self.layers:
            z = layer(z, x)
        return self.head(z.mean(1))


class GatingBlock(nn.Module):
    """A gate across positions (gMLP)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.norm, self.gate_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.spatial = nn.Conv1d(length, length, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u, v = functional.gelu(self.up(self.norm(x))).chunk(2, -1)
        return x + self.down(u * self.spatial(self.gate_norm(v)))


class SpatialGates(nn.Module):
    """gMLP on tokens."""

    def __init__(self, width: int = 56, length: int = 36) -> None:
        super().__init__()
        self.embed = nn.Embedding(700, width)
        self.layers = nn.ModuleList(GatingBlock(width, length) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 700)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class ResidualUnit(nn.Module):
    """Two convolutions behind group norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class SoftCodebook(nn.Module):
    """An autoencoder whose code is a weighed sum of learned vectors."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, width, 4, 2, 1), ResidualUnit(width), nn.Conv2d(width, width, 4, 2, 1)
        )
        self.units = nn.ModuleList(ResidualUnit(width) for _ in range(3))
        self.book = nn.Parameter(torch.randn(60, width))
        self.decode = nn.Sequential(
            *(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU()),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.encode(image)
        for unit in self.units:
            x = unit(x)
        x = x.permute(0, 2, 3, 1)
        far = x.pow(2).sum(-1, keepdim=True) - 2 * x @ self.book.t() + self.book.pow(2).sum(-1)
        x = (-far).softmax(-1) @ self.book
        return self.decode(x.permute(0, 3, 1, 2)).tanh()


class ExchangeBlock(nn.Module):
    """Two resolutions, each with the other added."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fine = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))
        self.coarse = nn.Sequential(
            nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        )
        self.up = nn.Conv2d(2 * width, width, 1)
        self.down = nn.Conv2d(width, 2 * width, 3, 2, 1)

    def forward(self, fine: torch.Tensor, coarse: torch.Tensor) -> Tensors:
        fine = functional.relu(self.fine(fine))
        coarse = functional.relu(self.coarse(coarse))
        raised = functional.interpolate(self.up(coarse), scale_factor=2.0, mode="nearest")
        return fine + raised, functional.relu(coarse + self.down(fine))


class Exchange(nn.Module):
    """High resolution throughout (HRNet)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1)
        self.second = nn.Conv2d(width, 2 * width, 3, 2, 1)
        self.layers = nn.ModuleList(ExchangeBlock(width) for _ in range(3))
        self.head = nn.Conv2d(width, 7, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = functional.relu(self.stem(image))
        coarse = functional.relu(self.second(fine))
        for layer in self.layers:
            fine, coarse = layer(fine, coarse)
        return self.head(fine)


class Pyramid(nn.Module):
    """A feature pyramid and one head for all of its levels (RetinaNet)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        sizes = (3, 24, 40, 64)
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU())
            for a, b in pairwise(sizes)
        )
        self.lateral = nn.ModuleList(nn.Conv2d(each, width, 1) for each in sizes[1:])
        self.tower = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU()),
        )
        self.scores = nn.Conv2d(width, 9, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels = []
        for stage in self.stages:
            image = stage(image)
            levels.append(image)
        top: torch.Tensor | None = None
        found = []
        for level, lateral in zip(levels[::-1], list(self.lateral)[::-1], strict=True):
            x = lateral(level)
            top = x if top is None else x + functional.interpolate(top, scale_factor=2.0)
            found.append(self.scores(self.tower(top)).flatten(2))
        return torch.cat(found, 2)


class RefiningCell(nn.Module):
    """A gated recurrent unit of convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.new = nn.Conv2d(2 * width, width, 3, padding=1)

    def forward(self, state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        update, reset = self.gates(torch.cat([state, x], 1)).sigmoid().chunk(2, 1)
        new = torch.tanh(self.new(torch.cat([reset * state, x], 1)))
        return (1 - update) * state + update * new


class Refining(nn.Module):
    """A state that one cell refines again and again (RAFT)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.context = nn.Sequential(nn.Conv2d(3, 2 * width, 5, 2, 2), nn.InstanceNorm2d(2 * width))
        self.cell = RefiningCell(width)
        self.flow = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        state, x = self.context(image).chunk(2, 1)
        state, x = state.tanh(), x.relu()
        for _ in range(4):
            state = self.cell(state, x)
        return self.flow(state)


class KernelBlock(nn.Module):
    """Attention by a positive feature map, whose cost is linear."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.ReLU(), nn.Linear(3 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        memory = torch.einsum("bnhd,bnhe->bhde", k, v)
        total = torch.einsum("bnhd,bhd->bnh", q, k.sum(1)) + 1e-6
        y = torch.einsum("bnhd,bhde->bnhe", q, memory) / total.unsqueeze(-1)
        x = x + self.out(y.flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class LinearAttention(nn.Module):
    """A transformer on patches, its attention linear."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.layers = nn.ModuleList(KernelBlock(width) for _ in range(4))
        self.head = nn.Linear(width, 25)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class CrossLayer(nn.Module):
    """The input times a function of what came of it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, first: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return first * self.inner(x) + x


class CrossNetwork(nn.Module):
    """Fields of categories and numbers, crossed (DCN), and their pairs (FM)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(40 * n, width) for n in range(1, 7))
        self.numbers = nn.Sequential(nn.BatchNorm1d(9), nn.Linear(9, width), nn.ReLU())
        self.cross = nn.ModuleList(CrossLayer(7 * width) for _ in range(3))
        self.deep = nn.Sequential(
            *(nn.Linear(7 * width, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 32), nn.ReLU())
        )
        self.head = nn.Linear(7 * width + 32 + 1, 2)

    def forward(self, categories: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
        fields = [table(categories[:, n]) for n, table in enumerate(self.tables)]
        stacked = torch.stack([*fields, self.numbers(numbers)], 1)
        pairs = (stacked.sum(1).square() - stacked.square().sum(1)).sum(-1, keepdim=True)
        first = x = stacked.flatten(1)
        for layer in self.cross:
            x = layer(first, x)
        return self.head(torch.cat([x, self.deep(first), pairs], -1))


class TowerBlock(nn.Module):
    """A pre-norm block with the framework's attention."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2])
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.up(self.norm2(x))
        return x + self.down(y * torch.sigmoid(1.702 * y))


class TwoTowers(nn.Module):
    """Images against texts, their similarity scaled by a learned temperature (CLIP)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.patches, self.words = nn.Conv2d(3, width, 8, 8), nn.Embedding(300, width)
        self.places = nn.Parameter(torch.randn(20, width) * 0.01)
        self.images = nn.ModuleList(TowerBlock(width) for _ in range(3))
        self.texts = nn.ModuleList(TowerBlock(width) for _ in range(2))
        self.of_image = nn.Linear(width, 32, bias=False)
        self.of_text = nn.Linear(width, 32, bias=False)
        self.scale = nn.Parameter(torch.tensor([2.6]))

    def forward(self, image: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for block in self.images:
            x = block(x)
        y = self.words(text) + self.places
        for block in self.texts:
            y = block(y)
        x = functional.normalize(self.of_image(x.mean(1)), dim=-1)
        y = functional.normalize(self.of_text(y[:, -1]), dim=-1)
        return self.scale.exp() * x @ y.t()


class CausalBlock(nn.Module):
    """Two dilated convolutions that see the past alone."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        norm = nn.utils.weight_norm
        self.first = norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.second = norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(functional.relu(self.first(functional.pad(x, (self.past, 0)))))
        y = self.drop(functional.relu(self.second(functional.pad(y, (self.past, 0)))))
        return functional.relu(x + y)


class CausalNetwork(nn.Module):
    """A temporal convolution network with weight normalization."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.first = nn.Conv1d(6, width, 1)
        self.layers = nn.ModuleList(CausalBlock(width, 2**n) for n in range(4))
        self.head = nn.Conv1d(width, 12, 1)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        x = self.first(data)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class InvertedBlock(nn.Module):
    """An inverted bottleneck with a gate of channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = 3 * width
        self.expand = nn.Sequential(
            nn.Conv2d(width, inner, 1), nn.BatchNorm2d(inner), nn.Hardswish()
        )
        self.depth = nn.Sequential(
            nn.Conv2d(inner, inner, 5, padding=2, groups=inner), nn.BatchNorm2d(inner)
        )
        self.gate = nn.Sequential(
            *(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inner, 12, 1), nn.ReLU()),
            *(nn.Conv2d(12, inner, 1), nn.Hardsigmoid()),
        )
        self.project = nn.Sequential(nn.Conv2d(inner, width, 1), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.hardswish(self.depth(self.expand(x)))
        return x + self.project(y * self.gate(y))


class Hybrid(nn.Module):
    """Inverted bottlenecks, and attention behind them (CoAtNet)."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(InvertedBlock(width) for _ in range(3))
        self.widen = nn.Conv2d(width, 2 * width, 2, 2)
        self.attend = nn.ModuleList(TowerBlock(2 * width) for _ in range(2))
        self.head = nn.Linear(2 * width, 20)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        x = self.widen(x).flatten(2).transpose(1, 2)
        for block in self.attend:
            x = block(x)
        return self.head(x.mean(1))


class CappedBlock(nn.Module):
    """RMS norms around both halves, norms of queries and keys, and a gated unit."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(4))
        self.of_q, self.of_k = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](x)
        q, k, v = (
            each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        y = functional.scaled_dot_product_attention(self.of_q(q), self.of_k(k), v, is_causal=True)
        x = x + self.norms[1](self.o(y.transpose(1, 2).flatten(2)))
        gate, value = self.up(self.norms[2](x)).chunk(2, -1)
        y = self.down(functional.gelu(gate, approximate="tanh") * value)
        return x + self.norms[3](y)


class CappedDecoder(nn.Module):
    """A decoder whose logits are capped by a tanh (Gemma)."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(600, width)
        self.layers = nn.ModuleList(CappedBlock(width) for _ in range(4))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 600, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * 48**0.5
        for layer in self.layers:
            x = layer(x)
        return torch.tanh(self.head(self.norm(x)) / 30) * 30


class ShiftBlock(nn.Module):
    """Each position mixed with the one before, by learned shares (RWKV)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.share_k = nn.Parameter(torch.rand(1, 1, width))
        self.share_r = nn.Parameter(torch.rand(1, 1, width))
        self.key = nn.Linear(width, 3 * width, bias=False)
        self.value = nn.Linear(3 * width, width, bias=False)
        self.receptance = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        past = functional.pad(y, (0, 0, 1, -1))
        k = y * self.share_k + past * (1 - self.share_k)
        r = y * self.share_r + past * (1 - self.share_r)
        k = torch.square(torch.relu(self.key(k)))
        return x + torch.sigmoid(self.receptance(r)) * self.value(k)


class TokenShift(nn.Module):
    """RWKV's channel mixing on tokens."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.layers = nn.ModuleList(ShiftBlock(width) for _ in range(5))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 500)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def _image(size: int) -> object:
    return lambda batch: (torch.randn(batch, 3, size, size),)


def _tokens(vocabulary: int, length: int) -> object:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


BLOCKS = {
    "perceiver": "LatentBlock",
    "spatial_gates": "GatingBlock",
    "exchange": "ExchangeBlock",
    "linear_attention": "KernelBlock",
    "cross_network": "CrossLayer",
    "two_towers": "TowerBlock",
    "causal_network": "CausalBlock",
    "hybrid": "InvertedBlock",
    "capped_decoder": "CappedBlock",
    "token_shift": "ShiftBlock",
}
NETWORKS = (
    Network("perceiver", Perceiver, lambda n: (torch.randn(n, 60, 20),), (5, 11)),
    Network("spatial_gates", SpatialGates, _tokens(700, 36), (4, 9)),
    Network("soft_codebook", SoftCodebook, _image(32), (5, 9), "mse"),
    Network("exchange", Exchange, _image(64), (3, 7), "mse"),
    Network("pyramid", Pyramid, _image(64), (3, 7), "mse"),
    Network("refining", Refining, _image(48), (3, 7), "mse"),
    Network("linear_attention", LinearAttention, _image(64), (5, 9)),
    Network(
        "cross_network",
        CrossNetwork,
        lambda n: (torch.randint(0, 40, (n, 6)), torch.randn(n, 9)),
        (37, 101),
    ),
    Network(
        "two_towers",
        TwoTowers,
        lambda n: (torch.randn(n, 3, 48, 48), torch.randint(0, 300, (n, 20))),
        (6, 13),
    ),
    Network("causal_network", CausalNetwork, lambda n: (torch.randn(n, 6, 150),), (5, 9), "mse"),
    Network("hybrid", Hybrid, _image(64), (5, 9)),
    Network("capped_decoder", CappedDecoder, _tokens(600, 40), (3, 8)),
    Network("token_shift", TokenShift, _tokens(500, 45), (4, 9)),
)
