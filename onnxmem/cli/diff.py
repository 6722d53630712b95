"""``onnxmem diff A [B]``: what changed between two models, settings or points in time.

With ``--snapshot`` the other side is a run that PyTorch recorded on a GPU; with ``--onnxruntime``
the sides are two releases of onnxruntime.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from onnxmem.cli.chosen import (
    named_fields,
    refuse_contradictions,
    refuse_untrained,
    refuse_without_budget,
    verdict_settings,
)
from onnxmem.cli.options import (
    add_json_option,
    add_most,
    add_result_options,
    add_runtimes,
    add_sized_models,
    add_training_options,
    add_verdict_options,
)
from onnxmem.cli.output import (
    check_output,
    refuse_same_output,
    report_fault,
    settle_json,
    write_file,
    write_result,
)
from onnxmem.cli.parsing import Parser, add_repeatable, add_size, dim, named_dim, named_shape
from onnxmem.errors import (
    EXIT_GATE_FAILED,
    EXIT_OK,
    EXIT_UNANALYZED,
    Fault,
    ShapeError,
    UsageError,
    fault_of,
    printable,
    shortened,
    worst_exit_code,
)
from onnxmem.files import opened
from onnxmem.settings import OPTIMIZERS, PRECISIONS, TrainingConfig
from onnxmem.units import format_limit

if TYPE_CHECKING:
    from fractions import Fraction

    import onnx

    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.json_rows import SavedObject
    from onnxmem.decisions.diff import Change, Difference, SavedSetting, Snapshot
    from onnxmem.report.page.diff_page import SideTimelines

_GATED: Final = ("weights", "run", "training peak")
_HEAD_BYTES: Final = 64
_OF_TWO_SIDES: Final = ("budget_bytes", "fail_on_growth", "html", "runtimes")
"""Options that are not of a recorded run."""
_OF_PREDICTIONS: Final = (*_OF_TWO_SIDES, "train", "snapshot")
"""Options that are not of two releases."""
_OF_RECIPE: Final = ("optimizer", "precision", "checkpoint")


@dataclass(frozen=True, slots=True)
class _Requested:
    """The setting of one side by flags; ``None`` and empty leave it to a saved report."""

    batch: int | None
    dims: Mapping[str, int]
    shapes: Mapping[str, tuple[int | str, ...]]
    train: bool
    most: Mapping[str, int]
    recipe: Mapping[str, Any]
    """Fields that flags name, or a saved report has."""
    has_saved_dims: bool = False
    """Whether dims are a report's, of which one may be the batch."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side: computed now, or saved before."""

    snapshot: Snapshot
    analysis: Analysis | None = None
    """``None``: a saved report."""

    def timelines(self) -> SideTimelines | None:
        from onnxmem.report.page.diff_page import side_timelines

        return None if self.analysis is None else side_timelines(self.analysis)


def diff_parser() -> ArgumentParser:
    """The flags of ``onnxmem diff``."""
    parser = Parser(
        "diff",
        "A [B] [options]",
        "Say what changed between two models, two settings (--b-batch 8), or a report "
        "saved by onnxmem MODEL --json -o FILE and a model now; or where a prediction and a run "
        "that PyTorch recorded part (--snapshot); or between two releases of onnxruntime.",
        run,
    )
    add_most(add_sized_models(parser))
    parser.set_defaults(values=[])
    add_training_options(parser)
    add_runtimes(parser.add_argument_group("runtime"))
    _add_own_options(parser)
    _add_recorded(parser)
    _add_releases(parser)
    _add_output(parser)
    return parser


