"""One analysis in the formats of other tools: a module per format.

An exporter takes an analysis and yields the file piece by piece, as text or as bytes. Names from a
model are shortened and made printable before they go anywhere; what is unknown is left out, and
never 0.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.analysed import Analysis
from onnxmem.exporting.annotating import AnnotatedModel, annotated
from onnxmem.exporting.chrome_trace import chrome_trace
from onnxmem.exporting.dot import dot
from onnxmem.exporting.graphml import graphml
from onnxmem.exporting.layer_table import layer_table
from onnxmem.exporting.metrics import metrics_file, to_metrics
from onnxmem.exporting.model_card import model_card
from onnxmem.exporting.node_stats import node_stats
from onnxmem.exporting.torch_snapshot import torch_snapshot

__all__ = [
    "EXPORTERS",
    "AnnotatedModel",
    "Exporter",
    "annotated",
    "to_metrics",
]

Exporter = Callable[[Analysis], Iterator[str] | Iterator[bytes]]

EXPORTERS: Final[Mapping[str, Exporter]] = MappingProxyType(
    {
        "chrome": chrome_trace,
        "torch-snapshot": torch_snapshot,
        "csv": layer_table,
        "graphml": graphml,
        "dot": dot,
        "ort-node-stats": node_stats,
        "model-card": model_card,
        "metrics": metrics_file,
    }
)
