"""Predicted against measured: prints the tables of training in ``docs/accuracy.md``.

Usage: python tools/accuracy.py

The measured side lies in ``tests/data/training`` (17 networks) and ``tests/data/training_new`` (16
that were made when the code was done, each in three exports): live bytes of one steady training
step of the native PyTorch network. The predicted side is computed here, from the ONNX files
beside them.
"""

import base64
import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import onnx

import onnxmem
from onnxmem import TrainingConfig
from onnxmem.analysis.rules_of_thumb import FORMULAS, RulesOfThumb
from onnxmem.runtimes.torch.memory import TrainingMemory

TESTS = Path(__file__).parent.parent / "tests" / "data"
GIVEN, NEW = TESTS / "training", TESTS / "training_new"
AUTOCAST = TESTS / "training_autocast.json"
PRECISIONS = TESTS / "training_precisions.json.xz"
Model = Path | onnx.ModelProto
OPTIMIZERS = ("sgd", "momentum", "adam")
TERMS = {
    "weights": "weight_bytes",
    "gradients": "gradient_bytes",
    "saved for backward": "saved_activation_bytes",
    "inputs and targets": "input_bytes",
    "optimizer state": "optimizer_state_bytes",
    "peak of the backward phase": "backward_peak_bytes",
    "peak of the optimizer phase": "optimizer_peak_bytes",
    "peak of the step": "peak_bytes",
}
AUTOCAST_TERMS = {
    "saved for backward": "saved_activation_bytes",
    "peak of the forward phase": "forward_peak_bytes",
    "peak of the backward phase": "backward_peak_bytes",
    "peak of the optimizer phase": "optimizer_peak_bytes",
    "peak of the step": "peak_bytes",
}
EXPORTERS = {
    "legacy": "`dynamo=False`, `training=TRAINING`",
    "dynamo_plain": "`dynamo=True`, `optimize=False`",
    "dynamo": "`dynamo=True`",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured step, and the analysis of its file."""

    network: str
    exporter: str
    measured: dict[str, int]
    analysis: onnxmem.Analysis

    @property
    def training(self) -> TrainingMemory:
        """The predicted step."""
        if self.analysis.training is None:
            raise ValueError(self.network)
        return self.analysis.training

    @property
    def error_percent(self) -> float:
        """Of the step's peak."""
        return 100 * (self.training.peak_bytes / self.measured["peak_bytes"] - 1)

    @property
    def is_in_doubt(self) -> bool:
        """Whether a warning says what the file does not show."""
        return not DOUBTS.isdisjoint(finding.code for finding in self.training.findings)


def given_rows() -> Iterator[Row]:
    """34 rows by 3 optimizers."""
    for row in _rows(GIVEN):
        for optimizer in OPTIMIZERS:
            recipe = TrainingConfig(optimizer=optimizer, recurrent="cells")
            yield _analyzed(row, GIVEN / row["file"], "legacy", recipe)


def new_rows() -> Iterator[Row]:
    """Each row by exporter and optimizer; attention as a GPU runs it, where that was measured."""
    rows = _rows(NEW)
    fused = {row["model"] for row in rows if row["attention"] == "fused"}
    for row in rows:
        if row["model"] in fused and row["attention"] == "math":
            continue
        for exporter, file in row["files"].items():
            for optimizer in OPTIMIZERS:
                recipe = TrainingConfig(optimizer=optimizer, loss=row["loss"], recurrent="cells")
                yield _analyzed(row, NEW / file, exporter, recipe)


def autocast_rows() -> Iterator[Row]:
    """Each row that was measured by CUDA's lists, by exporter."""
    exporters = {"training": ("train",), "training_new": ("legacy", "dynamo_plain")}
    for row in json.loads(AUTOCAST.read_text())["rows"]:
        if row["lists"] != "cuda":
            continue
        recipe = TrainingConfig(optimizer="adam", precision="mixed-bf16", loss=row["loss"])
        for exporter in exporters[row["folder"]]:
            path = TESTS / row["folder"] / f"{row['model']}.{exporter}.onnx"
            yield _analyzed({**row, "adam": {}}, path, exporter, recipe)


def precision_rows(group: str, *, named: bool) -> Iterator[tuple[str, Row]]:
    """Steps of 82 more networks, each with its kind; without names, as of other exporters."""
    # All groups but "seen" were written when the rules were frozen. Rules were derived from
    # "worked" since, and none from "apart".
    found = json.loads(lzma.decompress(PRECISIONS.read_bytes()))
    for network in (each for each in found["networks"] if each["group"] == group):
        for exporter, text in network["files"].items():
            model = onnx.load_from_string(base64.b64decode(text))
            if not named:
                _drop_names(model)
            for row in network["rows"]:
                recipe = TrainingConfig(
                    optimizer="adam",
                    precision=row["precision"],
                    loss=network["loss"],
                    checkpoint=row["checkpoint"],
                    recurrent="cells",
                )
                kind = row["precision"] if row["checkpoint"] == "none" else "blocks"
                about = {**row, "model": network["model"], "adam": {}}
                yield kind, _analyzed(about, model, exporter, recipe)


def _drop_names(model: onnx.ModelProto) -> None:
    """Remove what a file says of modules, of parameters and of PyTorch's operators."""
    del model.graph.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        del value.metadata_props[:]
    for index, node in enumerate(model.graph.node):
        node.name = f"n{index}"
        del node.metadata_props[:]


def _rows(folder: Path) -> list[dict[str, Any]]:
    return list(json.loads((folder / "truth.json").read_text())["rows"])


def _analyzed(row: dict[str, Any], path: Model, exporter: str, recipe: TrainingConfig) -> Row:
    analysis = onnxmem.analyze(path, batch=row["batch"], train=True, recipe=recipe)
    measured = {**row, **row[recipe.optimizer]}
    return Row(row["model"], exporter, measured, analysis)


def terms_table(rows: list[Row]) -> str:
    """Each term of a step, over all rows."""
    lines = [
        "| term of a training step | rows | exact | median error | largest error |",
        "|---|---|---|---|---|",
    ]
    for term, key in TERMS.items():
        pairs = ((getattr(row.training, key), row.measured[key]) for row in rows)
        errors = [100 * (ours / truth - 1) for ours, truth in pairs if truth]
        lines.append(_line(term, errors))
    return "\n".join(lines)


def autocast_table(rows: list[Row]) -> str:
    """Terms of a step in mixed precision, over all rows."""
    lines = [
        "| term of a step under autocast | rows | exact | median error | largest error |",
        "|---|---|---|---|---|",
    ]
    for term, key in AUTOCAST_TERMS.items():
        pairs = ((getattr(row.training, key), row.measured[key]) for row in rows)
        lines.append(_line(term, [100 * (ours / truth - 1) for ours, truth in pairs]))
    return "\n".join(lines)


DOUBTS = frozenset(
    {
        *("activations_in_place", "attention_as_products", "batchnorm_unknown", "buffers_unknown"),
        *("constant_in_float32", "folded_factors", "maxima_subtracted", "maxima_unknown"),
        *("no_repeated_modules", "parameters_not_read", "rms_norms_written_out"),
        *("squares_unknown", "subtraction_repeated", "sums_in_place", "variables_unknown"),
    }
)
"""Warnings on what a file does not show, which a figure may be wrong by."""
KINDS = {
    "fp32": ("float32", (1, 5)),
    "mixed-bf16": ("autocast, bfloat16", (1, 5)),
    "blocks": ("every repeated block checkpointed", (2, 10)),
}


def precisions_table(group: str) -> str:
    """The step's peak by kind of step, as the files are and without names and metadata."""
    lines = [
        "| step | file | rows | within | of all | largest error | without a warning |",
        "|---|---|---|---|---|---|---|",
    ]
    for named in (True, False):
        rows = list(precision_rows(group, named=named))
        file = "as exported" if named else "without names"
        for kind, (text, (near, far)) in KINDS.items():
            found = [row for each, row in rows if each == kind]
            errors = [abs(row.error_percent) for row in found]
            sure = [abs(row.error_percent) for row in found if not row.is_in_doubt]
            of_sure = f"{sum(error <= far for error in sure)} of {len(sure)} ({far} %)"
            counts = [sum(error <= most for error in errors) for most in (near, far)]
            within = f"{counts[0]} ({near} %), {counts[1]} ({far} %)"
            share = f"{100 * counts[0] / len(errors):.0f} %, {100 * counts[1] / len(errors):.0f} %"
            lines.append(
                f"| {text} | {file} | {len(errors)} | {within} | {share} | {max(errors):.2f} % "
                f"| {of_sure} |"
            )
    return "\n".join(lines)


def methods_table(rows: list[Row]) -> str:
    """The step's peak by onnxmem and by the rules of thumb."""
    lines = [
        "| peak of the step by | rows | exact | median error | largest error |",
        "|---|---|---|---|---|",
        _line("onnxmem", [row.error_percent for row in rows]),
    ]
    for rule in fields(RulesOfThumb):
        errors = [_rule_error(row, rule.name) for row in rows]
        known = [error for error in errors if error is not None]
        lines.append(_line(FORMULAS[rule.name], known))
    return "\n".join(lines)


def _rule_error(row: Row, name: str) -> float | None:
    num_bytes: int | None = getattr(row.analysis.rules_of_thumb, name)
    return None if num_bytes is None else 100 * (num_bytes / row.measured["peak_bytes"] - 1)


def exporters_table(rows: list[Row]) -> str:
    """The step's peak on the new networks, by exporter."""
    lines = ["| export | rows | exact | median error | largest error |", "|---|---|---|---|---|"]
    for exporter, how in EXPORTERS.items():
        errors = [row.error_percent for row in rows if row.exporter == exporter]
        lines.append(_line(how, errors))
    return "\n".join(lines)


def exceptions(rows: list[Row]) -> str:
    """The networks of which some row is off by more than 1 %, and the worst of each export."""
    worst: dict[tuple[str, str], float] = {}
    for row in rows:
        key = (row.network, row.exporter)
        worst[key] = max(worst.get(key, 0.0), row.error_percent, key=abs)
    return "\n".join(
        f"{name}, {e}: {err:+.2f} %" for (name, e), err in worst.items() if abs(err) > 1
    )


def _line(name: str, errors: list[float]) -> str:
    sizes = sorted(map(abs, errors))
    exact = sum(size == 0 for size in sizes)
    median, largest = sizes[len(sizes) // 2], sizes[-1]
    return f"| {name} | {len(sizes)} | {exact} | {median:.2f} % | {largest:.2f} % |"


def tables() -> dict[str, str]:
    """The tables by their markers in ``docs/accuracy.md``."""
    given, new = list(given_rows()), list(new_rows())
    return {
        "accuracy": terms_table(given),
        "methods": methods_table([*given, *new]),
        "exporters": exporters_table(new),
        "autocast": autocast_table(list(autocast_rows())),
        "seen": precisions_table("seen"),
        "unseen": precisions_table("unseen"),
        "fresh": precisions_table("fresh"),
        "worked": precisions_table("worked"),
        "apart": precisions_table("apart"),
        "more than 1 % off": exceptions([*given, *new]),
    }


if __name__ == "__main__":
    for name, text in tables().items():
        print(f"<!-- {name} -->\n{text}\n")