def run(arguments: Namespace) -> int:
    """Compare two sides, or a prediction and a recorded run, and write what differs."""
    from onnxmem.decisions.check.budgets import read_percent
    from onnxmem.decisions.diff import diff
    from onnxmem.report.diff import as_json, render
    from onnxmem.report.page.diff_page import diff_page

    if arguments.onnxruntime is not None:
        return _run_upgrade(arguments)
    if arguments.snapshot is not None:
        return _run_recorded(arguments)
    # A file that cannot be written is refused before two models are analyzed for it.
    sides = _sides(arguments)
    for file in (arguments.output, arguments.html):
        check_output(file, sides, force=arguments.force)
    refuse_same_output(arguments.html, arguments.output)
    refuse_contradictions(arguments)
    refuse_without_budget(arguments)
    is_page = settle_json(arguments, ("html",)) == "html"
    limit = None if arguments.fail_on_growth is None else read_percent(arguments.fail_on_growth)
    common = {
        "budget_bytes": arguments.budget_bytes,
        **verdict_settings(arguments),
        "runtimes": tuple(arguments.runtimes),
        "asks_onnxruntime": not arguments.emulate_optimizer,
    }
    found = _found(sides, (_requested(arguments), _requested_of_b(arguments)), common)
    if isinstance(found, int):
        return found
    refuse_untrained(arguments, trains=any(side.snapshot.training is not None for side in found))
    _refuse_unused_dims(found, dict(arguments.dims))
    _refuse_unused_dims(found[1:], dict(arguments.b_dims))
    _refuse_unused_limits(found, dict(arguments.most))
    _refuse_unused_limits(found[1:], dict(arguments.b_maxs))
    difference = diff(*(_on_budget(side.snapshot, arguments.budget_bytes) for side in found))
    if arguments.html is not None:
        page = diff_page(difference, [side.timelines() for side in found])
        write_file(page, arguments.html, quiet=arguments.quiet)
    if is_page:
        text = diff_page(difference, [side.timelines() for side in found])
    else:
        text = as_json(difference) if arguments.json else render(difference)
    write_result(text, arguments)
    codes = [*_budget_codes(difference, arguments.budget_bytes)]
    codes += [] if limit is None else [_gate(difference, limit)]
    return worst_exit_code(codes)


def _run_recorded(arguments: Namespace) -> int:
    """Compare the prediction of one model with a run that PyTorch recorded."""
    from onnxmem.decisions.recorded_run import compare_recorded, config_of
    from onnxmem.measuring.memory_snapshot import read_memory_snapshot
    from onnxmem.report.recorded_run import recorded_as_json, render_recorded

    _refuse(arguments, _OF_TWO_SIDES, "--snapshot, which compares with one run")
    (model,) = arguments.models
    check_output(arguments.output, (model, arguments.snapshot), force=arguments.force)
    refuse_contradictions(arguments)
    refuse_without_budget(arguments)
    refuse_untrained(arguments, trains=arguments.train)
    settle_json(arguments)
    recorded = read_memory_snapshot(arguments.snapshot)
    requested = _requested(arguments)
    try:
        expandable = config_of(recorded.settings)[0].expandable_segments
        analysis = _analyzed(model, requested, expandable_segments=expandable)
        compared = compare_recorded(analysis, recorded)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), error, model)
    text = recorded_as_json(compared) if arguments.json else render_recorded(compared)
    write_result(text, arguments)
    return EXIT_OK


def _run_upgrade(arguments: Namespace) -> int:
    """Compare two releases of onnxruntime on one model."""
    from onnxmem.decisions.upgrade import (
        RUNTIME,
        compare_releases,
        installed_is_newest,
        two_releases,
    )
    from onnxmem.report.upgrade import render_upgrade, upgrade_as_json

    _refuse(arguments, _OF_PREDICTIONS, "--onnxruntime, which compares two releases")
    (model,) = arguments.models
    check_output(arguments.output, (model,), force=arguments.force)
    refuse_contradictions(arguments)
    refuse_without_budget(arguments)
    refuse_untrained(arguments, trains=False)
    settle_json(arguments)
    releases = two_releases(arguments.onnxruntime)
    asks = installed_is_newest() and not arguments.emulate_optimizer
    try:
        analysis = _analyzed(
            model, _requested(arguments), runtimes=(RUNTIME,), asks_onnxruntime=asks
        )
        found = compare_releases(analysis, releases)
    except Exception as error:  # noqa: BLE001 - every fault is reported with the model's name
        return report_fault(fault_of(error), error, model)
    write_result(upgrade_as_json(found) if arguments.json else render_upgrade(found), arguments)
    return EXIT_OK


