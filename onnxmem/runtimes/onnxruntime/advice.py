"""Settings of a session that need less memory on one model, computed by replay.

Settings are compared by the peak resident memory of the arena during three runs, without
initializers: on the CPU, parts of regions that were reserved but never allocated cost no memory, on
a GPU they do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType
from typing import Final

from onnxmem.runtimes.onnxruntime.prediction import (
    ArenaFigures,
    PlannedSession,
    RecordedSession,
    ReplayError,
)
from onnxmem.runtimes.onnxruntime.providers import CPU, ExecutionProvider, limit_lines
from onnxmem.runtimes.onnxruntime.session_graph.loaded import SessionGraph
from onnxmem.runtimes.onnxruntime.session_options import (
    GROWTHS,
    LEVEL_NAMES,
    LOAD_OPTIONS,
    SessionOptions,
)

_MIB: Final = 1 << 20
_SHRINKAGE: Final = "memory.enable_memory_arena_shrinkage"

GraphOf = Callable[[SessionOptions], SessionGraph]
"""The graph of a session with these options."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Options of a session, and its memory with them."""

    options: SessionOptions
    changes: tuple[str, ...]
    """The settings that differ from the session's own, with onnxruntime's names."""
    lines: tuple[str, ...]
    """Python code that sets them."""
    figures: ArenaFigures

    @property
    def resident_bytes(self) -> int:
        """Peak resident memory of the arena during the runs, without initializers."""
        return self.figures.resident_peak_bytes


def combined_choices(
    graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider = CPU
) -> tuple[Choice, ...]:
    """All combinations of buffer reuse, memory pattern and arena growth, the least memory first.

    Of equals, the one with the fewest changes is first; the session's own settings are included.
    Settings with which the arena cannot serve the session, for it has a limit, are left out.
    """
    grid = (
        replace(
            options, enable_mem_reuse=reuse, enable_mem_pattern=pattern, arena_extend_strategy=grown
        )
        for reuse, pattern, grown in product((True, False), (True, False), GROWTHS)
    )
    # Only buffer reuse changes the plan; the other two settings affect the arena alone.
    recorded = {
        reuse: RecordedSession.of(graph, replace(options, enable_mem_reuse=reuse), provider)
        for reuse in (True, False)
    }
    found = []
    for other in grid:
        # A combination may run out of the arena's own limit, where others do not.
        with suppress(ReplayError):
            by_reuse = recorded[other.enable_mem_reuse]
            found.append(choice(graph, options, other, provider, recorded=by_reuse))
    return _ranked(found)


def single_choices(
    graph_of: GraphOf,
    options: SessionOptions,
    provider: ExecutionProvider = CPU,
    dims: Mapping[str, int] = MappingProxyType({}),
) -> tuple[Choice, ...]:
    """Each setting changed alone, the least memory first; the session's own are included.

    ``dims`` are the numbers of the model's symbols; if empty, there are none to fix.
    """
    others = changed_alone(options, dims)
    if not provider.is_host:
        others += _limited(graph_of(options), options, provider)
    return _ranked(
        choice(graph_of(other), options, other, provider, dims) for other in (options, *others)
    )


def changed_alone(options: SessionOptions, dims: Mapping[str, int]) -> list[SessionOptions]:
    """Options that differ in one setting; without ``dims`` none is fixed."""
    return [
        other
        for other in _single_changes(options)
        if other != options and (dims or other.fixed_dims == options.fixed_dims)
    ]


def choice(
    graph: SessionGraph,
    options: SessionOptions,
    other: SessionOptions,
    provider: ExecutionProvider,
    dims: Mapping[str, int] = MappingProxyType({}),
    recorded: RecordedSession | None = None,
) -> Choice:
    """The memory with ``other`` options instead of ``options``; ``recorded`` is their session."""
    figures, _ = PlannedSession.of(graph, other, provider, recorded).figures()
    lines = option_lines(options, other, provider, dims)
    return Choice(other, option_names(options, other), lines, figures)


def option_names(options: SessionOptions, other: SessionOptions) -> tuple[str, ...]:
    """The settings that differ, with onnxruntime's names."""
    return tuple(_NAMES[name](other) for name in _changed(options, other))


