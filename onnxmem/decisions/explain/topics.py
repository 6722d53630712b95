"""Find what answers a question in free words: topics, figures and codes, the most similar first.

Each has names, and a topic other words for it. Words are compared in American spelling, without
endings; ``_SYNONYMS`` are one word, factors are numbers (``three times`` is ``3x``), any size of
memory is one word, and ``not ... fit`` is another word than ``fit``. What takes the memory, or
where it goes, is one word too, whatever verb is said. A word counts the more the fewer of them have
it; ``_FILLER`` counts nothing. An answer is found only if most of a question's weight is in its
names, or if a topic has several of its words and far more than any other: otherwise it would answer
another question. Without one, a rare word in the name of a single topic finds that topic.

Two questions are answered before that: one whose words are a figure's name and words such as
``count`` and ``mean``, and one with no word that counts which asks how much memory.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import log
from operator import itemgetter
from typing import Final

from onnxmem.decisions.devices import Device, catalog
from onnxmem.decisions.explain.glossary import Code, Metric, codes, metrics
from onnxmem.errors import shell_words
from onnxmem.settings import Settings

_FILLER: Final = frozenset(
    "a about actually all already also although always am among an and another any anything "
    "are as at be because become becomes been being both but by came can case come comes "
    "could currently did didn do does doesn doing don done during each either else even ever "
    "every exactly explain far few find for from gb get gets getting gib give given go goes "
    "going got had happen happens has have having he hello help helps here hi how however i if in "
    "instead into is isn it its itself just kb keep know let like look lot made make makes "
    "making many may maybe mb me mean meaning means memory mib might model models more most "
    "much must my myself need needs net nets network networks neural no non nor not now of "
    "off often ok okay on once only onnx onnxmem onto or other our ours own per perhaps "
    "please possible put quite ram rather really s said say says see seem seems shall she should "
    "show since so some somehow something such supposed sure t take taken takes taking tell "
    "than thank thanks that the their theirs them then there therefore these they thing "
    "things think this those though thus to too took try trying understand until up upon us "
    "usage use used uses using usually very via want wants was way we well were what whatever "
    "when whenever where whether which while who whole whose why will with within wonder "
    "would yet you your yours "
    "alexnet bert densenet efficientnet gpt gpt2 inception llama mistral mobilenet phi qwen resnet "
    "roberta smollm swin unet vgg vit whisper yolo".split()
)
"""Words that say nothing of what is asked: little words, and which model it is."""
_MEANING: Final = frozenset("define defined definition mean meaning means stand stands".split())
_ASKED_ABOUT: Final = "what a figure means"
"""The topic whose words say that a figure is meant, and not which."""
_QUANTITY: Final = "amount count number size total"
"""Words for what a figure is, which say nothing of which figure."""
_MEMORY: Final = frozenset("memory ram".split())
_OF_A_MODEL: Final = "an estimate before a run"
"""What is asked by ``how much memory``, without another word that counts."""
_WHY: Final = "why"
"""A figure does not say why."""
_ADVICE: Final = re.compile(
    r"(?:accumulate_\d+|checkpoint_(?:best|cheap)|session_[a-z]+|malloc_[a-z]+"
    r"|external_thresholds|in_place|order|reorder|int[48]_weights|precision_[\w-]+|optimizer_[\w-]+"
    r"|shard_[\w-]+)"
)
"""The names of what ``advise`` lists."""
_LOWER: Final = "lower the memory"
_OF_ADVICE: Final = {
    "checkpoint": "activation checkpointing",
    "session": "the arena of onnxruntime",
    "precision": "half precision",
    "shard": "training on several devices",
    "int8": "quantized models",
    "int4": "quantized models",
}
_ENDINGS: Final = ("ings", "ing", "ed", "es", "s", "e")
_LEAST_STEM: Final = 3
_UNKNOWN_WEIGHT: Final = 0.6
"""Of a word that no name has, as a share of the rarest word's: it may be of no importance."""
_TOPIC_SHARE: Final = 0.5
"""Of the weight of a question's words that a topic's words must have."""
_LED_SHARE: Final = 0.4
"""The same, where the topic has ``_AHEAD`` times what any other answer has."""
_AHEAD: Final = 1.5
_NAME_SHARE: Final = 0.8
"""The same of a figure or a code, whose names say nothing of what is asked about them."""
_OWN_NAME: Final = 1.25
"""How much more a word counts in a topic's name than anywhere else, if the whole name is said."""
_MOST_HAVING: Final = 2
"""Topics that have a rare word: the one that it names, and one among its other words."""
_NEAR: Final = 4
_NEAREST: Final = 3
"""Topics that are named where none answers."""
_SPELLINGS: Final = (
    (re.compile(r"(?<=\w{3})is(?=(?:e[ds]?|ers?|ing|ations?)$)"), "iz"),
    (re.compile(r"(?<=\w{3})our(?=(?:s|ed|ing|ful|less)?$)"), "or"),
    (re.compile(r"(?<=[bt])re(?=s?$)"), "er"),
    (re.compile(r"ll(?=(?:ed|ing|ers?)$)"), "l"),
    (re.compile(r"ogue(?=s?$)"), "og"),
    (re.compile(r"mme(?=s?$)"), "m"),
    (re.compile(r"ization(?=s?$)"), "ize"),
    (re.compile(r"ation(?=s?$)"), "ate"),
)
"""British spelling and American, and a noun and its verb. Names and questions are both changed, so
that a word which is no such spelling is still equal to itself."""
_FACTORS: Final = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "eight": "8",
    "ten": "10",
}
_SYNONYMS: Final = {
    "computer": "machine",
    "desktop": "machine",
    "laptop": "machine",
    "notebook": "machine",
    "pc": "machine",
    "workstation": "machine",
    "card": "gpu",
}
"""Of words in the singular."""
_CAPACITY: Final = re.compile(r"\b\d+(?:\.\d+)?[ -]*(?:[kmgt]i?b|gigs?|gigabytes?)\b")
_GIGABYTES: Final = re.compile(r"gigs?|gigabytes?")
_BATCH_SAID: Final = re.compile(
    r"\bbatch(?:es)?(?: ?size)?(?: of| is|:| ?=)? ?(\d{1,6})\b(?![.x\d])"
)
_AT_A_BATCH: Final = re.compile(
    r"\b(?:with|at|for|using) (?:an? )?batch(?: ?size)?(?: of| is|:| ?=)? ?\d{1,6}\b(?![.x\d])"
)
"""A setting of what is asked about, which says nothing of what is asked."""
_BATCH_OF_COMMAND: Final = re.compile(r"(?<=--batch )\d+(?![\d.])")
_DIM_OF_COMMAND: Final = re.compile(r" --dim \S+")
_TAKES_DIMS: Final = re.compile(
    r"onnxmem (?:(?:fit|advise|sweep|measure|diff|simulate|view|devices --model"
    r"|explain (?:\w+|'[^']*'|\"[^\"]*\")) )?MODEL\b"
)
_NAMES_BATCH: Final = re.compile(r" --(?:batch|requests)\b")
_WITHOUT_SHAPES: Final = re.compile(r"onnxmem devices\b")
_DEVICE_OF_COMMAND: Final = re.compile(r"(?<=--device )(?:\d+GiB|auto|T4|\"[^\"]*\")")
_BUDGET_OF_COMMAND: Final = re.compile(r"(?<=--budget )\d+GiB")
_MAY_TRAIN: Final = re.compile(
    r"onnxmem (?:fit |advise |sweep |devices )?(?:--model )?MODEL\b"
    r"(?!.* --(?:train|runtime|context|graph)\b)"
)
_RUNTIME_OF_COMMAND: Final = re.compile(r"\bort-c(?:pu|uda)\b")
_MAY_RUN: Final = re.compile(
    r"onnxmem (?:fit |advise |view )?MODEL\b(?!.* --(?:train|runtime|context|graph)\b)"
)
_TRAINING: Final = "train"
_MACHINE: Final = "machin"
"""The stem of ``machine``, and of a laptop or a computer."""
_MOST_WORDS: Final = 4
"""Of the name of a device."""
_WITHIN: Final = re.compile(rf"\b(?:in|into|within) (?=(?:an? )?{_CAPACITY.pattern})")
"""Who asks what happens within a size asks whether it fits."""
_UNFIT: Final = re.compile(
    r"\b(?:not|no|never|cannot|cant|wont|doesnt|\w+n['\u2019]t)(?: \w+){0,2}? fit(?=s?\b|ting\b)"
    r"|\btoo (?:big|large)\b"
)
"""A model that does not fit is another question than one that may."""
_OF_MEMORY: Final = r"(?:memory|v?ram|space|room|gigabytes|footprint)"
_CONSUMER: Final = re.compile(
    r"\b(?:what|who)(?:'s| is| are)? (?:it that |actually |really )?"
    r"(?:tak|us|eat|hogg?|occup|fill|consum|hold|need|requir)(?:es|ing|s|y|ies|ying|e)?\b"
    rf"(?: \w+){{0,4}}? {_OF_MEMORY}\b"
    rf"|\bwhere (?:does|did|do|is|has)(?: \w+){{0,3}}? {_OF_MEMORY} "
    r"(?:go|gone|spent|used)\b"
)
"""Who asks what takes the memory, or where it goes, asks for the tensors that dominate it."""
_WHICH_GPU: Final = re.compile(r"\bwhich (?=(?:graphics? |video )?(?:card|gpu|device)s?\b)")
_SEVERAL_GPUS: Final = re.compile(
    r"\bhow many (?:more )?(?:gpus?|cards?|devices?|[ahv]100s?|[345]090s?)"
    r"(?= (?:do|would|does|will|should|are|to)\b)"
)
"""Who asks how many GPUs a model needs asks for a training on several."""
_DATA_PARALLEL: Final = re.compile(r"\b(?:data[ -]?parallel|multi[ -]?gpu)\b")
_SAVING: Final = re.compile(r"\bsav(?:e|es|ing) (?=(?:\w+ )?(?:memory|v?ram|space|gigabytes)\b)")
"""Who saves memory asks for less of it, not for what is saved for backward."""
_TENSORFLOW: Final = re.compile(r"\b(?:set_memory_growth|(?:tf_force_gpu_)?allow_growth)\b")
_BY_HAND: Final = re.compile(r"\b(?:by hand|manually|on paper|with a calculator)\b")
_FREE_NOW: Final = re.compile(r"\b(?:is|are) (?:free|available)\b(?! (?:after|again|once|when))")
_FAR_OFF: Final = re.compile(r"\b(?:far|much|way) off\b|\boff by\b")
_DOCKER: Final = re.compile(r"\bdocker\b(?=(?: \w+){0,3} limit)|(?<=\blimit of )docker\b")
"""Docker is named for the limit of a container, or for what onnxmem has nothing to do with."""
_FACTOR: Final = re.compile(
    rf"\b(\d+(?:\.\d+)?|{'|'.join(_FACTORS)})[ -]*(?:x\b|\u00d7|\*|times\b|fold\b)"
)
_MULTIPLIED_BY: Final = re.compile(
    rf"\b(multipl\w+(?: \w+){{0,4}}? by|factor of) (\d+(?:\.\d+)?|{'|'.join(_FACTORS)})\b"
)
_MULTIPLE: Final = re.compile(r"\d+(?:\.\d+)?x")
_OF_A_RULE: Final = (
    "file model models network size weight parameter checkpoint disk train inference finetune "
    "fine-tune keras tensorflow"
)
"""What a rule of thumb multiplies, and what for."""
_OF_ANOTHER: Final = (
    "onnxruntime ort process ram rss resident load open create session initialize batch sample gpu "
    "cpu gigabytes quantize int8 int4 fp16 bf16 float16 half bit precision fast faster slow slower "
    "speed long longer time token context sequence image resolution height width copy instance "
    "request run iteration server leak thread lora"
)
"""What takes a multiple for a reason of its own, which another topic has."""
_SOUND: Final = re.compile(r"[a-z0-9]+")
_CARD: Final = re.compile(r"[a-z]{1,2}\d{1,3}|\d{4}")
_TWICE: Final = re.compile(r"\b(?:twice|double|doubles|doubled)\b")


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
    """The topic of a name, whatever its case and spaces, or of all the words of it that count."""
    wanted, words = " ".join(name.casefold().split()), words_of(name)
    named = (each for each in topics() if each.name.casefold() == wanted)
    alike = (each for each in topics() if words and words_of(each.name) == words)
    found = next(named, None) or next(alike, None)
    if found is None and _ADVICE.fullmatch(wanted):
        return topic_named(_OF_ADVICE.get(wanted.partition("_")[0], _LOWER))
    return found


