"""Networks of timm and transformers with random weights, by both exporters of torch.

Usage: python tools/onnxruntime/exported_networks.py FOLDER

Needs torch, timm, transformers and onnxscript. Weights are in the files. A network that an exporter
refuses is printed and left out: timm 1.0, transformers 5.17 and torch 2.14 gave 131 files.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import timm
import torch
import transformers

TIMM: Final = """
ghostnetv2_100 edgenext_xx_small fastvit_t8 levit_128s mobilevitv2_050 repvit_m0_9 starnet_s1
tiny_vit_5m_224 xcit_nano_12_p16_224 poolformerv2_s12 hgnetv2_b0 inception_next_atto mambaout_femto
efficientformerv2_s0 pvt_v2_b0 crossvit_tiny_240 visformer_tiny gcvit_xxtiny regnety_002 selecsls42
dla34 lcnet_035 skresnet18 rexnet_100 resnest14d cs3darknet_s ese_vovnet19b_dw tf_mixnet_s
convmixer_768_32 hiera_tiny_224
""".split()
SIZES: Final = {
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 192,
}
_GROUPED: Final = {"num_key_value_heads": 2}
_SPLIT: Final = {**_GROUPED, "head_dim": 24}
_GPT: Final = {"n_embd": 96, "n_layer": 3, "n_head": 4, "rotary_dim": 16}
_TOKENS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_OPERATOR: Final = {"layer_types": ["conv", "full_attention", "conv"]}
LANGUAGE: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "albert": ("Albert/Model", {"embedding_size": 48}),
    "electra": ("Electra/Model", {"embedding_size": 48}),
    "mpnet": ("MPNet/Model", {}),
    "debertav2": ("DebertaV2/Model", {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]}),
    "modernbert": ("ModernBert/Model", {**_TOKENS, "cls_token_id": 3, "sep_token_id": 4}),
    "gemma2": ("Gemma2/ForCausalLM", _SPLIT),
    "gemma3": ("Gemma3Text/Gemma3ForCausalLM", _SPLIT),
    "phi3": ("Phi3/ForCausalLM", {**_GROUPED, **_TOKENS}),
    "falcon": ("Falcon/ForCausalLM", {"ffn_hidden_size": 192}),
    "bloom": ("Bloom/ForCausalLM", {"n_layer": 3, "n_head": 4}),
    "mpt": ("Mpt/ForCausalLM", {"d_model": 96, "n_heads": 4, "n_layers": 3}),
    "stablelm": ("StableLm/ForCausalLM", {"num_key_value_heads": 4}),
    "olmo2": ("Olmo2/ForCausalLM", _GROUPED),
    "mamba": ("Mamba/ForCausalLM", {"state_size": 8}),
    "rwkv": ("Rwkv/ForCausalLM", {"context_length": 64, "attention_hidden_size": 96}),
    "cohere": ("Cohere/ForCausalLM", _GROUPED),
    "granite": ("Granite/ForCausalLM", _GROUPED),
    "qwen3": ("Qwen3/ForCausalLM", _SPLIT),
    "xglm": (
        "XGLM/ForCausalLM",
        {"d_model": 96, "ffn_dim": 192, "num_layers": 3, "attention_heads": 4},
    ),
    "codegen": ("CodeGen/ForCausalLM", _GPT),
    "gptj": ("GPTJ/ForCausalLM", _GPT),
    "roformer": ("RoFormer/Model", {}),
    "squeezebert": ("SqueezeBert/Model", {"embedding_size": 96}),
    "lfm2": ("Lfm2/ForCausalLM", {**_GROUPED, **_OPERATOR}),
    "nemotron": ("Nemotron/ForCausalLM", _GROUPED),
}
"""Configuration and model class, which share the part before the slash; further settings."""
ONLY_IDS: Final = ("mamba", "rwkv")
_PATCHES: Final = {**SIZES, "image_size": 64, "patch_size": 16}
_DEPTH: Final = {"backbone_out_indices": [0, 1, 2, 2], "neck_hidden_sizes": [24, 48, 96, 96]}
OTHERS: Final[dict[str, tuple[str, tuple[int, ...], dict[str, Any]]]] = {
    "siglipv": ("SiglipVision/Model", (2, 3, 64, 64), _PATCHES),
    "clipv": ("CLIPVision/Model", (2, 3, 64, 64), _PATCHES),
    "dinov2": ("Dinov2/Model", (2, 3, 64, 64), {**_PATCHES, "mlp_ratio": 2}),
    "beit": ("Beit/Model", (2, 3, 64, 64), {**_PATCHES, "use_relative_position_bias": True}),
    "segformer": ("Segformer/ForSemanticSegmentation", (2, 3, 128, 128), {"num_labels": 7}),
    "mobilevit": ("MobileViT/Model", (2, 3, 128, 128), {}),
    "yolos": ("Yolos/ForObjectDetection", (2, 3, 64, 64), {**_PATCHES, "image_size": [64, 64]}),
    "convnextv2": ("ConvNextV2/Model", (2, 3, 96, 96), {}),
    "wav2vec2": ("Wav2Vec2/Model", (2, 8000), SIZES),
    "ast": ("AST/Model", (2, 128, 128), {**SIZES, "max_length": 128}),
    "dpt": ("DPT/ForDepthEstimation", (2, 3, 64, 64), {**_PATCHES, **_DEPTH}),
    "timesformer": (
        "Timesformer/Model",
        (1, 4, 3, 64, 64),
        {**SIZES, "image_size": 64, "num_frames": 4},
    ),
}
_SOUND: Final = ("wav2vec2", "ast")


class Named(torch.nn.Module):
    """A model of transformers whose inputs are positional, with its first output."""

    def __init__(self, model: torch.nn.Module, names: tuple[str, ...]) -> None:
        """Keep the model and the names of its inputs."""
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *arrays: torch.Tensor) -> torch.Tensor:
        """Run the model."""
        found = self.model(**dict(zip(self.names, arrays, strict=True)), return_dict=True)
        return found[0]  # type: ignore[no-any-return]


Network = tuple[str, torch.nn.Module, tuple[str, ...], tuple[torch.Tensor, ...]]
"""Name, module, and the names and values of its inputs."""


def main() -> None:
    """Write each network by both exporters."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    for name, module, names, arrays in networks():
        for exporter in ("dynamo", "script"):
            path = folder / f"{name}.{exporter}.onnx"
            try:
                export(path, module.eval(), names, arrays, exporter)
            except Exception as fault:  # noqa: BLE001 - exporters raise whatever they like
                print(f"{path.name}: {type(fault).__name__}", flush=True)


