"""Whether a model fits, as text and as JSON.

A ``FitResult`` comes in: the verdict, what is compared, the largest batch or other dim, a table of
numbers, and how many instances fit; of a language model also the largest batch at each context.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.analysis.fitting.assessing import Assessment, FitRequest, FitResult, TableRow
from onnxmem.analysis.fitting.footprints import Footprint, PeakAt
from onnxmem.analysis.fitting.searching import MaxBatch
from onnxmem.analysis.fitting.verdicts import OF_SEVERAL, Basis, Comparison, Verdict
from onnxmem.analysis.json_rows import JsonDict
from onnxmem.analysis.request import AnalysisRequest
from onnxmem.analysis.scaling import LARGEST_BATCH
from onnxmem.decisions.devices import AS_GIVEN, Device
from onnxmem.decisions.fit import Contexts, Prefill, in_ram_alone
from onnxmem.errors import printable, shortened
from onnxmem.kv_cache.steps import Step
from onnxmem.report.sections.section import Line
from onnxmem.report.sections.summary import SMALL_BYTES
from onnxmem.report.text import (
    fact,
    finding_lines,
    finding_rows,
    joined,
    laid_out,
    paragraph,
    prose,
    rounded,
)
from onnxmem.report.verdict import (
    alone_text,
    assessment_lines,
    end_text,
    held_text,
    max_batch_lines,
    until_text,
    verdict_text,
)
from onnxmem.runtimes.assumed import ORT_CONTEXT
from onnxmem.runtimes.onnxruntime.cpu import cpu_named
from onnxmem.settings import Settings, TrainingConfig
from onnxmem.units import format_bytes, in_decimal_unit, in_unit, plural, unit_power

_STEP_COLUMN: Final = 28
_MEMORIES: Final = {"ram": "RAM", "flash": "flash"}
_CPU_PROCESS: Final = "the process: Python, what PyTorch loads and its kernels' buffers on the CPU"
_EACH: Final = "each was computed and fits; the next number does not"
_REPEATED: Final = frozenset({"bytes", "limit_bytes"})
"""Keys of a verdict that the row has itself."""


@dataclass(frozen=True, slots=True)
class ComparedMemory:
    """What models are compared with: a device, or a size of memory alone."""

    name: str
    memory_bytes: int
    """What bytes are compared with."""
    device: Device | None
    source: str = ""
    """Who says what is free of this machine's memory."""

    @property
    def is_small(self) -> bool:
        """Whether it is more likely the RAM of a microcontroller than of another machine."""
        return self.memory_bytes <= SMALL_BYTES


def render_fit(
    result: FitResult,
    memory: ComparedMemory,
    requests: Sequence[AnalysisRequest],
    contexts: Contexts | None,
) -> str:
    """Write the whole result; it ends with a newline."""
    # A bare small size may be a microcontroller's RAM, in which the weights do not lie.
    is_of_tensors = result.setup.basis is Basis.TOTAL and memory.device is None and not contexts
    in_ram = in_ram_alone(requests, result.setup) if is_of_tensors and memory.is_small else None
    beside = [
        *(
            []
            if contexts is None or contexts.prefill is None
            else [_prefill_line(contexts.prefill, result.setup)]
        ),
        *([] if in_ram is None else [_ram_line(in_ram, result.setup, memory)]),
    ]
    blocks = [
        _head(result, memory, requests),
        _each_section(result),
        _verdict_section(result, memory, beside),
        _largest_section(result, memory),
        _table_section(result),
        contexts_lines(contexts),
        _remarks(result, memory),
    ]
    return joined(blocks)


