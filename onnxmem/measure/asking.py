"""What the settings of an analysis ask of a run."""

from onnxmem.errors import Finding
from onnxmem.measure.measurement import Measurement
from onnxmem.measure.measuring import BackendUnavailableError, measure
from onnxmem.measure.settings import MeasureSettings
from onnxmem.model import ModelFile, Request
from onnxmem.runtimes.onnxruntime.session_options import LEVELS, Provider, SessionOptions
from onnxmem.settings import Settings


def run_as_asked(file: ModelFile, asked: Settings) -> Measurement | Finding:
    """Run a model as it is asked for; where there is no such backend, a finding says so.

    :raises OnnxmemError: what ``measure`` raises.
    """
    options = SessionOptions(level=LEVELS[asked.graph or "ort-all"], fixed_dims=asked.fixed_dims)
    provider: Provider = "cuda" if asked.measure == "cuda" else "cpu"
    request = Request(asked.batch, asked.dims, asked.shapes)
    try:
        how = MeasureSettings(
            provider=provider,
            options=options,
            values=asked.values,
            one_of_several=asked.one_of_several,
        )
        return measure(file, request, how)
    except BackendUnavailableError as fault:
        return Finding("measure_no_backend", str(fault))
