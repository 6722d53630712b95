"""Networks of images, points and signals as people write them, measured when rules were frozen."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from settings import Network
from torch import nn
from torch.nn import functional
from torch.nn.utils.parametrizations import spectral_norm


class DropPath(nn.Module):
    """Drops a residual branch of some samples."""

    def __init__(self, rate: float = 0.1) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1 - self.rate
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        noise = keep + torch.rand(shape, dtype=x.dtype, device=x.device)
        return x.div(keep) * noise.floor()


class LayerScale(nn.Module):
    """A factor for each channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(1e-5 * torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gamma


class VitBlock(nn.Module):
    """A pre-norm block with scaled and dropped branches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm = nn.LayerNorm(width // heads), nn.LayerNorm(width // heads)
        self.proj = nn.Linear(width, width)
        self.proj_drop = nn.Dropout(0.1)
        self.ls1, self.ls2 = LayerScale(width), LayerScale(width)
        self.drop_path1, self.drop_path2 = DropPath(0.1), DropPath(0.1)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.fc1, self.act, self.fc2 = (
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        x = functional.scaled_dot_product_attention(q, k, v)
        x = x.transpose(1, 2).reshape(b, n, c)
        return self.proj_drop(self.proj(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop_path1(self.ls1(self.attend(self.norm1(x))))
        return x + self.drop_path2(self.ls2(self.fc2(self.act(self.fc1(self.norm2(x))))))


class RegisterVit(nn.Module):
    """A vision transformer with a class token and registers."""

    def __init__(self, width: int = 48, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.patch_embed = nn.Conv2d(3, width, kernel_size=8, stride=8)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.reg_token = nn.Parameter(torch.zeros(1, 4, width))
        self.pos_embed = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        self.pos_drop = nn.Dropout(p=0.1)
        self.blocks = nn.Sequential(*[VitBlock(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 20)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = x + self.pos_embed
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)
        reg_token = self.reg_token.expand(x.shape[0], -1, -1)
        x = self.pos_drop(torch.cat([cls_token, reg_token, x], dim=1))
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


class TNet(nn.Module):
    """A matrix that turns the points."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k
        self.conv1, self.conv2 = nn.Conv1d(k, 24, 1), nn.Conv1d(24, 64, 1)
        self.fc1, self.fc2 = nn.Linear(64, 32), nn.Linear(32, k * k)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(24), nn.BatchNorm1d(64), nn.BatchNorm1d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.size(0)
        x = functional.relu(self.bn1(self.conv1(x)))
        x = functional.relu(self.bn2(self.conv2(x)))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 64)
        x = functional.relu(self.bn3(self.fc1(x)))
        identity = torch.eye(self.k).view(1, self.k * self.k).repeat(batch, 1)
        x = self.fc2(x) + identity
        return x.view(-1, self.k, self.k)


