"""The rules of thumb term by term, and the worked example to the digit."""

import json
import re

import pytest
from paths import MODELS

from onnxmem import analyze
from onnxmem.cli import main
from onnxmem.decisions.explain.glossary import metrics_named
from onnxmem.decisions.explain.rules import (
    RULES,
    WORKED_EXAMPLE,
    PrintedSum,
    Rule,
    explained_rules,
)
from onnxmem.report.explanation import is_rules

Capture = pytest.CaptureFixture[str]


@pytest.mark.parametrize("example", WORKED_EXAMPLE, ids=lambda each: each.printed)
def test_rounding_each_term_gives_the_published_number(example: PrintedSum) -> None:
    """742.34 rounds the activations of one sample before it multiplies them by the batch."""
    assert example.mebibytes == example.printed


def test_the_example_without_rounding() -> None:
    assert [each.printed for each in WORKED_EXAMPLE] == ["224.69", "260.13", "742.34"]
    assert [each.num_bytes for each in WORKED_EXAMPLE] == [235_614_816, 272_769_024, 779_021_856]
    twice = WORKED_EXAMPLE[-1]
    assert [(each.hundredths, each.copies) for each in twice.terms] == [
        (406, 128),
        (21_827, 1),
        (439, 1),
    ]


@pytest.mark.parametrize(
    "question",
    [
        "what does the 2x disk rule leave out",
        "which rule of thumb is right",
        "the rule of 4.5 times",
        "why is it not 2 x the file or 4.5 x",
        "why does training not take 4.5 times the model size",
        "everybody says inference is 2x the file and training 4.5x, why is mine different",
        "where does the factor of 4.5 for training come from",
        # Written before the words were chosen.
        "the 2x and 4.5x multipliers are wrong for my model",
        "is memory three times the model size when training",
        "someone told me training needs 4x the weights",
        "does inference really need twice the size of the file",
        "why is training memory not 3 times the parameters",
        "people claim 4.5 times the file for training",
        "how come the folk formula of 2x model size does not hold",
        "is 2 * file size a good estimate",
        "should I multiply the weights by 4.5 for training",
        "training is supposed to be four times the model, mine is ten times",
    ],
)
def test_a_question_about_a_rule_is_answered_by_all_of_them(question: str, capsys: Capture) -> None:
    assert main(["explain", question]) == 0
    assert capsys.readouterr().out.startswith("Rules of thumb ")


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("why does onnxruntime take 4x the file", "More than the file"),
        ("why does loading take twice the file", "Memory while a model loads"),
        ("does double the batch double the memory of a model", "A larger batch"),
        ("can I train a model on 2x A100", "Whether a model fits"),
        ("is an int8 model 4x smaller", "Quantized models"),
        ("why is the process 3 times the size of the model", "More than the file"),
    ],
)
def test_a_multiple_that_another_topic_explains_is_its_own(
    question: str, answer: str, capsys: Capture
) -> None:
    assert main(["explain", question]) == 0
    assert capsys.readouterr().out.startswith(answer)


def test_a_name_with_a_factor_is_that_of_a_tensor() -> None:
    assert not is_rules("block_2x_weight")
    assert is_rules("2x the weights")


def test_the_rules_are_among_the_questions(capsys: Capture) -> None:
    assert main(["explain"]) == 0
    _, _, questions = capsys.readouterr().out.partition("\nQuestions\n")
    assert re.search(r"(?m)^  rules of thumb +onnxmem explain rules MODEL", questions)


@pytest.mark.parametrize("number", [each.printed for each in WORKED_EXAMPLE])
def test_a_published_number_is_asked_of_the_rules_and_not_of_a_message(
    number: str, capsys: Capture
) -> None:
    assert main(["explain", f"where does {number} come from?"]) == 0
    assert f"{number} MiB" in capsys.readouterr().out
    assert main(["explain", f"CUDA out of memory. Tried to allocate {number} MiB"]) == 0
    assert capsys.readouterr().out.startswith("Message ")


@pytest.mark.parametrize(("name", "batch"), [("mlp", 3), ("mobilenet_v2.int8", 2), ("gpt2", 1)])
def test_the_terms_of_a_rule_add_up_to_the_figure_of_the_report(name: str, batch: int) -> None:
    analysis = analyze(MODELS / f"{name}.onnx", batch=batch, train=True)
    found = explained_rules(analysis)
    assert [each.rule for each in found.rules] == list(RULES)
    for each in found.rules:
        terms = [term.num_bytes for term in each.terms]
        assert None not in terms
        assert each.num_bytes == sum(filter(None, terms))
        assert each.num_bytes == getattr(analysis.rules_of_thumb, each.rule.key)
    assert sum(found.step_parts.values()) == found.step_bytes


def test_the_command_has_the_values_of_a_model(capsys: Capture) -> None:
    path = str(MODELS / "mlp.onnx")
    assert main(["explain", "rules", path, "--batch", "256", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["explained"]
    kinds = [row["kind"] for row in rows]
    assert kinds == ["rule"] * 6 + ["worked_example"] * 3 + ["training_step"]
    lecture = next(row for row in rows if row.get("name") == "the lecture's sum")
    assert [(term["count"], term["times"], term["batch"]) for term in lecture["terms"]] == [
        (131_410, 3, 1),
        (410, 2, 256),
        (1_000, 1, 256),
    ]
    assert lecture["bytes"] == 4 * (3 * 131_410 + 2 * 410 * 256 + 1_000 * 256)
    assert [row["printed_mib"] for row in rows[6:9]] == ["224.69", "260.13", "742.34"]


def test_why_four_and_a_half_comes_before_the_example_of_another_network(capsys: Capture) -> None:
    assert main(["explain", "rules"]) == 0
    heads = [line for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert [each.split("  ")[0] for each in heads if each][-2:] == ["Why 4.5 x", "Worked example"]
    assert "of another network" in heads[-1]


def test_without_a_model_there_are_no_values(capsys: Capture) -> None:
    assert main(["explain", "rules", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["explained"]
    assert [row["bytes"] for row in rows[:6]] == [None] * 6
    assert rows[-1]["peak_bytes"] is None


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.key)
def test_a_rule_alone_says_what_it_leaves_out(rule: Rule, capsys: Capture) -> None:
    (metric,) = metrics_named(f"rules_of_thumb.{rule.key}")
    assert main(["explain", metric.labels[0]]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert f"leaves out {rule.leaves_out}" in text
