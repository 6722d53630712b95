"""Transformer encoders of the transformers library, over image patches and over sound."""

from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder


class VisionTransformer(nn.Module):
    """A ViT over 16 x 16 patches that returns class scores alone."""

    def __init__(self, hidden_size: int, num_heads: int) -> None:
        super().__init__()
        config = ViTConfig(
            hidden_size=hidden_size,
            num_attention_heads=num_heads,
            intermediate_size=4 * hidden_size,
            num_labels=1000,  # type: ignore[call-arg]
        )
        self.vit = ViTForImageClassification(config)

    def forward(self, image: Tensor) -> Tensor:
        """Class scores: [N, 3, 224, 224] -> [N, 1000]."""
        scores: Tensor = self.vit(pixel_values=image).logits
        return scores


class SpeechEncoder(nn.Module):
    """Whisper's encoder: two convolutions over time, then transformer layers."""

    def __init__(self, config: WhisperConfig) -> None:
        super().__init__()
        self.encoder = WhisperEncoder(config)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """Hidden states: [N, 80, 3000] -> [N, 1500, width]."""
        states: Tensor = self.encoder(spectrogram).last_hidden_state
        return states


def vit_tiny() -> nn.Module:
    """ViT-Ti/16: 12 layers of width 192 with 3 heads."""
    return VisionTransformer(hidden_size=192, num_heads=3)


def whisper_tiny_encoder() -> nn.Module:
    """The encoder of Whisper tiny: 4 layers of width 384 with 6 heads."""
    config = WhisperConfig(
        d_model=384,
        encoder_layers=4,
        encoder_attention_heads=6,
        encoder_ffn_dim=1536,
        num_mel_bins=80,
    )
    return SpeechEncoder(config)