def fit_row(result: FitResult, memory: ComparedMemory, contexts: Contexts | None) -> JsonDict:
    """The result in JSON; unknown is null."""
    setup = result.setup
    return {
        "status": result.status,
        "fits": result.fits,
        **{key: value for key, value in result.to_dict().items() if key not in _REPEATED},
        "device": None if memory.device is None else printable(memory.device.name),
        "memory_bytes": result.memory_bytes,
        "memory_source": memory.source or None,
        "reserve_bytes": result.reserve_bytes,
        "limit_bytes": result.limit_bytes,
        "flash_bytes": result.flash_bytes,
        "flash_margin_bytes": result.flash_margin_bytes,
        "limited_by": None if result.limited_by is None else list(result.limited_by),
        "dim": result.dim,
        "at": result.at,
        "dims": {printable(name): number for name, number in result.dims.items()},
        "bytes": result.bytes,
        **result.footprint.ends,
        "common_bytes": result.common_bytes,
        "shared_bytes": result.shared_bytes,
        "largest": _largest_row(result),
        "power_of_two": None
        if result.power_of_two is None
        else {
            **_row(result.power_of_two),
            "is_better_pick": result.is_power_better,
        },
        "table": [_row(row) for row in result.table],
        "instances": {
            "number": setup.deployment.instances,
            "share_weights": setup.deployment.shares_weights,
            "largest": result.instances if result.footprint.is_whole else None,
        },
        "processes": result.processes,
        "contexts": contexts_row(contexts),
        "each": _each_rows(result),
        "remarks": [printable(remark) for remark in result.remarks],
        "findings": finding_rows(result.findings),
    }


def _largest_row(result: FitResult) -> JsonDict | None:
    row, limiting = max_batch_row(result.max_batch), result.limiting
    if row is None:
        return None
    row["limited_by"] = None if limiting is None else _limiting_row(limiting.peak)
    return row


def _limiting_row(peak: PeakAt) -> JsonDict:
    return {
        "phase": peak.phase,
        "node": None if peak.node is None else printable(peak.node),
        "tensors": [
            {"tensor": printable(each.label), "bytes": each.size_bytes} for each in peak.tensors
        ],
    }


def _row(row: TableRow) -> JsonDict:
    return {
        "number": row.number,
        "bytes": row.num_bytes,
        "fits": row.fits,
        "verdict": row.verdict.value,
        **_ends(row),
    }


def _ends(compared: Comparison) -> JsonDict:
    """Both ends of what was compared; no key where the data of a run decide nothing of it."""
    if not compared.is_at_most:
        return {}
    return {"lower_bytes": compared.lower_bytes, "upper_bytes": compared.unlimited_bytes}


def _head(
    result: FitResult, memory: ComparedMemory, requests: Sequence[AnalysisRequest]
) -> list[str]:
    settings, setup = requests[0].settings, result.setup
    names = f"{len(requests):,} models"
    if len(requests) == 1:
        names = shortened(requests[0].model.path)
    parts = assumptions(
        requests,
        setup,
        result.dims,
        [*_cublas(result, settings.recipe), _at(result)],
        _session(result, settings, memory.device),
    )
    return [f"{names}  on {shortened(memory.name)}", *parts]


def assumptions(
    requests: Sequence[AnalysisRequest],
    setup: FitRequest,
    dims: Mapping[str, int],
    at: Iterable[str],
    session: Iterable[str] = (),
) -> list[str]:
    """What a verdict is of: the step, the batch ``at`` which, other dims, a session, instances."""
    settings, deployment = requests[0].settings, setup.deployment
    recipe = settings.recipe
    symbols = requests[0].prepared.batch_symbols if setup.dim is None else ()
    training = ("training", f"optimizer {recipe.optimizer}", f"precision {recipe.precision}")
    parts = [
        *(training if settings.train else ("inference",)),
        *at,
        *((f"each of {recipe.world:,} cards, {recipe.shard}",) if recipe.world > 1 else ()),
        *(
            f"{shortened(name)} = {number:,}"
            for name, number in dims.items()
            if name != setup.dim and name not in symbols
        ),
        *session,
        *((f"{deployment.instances:,} instances",) if deployment.instances > 1 else ()),
        *(("weights shared",) if deployment.shares_weights else ()),
    ]
    return paragraph("assumes: ", parts)