def search(question: str) -> tuple[Answer, ...]:
    """What answers a question, the most likely first; empty if nothing is likely enough."""
    found: list[Answer] = list(_asked_for(question))
    is_doubtful = False
    ranked = _ranked(question)
    # A leading topic has less than the share that the loop asks for, and is still the best answer.
    if not found and ranked and _leads(question, ranked):
        return (ranked[0][2],)
    for share, _, answer in ranked:
        is_topic = isinstance(answer, Topic)
        if share >= (_TOPIC_SHARE if is_topic else _NAME_SHARE):
            if answer not in found and not (is_topic and is_doubtful):
                found.append(answer)
        elif is_topic and not found:
            # A less similar topic is no better answer.
            is_doubtful = True
    # A figure says how much and not why: topics first, in the order of before (the sort is stable).
    if _WHY in _all_words(question):
        found.sort(key=lambda each: not isinstance(each, Topic))
    return tuple(found[:_NEAR]) or _of_a_rare_word(question)


def _of_a_rare_word(question: str) -> tuple[Topic, ...]:
    """The topic that a word of a question names, if the words name no other; else nothing."""
    words, known = words_of(question), topics()
    names = Counter(word for each in known for word in words_of(each.name))
    having = Counter(word for each in known for word in words_of(f"{each.name} {each.words}"))
    rare = {word for word in words if names[word] == 1 and having[word] <= _MOST_HAVING}
    named = tuple(each for each in known if not rare.isdisjoint(words_of(each.name)))
    return named if len(named) == 1 else ()


