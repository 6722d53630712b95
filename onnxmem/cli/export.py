"""``onnxmem export MODEL --format NAME``: what a model takes, in the format of another tool."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import analyze_settings, refuse_contradictions, refuse_unused_options
from onnxmem.cli.options import (
    add_context,
    add_model_options,
    add_most,
    add_result_options,
    add_runtime_options,
    add_training_options,
)
from onnxmem.cli.output import (
    check_output,
    form_of,
    notify,
    report_fault,
    write_bytes,
    write_bytes_to_stdout,
    write_pieces,
)
from onnxmem.cli.parsing import Parser, add_size
from onnxmem.errors import EXIT_OK, UsageError, fault_of, shortened
from onnxmem.settings import Settings
from onnxmem.units import plural

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis


@dataclass(frozen=True, slots=True)
class Format:
    """What the command line must know of a format before it imports an exporter."""

    summary: str
    """As ``--help`` has it."""
    endings: tuple[str, ...] = ()
    """Of its files, among those that name a form of a result."""
    has_training: bool = True
    """Whether it shows a training step."""
    is_of_session: bool = False
    """Whether it is of a session's optimized graph, whatever the figures are of."""
    is_binary: bool = False


FORMATS: Final[Mapping[str, Format]] = MappingProxyType(
    {
        "chrome": Format("bytes and nodes, for ui.perfetto.dev, chrome://tracing", (".json",)),
        "torch-snapshot": Format(
            "snapshot for PyTorch's memory viewer, pytorch.org/memory_viz", is_binary=True
        ),
        "csv": Format("a row for every node", (".csv",), has_training=False),
        "graphml": Format(
            "the DAG with its bytes, for yEd, Gephi, networkx", (".graphml",), has_training=False
        ),
        "dot": Format("the DAG with its bytes, for Graphviz", (".dot",), has_training=False),
        "model-explorer": Format(
            "bytes of nodes as node data of Google's Model Explorer", (".json",)
        ),
        "ort-node-stats": Format(
            "for onnxruntime's resource_cuda_partitioning_settings",
            (".csv",),
            has_training=False,
            is_of_session=True,
        ),
        "model-card": Format("a block of markdown", (".md", ".markdown")),
        "metrics": Format("a flat JSON object, for an experiment tracker", (".json",)),
    }
)
_EPILOG: Final = "\n".join(
    ["formats:", *(f"  {name:<15} {known.summary}" for name, known in FORMATS.items()), ""]
)
_CHUNK_CHARACTERS: Final = 1 << 16
"""Written at once: a piece may be a few characters."""


