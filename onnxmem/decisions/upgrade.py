"""What another release of onnxruntime costs a model, by the releases that were verified.

The rules are those of the newest verified release. A release before it takes the same, unless the
model has something that it treats otherwise (``releases.Change``): then its figures are unknown,
and the comparison names what. Python, numpy and onnxruntime before the session, and what a session
adds however small its model, were measured with every release.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from onnxmem.analysis.analysis import Analysis
from onnxmem.decisions.diff import Change
from onnxmem.errors import Finding, OnnxmemError, UsageError
from onnxmem.runtimes.onnxruntime.memory import VERIFIED, RuntimeMemory
from onnxmem.runtimes.onnxruntime.process.baselines import baseline_of
from onnxmem.runtimes.onnxruntime.releases import Change as ReleaseChange
from onnxmem.runtimes.onnxruntime.releases import Release, release_named

RUNTIME: Final = "ort-cpu"
_OF_ARENA: Final = ("requested_peak_bytes", "held_bytes", "held_steady_bytes")


@dataclass(frozen=True, slots=True)
class ReleaseMemory:
    """A model in one release."""

    release: Release
    unverified: tuple[ReleaseChange, ...]
    """What the model has that the release treats otherwise than the rules: its figures, except for
    the process before the session, are unknown."""


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A model in two releases."""

    analysis: Analysis
    before: ReleaseMemory
    after: ReleaseMemory
    figures: tuple[Change, ...]
    """By the key of ``RuntimeMemory``, and ``process_floor_bytes``."""
    process_range: tuple[int, int] | None
    """Where the heap decides more than the release does: the least and the most of the process."""
    is_complete: bool
    """False: the figures are lower bounds, except for the process floor."""
    findings: tuple[Finding, ...]
    """On the model, and what is unknown of its session."""


def installed_is_newest() -> bool:
    """Whether the installed onnxruntime is of the release whose rules these are."""
    try:
        return version("onnxruntime").startswith(f"{VERIFIED[-1]}.")
    except PackageNotFoundError:
        return False


def two_releases(names: Sequence[str]) -> tuple[Release, Release]:
    """The releases before and after.

    :raises UsageError: one was not verified, or both are the same.
    """
    before, after = map(release_named, names)
    if before == after:
        message = (
            f"onnxruntime before and after are both {before.name}; name two releases, "
            f"as in --onnxruntime {VERIFIED[0]} {VERIFIED[-1]}"
        )
        raise UsageError(message)
    return before, after


def compare_releases(analysis: Analysis, releases: tuple[Release, Release]) -> Upgrade:
    """Compare two releases on a model that was analyzed with ``RUNTIME``.

    :raises OnnxmemError: the session failed.
    """
    runtime = next((each for each in analysis.runtimes if each.name == RUNTIME), None)
    if runtime is None:
        messages = [each.message for each in analysis.findings if each.code == "runtime_failed"]
        raise OnnxmemError(messages[0] if messages else f"no figures of {RUNTIME}")
    before, after = (ReleaseMemory(each, each.changes(analysis.graph)) for each in releases)
    sizes = [_figures(runtime, each) for each in (before, after)]
    return Upgrade(
        analysis,
        before,
        after,
        tuple(Change(name, sizes[0][name], sizes[1][name]) for name in sizes[0]),
        runtime.process_range,
        is_complete=not runtime.unknown.is_lower_bound,
        findings=(*analysis.findings, *runtime.unknown.findings()),
    )


def _figures(runtime: RuntimeMemory, memory: ReleaseMemory) -> dict[str, int | None]:
    release, is_known = memory.release, not memory.unverified
    # Where the heap has several outcomes, they differ by more than the releases do.
    has_process = is_known and runtime.process_range is None
    arena = {name: getattr(runtime.arena, name) if is_known else None for name in _OF_ARENA}
    process, predicted = runtime.process_bytes, baseline_of(runtime.graph_optimizer)
    return {
        **arena,
        "process_floor_bytes": release.baseline.process_bytes,
        # Of the process, only what its shared libraries take differs between the releases.
        "process_bytes": process + release.baseline.shared_bytes - predicted.shared_bytes
        if has_process and process is not None
        else None,
    }
