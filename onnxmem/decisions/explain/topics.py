"""Find what answers a question in free words: topics, figures and codes, the most similar first.

Each has names, and a topic other words for it. A word counts the more the fewer of them have it;
``_FILLER`` counts nothing. An answer is found only if most of a question's weight is in its names:
otherwise it would answer another question.
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
    "a about all also am an and any are as at be been but by can could did didn do does doesn "
    "doing don during each else even ever every explain for from gb get gets getting gib give "
    "given go goes going happen happens has have how i if in into is isn it its just kb keep "
    "like lot make many mb me mean meaning means memory mib model models more most much my need "
    "needs no non not of off on only onnx onnxmem or our own please really s should show so "
    "some t take takes taking tell than that the their them then there they this to too took up "
    "us usage use used uses using very want was way we were what when where which while who why "
    "will with would you your".split()
)
_ENDINGS: Final = ("ings", "ing", "ed", "es", "s", "e")
_LEAST_STEM: Final = 3
_UNKNOWN_WEIGHT: Final = 0.6
"""Of a word that no name has, as a share of the rarest word's: it may be of no importance."""
_TOPIC_SHARE: Final = 0.5
"""Of the weight of a question's words that a topic's words must have."""
_NAME_SHARE: Final = 0.8
"""The same of a figure or a code, whose names say nothing of what is asked about them."""
_OWN_NAME: Final = 1.25
"""How much more a word counts in a topic's name than anywhere else."""
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
    figures: tuple[str, ...] = ()
    """The keys of the figures that are its value on a model."""
    in_integers: bool = False
    """Whether they are those of integer kernels, if the model is quantized."""


Answer = Topic | Metric | Code


@cache
def topics() -> tuple[Topic, ...]:
    """All topics."""
    text = files("onnxmem.decisions.explain").joinpath("topics.toml").read_text(encoding="utf-8")
    return tuple(
        Topic(
            each["name"],
            each["words"],
            each["text"],
            tuple(each["try"]),
            tuple(each["see"]),
            tuple(each["figures"]),
            in_integers=each.get("in_integers", False),
        )
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
    """What answers a question, the most likely first; empty if nothing is likely enough."""
    found: list[Answer] = []
    is_doubtful = False
    for share, _, answer in _ranked(question):
        is_topic = isinstance(answer, Topic)
        if share >= (_TOPIC_SHARE if is_topic else _NAME_SHARE):
            if not (is_topic and is_doubtful):
                found.append(answer)
        elif is_topic and not found:
            # A less similar topic is no better answer.
            is_doubtful = True
    return tuple(found[:_NEAR])


def similar(question: str) -> tuple[Topic, ...]:
    """All topics if a question has a word of one, the most similar first; else none."""
    near = [answer for _, _, answer in _ranked(question) if isinstance(answer, Topic)]
    return (*near, *(each for each in topics() if each not in near)) if near else ()


def is_word(text: str) -> bool:
    """Whether each part of a text such as ``CPU/GPU`` is a word that a name has, or a filler."""
    weights, _ = _index()
    parts = re.findall(r"[^/]+", text.casefold())
    return all(len(part) == 1 or part in _FILLER or _stem(part) in weights for part in parts)


def _ranked(question: str) -> list[tuple[float, float, Answer]]:
    """The share of a question's weight that an answer's names have, its rank, and the answer.

    Topics come before figures and codes of the same rank.
    """
    weights, texts = _index()
    words = set(_words(question))
    unknown = _UNKNOWN_WEIGHT * (log(len(texts)) + 1)
    whole = sum(weights.get(word, unknown) for word in words)
    found = []
    for answer, name, others in texts:
        in_name = sum(weights[word] for word in words & name)
        known = in_name + sum(weights[word] for word in words & (others - name))
        if known:
            more = (_OWN_NAME - 1) * in_name if isinstance(answer, Topic) else 0.0
            found.append((known / whole, known + more, answer))
    found.sort(key=lambda each: -each[1])
    return found


@cache
def _index() -> tuple[dict[str, float], tuple[tuple[Answer, frozenset[str], frozenset[str]], ...]]:
    """The weight of each word; the words of each answer's name, and other words for it."""
    texts: tuple[tuple[Answer, frozenset[str], frozenset[str]], ...] = (
        *((each, _set(each.name), _set(each.words)) for each in topics()),
        *((each, _set(" ".join((*each.labels, each.key))), frozenset()) for each in metrics()),
        *((each, _set(each.word), _set(each.title)) for each in codes()),
    )
    having = Counter(word for _, name, others in texts for word in name | others)
    return {word: log(len(texts) / count) + 1 for word, count in having.items()}, texts


def _set(text: str) -> frozenset[str]:
    return frozenset(_words(text))


def _words(text: str) -> Iterable[str]:
    for word in re.findall(r"[a-z0-9]+", text.casefold().replace("_", " ")):
        if word not in _FILLER and not word.isdigit():
            yield _stem(word)


def _stem(word: str) -> str:
    """The word without an English ending: ``gradients`` and ``gradient`` are one."""
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            rest = word.removesuffix(ending)
            is_doubled = ending in {"ing", "ed"} and rest[-1] == rest[-2] and rest[-1] not in "ls"
            return rest[:-1] if is_doubled else rest
    return word
