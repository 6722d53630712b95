"""``onnxmem check PATH...``: models against budgets; what is unknown does not pass."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from onnxmem.cli.chosen import named_fields, recipe_from, refuse_contradictions, refuse_untrained
from onnxmem.cli.observing import add_observed
from onnxmem.cli.options import (
    add_batch_and_dims,
    add_most,
    add_result_options,
    add_shapes,
    add_training_options,
    add_verdict_options,
)
from onnxmem.cli.output import check_output, form_of, report_fault, write_file, write_result
from onnxmem.cli.parsing import Parser, add_repeatable, size
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_UNANALYZED,
    MissingFileError,
    UsageError,
    fault_of,
    shortened,
    worst_exit_code,
)
from onnxmem.files import missing_file_text

if TYPE_CHECKING:
    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.json_rows import Failure
    from onnxmem.decisions.check.budgets import Budget, Configuration
    from onnxmem.decisions.check.checking import Analyze, Checkup

FORMAT_NAMES: Final = ("text", "json", "markdown", "github", "sarif", "junit")
_EPILOG: Final = """\
budgets, in pyproject.toml or onnxmem.toml of this folder or one above it:
  [[tool.onnxmem.budgets]]
  name = "edge"
  path = "models/edge/*.onnx"       # which models; without it all
  batch = 8                         # or dims = { seq = 128 }
  max = { "boxes:0" = 100 }         # a dim that data decide
  observed = ["seen.json"]          # or runs that --save-observed wrote
  peak = "256 MiB"                  # weights, inputs and activations
  weights = "64 MiB"
  training = "2 GiB"                # the peak of a training step
  growth = "5%"                     # against the baseline
  baseline = "before.json"          # written by onnxmem MODEL --json -o FILE

