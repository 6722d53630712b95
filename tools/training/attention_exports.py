"""Whether the framework's fused attention is seen in default exports, network by network.

    export PYTHONPATH=tools:tools/training:.
    python tools/training/attention_exports.py TABLE.csv [NETWORK ...]

Needs torch, torchvision, timm and transformers. Each network is small, has random weights, no two
of its parameters equal (exporters merge those that are), and is exported by both exporters, in eval
and training mode, with fixed and symbolic dims, with and without a padding mask where it takes one;
what torch.export wrote is read once more without metadata. A row counts the fused kernels that are
seen beside the calls of `scaled_dot_product_attention` that the network made, and has the peak of a
training step, predicted from the file and counted of the module itself, in float32 and under
bfloat16 autocast with CUDA's lists.
"""

# mypy: disable-error-code="no-any-return,no-untyped-call"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import csv
import io
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest import mock

import onnx
import timm
import torch
import torchvision
import transformers
from autocast_truth import cuda_lists
from settings import Network, Settings
from step import measure
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.nn import functional
from transformers import masking_utils

import onnxmem
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import load
from onnxmem.runtimes.torch.framework import ATTENTION, ATTENTION_WEIGHTS
from onnxmem.runtimes.torch.network import network_of
from onnxmem.settings import TrainingConfig
from onnxmem.torch.measuring import WithoutData, copy_of

BATCH, SEQUENCE = 4, 48
EXPORTERS, MODES, DIMS = ("script", "dynamo"), ("eval", "train"), ("fixed", "symbolic")


@dataclass(frozen=True, slots=True)
class Row:
    """What is seen in one export; `None`: the exporter failed."""

    network: str
    exporter: str
    mode: str
    dims: str
    mask: bool
    metadata: bool
    calls: int | None = None
    seen: int | None = None
    peak_bytes: int | None = None
    counted_bytes: int | None = None
    """The peak of the module's own step; `None`: it could not be counted."""
    mixed_peak_bytes: int | None = None
    """Under autocast."""
    mixed_counted_bytes: int | None = None
    findings: str = ""
    """The codes of the warnings on both predictions."""
    error: str = ""


class Text(nn.Module):
    """A model of transformers that reads tokens: its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        given = {} if self.model.config.is_encoder_decoder else {"use_cache": False}
        if self.model.config.is_encoder_decoder:
            given = {"decoder_input_ids": tokens, "use_cache": False}
        if not hasattr(self.model.config, "use_cache"):
            given.pop("use_cache", None)
        return self.model(input_ids=tokens, attention_mask=mask, **given)[0]


class Image(nn.Module):
    """A model of transformers that reads images: its first output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images)[0]


class Pairs(nn.Module):
    """A model of transformers that compares images with texts."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        return self.model(pixel_values=images, input_ids=tokens).logits_per_image


class Speech(nn.Module):
    """A model of transformers that reads features of sound, and the tokens said so far."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        given = {"decoder_input_ids": tokens, "use_cache": False}
        return self.model(input_features=features, **given)[0]


class Grouped(nn.Module):
    """A causal decoder block of plain code: eight query heads, two of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Embedding(97, 128)
        self.query, self.pair = nn.Linear(128, 128), nn.Linear(128, 64)
        self.out = nn.Linear(128, 97)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.read(tokens)
        heads = self.query(x).unflatten(-1, (8, 16)).transpose(1, 2)
        key, value = self.pair(x).chunk(2, dim=-1)
        key, value = (
            each.unflatten(-1, (2, 16)).transpose(1, 2).repeat_interleave(4, dim=1)
            for each in (key, value)
        )
        y = functional.scaled_dot_product_attention(heads, key, value, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Windows(nn.Module):
    """Plain code: attention within a sliding window, by a mask of booleans."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.qkv = nn.Embedding(97, 64), nn.Linear(64, 192)
        self.out = nn.Linear(64, 97)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.read(tokens)
        q, k, v = self.qkv(x).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        rows = torch.arange(tokens.shape[1], device=tokens.device)
        near = (rows[:, None] - rows[None, :]).abs() < 8  # noqa: PLR2004 - the window
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=near)
        return self.out(y.transpose(1, 2).flatten(2))


