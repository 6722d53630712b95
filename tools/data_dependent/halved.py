"""Models in half precision, converted by onnxconverter-common."""

from typing import Final

import onnx
import sequences
from cases import Case
from onnxconverter_common.float16 import convert_float_to_float16

BY: Final = "onnxconverter_common.float16.convert_float_to_float16"


def halved(exporting: Case) -> Case:
    """The same model, converted after its export; inputs and outputs stay floats."""

    def export(path: str) -> None:
        exporting.export(path)
        model = onnx.load(path)
        onnx.save(convert_float_to_float16(model, keep_io_types=True), path)

    return Case(export, f"{exporting.exporter}; {BY}", exporting.inputs)


CASES: Final = {
    "experts_float16": halved(sequences.CASES["experts"]),
    "ctc_float16": halved(sequences.CASES["ctc"]),
}
