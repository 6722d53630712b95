"""The tables of figures: what the text report says line by line, each a sum or a comparison."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from types import MappingProxyType
from typing import Final

from onnxmem.analysis import Analysis
from onnxmem.analysis.measured import FIGURES, error_percent, predicted_by
from onnxmem.analysis.rules_of_thumb import FORMULAS
from onnxmem.report.lines import law_text, made_by
from onnxmem.report.page import markup
from onnxmem.report.page.figure import Term, ratio, terms_table, text
from onnxmem.report.page.figures import PEAK_PLACE
from onnxmem.report.page.markup import Cell, section
from onnxmem.report.page.stops import Stops
from onnxmem.report.training import REMARKS

_RUNTIME: Final = (
    ("requested peak", "requested_peak_bytes", "buffers at once in run 1"),
    ("with scratch", "with_scratch_peak_bytes", "and what kernels take inside"),
    ("pattern block", "pattern_block_bytes", "one piece, from run 2 on"),
    ("base", "base_bytes", "weights in the arena"),
    ("in use", "in_use_peak_bytes", "chunks for all that, base included"),
    ("held after run 1", "held_bytes", "arena, memory pattern off"),
    ("held, steady", "held_steady_bytes", "arena after run 3, as it is opened"),
    ("load peak", "load_peak_bytes", "the process while the session is made"),
    ("process", "process_bytes", "all of it after run 3"),
)
_RUNTIME_CUDA: Final = (
    ("CUDA context", "context_bytes", "assumed, or --cuda-context"),
    ("cuDNN workspace", "workspace_bytes", "as --cuda-workspace says"),
)
NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"ort-cpu": "onnxruntime, CPU", "ort-cuda": "onnxruntime, CUDA"}
)


def run_section(analysis: Analysis, stops: Stops) -> str:
    """What inference needs, as a sum, and the same tensors under each rule of sharing."""
    figures = stops.asked.figures
    total = [
        Term("RUN", "total_bytes", "weights + inputs + in-place peak", is_total=True),
        Term("weights", "weights.bytes"),
        Term("inputs", "inputs_bytes"),
        Term("in-place peak", "activations.in_place_peak_bytes", text(PEAK_PLACE, figures)),
    ]
    activations = [
        Term("in-place peak", "activations.in_place_peak_bytes", "live at once, buffers shared"),
        Term("liveness peak", "activations.peak_bytes", "live at once, nothing shared"),
        Term("arena", "activations.arena_bytes", "one block in which every buffer has an offset"),
        Term("naive in-place", "activations.naive_in_place_bytes", "all kept, buffers shared"),
        Term("naive", "activations.naive_bytes", "all kept"),
        Term("outputs", "outputs_bytes", "of the model"),
    ]
    law = analysis.batch_law
    formula = "" if law is None else f'<p class="formula">{law_text(law)}</p>'
    body = (
        terms_table(total, figures, "What a run takes")
        + formula
        + "<h3>Activations</h3>"
        + terms_table(activations, figures, "Activations under each rule of sharing")
    )
    return section("run", "A run", body)


def training_section(analysis: Analysis, stops: Stops) -> str:
    """The peak of a step as the sum of what is live then; empty where no training is asked for."""
    training, figures = analysis.training, stops.asked.figures
    if training is None:
        return ""
    remark = f"peak of one step, in its {text('training.peak_phase', figures)} phase"
    kinds = [
        Term(each.value, f"training.live_by_kind.{each.value}", escape(remark), drops_zero=True)
        for each, remark in REMARKS.items()
    ]
    phases = [
        Term("forward", "training.forward_peak_bytes", "up to the loss"),
        Term("backward", "training.backward_peak_bytes", "from the loss to the last gradient"),
        Term("optimizer", "training.optimizer_peak_bytes", "while the optimizer steps"),
        Term("kept", "training.saved_activation_bytes", "activations from forward to backward"),
    ]
    law = analysis.training_law
    formula = "" if law is None else f'<p class="formula">{law_text(law)}</p>'
    place = f'<p class="remark">The peak is at {text("training.peak_node", figures)}.</p>'
    total = Term("TRAIN", "training.peak_bytes", remark, is_total=True)
    body = (
        terms_table([total, *kinds], figures, "What is live at the peak of a training step")
        + (place if training.peak_node else "")
        + formula
        + "<h3>By phase</h3>"
        + terms_table(phases, figures, "Peaks of the phases")
        + _cuda(stops)
        + _checkpoints(analysis)
    )
    return section("train", "A training step", body)


def _cuda(stops: Stops) -> str:
    """What PyTorch's allocator makes of it."""
    if "training.cuda.total_bytes" not in stops.asked.figures.numbers:
        return ""
    terms = [
        Term(
            "ON CUDA", "training.cuda.total_bytes", "reserved, and the CUDA context", is_total=True
        ),
        Term("reserved", "training.cuda.reserved_bytes", "max_memory_reserved, in two steps"),
        Term("allocated", "training.cuda.allocated_bytes", "max_memory_allocated"),
        Term("context", "training.cuda.context_bytes", "assumed; --cuda-context"),
    ]
    table = terms_table(terms, stops.asked.figures, "What PyTorch takes of a GPU")
    return f"<h3>On CUDA, by PyTorch's allocator</h3>{table}"


