"""Settings as lines of a ``config.pbtxt`` of Triton's onnxruntime backend.

Keys and values are those of the backend's README (triton-inference-server/onnxruntime_backend,
"Model Config Options" and "ONNX Runtime with CUDA Execution Provider optimization"): a session's
option that it does not name cannot be set, and the best combination that can be said is taken.
"""

from typing import Final

from onnxmem.decisions.advise.emitting.settled import Settled, remarks
from onnxmem.errors import UsageError, printable, shortened
from onnxmem.runtimes.onnxruntime.advice import Choice
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions
from onnxmem.version import __version__

_LEVELS: Final = {"basic": -1, "extended": 1, "off": 2}
"""Of ``optimization.graph.level``; all optimisations are the default, which has no number."""
_KINDS: Final = {"ort-cpu": "KIND_CPU", "ort-cuda": "KIND_GPU"}
_DEVICES: Final = {"ort-cpu": "cpu:0", "ort-cuda": "gpu:0"}


def triton_config(settled: Settled) -> str:
    """Lines that a model's configuration takes in as they are; inputs and outputs Triton derives.

    :raises UsageError: a training step has no session.
    """
    runtime = settled.runtime
    if settled.session is None or runtime is None:
        message = "--emit triton: a model server does not train; --emit json holds the recipe"
        raise UsageError(message)
    choice = _sayable(settled, runtime)
    options = choice.options
    batch = settled.batch if settled.has_batch_dim and settled.batch else 0
    return "\n".join(
        [
            f"# Settings for {shortened(settled.path)}, worked out by onnxmem {__version__}",
            *(f"# {printable(remark)}" for remark in remarks(settled)),
            *_unsaid(settled.session, choice),
            'backend: "onnxruntime"',
            f"max_batch_size: {batch}",
            f"instance_group [ {{ count: 1 kind: {_KINDS[runtime]} }} ]",
            *_optimization(options, runtime),
            _parameter("enable_mem_arena", int(options.enable_cpu_mem_arena)),
            _parameter("enable_mem_pattern", int(options.enable_mem_pattern)),
            *(
                (_parameter("memory.enable_memory_arena_shrinkage", _DEVICES[runtime]),)
                if options.shrinks_arena
                else ()
            ),
            "",
        ]
    )


def _sayable(settled: Settled, runtime: str) -> Choice:
    """What was settled, else the best combination that the backend can be told."""
    session = settled.session
    choices = settled.others if session is None else (session, *settled.others)
    return next(each for each in choices if _is_sayable(each.options, runtime))


def _is_sayable(options: SessionOptions, runtime: str) -> bool:
    grows = options.arena_extend_strategy == "kNextPowerOfTwo" or runtime == "ort-cuda"
    unknown = options.fixed_dims or options.disable_prepacking
    return options.enable_mem_reuse and grows and not unknown


def _unsaid(best: Choice, said: Choice) -> list[str]:
    if best is said:
        return []
    names, left = ", ".join(best.changes), f"{said.resident_bytes:,} B resident"
    return [f"# the best, {names}, is not for this backend to set: {left}"]


def _optimization(options: SessionOptions, runtime: str) -> list[str]:
    parts = []
    if options.level in _LEVELS:
        parts.append(f"graph {{ level: {_LEVELS[options.level]} }}")
    growth = options.arena_extend_strategy
    if runtime == "ort-cuda" and growth != "kNextPowerOfTwo":
        cuda = f'name: "cuda" parameters {{ key: "arena_extend_strategy" value: "{growth}" }}'
        parts.append(f"execution_accelerators {{ gpu_execution_accelerator [ {{ {cuda} }} ] }}")
    return [f"optimization {{ {' '.join(parts)} }}"] if parts else []


def _parameter(key: str, value: int | str) -> str:
    return f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
