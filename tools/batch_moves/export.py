"""Export the networks with static shapes at batches 1 and 7, by both exporters of torch.

``python tools/batch_moves/export.py FOLDER [NAME...]`` writes ``NAME.EXPORTER.BATCH.onnx``, weights
out. A network that an exporter refuses is reported and left out.
"""

import io
import sys
import warnings
from pathlib import Path

import onnx
import torch
from networks import HELD_OUT, WORKED_ON, Network

sys.path.insert(0, str(Path(__file__).parents[1]))
import stripping

# Masks and first states keep their elements: that they are all zeros or ones says what they are.
stripping.LARGEST_INLINE_BYTES = 1 << 16

BATCHES = (1, 7)
EXPORTERS = ("dynamo", "torchscript")


def exported(network: Network, exporter: str, batch: int) -> onnx.ModelProto:
    """The ONNX model of a network at a batch, every dim a number."""
    torch.manual_seed(20_240_229)
    module = network.build().eval()
    inputs = network.inputs(batch)
    if exporter == "torchscript":
        file = io.BytesIO()
        torch.onnx.export(module, inputs, file, dynamo=False, opset_version=17)
        return onnx.load_from_string(file.getvalue())
    program = torch.onnx.export(module, inputs, dynamo=True, verbose=False, opset_version=20)
    return program.model_proto


def main() -> None:
    """Write the files of the networks named, or of all."""
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    folder.mkdir(parents=True, exist_ok=True)
    everything = WORKED_ON | HELD_OUT
    for name in names or everything:
        for exporter in EXPORTERS:
            for batch in BATCHES:
                _write(folder / f"{name}.{exporter}.{batch}.onnx", everything[name])


def _write(path: Path, network: Network) -> None:
    if path.exists():
        return
    _, exporter, batch, _ = path.name.split(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = exported(network, exporter, int(batch))
    except Exception as error:  # noqa: BLE001 - whatever an exporter raises of a network
        print(f"{path.name}: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return
    stripping.drop_annotations(model)
    stripping.strip_weights(model, "absent")
    path.write_bytes(model.SerializeToString())
    print(path.name, flush=True)


if __name__ == "__main__":
    main()