def _session(result: FitResult, settings: Settings, device: Device | None) -> Iterator[str]:
    """What is assumed of a session of onnxruntime, where the figures are of one."""
    if result.setup.basis not in {Basis.ORT_CPU, Basis.ORT_CUDA}:
        return
    if result.setup.basis == Basis.ORT_CPU:
        own = "" if device is None or device.cpu is None else " (the device's)"
        yield f"CPU {cpu_named(settings.cpu).name}{own}"
    if not settings.asks_onnxruntime:
        yield "graph optimizer emulated"


def _cublas(result: FitResult, recipe: TrainingConfig) -> Iterator[str]:
    """The workspace of a cuBLAS handle, where a flag or the device sets it."""
    if result.setup.basis is Basis.TORCH and recipe.cublas_workspace_bytes is not None:
        yield f"cuBLAS workspaces of {format_bytes(recipe.cublas_workspace_bytes)}"


def _at(result: FitResult) -> str:
    if not result.has_number:
        return "each at its own batch" if result.has_own_batches else "no batch"
    return f"{shortened(result.setup.dim or 'batch')} {result.requested.number:,}"


def _each_section(result: FitResult) -> list[str]:
    """The verdict on each of several models by itself; nothing of one model."""
    if not result.each:
        return []
    counts = Counter(each.compared.verdict for each in result.each)
    texts = (f"{counts[verdict]:,} {OF_SEVERAL[verdict]}" for verdict in Verdict if counts[verdict])
    lines = [fact("Each alone", ", ".join(texts))]
    power = unit_power(max(each.compared.num_bytes or 0 for each in result.each))
    for each in result.each:
        found = each.compared
        size = "unknown" if found.num_bytes is None else in_unit(found.num_bytes, power)
        until = until_text(each.doubts) if found.verdict is Verdict.UNKNOWN else ""
        start = f"  {size:>12}  {found.verdict.value:<14}"
        lines += prose(start, shortened(each.path) + until)
    return lines


def _each_rows(result: FitResult) -> list[JsonDict] | None:
    """The same in JSON; null of one model."""
    return [
        {
            "path": printable(each.path),
            "batch": each.batch,
            "bytes": each.compared.num_bytes,
            "fits": each.compared.verdict.fits,
            "verdict": each.compared.verdict.value,
        }
        for each in result.each
    ] or None


def _verdict_section(
    result: FitResult, memory: ComparedMemory, beside: Sequence[Line]
) -> list[str]:
    """The verdict and its terms; ``beside`` are verdicts on another use of the same memory."""
    setup = result.setup
    text = verdict_text(result.requested, setup.limit_bytes, result.doubts)
    if result.depends_on_data:
        text = f"depends on the data: {text.partition(': ')[2]}"
    label = "All together" if result.each else "Verdict"
    lines = [fact(label, f"{text}{alone_text(setup.basis)}{_two_memories(result)}")]
    lines += laid_out(beside)
    if not_counted := _not_counted(memory, setup):
        lines.append(fact("  not counted", not_counted))
    if result.limited_by:
        lines.append(
            fact("  limited by", " and ".join(_MEMORIES[name] for name in result.limited_by))
        )
    lines += [
        *laid_out(assessment_lines(result.assessment, result.requested)),
    ]
    lines.append(rounded("  memory", setup.memory_bytes, _memory_remark(memory, setup)))
    if setup.flash_bytes is not None and result.setup.basis is Basis.MCU:
        weights = format_bytes(result.footprint.weight_bytes)
        lines.append(rounded("  flash", setup.flash_bytes, f"of which the weights take {weights}"))
    if setup.reserve_bytes:
        lines.append(rounded("  reserve", setup.reserve_bytes, "kept free"))
    return [*lines, *_instances_lines(result)]


