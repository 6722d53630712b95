"""Networks of words, sounds, tables and graphs as people write them, measured when rules froze."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import math

import torch
from settings import Network, Tensors
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import weight_norm


class Chomp1d(nn.Module):
    """Cuts what a padding added on the right."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :, : -self.size].contiguous()


class TemporalBlock(nn.Module):
    """Two causal convolutions with normalized weights."""

    def __init__(self, before: int, after: int, dilation: int) -> None:
        super().__init__()
        padding = 2 * dilation
        self.conv1 = weight_norm(nn.Conv1d(before, after, 3, padding=padding, dilation=dilation))
        self.conv2 = weight_norm(nn.Conv1d(after, after, 3, padding=padding, dilation=dilation))
        self.net = nn.Sequential(
            *(self.conv1, Chomp1d(padding), nn.ReLU(), nn.Dropout(0.2)),
            *(self.conv2, Chomp1d(padding), nn.ReLU(), nn.Dropout(0.2)),
        )
        self.downsample = nn.Conv1d(before, after, 1) if before != after else None
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.net(x)
        res = x if self.downsample is None else self.downsample(x)
        return self.relu(out + res)


class TemporalNetwork(nn.Module):
    """A sequence to a class, by dilated convolutions (TCN)."""

    def __init__(self) -> None:
        super().__init__()
        widths = [10, 24, 24, 24, 24]
        self.tcn = nn.Sequential(*[TemporalBlock(widths[n], widths[n + 1], 2**n) for n in range(4)])
        self.linear = nn.Linear(24, 14)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tcn(x)
        return self.linear(y[:, :, -1])


class EdgeAttention(nn.Module):
    """Attention along the edges of a graph, by scattered sums (GAT)."""

    def __init__(self, before: int, after: int, heads: int) -> None:
        super().__init__()
        self.heads, self.after = heads, after
        self.lin = nn.Linear(before, heads * after, bias=False)
        self.att_src = nn.Parameter(torch.randn(1, heads, after))
        self.att_dst = nn.Parameter(torch.randn(1, heads, after))
        self.bias = nn.Parameter(torch.zeros(heads * after))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        batch, num_nodes, _ = x.shape
        src, dst = edge_index[0], edge_index[1]
        x = functional.dropout(x, p=0.2, training=self.training)
        h = self.lin(x).view(batch, num_nodes, self.heads, self.after)
        alpha_src = (h * self.att_src).sum(dim=-1)
        alpha_dst = (h * self.att_dst).sum(dim=-1)
        alpha = functional.leaky_relu(alpha_src[:, src] + alpha_dst[:, dst], 0.2)
        alpha = torch.exp(alpha - alpha.max())
        denom = torch.zeros(batch, num_nodes, self.heads).index_add(1, dst, alpha)
        alpha = alpha / (denom[:, dst] + 1e-16)
        out = torch.zeros(batch, num_nodes, self.heads, self.after)
        out = out.index_add(1, dst, h[:, src] * alpha.unsqueeze(-1))
        return out.view(batch, num_nodes, -1) + self.bias