def _refuse(arguments: Namespace, names: Sequence[str], without: str) -> None:
    """Refuse options that compare two predictions, and a second model.

    :raises UsageError: with the flag.
    """
    if len(arguments.models) != 1:
        message = f"{len(arguments.models)} models; name one with {without}"
        raise UsageError(message)
    own = {name: value for name, value in vars(arguments).items() if name.startswith("b_")}
    own |= {name: getattr(arguments, name) for name in names}
    words = (name.replace("_", "-").removesuffix("-bytes") for name in own if own[name])
    flags = [f"--{word.replace('runtimes', 'runtime')}" for word in words]
    if flags:
        message = f"{', '.join(flags)}: no effect with {without}"
        raise UsageError(message)


def _add_own_options(parser: ArgumentParser) -> None:
    own = parser.add_argument_group("setting of B, where it differs from A's")
    own.add_argument("--b-batch", type=dim, metavar="N", help="samples at once")
    for flag, kind, shown in (
        ("dim", named_dim, "NAME=N"),
        ("shape", named_shape, "INPUT:1,3,224,224"),
        ("max", named_dim, "TENSOR:AXIS=N"),
    ):
        add_repeatable(own, f"--b-{flag}", f"b_{flag}s", (shown, f"as --{flag} (repeatable)"), kind)
    own.add_argument("--b-optimizer", choices=OPTIMIZERS, metavar="NAME", help="as --optimizer")
    own.add_argument("--b-precision", choices=PRECISIONS, metavar="NAME", help="as --precision")
    own.add_argument("--b-checkpoint", metavar="HOW", help="as --checkpoint")


def _add_recorded(parser: ArgumentParser) -> None:
    recorded = parser.add_argument_group("recorded run")
    recorded.add_argument(
        "--snapshot",
        metavar="FILE",
        help="compare A with a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot): "
        "peaks, order, sizes, and whether the allocator's replay reserves what the run did",
    )


def _add_releases(parser: ArgumentParser) -> None:
    releases = parser.add_argument_group("releases of onnxruntime")
    releases.add_argument(
        "--onnxruntime",
        nargs=2,
        metavar=("FROM", "TO"),
        help="compare A in two releases, as in 1.29 1.32: what an upgrade costs, and what of it "
        "was verified",
    )


def _add_output(parser: ArgumentParser) -> None:
    output = add_result_options(parser)
    add_size(
        output,
        "--budget",
        "whether both sides fit in this; exit with 1 if B does not, with 3 if that is unknown",
    )
    add_verdict_options(output)
    output.add_argument(
        "--fail-on-growth",
        metavar="PERCENT",
        help="exit with 1 if weights or a peak grew by more than this, as in 5%%",
    )
    add_json_option(output)
    output.add_argument("--html", metavar="FILE", help="write a page too: timelines, bars, layers")


def _refuse_unused_dims(sides: Sequence[_Side], dims: Iterable[str]) -> None:
    """Refuse a dim that none of the models has; a saved report is not requested.

    :raises ShapeError: there is one.
    """
    models = [side.analysis.request.source.proto for side in sides if side.analysis is not None]
    for name in dims:
        faults = list(filter(None, (_unknown_dim(model, name) for model in models)))
        if models and len(faults) == len(models):
            raise faults[0]


def _refuse_unused_limits(sides: Sequence[_Side], limits: Iterable[str]) -> None:
    """Refuse a limit that is wrong on every side; a saved report is not requested.

    :raises ShapeError: there is one.
    """
    analyses = [side.analysis for side in sides if side.analysis is not None]
    for name in limits:
        faults = [next(each.results.limit_faults([name]), None) for each in analyses]
        if faults and faults[0] is not None and None not in faults:
            raise ShapeError(faults[0])


def _unknown_dim(model: onnx.ModelProto, name: str) -> ShapeError | None:
    from onnxmem.model.input_values import refuse_unknown_names

    try:
        refuse_unknown_names(model, [name])
    except ShapeError as fault:
        return fault
    return None