def _leads(question: str, ranked: Sequence[tuple[float, float, Answer]]) -> bool:
    """Whether a topic has words of a question, if not most of its weight, and far more of it than
    any other answer.
    """
    share, rank, answer = ranked[0]
    next_rank = ranked[1][1] if len(ranked) > 1 else 0.0
    if not isinstance(answer, Topic) or not _LED_SHARE <= share < _TOPIC_SHARE:
        return False
    common = words_of(question) & words_of(f"{answer.name} {answer.words}")
    return len(common) > 1 and rank >= _AHEAD * next_rank


def _asked_for(question: str) -> Iterable[Answer]:
    """The figure that a question names and nothing else, or how much memory a model takes."""
    spoken = frozenset(_all_words(question))
    words = words_of(question)
    if not words and spoken & _MEMORY:
        topic = topic_named(_OF_A_MODEL)
        return () if topic is None else (topic,)
    about = topic_named(_ASKED_ABOUT)
    if not _MEANING.isdisjoint(spoken) and about is not None:
        words -= words_of(about.words)
    elif words.isdisjoint(words_of(_QUANTITY)):
        return ()
    words -= words_of(_QUANTITY)
    return (
        each
        for each in metrics()
        if any(words and words_of(label) == words for label in each.labels)
    )


def asks_for_a_rule(question: str) -> bool:
    """Whether a question is about a number of times the file, the weights or the training.

    Who says what holds so much (onnxruntime, the load, a batch) asks for the reason of that.
    """
    spoken = frozenset(_all_words(question))
    return (
        any(map(_MULTIPLE.fullmatch, spoken))
        and not spoken.isdisjoint(_all_words(_OF_A_RULE))
        and spoken.isdisjoint(_all_words(_OF_ANOTHER))
    )


