"""Recurrent and convolutional networks over text."""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: D102  # what `forward` computes is its class docstring

import torch
from torch import nn
from torch.nn import functional


class LstmLanguageModel(nn.Module):
    """Two LSTM layers between dropouts, logits of every position."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(2000, 128)
        self.rnn = nn.LSTM(128, 192, 2, batch_first=True)
        self.decoder = nn.Linear(192, 2000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.drop(self.encoder(tokens))
        output, _ = self.rnn(embedded)
        return self.decoder(self.drop(output))


class GruClassifier(nn.Module):
    """A bidirectional GRU; both last states make the class."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3000, 96)
        self.gru = nn.GRU(96, 128, batch_first=True, bidirectional=True)
        self.classifier = nn.Sequential(nn.Linear(256, 64), nn.Tanh(), nn.Linear(64, 5))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        _, hidden = self.gru(self.embedding(tokens))
        return self.classifier(torch.cat([hidden[0], hidden[1]], dim=1))


class TextCnn(nn.Module):
    """Convolutions of three widths over words, each at its largest over time."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5000, 128)
        self.convs = nn.ModuleList(nn.Conv1d(128, 100, width) for width in (3, 4, 5))
        self.dropout = nn.Dropout(0.5)
        self.fc = nn.Linear(300, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).permute(0, 2, 1)
        features = [functional.relu(conv(x)) for conv in self.convs]
        pooled = [functional.max_pool1d(f, int(f.shape[2])).squeeze(2) for f in features]
        return self.fc(self.dropout(torch.cat(pooled, dim=1)))