def _two_memories(result: FitResult) -> str:
    """What is compared with the two memories of a microcontroller; empty for other devices."""
    setup, footprint = result.setup, result.footprint
    if setup.basis is not Basis.MCU:
        return ""
    arena, ram = format_bytes(footprint.total_bytes), format_bytes(setup.limit_bytes)
    weights, flash = format_bytes(footprint.weight_bytes), setup.flash_bytes
    of_flash = "flash of unknown size" if flash is None else f"{format_bytes(flash)} of flash"
    return f": tensor arena {arena} in {ram} of RAM, weights {weights} in {of_flash}"


def _ram_line(in_ram: Assessment, setup: FitRequest, memory: ComparedMemory) -> Line:
    """The verdict on a small memory as the RAM of a microcontroller."""
    compared = in_ram.compared(setup.limit_bytes)
    text = verdict_text(compared, setup.limit_bytes, in_ram.doubts_at(setup.limit_bytes))
    weights = format_bytes(in_ram.footprint.weight_bytes)
    return Line(
        "as RAM alone",
        in_ram.footprint.total_bytes,
        f"of a microcontroller, {text}: its tensor arena; weights, {weights}, lie in flash: "
        f"--device ram={shortened(memory.name)},flash=2MB",
    )


def _prefill_line(prefill: Prefill, setup: FitRequest) -> Line:
    """What the prompt takes before the decode step of the verdict."""
    compared, assessment = prefill.compared, prefill.assessment
    num_bytes = compared.num_bytes
    end = end_text(assessment, compared)
    text = verdict_text(compared, setup.limit_bytes, assessment.doubts_at(setup.limit_bytes))
    return Line(
        "prefill",
        assessment.footprint.total_bytes if num_bytes is None else num_bytes,
        f"{end}for {plural(prefill.context, 'token')} at once, {text}; "
        "the verdict is of a decode step",
    )


def _not_counted(memory: ComparedMemory, setup: FitRequest) -> str:
    """What a figure of tensors lacks, and what predicts it or keeps room for it; empty: nothing."""
    kind = None if memory.device is None else memory.device.kind
    if setup.basis is Basis.STEP and kind == "cpu":
        reserve = "the reserve" if setup.reserve_bytes else "--reserve 1.5GiB"
        return f"{_CPU_PROCESS}; {reserve} keeps room for it"
    if setup.basis is not Basis.TOTAL:
        return ""
    if kind == "cuda":
        least, most = (
            format_bytes(each) for each in (ORT_CONTEXT.low_bytes, ORT_CONTEXT.high_bytes)
        )
        return (
            f"onnxruntime takes more: a CUDA context of {least} to {most}, cuDNN's workspaces, "
            "what the arena reserves and does not use; with them: --runtime ort-cuda"
        )
    return "onnxruntime takes more: --runtime ort-cpu adds its process and arena"


def _memory_remark(memory: ComparedMemory, setup: FitRequest) -> str:
    device = memory.device
    if device is None:
        return f"{in_decimal_unit(setup.memory_bytes)} as given".lstrip()
    if memory.source:
        # A session on the CPU asked for the host; nothing else did.
        is_instead = device.kind == "cpu" and setup.basis is not Basis.ORT_CPU
        why = "; the RAM, as no GPU was found" if is_instead else ""
        return f"{memory.source}, of {format_bytes(device.memory_bytes)}{why}"
    if device.usable_bytes is not None:
        return f"usable of {format_bytes(device.memory_bytes)}"
    if device.kind == "mcu":
        return "RAM, " + ("as given" if device.sources["memory_bytes"] == AS_GIVEN else "as sold")
    if device.shares_memory:
        return "as sold; the system takes of it too: --reserve"
    return "as sold; a driver may keep some back: --reserve"


