"""The networks whose training steps others measured, as `steps.csv` names them.

Each is configured or written as its authors' code was at the time: models of `transformers` and
`torchvision`, and the recognizers of mmaction2 0.24, which are ResNets with a head. Weights are
random; nothing is downloaded.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
# ruff: noqa: D102  # what `forward` computes is its class docstring

from collections.abc import Callable
from dataclasses import dataclass

import torch
from resnets import ResNet2d, ResNet3d
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Published:
    """A network and the inputs that its file is exported with."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    dynamic: tuple[str, ...] = ("batch",)
    """Names of the leading dims of each input that stay symbolic."""


class LanguageModel(nn.Module):
    """A language model of transformers: its logits and, of a decoder, its key-value cache.

    The cache is an output that the loop keeps until the next step's: `use_cache` is on by default.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        outputs = self.model(input_ids=tokens)
        cache = outputs.get("past_key_values") or ()
        return (outputs.logits, *(tensor for layer in cache for tensor in layer))


def _language_model(name: str, attention: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        configs = {
            "bert-base": lambda: transformers.BertConfig(is_decoder=False),
            "opt-350m": lambda: transformers.OPTConfig(
                hidden_size=1024,
                num_hidden_layers=24,
                ffn_dim=4096,
                num_attention_heads=16,
                word_embed_proj_dim=512,
                do_layer_norm_before=False,
            ),
            "pythia-410m": lambda: transformers.GPTNeoXConfig(
                vocab_size=50304,
                hidden_size=1024,
                num_hidden_layers=24,
                num_attention_heads=16,
                intermediate_size=4096,
                hidden_dropout=0.0,
                attention_dropout=0.0,
            ),
        }
        classes = {
            "bert-base": transformers.BertLMHeadModel,
            "opt-350m": transformers.OPTForCausalLM,
            "pythia-410m": transformers.GPTNeoXForCausalLM,
        }
        config = configs[name]()
        config._attn_implementation = attention  # noqa: SLF001 - the only switch without a download
        return LanguageModel(classes[name](config))

    return build


def _tokens() -> tuple[Tensor, ...]:
    return (torch.ones(2, 64, dtype=torch.long),)


def _images(size: int, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.zeros(2, channels, size, size),)


def _frames(segments: int, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.zeros(2, segments, channels, 224, 224),)


def _clips(frames: int, channels: int = 3) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.zeros(2, channels, frames, 224, 224),)


class Frames(nn.Module):
    """A 2-D recognizer: a ResNet on each frame, the scores of a video's frames averaged.

    mmaction/models/recognizers/recognizer2d.py, heads/tsn_head.py and tsm_head.py.
    """

    def __init__(self, backbone: nn.Module, width: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.backbone = backbone
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, classes)

    def forward(self, frames: Tensor) -> Tensor:
        segments = frames.shape[1]
        features = self.backbone(frames.flatten(0, 1))
        pooled = functional.adaptive_avg_pool2d(features, 1).flatten(1)
        scores = self.classifier(self.dropout(pooled))
        return scores.unflatten(0, (-1, segments)).mean(dim=1)


class FramesPooledFirst(Frames):
    """The same as TSNHead has it: pooled over space, then averaged over frames, then classified."""

    def forward(self, frames: Tensor) -> Tensor:
        segments = frames.shape[1]
        features = self.backbone(frames.flatten(0, 1))
        pooled = functional.adaptive_avg_pool2d(features, 1)
        averaged = pooled.unflatten(0, (-1, segments)).mean(dim=1)
        return self.classifier(self.dropout(averaged).flatten(1))


class Clips(nn.Module):
    """A 3-D recognizer: I3DHead pools over time and space."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.dropout = nn.Dropout(0.5)
        self.classifier = nn.Linear(width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        pooled = functional.adaptive_avg_pool3d(self.backbone(clips), 1)
        return self.classifier(self.dropout(pooled).flatten(1))


def _tsn(depth: int, segments: int, classes: int, channels: int = 3) -> Published:
    width = 512 if depth < 50 else 2048  # noqa: PLR2004 - basic blocks, or bottlenecks
    return Published(
        lambda: FramesPooledFirst(ResNet2d(depth, channels), width, classes, 0.4),
        _frames(segments, channels),
    )


def _tsm(depth: int, segments: int, classes: int) -> Published:
    return Published(
        lambda: Frames(ResNet2d(depth, shifted=segments), 2048, classes, 0.5), _frames(segments)
    )


def _slow_only(frames: int, classes: int, channels: int = 3) -> Published:
    return Published(
        lambda: Clips(
            ResNet3d(50, channels, inflate=(0, 0, 1, 1), has_pool2=channels == 3),  # noqa: PLR2004
            2048,
            classes,
        ),
        _clips(frames, channels),
    )


def _i3d() -> Published:
    inflate = ((1, 1, 1), (1, 0, 1, 0), (1, 0, 1, 0, 1, 0), (0, 1, 0))
    return Published(
        lambda: Clips(ResNet3d(50, 3, inflate=inflate, stem=(5, 2), has_pool2=True), 2048, 400),
        _clips(32),
    )


def _torchvision(name: str, classes: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import torchvision

        return getattr(torchvision.models, name)(num_classes=classes)

    return build


def _networks() -> dict[str, Published]:
    found: dict[str, Published] = {}
    for name in ("bert-base", "opt-350m", "pythia-410m"):
        for attention in ("eager", "sdpa"):
            found[f"{name}.{attention}"] = Published(
                _language_model(name, attention), _tokens, ("batch", "seq")
            )
    found["vit_l_16"] = Published(_torchvision("vit_l_16", 10), _images(224))
    found["resnet50-fc2"] = Published(_torchvision("resnet50", 2), _images(224))
    found["mobilenet_v2-fc2"] = Published(_torchvision("mobilenet_v2", 2), _images(224))
    for segments, classes in ((3, 101), (8, 48), (16, 48), (8, 51), (3, 400), (5, 400), (8, 400)):
        found[f"tsn_r50_{segments}-{classes}"] = _tsn(50, segments, classes)
    for segments, classes in ((8, 600), (8, 700), (8, 174), (16, 174), (6, 339), (8, 200)):
        found[f"tsn_r50_{segments}-{classes}"] = _tsn(50, segments, classes)
    found["tsn_r101_5-313"] = _tsn(101, 5, 313)
    found["tsn_r50_3-400-flow"] = _tsn(50, 3, 400, 10)
    found["tsn_r50_8-400-flow"] = _tsn(50, 8, 400, 10)
    found["tsn_r50_8-200-flow"] = _tsn(50, 8, 200, 10)
    for segments in (8, 16):
        for classes in (400, 48, 174, 51, 101):
            found[f"tsm_r50_{segments}-{classes}"] = _tsm(50, segments, classes)
    found["tsm_r101_8-174"] = _tsm(101, 8, 174)
    for frames, classes in ((4, 400), (8, 400), (8, 51), (8, 101)):
        found[f"slowonly_r50_{frames}-{classes}"] = _slow_only(frames, classes)
    found["slowonly_r50_4-400-flow"] = _slow_only(4, 400, 2)
    found["slowonly_r50_8-400-flow"] = _slow_only(8, 400, 2)
    found["i3d_r50_32-400"] = _i3d()
    return found


NETWORKS = _networks()
