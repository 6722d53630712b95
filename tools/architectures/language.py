"""Language models of the transformers library, with plain tensors in and out."""

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

SMOLLM_LAYERS = 4
"""Decoder layers that are kept; SmolLM-135M has 30."""

SMOLLM_KEY_VALUE_HEADS, SMOLLM_HEAD_SIZE = 3, 64


class BertClassifier(nn.Module):
    """BERT-base (uncased) with a sentence classifier of two classes on top."""

    def __init__(self) -> None:
        super().__init__()
        self.bert = BertForSequenceClassification(BertConfig(attn_implementation="eager"))  # type: ignore[call-arg]

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> Tensor:
        """Class scores: three of [N, S] -> [N, 2]."""
        scores: Tensor = self.bert(input_ids, attention_mask, token_type_ids).logits
        return scores


class GPT2(nn.Module):
    """GPT-2 small; the embedding and the head are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt2 = GPT2LMHeadModel(GPT2Config(use_cache=False))

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores of the next token: two of [N, S] -> [N, S, 50257]."""
        scores: Tensor = self.gpt2(
            input_ids=input_ids, attention_mask=attention_mask, use_cache=False
        ).logits
        return scores


class CachedDecoder(nn.Module):
    """A Llama decoder that reads the keys and values of past tokens and returns them extended."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.decoder = LlamaForCausalLM(config)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, *past: Tensor
    ) -> tuple[Tensor, ...]:
        """[N, S] new tokens and, per layer, keys and values [N, heads, P, D] of P past ones.

        Returns scores [N, S, vocabulary], then keys and values [N, heads, P + S, D].
        """
        cache = DynamicCache(tuple(zip(past[::2], past[1::2], strict=True)))
        result = self.decoder(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=cache,
            use_cache=True,
        )
        present = [t for layer in result.past_key_values.layers for t in (layer.keys, layer.values)]
        return (result.logits, *present)


def smollm() -> nn.Module:
    """The first layers of SmolLM-135M: 9 heads, 3 of keys and values; embedding and head tied."""
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=SMOLLM_LAYERS,
        num_attention_heads=9,
        num_key_value_heads=SMOLLM_KEY_VALUE_HEADS,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        attn_implementation="eager",  # type: ignore[call-arg]
    )
    return CachedDecoder(config)


def past_names(prefix: str, layers: int = SMOLLM_LAYERS) -> tuple[str, ...]:
    """Names of the cache tensors: `prefix.0.key`, `prefix.0.value`, and so on."""
    return tuple(f"{prefix}.{layer}.{part}" for layer in range(layers) for part in ("key", "value"))


def token_ids(batch: int, sequence: int) -> Tensor:
    """[batch, sequence] token numbers that every vocabulary here has."""
    return torch.arange(batch * sequence).reshape(batch, sequence) % 1000


class PromptDecoder(nn.Module):
    """A Llama decoder that reads a prompt at once and keeps no cache."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.decoder = LlamaForCausalLM(config)

    def forward(self, input_ids: Tensor) -> Tensor:
        """Scores of the next token: [N, S] -> [N, S, vocabulary]."""
        scores: Tensor = self.decoder(input_ids=input_ids, use_cache=False).logits
        return scores


def tinyllama() -> nn.Module:
    """The first two layers of TinyLlama-1.1B, 32 heads, 4 of keys and values, in float16."""
    config = LlamaConfig(
        vocab_size=32000,
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=2,
        num_attention_heads=32,
        num_key_value_heads=4,
        max_position_embeddings=2048,
    )
    return PromptDecoder(config).half()
