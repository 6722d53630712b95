"""``onnxmem reorder MODEL -o FILE``: a copy whose nodes run in an order that takes less."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from onnxmem.cli.copying import write_copy
from onnxmem.cli.faults import tell
from onnxmem.cli.output import check_output, write_stdout
from onnxmem.errors import EXIT_OK, fault_of, shortened
from onnxmem.export.rewriting import file_indices, reordered
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import FileWindow, ModelFile, load
from onnxmem.model.graph import Graph
from onnxmem.model.input_values import refuse_unknown_names
from onnxmem.report.terminal import render_gain
from onnxmem.runtimes.ideal.schedules import Schedule, problem_of
from onnxmem.runtimes.ideal.scheduling import best_schedule, in_order, onnxruntime_schedule

_OWN_ORDER: Final = (
    "onnxruntime by default takes more of the copy than of the file: it runs an order of its own; "
    "ExecutionOrder.PRIORITY_BASED with its optimiser off runs the file's"
)


def run(arguments: Namespace) -> int:
    """Search for an order, say what it gains and write the copy if it gains anything."""
    name, output = arguments.model, arguments.output
    check_output(output, [name], force=arguments.force)
    try:
        file = load(name)
        graph = _graph(file, arguments)
        schedule = best_schedule(problem_of(graph))
        changed = in_order(graph, schedule)
        own = [onnxruntime_schedule(problem_of(each)).peak_bytes for each in (graph, changed)]
        write_stdout(render_gain(name, graph, schedule, (own[0], own[1])))
        is_better = schedule.peak_bytes < schedule.file_peak_bytes
        if is_better and output is not None:
            _write(file, graph, schedule, output)
    except Exception as error:  # noqa: BLE001 - every fault is told with the model's name
        return tell(fault_of(error), error, name)
    if not arguments.quiet:
        if own[1] > own[0]:
            print(_OWN_ORDER, file=sys.stderr)
        for line in _remarks(graph, name, output, is_better=is_better):
            print(line, file=sys.stderr)
    return EXIT_OK


def _graph(file: ModelFile, arguments: Namespace) -> Graph:
    refuse_unknown_names(file.proto, dict(arguments.dims))
    request = Request(arguments.batch, dict(arguments.dims), dict(arguments.shapes))
    return build(prepare(file), request).graph


def _write(file: ModelFile, graph: Graph, schedule: Schedule, output: str) -> None:
    indices = file_indices(file.proto, graph)
    order = [indices[index] for index in schedule.order]
    with Path(file.path).open("rb") as source:
        window = FileWindow(source.fileno(), os.fstat(source.fileno()).st_size)
        write_copy(reordered(window, order), window, Path(output))


def _remarks(graph: Graph, name: str, output: str | None, *, is_better: bool) -> Iterator[str]:
    if output is None:
        return
    if not is_better:
        yield f"{shortened(output)}: not written: nothing is gained"
        return
    yield f"Wrote {shortened(output)}"
    is_beside = Path(name).parent.resolve() == Path(output).parent.resolve()
    if not is_beside and any(tensor.is_external for tensor in graph.tensors.values()):
        yield "its weights lie in files beside the model; the copy looks for them beside itself"