class Biased(nn.Module):
    """Plain code: a trained relative bias that is added to the scores."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.qkv = nn.Embedding(97, 64), nn.Linear(64, 192)
        self.bias = nn.Parameter(torch.zeros(1, 4, 64, 64))
        self.out = nn.Linear(64, 97)

    def forward(self, tokens: Tensor) -> Tensor:
        size = tokens.shape[1]
        q, k, v = self.qkv(self.read(tokens)).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
        bias = self.bias[:, :, :size, :size]
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=0.1)
        return self.out(y.transpose(1, 2).flatten(2))


class Crossed(nn.Module):
    """Plain code: learned queries that read a sequence, and a scale of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.kv = nn.Embedding(97, 64), nn.Linear(64, 128)
        self.queries = nn.Parameter(torch.zeros(4, 16, 16))
        self.out = nn.Linear(64, 97)

    def forward(self, tokens: Tensor) -> Tensor:
        k, v = self.kv(self.read(tokens)).unflatten(-1, (2, 4, 16)).permute(2, 0, 3, 1, 4)
        q = self.queries.expand(tokens.shape[0], -1, -1, -1)
        y = functional.scaled_dot_product_attention(q, k, v, scale=0.3)
        return self.out(y.transpose(1, 2).flatten(2))


class Routed(nn.Module):
    """Plain code without fused attention: pooling by a softmax and a router of two experts."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.score = nn.Embedding(97, 64), nn.Linear(64, 1)
        self.route = nn.Linear(64, 2)
        self.experts = nn.Parameter(torch.zeros(2, 64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.read(tokens)
        pooled = self.score(x).transpose(1, 2).softmax(-1) @ x
        return self.route(pooled).softmax(-1) @ self.experts


def _model(family: str, kind: str = "Model", **given: object) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**given)
    config._attn_implementation = "sdpa"  # noqa: SLF001 - the only switch without a download
    return getattr(transformers, f"{family}{kind}")(config)


def _text(family: str, kind: str = "Model", attention: str = "sdpa", **given: object) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**_SMALL | given)
    config._attn_implementation = attention  # noqa: SLF001 - the only switch without a download
    return Text(getattr(transformers, f"{family}{kind}")(config))


_LAYERS = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
_SMALL = _LAYERS | {"vocab_size": 97}
_FF = {"intermediate_size": 128}
_LLAMA = _FF | {"num_key_value_heads": 2}
_SEQ = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 97} | {
    f"{side}_{name}": size
    for side in ("encoder", "decoder")
    for name, size in (("ffn_dim", 128), ("attention_heads", 4))
}

_RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]} | _FF

MASKED: dict[str, Callable[[], nn.Module]] = {
    "bert": lambda: _text("Bert", **_FF),
    "roberta": lambda: _text("Roberta", **_FF),
    "electra": lambda: _text("Electra", embedding_size=64, **_FF),
    "distilbert": lambda: _text("DistilBert", dim=64, n_layers=2, n_heads=4, hidden_dim=128),
    "gpt2": lambda: _text("GPT2", n_embd=64, n_layer=2, n_head=4),
    "opt": lambda: _text("OPT", ffn_dim=128, word_embed_proj_dim=64),
    "gpt-neox": lambda: _text("GPTNeoX", **_FF),
    "llama": lambda: _text("Llama", **_LLAMA),
    "qwen2": lambda: _text("Qwen2", **_LLAMA),
    "mistral-window": lambda: _text("Mistral", sliding_window=16, **_LLAMA),
    "gemma": lambda: _text("Gemma", head_dim=16, **_LLAMA),
    "bart": lambda: _text("Bart", **_SEQ),
    "bert-eager": lambda: _text("Bert", attention="eager", **_FF),
}
TOKENS: dict[str, Callable[[], nn.Module]] = {
    "grouped": Grouped,
    "window": Windows,
    "bias": Biased,
    "cross": Crossed,
    "router": Routed,
}
_VIT = {"depth": 2, "embed_dim": 64, "num_heads": 4, "img_size": 64, "num_classes": 11}
IMAGES: dict[str, Callable[[], nn.Module]] = {
    "timm-vit": lambda: timm.create_model("vit_tiny_patch16_224", **_VIT),
    "timm-deit": lambda: timm.create_model("deit_tiny_patch16_224", **_VIT),
    "timm-eva02": lambda: timm.create_model("eva02_tiny_patch14_224", **_VIT | {"img_size": 56}),
    "timm-beit": lambda: timm.create_model("beit_base_patch16_224", **_VIT),
    "timm-swin": lambda: timm.create_model(
        "swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2), embed_dim=32, num_heads=(2, 4)
    ),
    "torchvision-vit": lambda: torchvision.models.VisionTransformer(64, 16, 2, 4, 64, 128),
}
_VISION = {"image_size": 64, "patch_size": 16} | _LAYERS | _FF
_TOKENS = {"vocab_size": 97, "max_position_embeddings": 64} | _LAYERS | _FF
_CLIP = {"text_config": _TOKENS, "vision_config": _VISION, "projection_dim": 64}
_WHISPER = {"max_source_positions": 64, "max_target_positions": 64, "num_mel_bins": 32}
UNMASKED: dict[str, Callable[[], nn.Module]] = {
    "mixtral": lambda: _text("Mixtral", num_local_experts=4, **_LLAMA),
    "olmo2": lambda: _text("Olmo2", **_LLAMA),
    "falcon": lambda: _text("Falcon", new_decoder_architecture=True, num_kv_heads=2),
    "stablelm": lambda: _text("StableLm", **_LLAMA),
    "phi": lambda: _text("Phi", **_LLAMA),
    "phi3": lambda: _text("Phi3", pad_token_id=0, **_LLAMA),
    "granite": lambda: _text("Granite", **_LLAMA),
    "cohere": lambda: _text("Cohere", **_LLAMA),
    "qwen3": lambda: _text("Qwen3", head_dim=16, **_LLAMA),
    "gemma3": lambda: _text("Gemma3Text", "Model", head_dim=16, sliding_window=16, **_LLAMA),
    "gptj": lambda: _text("GPTJ", attention="eager", n_embd=64, n_layer=2, n_head=4, rotary_dim=8),
    "bloom": lambda: _text("Bloom", attention="eager", n_layer=2, n_head=4),
    "modernbert": lambda: _text("ModernBert", pad_token_id=0, local_attention=16, **_FF),
    "mpnet": lambda: _text("MPNet", attention="eager", **_FF),
    "deberta-v2": lambda: _text("DebertaV2", attention="eager", **_RELATIVE),
    "nystromformer": lambda: _text(
        "Nystromformer", attention="eager", **_FF, segment_means_seq_len=48, num_landmarks=16
    ),
    "longformer": lambda: _text("Longformer", attention="eager", attention_window=[16, 16], **_FF),
    "big-bird": lambda: _text("BigBird", attention="eager", attention_type="original_full", **_FF),
    "t5": lambda: _text(
        "T5", attention="eager", d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4
    ),
    "pegasus": lambda: _text("Pegasus", **_SEQ),
    "fnet": lambda: _text("FNet", attention="eager", **_FF),
    "dinov2": lambda: Image(_model("Dinov2", image_size=64, patch_size=16, **_LAYERS)),
    "clip": lambda: Pairs(_model("CLIP", **_CLIP)),
    "siglip": lambda: Pairs(_model("Siglip", text_config=_TOKENS, vision_config=_VISION)),
    "whisper": lambda: Speech(_model("Whisper", pad_token_id=0, **_WHISPER, **_SEQ)),
}
"""Of transformers: exported with symbolic dims and without a mask alone."""
NETWORKS = MASKED | TOKENS | IMAGES | UNMASKED


def inputs_of(name: str, *, with_mask: bool) -> dict[str, Tensor]:
    """What a network is exported with."""
    if name in IMAGES or name == "dinov2":
        size = 56 if name in {"timm-eva02", "timm-swin"} else 64
        return {"images": torch.zeros(BATCH, 3, size, size)}
    tokens = torch.ones(BATCH, SEQUENCE, dtype=torch.long)
    if name in {"clip", "siglip"}:
        return {"images": torch.zeros(BATCH, 3, 64, 64), "tokens": tokens}
    if name == "whisper":
        return {"features": torch.zeros(BATCH, 32, 128), "tokens": tokens}
    return {"tokens": tokens} | ({"mask": torch.ones_like(tokens)} if with_mask else {})


def calls_of(module: nn.Module, inputs: dict[str, Tensor]) -> int:
    """How often a forward pass calls the framework's attention, from Python or inside a module."""
    called = 0
    original = functional.scaled_dot_product_attention

    def counted(*given: object, **named: object) -> Tensor:
        nonlocal called
        called += 1
        return original(*given, **named)

    with mock.patch.object(functional, "scaled_dot_product_attention", counted):
        module(*inputs.values())
    return called


