"""``onnxmem annotate MODEL -o FILE``: a copy of a model with its figures as metadata."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from onnxmem.analysis.analysis import Analysis
from onnxmem.analysis.analyzing import analyze
from onnxmem.cli.answers import refuse_two_answers
from onnxmem.cli.copying import write_copy
from onnxmem.cli.export import only_model, staged
from onnxmem.cli.faults import tell
from onnxmem.cli.output import check_output
from onnxmem.cli.training_options import recipe_from
from onnxmem.cli.unused import refuse_untrained
from onnxmem.collection.sources import STDIN, is_remote
from onnxmem.errors import EXIT_OK, UsageError, fault_of, shortened
from onnxmem.export.rewriting import AnnotatedModel, annotated
from onnxmem.model.files import FileWindow
from onnxmem.units import plural


def run(arguments: Namespace) -> int:
    """Analyse one model and write its copy."""
    refuse_two_answers(arguments)
    refuse_untrained(arguments, trains=arguments.train)
    name = only_model(arguments, "annotate")
    if arguments.output is None:
        message = "annotate writes a copy of the model; name its file: -o FILE.onnx"
        raise UsageError(message)
    check_output(arguments.output, [name], force=arguments.force)
    try:
        with ExitStack() as stack:
            path = staged(name, stack)
            analysis = replace(_analysed(path, arguments), path=name)
            made = _copied(path, analysis, Path(arguments.output))
    except Exception as error:  # noqa: BLE001 - every fault is told with the model's name
        return tell(fault_of(error), error, name)
    if not arguments.quiet:
        for line in _remarks(analysis, made, arguments.output):
            print(line, file=sys.stderr)
    return EXIT_OK


def _analysed(path: str, arguments: Namespace) -> Analysis:
    return analyze(
        path,
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        values=dict(arguments.values),
        train=arguments.train,
        recipe=recipe_from(arguments),
    )


def _copied(path: str, analysis: Analysis, target: Path) -> AnnotatedModel:
    """Write the annotated copy.

    :raises UsageError: the place cannot be written to.
    """
    with Path(path).open("rb") as file:
        window = FileWindow(file.fileno(), os.fstat(file.fileno()).st_size)
        made = annotated(window, analysis)
        write_copy(made.pieces, window, target)
    return made


def _remarks(analysis: Analysis, made: AnnotatedModel, output: str) -> Iterator[str]:
    nodes = plural(made.num_nodes, "node")
    yield f"Wrote {shortened(output)}: figures of the model and of {nodes}"
    is_here = analysis.path != STDIN and not is_remote(analysis.path)
    is_beside = is_here and Path(analysis.path).parent.resolve() == Path(output).parent.resolve()
    if not is_beside and any(tensor.is_external for tensor in analysis.graph.tensors.values()):
        yield "its weights lie in files beside the model; the copy looks for them beside itself"
