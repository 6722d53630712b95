"""``analyze``: a model and a question in, an analysis out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from onnxmem.analysis.analysis import Analysis, analysis_of
from onnxmem.analysis.fitting.verdicts import Basis
from onnxmem.analysis.request import AnalysisRequest, request_for
from onnxmem.errors import Finding, UsageError
from onnxmem.model.files import ModelFile, ModelSource, load
from onnxmem.settings import RUNTIMES, GivenValue, Recipe, Settings, read_values

if TYPE_CHECKING:
    from onnxmem.runtimes.base import Runtime

__all__ = ["analyze"]


def _recipe(
    recipe: Recipe, optimizer: str | None, precision: str | None, loss: str | None
) -> Recipe:
    """A recipe with those of its fields that are named by themselves."""
    return replace(
        recipe,
        optimizer=optimizer or recipe.optimizer,
        precision=precision or recipe.precision,
        loss=loss or recipe.loss,
    )


def analyze(  # noqa: PLR0913 - the public face: one keyword per question
    source: ModelSource,
    *,
    batch: int | None = None,
    dims: Mapping[str, int] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    values: Mapping[str, GivenValue] | None = None,
    train: bool = False,
    optimizer: str | None = None,
    precision: str | None = None,
    loss: str | None = None,
    recipe: Recipe | None = None,
    context: int | None = None,
    budget_bytes: int | None = None,
    basis: str | None = None,
    accepted: Iterable[str] = (),
    runtimes: "Sequence[str | Runtime]" = (),
    graph: str | None = None,
    order: str = "file",
    measure: str | None = None,
    fixed_dims: bool = False,
    cuda_context_bytes: int | None = None,
    cuda_workspace_bytes: int | None = None,
    expandable_segments: bool = False,
    asks_onnxruntime: bool = True,
    cpu: str = "native",
    one_of_several: bool = False,
) -> Analysis:
    """Say how much memory a model takes, from its file alone.

    ``source`` is a path, the model's bytes or a ``ModelProto``. ``dims`` binds symbols, ``shapes``
    whole inputs; ``values`` says what small inputs hold, where shapes or a runtime follow from it
    (a number for all elements, or a list of them); ``context`` is the tokens that a language
    model's cache holds after a decode step; ``budget_bytes`` asks for the largest batch within it,
    of which ``basis`` says what is compared, ``tensors`` or ``process``, and ``accepted`` the
    warnings that leave the verdict in no doubt.
    ``runtimes`` asks for what ``ort-cpu`` and ``ort-cuda`` take, or a runtime of your own (an
    object as ``onnxmem.runtimes.base.Runtime`` describes it; a verdict compares the first one that
    is named, else the first object, and PyTorch's step with ``train``), ``graph`` for figures of
    the graph that onnxruntime makes, ``order`` for activations in another order of execution,
    ``cpu`` for another CPU than this machine's: ``avx512``, ``avx2`` or ``arm64``. A dim or a value
    that the model has no name for is an error, unless it is ``one_of_several`` that are asked the
    same.

    :raises OnnxmemError: the model cannot be read, or the question makes no sense.
    """
    named, own = _runtimes(runtimes)
    settings = Settings(
        batch=batch,
        dims=dims or {},
        shapes=shapes or {},
        values=read_values(values or {}),
        train=train,
        recipe=_recipe(recipe or Recipe(), optimizer, precision, loss),
        budget_bytes=budget_bytes,
        basis=basis,
        accepted=tuple(accepted),
        runtimes=named,
        graph=graph,
        order=order,
        measure=measure,
        fixed_dims=fixed_dims,
        cuda_context_bytes=cuda_context_bytes,
        cuda_workspace_bytes=cuda_workspace_bytes,
        expandable_segments=expandable_segments,
        asks_onnxruntime=asks_onnxruntime,
        cpu=cpu,
        one_of_several=one_of_several,
    )
    if not train and settings.recipe != Recipe():
        message = "an optimizer, a precision, a loss or a recipe: no effect without train=True"
        raise UsageError(message)
    file = load(source)
    model, remarks = _graph_of(file, settings)
    request = _at(request_for(model, settings, file, remarks), context)
    return analysis_of(replace(request, own_runtimes=own) if own else request)


def _runtimes(
    given: "Sequence[str | Runtime]",
) -> "tuple[tuple[str, ...], dict[str, Runtime]]":
    """The runtimes that are named, and those that are objects by their names.

    :raises UsageError: no list of them, a class in place of an object, or a name that is taken.
    """
    if isinstance(given, str) or not isinstance(given, Sequence):
        message = "runtimes: give a list, as runtimes=('ort-cpu', MyRuntime())"
        raise UsageError(message)
    own: dict[str, Runtime] = {}
    for each in given:
        if isinstance(each, str):
            continue
        if isinstance(each, type):
            message = f"runtimes: {each.__name__} is a class; give an object, {each.__name__}()"
            raise UsageError(message)
        name = getattr(each, "name", None)
        if not isinstance(name, str) or not name.strip() or name in own or name in _TAKEN:
            message = f"runtimes: the name {name!r} is taken or empty; give each runtime its own"
            raise UsageError(message)
        own[name] = each
    return tuple(each for each in given if isinstance(each, str)), own


_TAKEN: Final = frozenset({*Basis, *RUNTIMES, "none"})
"""Names that a runtime of the caller's own can't have: they say which figure is compared."""


def _graph_of(file: ModelFile, settings: Settings) -> tuple[ModelFile, tuple[Finding, ...]]:
    """The model that the figures are of; a runtime's rules are imported where they make it."""
    if settings.graph is None:
        return file, ()
    from onnxmem.runtimes.asking import optimized_file

    return optimized_file(file, settings)


def _at(asked: AnalysisRequest, context: int | None) -> AnalysisRequest:
    """At a context where one is asked for; what cannot be is a finding, and the dims stay open."""
    if context is None:
        return asked
    from onnxmem.kv_cache.steps import NoContextError, Step

    try:
        return asked.at_context(context, Step.DECODE)
    except NoContextError as fault:
        text = f"--context {context} has no effect: {fault}; see --dim"
        return replace(asked, remarks=(*asked.remarks, Finding("no_context", text)))
