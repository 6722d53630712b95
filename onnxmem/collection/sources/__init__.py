"""From the names of a command line to model files: folders, patterns, lists, stdin, URLs."""

from onnxmem.collection.sources.naming import expanded, model_names, models_below
from onnxmem.collection.sources.remote import RemoteError, is_remote
from onnxmem.collection.sources.staging import STDIN, local_file, staged_stdin

__all__ = [
    "STDIN",
    "RemoteError",
    "expanded",
    "is_remote",
    "local_file",
    "model_names",
    "models_below",
    "staged_stdin",
]
