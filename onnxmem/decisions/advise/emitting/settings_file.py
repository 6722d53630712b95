"""Settings as JSON, for a program of one's own."""

from onnxmem.analysis.json_document import document, document_text
from onnxmem.analysis.json_row import Row
from onnxmem.decisions.advise.emitting.settled import Settled, recipe_settings
from onnxmem.errors import printable

SCHEMA = "onnxmem.settings"
SCHEMA_VERSION = "1.0"


def settings_file(settled: Settled) -> str:
    """One JSON object; ``session`` is null for training, ``training`` for a session."""
    content: Row = {
        "path": printable(settled.path),
        "figure": settled.figure.value,
        "before_bytes": settled.before_bytes,
        "after_bytes": settled.after_bytes,
        "budget_bytes": settled.budget_bytes,
        "batch": settled.batch,
        "dims": {printable(name): number for name, number in settled.dims.items()},
        "shapes": {printable(name): list(dims) for name, dims in settled.shapes.items()},
        "session": _session(settled),
        "training": None if settled.recipe is None else recipe_settings(settled.recipe),
        "changes": [
            {
                "id": each.idea.id,
                "what": printable(each.idea.what),
                "settings": dict(each.idea.settings),
            }
            for each in settled.followed
        ],
    }
    return document_text(document(SCHEMA, SCHEMA_VERSION, content))


def _session(settled: Settled) -> dict[str, object] | None:
    if settled.session is None:
        return None
    options = settled.session.options
    return {
        "runtime": settled.runtime,
        "graph_optimization_level": options.level,
        "enable_mem_pattern": options.enable_mem_pattern,
        "enable_mem_reuse": options.enable_mem_reuse,
        "enable_cpu_mem_arena": options.enable_cpu_mem_arena,
        "arena_extend_strategy": options.arena_extend_strategy,
        "memory.enable_memory_arena_shrinkage": options.shrinks_arena,
        "session.disable_prepacking": options.disable_prepacking,
        "free_dimension_overrides": dict(settled.dims) if options.fixed_dims else {},
        "resident_bytes": settled.session.resident_bytes,
    }