def export(
    path: Path,
    module: torch.nn.Module,
    names: tuple[str, ...],
    arrays: tuple[torch.Tensor, ...],
    exporter: str,
) -> None:
    """Write one file; the script exporter's has a symbolic batch and sequence."""
    with torch.no_grad():
        if exporter == "dynamo":
            torch.onnx.export(module, arrays, path, dynamo=True, external_data=False)
            return
        is_text = names[0] == "input_ids"
        axes = {name: {0: "batch", **({1: "seq"} if is_text else {})} for name in names}
        torch.onnx.export(
            module,
            arrays,
            path,
            dynamo=False,
            opset_version=17,
            input_names=[*names],
            dynamic_axes=axes,
        )


def networks() -> Iterator[Network]:
    """All networks, one at a time."""
    for name in TIMM:
        model = timm.create_model(name, pretrained=False)
        _, height, width = model.default_cfg["input_size"]
        yield name, model, ("x",), (torch.randn(2, 3, height, width),)
    for name, (classes, settings) in LANGUAGE.items():
        known = {**SIZES, "vocab_size": 997, "use_cache": False, **settings}
        ids = torch.randint(5, 900, (2, 48))
        names = ("input_ids", "attention_mask")[: 1 if name in ONLY_IDS else 2]
        arrays = (ids, torch.ones_like(ids))[: len(names)]
        yield name, Named(transformer(classes, known), names), names, arrays
    for name, (classes, shape, settings) in OTHERS.items():
        names = ("input_values",) if name in _SOUND else ("pixel_values",)
        yield name, Named(transformer(classes, settings), names), names, (torch.randn(*shape),)


def transformer(classes: str, settings: dict[str, Any]) -> torch.nn.Module:
    """A model of transformers with random weights."""
    kind, model = classes.split("/")
    config = getattr(transformers, f"{kind}Config")(**settings)
    made = getattr(transformers, model if hasattr(transformers, model) else f"{kind}{model}")
    return made(config)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
