"""Networks written here: each makes tensors that are as long as the batch in its forward."""

# ruff: noqa: D102, PLR2004 - every class says what its forward does; small networks of few numbers

import torch
from torch import Tensor, nn
from torch.nn import functional


class StatefulLstm(nn.Module):
    """An LSTM whose zero states are made from the input's batch."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(11, 13, num_layers=2, batch_first=True)
        self.head = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(2, x.size(0), 13)
        c = x.new_zeros(2, x.size(0), 13)
        y, _ = self.lstm(x, (h, c))
        return self.head(y[:, -1])


class PlainGru(nn.Module):
    """A GRU that makes its own zero state; time first inside."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(11, 13, batch_first=True)
        self.head = nn.Linear(13, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0])


class TwoWayGru(nn.Module):
    """A GRU of two directions, batch first, whose states are given."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(11, 13, bidirectional=True, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(2, x.size(0), 13, dtype=x.dtype, device=x.device)
        y, last = self.gru(x, h)
        return y.mean(1) + last.transpose(0, 1).reshape(x.size(0), -1)


class LstmCells(nn.Module):
    """An LSTM cell in a loop, its states made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(11, 13)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.size(0), 13)
        c = torch.zeros(x.size(0), 13)
        outputs = []
        for step in range(x.size(1)):
            h, c = self.cell(x[:, step], (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1)


class ConvLstm(nn.Module):
    """A convolutional LSTM, its states made in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = nn.Conv2d(3 + 5, 4 * 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _, height, width = x.shape
        h = torch.zeros(batch, 5, height, width)
        c = torch.zeros(batch, 5, height, width)
        for step in range(steps):
            i, f, o, g = self.gates(torch.cat([x[:, step], h], 1)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return h


class SelectiveScan(nn.Module):
    """A Mamba block: the state is zeros of [batch, channels, states] and is scanned in a loop."""

    def __init__(self) -> None:
        super().__init__()
        self.inward, self.outward = nn.Linear(11, 2 * 22), nn.Linear(22, 11)
        self.conv = nn.Conv1d(22, 22, 4, padding=3, groups=22)
        self.parameters_of = nn.Linear(22, 5 + 2 * 16)
        self.dt = nn.Linear(5, 22)
        self.a = nn.Parameter(torch.randn(22, 16))
        self.d = nn.Parameter(torch.randn(22))

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, _ = x.shape
        x, z = self.inward(x).chunk(2, -1)
        x = functional.silu(self.conv(x.transpose(1, 2))[..., :steps]).transpose(1, 2)
        dt, b, c = self.parameters_of(x).split([5, 16, 16], -1)
        dt = functional.softplus(self.dt(dt))
        da = torch.exp(dt.unsqueeze(-1) * -torch.exp(self.a))
        dbx = (dt * x).unsqueeze(-1) * b.unsqueeze(2)
        state = torch.zeros(batch, 22, 16)
        outputs = []
        for step in range(steps):
            state = da[:, step] * state + dbx[:, step]
            outputs.append((state @ c[:, step].unsqueeze(-1)).squeeze(-1))
        y = torch.stack(outputs, 1) + x * self.d
        return self.outward(y * functional.silu(z))


class DiagonalStates(nn.Module):
    """A diagonal state-space layer: h = a h + b x, y = c h, from a zero state."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.rand(11, 8))
        self.b = nn.Parameter(torch.rand(11, 8))
        self.c = nn.Parameter(torch.rand(11, 8))
        self.mix = nn.Linear(11, 11)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.size(0), 11, 8)
        outputs = []
        for step in range(x.size(1)):
            h = self.a * h + self.b * x[:, step, :, None]
            outputs.append((h * self.c).sum(-1))
        return self.mix(torch.stack(outputs, 1))