def made(name: str, mode: str) -> nn.Module:
    """A network with random weights, also where its code makes zeros or ones of them."""
    torch.manual_seed(0)
    module = NETWORKS[name]().train(mode == "train")
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    return module


def counted(module: nn.Module, inputs: dict[str, Tensor], *, autocast: bool) -> int | None:
    """The peak of the module's own step of SGD, its attention in one kernel; `None`: it reads
    values, which a tensor without data does not have.
    """
    # transformers asks whether a tensor has data before it reads some: a training step reads them,
    # and passes `is_causal` where there is no mask. A mask that is given may mask something, and
    # BART reads data on another path.
    network = Network(
        "",
        lambda: copy_of(module, WithoutData()),
        lambda _: tuple(torch.zeros(each.shape, dtype=each.dtype) for each in inputs.values()),
        (BATCH, BATCH),
    )
    settings = Settings(attention="fused", training=module.training, autocast=autocast)
    is_traced = "mask" in inputs or (
        isinstance(module, Text) and module.model.config.is_encoder_decoder
    )
    with (
        mock.patch.object(masking_utils, "is_tracing", return_value=is_traced),
        mock.patch.object(masking_utils, "find_packed_sequence_indices", return_value=None),
        # OPT makes a mask of ones itself.
        mock.patch.object(masking_utils, "fast_all", return_value=True, create=True),
        cuda_lists() if autocast else nullcontext(),
    ):
        try:
            return measure(network, BATCH, settings)["peak_bytes"]
        except DataDependentOutputException:
            return None