class EdgeGraph(nn.Module):
    """Sensors at the nodes of a fixed graph to classes."""

    def __init__(self, nodes: int = 40, edges: int = 160) -> None:
        super().__init__()
        index = torch.arange(edges)
        self.register_buffer("edge_index", torch.stack([index * 7 % nodes, index * 11 % nodes]))
        self.conv1, self.conv2 = EdgeAttention(50, 8, 6), EdgeAttention(48, 7, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.elu(self.conv1(x, self.edge_index))
        x = self.conv2(x, self.edge_index)
        return functional.log_softmax(x, dim=-1)


class Mab(nn.Module):
    """Multi-head attention of sets."""

    def __init__(self, dim_q: int, dim_k: int, dim_v: int, heads: int) -> None:
        super().__init__()
        self.dim_v, self.heads = dim_v, heads
        self.fc_q, self.fc_k, self.fc_v = (
            nn.Linear(dim_q, dim_v),
            nn.Linear(dim_k, dim_v),
            nn.Linear(dim_k, dim_v),
        )
        self.ln0, self.ln1 = nn.LayerNorm(dim_v), nn.LayerNorm(dim_v)
        self.fc_o = nn.Linear(dim_v, dim_v)

    def forward(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        q = self.fc_q(query)
        k, v = self.fc_k(key), self.fc_v(key)
        split = self.dim_v // self.heads
        q_ = torch.cat(q.split(split, 2), 0)
        k_ = torch.cat(k.split(split, 2), 0)
        v_ = torch.cat(v.split(split, 2), 0)
        a = torch.softmax(q_.bmm(k_.transpose(1, 2)) / math.sqrt(self.dim_v), 2)
        out = torch.cat((q_ + a.bmm(v_)).split(q.size(0), 0), 2)
        out = self.ln0(out)
        out = out + functional.relu(self.fc_o(out))
        return self.ln1(out)


class Isab(nn.Module):
    """A set that attends to a few points, and they to it."""

    def __init__(self, before: int, after: int, points: int) -> None:
        super().__init__()
        self.inducing = nn.Parameter(torch.randn(1, points, after))
        self.mab0, self.mab1 = Mab(after, before, after, 4), Mab(before, after, after, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.mab0(self.inducing.repeat(x.size(0), 1, 1), x)
        return self.mab1(x, h)


class SetTransformer(nn.Module):
    """A set to a few vectors."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.enc = nn.Sequential(Isab(4, width, 8), Isab(width, width, 8))
        self.seeds = nn.Parameter(torch.randn(1, 3, width))
        self.pool = Mab(width, width, width, 4)
        self.dec = nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enc(x)
        return self.dec(self.pool(self.seeds.repeat(x.size(0), 1, 1), x))


class ReGlu(nn.Module):
    """A linear layer gated by a ReLU."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, dim=-1)
        return a * functional.relu(b)


class FeatureLayer(nn.Module):
    """A layer over the features of a row."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.norm0, self.norm1 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ffn = nn.Sequential(
            nn.Linear(width, 4 * width), ReGlu(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm0(x)
        y, _ = self.attention(y, y, y, need_weights=False)
        x = x + self.drop(y)
        y = self.ffn(self.norm1(x))
        return x + self.drop(y)


class FeatureTransformer(nn.Module):
    """Numbers and categories of a table as tokens (FT-Transformer)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        cardinalities = [7, 20, 5, 31]
        self.weight, self.bias = (
            nn.Parameter(torch.randn(12, width)),
            nn.Parameter(torch.randn(16, width)),
        )
        offsets = torch.tensor([0, *cardinalities[:-1]]).cumsum(0)
        self.register_buffer("category_offsets", offsets)
        self.category_embeddings = nn.Embedding(sum(cardinalities), width)
        self.cls = nn.Parameter(torch.randn(1, 1, width))
        self.layers = nn.ModuleList([FeatureLayer(width) for _ in range(3)])
        self.last_normalization, self.head = nn.LayerNorm(width), nn.Linear(width, 2)

    def forward(self, x_num: torch.Tensor, x_cat: torch.Tensor) -> torch.Tensor:
        x = self.weight[None] * x_num[:, :, None]
        x = torch.cat([x, self.category_embeddings(x_cat + self.category_offsets[None])], dim=1)
        x = x + self.bias[None]
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        for layer in self.layers:
            x = layer(x)
        x = self.last_normalization(x[:, 0])
        return self.head(functional.relu(x))


class DeepFm(nn.Module):
    """Products of all features, and a network over them (DeepFM)."""

    def __init__(self, width: int = 12, fields: int = 10) -> None:
        super().__init__()
        self.fields, self.width = fields, width
        self.register_buffer("offsets", torch.arange(fields) * 60)
        self.linear, self.embedding = nn.Embedding(60 * fields, 1), nn.Embedding(60 * fields, width)
        self.bias = nn.Parameter(torch.zeros(1))
        layers: list[nn.Module] = []
        before = fields * width
        for after in (64, 32):
            layers += [
                nn.Linear(before, after),
                nn.BatchNorm1d(after),
                nn.ReLU(),
                nn.Dropout(p=0.2),
            ]
            before = after
        self.mlp = nn.Sequential(*layers, nn.Linear(before, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.offsets.unsqueeze(0)
        embed_x = self.embedding(x)
        linear = torch.sum(self.linear(x), dim=1) + self.bias
        square_of_sum = torch.sum(embed_x, dim=1) ** 2
        sum_of_square = torch.sum(embed_x**2, dim=1)
        fm = 0.5 * torch.sum(square_of_sum - sum_of_square, dim=1, keepdim=True)
        return torch.sigmoid(linear + fm + self.mlp(embed_x.view(-1, self.fields * self.width)))


class Retention(nn.Module):
    """Products of queries and keys that decay, without a softmax (RetNet)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.key_dim = heads, width // heads
        self.q_proj, self.k_proj, self.g_proj = (
            nn.Linear(width, width, bias=False) for _ in range(3)
        )
        self.v_proj, self.out_proj = (
            nn.Linear(width, width, bias=False),
            nn.Linear(width, width, bias=False),
        )
        self.group_norm = nn.LayerNorm(self.key_dim, elementwise_affine=False)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ffn = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def retain(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q = self.q_proj(x).view(b, n, self.heads, -1).transpose(1, 2)
        k = self.k_proj(x).view(b, n, self.heads, -1).transpose(1, 2)
        k *= self.key_dim**-0.5
        v = self.v_proj(x).view(b, n, self.heads, -1).transpose(1, 2)
        qk_mat = q @ k.transpose(-1, -2)
        qk_mat = qk_mat * mask
        qk_mat = qk_mat / qk_mat.detach().abs().sum(dim=-1, keepdim=True).clamp(min=1, max=5e4)
        output = torch.matmul(qk_mat, v).transpose(1, 2)
        output = self.group_norm(output).reshape(b, n, c)
        return self.out_proj(functional.silu(self.g_proj(x)) * output)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.retain(self.norm1(x), mask)
        return x + self.ffn(self.norm2(x))


class RetentiveDecoder(nn.Module):
    """A language model whose past fades."""

    def __init__(self, width: int = 48, heads: int = 4, length: int = 36) -> None:
        super().__init__()
        self.embed = nn.Embedding(300, width)
        decay = torch.log(1 - 2 ** (-5 - torch.arange(heads, dtype=torch.float)))
        index = torch.arange(length).float()
        mask = torch.tril(torch.ones(length, length))
        mask = torch.masked_fill(index[:, None] - index[None, :], ~mask.bool(), float("inf"))
        mask = torch.exp(mask * decay[:, None, None])
        mask = torch.nan_to_num(mask)
        self.register_buffer("mask", mask / mask.sum(dim=-1, keepdim=True).sqrt())
        self.layers = nn.ModuleList([Retention(width, heads) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 300)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.mask)
        return self.head(self.norm(x))


class FlowStep(nn.Module):
    """A scale of each channel, a mixing of channels, and an affine coupling (Glow)."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.loc, self.scale = (nn.Parameter(torch.zeros(1, channels, 1, 1)) for _ in range(2))
        self.weight = nn.Parameter(torch.linalg.qr(torch.randn(channels, channels))[0])
        self.net = nn.Sequential(
            *(nn.Conv2d(channels // 2, hidden, 3, padding=1), nn.ReLU(inplace=True)),
            *(nn.Conv2d(hidden, hidden, 1), nn.ReLU(inplace=True)),
            nn.Conv2d(hidden, channels, 3, padding=1),
        )

    def forward(self, x: torch.Tensor) -> Tensors:
        _, _, h, w = x.shape
        x = torch.exp(self.scale) * (x + self.loc)
        log_det = h * w * torch.sum(self.scale)
        x = functional.conv2d(x, self.weight.unsqueeze(2).unsqueeze(3))
        in_a, in_b = x.chunk(2, 1)
        log_s, t = self.net(in_a).chunk(2, 1)
        s = torch.sigmoid(log_s + 2)
        out_b = (in_b + t) * s
        log_det = log_det + torch.sum(torch.log(s).view(x.shape[0], -1), 1)
        return torch.cat([in_a, out_b], 1), log_det


class Glow(nn.Module):
    """An image to noise of the same size, and the logarithm of its likelihood."""

    def __init__(self) -> None:
        super().__init__()
        self.flows = nn.ModuleList([FlowStep(12, 32) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, c, h, w = x.shape
        x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 1, 3, 5, 2, 4)
        x = x.contiguous().view(b, c * 4, h // 2, w // 2)
        total = torch.zeros(b)
        for flow in self.flows:
            x, det = flow(x)
            total = total + det
        log_p = -0.5 * math.log(2 * math.pi) - 0.5 * x**2
        return log_p.view(b, -1).sum(1) + total


class AudioBlock(nn.Module):
    """Dilated convolutions with normalized weights around skips (HiFi-GAN)."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            [
                weight_norm(
                    nn.Conv1d(
                        channels, channels, kernel, 1, dilation=d, padding=d * (kernel - 1) // 2
                    )
                )
                for d in (1, 3)
            ]
        )
        self.convs2 = nn.ModuleList(
            [
                weight_norm(nn.Conv1d(channels, channels, kernel, 1, padding=(kernel - 1) // 2))
                for _ in range(2)
            ]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for c1, c2 in zip(self.convs1, self.convs2, strict=True):
            xt = functional.leaky_relu(x, 0.1)
            xt = c1(xt)
            xt = functional.leaky_relu(xt, 0.1)
            xt = c2(xt)
            x = xt + x
        return x


class Vocoder(nn.Module):
    """Spectra to sound."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.conv_pre = weight_norm(nn.Conv1d(20, width, 7, 1, padding=3))
        self.ups = nn.ModuleList(
            [
                weight_norm(nn.ConvTranspose1d(width, width // 2, 8, 4, padding=2)),
                weight_norm(nn.ConvTranspose1d(width // 2, width // 4, 4, 2, padding=1)),
            ]
        )
        self.resblocks = nn.ModuleList(
            [AudioBlock(width // 2**n, k) for n in (1, 2) for k in (3, 7)]
        )
        self.conv_post = weight_norm(nn.Conv1d(width // 4, 1, 7, 1, padding=3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv_pre(x)
        for i, up in enumerate(self.ups):
            x = functional.leaky_relu(x, 0.1)
            x = up(x)
            xs = None
            for j in range(2):
                y = self.resblocks[i * 2 + j](x)
                xs = y if xs is None else xs + y
            x = xs / 2
        x = functional.leaky_relu(x)
        x = self.conv_post(x)
        return torch.tanh(x)


class AlibiBlock(nn.Module):
    """A block whose attention has a bias of distances (BLOOM)."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, hidden // heads
        self.input_layernorm, self.post_attention_layernorm = (
            nn.LayerNorm(hidden),
            nn.LayerNorm(hidden),
        )
        self.query_key_value, self.dense = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.dense_h_to_4h, self.dense_4h_to_h = (
            nn.Linear(hidden, 4 * hidden),
            nn.Linear(4 * hidden, hidden),
        )
        self.attention_dropout, self.hidden_dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    def attend(self, x: torch.Tensor, alibi: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        b, n, _ = x.shape
        fused = self.query_key_value(x).view(b, n, self.heads, 3, self.head_dim)
        q, k, v = fused[..., 0, :], fused[..., 1, :], fused[..., 2, :]
        q = q.transpose(1, 2).reshape(b * self.heads, n, self.head_dim)
        k = k.permute(0, 2, 3, 1).reshape(b * self.heads, self.head_dim, n)
        v = v.transpose(1, 2).reshape(b * self.heads, n, self.head_dim)
        scores = torch.baddbmm(
            alibi.repeat(b, 1, 1), q, k, beta=1.0, alpha=1.0 / math.sqrt(self.head_dim)
        )
        scores = scores.view(b, self.heads, n, n)
        weights = torch.masked_fill(scores, mask, torch.finfo(scores.dtype).min)
        probs = functional.softmax(weights, dim=-1, dtype=torch.float32).to(x.dtype)
        probs = self.attention_dropout(probs).view(b * self.heads, n, n)
        context = torch.bmm(probs, v).view(b, self.heads, n, self.head_dim)
        return self.dense(context.permute(0, 2, 1, 3).reshape(b, n, -1))

    def forward(self, x: torch.Tensor, alibi: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = x + self.hidden_dropout(self.attend(self.input_layernorm(x), alibi, mask))
        y = self.dense_h_to_4h(self.post_attention_layernorm(x))
        y = y * 0.5 * (1.0 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))
        return x + self.hidden_dropout(self.dense_4h_to_h(y))


class AlibiDecoder(nn.Module):
    """A language model without positions, whose attention has a bias of distances."""

    def __init__(self, hidden: int = 48, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.word_embeddings, self.word_embeddings_layernorm = (
            nn.Embedding(350, hidden),
            nn.LayerNorm(hidden),
        )
        self.h = nn.ModuleList([AlibiBlock(hidden, heads) for _ in range(3)])
        self.ln_f, self.lm_head = nn.LayerNorm(hidden), nn.Linear(hidden, 350, bias=False)
        self.lm_head.weight = self.word_embeddings.weight
        slopes = 2.0 ** (-8 * torch.arange(1, heads + 1) / heads)
        self.register_buffer("slopes", slopes)
        self.register_buffer(
            "causal", torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)
        )

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.word_embeddings_layernorm(self.word_embeddings(input_ids))
        positions = torch.arange(input_ids.shape[1])
        alibi = self.slopes[:, None, None] * positions[None, None, :]
        for block in self.h:
            x = block(x, alibi, self.causal)
        return self.lm_head(self.ln_f(x))


class BeatsBlock(nn.Module):
    """A forecast, and what it explains of the past (N-BEATS)."""

    def __init__(self, past: int, future: int, hidden: int, degree: int = 4) -> None:
        super().__init__()
        self.fc = nn.ModuleList([nn.Linear(past if n == 0 else hidden, hidden) for n in range(4)])
        self.theta_b, self.theta_f = (nn.Linear(hidden, degree, bias=False) for _ in range(2))
        powers = torch.arange(degree)[:, None]
        self.register_buffer("back_basis", (torch.arange(past) / past)[None] ** powers)
        self.register_buffer("fore_basis", (torch.arange(future) / future)[None] ** powers)

    def forward(self, x: torch.Tensor) -> Tensors:
        for fc in self.fc:
            x = functional.relu(fc(x))
        return self.theta_b(x).mm(self.back_basis), self.theta_f(x).mm(self.fore_basis)


class Forecaster(nn.Module):
    """A series to its future, normalized by its own mean and deviation."""

    def __init__(self, past: int = 60, future: int = 12) -> None:
        super().__init__()
        self.future = future
        self.stack = nn.ModuleList([BeatsBlock(past, future, 96) for _ in range(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.mean(1, keepdim=True).detach()
        stdev = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        backcast = (x - mean) / stdev
        forecast = torch.zeros(x.size(0), self.future)
        for block in self.stack:
            b, f = block(backcast)
            backcast = backcast - b
            forecast = forecast + f
        return forecast * stdev + mean


def _tokens(vocabulary: int, *sizes: int) -> object:
    return lambda batch: (torch.randint(0, vocabulary, (batch, *sizes)),)


BLOCKS = {
    "temporal_network": "TemporalBlock",
    "feature_transformer": "FeatureLayer",
    "retentive_decoder": "Retention",
    "glow": "FlowStep",
    "alibi_decoder": "AlibiBlock",
    "forecaster": "BeatsBlock",
    "set_transformer": "Isab",
}
NETWORKS = (
    Network("temporal_network", TemporalNetwork, lambda n: (torch.randn(n, 10, 90),), (5, 11)),
    Network(
        "edge_graph",
        EdgeGraph,
        lambda n: (torch.randn(n, 40, 50),),
        (5, 11),
        "mse",
    ),
    Network("set_transformer", SetTransformer, lambda n: (torch.randn(n, 70, 4),), (5, 11), "mse"),
    Network(
        "feature_transformer",
        FeatureTransformer,
        lambda n: (torch.randn(n, 12), torch.randint(0, 5, (n, 4))),
        (20, 45),
    ),
    Network("deep_fm", DeepFm, _tokens(60, 10), (80, 170), "mse"),
    Network("retentive_decoder", RetentiveDecoder, _tokens(300, 36), (4, 9)),
    Network("glow", Glow, lambda n: (torch.randn(n, 3, 24, 24),), (5, 11), "mse"),
    Network("vocoder", Vocoder, lambda n: (torch.randn(n, 20, 40),), (4, 9), "mse"),
    Network("alibi_decoder", AlibiDecoder, _tokens(350, 32), (4, 9)),
    Network("forecaster", Forecaster, lambda n: (torch.randn(n, 60),), (70, 150), "mse"),
)