def option_lines(
    options: SessionOptions,
    other: SessionOptions,
    provider: ExecutionProvider,
    dims: Mapping[str, int] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Python code that sets them."""
    changes = _changed(options, other)
    lines = (line for name in changes for line in _lines(name, other, provider, dims))
    # How the arena grows and that it is shared are one registration.
    return tuple(dict.fromkeys(lines))


def _changed(options: SessionOptions, other: SessionOptions) -> Iterator[str]:
    return (name for name in _NAMES if getattr(options, name) != getattr(other, name))


def _single_changes(options: SessionOptions) -> Iterator[SessionOptions]:
    yield replace(options, enable_mem_reuse=False)
    yield replace(options, enable_mem_pattern=False)
    yield replace(options, arena_extend_strategy="kSameAsRequested")
    yield replace(options, shrinks_arena=True)
    yield replace(options, disable_prepacking=True)
    yield replace(options, fixed_dims=not options.fixed_dims)
    for level in LEVEL_NAMES:
        yield replace(options, level=level)


def _limited(
    graph: SessionGraph, options: SessionOptions, provider: ExecutionProvider
) -> Iterator[SessionOptions]:
    """The lowest limit of the arena, in MiB, at which the runs succeed.

    A region that would exceed the limit is cut to what is left of it (``bfc_arena.cc``,
    ``Extend``). cuDNN allocates workspaces from the same arena, which no replay includes.
    """
    session = PlannedSession.of(graph, options, provider)
    least, enough = 0, -(-session.figures()[0].held_steady_bytes // _MIB)
    # Bisection: the runs succeed with `enough` MiB and fail with `least`.
    while enough - least > 1:
        middle = (least + enough) // 2
        try:
            limited = replace(options, gpu_mem_limit_bytes=middle * _MIB)
            replace(session, options=limited).figures()
            enough = middle
        except ReplayError:
            least = middle
    yield replace(options, gpu_mem_limit_bytes=enough * _MIB)


def _ranked(choices: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(choices, key=lambda item: (item.resident_bytes, len(item.changes))))


_NAMES: Final[Mapping[str, Callable[[SessionOptions], str]]] = {
    "enable_mem_reuse": lambda options: f"enable_mem_reuse={options.enable_mem_reuse}",
    "enable_mem_pattern": lambda options: f"enable_mem_pattern={options.enable_mem_pattern}",
    "arena_extend_strategy": lambda options: options.arena_extend_strategy,
    "shares_arena": lambda options: (
        "one arena for all sessions" if options.shares_arena else "an arena for each session"
    ),
    "shrinks_arena": lambda _: "arena shrinkage after each run",
    "disable_prepacking": lambda _: "disable_prepacking",
    "gpu_mem_limit_bytes": lambda options: f"gpu_mem_limit={options.gpu_mem_limit_bytes}",
    "fixed_dims": lambda options: "fixed dims" if options.fixed_dims else "symbolic dims",
    "level": lambda options: LEVEL_NAMES[options.level],
    "weights": lambda options: f"{options.weights} weights",
    "malloc_threshold_bytes": lambda options: f"malloc thresholds {options.malloc_threshold_bytes}",
    "trims_heap": lambda _: "malloc_trim(0)",
}
TRIM_LINE: Final = "ctypes.CDLL(None).malloc_trim(0)  # of glibc: returns what the load freed"
"""Comes after the session is created."""


def _lines(
    name: str, options: SessionOptions, provider: ExecutionProvider, dims: Mapping[str, int]
) -> tuple[str, ...]:
    """Python code that sets one option."""
    if name == "fixed_dims":
        return tuple(_override_lines(options, dims))
    if name in LOAD_OPTIONS:
        return tuple(_load_lines(name, options))
    if name == "shares_arena" and not options.shares_arena:
        return ("# no session.use_env_allocators",)
    if name in {"arena_extend_strategy", "shares_arena", "gpu_mem_limit_bytes"}:
        is_growth = name != "gpu_mem_limit_bytes"
        limit_bytes = options.gpu_mem_limit_bytes
        return provider.growth_lines(options) if is_growth else limit_lines(limit_bytes)
    if name == "shrinks_arena":
        device = provider.device
        return (
            "run_options = onnxruntime.RunOptions()",
            f'run_options.add_run_config_entry("{_SHRINKAGE}", "{device}:0")  # for every run',
        )
    return (_option_line(name, options),)


def _option_line(name: str, options: SessionOptions) -> str:
    """The same of an option that has a line of its own."""
    if name == "level":
        level = f"onnxruntime.GraphOptimizationLevel.{LEVEL_NAMES[options.level]}"
        return f"options.graph_optimization_level = {level}"
    if name == "disable_prepacking":
        number = int(options.disable_prepacking)
        return f'options.add_session_config_entry("session.disable_prepacking", "{number}")'
    return f"options.{name} = {getattr(options, name)}"


def _load_lines(name: str, options: SessionOptions) -> Iterator[str]:
    """Code that changes the process, not the session."""
    if name == "weights" and options.weights == "external":
        yield "# once, in a process of its own, for it holds all weights:"
        yield "#   model = onnx.load(MODEL)"
        yield "#   for weight in model.graph.initializer:"
        yield "#       if weight.float_data:  # only raw data goes into another file"
        yield "#           floats = onnx.numpy_helper.to_array(weight)"
        yield "#           weight.CopyFrom(onnx.numpy_helper.from_array(floats, weight.name))"
        yield "#   onnx.save_model(model, 'external.onnx',"
        yield "#                   save_as_external_data=True, location='external.data')"
        yield "MODEL = 'external.onnx'"
    elif name == "weights":
        yield "# once: onnx.save_model(onnx.load(MODEL), 'inline.onnx')"
        yield "MODEL = 'inline.onnx'"
    elif name == "trims_heap":
        yield "import ctypes"
        yield TRIM_LINE
    else:
        yield "import ctypes"
        yield "for parameter in (-1, -3):  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc"
        yield f"    ctypes.CDLL(None).mallopt(parameter, {options.malloc_threshold_bytes})"


def _override_lines(options: SessionOptions, dims: Mapping[str, int]) -> Iterator[str]:
    """Code that overrides symbols; a name from the file is quoted as a Python literal."""
    if not options.fixed_dims:
        yield "# no options.add_free_dimension_override_by_name"
        return
    for symbol, number in dims.items():
        yield f"options.add_free_dimension_override_by_name({symbol!r}, {number})"