def exported(
    module: nn.Module, inputs: dict[str, Tensor], exporter: str, dims: str
) -> onnx.ModelProto:
    """The file with default options."""
    names = {0: "batch"} | ({} if "images" in inputs else {1: "sequence"})
    is_dynamo = exporter == "dynamo"
    symbolic: dict[str, object] = {}
    if dims == "symbolic" and is_dynamo:
        shapes = {axis: torch.export.Dim(text, min=2, max=64) for axis, text in names.items()}
        symbolic = {"dynamic_shapes": tuple(shapes for _ in inputs)}
    elif dims == "symbolic":
        symbolic = {"dynamic_axes": dict.fromkeys(inputs, names)}
    mode = torch.onnx.TrainingMode.TRAINING if module.training else torch.onnx.TrainingMode.EVAL
    script: dict[str, object] = {} if is_dynamo else {"training": mode}
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # exporters warn about their own internals
        found = torch.onnx.export(
            module,
            tuple(inputs.values()),
            *(() if is_dynamo else (file,)),
            input_names=list(inputs),
            dynamo=is_dynamo,
            **({"verbose": False} if is_dynamo else {}),
            **symbolic,
            **script,
        )
    return found.model_proto if is_dynamo else onnx.load_from_string(file.getvalue())


@dataclass(frozen=True, slots=True)
class Read:
    """What is read in a file."""

    seen: int
    """The fused kernels."""
    peak_bytes: int
    mixed_peak_bytes: int
    findings: str


def read(model: onnx.ModelProto) -> Read:
    """The fused kernels, and the peaks of a step of SGD."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        onnx.save(model, path)
        has_sequence = any(
            dim.dim_param == "sequence"
            for each in model.graph.input
            for dim in each.type.tensor_type.shape.dim
        )
        dims = {"sequence": SEQUENCE} if has_sequence else {}
        steps = []
        for precision in ("fp32", "mixed-bf16"):
            recipe = TrainingConfig(optimizer="sgd", precision=precision)
            found = onnxmem.analyze(path, batch=BATCH, dims=dims, train=True, recipe=recipe)
            steps.append(found.training)
        graph = build(prepare(load(path)), Request(batch=BATCH, dims=dims)).graph
        nodes = network_of(graph, TrainingConfig(optimizer="sgd")).graph.nodes
    seen = sum(node.operator is ATTENTION or node.operator is ATTENTION_WEIGHTS for node in nodes)
    codes = dict.fromkeys(each.code for step in steps for each in step.findings)
    return Read(seen, *(step.peak_bytes for step in steps), " ".join(codes))


def rows_of(name: str) -> Iterator[Row]:
    """Every export of one network."""
    masks = (False, True) if name in MASKED else (False,)
    kinds = ("symbolic",) if name in UNMASKED else DIMS
    for mode, mask in itertools.product(MODES, masks):
        module, inputs = made(name, mode), inputs_of(name, with_mask=mask)
        calls = calls_of(module, inputs)
        step_bytes, mixed_bytes = (counted(module, inputs, autocast=on) for on in (False, True))
        for exporter, dims in itertools.product(EXPORTERS, kinds):
            row = Row(name, exporter, mode, dims, mask, metadata=True)
            try:
                model = exported(module, inputs, exporter, dims)
            except Exception as error:  # noqa: BLE001 - exporters raise anything; it is a row
                text = f"{type(error).__name__}: {error}".splitlines()[0][:60]
                yield replace(row, error=text)
                continue
            row = replace(
                row, calls=calls, counted_bytes=step_bytes, mixed_counted_bytes=mixed_bytes
            )
            yield replace(row, **asdict(read(model)))
            if exporter == "dynamo":
                for node in model.graph.node:
                    del node.metadata_props[:]
                yield replace(row, metadata=False, **asdict(read(model)))


if __name__ == "__main__":
    with Path(sys.argv[1]).open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(field.name for field in fields(Row))
        for network in sys.argv[2:] or NETWORKS:
            for row in rows_of(network):
                writer.writerow(astuple(row))
                table.flush()
