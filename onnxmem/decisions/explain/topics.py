"""Find what answers a question in free words: topics, figures and codes, the most similar first.

Each is a text of its names, weighted, and of its explanation. A word counts the more the fewer
texts have it, so that ``memory`` decides nothing; ``_FILLER`` counts nothing.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log
from typing import Final

from onnxmem.decisions.explain.glossary import Code, Metric, codes, metrics

_FILLER: Final = frozenset(
    "a about an and are as at be by can do does explain for from get has have how i in is it its "
    "me mean means meaning my no not of on or so tell than that the there this to was what when "
    "where which why will with you your".split()
)
_ENDINGS: Final = ("ings", "ing", "ed", "es", "s")
_LEAST_STEM: Final = 3
_NAME_WEIGHT: Final = 3
_LEAST_SHARE: Final = 0.4
"""Of the weight of a question's words that the best answer must have."""
_NEAR: Final = 4


@dataclass(frozen=True, slots=True)
class Topic:
    """A question that people ask, and its answer."""

    name: str
    words: str
    """Other words for it."""
    text: str
    commands: tuple[str, ...]
    """Commands that answer it on a model, which is written ``MODEL``."""
    see: tuple[str, ...]
    """Figures, codes and ``rules`` that belong to it."""


Answer = Topic | Metric | Code


@cache
def topics() -> tuple[Topic, ...]:
    """All topics."""
    text = files("onnxmem.decisions.explain").joinpath("topics.toml").read_text(encoding="utf-8")
    return tuple(
        Topic(each["name"], each["words"], each["text"], tuple(each["try"]), tuple(each["see"]))
        for each in tomllib.loads(text)["topics"]
    )


def name_of(answer: Answer) -> str:
    """The words to ask ``explain`` for an answer."""
    if isinstance(answer, Metric):
        return answer.labels[0] if answer.labels else answer.key
    return answer.name if isinstance(answer, Topic) else answer.word


def topic_named(name: str) -> Topic | None:
    """The topic of a name, whatever its case and spaces."""
    wanted = " ".join(name.casefold().split())
    return next((each for each in topics() if each.name.casefold() == wanted), None)


def search(question: str) -> tuple[Answer, ...]:
    """What may answer a question, the most likely first; empty if too few of its words are known.

    Topics come before figures and codes of the same similarity.
    """
    weights, texts = _index()
    words = set(_words(question))
    whole = sum(weights.get(word, _rare(len(texts))) for word in words)
    found = []
    for answer, counts in texts:
        known = [word for word in words if word in counts]
        share = sum(weights[word] for word in known) / whole if whole else 0.0
        # A name says what a text is about; a word of the explanation may be there by chance.
        rank = sum(weights[word] * min(counts[word], _NAME_WEIGHT) for word in known)
        is_named = any(counts[word] >= _NAME_WEIGHT for word in known)
        if share >= _LEAST_SHARE and is_named:
            found.append((rank, answer))
    found.sort(key=lambda each: -each[0])
    return tuple(answer for _, answer in found[:_NEAR])


@cache
def _index() -> tuple[dict[str, float], tuple[tuple[Answer, Counter[str]], ...]]:
    """The weight of each word, and the words of each answer."""
    texts: tuple[tuple[Answer, Counter[str]], ...] = (
        *((each, _counted(f"{each.name} {each.words}", each.text)) for each in topics()),
        *((each, _counted(" ".join((*each.labels, each.key)), each.text)) for each in metrics()),
        *((each, _counted(f"{each.word} {each.title}", each.why)) for each in codes()),
    )
    having = Counter(word for _, counts in texts for word in counts)
    return {word: log(len(texts) / count) + 1 for word, count in having.items()}, texts


def _rare(num_texts: int) -> float:
    """The weight of a word that no text has."""
    return log(num_texts) + 1


def _counted(name: str, text: str) -> Counter[str]:
    counts = Counter(_words(text))
    for word in _words(name):
        counts[word] += _NAME_WEIGHT
    return counts


def _words(text: str) -> Iterable[str]:
    for word in re.findall(r"[a-z0-9]+", text.casefold()):
        if word not in _FILLER:
            yield _stem(word)


def _stem(word: str) -> str:
    """The word without an English ending: ``gradients`` and ``gradient`` are one."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word.removesuffix(ending)
    return word
