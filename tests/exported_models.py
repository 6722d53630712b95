"""Models that public exporters wrote and of which data decide dims, and what their runs showed.

``tools/data_dependent`` exported and ran them; here they have no weights.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Any, Final

import onnx
from paths import DATA

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.model.intervals.walk import UpperGraph, with_upper_dims
from onnxmem.runtimes.onnxruntime.memory import (
    SessionGraphs,
    SessionRequest,
    requested_peak_at_least,
    requested_peak_at_most,
)
from onnxmem.runtimes.onnxruntime.providers import CPU
from onnxmem.runtimes.onnxruntime.session_graph.optimization import ModelAt

FOLDER: Final = DATA / "data_dependent"


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """A model without weights, and its runs in onnxruntime."""

    name: str
    runs: Mapping[str, Any]

    def proto(self) -> onnx.ModelProto:
        """The model."""
        data = gzip.decompress((FOLDER / f"{self.name}.onnx.gz").read_bytes())
        return onnx.load_from_string(data)

    def upper(self) -> UpperGraph:
        """The upper ends of its dims."""
        prepared = prepare(ModelFile(self.name, self.proto(), 0))
        found = with_upper_dims(build(prepared, Request()).graph, prepared.proto)
        assert found is not None
        return found

    def elements(self, graph: Graph) -> tuple[int, int | None]:
        """Elements of the tensors of which data decide a dim: of the largest run, and at most."""
        changed, constant = self.runs["tensors"], self.runs["constant"]
        found, most = 0, list[int | None]()
        for name, tensor in graph.tensors.items():
            if not any(tensor.dynamic) or not (name in changed or name in constant):
                continue
            found += prod(changed[name]["largest_run"] if name in changed else constant[name])
            most.append(tensor.num_elements)
        known = [each for each in most if each is not None]
        return found, sum(known) if len(known) == len(most) else None

    def requested_peak(self) -> int:
        """The largest peak that kernels requested in any run of the graph in the file."""
        peaks: Mapping[str, int] = self.runs["requested_peak_bytes"]["off"]
        return max(peaks.values())

    def requested_peak_at_most(self) -> int | None:
        """The same at the upper end of every dim."""
        sessions = self._sessions()
        options = sessions.request.session_options()
        return requested_peak_at_most(sessions.graph(options), options, CPU, sessions.request)

    def requested_peaks_at_least(self) -> tuple[int | None, int]:
        """The same at the lower end of branches and iterations, and the least of any run."""
        sessions = self._sessions()
        options = sessions.request.session_options()
        peaks: Mapping[str, int] = self.runs["requested_peak_bytes"]["off"]
        least = requested_peak_at_least(sessions.graph(options), options, CPU)
        return least, min(peaks.values())

    def _sessions(self) -> SessionGraphs:
        file = ModelFile(self.name, self.proto(), 0)
        prepared = prepare(file)
        model = ModelAt(file, prepared, build(prepared, Request()))
        return SessionGraphs(model, SessionRequest(graph="raw", asks_onnxruntime=False))

    def beyond(self, graph: Graph) -> Iterator[str]:
        """Tensors that were larger in a run than their upper end."""
        rows = {name: (dims, prod(dims)) for name, dims in self.runs["constant"].items()}
        changed = self.runs["tensors"].items()
        rows |= {name: (each["most"], each["most_elements"]) for name, each in changed}
        for name, (dims, elements) in rows.items():
            tensor = graph.tensors[name]
            most, shape = tensor.num_elements, tensor.shape
            if most is not None and elements > most:
                yield f"{name}: {elements} of {most} elements"
            if shape is None or (len(shape) != len(dims) and len(shape) == 1):
                continue
            pairs = list(zip(dims, shape, strict=True))
            if any(limit is not None and dim > limit for dim, limit in pairs):
                yield f"{name}: {dims} beyond {shape}"


@cache
def exported_models() -> Mapping[str, ExportedModel]:
    """All of them, by name."""
    rows = json.loads(gzip.decompress((FOLDER / "runs.json.gz").read_bytes()))
    return {name: ExportedModel(name, runs) for name, runs in rows.items()}