def export_parser() -> ArgumentParser:
    """The flags of ``onnxmem export``."""
    parser = Parser(
        "export",
        "MODEL --format NAME [options]",
        "Write what a model takes in the format of another tool.",
        run,
        epilog=_EPILOG,
    )
    add_most(add_model_options(parser))
    parser.add_argument(
        "--format", choices=FORMATS, required=True, metavar="NAME", help="see below"
    )
    add_training_options(parser)
    add_runtime_options(parser)
    _add_budget_and_context(parser)
    add_result_options(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Analyze one model and write it."""
    from onnxmem.analysis.analysis import analyze
    from onnxmem.collection.task import needs_weights

    refuse_contradictions(arguments)
    name = only_model(arguments, "export")
    _check(arguments)
    _refuse_unused(arguments)
    _check_ending(arguments)
    check_output(arguments.output, [name], force=arguments.force)
    try:
        with ExitStack() as stack:
            settings = analyze_settings(arguments)
            is_loaded = FORMATS[arguments.format].is_of_session or needs_weights(settings)
            analysis = analyze(staged(name, stack, weights=is_loaded), **settings)
            _write(replace(analysis, path=name), arguments)
            _warn_of_unknown(analysis, name, quiet=arguments.quiet)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), error, name)
    return EXIT_OK


def only_model(arguments: Namespace, command: str) -> str:
    """The one model that is named.

    :raises UsageError: there are several.
    """
    from onnxmem.collection.sources import model_names

    names = model_names(arguments.models)
    if len(names) > 1:
        message = f"{len(names)} models; {command} writes one at a time"
        raise UsageError(message)
    return names[0]


def staged(name: str, stack: ExitStack, *, weights: bool) -> str:
    """A path for a name, as long as the stack lasts; a URL stays one if no weights are read."""
    from onnxmem.collection.sources import STDIN, local_file, staged_stdin

    if name == STDIN:
        return stack.enter_context(staged_stdin())
    return stack.enter_context(local_file(name)) if weights else name


def _add_budget_and_context(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("budget and context")
    add_size(group, "--budget", "find the largest batch that fits, as in 24GiB: among the metrics")
    add_context(group, "tokens that a language model's cache holds after a decode step")


def _check(arguments: Namespace) -> None:
    """Refuse what has no meaning, before any work.

    :raises UsageError: a training step in a format of a run, or bytes on a terminal.
    """
    known = FORMATS[arguments.format]
    if arguments.train and not known.has_training:
        message = f"--format {arguments.format} shows a run; leave --train out, or write chrome"
        raise UsageError(message)
    if known.is_binary and arguments.output is None and sys.stdout.isatty():
        message = f"--format {arguments.format} is not text; name a file: -o FILE"
        raise UsageError(message)


def _check_ending(arguments: Namespace) -> None:
    """Refuse a file whose ending names another form.

    :raises UsageError: it does.
    """
    ending = None if arguments.output is None else Path(arguments.output).suffix.lower()
    if ending not in FORMATS[arguments.format].endings:
        form_of(arguments.output, arguments.format, ())


def _refuse_unused(arguments: Namespace) -> None:
    """Refuse flags that change nothing; some formats are of a session that no figure is of."""
    settings = analyze_settings(arguments)
    del settings["context"]
    if FORMATS[arguments.format].is_of_session:
        settings["runtimes"] = ("ort-cuda",)
    refuse_unused_options(arguments, Settings(**settings))


def _write(analysis: Analysis, arguments: Namespace) -> None:
    from onnxmem.export.exporters import EXPORTERS

    pieces = EXPORTERS[arguments.format](analysis)
    if FORMATS[arguments.format].is_binary:
        _write_bytes((piece for piece in pieces if isinstance(piece, bytes)), arguments)
    else:
        texts = (piece for piece in pieces if isinstance(piece, str))
        write_pieces(_chunks(texts), arguments.output, quiet=arguments.quiet)


def _warn_of_unknown(analysis: Analysis, name: str, *, quiet: bool) -> None:
    """Warn of what was left out, once there is a file that lacks it."""
    if analysis.coverage.unknown_tensors and not quiet:
        unknown = plural(analysis.coverage.unknown_tensors, "tensor")
        notify(f"{shortened(name)}: {unknown} of unknown size left out")


def _chunks(pieces: Iterator[str]) -> Iterator[str]:
    """The pieces, many at once; the first chunk is made now, before there is a file."""

    def chunks() -> Iterator[str]:
        waiting: list[str] = []
        num_waiting = 0
        for piece in pieces:
            waiting.append(piece)
            num_waiting += len(piece)
            if num_waiting >= _CHUNK_CHARACTERS:
                yield "".join(waiting)
                waiting, num_waiting = [], 0
        yield "".join(waiting)

    made = chunks()
    return chain([next(made)], made)


def _write_bytes(pieces: Iterable[bytes], arguments: Namespace) -> None:
    """Write to the requested file, or to stdout, whose reader may go away.

    :raises UsageError: it cannot be written.
    """
    if arguments.output is None:
        write_bytes_to_stdout(pieces)
        return
    write_bytes(pieces, arguments.output)
    if not arguments.quiet:
        notify(f"Wrote {shortened(arguments.output)}")