def _sides(arguments: Namespace) -> tuple[str, str]:
    """Two names; the second setting alone makes one model two sides."""
    given: list[str] = arguments.models
    own = (value for name, value in vars(arguments).items() if name.startswith("b_"))
    if len(given) == 1 and any(own):
        return given[0], given[0]
    if len(given) != 2:  # noqa: PLR2004 - A and B
        message = f"{len(given)} models; name two, or one and a setting of B, as in --b-batch 8"
        raise UsageError(message)
    return given[0], given[1]


def _requested(arguments: Namespace) -> _Requested:
    return _Requested(
        arguments.batch,
        dict(arguments.dims),
        dict(arguments.shapes),
        arguments.train,
        dict(arguments.most),
        named_fields(arguments),
    )


def _requested_of_b(arguments: Namespace) -> _Requested:
    """The setting of B by flags: its own ones before those of both."""
    both = _requested(arguments)
    flags = {name: getattr(arguments, f"b_{name}") for name in _OF_RECIPE}
    own = {name: value for name, value in flags.items() if value is not None}
    return _Requested(
        arguments.b_batch or both.batch,
        {**both.dims, **dict(arguments.b_dims)},
        {**both.shapes, **dict(arguments.b_shapes)},
        both.train or bool(own),
        {**both.most, **dict(arguments.b_maxs)},
        {**both.recipe, **own},
    )


def _found(
    names: tuple[str, str], requested: tuple[_Requested, _Requested], common: Mapping[str, Any]
) -> tuple[_Side, _Side] | int:
    """Both sides, or the exit code of what went wrong with them."""
    from onnxmem.analysis.json_rows import read_saved
    from onnxmem.decisions.diff import saved_setting, saved_snapshot

    reports = [read_saved(name) if _is_report(name) else None for name in names]
    rows = [
        None if report is None else _row_of(report, names[n], names[1 - n], reports[1 - n] is None)
        for n, report in enumerate(reports)
    ]
    saved = [None if row is None else _Side(saved_snapshot(row)) for row in rows]
    settings = [None if row is None else saved_setting(row) for row in rows]
    found: list[_Side] = []
    codes: list[int] = []
    for number, name in enumerate(names):
        try:
            setting = _setting(requested[number], settings[1 - number])
            found.append(saved[number] or _computed(name, setting, common))
        except Exception as error:  # noqa: BLE001 - both sides are reported
            codes.append(report_fault(fault_of(error), error, name))
    return worst_exit_code(codes) if codes else (found[0], found[1])


def _is_report(name: str) -> bool:
    """Whether a file is JSON: its suffix, or how it begins."""
    if name.endswith(".json"):
        return True
    try:
        with open(opened(name), "rb") as file:
            return file.read(_HEAD_BYTES).lstrip().startswith(b"{")
    except OSError:
        return False  # reading it as a model reports what is wrong


def _row_of(
    rows: tuple[SavedObject, ...],
    name: str,
    other: str,
    other_is_model: bool,  # noqa: FBT001 - one of two sides
) -> SavedObject:
    """The row of a report that is compared: its only one, or the one of the other side's model."""
    from onnxmem.analysis.json_rows import SavedReportError

    if other_is_model:
        wanted = printable(os.path.normpath(other))
        same = [row for row in rows if os.path.normpath(row.text("path") or "") == wanted]
        rows = tuple(same) or rows
    if len(rows) != 1:
        message = f"{shortened(name)}: has {len(rows)} models; save the one to be compared alone"
        raise SavedReportError(message)
    if rows[0].text("status") not in {"ok", "partial"}:
        message = f"{shortened(name)}: its model could not be analyzed; write the report again"
        raise SavedReportError(message)
    return rows[0]


