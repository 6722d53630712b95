"""Networks that were written and measured when the rules of a third round were frozen."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from settings import Network, Tensors
from torch import nn
from torch.nn import functional


class EncoderLayer(nn.Module):
    """Attention and a feed-forward layer, normalized before."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(b, n, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class MobileVit(nn.Module):
    """Convolutions, and transformers over the pixels of the same place in each patch."""

    def __init__(self, width: int = 24, inner: int = 32) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.SiLU())
        self.local = nn.Conv2d(width, width, 3, padding=1)
        self.enter = nn.Conv2d(width, inner, 1, bias=False)
        self.layers = nn.ModuleList(EncoderLayer(inner) for _ in range(3))
        self.leave = nn.Conv2d(inner, width, 1, bias=False)
        self.fuse = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Linear(width, 11)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        y = self.enter(self.local(x))
        b, c, h, w = y.shape
        patches = y.reshape(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 2, 4, 1)
        tokens = patches.reshape(b * 4, h * w // 4, c)
        for layer in self.layers:
            tokens = layer(tokens)
        y = tokens.reshape(b, 2, 2, h // 2, w // 2, c).permute(0, 5, 3, 1, 4, 2)
        y = self.leave(y.reshape(b, c, h, w))
        x = functional.silu(self.fuse(torch.cat([x, y], dim=1)))
        return self.head(x.mean(dim=(2, 3)))


class RelativeLayer(nn.Module):
    """Attention with a term of relative positions that is shifted (Transformer-XL)."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.relative = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.out = nn.Linear(width, width, bias=False)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            *(nn.Linear(width, 2 * width), nn.ReLU(inplace=True), nn.Dropout(0.1)),
            nn.Linear(2 * width, width),
        )
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        b, n, width = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).unbind(2)
        r = self.relative(places).view(n, self.heads, -1)
        content = torch.einsum("bihd,bjhd->bhij", q + self.content_bias, k)
        position = torch.einsum("bihd,jhd->bhij", q + self.position_bias, r)
        # A column of zeros moves each row by one more than the row before.
        position = functional.pad(position, (1, 0)).view(b, self.heads, n + 1, n)[:, :, 1:]
        scores = (content + position) / (width // self.heads) ** 0.5
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
        weights = self.drop(torch.softmax(scores, dim=-1))
        y = torch.einsum("bhij,bjhd->bihd", weights, v).reshape(b, n, width)
        x = self.norm(x + self.drop(self.out(y)))
        return self.last(x + self.mlp(x))


class RelativeDecoder(nn.Module):
    """A language model with relative positions."""

    def __init__(self, width: int = 40, length: int = 30) -> None:
        super().__init__()
        self.embed = nn.Embedding(320, width)
        rates = 1 / 10000 ** (torch.arange(0, width, 2) / width)
        angles = torch.outer(torch.arange(length - 1, -1, -1.0), rates)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], dim=-1))
        self.layers = nn.ModuleList(RelativeLayer(width) for _ in range(3))
        self.head = nn.Linear(width, 320)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.places)
        return self.head(x)


class AttentivePool(nn.Module):
    """A weighed mean of states, by their likeness to a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project = nn.Linear(width, width)
        self.context = nn.Parameter(torch.randn(width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        scores = torch.tanh(self.project(states)) @ self.context
        weights = torch.softmax(scores, dim=1)
        return (weights.unsqueeze(-1) * states).sum(dim=1)


class HierarchicalClassifier(nn.Module):
    """Words to sentences and sentences to a document, each by a GRU and attention."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.words = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.of_words = AttentivePool(2 * width)
        self.sentences = nn.GRU(2 * width, width, batch_first=True)
        self.of_sentences = AttentivePool(width)
        self.head = nn.Linear(width, 6)

    def forward(self, document: torch.Tensor) -> torch.Tensor:
        b, sentences, words = document.shape
        x = self.embed(document.view(b * sentences, words))
        states, _ = self.words(x)
        vectors = self.of_words(states).view(b, sentences, -1)
        states, _ = self.sentences(vectors)
        return self.head(self.of_sentences(states))


class Siamese(nn.Module):
    """Two images in one network, and how alike each is to each."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(3, width, 3, 2, 1), nn.BatchNorm2d(width), nn.LeakyReLU(0.1)),
            *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.BatchNorm2d(2 * width), nn.LeakyReLU(0.1)),
            *(nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        )
        self.project = nn.Sequential(nn.Linear(8 * width, 40), nn.ReLU(), nn.Linear(40, 20))
        self.temperature = nn.Parameter(torch.tensor(10.0))

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        a = functional.normalize(self.project(self.body(left)), dim=1)
        b = functional.normalize(self.project(self.body(right)), dim=1)
        return self.temperature * (a * b).sum(1, keepdim=True) + (a - b).abs()


class SetAbstraction(nn.Module):
    """Neighbors of each center, a shared network, and their maximum (PointNet++)."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before + 3, width, 1)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 1)

    def forward(
        self, places: torch.Tensor, features: torch.Tensor, count: int, near: int
    ) -> Tensors:
        centers = places[:, :count]
        far = ((centers.unsqueeze(2) - places.unsqueeze(1)) ** 2).sum(-1)
        index = far.topk(near, dim=-1, largest=False).indices
        flat = index.flatten(1).unsqueeze(-1)
        around = places.gather(1, flat.expand(-1, -1, 3)).unflatten(1, (count, near))
        of_near = features.gather(1, flat.expand(-1, -1, features.shape[-1]))
        local = around - centers.unsqueeze(2)
        x = torch.cat([local, of_near.unflatten(1, (count, near))], -1).permute(0, 3, 1, 2)
        x = functional.relu(self.norm1(self.first(x)))
        x = functional.relu(self.norm2(self.second(x)))
        return centers, x.amax(dim=-1).transpose(1, 2)


class PointSets(nn.Module):
    """Points in space, in sets of sets."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = SetAbstraction(3, 24), SetAbstraction(24, 48)
        self.head = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 9))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        places, features = self.lower(points, points, 24, 8)
        _, features = self.upper(places, features, 8, 6)
        return self.head(features.max(dim=1).values)


class EquivariantLayer(nn.Module):
    """Messages between all atoms by their distances, which move the atoms too (EGNN)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.edge = nn.Sequential(
            *(nn.Linear(2 * width + 1, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        )
        self.move = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))
        self.node = nn.Sequential(nn.Linear(2 * width, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, h: torch.Tensor, x: torch.Tensor) -> Tensors:
        n = h.shape[1]
        delta = x.unsqueeze(2) - x.unsqueeze(1)
        squared = delta.pow(2).sum(-1, keepdim=True)
        left = h.unsqueeze(2).expand(-1, -1, n, -1)
        right = h.unsqueeze(1).expand(-1, n, -1, -1)
        messages = self.edge(torch.cat([left, right, squared], dim=-1))
        x = x + (delta * self.move(messages)).mean(dim=2)
        h = h + self.node(torch.cat([h, messages.sum(dim=2)], dim=-1))
        return h, x


class Equivariant(nn.Module):
    """The energy of a molecule."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.embed = nn.Linear(5, width)
        self.layers = nn.ModuleList(EquivariantLayer(width) for _ in range(3))
        self.head = nn.Linear(width + 3, 4)

    def forward(self, atoms: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        h, x = self.embed(atoms), places
        for layer in self.layers:
            h, x = layer(h, x)
        return self.head(torch.cat([h, x], dim=-1)).sum(dim=1)


def _conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()
    )


class FullScaleUnet(nn.Module):
    """A U-Net, each level of whose decoder reads all levels of the encoder (UNet 3+)."""

    def __init__(self, width: int = 12, each: int = 10) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.encoder = nn.ModuleList(
            _conv(a, b) for a, b in zip((3, *widths), widths, strict=False)
        )
        self.from_levels = nn.ModuleList(
            nn.ModuleList(_conv(before, each) for before in widths) for _ in range(2)
        )
        self.fuse = nn.ModuleList(_conv(3 * each, 3 * each) for _ in range(2))
        self.head = nn.Conv2d(6 * each, 4, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        levels = []
        x = image
        for index, block in enumerate(self.encoder):
            x = block(x if index == 0 else functional.max_pool2d(x, 2))
            levels.append(x)
        found = []
        for target, (convs, fuse) in enumerate(zip(self.from_levels, self.fuse, strict=True)):
            size = levels[target].shape[-2:]
            parts = []
            for source, conv in enumerate(convs):
                level = levels[source]
                if source < target:
                    level = functional.max_pool2d(level, 2 ** (target - source))
                elif source > target:
                    level = functional.interpolate(
                        level, size=size, mode="bilinear", align_corners=False
                    )
                parts.append(conv(level))
            found.append(fuse(torch.cat(parts, 1)))
        upper = functional.interpolate(found[1], scale_factor=2.0, mode="nearest")
        return self.head(torch.cat([found[0], upper], 1))


class Recommender(nn.Module):
    """Products of all pairs of embeddings, and a network over them (DLRM)."""

    def __init__(self, width: int = 16, fields: int = 8) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(90 + n, width) for n in range(fields))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, width), nn.ReLU())
        rows, columns = torch.tril_indices(fields + 1, fields + 1, offset=-1)
        self.register_buffer("pairs", rows * (fields + 1) + columns)
        self.top = nn.Sequential(
            *(nn.Linear(width + len(rows), 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU()),
            nn.Linear(32, 1),
        )

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = [x] + [table(sparse[:, n]) for n, table in enumerate(self.tables)]
        stacked = torch.stack(vectors, dim=1)
        products = torch.bmm(stacked, stacked.transpose(1, 2))
        chosen = products.flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([x, chosen], dim=1))


