"""Which networks are exported at two batches, and which of them were held out.

``HELD_OUT`` were exported only when the rules were written: the figures of those say what the rules
are worth on networks that nobody looked at.
"""

# ruff: noqa: ANN401, D102, SLF001 - options of libraries go through; transformers has no public switch

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import timm
import torch
import torchvision
import transformers
import written
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Network:
    """A network and the input of a batch."""

    build: Callable[[], nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]


class Plain(nn.Module):
    """A model of transformers with plain tensors in and out."""

    def __init__(self, inner: nn.Module, *names: str, takes: tuple[str, ...]) -> None:
        super().__init__()
        self.inner, self.names, self.takes = inner, names, takes

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.takes, inputs, strict=True))
        extra = {"use_cache": False} if getattr(self.inner.config, "use_cache", False) else {}
        found = self.inner(**given, **extra, return_dict=True)
        made = tuple(getattr(found, name) for name in self.names)
        return made[0] if len(made) == 1 else made


def image(channels: int, *size: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Images of a size."""
    return lambda batch: (torch.rand(batch, channels, *size),)


def floats(*dims: int) -> Callable[[int], tuple[Tensor, ...]]:
    """Random floats of the dims of one sample."""
    return lambda batch: (torch.rand(batch, *dims),)


def tokens(*lengths: int) -> Callable[[int], tuple[Tensor, ...]]:
    """A sequence of tokens of each length."""
    return lambda batch: tuple(torch.randint(3, 50, (batch, length)) for length in lengths)


def masked_tokens(length: int) -> Callable[[int], tuple[Tensor, ...]]:
    """A sequence of tokens and its mask of ones."""

    def made(batch: int) -> tuple[Tensor, ...]:
        return torch.randint(3, 50, (batch, length)), torch.ones(batch, length, dtype=torch.long)

    return made


def timm_model(name: str, **options: Any) -> Callable[[], nn.Module]:
    """A model of timm without its weights."""
    return lambda: timm.create_model(name, pretrained=False, num_classes=7, **options)


def hugging(
    kind: str, *names: str, takes: tuple[str, ...] = ("input_ids",), **options: Any
) -> Callable[[], nn.Module]:
    """A model of transformers of a tiny configuration; ``kind`` without its suffix."""

    def build() -> nn.Module:
        config_of = kind.removesuffix("EncoderModel").removesuffix("Model")
        config = getattr(transformers, config_of + "Config")(**options)
        config._attn_implementation = "eager"
        inner = getattr(transformers, kind)(config)
        return Plain(inner, *(names or ("last_hidden_state",)), takes=takes)

    return build


def part(
    module: str, kind: str, config: str, takes: tuple[str, ...], **options: Any
) -> Callable[[], nn.Module]:
    """A part of a model of transformers, from its module."""

    def build() -> nn.Module:
        library = __import__(f"transformers.models.{module}", fromlist=[kind])
        settings = getattr(transformers, config)(**options)
        settings._attn_implementation = "eager"
        return Plain(getattr(library, kind)(settings), "last_hidden_state", takes=takes)

    return build


_SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "vocab_size": 53,
}
_SPEECH = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 40,
    "conv_dim": (8, 8, 8),
    "conv_kernel": (10, 3, 3),
    "conv_stride": (5, 2, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 4,
    "num_conv_pos_embedding_groups": 2,
}

WORKED_ON: Mapping[str, Network] = {
    "resnet18": Network(lambda: torchvision.models.resnet18(num_classes=7), image(3, 64, 64)),
    "mobilenetv3": Network(timm_model("mobilenetv3_small_050"), image(3, 64, 64)),
    "vit": Network(timm_model("vit_tiny_patch16_224", img_size=64, depth=2), image(3, 64, 64)),
    "swin": Network(
        timm_model(
            "swin_tiny_patch4_window7_224",
            img_size=56,
            embed_dim=12,
            depths=(2, 2),
            num_heads=(2, 3),
        ),
        image(3, 56, 56),
    ),
    "cait": Network(timm_model("cait_xxs24_224", img_size=64, depth=2), image(3, 64, 64)),
    "xcit": Network(
        timm_model("xcit_nano_12_p16_224", img_size=64, depth=2, cls_attn_layers=1),
        image(3, 64, 64),
    ),
    "bert": Network(
        hugging("BertModel", takes=("input_ids", "attention_mask"), **_SMALL), masked_tokens(9)
    ),
    "bert_without_mask": Network(hugging("BertModel", **_SMALL), tokens(9)),
    "gpt2": Network(
        hugging("GPT2Model", n_embd=24, n_layer=2, n_head=2, vocab_size=53, n_positions=16),
        tokens(9),
    ),
    "wav2vec2": Network(hugging("Wav2Vec2Model", takes=("input_values",), **_SPEECH), floats(1000)),
    "mamba": Network(
        hugging("MambaModel", hidden_size=12, state_size=5, num_hidden_layers=2, vocab_size=53),
        tokens(6),
    ),
    "segformer": Network(
        hugging(
            "SegformerModel",
            takes=("pixel_values",),
            hidden_sizes=[8, 16, 24, 32],
            depths=[1, 1, 1, 1],
            num_attention_heads=[1, 2, 3, 4],
            decoder_hidden_size=16,
        ),
        image(3, 64, 64),
    ),
    "stateful_lstm": Network(written.StatefulLstm, floats(5, 11)),
    "plain_gru": Network(written.PlainGru, floats(5, 11)),
    "lstm_cells": Network(written.LstmCells, floats(5, 11)),
    "selective_scan": Network(written.SelectiveScan, floats(6, 11)),
    "unet": Network(written.UNet, image(3, 32, 32)),
    "ssd_head": Network(written.SsdHead, image(3, 32, 32)),
    "query_decoder": Network(written.QueryDecoder, image(3, 32, 32)),
    "frames_then_time": Network(written.FramesThenTime, floats(5, 3, 16, 16)),
    "conformer": Network(written.Conformer, floats(41, 20)),
    "point_net": Network(written.PointNet, floats(3, 31)),
    "graph_layer": Network(written.GraphLayer, floats(9, 11)),
}
HELD_OUT: Mapping[str, Network] = {
    "densenet": Network(timm_model("densenet121", block_config=(2, 2)), image(3, 64, 64)),
    "convnext": Network(
        timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), image(3, 64, 64)
    ),
    "deit": Network(
        timm_model("deit_tiny_distilled_patch16_224", img_size=64, depth=2), image(3, 64, 64)
    ),
    "beit": Network(
        timm_model("beit_base_patch16_224", img_size=64, depth=2, embed_dim=24, num_heads=2),
        image(3, 64, 64),
    ),
    "levit": Network(timm_model("levit_128s", img_size=64), image(3, 64, 64)),
    "maxvit": Network(timm_model("maxvit_rmlp_pico_rw_256", img_size=64), image(3, 64, 64)),
    "fcn": Network(
        lambda: (
            torchvision.models.segmentation.lraspp_mobilenet_v3_large(
                weights=None, weights_backbone=None
            ).backbone
        ),
        image(3, 64, 64),
    ),
    "whisper_encoder": Network(
        part(
            "whisper.modeling_whisper",
            "WhisperEncoder",
            "WhisperConfig",
            ("input_features",),
            d_model=24,
            encoder_layers=2,
            encoder_attention_heads=2,
            encoder_ffn_dim=40,
            max_source_positions=50,
            num_mel_bins=20,
            vocab_size=53,
        ),
        floats(20, 100),
    ),
    "hubert": Network(hugging("HubertModel", takes=("input_values",), **_SPEECH), floats(1000)),
    "t5": Network(
        hugging(
            "T5Model",
            takes=("input_ids", "decoder_input_ids"),
            d_model=24,
            d_kv=12,
            d_ff=40,
            num_layers=2,
            num_heads=2,
            vocab_size=53,
        ),
        tokens(9, 5),
    ),
    "llama": Network(hugging("LlamaModel", num_key_value_heads=1, **_SMALL), tokens(9)),
    "albert": Network(hugging("AlbertModel", embedding_size=10, **_SMALL), tokens(9)),
    "deberta": Network(
        hugging(
            "DebertaV2Model",
            takes=("input_ids", "attention_mask"),
            relative_attention=True,
            pos_att_type=["p2c", "c2p"],
            **_SMALL,
        ),
        masked_tokens(9),
    ),
    "clip_vision": Network(
        hugging(
            "CLIPVisionModel",
            takes=("pixel_values",),
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=40,
            image_size=32,
            patch_size=8,
        ),
        image(3, 32, 32),
    ),
    "two_way_gru": Network(written.TwoWayGru, floats(5, 11)),
    "conv_lstm": Network(written.ConvLstm, floats(4, 3, 12, 12)),
    "diagonal_states": Network(written.DiagonalStates, floats(6, 11)),
    "yolo_head": Network(written.YoloHead, image(3, 32, 32)),
    "latents": Network(written.Latents, floats(17, 11)),
    "pixel_shuffle": Network(written.PixelShuffle, image(1, 20, 20)),
    "grid_sampler": Network(written.GridSampler, image(3, 16, 16)),
    "vector_quantizer": Network(written.VectorQuantizer, image(3, 32, 32)),
    "packed_speech": Network(written.PackedSpeech, floats(5, 11)),
}
