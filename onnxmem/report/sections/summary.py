"""The answer to a request in a few sections: the verdict, its terms, the largest tensors, notes.

Every other section has a part of it in full. Begin with ``summary``.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import groupby, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    BASES,
    AnyBasis,
    Basis,
    Verdict,
    accuracy_of,
    basis_for,
)
from onnxmem.errors import shortened
from onnxmem.program.program import Category
from onnxmem.report.sections.listing import assumptions, batch_text, of_no_run, partial_texts
from onnxmem.report.sections.section import (
    GPU_MEMORY,
    INFERENCE,
    PEAK,
    SESSIONS,
    TRAINING_STEP,
    Layout,
    Line,
    Note,
    Section,
)
from onnxmem.report.verdict import (
    end_text,
    largest_text,
    observed_lines,
    retries_text,
    short_error,
    until_text,
    verdict_text,
)
from onnxmem.units import format_bytes, format_ends, format_limit, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from onnxmem.analysis.analysis import Analysis
    from onnxmem.analysis.fitting.assessing import FitResult
    from onnxmem.analysis.fitting.footprints import Footprint
    from onnxmem.analysis.fitting.verdicts import Doubt
    from onnxmem.analysis.request import StageResults
    from onnxmem.errors import Finding
    from onnxmem.program.program import Allocation
    from onnxmem.runtimes.onnxruntime.memory import RuntimeMemory

SMALL_BYTES: Final = 16 * 2**20
"""Memory that is more likely the RAM of a microcontroller than of another machine."""
_MOST_TERMS: Final = 7
"""Rows of the table of terms."""
_SMALL: Final = 0.005
"""Terms of at most this share of the total are one row, if there are several."""
MOST_TENSORS: Final = 3
_FEW_TENSORS: Final = 8
"""So many are all listed, if there is place for them."""
_LONGEST: Final = 2000
_TITLES: Final = {
    Verdict.FITS: "Fits",
    Verdict.TIGHT: "Tight",
    Verdict.OVER: "Does not fit",
    Verdict.UNKNOWN: "Unknown if it fits",
}
_DEPENDS: Final = "Depends on the data"
"""Title of a verdict that only the data of a run decide."""
KEPT_BY: Final = "malloc_trim(0) returns it"
"""What lowers the memory of a load that the heap of the C library keeps."""
_FIGURES: Final[Mapping[AnyBasis, str]] = MappingProxyType(
    {
        Basis.TORCH: GPU_MEMORY,
        Basis.STEP: TRAINING_STEP,
        Basis.TOTAL: INFERENCE,
        **{Basis(name): title for name, title in SESSIONS.items()},
    }
)
"""What the figure of a verdict is called."""
_WORTH_A_LINE: Final = 1.05
"""How many times the memory of the runs the load must take: the error of both is five percent."""
_UNBOUND: Final = "unbound_dims"
"""The code whose note says which names it lists: they are what the option sets."""
_OPTION: Final = re.compile(r"--[a-z]")


def summary(analysis: "Analysis") -> tuple[Section, ...]:
    """What was requested, the most important first."""
    found = (
        answer(analysis),
        terms(analysis),
        *_also_requested(analysis),
        largest_tensors(analysis),
        notes(analysis),
    )
    return tuple(section for section in found if section is not None)


def one_line(analysis: "Analysis") -> str:
    """The answer in one line, behind the name of the model."""
    budget_bytes, result = analysis.settings.budget_bytes, analysis.fit
    name = shortened(analysis.path)
    if budget_bytes is None or result is None:
        basis = _basis(analysis)
        ends = _ends(analysis, basis)
        if ends:
            return f"{name}: takes {ends}"
        takes = format_bytes(_total(analysis, basis))
        is_exact = basis is Basis.TOTAL and analysis.results.data_text()
        return f"{name}: takes {takes}" + (
            ", a lower bound" if analysis.doubts and not is_exact else ""
        )
    takes = format_bytes(result.taken_bytes)
    if result.depends_on_data:
        takes = format_ends(result.footprint.total_bytes, result.footprint.upper_bytes)
    largest = None if result.max_batch is None else result.max_batch.number
    batch = "" if largest is None else f", largest batch {largest:,}"
    verdict = result.verdict.value + _until(result)
    verdict = _DEPENDS.lower() if result.depends_on_data else verdict
    return f"{name}: {verdict}: {takes} of {format_limit(budget_bytes)}{batch}"


def _ends(analysis: "Analysis", basis: AnyBasis) -> str:
    """What the figure is at least and at most; empty: the data decide nothing of it."""
    results = analysis.results
    if not results.data_text() and not analysis.coverage.unknown_tensors:
        return ""
    at_most = results.at_most
    # Each figure has ends of its own; an allocator's has a lower one only.
    least_bytes = most_bytes = None
    if basis is Basis.TOTAL:
        least_bytes = results.at_least.total_bytes
        most_bytes = None if at_most is None else at_most.total_bytes
    elif basis is Basis.STEP:
        least_bytes = results.at_least.training_peak_bytes
        most_bytes = None if at_most is None else at_most.training_peak_bytes
    elif basis is Basis.TORCH or _is_open(_session(analysis, basis)):
        least_bytes = _session_bytes(analysis, basis)
    if least_bytes is None or most_bytes == least_bytes:
        return ""
    return format_ends(least_bytes, most_bytes)


def _is_open(session: "RuntimeMemory | None") -> bool:
    """Whether the data of a run decide the figures of a session by more than branches."""
    return session is not None and not session.is_every_run


def answer(analysis: "Analysis") -> Section:
    """Whether it fits, or how much it takes; the largest batch; what to do."""
    settings, result = analysis.settings, analysis.fit
    budget_bytes = settings.budget_bytes
    if budget_bytes is not None and result is not None:
        return _verdict(analysis, result, budget_bytes)
    basis = _basis(analysis)
    accuracy = accuracy_of(basis, settings.recipe) if settings.train else ACCURACIES[basis]
    unknown = () if budget_bytes is None else ("whether it fits is unknown, see the notes",)
    warnings = [text.removeprefix("warning: ") for text in partial_texts(analysis)]
    takes = _ends(analysis, basis) or format_bytes(_total(analysis, basis))
    return Section(
        key="answer",
        title="Takes",
        summary=f"{takes}{batch_text(analysis)}: {BASES[basis].partition('; ')[0]}",
        lines=(
            *(Line("warning", text=text) for text in (*unknown, *warnings)),
            *_observed(analysis),
            *_process_lines(analysis, basis),
            Line("accuracy", text=short_error(accuracy)),
            Line("next", text="--budget 24GiB: does it fit, and the largest batch"),
            *_assumed(analysis),
        ),
        layout=Layout.FACTS,
    )


def _verdict(analysis: "Analysis", result: "FitResult", budget_bytes: int) -> Section:
    _, _, margin = verdict_text(result.requested, budget_bytes, result.doubts).partition(": ")
    end = end_text(result.assessment, result.requested)
    at = batch_text(analysis)
    takes = f"takes {end}{format_bytes(result.taken_bytes)}{at}, {margin}"
    return Section(
        key="answer",
        title=_title(result),
        summary=f"{format_limit(budget_bytes)}{_until(result)}: {takes}",
        lines=(
            *(
                Line("warning", text=shortened(_doubt_text(each), _LONGEST))
                for each in result.doubts
            ),
            *_retries(result),
            *_observed(analysis),
            *(() if result.is_at_most else observed_lines(result.footprint, result.doubts)),
            *_process_lines(analysis, result.assessment.basis),
            Line("largest batch", text=largest_text(result)),
            Line("accuracy", text=short_error(result.accuracy)),
            Line("next", text=_next_step(result)),
            *_assumed(analysis),
        ),
        layout=Layout.FACTS,
    )


def _observed(analysis: "Analysis") -> Iterator[Line]:
    """Which runs were observed, and what inference took in them, or how far it is bounded."""
    seen = analysis.observed
    if seen is None:
        return
    given = analysis.request.observed
    is_random = given is not None and given.are_random
    runs = plural(len(seen.sources), "run") + (" of random inputs" if is_random else "")
    spread, at_most = seen.total_bytes, analysis.at_most
    if spread is None:
        text = "the size of some tensors was not seen"
    elif spread.least == spread.most:
        text = f"inference took {format_bytes(spread.most)}"
    else:
        least, middle, p99, most = map(
            format_bytes, (spread.least, spread.median, spread.p99, spread.most)
        )
        text = f"inference took {least} to {most}, median {middle}, p99 {p99}"
    bound = "no bound" if at_most is None else f"at most {format_bytes(at_most.total_bytes)}"
    counts = "".join(
        f"; iterations of {shortened(name)}: "
        + (f"{each.most:,}" if each.least == each.most else f"{each.least:,} to {each.most:,}")
        for name, each in seen.iterations.items()
    )
    yield Line("observed", text=f"{runs}: {text}; {bound} for other inputs{counts}")


def _retries(result: "FitResult") -> Iterator[Line]:
    """What a run that succeeds only by retries takes elsewhere."""
    if result.requested.is_retried:
        yield Line("retries", text=retries_text(result.requested, result.assessment.basis))


def _until(result: "FitResult") -> str:
    """What an unknown verdict waits for."""
    return until_text(result.doubts) if result.verdict is Verdict.UNKNOWN else ""


def _title(result: "FitResult") -> str:
    return _DEPENDS if result.depends_on_data else _TITLES[result.verdict]


def _doubt_text(doubt: "Doubt") -> str:
    """What is in doubt, without names that it lists, and what settles it."""
    if doubt.flags and doubt.flags in doubt.message:
        return doubt.message
    first = doubt.message.split("; ")[0].partition(": '")[0]
    return f"{first}; {doubt.settling}"


def requested_session(analysis: "Analysis") -> "RuntimeMemory | None":
    """The session of onnxruntime whose figure answers the request, where there is one."""
    return _session(analysis, _basis(analysis))


def _session(analysis: "Analysis", basis: AnyBasis) -> "RuntimeMemory | None":
    return next((each for each in analysis.runtimes if each.name == basis.value), None)


def _process_lines(analysis: "Analysis", basis: AnyBasis) -> Iterator[Line]:
    """The range of the process, and what it takes while onnxruntime creates the session."""
    runtime = _session(analysis, basis)
    if basis is not Basis.ORT_CPU or runtime is None:
        return
    if runtime.process_range is not None:
        least, most = map(format_bytes, runtime.process_range)
        yield Line("range", text=f"{least} to {most}, by the state that the C library's heap is in")
    peak_bytes = runtime.process_while_loading_bytes
    if peak_bytes is not None and peak_bytes > _WORTH_A_LINE * (runtime.process_bytes or 0):
        text = f"{format_bytes(peak_bytes)}, part of it file pages that the system can take back"
        yield Line("while loading", text=text)


def _assumed(analysis: "Analysis") -> Iterator[Line]:
    """The settings of the figures, but for what other lines report and sums of other dims."""
    guessed = tuple(f"{shortened(name)} = 1" for name in analysis.guessed_dims)  # in a warning
    told = ("training", "inference", "batch ", "graph raw", "no batch")
    parts = [
        each
        for each in assumptions(analysis)
        if not each.startswith(told)
        and each not in guessed
        and "BatchNormalization" not in each
        and " + " not in each
    ]
    if parts:
        yield Line("assumes", text=", ".join(parts))


def _next_step(result: "FitResult") -> str:
    """What to do with the verdict."""
    lower = "onnxmem advise lists what lowers it"
    max_batch = result.max_batch
    if result.verdict is Verdict.UNKNOWN:
        codes = [each.code for each in result.doubts]
        accepted = (
            f", or --accept {codes[0]}" if len(codes) == 1 else ", or --accept CODE (codes: -v)"
        )
        return "settle the warnings above" + (accepted if codes else "")
    setup = result.setup
    if setup.basis is Basis.TOTAL and setup.memory_bytes <= SMALL_BYTES:
        ram = format_limit(setup.memory_bytes).replace(" ", "")
        return f"if that is a microcontroller's RAM: onnxmem fit --device ram={ram},flash=2MB"
    if result.verdict is Verdict.OVER and max_batch is not None and max_batch.number:
        return f"--batch {max_batch.comfortable or max_batch.number} fits; {lower}"
    return f"{lower}; -v: all figures"


def _basis(analysis: "Analysis") -> AnyBasis:
    """The figure that answers the request; that of a verdict, where there is one."""
    if analysis.fit is not None:
        return analysis.fit.assessment.basis
    settings = analysis.settings
    runtime = analysis.request.runtime_name
    basis = basis_for(None, train=settings.train, runtime=runtime, basis=settings.basis)
    return Basis.STEP if basis is Basis.TORCH and analysis.torch is None else basis


def answer_total(analysis: "Analysis") -> int | None:
    """Bytes of the figure that answers the request."""
    return _total(analysis, _basis(analysis))


def _total(analysis: "Analysis", basis: AnyBasis) -> int | None:
    """Bytes of the figure that answers the request."""
    if basis is Basis.TORCH and analysis.torch is not None:
        return analysis.torch.total_bytes
    if basis is Basis.STEP and analysis.training is not None:
        return analysis.training.peak_bytes
    runtime = _session(analysis, basis)
    if runtime is not None:
        return runtime.process_bytes if basis is Basis.ORT_CPU else _session_bytes(analysis, basis)
    replay = next((each for each in analysis.replays if each.name == basis.value), None)
    if replay is not None:
        return replay.total_bytes
    return analysis.total_bytes if basis is Basis.TOTAL else None


def _session_bytes(analysis: "Analysis", basis: AnyBasis) -> int | None:
    """What a verdict on a session would compare."""
    footprint = _session_footprint(analysis, basis)
    return None if footprint is None else footprint.total_bytes


def _session_footprint(analysis: "Analysis", basis: AnyBasis) -> "Footprint | None":
    """The terms that a verdict on a session would compare."""
    from onnxmem.analysis.fitting.footprints import NoFigureError, footprint_of

    if analysis.fit is not None:
        return analysis.fit.footprint
    try:
        return footprint_of(analysis.request, basis)
    except NoFigureError:
        return None


def terms(analysis: "Analysis") -> Section | None:
    """The figure as a sum; ``None`` where its terms are not known."""
    basis = _basis(analysis)
    total_bytes = _total(analysis, basis)
    end = ""
    if analysis.fit is not None:
        total_bytes = analysis.fit.taken_bytes
        end = end_text(analysis.fit.assessment, analysis.fit.requested)
        footprint = analysis.fit.footprint
        if not (end or footprint.is_whole or footprint.num_observed):
            end = "at least"
    elif basis is not Basis.STEP and _ends(analysis, basis):
        end = "at least"
        if basis is Basis.TOTAL:
            total_bytes = analysis.results.at_least.total_bytes
        elif (found := _session_footprint(analysis, basis)) is not None:
            # Of the largest observed run, as above it.
            total_bytes = found.total_bytes
            end = "observed" if found.num_observed else end
    lines = list(_terms(analysis, basis, total_bytes))
    if not lines or total_bytes is None:
        return None
    title = _FIGURES.get(basis, shortened(basis.value))
    return Section(
        key="terms",
        title=f"{title}, {end.strip()}" if end else title,
        total=Line("", total_bytes),
        lines=tuple(_folded(lines, total_bytes)),
        layout=Layout.TERMS,
    )


def _terms(analysis: "Analysis", basis: AnyBasis, total_bytes: int | None) -> Iterator[Line]:
    training, torch = analysis.training, analysis.torch
    if basis in {Basis.TORCH, Basis.STEP} and training is not None:
        from onnxmem.report.sections.training import CATEGORIES

        sizes = training.live_by_category()
        for category, remark in CATEGORIES.items():
            yield Line(category.value, sizes.get(category, 0), remark)
        if basis is Basis.TORCH and torch is not None:
            # What the allocator has beyond the tensors: cached blocks, rounding and workspaces in
            # one term.
            reserved_bytes = (total_bytes or torch.total_bytes) - torch.context_bytes
            cached_bytes = reserved_bytes - training.peak_bytes
            yield Line("PyTorch's allocator", cached_bytes, "cache, rounding, workspaces")
            is_given = analysis.settings.cuda_context_bytes is not None
            remark = "as given" if is_given else "assumed; --cuda-context"
            yield Line("CUDA context", torch.context_bytes, remark)
    elif basis is Basis.TOTAL:
        yield Line("weights", analysis.weight_bytes)
        yield Line("inputs", analysis.inputs_bytes)
        results = _results_of(analysis, total_bytes)
        peak_bytes, at_most = results.activations.in_place_peak_bytes, analysis.at_most
        most_bytes = None if at_most is None else at_most.activations.in_place_peak_bytes
        is_bounded = peak_bytes is None and most_bytes is not None
        most = f"at most {format_bytes(most_bytes or 0)}" if is_bounded else ""
        yield Line(PEAK, peak_bytes, most)
    else:
        yield from _session_terms(analysis, basis, total_bytes)


def _results_of(analysis: "Analysis", total_bytes: int | None) -> "StageResults":
    """The results whose inference takes so many bytes: at either end, or of an observed run."""
    results = analysis.results
    runs = (each.results for each in analysis.request.observed_runs)
    ends = (results, results.at_least, results.at_most, *runs)
    # The parts must be those of the total that is shown, whichever end or run that is.
    known = (each for each in ends if each is not None and each.total_bytes == total_bytes)
    return next(known, results)


def _session_terms(
    analysis: "Analysis", basis: AnyBasis, total_bytes: int | None
) -> Iterator[Line]:
    from onnxmem.runtimes.onnxruntime.process.loading import ARENAS, KEPT

    runtime = _session(analysis, basis)
    if runtime is None or total_bytes is None:
        return
    arena = runtime.arena
    unlimited_bytes = _total(analysis, basis) or total_bytes
    rest_bytes = unlimited_bytes - arena.held_steady_bytes
    # Only the arena takes less of a device that is full.
    held_bytes = arena.held_steady_bytes - (unlimited_bytes - total_bytes)
    if basis is Basis.ORT_CPU and sum(dict(runtime.process_parts).values()) == unlimited_bytes:
        # Resident pages: of what an arena reserved, those that were never written are not.
        for name, num_bytes in runtime.process_parts:
            if name == ARENAS:
                reserved = f"resident of {format_bytes(held_bytes)} reserved, after run 3"
                yield Line(name, num_bytes - (unlimited_bytes - total_bytes), reserved)
            else:
                yield Line(name, num_bytes, KEPT_BY if name == KEPT else "")
    elif basis is Basis.ORT_CUDA:
        footprint = _session_footprint(analysis, basis)
        context_bytes, workspace_bytes = (
            (footprint.context.size_bytes, footprint.workspace.size_bytes) if footprint else (0, 0)
        )
        yield Line("arena reserved", held_bytes, "after run 3")
        yield Line("others", rest_bytes - context_bytes - workspace_bytes, "beside the arena")
        yield Line("cuDNN workspace", workspace_bytes, "assumed; --cuda-workspace")
        yield Line("CUDA context", context_bytes, "assumed; --cuda-context")


def _folded(lines: "Sequence[Line]", total_bytes: int) -> Iterator[Line]:
    """The terms with bytes; several small ones are one, so that the rows still add up."""
    known = [line for line in lines if line.number or line.number is None]
    ordered = sorted(known, key=lambda line: -(line.number or 0))
    num_large = sum((line.number or 0) >= _SMALL * total_bytes for line in ordered)
    # One small term needs no row for others.
    num_shown = min(num_large, _MOST_TERMS - 1) if num_large + 1 < len(ordered) else len(ordered)
    num_shown = len(ordered) if len(ordered) <= min(num_shown + 1, _MOST_TERMS) else num_shown
    yield from ordered[:num_shown]
    others = ordered[num_shown:]
    if others:
        names = ", ".join(line.label for line in others)
        yield Line("others", sum(line.number or 0 for line in others), names)


def _also_requested(analysis: "Analysis") -> Iterator[Section]:
    """What other options request: a cache, two sessions, a measurement, checkpointing, an order."""
    if analysis.kv_cache is not None and analysis.kv_cache.context is not None:
        from onnxmem.report.sections.cache import cache_sections

        heads = [each.headline for each in cache_sections(analysis.kv_cache)]
        each = analysis.kv_cache.bytes_per_token
        own = "" if each is None else f", {format_bytes(each)} a token"
        lines = tuple(
            Line(head.label, head.number, head.remark + ("" if index else own))
            for index, head in enumerate(heads)
            if head is not None
        )
        title = f"At {analysis.kv_cache.context:,} tokens"
        yield Section(key="context", title=title, lines=lines, layout=Layout.TERMS)
    if len(analysis.runtimes) > 1 or analysis.measurement is not None:
        from onnxmem.report.sections.runtimes import runtime_sections

        wanted = {"measured", "runtimes-compared"}
        yield from (each for each in runtime_sections(analysis) if each.key in wanted)
    if analysis.training is not None and analysis.training.checkpoints:
        from onnxmem.report.sections.training import training_sections

        yield from (each for each in training_sections(analysis) if each.key == "checkpoints")
    if analysis.replays:
        from onnxmem.report.sections.runtimes import replay_sections

        yield from replay_sections(analysis.replays)
    schedule = analysis.schedule
    if schedule is not None:
        lines = (
            Line(analysis.settings.order, schedule.peak_bytes),
            Line("the file's order", schedule.file_in_place_peak_bytes),
        )
        yield Section(key="order", title="Order of execution", lines=lines, layout=Layout.TERMS)


def largest_tensors(analysis: "Analysis", most: int | None = None) -> Section | None:
    """The tensors at the peak that answers the request, the largest of many, and where it is."""
    training, runtime = analysis.training, requested_session(analysis)
    live: Sequence[Allocation]
    if training is not None:
        live, node, phase = training.live_at_peak(), training.peak_node, training.peak_phase.value
    elif runtime is not None:
        arena = runtime.arena
        node, phase = None if arena.peak_node is None else arena.peak_node.name, ""
        live = [each for each in arena.replay.live_set(arena.peak) if each.size_bytes]
        phase = "" if runtime.is_every_run else of_no_run(analysis.results)
    else:
        results, phase = _shown_at_peak(analysis)
        live, node = results.activations.live_at_peak, results.activations.peak_node
    if not live:
        return None
    at = [f"at {shortened(node)}"] if node else []
    if most is None:
        most = _FEW_TENSORS if len(live) <= _FEW_TENSORS else MOST_TENSORS
    shown = [*islice(_tensor_lines(live), most)]
    num_shown, tensors = sum(count for _, count in shown), plural(len(live), "tensor")
    if num_shown < len(live):
        tensors = f"the {num_shown:,} largest of {tensors} (more: -v)"
    return Section(
        key="largest",
        title=f"Live at the peak ({phase})" if phase else "Live at the peak",
        summary=", ".join([tensors, *at]),
        lines=tuple(line for line, _ in shown),
        layout=Layout.SIZES,
    )


def _shown_at_peak(analysis: "Analysis") -> "tuple[StageResults, str]":
    """The results whose peak is shown, and of what: of the largest observed run, if any."""
    results, runs = analysis.results, analysis.request.observed_runs
    if runs:
        largest = max((each.results for each in runs), key=lambda each: each.total_bytes or 0)
        return largest, "an observed run" if len(runs) == 1 else "the largest observed run"
    return results, of_no_run(results)


def _tensor_lines(live: "Sequence[Allocation]") -> Iterator[tuple[Line, int]]:
    """A line and its number of tensors, the largest first; two states of a weight are one line."""
    for (text, size_bytes), alike in groupby(live, lambda x: (_tensor_text(x), x.size_bytes)):
        count = sum(1 for _ in alike)
        yield Line(f"{text}, {count} times" if count > 1 else text, size_bytes), count


def _tensor_text(allocation: "Allocation") -> str:
    is_usual = allocation.category is Category.ACTIVATION
    return shortened(allocation.label) + ("" if is_usual else f" ({allocation.category.value})")


def notes(analysis: "Analysis") -> Section | None:
    """What else the figures assume, a line each, with the option that settles it."""
    told = set() if analysis.fit is None else {each.code for each in analysis.fit.doubts}
    told |= {_UNBOUND} if analysis.guessed_dims else set()
    found = [
        Note(each.code, _note_text(each)) for each in analysis.findings if each.code not in told
    ]
    assumed = analysis.coverage.assumed_nodes
    if assumed:
        nodes = plural(analysis.coverage.nodes, "node")
        found.append(Note("coverage", f"{assumed:,} of {nodes} assumed"))
    return Section(key="notes", title="Notes", notes=tuple(found)) if found else None


def _note_text(finding: "Finding") -> str:
    """The first clause of a message, without names that it lists, and the one with an option."""
    clauses = shortened(finding.message, _LONGEST).split("; ")
    is_named = finding.code == _UNBOUND
    first = clauses[0] if is_named else clauses[0].partition(": '")[0]
    option = next((each for each in clauses[1:] if _OPTION.search(each)), "")
    return first + (f"; {option}" if option else "")
