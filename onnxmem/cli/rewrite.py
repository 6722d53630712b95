"""``onnxmem annotate`` and ``onnxmem reorder``: copies of a model's file.

One has figures as metadata, the other its nodes in an order that takes less memory. Pieces of the
file are changed or moved, a megabyte in memory at a time.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import recipe_from, refuse_contradictions, refuse_untrained
from onnxmem.cli.export import only_model, staged
from onnxmem.cli.options import (
    add_batch_and_dims,
    add_model_options,
    add_one_model,
    add_result_options,
    add_shapes,
    add_training_options,
)
from onnxmem.cli.output import check_output, notify, report_fault, write_bytes, write_stdout
from onnxmem.cli.parsing import Parser
from onnxmem.errors import EXIT_OK, UsageError, fault_of, shortened
from onnxmem.units import plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.model.files import FileWindow, ModelFile
    from onnxmem.model.graph import Graph
    from onnxmem.model.wire import Piece

_CHUNK_BYTES: Final = 1 << 20
_OWN_ORDER: Final = (
    "onnxruntime by default takes more of the copy than of the file: it runs an order of its own; "
    "ExecutionOrder.PRIORITY_BASED with its optimizer off runs the file's"
)


def annotate_parser() -> ArgumentParser:
    """The flags of ``onnxmem annotate``."""
    parser = Parser(
        "annotate",
        "MODEL -o FILE.onnx [options]",
        "Write a copy of a model with its figures as metadata, which Netron shows. "
        "Nothing else is changed, and no weight is read.",
        run_annotate,
    )
    add_model_options(parser)
    add_training_options(parser)
    add_result_options(parser)
    return parser


def run_annotate(arguments: Namespace) -> int:
    """Analyze one model and write its copy."""
    from onnxmem.collection.sources import STDIN
    from onnxmem.export.rewriting import annotated
    from onnxmem.model.files import is_remote, regular_file

    refuse_contradictions(arguments)
    refuse_untrained(arguments, trains=arguments.train)
    name = only_model(arguments, "annotate")
    if arguments.output is None:
        message = "annotate writes a copy of the model; name its file: -o FILE.onnx"
        raise UsageError(message)
    check_output(arguments.output, [name], force=arguments.force)
    try:
        with ExitStack() as stack:
            path = staged(name, stack, weights=True)
            analysis = _analysis(path, arguments)
            with regular_file(path) as window:
                made = annotated(window, analysis)
                write_copy(made.pieces, window, Path(arguments.output))
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), error, name)
    if not arguments.quiet:
        output, nodes = arguments.output, plural(made.num_nodes, "node")
        notify(f"Wrote {shortened(output)}: figures of the model and of {nodes}")
        folder = None if name == STDIN or is_remote(name) else Path(name).parent
        _warn_of_data(analysis.graph, folder, output)
    return EXIT_OK


def reorder_parser() -> ArgumentParser:
    """The flags of ``onnxmem reorder``."""
    parser = Parser(
        "reorder",
        "MODEL [-o FILE.onnx] [options]",
        "Write a model with its nodes in an order that takes less, weights untouched; "
        "without -o say what there is to gain.",
        run_reorder,
    )
    model = add_one_model(parser)
    add_batch_and_dims(model)
    add_shapes(model)
    add_result_options(parser)
    return parser


def run_reorder(arguments: Namespace) -> int:
    """Search for an order, say what it gains and write the copy if it gains anything."""
    from onnxmem.export.rewriting import file_indices, reordered
    from onnxmem.model.files import load, regular_file
    from onnxmem.report.terminal import render_gain
    from onnxmem.runtimes.ideal.schedule_search import best_schedule, in_order, onnxruntime_schedule
    from onnxmem.runtimes.ideal.schedules import problem_of

    name, output = arguments.model, arguments.output
    check_output(output, [name], force=arguments.force)
    try:
        file = load(name)
        graph = _graph(file, arguments)
        schedule = best_schedule(problem_of(graph))
        changed = in_order(graph, schedule)
        own = [onnxruntime_schedule(problem_of(each)).peak_bytes for each in (graph, changed)]
        write_stdout(render_gain(name, graph, schedule, (own[0], own[1])))
        is_better = schedule.peak_bytes < schedule.file_in_place_peak_bytes
        if is_better and output is not None:
            indices = file_indices(file.proto, graph)
            with regular_file(file.path) as window:
                pieces = reordered(window, [indices[index] for index in schedule.order])
                write_copy(pieces, window, Path(output))
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), error, name)
    if not arguments.quiet:
        if own[1] > own[0]:
            notify(_OWN_ORDER)
        if output is not None and is_better:
            notify(f"Wrote {shortened(output)}")
            _warn_of_data(graph, Path(name).parent, output)
        elif output is not None:
            notify(f"{shortened(output)}: not written: nothing is gained")
    return EXIT_OK


def _analysis(path: str, arguments: Namespace) -> Analysis:
    from onnxmem.analysis.analysis import analyze

    return analyze(
        path,
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        values=dict(arguments.values),
        train=arguments.train,
        recipe=recipe_from(arguments),
    )


def _graph(file: ModelFile, arguments: Namespace) -> Graph:
    from onnxmem.model.binding import Request
    from onnxmem.model.building import build, prepare
    from onnxmem.model.input_values import refuse_unknown_names

    refuse_unknown_names(file.proto, dict(arguments.dims))
    request = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    return build(prepare(file), request).graph


def _warn_of_data(graph: Graph, folder: Path | None, output: str) -> None:
    """Warn where a copy lies in another folder than the model, whose weights are beside it."""
    is_beside = folder is not None and folder.resolve() == Path(output).parent.resolve()
    if not is_beside and any(tensor.is_external for tensor in graph.tensors.values()):
        text = "its weights lie in files beside the model; the copy looks for them beside itself"
        notify(text)


def write_copy(pieces: Iterable[Piece], window: FileWindow, target: Path) -> None:
    """Write a copy to a temporary file first: a failure leaves no half of a model behind.

    :raises UsageError: the target cannot be written.
    """
    write_bytes(_contents(pieces, window), str(target))


def _contents(pieces: Iterable[Piece], window: FileWindow) -> Iterator[bytes]:
    for piece in pieces:
        if isinstance(piece, bytes):
            yield piece
            continue
        for start in range(piece.start, piece.stop, _CHUNK_BYTES):
            yield window[start : min(start + _CHUNK_BYTES, piece.stop)]
