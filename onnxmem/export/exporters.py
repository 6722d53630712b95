"""The formats of ``onnxmem export`` by name."""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.chrome_trace import chrome_trace
from onnxmem.export.figures import layer_table, metrics_file, model_card
from onnxmem.export.graphs import dot, graphml
from onnxmem.export.node_stats import node_stats
from onnxmem.export.overlays import model_explorer
from onnxmem.export.torch_snapshot import torch_snapshot

Exporter = Callable[[Analysis], Iterator[str] | Iterator[bytes]]

EXPORTERS: Final[Mapping[str, Exporter]] = MappingProxyType(
    {
        "chrome": chrome_trace,
        "torch-snapshot": torch_snapshot,
        "csv": layer_table,
        "graphml": graphml,
        "dot": dot,
        "model-explorer": model_explorer,
        "ort-node-stats": node_stats,
        "model-card": model_card,
        "metrics": metrics_file,
    }
)
