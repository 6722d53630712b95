"""Questions in free words find their answer."""

import shlex

import pytest
from paths import MODELS

from onnxmem.cli import COMMANDS, main
from onnxmem.decisions.explain.glossary import code_named, metrics_named
from onnxmem.decisions.explain.topics import name_of, search, topic_named, topics
from onnxmem.report.explanation import is_rules

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("why is memory higher than the file", "more than the file"),
        ("Why four times the file?", "more than the file"),
        ("my process is bigger than the onnx file", "more than the file"),
        ("OOM", "an out-of-memory message"),
        ("CUDA error: out of memory", "an out-of-memory message"),
        ("why does training need so much", "training takes more than inference"),
        ("how many samples fit", "the largest batch"),
        ("how do I reduce memory", "lower the memory"),
        ("nvidia-smi shows 10 GB", "more than predicted"),
        ("how long a context", "cache of a language model"),
        ("dynamic shapes", "dynamic dims"),
        ("guard it in CI", "memory growth in CI"),
        ("what was folded batchnorm", "folded_batchnorm"),
        ("what is the memory pattern", "memory-pattern buffer"),
    ],
)
def test_a_question_finds_its_topic(question: str, answer: str) -> None:
    assert name_of(search(question)[0]) == answer


@pytest.mark.parametrize("question", ["banana split", "what is it", "", "qqqq", "the weather"])
def test_an_unrelated_question_finds_no_topic(question: str) -> None:
    assert search(question) == ()


def test_each_topic_is_found_by_its_name_and_its_words() -> None:
    for topic in topics():
        assert search(topic.words)[0] is topic
        assert topic_named(topic.name.upper()) is topic
        assert not metrics_named(topic.name)
        assert not code_named(topic.name)


def test_everything_that_a_topic_refers_to_exists() -> None:
    for topic in topics():
        for name in topic.see:
            assert metrics_named(name) or code_named(name) or is_rules(name), name


@pytest.mark.parametrize("command", [each for topic in topics() for each in topic.commands])
def test_the_commands_of_a_topic_are_valid(command: str, capsys: Capture) -> None:
    """The first error is the missing file: no flag is unknown or without effect."""
    words = [word.replace("MODEL", "gone.onnx") for word in shlex.split(command)][1:]
    assert words[0] in COMMANDS or words[0] == "gone.onnx"
    assert main(words) in {2, 3}
    assert "usage" not in capsys.readouterr().err


def test_a_topic_names_its_command_and_related_topics(capsys: Capture) -> None:
    assert main(["explain", "why", "is", "memory", "higher", "than", "the", "file"]) == 0
    text = capsys.readouterr().out
    assert "onnxmem explain process MODEL" in text
    assert "prepack" in text


def test_an_unknown_word_suggests_the_nearest_one(capsys: Capture) -> None:
    assert main(["explain", "dynamc dmis"]) == 2
    assert "did you mean dynamic dims" in capsys.readouterr().err
    assert main(["explain", "xyzzy", "plugh", str(MODELS / "mlp.onnx")]) == 2
    assert "onnxmem explain lists" in capsys.readouterr().err