exit codes: 0 all fit, 1 one does not fit, 2 wrong usage, configuration or a
missing file, 3 one is unknown: it never passes
"""


def check_parser() -> ArgumentParser:
    """The flags of ``onnxmem check``."""
    parser = Parser(
        "check",
        "[PATH...] [options]",
        "Hold models against budgets; the exit code tells whether all of them fit.",
        run,
        epilog=_EPILOG,
    )
    _add_models(parser)
    _add_budgets(parser)
    add_training_options(parser)
    _add_output(parser)
    parser.set_defaults(values=[])
    return parser


def run(arguments: Namespace) -> int:
    """Check every model, then write the result in each requested format."""
    from onnxmem.collection.sources import covered_paths, model_paths
    from onnxmem.decisions.check.checking import Checkup, gate_of
    from onnxmem.report.check import FORMATS

    refuse_contradictions(arguments)
    files = [arguments.output, *(file for _, file in arguments.also)]
    named = model_paths(arguments.models)
    for file in files:
        check_output(file, named, force=arguments.force)
    form = form_of(arguments.output, arguments.format, FORMATS)
    for name, file in arguments.also:
        form_of(file, name, ())
    configuration = _configuration(arguments)
    refuse_untrained(arguments, trains=any(budget.trains for budget in configuration.budgets))
    _refuse_process_of_run(configuration.budgets)
    paths = named or covered_paths(configuration)
    codes: list[int] = []
    analyze = _analyze_with(codes, list(dict(arguments.dims)) if len(paths) == 1 else ())
    gate = gate_of(configuration, analyze, arguments.baseline)
    checkup = Checkup(
        tuple(gate.check(paths)),
        () if named else gate.unmatched(paths),
        allows_uncovered=arguments.allow_uncovered,
    )
    codes += _missing(checkup)
    _write(checkup, form, arguments)
    return worst_exit_code([*codes, *_codes(checkup)])


def _add_models(parser: ArgumentParser) -> None:
    model = parser.add_argument_group("models")
    model.add_argument(
        "models",
        nargs="*",
        metavar="PATH",
        help="files, folders, patterns (default: what the budgets' paths are of)",
    )
    add_batch_and_dims(model)
    add_shapes(model)
    add_most(model)
    add_observed(model)
    model.add_argument(
        "--allow-uncovered", action="store_true", help="let models pass that no budget is of"
    )


def _add_budgets(parser: ArgumentParser) -> None:
    budget = parser.add_argument_group("budget")
    budget.add_argument("--config", metavar="FILE", help="budgets from this file")
    for name, what in (
        ("peak", "weights, inputs and activations"),
        ("weights", "weights alone"),
        ("training", "a training step, as --basis says"),
    ):
        budget.add_argument(
            f"--budget-{name}",
            type=size,
            metavar="SIZE",
            help=f"for {what}, in place of the configuration's budgets",
        )
    add_verdict_options(budget)
    budget.add_argument(
        "--max-growth", metavar="5%|SIZE", help="what peaks may grow by against the baseline"
    )
    budget.add_argument(
        "--baseline", metavar="FILE", help="what models took before: onnxmem MODEL --json -o FILE"
    )


def _add_output(parser: ArgumentParser) -> None:
    output = add_result_options(parser)
    output.add_argument(
        "--format", choices=FORMAT_NAMES, help="default: by the ending of -o FILE, or text"
    )
    add_repeatable(
        output,
        "--also",
        "also",
        ("FORMAT=FILE", "write another format to a file, too (repeatable)"),
        _format_and_file,
    )


def _format_and_file(text: str) -> tuple[str, str]:
    name, equals, file = text.partition("=")
    if name not in FORMAT_NAMES or not (equals and file):
        message = f"{text!r} is not FORMAT=FILE, with one of {', '.join(FORMAT_NAMES)}"
        raise ArgumentTypeError(message)
    return name, file


def _refuse_process_of_run(budgets: Iterable[Budget]) -> None:
    """Refuse a process that nothing names: a check runs no runtime.

    :raises UsageError: a budget compares the process, and has no training peak.
    """
    for budget in budgets:
        if budget.basis == "process" and not budget.trains:
            message = (
                f"budget {shortened(budget.name)}: basis process is of a training step alone; "
                "onnxmem fit --runtime ort-cpu compares a session"
            )
            raise UsageError(message)


def _codes(checkup: Checkup) -> Iterator[int]:
    from onnxmem.analysis.fitting.verdicts import Verdict

    counts = checkup.counts
    if counts[Verdict.OVER]:
        yield EXIT_GATE_FAILED
    if counts[Verdict.UNKNOWN]:
        yield EXIT_UNANALYZED


def _missing(checkup: Checkup) -> Iterator[int]:
    """Report missing models that no budget is of, which nothing else tried to read."""
    for model in checkup.uncovered():
        if not os.path.lexists(model.path):
            error = MissingFileError(missing_file_text(model.path))
            yield report_fault(fault_of(error), path=model.path)


def _configuration(arguments: Namespace) -> Configuration:
    """The budgets in force: those of flags, those of ``--config``, else those found upwards."""
    from onnxmem.decisions.check.budgets import (
        Configuration,
        find_configuration,
        read_configuration,
    )

    given = _budget_of_flags(arguments)
    found = None
    if arguments.config is not None:
        found = read_configuration(arguments.config)
    elif given is None:
        found = find_configuration(Path.cwd())
    budgets = () if found is None else tuple(_at_flags(b, arguments) for b in found.budgets)
    if given is not None:
        budgets = (given, *budgets)
    if not budgets:
        where = "no budget" if found is None else f"{shortened(found.file)}: no budget"
        message = (
            f"{where}: write [[tool.onnxmem.budgets]], or pass --budget-peak SIZE, or --baseline "
            "FILE --max-growth 5%, where onnxmem MODEL --json -o FILE writes the file"
        )
        raise UsageError(message)
    if given is not None and not arguments.models and found is None:
        message = "no model is named; name files or folders to hold against these budgets"
        raise UsageError(message)
    if found is None:
        return Configuration("", Path.cwd(), budgets)
    return replace(found, budgets=budgets)


def _budget_of_flags(arguments: Namespace) -> Budget | None:
    """The budget that flags give; ``None`` where they give none."""
    from onnxmem.decisions.check.budgets import Budget, read_growth

    growth = None if arguments.max_growth is None else read_growth(arguments.max_growth)
    limits = (arguments.budget_peak, arguments.budget_weights, arguments.budget_training, growth)
    if all(limit is None for limit in limits):
        return None
    return Budget(
        name="command line",
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        most=dict(arguments.most),
        observed=tuple(map(Path, arguments.observed)),
        train=arguments.train,
        recipe=recipe_from(arguments),
        basis=arguments.basis,
        accepted=tuple(arguments.accepted),
        peak_bytes=arguments.budget_peak,
        weight_bytes=arguments.budget_weights,
        training_bytes=arguments.budget_training,
        growth=growth,
    )


def _at_flags(budget: Budget, arguments: Namespace) -> Budget:
    """A budget of a file at the setting of the command line, which wins."""
    return replace(
        budget,
        batch=arguments.batch or budget.batch,
        dims={**budget.dims, **dict(arguments.dims)},
        shapes={**budget.shapes, **dict(arguments.shapes)},
        most={**budget.most, **dict(arguments.most)},
        observed=tuple(map(Path, arguments.observed)) or budget.observed,
        train=arguments.train or budget.train,
        recipe=budget.recipe.with_fields(**named_fields(arguments)),
        basis=arguments.basis or budget.basis,
        accepted=(*budget.accepted, *arguments.accepted),
    )


def _analyze_with(codes: list[int], dims: Sequence[str]) -> Analyze:
    """Analyze at a budget's setting; a fault of any kind is this model's alone.

    ``dims`` are those that flags give for this model alone: it must have them.
    """
    from onnxmem.analysis.json_rows import Failure
    from onnxmem.decisions.check.checking import analyzed_at
    from onnxmem.model.files import load
    from onnxmem.model.input_values import refuse_unknown_names

    def analyze_path(path: str, budget: Budget) -> Analysis | Failure:
        try:
            if dims:
                refuse_unknown_names(load(path).proto, dims)
            return analyzed_at(path, budget)
        except Exception as error:  # noqa: BLE001 - one that fails costs no other its verdict
            fault = fault_of(error)
            codes.append(report_fault(fault, error, path))
            return Failure(path, fault.code, fault.message)

    return analyze_path


def _write(checkup: Checkup, form: str, arguments: Namespace) -> None:
    from onnxmem.report.check import FORMATS

    for name, file in arguments.also:
        write_file(FORMATS[name](checkup), file, quiet=arguments.quiet)
    text = FORMATS[form](checkup)
    write_result(text, arguments)