def _largest_section(result: FitResult, memory: ComparedMemory) -> list[str]:
    name = shortened(result.setup.dim or "batch")
    lines = [
        f"Largest {name}{alone_text(result.setup.basis)}",
        *laid_out(max_batch_lines(result)),
    ]
    max_batch = result.max_batch
    is_by_size = not result.requested.lacks_flash  # the flash has no batch
    if is_by_size and max_batch and max_batch.number is not None and not max_batch.is_stopped:
        lines += _limits(result.limiting, max(max_batch.number, 1))
    return [*lines, *_power(result), *_left(result, memory)]


def _left(result: FitResult, memory: ComparedMemory) -> Iterator[str]:
    """What the largest leaves of memory that was free a moment ago."""
    setup, max_batch = result.setup, result.max_batch
    number = None if max_batch is None else max_batch.number
    row = next((each for each in result.table if each.number == number), None)
    if memory.source and not setup.reserve_bytes and row is not None and row.num_bytes is not None:
        left = format_bytes(setup.limit_bytes - row.num_bytes)
        what = f"{left} at {row.number:,}, and what is free changes: --reserve 1GiB keeps some back"
        yield fact("  margin", what)


def _limits(limiting: Footprint | None, number: int) -> Iterator[str]:
    if limiting is None:
        return
    phase, node = limiting.peak.phase, limiting.peak.node
    parts = [
        *((f"the {phase} phase",) if phase else ()),
        *((f"at {shortened(node)}",) if node else ()),
    ]
    yield fact("  limited by", ", ".join(parts) or "weights and inputs")
    for at, each in enumerate(limiting.peak.tensors):
        label = "" if at else f"    sizes at {number:,}"
        yield rounded(label, each.size_bytes, shortened(each.label))


def _power(result: FitResult) -> Iterator[str]:
    power, max_batch = result.power_of_two, result.max_batch
    if power is None or max_batch is None or max_batch.number is None:
        return
    if power.number == max_batch.number:
        yield fact("  power of two", "it is one")
        return
    share = 100 * (max_batch.number - power.number) / max_batch.number
    name = shortened(result.setup.dim or "batch")
    why = ""
    if power.is_retried:
        why = ", as it fits only because the allocator retries"
    elif power.fits is None:
        why = ", as whether it fits is unknown"
    elif not result.is_power_better:
        why = ", as that is more than 10 %"
    pick = "recommended" if result.is_power_better else "not recommended"
    rule = f"{share:.0f} % below the largest {name}: {pick}{why}"
    yield fact("  power of two", f"{power.number:,}, {rule}")


def _table_section(result: FitResult) -> list[str]:
    if not result.table:
        return []
    limit_bytes = result.setup.limit_bytes
    power = unit_power(max(row.num_bytes or 0 for row in result.table))
    lines = [f"By {shortened(result.setup.dim or 'batch')}"]
    for row in result.table:
        free = "" if row.num_bytes is None else f"{_signed(limit_bytes - row.num_bytes, power):>12}"
        least = ""
        if row.is_at_most:
            least = f"  at most; at least {in_unit(row.lower_bytes, power)}"
        text = f"{row.verdict.value:<13}{free}{least}"
        lines.append(rounded(f"  {row.number:,}", row.num_bytes, text, power=power))
    return lines


def _signed(num_bytes: int, power: int) -> str:
    size = in_unit(abs(num_bytes), power)
    # A margin that rounds to nothing is what the row is about.
    size = format_bytes(abs(num_bytes)) if size.startswith("<") else size
    return f"{'+' if num_bytes >= 0 else '-'}{size}"


def _instances_lines(result: FitResult) -> list[str]:
    deployment = result.setup.deployment
    if not result.footprint.is_whole:
        return []
    count = "no limit" if result.instances is None else f"{result.instances:,}"
    how = "one copy of the weights" if deployment.shares_weights else "each with its own weights"
    if result.setup.basis is Basis.ORT_CUDA:
        how += ", all in one process with one CUDA context"
    elif result.setup.basis is Basis.MCU:
        how = "all with the weights in flash"
    elif result.footprint.common_bytes:
        how += ", all in one process"
    how += held_text(result)
    own = f"{plural(deployment.instances, 'instance')} requested"
    lines = [fact("  instances", f"{count} at most, {how}; {own}")]
    if result.processes is not None:
        lines.append(fact("  processes", f"{result.processes:,} at most, with one instance each"))
    return lines


