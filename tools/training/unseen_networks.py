"""Networks that were written and measured when the rules were frozen, for every precision."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from settings import Network, Tensors
from torch import nn
from torch.nn import functional


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, a convolution, and the other half."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = (self._feed_forward(width) for _ in range(2))
        self.norm, self.conv_norm, self.last = (nn.LayerNorm(width) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide = nn.Conv1d(width, 2 * width, 1)
        self.depth = nn.Conv1d(width, width, 9, padding=4, groups=width)
        self.batch_norm = nn.BatchNorm1d(width)
        self.narrow = nn.Conv1d(width, width, 1)
        self.drop = nn.Dropout(0.1)

    @staticmethod
    def _feed_forward(width: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Dropout(0.1)),
            *(nn.Linear(4 * width, width), nn.Dropout(0.1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + 0.5 * self.before(x)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (q, k, v))
        y = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.drop(self.out(y.transpose(1, 2).flatten(2)))
        y = functional.glu(self.wide(self.conv_norm(x).transpose(1, 2)), dim=1)
        y = self.narrow(functional.silu(self.batch_norm(self.depth(y))))
        x = x + self.drop(y.transpose(1, 2))
        x = x + 0.5 * self.after(x)
        return self.last(x)


class Conformer(nn.Module):
    """Frames of sound to characters."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(20, width, 3, 2, 1), nn.ReLU())
        self.layers = nn.ModuleList(ConformerBlock(width) for _ in range(3))
        self.head = nn.Linear(width, 31)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        x = self.first(sound).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class AttentionGate(nn.Module):
    """What of a skip connection is let through (Attention U-Net)."""

    def __init__(self, skip: int, gate: int, inner: int) -> None:
        super().__init__()
        self.of_skip = nn.Sequential(nn.Conv2d(skip, inner, 1), nn.BatchNorm2d(inner))
        self.of_gate = nn.Sequential(nn.Conv2d(gate, inner, 1), nn.BatchNorm2d(inner))
        self.psi = nn.Sequential(nn.Conv2d(inner, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())

    def forward(self, skip: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        psi = self.psi(functional.relu(self.of_skip(skip) + self.of_gate(gate)))
        return skip * psi


class GatedUnet(nn.Module):
    """A U-Net whose skip connections are gated."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down1, self.down2 = self._pair(3, width), self._pair(width, 2 * width)
        self.bottom = self._pair(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.gate2 = AttentionGate(2 * width, 2 * width, width)
        self.gate1 = AttentionGate(width, width, width // 2)
        self.back2, self.back1 = self._pair(4 * width, 2 * width), self._pair(2 * width, width)
        self.head = nn.Conv2d(width, 5, 1)

    @staticmethod
    def _pair(a: int, b: int) -> nn.Sequential:
        return nn.Sequential(
            *(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
            *(nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(inplace=True)),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        a = self.down1(image)
        b = self.down2(functional.max_pool2d(a, 2))
        c = self.bottom(functional.max_pool2d(b, 2))
        up = self.up2(c)
        c = self.back2(torch.cat([self.gate2(b, up), up], 1))
        up = self.up1(c)
        c = self.back1(torch.cat([self.gate1(a, up), up], 1))
        return self.head(c)


class SelectiveLayer(nn.Module):
    """A selective state space that is run step by step (Mamba)."""

    def __init__(self, width: int, states: int = 7) -> None:
        super().__init__()
        inner = 2 * width
        self.norm = nn.RMSNorm(width)
        self.wide = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, padding=3, groups=inner)
        self.selected = nn.Linear(inner, 3 + 2 * states, bias=False)
        self.step_size = nn.Linear(3, inner)
        self.log_decay = nn.Parameter(torch.rand(inner, states))
        self.skip = nn.Parameter(torch.ones(inner))
        self.narrow = nn.Linear(inner, width, bias=False)
        self.states = states

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        u, gate = self.wide(self.norm(x)).chunk(2, dim=-1)
        u = functional.silu(self.conv(u.transpose(1, 2))[..., :length]).transpose(1, 2)
        step, b, c = self.selected(u).split([3, self.states, self.states], dim=-1)
        step = functional.softplus(self.step_size(step))
        decay = torch.exp(step.unsqueeze(-1) * -torch.exp(self.log_decay))
        entering = step.unsqueeze(-1) * b.unsqueeze(2) * u.unsqueeze(-1)
        state = torch.zeros_like(entering[:, 0])
        rows = []
        for n in range(length):
            state = decay[:, n] * state + entering[:, n]
            rows.append((state * c[:, n].unsqueeze(1)).sum(-1))
        y = torch.stack(rows, 1) + u * self.skip
        return x + self.narrow(y * functional.silu(gate))


class Selective(nn.Module):
    """A language model of selective state spaces."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(150, width)
        self.layers = nn.ModuleList(SelectiveLayer(width) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 150, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Hypernetwork(nn.Module):
    """A network that makes the weights of another one for each sample."""

    def __init__(self, code: int = 10, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.maker = nn.Sequential(nn.Linear(code, 64), nn.ReLU(), nn.LayerNorm(64))
        self.first = nn.Linear(64, 3 * hidden + hidden)
        self.second = nn.Linear(64, hidden * hidden + hidden)
        self.last = nn.Linear(64, 2 * hidden)

    def forward(self, code: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
        made, h = self.maker(code), self.hidden
        w, b = self.first(made).split([3 * h, h], -1)
        x = torch.bmm(points, w.view(-1, 3, h)) + b.unsqueeze(1)
        x = torch.sin(30 * x)
        w, b = self.second(made).split([h * h, h], -1)
        x = torch.sin(torch.bmm(x, w.view(-1, h, h)) + b.unsqueeze(1))
        return torch.bmm(x, self.last(made).view(-1, h, 2))


class GraphAttentionLayer(nn.Module):
    """Attention of each node to its neighbors by additive scores (GAT)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, width, bias=False)
        self.source = nn.Parameter(torch.randn(1, 1, heads, width // heads))
        self.target = nn.Parameter(torch.randn(1, 1, heads, width // heads))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        h = self.project(x).view(x.shape[0], x.shape[1], self.heads, -1)
        source, target = (h * self.source).sum(-1), (h * self.target).sum(-1)
        scores = functional.leaky_relu(source.unsqueeze(2) + target.unsqueeze(1), 0.2)
        scores = scores.masked_fill(edges.unsqueeze(-1) == 0, -1e9)
        shares = functional.dropout(scores.softmax(2), 0.3, self.training)
        y = torch.einsum("bijh,bjhd->bihd", shares, h)
        return functional.elu(y.flatten(2))


class GraphAttention(nn.Module):
    """Two layers of attention along edges."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first = nn.Linear(9, width)
        self.layers = nn.ModuleList(GraphAttentionLayer(width, 4) for _ in range(3))
        self.head = nn.Linear(width, 6)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        x = self.first(nodes)
        for layer in self.layers:
            x = x + layer(x, edges)
        return self.head(x)


class VectorQuantizer(nn.Module):
    """The nearest vector of a book, with the gradient straight through."""

    def __init__(self, entries: int, width: int) -> None:
        super().__init__()
        self.book = nn.Embedding(entries, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.permute(0, 2, 3, 1)
        flat = x.reshape(-1, x.shape[-1])
        book = self.book.weight
        far = (flat**2).sum(1, keepdim=True) + (book**2).sum(1) - 2 * flat @ book.t()
        found = self.book(far.argmin(1)).view(x.shape)
        found = found + 0.1 * (x - found)
        return found.permute(0, 3, 1, 2)


class QuantizedAutoencoder(nn.Module):
    """VQ-VAE, whose book is trained by the output."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Conv2d(3, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 4, 2, 1)),
            *(nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1)),
        )
        self.quantizer = VectorQuantizer(40, width)
        self.decoder = nn.Sequential(
            *(nn.Conv2d(width, width, 3, 1, 1), nn.ReLU()),
            *(nn.ConvTranspose2d(width, width, 4, 2, 1), nn.ReLU()),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.quantizer(self.encoder(image)))


class AttendedLstm(nn.Module):
    """A bidirectional LSTM, and a weighed mean of its states."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(400, width)
        self.drop = nn.Dropout(0.2)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.score = nn.Sequential(nn.Linear(2 * width, 20), nn.Tanh(), nn.Linear(20, 1))
        self.head = nn.Linear(2 * width, 7)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.drop(self.embed(tokens)))
        shares = torch.softmax(self.score(states), dim=1)
        return self.head(self.drop((shares * states).sum(1)))


class MixingLayer(nn.Module):
    """A depthwise convolution with a skip connection, and one of the channels (ConvMixer)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depth = nn.Sequential(
            nn.Conv2d(width, width, 5, padding="same", groups=width),
            nn.GELU(),
            nn.BatchNorm2d(width),
        )
        self.point = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.point(self.depth(x) + x)


class ConvMixer(nn.Module):
    """Patches, mixing layers, a mean."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 4, 4), nn.GELU(), nn.BatchNorm2d(width))
        self.layers = nn.Sequential(*(MixingLayer(width) for _ in range(4)))
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.stem(image)))


class Capsules(nn.Module):
    """Two layers of capsules, routed by agreement."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 24, 7), nn.ReLU())
        self.primary = nn.Conv2d(24, 32, 7, 3)
        self.turns = nn.Parameter(torch.randn(1, 100, classes, 8, 8) * 0.05)

    @staticmethod
    def _squash(x: torch.Tensor) -> torch.Tensor:
        squared = (x**2).sum(-1, keepdim=True)
        return squared / (1 + squared) * x / torch.sqrt(squared + 1e-8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.primary(self.first(image))
        x = self._squash(x.view(x.shape[0], 4, 8, -1).permute(0, 1, 3, 2).reshape(-1, 100, 8))
        votes = torch.matmul(self.turns, x[:, :, None, :, None]).squeeze(-1)
        logits = torch.zeros_like(votes[..., :1])
        for n in range(3):
            shares = logits.softmax(2)
            v = self._squash((shares * votes).sum(1, keepdim=True))
            if n < 2:  # noqa: PLR2004 - all but the last
                logits = logits + (votes * v).sum(-1, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


class Coupling(nn.Module):
    """An affine function of one half, by the other one (RealNVP)."""

    def __init__(self, width: int, flipped: int) -> None:
        super().__init__()
        self.flipped = flipped
        self.net = nn.Sequential(
            *(nn.Linear(width // 2, 48), nn.LeakyReLU(), nn.Linear(48, 48), nn.LeakyReLU()),
            nn.Linear(48, width),
        )
        self.scale = nn.Parameter(torch.ones(width // 2))

    def forward(self, x: torch.Tensor, log_det: torch.Tensor) -> Tensors:
        a, b = x.chunk(2, dim=1)
        if self.flipped:
            a, b = b, a
        log_scale, shift = self.net(a).chunk(2, dim=1)
        log_scale = torch.tanh(log_scale) * self.scale
        b = b * log_scale.exp() + shift
        x = torch.cat([b, a] if self.flipped else [a, b], 1)
        return x, log_det + log_scale.sum(1)


class Flow(nn.Module):
    """Couplings in a row; the log-likelihood of each sample."""

    def __init__(self, width: int = 14) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(width, n % 2) for n in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        log_det = x.new_zeros(x.shape[0])
        for layer in self.layers:
            x, log_det = layer(x, log_det)
        return (log_det - 0.5 * (x**2).sum(1)).unsqueeze(1)


class RandomFeatureBlock(nn.Module):
    """Attention by random features of a softmax kernel (Performer)."""

    def __init__(self, width: int, heads: int = 4, features: int = 16) -> None:
        super().__init__()
        self.heads = heads
        self.register_buffer("directions", torch.randn(features, width // heads))
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def _features(self, x: torch.Tensor) -> torch.Tensor:
        projected = torch.einsum("bhnd,md->bhnm", x, self.directions)
        norm = (x**2).sum(-1, keepdim=True) / 2
        return torch.exp(projected - norm - projected.amax(dim=-1, keepdim=True).detach()) + 1e-4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (
            each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in (self.q, self.k, self.v)
        )
        q, k = self._features(q), self._features(k)
        total = torch.einsum("bhnm,bhm->bhn", q, k.sum(2))
        memory = k.transpose(-1, -2) @ v
        y = (q @ memory) / total.unsqueeze(-1)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.mlp_norm(x))


class Performer(nn.Module):
    """A classifier of tokens by random-feature attention."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, width)
        self.places = nn.Parameter(torch.randn(1, 50, width) * 0.02)
        self.layers = nn.ModuleList(RandomFeatureBlock(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 12)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class FusingLayer(nn.Module):
    """Three levels, each a weighed sum of its neighbors (BiFPN)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shares = nn.Parameter(torch.ones(4, 3))
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, groups=width, bias=False),
                nn.Conv2d(width, width, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.SiLU(),
            )
            for _ in range(4)
        )

    def forward(self, fine: torch.Tensor, middle: torch.Tensor, coarse: torch.Tensor) -> Tensors:
        w = functional.relu(self.shares)
        w = w / (w.sum(1, keepdim=True) + 1e-4)

        def up(x: torch.Tensor) -> torch.Tensor:
            return functional.interpolate(x, scale_factor=2.0, mode="nearest")

        def down(x: torch.Tensor) -> torch.Tensor:
            return functional.max_pool2d(x, 3, 2, 1)

        inner = self.convs[0](w[0, 0] * middle + w[0, 1] * up(coarse))
        fine = self.convs[1](w[1, 0] * fine + w[1, 1] * up(inner))
        middle = self.convs[2](w[2, 0] * middle + w[2, 1] * inner + w[2, 2] * down(fine))
        coarse = self.convs[3](w[3, 0] * coarse + w[3, 1] * down(middle))
        return fine, middle, coarse


class FusingPyramid(nn.Module):
    """Levels that are fused again and again, and a head over all."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.stems = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, width, 3, 2, 1), nn.BatchNorm2d(width), nn.SiLU())
            for a in (3, width, width)
        )
        self.layers = nn.ModuleList(FusingLayer(width) for _ in range(3))
        self.head = nn.Conv2d(width, 9, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels = []
        for stem in self.stems:
            image = stem(image)
            levels.append(image)
        fine, middle, coarse = levels
        for layer in self.layers:
            fine, middle, coarse = layer(fine, middle, coarse)
        return torch.cat([self.head(each).flatten(2) for each in (fine, middle, coarse)], 2)


class ExpertBlock(nn.Module):
    """Attention, and two of five experts for each token, each run on all (Mixtral, dense)."""

    def __init__(self, width: int, heads: int = 4, experts: int = 5) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.expert_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(experts)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norm(x)).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        y = self.expert_norm(x)
        shares = self.router(y).softmax(-1)
        best, chosen = shares.topk(2, -1)
        best = best / best.sum(-1, keepdim=True)
        gates = torch.zeros_like(shares).scatter(-1, chosen, best)
        total = torch.zeros_like(y)
        for n, expert in enumerate(self.experts):
            total = total + gates[..., n : n + 1] * expert(y)
        return x + total


class SparseExperts(nn.Module):
    """A decoder with mixtures of experts."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(250, width)
        self.layers = nn.ModuleList(ExpertBlock(width) for _ in range(3))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, 250, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Affine(nn.Module):
    """A scale and a shift of each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * x + self.shift


class ResidualMlpBlock(nn.Module):
    """A linear layer across patches, and a multilayer perceptron of channels (ResMLP)."""

    def __init__(self, width: int, patches: int) -> None:
        super().__init__()
        self.before, self.after = Affine(width), Affine(width)
        self.across = nn.Linear(patches, patches)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.gain1 = nn.Parameter(0.1 * torch.ones(width))
        self.gain2 = nn.Parameter(0.1 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.across(self.before(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.gain1 * mixed
        return x + self.gain2 * self.mlp(self.after(x))


class ResidualMlp(nn.Module):
    """Patches of an image without any attention."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.layers = nn.Sequential(*(ResidualMlpBlock(width, 49) for _ in range(4)))
        self.norm, self.head = Affine(width), nn.Linear(width, 15)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.layers(self.patches(image).flatten(2).transpose(1, 2))
        return self.head(self.norm(x).mean(1))


class FourierBlock(nn.Module):
    """Tokens mixed by fixed cosines in the place of attention (FNet)."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        for name, size in (("over_tokens", length), ("over_width", width)):
            place = torch.arange(size, dtype=torch.float32)
            self.register_buffer(name, torch.cos(torch.outer(place, place) * (6.2832 / size)))
        self.mixed_norm, self.norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = self.over_tokens @ (x @ self.over_width)
        x = self.mixed_norm(x + mixed)
        return self.norm(x + self.drop(self.down(functional.gelu(self.up(x)))))


class Fourier(nn.Module):
    """An encoder of fixed mixing, and a head on the first token."""

    def __init__(self, width: int = 44, length: int = 34) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(350, width), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(FourierBlock(width, length) for _ in range(3))
        self.pooler, self.head = nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1])
        x = self.norm(self.embed(tokens) + self.places(places))
        for layer in self.layers:
            x = layer(x)
        return self.head(torch.tanh(self.pooler(x[:, 0])))


def _image(size: int, channels: int = 3) -> object:
    return lambda batch: (torch.randn(batch, channels, size, size),)


def _tokens(vocabulary: int, length: int) -> object:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


BLOCKS = {
    "conformer": "ConformerBlock",
    "selective": "SelectiveLayer",
    "graph_attention": "GraphAttentionLayer",
    "conv_mixer": "MixingLayer",
    "flow": "Coupling",
    "performer": "RandomFeatureBlock",
    "fusing_pyramid": "FusingLayer",
    "sparse_experts": "ExpertBlock",
    "residual_mlp": "ResidualMlpBlock",
    "fourier": "FourierBlock",
}
NETWORKS = (
    Network("conformer", Conformer, lambda n: (torch.randn(n, 20, 70),), (4, 9)),
    Network("gated_unet", GatedUnet, _image(48), (3, 7), "mse"),
    Network("selective", Selective, _tokens(150, 13), (5, 11)),
    Network(
        "hypernetwork",
        Hypernetwork,
        lambda n: (torch.randn(n, 10), torch.randn(n, 90, 3)),
        (5, 12),
        "mse",
    ),
    Network(
        "graph_attention",
        GraphAttention,
        lambda n: (torch.randn(n, 37, 9), torch.randint(0, 2, (n, 37, 37))),
        (4, 9),
    ),
    Network("quantized_autoencoder", QuantizedAutoencoder, _image(48), (5, 9), "mse"),
    Network("attended_lstm", AttendedLstm, _tokens(400, 23), (6, 13)),
    Network("conv_mixer", ConvMixer, _image(48), (5, 9)),
    Network("capsules", Capsules, _image(25, 1), (4, 9)),
    Network("flow", Flow, lambda n: (torch.randn(n, 14),), (90, 250), "mse"),
    Network("performer", Performer, _tokens(300, 50), (4, 9)),
    Network("fusing_pyramid", FusingPyramid, _image(64), (3, 7), "mse"),
    Network("sparse_experts", SparseExperts, _tokens(250, 29), (5, 9)),
    Network("residual_mlp", ResidualMlp, _image(56), (4, 9)),
    Network("fourier", Fourier, _tokens(350, 34), (5, 11)),
)
