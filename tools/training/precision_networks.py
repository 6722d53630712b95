"""Networks of kinds that no other file of truth has, for every precision."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from itertools import pairwise

import torch
from settings import Network
from torch import nn
from torch.nn import functional
from torch.nn.utils import spectral_norm


class StateSpace(nn.Module):
    """Diagonal state space layers run as a scan by cumulative sums."""

    class Layer(nn.Module):
        """One of its parts."""

        def __init__(self, d: int, n: int = 8) -> None:
            super().__init__()
            self.inp = nn.Linear(d, 2 * d)
            self.dt = nn.Linear(d, d)
            self.bc = nn.Linear(d, 2 * n, bias=False)
            self.a = nn.Parameter(torch.rand(d, n))
            self.skip = nn.Parameter(torch.ones(d))
            self.out = nn.Linear(d, d)
            self.norm = nn.LayerNorm(d)
            self.n = n

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h, gate = self.inp(self.norm(x)).chunk(2, -1)
            dt = functional.softplus(self.dt(h))
            b, c = self.bc(h).chunk(2, -1)
            decay = (dt.unsqueeze(-1) * -torch.exp(self.a)).cumsum(1)
            u = (dt * h).unsqueeze(-1) * b.unsqueeze(2)
            s = torch.exp(decay) * (u * torch.exp(-decay)).cumsum(1)
            y = (s * c.unsqueeze(2)).sum(-1) + self.skip * h
            return x + self.out(y * functional.silu(gate))

    def __init__(self, d: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, d)
        self.layers = nn.Sequential(*(self.Layer(d) for _ in range(4)))
        self.head = nn.Linear(d, 500)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.embed(x)))


class PointCloud(nn.Module):
    """PointNet: shared MLPs with BatchNorm1d, a transform and a global maximum."""

    def __init__(self) -> None:
        super().__init__()

        def mlp(*w: int) -> nn.Sequential:
            return nn.Sequential(
                *(
                    m
                    for a, b in pairwise(w)
                    for m in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
                )
            )

        self.t1 = mlp(3, 32, 64, 128)
        self.t2 = nn.Linear(128, 9)
        self.m1 = mlp(3, 64, 64)
        self.m2 = mlp(64, 128, 256)
        self.head = nn.Sequential(
            nn.Linear(256, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 40)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = self.t2(self.t1(x).amax(2)).view(-1, 3, 3)
        x = torch.bmm(x.transpose(1, 2), t).transpose(1, 2)
        return self.head(self.m2(self.m1(x)).amax(2))


class GraphNet(nn.Module):
    """Messages along fixed edges, added up at nodes by index_add."""

    def __init__(self, d: int = 48, nodes: int = 60, edges: int = 300) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.register_buffer("src", torch.randint(0, nodes, (edges,), generator=g))
        self.register_buffer("dst", torch.randint(0, nodes, (edges,), generator=g))
        self.inp = nn.Linear(12, d)
        self.msg = nn.ModuleList(
            nn.Sequential(nn.Linear(2 * d, d), nn.ReLU(), nn.Linear(d, d)) for _ in range(3)
        )
        self.upd = nn.ModuleList(nn.Linear(2 * d, d) for _ in range(3))
        self.out = nn.Linear(d, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = functional.relu(self.inp(x))
        for msg, upd in zip(self.msg, self.upd, strict=True):
            m = msg(torch.cat([h[:, self.src], h[:, self.dst]], -1))
            agg = torch.zeros_like(h).index_add(1, self.dst, m.to(h.dtype))
            h = h + functional.relu(upd(torch.cat([h, agg], -1)))
        return self.out(h.mean(1))


class UNet3d(nn.Module):
    """Convolutions of volumes with GroupNorm, max pools and trilinear upsampling."""

    def __init__(self) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Conv3d(a, b, 3, padding=1),
                nn.GroupNorm(4, b),
                nn.ReLU(),
                nn.Conv3d(b, b, 3, padding=1),
                nn.GroupNorm(4, b),
                nn.ReLU(),
            )

        self.d1, self.d2, self.d3 = block(1, 8), block(8, 16), block(16, 32)
        self.u2, self.u1 = block(48, 16), block(24, 8)
        self.pool = nn.MaxPool3d(2)
        self.out = nn.Conv3d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.d1(x)
        b = self.d2(self.pool(a))
        c = self.d3(self.pool(b))

        def up(t: torch.Tensor) -> torch.Tensor:
            return functional.interpolate(
                t, scale_factor=2.0, mode="trilinear", align_corners=False
            )

        b = self.u2(torch.cat([up(c), b], 1))
        return self.out(self.u1(torch.cat([up(b), a], 1)))


class SpectralDiscriminator(nn.Module):
    """Spectral normalization of every layer."""

    def __init__(self) -> None:
        super().__init__()
        sn = spectral_norm
        w = (3, 32, 64, 128)
        self.net = nn.Sequential(
            *(m for a, b in pairwise(w) for m in (sn(nn.Conv2d(a, b, 4, 2, 1)), nn.LeakyReLU(0.2)))
        )
        self.head = sn(nn.Linear(128 * 16, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x).flatten(1))


class Nerf(nn.Module):
    """Frequencies of positions, a deep MLP with a skip, and colors weighed along rays."""

    def __init__(self, d: int = 96) -> None:
        super().__init__()
        self.register_buffer("freq", 2.0 ** torch.arange(6))
        n = 3 + 36
        self.a = nn.ModuleList(nn.Linear(n if i == 0 else d, d) for i in range(4))
        self.b = nn.ModuleList(nn.Linear(d + n if i == 0 else d, d) for i in range(3))
        self.sigma = nn.Linear(d, 1)
        self.rgb = nn.Sequential(
            nn.Linear(d, d // 2), nn.ReLU(), nn.Linear(d // 2, 3), nn.Sigmoid()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p = (x.unsqueeze(-1) * self.freq).flatten(-2)
        e = torch.cat([x, p.sin(), p.cos()], -1)
        h = e
        for layer in self.a:
            h = functional.relu(layer(h))
        h = torch.cat([h, e], -1)
        for layer in self.b:
            h = functional.relu(layer(h))
        alpha = 1 - torch.exp(-functional.relu(self.sigma(h)) * 0.1)
        t = torch.exp(-torch.cumsum(functional.relu(self.sigma(h)) * 0.1, 1))
        return (alpha * t * self.rgb(h)).sum(1)


class GrnNet(nn.Module):
    """ConvNeXtV2: global response normalization by a norm over dims."""

    class Block(nn.Module):
        """One of its parts."""

        def __init__(self, d: int) -> None:
            super().__init__()
            self.dw = nn.Conv2d(d, d, 7, padding=3, groups=d)
            self.norm = nn.LayerNorm(d, eps=1e-6)
            self.p1 = nn.Linear(d, 4 * d)
            self.p2 = nn.Linear(4 * d, d)
            self.gamma = nn.Parameter(torch.zeros(1, 1, 1, 4 * d))
            self.beta = nn.Parameter(torch.zeros(1, 1, 1, 4 * d))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = functional.gelu(self.p1(self.norm(self.dw(x).permute(0, 2, 3, 1))))
            g = torch.norm(y, p=2, dim=(1, 2), keepdim=True)
            y = self.gamma * (y * (g / (g.mean(-1, keepdim=True) + 1e-6))) + self.beta + y
            return x + self.p2(y).permute(0, 3, 1, 2)

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, 40, 4, 4),
            self.Block(40),
            self.Block(40),
            nn.Conv2d(40, 80, 2, 2),
            self.Block(80),
            self.Block(80),
        )
        self.head = nn.Linear(80, 30)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.net(x).mean((2, 3)))


class T5Like(nn.Module):
    """Encoder and decoder with RMS norms and relative biases, tied vocabulary."""

    class Rms(nn.Module):
        """One of its parts."""

        def __init__(self, d: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.ones(d))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            v = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
            x = x * torch.rsqrt(v + 1e-6)
            return self.w * x

    class Att(nn.Module):
        """One of its parts."""

        def __init__(self, d: int, h: int = 4) -> None:
            super().__init__()
            self.h = h
            self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))

        def forward(
            self, x: torch.Tensor, m: torch.Tensor, bias: torch.Tensor | None = None
        ) -> torch.Tensor:
            def f(t: torch.Tensor) -> torch.Tensor:
                return t.view(t.shape[0], t.shape[1], self.h, -1).transpose(1, 2)

            s = torch.matmul(f(self.q(x)), f(self.k(m)).transpose(3, 2))
            if bias is not None:
                s = s + bias
            p = functional.softmax(s.float(), dim=-1).type_as(s)
            p = functional.dropout(p, 0.1, self.training)
            return self.o(torch.matmul(p, f(self.v(m))).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        """One of its parts."""

        def __init__(self, d: int, *, cross: bool) -> None:
            super().__init__()
            self.n1, self.n2 = T5Like.Rms(d), T5Like.Rms(d)
            self.sa = T5Like.Att(d)
            self.ca = T5Like.Att(d) if cross else None
            if cross:
                self.n3 = T5Like.Rms(d)
            self.wi0, self.wi1, self.wo = (
                nn.Linear(d, 2 * d, bias=False),
                nn.Linear(d, 2 * d, bias=False),
                nn.Linear(2 * d, d, bias=False),
            )

        def forward(
            self, x: torch.Tensor, bias: torch.Tensor, m: torch.Tensor | None = None
        ) -> torch.Tensor:
            y = self.n1(x)
            x = x + self.sa(y, y, bias)
            if self.ca is not None:
                x = x + self.ca(self.n3(x), m)
            y = self.n2(x)
            return x + self.wo(functional.gelu(self.wi0(y), approximate="tanh") * self.wi1(y))

    def __init__(self, d: int = 64, length: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(900, d)
        self.rel = nn.Embedding(16, 4)
        i = torch.arange(length)
        self.register_buffer("dist", (i - i[:, None]).clamp(-8, 7) + 8)
        self.enc = nn.ModuleList(self.Block(d, cross=False) for _ in range(2))
        self.dec = nn.ModuleList(self.Block(d, cross=True) for _ in range(2))
        self.fin = self.Rms(d)
        self.lm_head = nn.Linear(d, 900, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        bias = self.rel(self.dist).permute(2, 0, 1).unsqueeze(0)
        m = self.embed(x)
        for b in self.enc:
            m = b(m, bias)
        h = self.embed(y)
        for b in self.dec:
            h = b(h, bias, m)
        return self.lm_head(self.fin(h))


class Speech(nn.Module):
    """Convolutions over a spectrogram, attention layers and logits of each frame."""

    def __init__(self, d: int = 64) -> None:
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20),
            nn.Conv2d(16, 16, 3, (2, 1), 1),
            nn.BatchNorm2d(16),
            nn.Hardtanh(0, 20),
        )
        self.proj = nn.Linear(16 * 10, d)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                d, 4, 2 * d, batch_first=True, activation="gelu", norm_first=True
            )
            for _ in range(2)
        )
        self.glu = nn.Conv1d(d, 2 * d, 1)
        self.dwc = nn.Conv1d(d, d, 7, padding=3, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.out = nn.Linear(d, 29)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.conv(x)
        h = self.proj(h.permute(0, 3, 1, 2).flatten(2))
        for layer in self.layers:
            h = layer(h)
        c = functional.glu(self.glu(h.transpose(1, 2)), 1)
        c = functional.silu(self.bn(self.dwc(c))).transpose(1, 2)
        return self.out(h + c)


class MultiTask(nn.Module):
    """A shared trunk and three heads, mixed by learned uncertainties into one map."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 24, 3, 2, 1),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 48, 3, 2, 1),
            nn.BatchNorm2d(48),
            nn.ReLU(),
        )
        self.depth = nn.Sequential(
            nn.Conv2d(48, 24, 3, 1, 1), nn.ELU(), nn.Conv2d(24, 1, 1), nn.Softplus()
        )
        self.normal = nn.Conv2d(48, 3, 1)
        self.seg = nn.Conv2d(48, 8, 1)
        self.logv = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        t = self.trunk(x)
        d, n, s = self.depth(t), functional.normalize(self.normal(t), dim=1), self.seg(t).softmax(1)
        w = torch.exp(-self.logv)
        y = torch.cat([w[0] * d, w[1] * n, w[2] * s], 1)
        return functional.interpolate(y, scale_factor=4.0, mode="bilinear", align_corners=False)