def _checkpoints(analysis: Analysis) -> str:
    if analysis.training is None or not analysis.training.checkpoints:
        return ""
    rows = [
        [
            Cell(markup.prose(option.schedule)),
            Cell(markup.size(option.peak_bytes), option.peak_bytes, is_number=True),
            Cell(f"{option.extra_flops / 1e9:,.3g} GFLOPs", option.extra_flops, is_number=True),
        ]
        for option in analysis.training.checkpoints
    ]
    heads = (("schedule", False), ("peak", True), ("computed again", True))
    at = _at_batch(analysis)
    return f"<h3>Checkpoints{at}</h3>{markup.table('checkpoints', heads, rows)}"


def cache_section(analysis: Analysis, stops: Stops) -> str:
    """The key-value cache and the steps with it; empty where there is none."""
    memory, figures = analysis.kv_cache, stops.asked.figures
    if memory is None:
        return ""
    kinds = [key for key in figures.numbers if key.startswith("kv_cache.bytes_by_kind.")]
    terms = [
        *([] if memory.context is None else [Term("KV CACHE", "kv_cache.bytes", is_total=True)]),
        *(Term(key.rpartition(".")[2], key) for key in kinds),
        Term("a token", "kv_cache.bytes_per_token", "of one sequence, in all layers"),
        *(
            [Term("a sequence", "kv_cache.constant_bytes_per_sequence", "whatever the context")]
            if memory.constant_bytes_per_sequence != 0
            else []
        ),
    ]
    held = "" if memory.context is None else f" of {memory.context:,} tokens"
    notes = "".join(
        f'<p class="remark">{markup.prose(remark)}</p>'
        for remark in (*memory.cache.assumptions, *memory.remarks)
    )
    body = terms_table(terms, figures, "The key-value cache") + notes
    for step, title in (("decode", "Decode step"), ("prefill", "Prefill")):
        if f"kv_cache.{step}.total_bytes" in figures.numbers:
            terms = _step_terms(step)
            # Past and present cannot be one buffer everywhere; that is not unknown.
            if figures.numbers.get(f"kv_cache.{step}.one_buffer_total_bytes") is None:
                terms = terms[:-1]
            body += f"<h3>{title}</h3>{terms_table(terms, figures, title)}"
    return section("cache", f"The key-value cache{held}", body)


def _step_terms(step: str) -> list[Term]:
    key = f"kv_cache.{step}"
    return [
        Term("in all", f"{key}.total_bytes", is_total=True),
        Term("weights", f"{key}.weight_bytes"),
        Term("cache handed in", f"{key}.cache_bytes"),
        Term("other inputs", f"{key}.other_inputs_bytes"),
        Term("in-place peak", f"{key}.in_place_peak_bytes", "the cache handed out included"),
        Term("or, sharing", f"{key}.one_buffer_total_bytes", "past and present in one buffer"),
    ]