class UNet(nn.Module):
    """Two levels with skips, transposed convolution and interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, padding=1)
        self.middle = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.down(x))
        b = torch.relu(self.middle(functional.max_pool2d(a, 2)))
        c = torch.cat([a, self.up(b)], 1)
        return functional.interpolate(self.out(c), size=(40, 40), mode="bilinear")


class SsdHead(nn.Module):
    """Boxes and scores of two levels, with anchors repeated for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(3, 8, 3, 2, 1)
        self.b = nn.Conv2d(8, 8, 3, 2, 1)
        self.boxes, self.scores = nn.Conv2d(8, 4 * 3, 1), nn.Conv2d(8, 5 * 3, 1)
        self.register_buffer("anchors", torch.rand(3 * (16 * 16 + 8 * 8), 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.relu(self.a(x))
        levels = [a, torch.relu(self.b(a))]
        batch = x.size(0)
        boxes = [self.boxes(f).permute(0, 2, 3, 1).reshape(batch, -1, 4) for f in levels]
        scores = [self.scores(f).permute(0, 2, 3, 1).reshape(batch, -1, 5) for f in levels]
        anchors = self.anchors.unsqueeze(0).expand(batch, -1, -1)
        decoded = torch.cat(boxes, 1) * anchors[..., 2:].repeat(1, 1, 2) + anchors
        return decoded, torch.cat(scores, 1).softmax(-1)


class YoloHead(nn.Module):
    """A YOLO head of version 3: grid and anchors meet [batch, anchors, y, x, 5 + classes]."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 8, 3, 4, 1)
        self.head = nn.Conv2d(8, 3 * 7, 1)
        self.register_buffer("sizes", torch.rand(1, 3, 1, 1, 2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.body(x))
        batch, _, height, width = y.shape
        y = y.view(batch, 3, 7, height, width).permute(0, 1, 3, 4, 2).contiguous().sigmoid()
        rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        grid = torch.stack((columns, rows), 2).expand(1, 3, height, width, 2).float()
        xy, wh, rest = y.split((2, 2, 3), 4)
        whole = torch.cat(((xy * 2 + grid) * 4, (wh * 2) ** 2 * self.sizes, rest), 4)
        return whole.view(batch, 3 * height * width, 7)


class QueryDecoder(nn.Module):
    """Learned queries, repeated for the batch, attend to an image (DETR)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 16, 8, 8)
        self.queries = nn.Embedding(10, 16)
        self.position = nn.Parameter(torch.rand(1, 16, 16))
        self.transformer = nn.Transformer(16, 2, 1, 1, 32, batch_first=True)
        self.boxes = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.body(x).flatten(2).transpose(1, 2) + self.position
        queries = self.queries.weight.unsqueeze(0).repeat(x.size(0), 1, 1)
        return self.boxes(self.transformer(tokens, queries)).sigmoid()


class Latents(nn.Module):
    """A Perceiver: latents, expanded to the batch, attend to the input and to themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.rand(6, 16))
        self.cross = nn.MultiheadAttention(16, 2, kdim=11, vdim=11, batch_first=True)
        self.own = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        latents = self.latents.expand(x.shape[0], -1, -1)
        return self.own(self.cross(latents, x, x, need_weights=False)[0]).mean(1)


class FramesThenTime(nn.Module):
    """A convolution of every frame, the frames folded into the batch, and a GRU over them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 7, 3, 2)
        self.gru = nn.GRU(7, 9, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        batch, frames = x.shape[:2]
        y = self.conv(x.reshape(batch * frames, *x.shape[2:])).mean((2, 3))
        return self.gru(y.view(batch, frames, -1))[0]


class PointNet(nn.Module):
    """An input transform: a predicted matrix plus the identity, repeated for the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.points, self.matrix = nn.Conv1d(3, 16, 1), nn.Linear(16, 9)
        self.body = nn.Conv1d(3, 24, 1)

    def forward(self, x: Tensor) -> Tensor:
        batch = x.size(0)
        y = self.matrix(self.points(x).amax(2))
        identity = torch.eye(3).flatten().view(1, 9).repeat(batch, 1)
        matrix = (y + identity).view(-1, 3, 3)
        moved = torch.bmm(x.transpose(2, 1), matrix).transpose(2, 1)
        return self.body(moved).amax(2)


class Conformer(nn.Module):
    """A speech encoder: subsampling, relative positions, a mask of lengths, a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.sub = nn.Conv2d(1, 4, 3, 2)
        self.proj = nn.Linear(4 * 9, 16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.pos = nn.Linear(16, 16, bias=False)
        self.u = nn.Parameter(torch.rand(2, 8))
        self.v = nn.Parameter(torch.rand(2, 8))
        self.depthwise = nn.Conv1d(16, 16, 5, padding=2, groups=16)
        self.register_buffer("table", torch.rand(1, 99, 16))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.sub(x.unsqueeze(1)))
        b, c, t, f = y.size()
        y = self.proj(y.transpose(1, 2).contiguous().view(b, t, c * f))
        q, k, v = self.qkv(y).view(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        p = self.pos(self.table[:, : 2 * t - 1]).view(1, -1, 2, 8).transpose(1, 2)
        content = (q + self.u[:, None]) @ k.transpose(-2, -1)
        place = (q + self.v[:, None]) @ p.transpose(-2, -1)
        zeros = torch.zeros(b, 2, t, 1)
        place = torch.cat([zeros, place], -1).view(b, 2, -1, t)[:, :, 1:].reshape(b, 2, t, -1)
        mask = torch.ones(b, 1, t, t, dtype=torch.bool).tril()
        scores = (content + place[..., :t]).masked_fill(~mask, -1e4).softmax(-1)
        y = y + self.out((scores @ v).transpose(1, 2).reshape(b, t, 16))
        return y + self.depthwise(y.transpose(1, 2)).transpose(1, 2)


class PackedSpeech(nn.Module):
    """An encoder and a decoder with attention: the first token and the states are made here."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 9)
        self.encoder, self.cell = nn.GRU(11, 13, batch_first=True), nn.GRUCell(9 + 13, 13)
        self.out = nn.Linear(13, 20)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.encoder(x)
        token = torch.zeros(x.size(0), dtype=torch.long)
        state = torch.zeros(x.size(0), 13)
        outputs = []
        for _ in range(3):
            weights = torch.bmm(seen, state.unsqueeze(2)).softmax(1)
            context = (weights * seen).sum(1)
            state = self.cell(torch.cat([self.embed(token), context], 1), state)
            outputs.append(self.out(state))
            token = outputs[-1].argmax(1)
        return torch.stack(outputs, 1)


class PixelShuffle(nn.Module):
    """Super-resolution by a pixel shuffle."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(1, 8, 5, padding=2), nn.Conv2d(8, 9, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.pixel_shuffle(self.b(torch.relu(self.a(x))), 3)


class GridSampler(nn.Module):
    """A spatial transformer: an affine grid for every sample."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.body = nn.Linear(3 * 16 * 16, 6), nn.Conv2d(3, 5, 3)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.where(x.flatten(1)).view(-1, 2, 3)
        base = torch.rand(1, 16 * 16, 3).expand(x.size(0), -1, -1)
        grid = torch.bmm(base, theta.transpose(1, 2)).view(x.size(0), 16, 16, 2)
        return self.body(functional.grid_sample(x, grid, align_corners=False))


class VectorQuantizer(nn.Module):
    """An autoencoder with a codebook: distances of all vectors of all samples to all codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv2d(3, 8, 4, 4), nn.ConvTranspose2d(8, 3, 4, 4)
        self.codes = nn.Embedding(10, 8)

    def forward(self, x: Tensor) -> Tensor:
        z = self.encode(x).permute(0, 2, 3, 1).contiguous()
        flat = z.view(-1, 8)
        codes = self.codes.weight
        distances = flat.pow(2).sum(1, keepdim=True) + codes.pow(2).sum(1) - 2 * flat @ codes.t()
        nearest = self.codes(distances.argmin(1)).view(z.shape)
        return self.decode(nearest.permute(0, 3, 1, 2).contiguous())


class GraphLayer(nn.Module):
    """A graph convolution: one adjacency for all samples, and attention between nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", torch.rand(9, 9))
        self.a, self.b = nn.Linear(11, 13), nn.Linear(26, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(self.adjacency @ x)
        n = h.size(1)
        left = h.unsqueeze(2).expand(-1, -1, n, -1)
        right = h.unsqueeze(1).expand(-1, n, -1, -1)
        scores = functional.leaky_relu(self.b(torch.cat([left, right], -1)).squeeze(-1))
        mask = (self.adjacency > 0.5).unsqueeze(0).expand(x.size(0), -1, -1)
        return torch.where(mask, scores, torch.full_like(scores, -9e15)).softmax(-1) @ h
