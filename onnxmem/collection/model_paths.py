"""From what a command line names to the model files that are checked."""

from collections.abc import Iterable
from pathlib import Path

from onnxmem.collection.sources.naming import expanded, with_lists
from onnxmem.errors import MissingFileError, shortened


def model_paths(named: Iterable[str]) -> tuple[str, ...]:
    """The models named: files as they are, and those of folders, patterns and lists.

    Each once, in the order named. A name of a file that isn't there stays: reading it tells what is
    wrong. A gate must not pass for want of models, so a name that stands for none is a fault.

    :raises MissingFileError: a folder without a model, a pattern that matches nothing.
    :raises UsageError: a list that cannot be read.
    """
    return tuple(dict.fromkeys(path for name in with_lists(named) for path in _paths_of(name)))


def _paths_of(name: str) -> tuple[str, ...]:
    found = expanded(name)
    if found is None:
        return (name,)
    if not found:
        what = "holds no .onnx file" if Path(name).is_dir() else "no file matches"
        message = f"{shortened(name)}: {what}; check the path"
        raise MissingFileError(message)
    return found