def runtime_sections(analysis: Analysis, stops: Stops) -> Iterable[str]:
    """A section for each runtime asked for."""
    for number, runtime in enumerate(analysis.runtimes):
        is_cuda = runtime.name == "ort-cuda"
        lines = (*_RUNTIME, *(_RUNTIME_CUDA if is_cuda else ()))
        terms = [
            Term(label, f"runtimes.{number}.{key}", escape(what), is_total=key == "process_bytes")
            for label, key, what in lines
        ]
        remark = f"Graph {runtime.graph} {made_by(runtime)}."
        if is_cuda:
            remark += " From onnxruntime's sources; no GPU has confirmed these yet."
        title = NAMES[runtime.name]
        body = terms_table(terms, stops.asked.figures, title)
        yield section(f"runtime-{number}", title, body, remark)


def measured_section(analysis: Analysis) -> str:
    """Predicted against measured; empty where nothing was run."""
    run = analysis.measurement
    if run is None:
        return ""
    name = run.backend.replace("onnxruntime", "ort")
    runtime = next((each for each in analysis.runtimes if each.name == name), None)
    foretold = {} if runtime is None else predicted_by(runtime).figures
    rows = [
        _measured_row(label, foretold.get(key), getattr(run, key), remark)
        for key, label, remark in FIGURES
        if (foretold.get(key), getattr(run, key)) != (None, None)
    ]
    heads = (
        ("figure", False),
        ("predicted", True),
        ("measured", True),
        ("error", True),
        ("", False),
    )
    remark = f"{run.backend} {run.onnxruntime_version}, {run.runs} runs{_at_batch(analysis)}."
    table = markup.table("measured-table", heads, rows)
    return section("measured", "Predicted against measured", table, remark)


def _measured_row(
    label: str, predicted: int | None, measured: int | None, remark: str
) -> Sequence[Cell]:
    error = error_percent(predicted, measured)
    return (
        Cell(escape(label)),
        Cell(markup.size(predicted), predicted, is_number=True),
        Cell(markup.size(measured), measured, is_number=True),
        Cell("" if error is None else f"{error:+.1f} %", error, is_number=True),
        Cell(escape(remark)),
    )


def rules_section(analysis: Analysis, stops: Stops) -> str:
    """What the rules of the field would have said, and how far from the answer."""
    figures = stops.asked.figures
    answer, key = ("RUN", "total_bytes")
    if analysis.training is not None:
        answer, key = "TRAIN", "training.peak_bytes"
    terms = [
        Term(formula, f"rules_of_thumb.{rule}", ratio(f"rules_of_thumb.{rule}", key, figures))
        for rule, formula in FORMULAS.items()
    ]
    remark = f"For comparison, as multiples of {answer}; never the answer."
    return section("rules", "Rules of thumb", terms_table(terms, figures, "Rules of thumb"), remark)


def compute_section(analysis: Analysis, stops: Stops) -> str:
    """MACs and FLOPs, and what is meant by them."""
    rule = "by a rule: 2 x forward where weights are read, 1 x elsewhere"
    unknown = len(analysis.compute.unknown_nodes)
    terms = [
        Term("forward MACs", "compute.forward_macs", unit="count"),
        Term("forward FLOPs", "compute.forward_flops", unit="count"),
        Term("backward FLOPs", "compute.backward_flops", rule, unit="count"),
    ]
    remark = "One multiply-add is 1 MAC and 2 FLOPs."
    if unknown:
        remark += f" Lower bounds: {unknown:,} nodes of unknown arithmetic are left out."
    body = terms_table(terms, stops.asked.figures, "Arithmetic")
    return section("compute", "Compute", body, remark)


def _at_batch(analysis: Analysis) -> str:
    batch = analysis.settings.batch
    return "" if batch is None else f", at batch {batch:,}"
