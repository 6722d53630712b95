"""Rules of thumb as text and as JSON: their terms on a model, and the worked example."""

from collections.abc import Iterator
from typing import Final

from onnxmem.analysis.json_rows import JsonDict
from onnxmem.analysis.rules_of_thumb import Term
from onnxmem.decisions.explain.rules import (
    EXAMPLE_SIZE,
    KERAS,
    RULES,
    WORKED_EXAMPLE,
    ExplainedRule,
    ExplainedRules,
    PrintedSum,
    PrintedTerm,
    Rule,
    hundredths_text,
)
from onnxmem.errors import shortened
from onnxmem.report.text import fact, figure, joined, multiple_text
from onnxmem.units import format_bytes

_LABEL: Final = 34


def render_rules(path: str | None, found: ExplainedRules | None) -> str:
    """Every rule, why 4.5 x, and the worked example; ends with a newline."""
    if path is None or found is None:
        head = [fact("Rules of thumb", "in bytes of float32; name a model to see its values")]
        rules = [list(_words(rule)) for rule in RULES]
    else:
        head = [
            fact("Rules of thumb", f"{shortened(path)}, batch {found.batch:,}, in float32"),
            figure("Training step", found.step_bytes, "the figure that they are compared with"),
        ]
        rules = [list(_rule(each, found.step_bytes)) for each in found.rules]
    return joined([head, *rules, list(_keras(found)), list(_example())])


def _words(rule: Rule) -> Iterator[str]:
    yield fact(rule.name, rule.formula)
    yield from rule_lines(rule)


def rule_lines(rule: Rule) -> Iterator[str]:
    """What the factors of a rule stand for, and what no factor does."""
    yield fact("  counts", rule.counts)
    yield fact("  leaves out", rule.leaves_out)


def _rule(explained: ExplainedRule, step_bytes: int | None) -> Iterator[str]:
    multiple = multiple_text(explained.num_bytes, step_bytes)
    name = explained.rule.name
    yield figure(name, explained.num_bytes, f"{multiple} the training step", label_width=_LABEL)
    for term in explained.terms:
        yield figure(f"  {term.label}", term.num_bytes, _product(term), label_width=_LABEL)
    yield fact("  rule", explained.rule.formula)
    yield from rule_lines(explained.rule)


def _product(term: Term) -> str:
    """The factors of a term: ``3 x 131,410 x 4 B``."""
    times = float(term.times)
    factors = (
        *((f"{times:g}",) if times != 1 else ()),
        "unknown" if term.count is None else f"{term.count:,}",
        *((f"batch {term.batch:,}",) if term.batch != 1 else ()),
        *((f"{term.element_bytes} B",) if term.element_bytes != 1 else ()),
    )
    return " x ".join(factors)


def _example() -> Iterator[str]:
    yield fact("Worked example", f"of another network: {EXAMPLE_SIZE}")
    yield fact("", "published with each term rounded to 0.01 MiB (written MB) before it is added")
    for each in WORKED_EXAMPLE:
        yield fact(f"  {each.mebibytes} MiB", each.title)
        for term in each.terms:
            yield fact(f"    {term.label}", _printed(term))
        yield fact(
            "    without rounding", f"{each.num_bytes / 2**20:.4f} MiB, {each.num_bytes:,} B"
        )


def _printed(term: PrintedTerm) -> str:
    """``532,752 x 2 x 4 B = 4.06 MiB, x 128 = 519.68 MiB``."""
    product = " x ".join(f"{factor:,}" for factor in term.factors)
    text = f"{product} B = {hundredths_text(term.hundredths)} MiB"
    if term.copies == 1:
        return text
    return f"{text}, x {term.copies} = {hundredths_text(term.hundredths * term.copies)} MiB"


def _keras(found: ExplainedRules | None) -> Iterator[str]:
    yield fact("Why 4.5 x", KERAS)
    if found is None or found.step_bytes is None or not found.weight_bytes:
        return
    parts = (
        f"{category.value} {multiple_text(size_bytes, found.weight_bytes)}"
        for category, size_bytes in found.step_parts.items()
        if size_bytes
    )
    multiple = multiple_text(found.step_bytes, found.weight_bytes)
    yield fact("  this model", f"{multiple} its weights ({format_bytes(found.weight_bytes)})")
    yield fact("  at the peak", ", ".join(parts))


def rule_rows(found: ExplainedRules | None) -> list[JsonDict]:
    """The rules and the worked example in JSON; without a model values are null."""
    explained = {} if found is None else {each.rule.key: each for each in found.rules}
    rows = [_row(rule, explained.get(rule.key)) for rule in RULES]
    return [*rows, *map(_example_row, WORKED_EXAMPLE), _multiple_row(found)]


def _row(rule: Rule, explained: ExplainedRule | None) -> JsonDict:
    terms = None if explained is None else [_term_row(term) for term in explained.terms]
    return {
        "kind": "rule",
        "key": rule.key,
        "name": rule.name,
        "formula": rule.formula,
        "counts": rule.counts,
        "leaves_out": rule.leaves_out,
        "bytes": None if explained is None else explained.num_bytes,
        "terms": terms,
    }


def _term_row(term: Term) -> JsonDict:
    return {
        "label": term.label,
        "count": term.count,
        "times": float(term.times),
        "element_bytes": term.element_bytes,
        "batch": term.batch,
        "bytes": term.num_bytes,
    }


def _example_row(example: PrintedSum) -> JsonDict:
    return {
        "kind": "worked_example",
        "printed_mib": example.mebibytes,
        "title": example.title,
        "bytes": example.num_bytes,
        "terms": [
            {
                "label": term.label,
                "factors": list(term.factors),
                "copies": term.copies,
                "rounded_mib": hundredths_text(term.hundredths),
            }
            for term in example.terms
        ],
    }


def _multiple_row(found: ExplainedRules | None) -> JsonDict:
    """What a training step takes beside its weights, which 4.5 x guesses."""
    parts = {} if found is None else found.step_parts
    return {
        "kind": "training_step",
        "why_four_and_a_half": KERAS,
        "weight_bytes": None if found is None else found.weight_bytes,
        "peak_bytes": None if found is None else found.step_bytes,
        "parts": [
            {"name": category.value, "bytes": size_bytes} for category, size_bytes in parts.items()
        ],
    }