def commands_for(topic: Topic, question: str, settings: Settings) -> tuple[str, ...]:
    """The commands of a topic with what the question names, or else the settings have: a size or a
    device, a batch and other dims, training, a runtime.

    Those of the size or of the device come first.
    """
    device, size = _device_in(question), _size_in(question)
    is_here = _MACHINE in words_of(question)
    if settings.batch is None:
        settings = replace(settings, batch=batch_in(question))
    trains = settings.train or _TRAINING in words_of(question)
    ordered: list[tuple[bool, bool, str]] = []
    for each in topic.commands:
        command = each
        if device is not None:
            command = _DEVICE_OF_COMMAND.sub(f'"{device.name}"', command)
            if device.kind == "cuda":
                command = command.replace("ort-cpu", "ort-cuda")
            size = f"{device.memory_bytes / 2**30:g}GiB"
        elif size or is_here:
            command = _DEVICE_OF_COMMAND.sub(size or "auto", command)
        if size:
            command = _BUDGET_OF_COMMAND.sub(size, command)
        is_other = command == each
        command = command if trains else _with_runtime(command, settings.runtime)
        if trains and _MAY_TRAIN.match(command):
            command = f"{command} --train"
        command = _with_flags(command, settings)
        ordered.append((is_other, trains and " --runtime " in command, command))
    # Stable: within each kind the order is the topic's own.
    ordered.sort(key=itemgetter(0, 1))
    return tuple(dict.fromkeys(command for _, _, command in ordered))


