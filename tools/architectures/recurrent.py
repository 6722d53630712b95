"""Recurrent networks: an LSTM classifier, and a translator that decodes in a loop."""

from typing import Final

import torch
from torch import Tensor, nn

VOCABULARY = 8000


class LSTMClassifier(nn.Module):
    """Token embedding, two bidirectional LSTM layers, scores from the last hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 128)
        self.lstm = nn.LSTM(128, 256, num_layers=2, bidirectional=True, dropout=0.3)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(2 * 256, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class scores: [N, T] -> [N, 4]."""
        _, (hidden, _) = self.lstm(self.embedding(tokens).transpose(0, 1))
        scores: Tensor = self.head(self.dropout(torch.cat((hidden[-2], hidden[-1]), 1)))
        return scores


class GreedyTranslator(nn.Module):
    """A GRU encoder, and a GRU decoder with attention that takes its likeliest token each step."""

    first_token: Final = 1
    last_token: Final = 2

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 256)
        self.encoder = nn.GRU(256, 256, batch_first=True)
        self.decoder = nn.GRU(256, 256, batch_first=True)
        self.mix = nn.Linear(2 * 256, 256)
        self.head = nn.Linear(256, VOCABULARY)

    def forward(self, source: Tensor, max_tokens: Tensor) -> Tensor:
        """Tokens of the translation: [N, S] and a scalar limit -> [N, T], T at most the limit + 1.

        It stops when every sentence has ended. At the limit, the end is forced.
        """
        encoded, state = self.encoder(self.embedding(source))
        token = torch.full_like(source[:, :1], self.first_token)
        tokens = token
        ended = torch.zeros_like(token, dtype=torch.bool)
        limit = int(max_tokens)
        step = 0
        while step < limit and not bool(ended.all()):
            if step + 1 == limit:
                token = torch.full_like(token, self.last_token)
            else:
                hidden, state = self.decoder(self.embedding(token), state)
                weights = torch.softmax(hidden @ encoded.transpose(1, 2), -1)
                mixed = torch.tanh(self.mix(torch.cat((hidden, weights @ encoded), -1)))
                token = self.head(mixed)[:, -1].argmax(-1, keepdim=True)
            ended = ended | (token == self.last_token)
            tokens = torch.cat((tokens, token), 1)
            step += 1
        return tokens


def lstm_classifier() -> nn.Module:
    """A bidirectional two-layer LSTM with four classes."""
    return LSTMClassifier()


def greedy_translator() -> nn.Module:
    """A translator whose decoding is part of the network."""
    return GreedyTranslator()
