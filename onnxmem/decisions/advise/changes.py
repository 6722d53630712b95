"""The changes that ideas are made of."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx

from onnxmem.analysis.request import AnalysisRequest
from onnxmem.decisions.advise.figures import Change, Subject
from onnxmem.model import ModelFile, prepare


def with_recipe(**fields: Any) -> Change:  # noqa: ANN401 - the fields of Recipe
    """Train in another way."""

    def change(subject: Subject) -> Subject:
        settings = subject.question.settings
        recipe = replace(settings.recipe, **fields)
        question = replace(subject.question, settings=replace(settings, recipe=recipe))
        return replace(subject, question=question)

    return change


def with_shapes(shapes: dict[str, tuple[int, ...]], freed: frozenset[str]) -> Change:
    """Give inputs other shapes; ``freed`` dims were given for them and follow from them now."""

    def change(subject: Subject) -> Subject:
        settings = subject.question.settings
        dims = {name: number for name, number in settings.dims.items() if name not in freed}
        changed = replace(settings, dims=dims, shapes={**settings.shapes, **shapes})
        return replace(subject, question=replace(subject.question, settings=changed))

    return change


def with_file(edit: Callable[[onnx.ModelProto], None]) -> Change:
    """Change the file itself; ``edit`` works on a copy."""

    def change(subject: Subject) -> Subject:
        question = subject.question
        proto = onnx.ModelProto()
        proto.CopyFrom(question.source.proto)
        edit(proto)
        file = ModelFile(question.source.path, proto, question.source.file_bytes)
        edited = AnalysisRequest(file, prepare(file), question.settings, file, question.remarks)
        return replace(subject, question=edited)

    return change


def with_options(**fields: Any) -> Change:  # noqa: ANN401 - the fields of SessionOptions
    """Open the session in another way."""
    return lambda subject: replace(subject, options=replace(subject.options, **fields))
