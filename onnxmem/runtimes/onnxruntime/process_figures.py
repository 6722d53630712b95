"""The two figures of a process, from a model, its session and what the arena did."""

from dataclasses import dataclass, replace

from onnxmem.runtimes.onnxruntime.prediction import ArenaFigures
from onnxmem.runtimes.onnxruntime.prepacking import prepacked
from onnxmem.runtimes.onnxruntime.process.describing import load_terms, mapped_bytes, mapped_pages
from onnxmem.runtimes.onnxruntime.process.loading import load_peak_bytes, process_parts
from onnxmem.runtimes.onnxruntime.process.terms import ProcessTerms
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_graph.opening import ModelAt
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Resident bytes of a process with one session, on CPU."""

    load_peak_bytes: int
    """The most that it grows while the session is made."""
    process_parts: tuple[tuple[str, int], ...]
    """All of it after the third run, part by part."""

    @property
    def process_bytes(self) -> int:
        """All of it together."""
        return sum(size_bytes for _, size_bytes in self.process_parts)


def process_figures(
    model: ModelAt, session: SessionGraph, options: SessionOptions, arena: ArenaFigures
) -> ProcessFigures:
    """Work out what the process takes beside and with its arena; bytes unknown count as nothing."""
    terms = process_terms(model, session, options, arena)
    return ProcessFigures(load_peak_bytes(terms.load), process_parts(terms))


def process_terms(
    model: ModelAt, session: SessionGraph, options: SessionOptions, arena: ArenaFigures
) -> ProcessTerms:
    """What the figures of the process are reckoned from."""
    graph = model.bound.graph
    packed = () if options.disable_prepacking else prepacked(session.graph, session.facts)
    load = load_terms(graph, session.graph, packed, model.file.file_bytes)
    return ProcessTerms(
        load=replace(load, regions=arena.loaded_regions),
        regions=arena.steady_regions,
        mapped_bytes=mapped_bytes(graph, session.graph, packed),
        feed_bytes=sum(graph.tensors[name].size_bytes or 0 for name in graph.inputs),
    )


def pages_mapped(model: ModelAt, session: SessionGraph, options: SessionOptions) -> dict[str, int]:
    """Pages of external weights that runs read in, by weight."""
    packed = () if options.disable_prepacking else prepacked(session.graph, session.facts)
    return mapped_pages(model.bound.graph, session.graph, packed)
