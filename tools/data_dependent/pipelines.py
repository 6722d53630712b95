"""Pipelines of scikit-learn on texts, by skl2onnx."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from cases import Case, Input
from skl2onnx import to_onnx
from skl2onnx.common.data_types import StringTensorType
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

BY: Final = "skl2onnx.to_onnx, opset 17"
WORDS: Final = ("memory", "peak", "tensor", "of", "the", "a", "graph", "node", "loop", "dim")


def learned(build: Callable[[], Any]) -> Callable[[str], None]:
    """Exports a pipeline after it was fitted to random texts."""

    def export(path: str) -> None:
        draws = np.random.default_rng(0)
        labels = draws.integers(0, 3, 120)
        data = [" ".join(draws.choice(WORDS, 8)) for _ in range(120)]
        types = [("X", StringTensorType([20]))]
        fitted = build().fit(data, labels)
        # Without a locale onnxruntime asks for en_US, which few containers have.
        locale = {type(step): {"locale": "C"} for step in fitted if "Vectorizer" in str(step)}
        model = to_onnx(
            fitted,
            initial_types=types,
            options=locale,
            target_opset={"": 17, "ai.onnx.ml": 3},
        )
        onnx.save(model, path)

    return export


CASES: Final = {
    "sklearn_texts": Case(
        learned(lambda: make_pipeline(TfidfVectorizer(), LogisticRegression())),
        BY,
        {"X": Input((20,), 1, 30, "str", WORDS)},
    ),
    "sklearn_bigrams": Case(
        learned(
            lambda: make_pipeline(
                CountVectorizer(ngram_range=(1, 2), stop_words=["of", "the"]), LogisticRegression()
            )
        ),
        BY,
        {"X": Input((20,), 1, 30, "str", WORDS)},
    ),
}
