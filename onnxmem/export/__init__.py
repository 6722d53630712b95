"""One analysis in the formats of other tools: a module per format.

An exporter takes an analysis and yields the file piece by piece, as text or as bytes. Names from a
model are shortened and made printable before they go anywhere; what is unknown is left out, and
never 0.
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.annotating import AnnotatedModel, annotated
from onnxmem.export.chrome_trace import chrome_trace
from onnxmem.export.dot import dot
from onnxmem.export.graphml import graphml
from onnxmem.export.layer_table import layer_table
from onnxmem.export.metrics import metrics_file, to_metrics
from onnxmem.export.model_card import model_card
from onnxmem.export.node_stats import node_stats
from onnxmem.export.torch_snapshot import torch_snapshot

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