class SampledBlock(nn.Module):
    """Values at places that the queries choose, weighed (deformable attention)."""

    def __init__(self, width: int, heads: int = 4, points: int = 4) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        self.offsets = nn.Linear(width, heads * points * 2)
        self.weights = nn.Linear(width, heads * points)
        self.value, self.out = nn.Conv2d(width, width, 1), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor, grid: torch.Tensor, size: int) -> torch.Tensor:
        b, n, width = x.shape
        y = self.norm1(x)
        value = self.value(y.transpose(1, 2).reshape(b, width, size, size))
        value = value.reshape(b * self.heads, width // self.heads, size, size)
        offsets = torch.tanh(self.offsets(y)).view(b, n, self.heads, self.points, 2)
        places = grid.view(1, n, 1, 1, 2) + 0.3 * offsets
        places = places.permute(0, 2, 1, 3, 4).reshape(b * self.heads, n, self.points, 2)
        sampled = functional.grid_sample(value, places, align_corners=False)
        weights = self.weights(y).view(b, n, self.heads, self.points).softmax(-1)
        weights = weights.transpose(1, 2).reshape(b * self.heads, 1, n, self.points)
        y = (sampled * weights).sum(-1).reshape(b, width, n).transpose(1, 2)
        x = x + self.out(y)
        return x + self.mlp(self.norm2(x))


class Sampled(nn.Module):
    """Patches that look where they choose to."""

    def __init__(self, width: int = 32, size: int = 9) -> None:
        super().__init__()
        self.size = size
        self.patches = nn.Conv2d(3, width, 4, 4)
        steps = torch.linspace(-1, 1, size)
        grid = torch.stack(torch.meshgrid(steps, steps, indexing="xy"), -1)
        self.register_buffer("grid", grid.reshape(-1, 2))
        self.layers = nn.ModuleList(SampledBlock(width) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, self.grid, self.size)
        return self.head(self.norm(x).mean(1))


class ImageAndText(nn.Module):
    """An image and a text in one space, and how alike all pairs of a batch are (CLIP)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, 8)
        self.first = nn.Parameter(torch.randn(1, 1, width))
        self.image_places = nn.Parameter(torch.randn(1, 17, width))
        self.image_layers = nn.Sequential(*(EncoderLayer(width) for _ in range(3)))
        self.embed = nn.Embedding(260, width)
        self.text_places = nn.Parameter(torch.randn(20, width))
        self.text_layers = nn.Sequential(*(EncoderLayer(width) for _ in range(3)))
        self.image_norm, self.text_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.image_out = nn.Parameter(torch.randn(width, 24) * 0.1)
        self.text_out = nn.Parameter(torch.randn(width, 24) * 0.1)
        self.logit_scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1) + self.image_places
        a = self.image_norm(self.image_layers(x)[:, 0]) @ self.image_out
        y = self.text_layers(self.embed(tokens) + self.text_places)
        b = self.text_norm(y)[:, -1] @ self.text_out
        a = a / a.norm(dim=-1, keepdim=True)
        b = b / b.norm(dim=-1, keepdim=True)
        return self.logit_scale.exp() * (a * b)


class LongConvolution(nn.Module):
    """Two gates around a convolution as long as the sequence, its kernel made by a network."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.norm = nn.LayerNorm(width)
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.kernel = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, width))
        time = torch.linspace(0, 1, length).unsqueeze(-1)
        waves = [torch.sin(6.28 * k * time) for k in range(1, 5)]
        self.register_buffer("waves", torch.cat([time, *waves], dim=-1))
        self.decay = nn.Parameter(torch.rand(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        u = self.enter(self.norm(x)).transpose(1, 2)
        u = self.short(u)[..., : self.length]
        gate, key, value = u.chunk(3, dim=1)
        kernel = self.kernel(self.waves) * torch.exp(-self.decay.abs() * self.waves[:, :1])
        weight = kernel.t().flip(-1).unsqueeze(1)
        y = functional.pad(key * value, (self.length - 1, 0))
        y = functional.conv1d(y, weight, groups=weight.shape[0])
        return x + self.leave((gate * y).transpose(1, 2))


class LongFilters(nn.Module):
    """A language model of long convolutions (Hyena)."""

    def __init__(self, width: int = 28, length: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(210, width)
        self.layers = nn.ModuleList(LongConvolution(width, length) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 210, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Maxout(nn.Module):
    """LeNet with the largest of several channels in the place of activations."""

    def __init__(self, width: int = 12, pieces: int = 3) -> None:
        super().__init__()
        self.pieces = pieces
        self.first = nn.Conv2d(1, width * pieces, 5, padding=2)
        self.second = nn.Conv2d(width, 2 * width * pieces, 5)
        self.third = nn.Linear(2 * width * 25, 60 * pieces)
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(60, 10)

    def _largest(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(1, (-1, self.pieces)).max(dim=2).values

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(self._largest(self.first(image)), 2)
        x = functional.max_pool2d(self._largest(self.second(x)), 2)
        return self.head(self.drop(self._largest(self.third(x.flatten(1)))))


class Dynamics(nn.Module):
    """The rate of change of a state at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width + 1, 3 * width), nn.Linear(3 * width, width)

    def forward(self, time: float, x: torch.Tensor) -> torch.Tensor:
        clock = torch.full_like(x[:, :1], time)
        return self.down(torch.tanh(self.up(torch.cat([x, clock], dim=1))))


class NeuralOde(nn.Module):
    """A differential equation in four steps of Runge and Kutta."""

    def __init__(self, width: int = 26, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.enter, self.rate = nn.Linear(9, width), Dynamics(width)
        self.head = nn.Linear(width, 5)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        x = self.enter(data)
        size = 1 / self.steps
        for n in range(self.steps):
            t = n * size
            k1 = self.rate(t, x)
            k2 = self.rate(t + size / 2, x + size / 2 * k1)
            k3 = self.rate(t + size / 2, x + size / 2 * k2)
            k4 = self.rate(t + size, x + size * k3)
            x = x + size / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.head(x)


class ResidualUnit(nn.Module):
    """Two convolutions with group norms around a skip connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
            *(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


class ResidualVae(nn.Module):
    """An autoencoder whose code is drawn."""

    def __init__(self, width: int = 16, code: int = 12) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 4, 2, 1)
        self.encoder = nn.Sequential(*(ResidualUnit(width) for _ in range(2)))
        self.to_code = nn.Linear(width * 196, 2 * code)
        self.from_code = nn.Linear(code, width * 196)
        self.decoder = nn.Sequential(*(ResidualUnit(width) for _ in range(2)))
        self.leave = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.encoder(self.enter(image))
        mean, log_variance = self.to_code(x.flatten(1)).chunk(2, dim=1)
        deviation = torch.exp(0.5 * log_variance)
        code = mean + deviation * torch.randn_like(deviation)
        y = self.from_code(code).view(x.shape[0], -1, 14, 14)
        return torch.sigmoid(self.leave(self.decoder(y)))


class StyleBlock(nn.Module):
    """Two convolutions of a mirrored border with instance norms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pad = nn.ReflectionPad2d(1)
        self.conv1, self.conv2 = nn.Conv2d(width, width, 3), nn.Conv2d(width, width, 3)
        self.norm1 = nn.InstanceNorm2d(width, affine=True)
        self.norm2 = nn.InstanceNorm2d(width, affine=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu(self.norm1(self.conv1(self.pad(x))))
        y = self.norm2(self.conv2(self.pad(y)))
        return y + x


class StyleTransfer(nn.Module):
    """A picture to a picture: down, residual blocks, and up."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.down = nn.Sequential(
            *(nn.ReflectionPad2d(4), nn.Conv2d(3, width, 9)),
            *(nn.InstanceNorm2d(width, affine=True), nn.ReLU(inplace=True)),
            *(nn.Conv2d(width, 2 * width, 3, 2, 1), nn.InstanceNorm2d(2 * width, affine=True)),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(*(StyleBlock(2 * width) for _ in range(4)))
        self.up = nn.Conv2d(2 * width, width, 3, padding=1)
        self.norm = nn.InstanceNorm2d(width, affine=True)
        self.last = nn.Conv2d(width, 3, 9, padding=4)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.down(image))
        x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
        return torch.tanh(self.last(functional.relu(self.norm(self.up(x)))))


class ShiftedBlock(nn.Module):
    """Attention within windows, every other time of shifted ones (Swin)."""

    def __init__(self, width: int, size: int, window: int, shift: int, heads: int = 3) -> None:
        super().__init__()
        self.size, self.window, self.shift, self.heads = size, window, shift, heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        steps = torch.arange(window)
        places = torch.stack(torch.meshgrid(steps, steps, indexing="ij")).flatten(1)
        apart = (places[:, :, None] - places[:, None, :]) + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        self.register_buffer("mask", self._mask() if shift else None)
        self.mlp = nn.Sequential(
            nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width)
        )

    def _mask(self) -> torch.Tensor:
        regions = torch.zeros(1, self.size, self.size, 1)
        cuts = (slice(-self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for number, (rows, columns) in enumerate((a, b) for a in cuts for b in cuts):
            regions[:, rows, columns] = number
        found = self._windows(regions).squeeze(-1)
        return (found.unsqueeze(1) != found.unsqueeze(2)).float() * -100.0

    def _windows(self, x: torch.Tensor) -> torch.Tensor:
        count, side = self.size // self.window, self.window
        x = x.view(-1, count, side, count, side, x.shape[-1]).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, side * side, x.shape[-1])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, _, _, width = x.shape
        side, count = self.window**2, self.size // self.window
        y = self.norm1(x)
        if self.shift:
            y = torch.roll(y, shifts=(-self.shift, -self.shift), dims=(1, 2))
        windows = self._windows(y)
        qkv = self.qkv(windows).reshape(-1, side, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index.view(-1)].view(side, side, -1).permute(2, 0, 1)
        scores = scores + bias.unsqueeze(0)
        if self.shift:
            scores = scores.view(b, count**2, self.heads, side, side)
            scores = scores + self.mask.unsqueeze(1).unsqueeze(0)
            scores = scores.view(-1, self.heads, side, side)
        y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, side, width)
        y = self.proj(y).view(-1, count, count, self.window, self.window, width)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(b, self.size, self.size, width)
        if self.shift:
            y = torch.roll(y, shifts=(self.shift, self.shift), dims=(1, 2))
        x = x + y
        return x + self.mlp(self.norm2(x))


class Shifted(nn.Module):
    """Patches in windows that shift."""

    def __init__(self, width: int = 24, size: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.blocks = nn.ModuleList(ShiftedBlock(width, size, 4, 2 * (n % 2)) for n in range(4))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 14)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(dim=(1, 2)))


class QuestionAndImage(nn.Module):
    """A question by an LSTM, which weighs the parts of an image."""

    def __init__(self, width: int = 36) -> None:
        super().__init__()
        self.embed = nn.Embedding(280, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.parts = nn.Linear(50, width)
        self.score = nn.Linear(width, 1)
        self.head = nn.Sequential(nn.Linear(width, 48), nn.ReLU(), nn.Linear(48, 13))

    def forward(self, tokens: torch.Tensor, parts: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(tokens))
        question = states[:, -1]
        seen = torch.relu(self.parts(parts))
        joined = torch.tanh(question.unsqueeze(1) * seen)
        weights = torch.softmax(self.score(joined), dim=1)
        answer = (weights * seen).sum(1)
        return self.head(answer * question)


class SignalBlock(nn.Module):
    """A residual block of a signal, its channels gated."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, 7, padding=3, bias=False)
        self.conv2 = nn.Conv1d(width, width, 7, padding=3, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm1d(width), nn.BatchNorm1d(width)
        self.squeeze, self.excite = nn.Linear(width, width // 4), nn.Linear(width // 4, width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        out = self.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        gate = self.excite(self.relu(self.squeeze(out.mean(dim=-1)))).sigmoid()
        out = out * gate.unsqueeze(-1)
        out += shortcut
        return self.relu(out)


class Signals(nn.Module):
    """Leads of a heart to diagnoses."""

    def __init__(self, width: int = 28) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(nn.Conv1d(12, width, 15, 2, 7, bias=False), nn.BatchNorm1d(width), nn.ReLU()),
            nn.MaxPool1d(3, 2, 1),
        )
        self.blocks = nn.ModuleList(SignalBlock(width) for _ in range(4))
        self.head = nn.Linear(2 * width, 9)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        x = self.stem(signal)
        for block in self.blocks:
            x = block(x)
        return self.head(torch.cat([x.mean(-1), x.amax(-1)], dim=1))


class MemoryHops(nn.Module):
    """A question that reads a memory again and again."""

    def __init__(self, width: int = 30, hops: int = 3) -> None:
        super().__init__()
        self.keys = nn.ModuleList(nn.Embedding(240, width) for _ in range(hops + 1))
        self.times = nn.Parameter(torch.randn(18, width) * 0.1)
        self.mix = nn.Linear(width, width)
        self.head = nn.Linear(width, 240)

    def forward(self, story: torch.Tensor, question: torch.Tensor) -> torch.Tensor:
        u = self.keys[0](question).sum(1)
        for before, after in zip(self.keys, self.keys[1:], strict=False):
            keys = before(story).sum(2) + self.times
            values = after(story).sum(2) + self.times
            shares = torch.softmax((keys * u.unsqueeze(1)).sum(-1), dim=-1)
            u = self.mix(u) + torch.einsum("bn,bnd->bd", shares, values)
        return self.head(u)


def _image(size: int, channels: int = 3) -> object:
    return lambda batch: (torch.randn(batch, channels, size, size),)


def _tokens(vocabulary: int, *sizes: int) -> object:
    return lambda batch: (torch.randint(0, vocabulary, (batch, *sizes)),)


BLOCKS = {
    "mobile_vit": "EncoderLayer",
    "relative_decoder": "RelativeLayer",
    "equivariant": "EquivariantLayer",
    "sampled": "SampledBlock",
    "image_and_text": "EncoderLayer",
    "long_filters": "LongConvolution",
    "residual_vae": "ResidualUnit",
    "style_transfer": "StyleBlock",
    "shifted": "ShiftedBlock",
    "signals": "SignalBlock",
}
NETWORKS = (
    Network("mobile_vit", MobileVit, _image(40), (4, 9)),
    Network("relative_decoder", RelativeDecoder, _tokens(320, 30), (4, 9)),
    Network("hierarchical_classifier", HierarchicalClassifier, _tokens(500, 7, 12), (4, 9)),
    Network(
        "siamese",
        Siamese,
        lambda n: (torch.randn(n, 3, 36, 36), torch.randn(n, 3, 36, 36)),
        (5, 11),
        "mse",
    ),
    Network("point_sets", PointSets, lambda n: (torch.randn(n, 90, 3),), (4, 9)),
    Network(
        "equivariant",
        Equivariant,
        lambda n: (torch.randn(n, 17, 5), torch.randn(n, 17, 3)),
        (5, 11),
        "mse",
    ),
    Network("full_scale_unet", FullScaleUnet, _image(48), (3, 7), "mse"),
    Network(
        "recommender",
        Recommender,
        lambda n: (torch.randn(n, 13), torch.randint(0, 90, (n, 8))),
        (60, 130),
        "mse",
    ),
    Network("sampled", Sampled, _image(36), (4, 9)),
    Network(
        "image_and_text",
        ImageAndText,
        lambda n: (torch.randn(n, 3, 32, 32), torch.randint(0, 260, (n, 20))),
        (5, 11),
        "mse",
    ),
    Network("long_filters", LongFilters, _tokens(210, 40), (4, 9)),
    Network("maxout", Maxout, _image(28, 1), (6, 13)),
    Network("neural_ode", NeuralOde, lambda n: (torch.randn(n, 9),), (70, 150)),
    Network("residual_vae", ResidualVae, _image(28), (4, 9), "mse"),
    Network("style_transfer", StyleTransfer, _image(40), (3, 7), "mse"),
    Network("shifted", Shifted, _image(48), (4, 9)),
    Network(
        "question_and_image",
        QuestionAndImage,
        lambda n: (torch.randint(0, 280, (n, 15)), torch.randn(n, 22, 50)),
        (5, 11),
    ),
    Network("signals", Signals, lambda n: (torch.randn(n, 12, 250),), (4, 9)),
    Network(
        "memory_hops",
        MemoryHops,
        lambda n: (torch.randint(0, 240, (n, 18, 6)), torch.randint(0, 240, (n, 6))),
        (7, 15),
    ),
)
