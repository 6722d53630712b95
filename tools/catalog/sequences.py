"""Networks over text and sound."""

from collections.abc import Mapping
from dataclasses import replace

import quantized
import torch
from architectures import encoders, language, recurrent
from recipe import Quantization, Recipe
from torch import Tensor

_TOKENS = {0: "batch", 1: "sequence"}
_TOKENS_OF_GPT2 = {0: "batch_size", 1: "sequence_length"}
_PAST = language.past_names("past_key_values")
_PRESENT = language.past_names("present")


def _sentence(batch: int, length: int) -> dict[str, Tensor]:
    return {
        "input_ids": language.token_ids(batch, length),
        "attention_mask": torch.ones(batch, length, dtype=torch.int64),
    }


def _sentence_with_types(batch: int, length: int) -> dict[str, Tensor]:
    types = torch.zeros(batch, length, dtype=torch.int64)
    return _sentence(batch, length) | {"token_type_ids": types}


def _continued_sentence(batch: int, length: int, past: int) -> Mapping[str, Tensor]:
    positions = torch.arange(past, past + length).repeat(batch, 1)
    cached = (batch, language.SMOLLM_KEY_VALUE_HEADS, past, language.SMOLLM_HEAD_SIZE)
    return {
        "input_ids": language.token_ids(batch, length),
        "attention_mask": torch.ones(batch, past + length, dtype=torch.int64),
        "position_ids": positions,
        **{name: torch.zeros(cached) for name in _PAST},
    }


BERT_BASE = Recipe(
    name="bert_base",
    what="BERT-base with a sentence classifier of two classes",
    source="Devlin et al. 2018, arXiv:1810.04805; transformers",
    build=language.BertClassifier,
    inputs=lambda: _sentence_with_types(2, 128),
    dims={
        "input_ids": _TOKENS,
        "attention_mask": _TOKENS,
        "token_type_ids": _TOKENS,
        "logits": {0: "batch"},
    },
    licence="Apache-2.0",
    published_parameters=109_483_778,
)
BERT_BASE_TRAIN = replace(
    BERT_BASE,
    name="bert_base.train",
    what=f"{BERT_BASE.what}; as it trains",
    dims={},
    training=True,
)
GPT2 = Recipe(
    name="gpt2",
    what="GPT-2 small; embedding and head are one tensor",
    source="Radford et al. 2019; transformers",
    build=language.GPT2,
    inputs=lambda: _sentence(2, 64),
    dims={
        "input_ids": _TOKENS_OF_GPT2,
        "attention_mask": _TOKENS_OF_GPT2,
        "logits": _TOKENS_OF_GPT2,
    },
    exporter="dynamo",
    opset=18,
    licence="Apache-2.0",
    published_parameters=124_439_808,
)
SMOLLM_CACHED = Recipe(
    name="smollm_cached",
    what="Llama decoder with its key-value cache: SmolLM-135M's first 4 layers",
    source="Touvron et al. 2023, arXiv:2302.13971; transformers",
    build=language.smollm,
    inputs=lambda: _continued_sentence(batch=2, length=4, past=12),
    outputs=("logits", *_PRESENT),
    dims={
        "input_ids": _TOKENS,
        "attention_mask": {0: "batch", 1: "past + sequence"},
        "position_ids": _TOKENS,
        **{name: {0: "batch", 2: "past"} for name in _PAST},
    },
    exporter="dynamo",
    opset=18,
    licence="Apache-2.0",
)
TINYLLAMA_INT4 = Recipe(
    name="tinyllama.int4",
    what="TinyLlama-1.1B's first 2 layers in float16, matrices in int4 blocks",
    source="Zhang et al. 2024, arXiv:2401.02385; transformers",
    build=language.tinyllama,
    inputs=lambda: {"input_ids": language.token_ids(2, 16)},
    dims={"input_ids": _TOKENS, "logits": _TOKENS},
    exporter="dynamo",
    opset=21,
    licence="Apache-2.0",
    quantization=Quantization(4, quantized.BLOCK_SIZE, quantized.to_int4),
)
WHISPER_TINY_ENCODER = Recipe(
    name="whisper_tiny_encoder",
    what="Encoder of Whisper tiny, 30 s of sound",
    source="Radford et al. 2022, arXiv:2212.04356; transformers",
    build=encoders.whisper_tiny_encoder,
    inputs=lambda: {"spectrogram": torch.zeros(1, 80, 3000)},
    outputs=("hidden_states",),
    exporter="dynamo",
    opset=23,
    licence="Apache-2.0",
)
LSTM_CLASSIFIER = Recipe(
    name="lstm_classifier",
    what="Bidirectional LSTM of two layers, four classes",
    source="Hochreiter and Schmidhuber 1997",
    build=recurrent.lstm_classifier,
    inputs=lambda: {"tokens": language.token_ids(2, 50)},
    dims={"tokens": {0: "batch", 1: "time"}, "logits": {0: "batch"}},
)
GREEDY_TRANSLATOR = Recipe(
    name="greedy_translator",
    what="GRU translator with attention that decodes in a Loop, with an If inside",
    source="Bahdanau et al. 2014, arXiv:1409.0473",
    build=recurrent.greedy_translator,
    inputs=lambda: {"source": language.token_ids(2, 12), "max_tokens": torch.tensor(10)},
    outputs=("translation",),
    dims={
        "source": {0: "batch", 1: "source_length"},
        "translation": {0: "batch", 1: "target_length"},
    },
    script=True,
)

RECIPES = (
    BERT_BASE,
    BERT_BASE_TRAIN,
    GPT2,
    SMOLLM_CACHED,
    TINYLLAMA_INT4,
    WHISPER_TINY_ENCODER,
    LSTM_CLASSIFIER,
    GREEDY_TRANSLATOR,
)