def _with_runtime(command: str, runtime: str | None) -> str:
    """A command on the runtime that is requested."""
    if runtime is None:
        return command
    command = _RUNTIME_OF_COMMAND.sub(runtime, command)
    return f"{command} --runtime {runtime}" if _MAY_RUN.match(command) else command


def _with_flags(command: str, settings: Settings) -> str:
    """A command with the dims of the settings and, if it trains, their training configuration."""
    if settings.batch is not None:
        command = _BATCH_OF_COMMAND.sub(str(settings.batch), command)
    if settings.dims:
        command = _DIM_OF_COMMAND.sub("", command)
    words: list[str] = []
    if _TAKES_DIMS.match(command):
        words += (
            word
            for flag in settings.model_flags
            if not (flag[0] == "--batch" and _NAMES_BATCH.search(command))
            if not (flag[0] == "--shape" and _WITHOUT_SHAPES.match(command))
            for word in flag
        )
    if command.endswith(" --train") or " --train " in command:
        flags = settings.recipe.flags
        words += flags if set(command.split()).isdisjoint(flags) else ()
    return f"{command} {shell_words(words)}".rstrip()


def batch_in(question: str) -> int | None:
    """The batch that a question names: ``how many elements at batch 256``."""
    said = _BATCH_SAID.search(question.casefold())
    return None if said is None else int(said[1]) or None


def _size_in(question: str) -> str:
    """A size of memory as ``--device`` takes it; empty: the question has none."""
    found = _CAPACITY.search(question.casefold())
    if found is None:
        return ""
    number, unit = re.findall(r"[\d.]+|[a-z]+", found[0])
    if _GIGABYTES.fullmatch(unit):
        return f"{number}GB"
    return f"{number}{unit[0].upper()}{'iB' if 'i' in unit else 'B'}"


def _device_in(question: str) -> Device | None:
    """The device of the catalog that a question names, by its name or by a card's number."""
    words = re.findall(r"[\w.-]+", question)
    known = catalog()
    # The longest name first: a card's name is the beginning of that of its variants.
    for length in range(_MOST_WORDS, 0, -1):
        for at in range(len(words) - length + 1):
            device = known.get(" ".join(words[at : at + length]))
            if device is not None:
                return device
    cards = _cards().intersection(_SOUND.findall(question.casefold()))
    named = (each for each in known.devices if cards & {*_SOUND.findall(each.name.casefold())})
    # Of all cards with that number, the one whose name adds least to it.
    return min(named, key=lambda each: len(each.name), default=None)


def similar(question: str) -> tuple[Topic, ...]:
    """The topics that have words of a question, the most similar first."""
    near = [answer for _, _, answer in _ranked(question) if isinstance(answer, Topic)]
    return tuple(near[:_NEAREST])


def is_word(text: str) -> bool:
    """Whether each part of a text such as ``CPU/GPU`` is a word that a name has, or a filler."""
    weights, _ = _index()
    parts = re.findall(r"[^/]+", text.casefold())
    return all(len(part) == 1 or part in _FILLER or _stem(part) in weights for part in parts)