class Moe(nn.Module):
    """Experts as one einsum, and a gate."""

    def __init__(self, d: int = 64, e: int = 6) -> None:
        super().__init__()
        self.inp = nn.Linear(30, d)
        self.w1 = nn.Parameter(torch.randn(e, d, 2 * d) * 0.05)
        self.w2 = nn.Parameter(torch.randn(e, 2 * d, d) * 0.05)
        self.gate = nn.Linear(d, e)
        self.norm = nn.RMSNorm(d)
        self.out = nn.Linear(d, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.inp(x)
        y = self.norm(h)
        p = self.gate(y).softmax(-1)
        z = torch.einsum("btd,edf->btef", y, self.w1)
        z = torch.einsum("btef,efd->bted", functional.gelu(z), self.w2)
        return self.out(h + torch.einsum("bte,bted->btd", p, z)).mean(1)


class Warp(nn.Module):
    """A predicted grid that samples the image, then convolutions with PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.loc = nn.Sequential(
            nn.Conv2d(3, 12, 5, 2, 2),
            nn.PReLU(12),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(12, 2),
        )
        self.net = nn.Sequential(
            nn.Conv2d(3, 32, 3, 1, 1),
            nn.InstanceNorm2d(32, affine=True),
            nn.PReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(32, 64, 3, 1, 1),
            nn.InstanceNorm2d(64, affine=True),
            nn.PReLU(),
        )
        ys, xs = torch.meshgrid(torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 48), indexing="ij")
        self.register_buffer("grid", torch.stack([xs, ys], -1)[None])
        self.out = nn.Linear(64, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shift = self.loc(x).view(-1, 1, 1, 2)
        x = functional.grid_sample(x, self.grid + shift, align_corners=False)
        return self.out(self.net(x).mean((2, 3)))


def _tokens(vocabulary: int, length: int, batch: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (batch, length))


BLOCKS = {
    "state_space": "Layer",
    "t5_like": "Block",
    "grn_net": "Block",
    "speech": "TransformerEncoderLayer",
}
NETWORKS = (
    Network("state_space", StateSpace, lambda n: (_tokens(500, 30, n),), (4, 9)),
    Network("graph_net", GraphNet, lambda n: (torch.randn(n, 60, 12),), (5, 12)),
    Network("volume_unet", UNet3d, lambda n: (torch.randn(n, 1, 16, 32, 32),), (2, 5)),
    Network("spectral_gan", SpectralDiscriminator, lambda n: (torch.randn(n, 3, 32, 32),), (6, 40)),
    Network("t5_like", T5Like, lambda n: (_tokens(900, 40, n), _tokens(900, 40, n)), (4, 9)),
    Network("multi_task", MultiTask, lambda n: (torch.randn(n, 3, 64, 64),), (3, 7), "mse"),
    Network("point_cloud", PointCloud, lambda n: (torch.randn(n, 3, 256),), (6, 13)),
    Network("radiance", Nerf, lambda n: (torch.randn(n, 24, 3),), (40, 130), "mse"),
    Network("grn_net", GrnNet, lambda n: (torch.randn(n, 3, 64, 64),), (3, 7)),
    Network("speech", Speech, lambda n: (torch.randn(n, 1, 40, 60),), (4, 9)),
    Network("expert_einsum", Moe, lambda n: (torch.randn(n, 25, 30),), (8, 33)),
    Network("warp", Warp, lambda n: (torch.randn(n, 3, 48, 48),), (5, 11)),
)
