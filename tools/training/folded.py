"""What default exports fold away: the peaks of inference files beside those of training files.

Run: python tools/training/folded.py tests/data/training_folded
Each network is exported for inference as users do it (both exporters, defaults) and in training
mode; the files lose their weights and keep their metadata. `table.json` has the peaks that onnxmem
gives them, with no flag and with `--no-assume-batchnorm`.
"""

import argparse
import gzip
import io
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import torch
from exporting_steps import draw_values
from folded_networks import CASES, HELD_OUT, Case
from stripping import strip_weights
from torch import nn

import onnxmem
from onnxmem.settings import TrainingConfig

BATCH = 3
"""Of the files."""
TRAINED_BATCH = 64
"""Of the figures: activations, not weights, are most of a peak."""
_KEPT_METADATA = {
    "pkg.torch.onnx.class_hierarchy",
    "pkg.torch.onnx.fx_node",
    "pkg.onnxscript.rewriter.rule_name",
}

_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
Exporter = Callable[[nn.Module, torch.Tensor], onnx.ModelProto]


def _script(module: nn.Module, sample: torch.Tensor, **given: Any) -> onnx.ModelProto:  # noqa: ANN401
    file = io.BytesIO()
    torch.onnx.export(module, (sample,), file, dynamo=False, **given)  # type: ignore[arg-type]
    return onnx.load_from_string(file.getvalue())


def _script_default(module: nn.Module, sample: torch.Tensor) -> onnx.ModelProto:
    return _script(module.eval(), sample)


def _script_training(module: nn.Module, sample: torch.Tensor) -> onnx.ModelProto:
    mode = torch.onnx.TrainingMode.TRAINING
    return _script(module.train(), sample, training=mode, do_constant_folding=False)


def _dynamo(module: nn.Module, sample: torch.Tensor, *, optimize: bool = True) -> onnx.ModelProto:
    program = torch.onnx.export(module, (sample,), dynamo=True, optimize=optimize, verbose=False)
    if program is None:
        message = "the exporter returned no program"
        raise RuntimeError(message)
    return program.model_proto


def _dynamo_default(module: nn.Module, sample: torch.Tensor) -> onnx.ModelProto:
    return _dynamo(module.eval(), sample)


def _dynamo_training(module: nn.Module, sample: torch.Tensor) -> onnx.ModelProto:
    return _dynamo(module.train(), sample, optimize=False)


PAIRS: dict[str, tuple[Exporter, Exporter]] = {
    "script": (_script_default, _script_training),
    "dynamo": (_dynamo_default, _dynamo_training),
}


def rows(folder: Path, names: set[str]) -> Iterator[dict[str, Any]]:
    """Export each network, write its default files into `folder`, and give one row per file."""
    for case in (*CASES, *HELD_OUT):
        if names and case.name not in names:
            continue
        for exporter, (default, training) in PAIRS.items():
            yield _row(folder, case, exporter, (default, training))


def _row(
    folder: Path, case: Case, exporter: str, pair: tuple[Exporter, Exporter]
) -> dict[str, Any]:
    torch.manual_seed(1)
    module = case.build()
    draw_values(module)
    sample = torch.randn(BATCH, *case.sample)
    row: dict[str, Any] = {
        "network": case.name,
        "exporter": exporter,
        "has_batchnorm": case.has_batchnorm,
        "is_held_out": case in HELD_OUT,
    }
    try:
        default, training = (_stripped(export(module, sample)) for export in pair)
    except Exception as error:  # noqa: BLE001 - the exporters raise many kinds
        return row | {"failure": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"}
    name = f"{case.name}.{exporter}.onnx.gz"
    (folder / name).write_bytes(gzip.compress(default, mtime=0))
    return row | {
        "file": name,
        "num_batchnorms": sum(isinstance(each, _NORMS) for each in module.modules()),
        **_figures(default),
        "training_file_peak_bytes": _peak(training, TrainingConfig()).peak_bytes,
    }


def _figures(file: bytes) -> dict[str, Any]:
    found = _peak(file, TrainingConfig())
    return {
        "peak_bytes": found.peak_bytes,
        "num_put_back": len(found.batchnorms.put_back),
        "num_unknown": len(found.batchnorms.unknown),
        "without_peak_bytes": _peak(file, TrainingConfig(assume_batchnorm=False)).peak_bytes,
    }


def _peak(file: bytes, recipe: TrainingConfig) -> Any:  # noqa: ANN401
    return onnxmem.analyze(file, batch=TRAINED_BATCH, train=True, recipe=recipe).training


def _stripped(model: onnx.ModelProto) -> bytes:
    """A model without weights, and without the metadata that nothing here reads."""
    strip_weights(model, "absent.bin")
    for value in model.graph.value_info:
        value.ClearField("metadata_props")
    for node in model.graph.node:
        node.ClearField("doc_string")
        kept = [entry for entry in node.metadata_props if entry.key in _KEPT_METADATA]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    return model.SerializeToString()


def main() -> None:
    """Write the files and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="*", help="only these")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    found = []
    for row in rows(arguments.folder, set(arguments.networks)):
        print(row, flush=True)
        found.append(row)
    versions = {"torch": torch.__version__, "batch": TRAINED_BATCH}
    text = json.dumps({"versions": versions, "rows": found}, indent=1) + "\n"
    (arguments.folder / "table.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