def _setting(requested: _Requested, setting: SavedSetting | None) -> _Requested:
    """What flags leave open of a side's setting is as in the saved report on the other side."""
    if setting is None:
        return requested
    return _Requested(
        requested.batch or setting.batch,
        {**setting.dims, **requested.dims},
        {**setting.shapes, **requested.shapes},
        requested.train or setting.train,
        requested.most,
        {**setting.recipe, **requested.recipe},
        has_saved_dims=True,
    )


def _on_budget(side: Snapshot, budget_bytes: int | None) -> Snapshot:
    """A saved verdict is of the budget that it was saved with, and of no other."""
    if side.verdict is None or side.verdict.limit_bytes == budget_bytes:
        return side
    return replace(side, verdict=None)


def _budget_codes(difference: Difference, budget_bytes: int | None) -> Iterator[int]:
    """The exit code of the verdict on B."""
    from onnxmem.analysis.fitting.verdicts import Verdict

    if budget_bytes is None:
        return
    side = difference.after
    verdict = Verdict.UNKNOWN if side.verdict is None else side.verdict.compared.verdict
    if verdict is Verdict.OVER:
        message = f"does not fit the budget of {format_limit(budget_bytes)}"
        yield report_fault(Fault("over-budget", message, EXIT_GATE_FAILED), path=side.path)
    elif verdict is Verdict.UNKNOWN:
        message = f"whether it fits {format_limit(budget_bytes)} is unknown; see Budget"
        yield report_fault(Fault("unknown", message, EXIT_UNANALYZED), path=side.path)


def _analyzed(path: str, requested: _Requested, **others: Any) -> Analysis:  # noqa: ANN401 - of analyze
    from onnxmem.analysis.analysis import analyze

    return analyze(
        path,
        batch=requested.batch,
        dims=requested.dims,
        shapes=requested.shapes,
        train=requested.train,
        most=requested.most,
        recipe=TrainingConfig().with_fields(**requested.recipe) if requested.train else None,
        **others,
    )


def _computed(path: str, requested: _Requested, common: Mapping[str, Any]) -> _Side:
    from onnxmem.decisions.diff import snapshot

    analysis = _analyzed(path, requested, one_of_several=True, **common)
    if requested.has_saved_dims and requested.batch not in {None, analysis.settings.batch}:
        # A flag's batch wins over the dim of that name that a saved report has.
        analysis = analysis.at(batch=requested.batch)
    return _Side(snapshot(analysis), analysis)


def _gate(difference: Difference, limit: Fraction) -> int:
    """Compare the growth of weights and peaks with a share; what is unknown does not pass, and
    what grew fails whatever is unknown of others.
    """
    from onnxmem.report.diff import grown_figures

    figures = [change for change in difference.figures if change.name in _GATED]
    grown = [proof for change in figures if (proof := _grown(change, limit)) is not None]
    if grown:
        message = f"grew by more than {float(limit):g} %: {grown_figures(grown)}"
        return report_fault(Fault("grew", message, EXIT_GATE_FAILED))
    unknown = list(_unknown(difference, figures))
    if unknown:
        message = f"growth is unknown: {', '.join(unknown)}"
        return report_fault(Fault("unknown", message, EXIT_UNANALYZED))
    return EXIT_OK


def _unknown(difference: Difference, figures: Iterable[Change]) -> Iterator[str]:
    for change in figures:
        most = change if change.ends is None else change.ends[1]
        if most.change_bytes is None:
            yield change.name
    if not difference.is_whole:
        yield "a side is a lower bound"


def _grown(change: Change, limit: Fraction) -> Change | None:
    """The growth of a figure by more than a share; ``None``: it did not, or that is unknown.

    Where the data of a run decide a figure its upper end must not grow. A lower end above the
    upper end of before has grown, whatever the data are.
    """
    if change.ends is None:
        return change if _is_above(change, limit) else None
    least, most = change.ends
    proof = replace(least, before_bytes=most.before_bytes)
    return next((each for each in (most, proof) if _is_above(each, limit)), None)


def _is_above(change: Change, limit: Fraction) -> bool:
    if change.before_bytes is None or change.after_bytes is None:
        return False
    return change.after_bytes > change.before_bytes * (1 + limit / 100)