def _ranked(question: str) -> list[tuple[float, float, Answer]]:
    """The share of a question's weight that an answer's names have, its rank, and the answer.

    Of the same rank, figures and codes whose whole name is said come before topics, others after.
    """
    weights, entries = _index()
    words, spoken = words_of(question), frozenset(_all_words(question))
    # A word that no name has counts as a share of what a word of a single name does, see `_index`.
    unknown = _UNKNOWN_WEIGHT * (log(len(entries)) + 1)
    whole = sum(weights.get(word, unknown) for word in words)
    found: list[tuple[tuple[float, bool, bool, float], float, Answer]] = []
    for entry in entries:
        in_name = sum(weights[word] for word in words & entry.name)
        known = in_name + sum(weights[word] for word in words & (entry.others - entry.name))
        if known:
            named = len(words & entry.name) / max(len(entry.name), 1)
            is_topic = isinstance(entry.answer, Topic)
            more = (_OWN_NAME - 1) * in_name * named if is_topic else 0.0
            said = max(len(spoken & each) / max(len(each), 1) for each in entry.spoken)
            order = (-known - more, said < 1, not is_topic, -said)
            found.append((order, known / whole, entry.answer))
    found.sort(key=itemgetter(0))
    return [(share, -order[0], answer) for order, share, answer in found]


@dataclass(frozen=True, slots=True)
class _Entry:
    """The words of an answer."""

    answer: Answer
    name: frozenset[str]
    """Of its names, those that count."""
    others: frozenset[str]
    """Other words for it."""
    spoken: tuple[frozenset[str], ...]
    """All words of each of its names."""


def _entry(answer: Answer, names: Iterable[str], others: str) -> _Entry:
    names = tuple(names)
    spoken = tuple(frozenset(_all_words(each)) for each in names)
    return _Entry(answer, words_of(" ".join(names)), words_of(others), spoken)


@cache
def _index() -> tuple[dict[str, float], tuple[_Entry, ...]]:
    """The weight of each word; the words of each answer."""
    entries = (
        *(_entry(each, (each.name,), each.words) for each in topics()),
        *(_entry(each, (*each.labels, each.key), "") for each in metrics()),
        *(_entry(each, (each.word, each.id), each.title) for each in codes()),
    )
    having = Counter(word for each in entries for word in each.name | each.others)
    # The inverse document frequency: the fewer answers have a word, the more it tells them apart.
    return {word: log(len(entries) / count) + 1 for word, count in having.items()}, entries


def words_of(text: str) -> frozenset[str]:
    """The words of a text that count, as they are compared."""
    words = (word for word in _split(text) if word not in _FILLER and not word.isdigit())
    return frozenset(map(_stem, words))


def _all_words(text: str) -> Iterable[str]:
    """All words of a text; those that count nothing as they are written."""
    return (word if word in _FILLER else _stem(word) for word in _split(text))


def _split(text: str) -> Iterable[str]:
    plain = _SEVERAL_GPUS.sub("distributed", _TENSORFLOW.sub("tensorflow", text.casefold()))
    plain = _SAVING.sub("reduce ", _DATA_PARALLEL.sub("distributed", _AT_A_BATCH.sub("", plain)))
    plain = _BY_HAND.sub("arithmetic formula", _FREE_NOW.sub("machine fit", plain))
    plain = _UNFIT.sub(" unfit", plain.replace("_", " "))
    plain = _CONSUMER.sub("dominates", plain)
    plain = _DOCKER.sub("container", _FAR_OFF.sub("error", _WHICH_GPU.sub("choose ", plain)))
    plain = _CAPACITY.sub(" gigabytes ", _WITHIN.sub("fit ", plain))
    plain = _MULTIPLIED_BY.sub(r"\1 \2 x", _TWICE.sub("2 x", plain))
    factored = _FACTOR.sub(lambda found: f" {_FACTORS.get(found[1], found[1])}x ", plain)
    found = re.findall(r"\d+\.\d+x|[a-z0-9]+", factored)
    return ("gpu" if word in _cards() else word for word in found)


@cache
def _cards() -> frozenset[str]:
    """The words with a number in the names of NVIDIA's GPUs: ``4090``, ``a100``."""
    names = (each.name for each in catalog().devices if each.kind == "cuda")
    words = (word for name in names for word in re.findall(r"[a-z0-9]+", name.casefold()))
    return frozenset(word for word in words if _CARD.fullmatch(word))


def _stem(word: str) -> str:
    """The word in American spelling without its ending: ``gradients`` and ``gradient`` are one."""
    word = _SYNONYMS.get(word.removesuffix("s"), word)
    for spelling, instead in _SPELLINGS:
        word = spelling.sub(instead, word)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            rest = word.removesuffix(ending)
            is_doubled = ending in {"ing", "ed"} and rest[-1] == rest[-2] and rest[-1] not in "ls"
            return rest[:-1] if is_doubled else rest
    return word
