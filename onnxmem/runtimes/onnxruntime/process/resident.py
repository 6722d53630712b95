"""The resident memory of a process whose session has run."""

from onnxmem.runtimes.onnxruntime.process.loading import Loading
from onnxmem.runtimes.onnxruntime.process.terms import ProcessTerms


def process_bytes(terms: ProcessTerms) -> int:
    """Resident bytes of the whole process when its session has run with its own settings.

    The process before, the caller's inputs, what the load has left, the arena's later regions as
    far as they were touched, and the pages of external weights that kernels read where they are
    mapped. Regions are blocks of the C library's heap like any other: the smaller ones lie in holes
    that the load has left, whose pages are resident already.

    Not counted: the caller's own outputs, and what he does with them.
    """
    loading = Loading(terms.load).run()
    for region in terms.regions[len(terms.load.regions) :]:
        loading.add_region(region)
    known = terms.load.baseline
    before = known.process_bytes + terms.feed_bytes
    return before + known.running_bytes + terms.mapped_bytes + loading.resident_bytes