class PointNetSegmenter(nn.Module):
    """A label for each point (PointNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.stn, self.fstn = TNet(3), TNet(24)
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv1d(3, 24, 1),
            nn.Conv1d(24, 48, 1),
            nn.Conv1d(48, 96, 1),
        )
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(24), nn.BatchNorm1d(48), nn.BatchNorm1d(96)
        self.head1, self.head2 = nn.Conv1d(120, 48, 1), nn.Conv1d(48, 7, 1)
        self.bn4 = nn.BatchNorm1d(48)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n_pts = x.size(2)
        trans = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        x = functional.relu(self.bn1(self.conv1(x)))
        trans_feat = self.fstn(x)
        x = torch.bmm(x.transpose(2, 1), trans_feat).transpose(2, 1)
        pointfeat = x
        x = functional.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x = torch.max(x, 2, keepdim=True)[0].repeat(1, 1, n_pts)
        x = torch.cat([x, pointfeat], 1)
        x = functional.relu(self.bn4(self.head1(x)))
        return functional.log_softmax(self.head2(x), dim=1)


class SEModule(nn.Module):
    """Gates channels by their means."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = (
            nn.Conv2d(width, max(8, width // 4), 1),
            nn.Conv2d(max(8, width // 4), width, 1),
        )
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.avgpool(x)
        scale = self.scale_activation(self.fc2(self.activation(self.fc1(scale))))
        return scale * x


class BottleneckV3(nn.Module):
    """Expand, filter each channel, gate, project."""

    def __init__(self, before: int, inner: int, after: int, stride: int, *, hs: bool) -> None:
        super().__init__()
        act = nn.Hardswish if hs else nn.ReLU
        self.use_res = stride == 1 and before == after
        self.block = nn.Sequential(
            nn.Conv2d(before, inner, 1, bias=False),
            nn.BatchNorm2d(inner, eps=0.001, momentum=0.01),
            act(inplace=True),
            nn.Conv2d(inner, inner, 5, stride, 2, groups=inner, bias=False),
            nn.BatchNorm2d(inner, eps=0.001, momentum=0.01),
            act(inplace=True),
            SEModule(inner),
            nn.Conv2d(inner, after, 1, bias=False),
            nn.BatchNorm2d(after, eps=0.001, momentum=0.01),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = self.block(x)
        if self.use_res:
            result += x
        return result


class MobileV3(nn.Module):
    """A small MobileNetV3."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False),
            nn.BatchNorm2d(16),
            nn.Hardswish(inplace=True),
            BottleneckV3(16, 32, 16, 1, hs=False),
            BottleneckV3(16, 64, 24, 2, hs=False),
            BottleneckV3(24, 72, 24, 1, hs=True),
            BottleneckV3(24, 96, 40, 2, hs=True),
            BottleneckV3(40, 120, 40, 1, hs=True),
            nn.Conv2d(40, 160, 1, bias=False),
            nn.BatchNorm2d(160),
            nn.Hardswish(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(160, 128),
            nn.Hardswish(inplace=True),
            nn.Dropout(p=0.2, inplace=True),
            nn.Linear(128, 15),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(torch.flatten(x, 1))


class ASPP(nn.Module):
    """Convolutions of several rates, and the mean of the image."""

    def __init__(self, before: int, after: int, rates: tuple[int, ...]) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 3, padding=rate, dilation=rate, bias=False),
                nn.BatchNorm2d(after),
                nn.ReLU(),
            )
            for rate in rates
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(before, after, 1), nn.ReLU())
        self.project = nn.Sequential(
            nn.Conv2d((len(rates) + 1) * after, after, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.Dropout(0.5),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        res = [conv(x) for conv in self.convs]
        pooled = functional.interpolate(
            self.pool(x), size=x.shape[-2:], mode="bilinear", align_corners=False
        )
        res.append(pooled)
        return self.project(torch.cat(res, dim=1))


class Basic(nn.Module):
    """A residual block of two convolutions."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or before != after:
            self.downsample = nn.Sequential(
                nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class DeepLab(nn.Module):
    """Segmentation by convolutions of several rates (DeepLabV3+)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.layer1 = nn.Sequential(Basic(16, 24), Basic(24, 24))
        self.layer2 = nn.Sequential(Basic(24, 48, 2), Basic(48, 48))
        self.aspp = ASPP(48, 32, (1, 2, 3))
        self.low = nn.Sequential(
            nn.Conv2d(24, 12, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU(inplace=True)
        )
        self.classifier = nn.Sequential(
            nn.Conv2d(44, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 6, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        input_shape = x.shape[-2:]
        low_level = self.layer1(self.stem(x))
        out = self.aspp(self.layer2(low_level))
        low_level = self.low(low_level)
        out = functional.interpolate(
            out, size=low_level.shape[2:], mode="bilinear", align_corners=False
        )
        out = self.classifier(torch.cat([low_level, out], dim=1))
        return functional.interpolate(out, size=input_shape, mode="bilinear", align_corners=False)


class Retina(nn.Module):
    """Boxes and classes of all levels of a pyramid."""

    def __init__(self, classes: int = 5, anchors: int = 3) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True)
        )
        self.stages = nn.ModuleList([Basic(16, 24, 2), Basic(24, 40, 2), Basic(40, 56, 2)])
        self.inner_blocks = nn.ModuleList([nn.Conv2d(width, 32, 1) for width in (24, 40, 56)])
        self.layer_blocks = nn.ModuleList([nn.Conv2d(32, 32, 3, padding=1) for _ in range(3)])
        self.cls_subnet = self._subnet(classes * anchors)
        self.box_subnet = self._subnet(4 * anchors)

    @staticmethod
    def _subnet(after: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for _ in range(2):
            layers += [nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers, nn.Conv2d(32, after, 3, padding=1))

    def _flat(self, x: torch.Tensor, last: int) -> torch.Tensor:
        n, _, h, w = x.shape
        x = x.view(n, -1, last, h, w).permute(0, 3, 4, 1, 2)
        return x.reshape(n, -1, last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        features = []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        last_inner = self.inner_blocks[-1](features[-1])
        results = [self.layer_blocks[-1](last_inner)]
        for idx in range(len(features) - 2, -1, -1):
            inner_lateral = self.inner_blocks[idx](features[idx])
            inner_top_down = functional.interpolate(
                last_inner, size=inner_lateral.shape[-2:], mode="nearest"
            )
            last_inner = inner_lateral + inner_top_down
            results.insert(0, self.layer_blocks[idx](last_inner))
        logits = torch.cat([self._flat(self.cls_subnet(f), self.classes) for f in results], dim=1)
        boxes = torch.cat([self._flat(self.box_subnet(f), 4) for f in results], dim=1)
        return torch.cat([boxes, logits], dim=2)


class Triplet(nn.Module):
    """Distances of an anchor to a like and an unlike image."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.convnet = nn.Sequential(
            *(nn.Conv2d(1, width, 5), nn.PReLU(), nn.MaxPool2d(2, stride=2)),
            *(nn.Conv2d(width, 2 * width, 5), nn.PReLU(), nn.MaxPool2d(2, stride=2)),
        )
        self.fc = nn.Sequential(
            nn.Linear(2 * width * 16, 96),
            nn.PReLU(),
            nn.Linear(96, 64),
            nn.PReLU(),
            nn.Linear(64, 16),
        )

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        out = self.convnet(x)
        out = out.view(out.size(0), -1)
        return self.fc(out)

    def forward(
        self, anchor: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor
    ) -> torch.Tensor:
        a, p, n = self.embed(anchor), self.embed(positive), self.embed(negative)
        return torch.stack([(a - p).pow(2).sum(1), (a - n).pow(2).sum(1)], dim=1)


class ResidualDense(nn.Module):
    """Five convolutions, each of which reads all before it."""

    def __init__(self, width: int, grow: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width + n * grow, after, 3, 1, 1)
            for n, after in enumerate((grow, grow, grow, grow, width))
        )
        self.lrelu = nn.LeakyReLU(negative_slope=0.2, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x1 = self.lrelu(self.convs[0](x))
        x2 = self.lrelu(self.convs[1](torch.cat((x, x1), 1)))
        x3 = self.lrelu(self.convs[2](torch.cat((x, x1, x2), 1)))
        x4 = self.lrelu(self.convs[3](torch.cat((x, x1, x2, x3), 1)))
        x5 = self.convs[4](torch.cat((x, x1, x2, x3, x4), 1))
        return x5 * 0.2 + x


class DenseUpscaler(nn.Module):
    """ESRGAN: residual dense blocks, then shuffled pixels."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.conv_first = nn.Conv2d(3, width, 3, 1, 1)
        self.body = nn.Sequential(*[ResidualDense(width, 12) for _ in range(3)])
        self.conv_body = nn.Conv2d(width, width, 3, 1, 1)
        self.upsampler = nn.Sequential(
            *(
                nn.Conv2d(width, 4 * width, 3, 1, 1),
                nn.PixelShuffle(2),
                nn.LeakyReLU(0.2, inplace=True),
            )
        )
        self.conv_last = nn.Conv2d(width, 3, 3, 1, 1)
        self.register_buffer("mean", torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = (x - self.mean) * 255.0
        feat = self.conv_first(x)
        body_feat = self.conv_body(self.body(feat))
        feat = feat + body_feat
        return self.conv_last(self.upsampler(feat)) / 255.0 + self.mean


class SkipBlock(nn.Module):
    """A level of a U-Net around the levels below (pix2pix)."""

    def __init__(
        self, outer: int, inner: int, below: nn.Module | None, *, top: bool = False
    ) -> None:
        super().__init__()
        self.top = top
        before = 3 if top else outer
        down: list[nn.Module] = [nn.Conv2d(before, inner, 4, 2, 1)]
        if not top:
            down.insert(0, nn.LeakyReLU(0.2, inplace=True))
        if not top and below is not None:
            down.append(nn.InstanceNorm2d(inner))
        up_in = inner if below is None else 2 * inner
        up: list[nn.Module] = [
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(up_in, 3 if top else outer, 4, 2, 1),
        ]
        up.append(nn.Tanh() if top else nn.InstanceNorm2d(outer))
        if not top:
            up.append(nn.Dropout(0.5))
        self.model = nn.Sequential(*down, *([] if below is None else [below]), *up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.top:
            return self.model(x)
        return torch.cat([x, self.model(x)], 1)


def pix2pix() -> nn.Module:
    """A generator of nested levels."""
    block = SkipBlock(48, 48, None)
    block = SkipBlock(32, 48, block)
    block = SkipBlock(16, 32, block)
    return SkipBlock(3, 16, block, top=True)


class SimSiam(nn.Module):
    """Two views of an image; what one predicts of the other is compared without its gradient."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(
                nn.Conv2d(3, width, 3, 2, 1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ),
            *(Basic(width, 2 * width, 2), Basic(2 * width, 3 * width, 2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3 * width, 64, bias=False)),
            *(
                nn.BatchNorm1d(64),
                nn.ReLU(inplace=True),
                nn.Linear(64, 64),
                nn.BatchNorm1d(64, affine=False),
            ),
        )
        self.predictor = nn.Sequential(
            nn.Linear(64, 16, bias=False),
            nn.BatchNorm1d(16),
            nn.ReLU(inplace=True),
            nn.Linear(16, 64),
        )

    def forward(self, x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        z1, z2 = self.encoder(x1), self.encoder(x2)
        p1, p2 = self.predictor(z1), self.predictor(z2)
        a = functional.cosine_similarity(p1, z2.detach(), dim=1)
        b = functional.cosine_similarity(p2, z1.detach(), dim=1)
        return -(a + b) * 0.5


class Conv2Plus1D(nn.Sequential):
    """A convolution of space, then one of time."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        mid = before * after * 27 // (before * 9 + 3 * after)
        super().__init__(
            nn.Conv3d(before, mid, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False),
            nn.BatchNorm3d(mid),
            nn.ReLU(inplace=True),
            nn.Conv3d(mid, after, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False),
        )


class VideoBlock(nn.Module):
    """A residual block of film."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(
            Conv2Plus1D(width, width), nn.BatchNorm3d(width), nn.ReLU(inplace=True)
        )
        self.conv2 = nn.Sequential(Conv2Plus1D(width, width), nn.BatchNorm3d(width))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x
        out = self.conv2(self.conv1(x))
        out += residual
        return self.relu(out)


class Video(nn.Module):
    """Films to classes (R(2+1)D)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(
                nn.Conv3d(3, 10, (1, 7, 7), (1, 2, 2), (0, 3, 3), bias=False),
                nn.BatchNorm3d(10),
                nn.ReLU(inplace=True),
            ),
            *(
                nn.Conv3d(10, width, (3, 1, 1), 1, (1, 0, 0), bias=False),
                nn.BatchNorm3d(width),
                nn.ReLU(inplace=True),
            ),
        )
        self.layer1 = nn.Sequential(VideoBlock(width), VideoBlock(width), VideoBlock(width))
        self.avgpool = nn.AdaptiveAvgPool3d((1, 1, 1))
        self.fc = nn.Linear(width, 9)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.avgpool(self.layer1(self.stem(x)))
        return self.fc(x.flatten(1))


class ConditionalNorm(nn.Module):
    """A batch norm whose scale and shift are those of a class."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.width = width
        self.bn = nn.BatchNorm2d(width, affine=False)
        self.embed = nn.Embedding(classes, 2 * width)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.bn(x)
        gamma, beta = self.embed(y).chunk(2, 1)
        return gamma.view(-1, self.width, 1, 1) * out + beta.view(-1, self.width, 1, 1)


class GeneratorBlock(nn.Module):
    """Twice the size, given a class."""

    def __init__(self, before: int, after: int, classes: int) -> None:
        super().__init__()
        self.cbn1, self.cbn2 = ConditionalNorm(before, classes), ConditionalNorm(after, classes)
        self.conv1 = spectral_norm(nn.Conv2d(before, after, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(after, after, 3, padding=1))
        self.conv0 = spectral_norm(nn.Conv2d(before, after, 1))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x0 = x
        x = self.relu(self.cbn1(x, y))
        x = functional.interpolate(x, scale_factor=2, mode="nearest")
        x = self.conv1(x)
        x = self.relu(self.cbn2(x, y))
        x = self.conv2(x)
        x0 = self.conv0(functional.interpolate(x0, scale_factor=2, mode="nearest"))
        return x + x0


class ConditionalGan(nn.Module):
    """Noise and a class to an image."""

    def __init__(self, width: int = 16, classes: int = 10) -> None:
        super().__init__()
        self.width = width
        self.linear = nn.Linear(32, 16 * 4 * width)
        self.block1 = GeneratorBlock(4 * width, 2 * width, classes)
        self.block2 = GeneratorBlock(2 * width, width, classes)
        self.block3 = GeneratorBlock(width, width, classes)
        self.bn, self.conv = nn.BatchNorm2d(width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = self.linear(z).view(-1, 4 * self.width, 4, 4)
        x = self.block3(self.block2(self.block1(x, y), y), y)
        return torch.tanh(self.conv(functional.relu(self.bn(x))))


class Cbam(nn.Module):
    """Gates channels, then places (CBAM), in a residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.conv2, self.bn2 = (
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.mlp = nn.Sequential(
            nn.Linear(width, width // 4), nn.ReLU(), nn.Linear(width // 4, width)
        )
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        b, c, _, _ = out.shape
        avg = self.mlp(functional.adaptive_avg_pool2d(out, 1).view(b, c))
        largest = self.mlp(functional.adaptive_max_pool2d(out, 1).view(b, c))
        out = out * torch.sigmoid(avg + largest).view(b, c, 1, 1)
        pooled = torch.cat(
            [torch.mean(out, dim=1, keepdim=True), torch.max(out, dim=1, keepdim=True)[0]], dim=1
        )
        out = out * torch.sigmoid(self.spatial(pooled))
        return functional.relu(out + x)


class GatedPlaces(nn.Module):
    """A residual network with gates of channels and of places."""

    def __init__(self, width: int = 20) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, 2, 3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.blocks = nn.Sequential(*[Cbam(width) for _ in range(4)])
        self.fc = nn.Linear(width, 25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.fc(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))


class ConvBnMish(nn.Module):
    """A convolution, a batch norm and Mish."""

    def __init__(self, before: int, after: int, k: int = 1, s: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(before, after, k, s, k // 2, bias=False)
        self.bn, self.act = nn.BatchNorm2d(after), nn.Mish()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.bn(self.conv(x)))


class Csp(nn.Module):
    """Half of the channels pass residual blocks, half do not."""

    def __init__(self, before: int, after: int, count: int) -> None:
        super().__init__()
        half = after // 2
        self.cv1, self.cv2, self.cv3 = (
            ConvBnMish(before, half),
            ConvBnMish(before, half),
            ConvBnMish(after, after),
        )
        self.m = nn.ModuleList(
            nn.Sequential(ConvBnMish(half, half), ConvBnMish(half, half, 3)) for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.cv1(x)
        for m in self.m:
            y = y + m(y)
        return self.cv3(torch.cat((y, self.cv2(x)), dim=1))


class CspDetector(nn.Module):
    """A detector with pooling of several sizes and a map of predictions."""

    def __init__(self, width: int = 12, classes: int = 4, anchors: int = 3) -> None:
        super().__init__()
        self.no, self.na = classes + 5, anchors
        self.stem, self.c2 = ConvBnMish(12, width, 3), Csp(width, 2 * width, 1)
        self.d3, self.c3 = ConvBnMish(2 * width, 4 * width, 3, 2), Csp(4 * width, 4 * width, 2)
        self.spp = nn.ModuleList(nn.MaxPool2d(k, 1, k // 2) for k in (5, 9, 13))
        self.after_spp = ConvBnMish(16 * width, 4 * width)
        self.lateral, self.c4 = ConvBnMish(4 * width, 2 * width), Csp(4 * width, 2 * width, 1)
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.heads = nn.ModuleList(
            nn.Conv2d(w, anchors * self.no, 1) for w in (2 * width, 4 * width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cat(
            [x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2]], 1
        )
        p2 = self.c2(self.stem(x))
        p3 = self.c3(self.d3(p2))
        p3 = self.after_spp(torch.cat([p3] + [m(p3) for m in self.spp], 1))
        p2 = self.c4(torch.cat([self.up(self.lateral(p3)), p2], 1))
        z = []
        for head, feature in zip(self.heads, (p2, p3), strict=True):
            y = head(feature)
            bs, _, ny, nx = y.shape
            y = y.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
            z.append(y.sigmoid().view(bs, -1, self.no))
        return torch.cat(z, 1)


def _image(size: int, channels: int = 3) -> object:
    return lambda batch: (torch.randn(batch, channels, size, size),)


BLOCKS = {
    "register_vit": "VitBlock",
    "mobile_v3": "BottleneckV3",
    "dense_upscaler": "ResidualDense",
    "video": "VideoBlock",
    "conditional_gan": "GeneratorBlock",
    "gated_places": "Cbam",
}
NETWORKS = (
    Network("register_vit", RegisterVit, _image(64), (4, 9)),
    Network(
        "point_segmenter", PointNetSegmenter, lambda n: (torch.randn(n, 3, 300),), (5, 11), "mse"
    ),
    Network("mobile_v3", MobileV3, _image(64), (5, 11)),
    Network("deep_lab", DeepLab, _image(64), (3, 7), "mse"),
    Network("retina", Retina, _image(96), (3, 7), "mse"),
    Network(
        "triplet",
        Triplet,
        lambda n: tuple(torch.randn(n, 1, 28, 28) for _ in range(3)),
        (6, 13),
        "mse",
    ),
    Network("dense_upscaler", DenseUpscaler, _image(28), (3, 7), "mse"),
    Network("pix2pix", pix2pix, _image(64), (3, 7), "mse"),
    Network(
        "sim_siam",
        SimSiam,
        lambda n: (torch.randn(n, 3, 40, 40), torch.randn(n, 3, 40, 40)),
        (5, 11),
        "mse",
    ),
    Network("video", Video, lambda n: (torch.randn(n, 3, 6, 40, 40),), (3, 7)),
    Network(
        "conditional_gan",
        ConditionalGan,
        lambda n: (torch.randn(n, 32), torch.randint(0, 10, (n,))),
        (5, 11),
        "mse",
    ),
    Network("gated_places", GatedPlaces, _image(64), (4, 9)),
    Network("csp_detector", CspDetector, _image(64), (3, 7), "mse"),
)
