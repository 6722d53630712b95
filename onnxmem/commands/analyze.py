"""``onnxmem MODEL...``: what each model takes; one that fails costs no other its row."""

from argparse import Namespace
from collections.abc import Iterable, Iterator

from onnxmem.analysis import Analysis, analyze
from onnxmem.commands.answers import refuse_two_answers
from onnxmem.commands.faults import Fault, fault_of, tell
from onnxmem.commands.output import check_output, wants_colour, write_file, write_stdout
from onnxmem.commands.training_options import recipe_from
from onnxmem.errors import EXIT_UNANALYSED, worst_exit_code
from onnxmem.recipe import Recipe
from onnxmem.report.colour import coloured
from onnxmem.report.contract import as_json
from onnxmem.report.layers import render_layers
from onnxmem.report.terminal import render
from onnxmem.rows import Failure
from onnxmem.units import plural


def run(arguments: Namespace) -> int:
    """Analyse every model in order, then write the report."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    refuse_two_answers(arguments)
    codes: list[int] = []
    _write(_entries(arguments, codes), arguments)
    return worst_exit_code(codes)


def _entries(arguments: Namespace, codes: list[int]) -> Iterator[Analysis | Failure]:
    """One entry at a time: a catalogue of models need not be in memory together."""
    recipe = recipe_from(arguments)
    for path in arguments.models:
        entry, code = _entry(path, arguments, recipe)
        codes.append(code)
        yield entry


def _entry(path: str, arguments: Namespace, recipe: Recipe) -> tuple[Analysis | Failure, int]:
    try:
        analysis = analyze(
            path,
            batch=arguments.batch,
            dims=dict(arguments.dims),
            shapes=dict(arguments.shapes),
            values=dict(arguments.values),
            train=arguments.train,
            recipe=recipe,
            budget_bytes=arguments.budget_bytes,
            runtimes=tuple(dict.fromkeys(arguments.runtimes)),
            graph=arguments.graph,
            measure=arguments.measure,
            fixed_dims=arguments.fixed_dims,
            cuda_context_bytes=arguments.cuda_context_bytes,
            cuda_workspace_bytes=arguments.cuda_workspace_bytes,
            expandable_segments=arguments.expandable_segments,
            asks_onnxruntime=not arguments.emulate_optimiser,
        )
    except Exception as error:  # noqa: BLE001 - a fault of any kind is this model's alone
        fault = fault_of(error)
        return Failure(path, fault.code, fault.message), tell(fault, error, path)
    codes = [*_missing_codes(analysis), _strict_code(analysis, arguments)]
    return analysis, worst_exit_code(codes)


def _missing_codes(analysis: Analysis) -> Iterator[int]:
    """A runtime or a run that was asked for and came to nothing costs no other figure."""
    for finding in analysis.findings:
        if finding.code == "runtime_failed" or finding == analysis.measured:
            fault = Fault(finding.code, finding.message, EXIT_UNANALYSED)
            yield tell(fault, path=analysis.path)


def _strict_code(analysis: Analysis, arguments: Namespace) -> int:
    """With ``--strict`` a figure that leaves something out is a fault."""
    if analysis.status == "ok" or not arguments.strict:
        return 0
    unknown = plural(len(analysis.coverage.unknown_tensors), "tensor")
    message = f"{unknown} of unknown size: figures are lower bounds; see COVERAGE"
    return tell(Fault("partial", message, EXIT_UNANALYSED), path=analysis.path)


def _write(entries: Iterable[Analysis | Failure], arguments: Namespace) -> None:
    to_file = arguments.output is not None
    if arguments.json:
        text = as_json(entries, with_layers=arguments.layers)
    else:
        text = _text(entries, with_layers=arguments.layers)
        text = coloured(text) if wants_colour(arguments.color, to_file=to_file) else text
    if to_file:
        write_file(text, arguments.output, quiet=arguments.quiet)
    else:
        write_stdout(text)


def _text(entries: Iterable[Analysis | Failure], *, with_layers: bool) -> str:
    """The reports one after another; failures have been told on stderr."""
    return "\n\n".join(
        render(entry) + (f"\n{render_layers(entry)}" if with_layers else "")
        for entry in entries
        if isinstance(entry, Analysis)
    )
