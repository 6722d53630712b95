"""The resident memory of a process whose session has run."""

from onnxmem.runtimes.onnxruntime.process.loading import Loading
from onnxmem.runtimes.onnxruntime.process.terms import ProcessTerms


def process_bytes(terms: ProcessTerms, loaded: Loading | None = None) -> int:
    """Resident bytes of the whole process when its session has run with its own settings.

    ``loaded`` is the load of these terms where it has run already.
    """
    return sum(size_bytes for _, size_bytes in process_parts(terms, loaded))


def process_parts(
    terms: ProcessTerms, loaded: Loading | None = None
) -> tuple[tuple[str, int], ...]:
    """The same part by part, each with what it is of.

    The process before, the caller's inputs, what the load has left, the arena's later regions as
    far as they were touched, and the pages of external weights that kernels read where they are
    mapped. Regions are blocks of the C library's heap like any other: the smaller ones lie in holes
    that the load has left, whose pages are resident already.

    Not counted: the caller's own outputs, and what he does with them.
    """
    loaded = loaded or Loading(terms.load).run()
    loading = loaded.with_regions(terms.regions[len(terms.load.regions) :])
    known = terms.load.baseline
    return (
        ("Python and onnxruntime", known.process_bytes + known.running_bytes),
        ("inputs", terms.feed_bytes),
        ("weights, their packed copies and the arena, pages touched", loading.resident_bytes),
        ("weights read from mapped files", terms.mapped_bytes),
    )
