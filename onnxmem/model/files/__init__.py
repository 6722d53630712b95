"""A model's file: opened once, read without its weights."""

from onnxmem.model.files.loading import ModelFile, ModelSource, load

__all__ = ["ModelFile", "ModelSource", "load"]
