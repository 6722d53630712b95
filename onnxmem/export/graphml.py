"""The DAG as GraphML, which yEd, Gephi, Cytoscape and graph libraries read.

Source of the format: http://graphml.graphdrawing.org/specification.html ; networkx writes it.
"""

from collections.abc import Iterator

import networkx as nx

from onnxmem.analysis.analysis import Analysis
from onnxmem.export.sized_graph import sized_graph


def graphml(analysis: Analysis) -> Iterator[str]:
    """Write the DAG of ``sized_graph``; its keys are typed, ``long`` for every number."""
    yield '<?xml version="1.0" encoding="UTF-8"?>\n'
    for line in nx.generate_graphml(sized_graph(analysis), named_key_ids=True):
        yield f"{line}\n"
