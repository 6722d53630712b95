"""The public functions that join layers, and an analysis that shows itself in a notebook."""

from typing import TYPE_CHECKING, Any

from onnxmem.analysis.analysis import Analysis, analyze

if TYPE_CHECKING:
    from onnxmem.analysis.fitting.assessing import FitResult
    from onnxmem.decisions.advise.advising import Advised
    from onnxmem.decisions.diff import Difference
    from onnxmem.model.files import ModelSource

__all__ = ["Analysis", "advise", "analyze", "diff", "fit"]


def fit(
    source: "ModelSource | Analysis",
    *,
    device: str | int,
    reserve_bytes: int = 0,
    instances: int = 1,
    share_weights: bool = False,
    dim: str | None = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "FitResult":
    """Compare a model with a device: the verdict, the largest batch that fits, and what limits it.

    ``device`` is a name from the catalog (``"RTX 4090"``), a size (``"24GiB"``) or bytes.
    ``reserve_bytes`` stay free for other programs. ``instances`` of the model run at once, and may
    ``share_weights``. ``dim`` is the symbol whose largest value is searched instead of the batch.
    The other keywords are those of ``analyze``; an ``Analysis`` takes none.

    :raises OnnxmemError: the model cannot be read, no device has that name, or the settings
        contradict each other.
    """
    from onnxmem.analysis.fitting.assessing import FitRequest
    from onnxmem.analysis.fitting.assessing import fit as fit_requests
    from onnxmem.analysis.fitting.footprints import Deployment, on_device
    from onnxmem.analysis.fitting.verdicts import basis_for
    from onnxmem.decisions.devices import Device, catalog

    request = _analyzed(source, settings).request
    found = device if isinstance(device, int) else catalog().device_or_size(device)
    known = found if isinstance(found, Device) else None
    runtime = next(iter(request.settings.runtimes), None)
    basis = basis_for(
        None if known is None else known.kind,
        train=request.settings.train,
        runtime=runtime,
        basis=request.settings.basis,
    )
    setup = FitRequest(
        memory_bytes=found.limit_bytes if isinstance(found, Device) else found,
        reserve_bytes=reserve_bytes,
        flash_bytes=None if known is None else known.flash_bytes,
        basis=basis,
        accepted=frozenset(request.settings.accepted),
        deployment=Deployment(instances=instances, shares_weights=share_weights),
        dim=dim,
    )
    return fit_requests([on_device(request, None if known is None else known.cpu, basis)], setup)


def advise(
    source: "ModelSource | Analysis",
    *,
    budget_bytes: int | None = None,
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Advised":
    """Find changes that lower the memory of a model, each with what it saves and what it costs.

    With ``budget_bytes`` also the cheapest changes that meet it. The other keywords are those of
    ``analyze``; an ``Analysis`` takes none. The first of ``runtimes`` is the one to advise on; its
    session options are advised on by the command, ``onnxmem advise``.

    :raises OnnxmemError: the model cannot be read, or the settings contradict each other.
    """
    from onnxmem.decisions.advise.advising import advised

    request = _analyzed(source, settings).request
    runtime = next(iter(request.settings.runtimes), None)
    return advised(request, budget_bytes=budget_bytes, runtime=runtime)


def diff(
    before: "ModelSource | Analysis",
    after: "ModelSource | Analysis",
    **settings: Any,  # noqa: ANN401 - those of analyze
) -> "Difference":
    """Compare two models, or two analyses of one: what changed, and which tensors moved the peaks.

    The keywords are those of ``analyze``, for both sides; an ``Analysis`` takes none.

    :raises OnnxmemError: a model cannot be read, or the settings contradict each other.
    """
    from onnxmem.decisions.diff import diff as difference
    from onnxmem.decisions.diff import snapshot

    sides = [
        snapshot(side if isinstance(side, Analysis) else analyze(side, **settings))
        for side in (before, after)
    ]
    return difference(*sides)


def _analyzed(source: "ModelSource | Analysis", settings: dict[str, Any]) -> Analysis:
    if not isinstance(source, Analysis):
        return analyze(source, **settings)
    if settings:
        message = f"an Analysis has its settings: {', '.join(settings)} cannot be given"
        raise TypeError(message)
    return source


def _notebook_html(analysis: Analysis) -> str:
    # Charts are imported only if a notebook shows an analysis, which most callers never do.
    from onnxmem.report.notebook import notebook_html

    return notebook_html(analysis)


Analysis.notebook_html = _notebook_html
