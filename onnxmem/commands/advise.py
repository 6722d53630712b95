"""``onnxmem advise MODEL...``: settings of a session that take less memory on this model."""

import json
from argparse import Namespace
from typing import Final

from onnxmem import __version__
from onnxmem.commands.faults import fault_of, tell
from onnxmem.commands.output import check_output, write_file, write_stdout
from onnxmem.errors import worst_exit_code
from onnxmem.escaping import printable
from onnxmem.model import load
from onnxmem.report.advice import render_advice
from onnxmem.rows import Row
from onnxmem.runtimes import Advice, Choice, advise
from onnxmem.settings import Settings

SCHEMA: Final = "onnxmem.advice"
SCHEMA_VERSION: Final = "1.0"


def run(arguments: Namespace) -> int:
    """Advise on every model in order; one that fails costs no other its advice."""
    check_output(arguments.output, arguments.models, force=arguments.force)
    codes: list[int] = []
    found: list[tuple[str, Advice]] = []
    for path in arguments.models:
        try:
            found.append((path, advise(load(path), _settings(arguments))))
        except Exception as error:  # noqa: BLE001 - a fault of any kind is this model's alone
            codes.append(tell(fault_of(error), error, path))
    text = _json(found) if arguments.json else _text(found)
    if arguments.output is None:
        write_stdout(text)
    else:
        write_file(text, arguments.output, quiet=arguments.quiet)
    return worst_exit_code(codes)


def _settings(arguments: Namespace) -> Settings:
    return Settings(
        batch=arguments.batch,
        dims=dict(arguments.dims),
        shapes=dict(arguments.shapes),
        runtimes=tuple(dict.fromkeys(arguments.runtimes)) or ("ort-cpu",),
        graph=arguments.graph,
        fixed_dims=arguments.fixed_dims,
        cuda_context_bytes=arguments.cuda_context_bytes,
        cuda_workspace_bytes=arguments.cuda_workspace_bytes,
        asks_onnxruntime=not arguments.emulate_optimiser,
    )


def _text(found: list[tuple[str, Advice]]) -> str:
    return "\n".join(render_advice(path, advice.runtime, advice.singles) for path, advice in found)


def _json(found: list[tuple[str, Advice]]) -> str:
    document = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "onnxmem", "version": __version__},
        "models": [
            {
                "path": printable(path),
                "runtime": advice.runtime.name,
                "combinations": [_choice(choice) for choice in advice.runtime.advice],
                "single_changes": [_choice(choice) for choice in advice.singles],
            }
            for path, advice in found
        ],
    }
    return json.dumps(document, indent=2) + "\n"


def _choice(choice: Choice) -> Row:
    return {
        "changes": list(choice.changes),
        "lines": list(choice.lines),
        "resident_bytes": choice.resident_bytes,
        "requested_peak_bytes": choice.figures.requested_peak_bytes,
        "held_steady_bytes": choice.figures.held_steady_bytes,
    }