def _remarks(result: FitResult, memory: ComparedMemory) -> list[str]:
    remarks = list(result.remarks)
    if result.setup.basis is Basis.TORCH and memory.device is None:
        remarks.append("a bare size is taken for a GPU's memory")
    notes = [line for remark in remarks for line in prose("note: ", shortened(remark, 2000))]
    findings = result.assessment.findings
    if result.each:
        # Of notes on models alike the first one's words.
        findings = tuple({each.code: each for each in reversed(findings)}.values())[::-1]
    return [*notes, *finding_lines(findings)]


def contexts_lines(contexts: Contexts | None) -> list[str]:
    """The table and the longest contexts; nothing where no context is requested."""
    if contexts is None:
        return []
    lines = []
    if contexts.rows:
        steps = (f"{_step_name(step):<{_STEP_COLUMN}}" for step in contexts.longest)
        lines.append(fact("Largest batch", "".join(steps)).rstrip())
    for row in contexts.rows:
        cells = (
            f"{_max_batch_text(max_batch):<{_STEP_COLUMN}}"
            for max_batch in row.max_batches.values()
        )
        lines.append(fact(f"  {row.context:,} tokens", "".join(cells)).rstrip())
    at = "" if contexts.batch is None else f", at batch {contexts.batch:,}"
    lines.append(f"Longest context{at}")
    lines += [
        fact(f"  {_step_name(step)}", _max_batch_text(max_batch))
        for step, max_batch in contexts.longest.items()
    ]
    lines += prose("  ", _EACH)
    for remark in contexts.remarks:
        lines += prose("  note: ", remark)
    return lines


def contexts_row(contexts: Contexts | None) -> JsonDict | None:
    """The same in JSON; null for a step that the model does not have."""
    if contexts is None:
        return None
    return {
        "batch": contexts.batch,
        "rows": [{"context": row.context, **_steps_row(row.max_batches)} for row in contexts.rows],
        "longest": _steps_row(contexts.longest),
        "prefill": _prefill_row(contexts.prefill),
        "remarks": list(contexts.remarks),
    }


def _prefill_row(prefill: Prefill | None) -> JsonDict | None:
    if prefill is None:
        return None
    return {
        "context": prefill.context,
        "bytes": prefill.compared.num_bytes,
        **prefill.assessment.footprint.ends,
        "fits": prefill.compared.verdict.fits,
        "verdict": prefill.compared.verdict.value,
    }


def _step_name(step: Step) -> str:
    return "decode step" if step is Step.DECODE else "prefill"


def _max_batch_text(max_batch: MaxBatch | None) -> str:
    if max_batch is None:
        return "unknown"
    if max_batch.number is None:
        return f"no limit up to {LARGEST_BATCH:,}"
    if max_batch.num_bytes is None:
        return "none"
    stopped = ", where the model ends" if max_batch.is_stopped else ""
    return f"{max_batch.number:,}  ({format_bytes(max_batch.num_bytes)}{stopped})"


def _steps_row(reaches: Mapping[Step, MaxBatch | None]) -> JsonDict:
    return {step.value: max_batch_row(reaches.get(step)) for step in Step}


def max_batch_row(max_batch: MaxBatch | None) -> JsonDict | None:
    """The largest number that fits, as plain values; ``None`` where it is unknown."""
    if max_batch is None:
        return None
    return {
        "number": max_batch.number,
        "bytes": max_batch.num_bytes,
        "over_bytes": max_batch.over_bytes,
        "found_by": max_batch.method,
        "is_stopped_by_model": max_batch.is_stopped,
    }
