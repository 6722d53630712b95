"""What can go wrong, and the exit code of each kind.

An error's text is one line: where, what, and what to do next. ``code`` is the stable word that
reports carry beside it.
"""

from typing import ClassVar

EXIT_OK = 0
EXIT_GATE_FAILED = 1
EXIT_USAGE = 2
EXIT_UNANALYSED = 3
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

_SEVERITY = (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_UNANALYSED, EXIT_GATE_FAILED)


class OnnxmemError(Exception):
    """Any fault that a user can mend; its text is one line."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = EXIT_UNANALYSED


class UsageError(OnnxmemError):
    """The command, a flag or an argument makes no sense."""

    code = "usage"
    exit_code = EXIT_USAGE


class MissingFileError(OnnxmemError):
    """The path names nothing that can be opened."""

    code = "missing_file"
    exit_code = EXIT_USAGE


class ModelFileError(OnnxmemError):
    """The bytes are no ONNX model, or not a whole one."""

    code = "model_file"


class GraphError(OnnxmemError):
    """The graph has no meaning: a cycle, a tensor defined twice or never."""

    code = "graph"


class ShapeError(OnnxmemError):
    """The shapes asked for do not fit the model."""

    code = "shape"
    exit_code = EXIT_USAGE


def worst_exit_code(codes: list[int]) -> int:
    """Pick the one exit code that stands for several: 130 > 70 > 2 > 3 > 1 > 0."""
    return next((code for code in _SEVERITY if code in codes), EXIT_OK)
