"""Optimizes the graph of a session: with onnxruntime in a child process, or by emulation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import onnx

from onnxmem.children.running import JSON, ChildFault, ChildLimits, available_bytes, run_in_child
from onnxmem.errors import Finding
from onnxmem.files import temporary_folder
from onnxmem.model.building import BoundModel, Prepared
from onnxmem.model.files import ModelFile, load
from onnxmem.model.filling import stored_bytes, stored_tensors
from onnxmem.model.shapes.microsoft import with_channel_block
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape
from onnxmem.runtimes.onnxruntime.cpu import CPUS, Cpu, cpu_named, native_cpu
from onnxmem.runtimes.onnxruntime.optimizer.constants import content_of
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import optimized, planner_shapes
from onnxmem.runtimes.onnxruntime.optimizer.reading import HOST, INDEX
from onnxmem.runtimes.onnxruntime.session_files import (
    OnDisk,
    RefusedError,
    on_disk,
    refuse_data_elsewhere,
    runnable,
    without_noise,
)
from onnxmem.runtimes.onnxruntime.session_graph.graph_paths import graphs_by_path
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    ContentsByPath,
    HostByPath,
    IndicesByPath,
    OptimizedModel,
    ShapesByPath,
)
from onnxmem.runtimes.onnxruntime.session_options import Provider

_SAVE: Final = "onnxmem.runtimes.onnxruntime.session_graph.saving:save_optimized"
_SECONDS: Final = 300.0
_NO_SHAPES: Final = (
    "the weights are too large for a file in onnxruntime's own format: the shapes known to its "
    "planner are computed by onnxmem"
)
_ADVICE: Final = "onnxmem's emulation of its graph optimizer was used instead"


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """The settings of a session that its graph depends on."""

    level: str = "all"
    """``off``, ``basic``, ``extended`` or ``all``."""
    fixed_dims: bool = False
    """Whether symbols have numbers at load: ``add_free_dimension_override_by_name``."""
    asks_onnxruntime: bool = True
    """False: emulate its graph optimizer even if it is installed."""
    cpu: str = "native"
    """Of the session: ``native``, or a name in ``CPUS``."""
    provider: Provider = "cpu"

    def is_of_this_machine(self) -> bool:
        """Whether onnxruntime on this machine creates the graph of that CPU and provider.

        Below level ``all``, the graph is the same on every x86-64. That of CUDA is not asked for:
        it takes a GPU.
        """
        if self.provider != "cpu":
            return False
        wanted, here = cpu_named(self.cpu), cpu_named("native")
        # Only level `all` has layouts that follow from the vector width of a CPU.
        return wanted == here or (self.level != "all" and wanted.is_arm == here.is_arm)


@dataclass(frozen=True, slots=True)
class ModelAt:
    """A model at one binding of its dims."""

    file: ModelFile
    prepared: Prepared
    bound: BoundModel


Optimizing = Callable[[ModelAt, SessionConfig], OptimizedModel]
"""``optimized_model``, or a function that caches its results."""


def optimized_model(model: ModelAt, config: SessionConfig) -> OptimizedModel:
    """The optimized model of a session; its dims are still symbols.

    Its channel blocks are set to those of the CPU, which its nodes do not always have.

    :raises OnnxmemError: what ``on_disk`` raises.
    """
    found = _optimized(model, config)
    with_channel_block(found.proto, found.cpu.channel_block)
    return found


def optimized_together(
    model: ModelAt, configs: Sequence[SessionConfig]
) -> dict[SessionConfig, OptimizedModel]:
    """What ``optimized_model`` returns for each of these sessions, all from one child.

    Sessions that onnxruntime is not asked for are left out, and all of them if the child fails:
    each on its own, the others may succeed.

    :raises OnnxmemError: what ``on_disk`` raises.
    """
    wanted = [each for each in configs if each.asks_onnxruntime and each.is_of_this_machine()]
    found = _optimized_by_onnxruntime(model.file, model.bound, wanted) if wanted else None
    if found is None or isinstance(found, Finding):
        return {}
    made = {}
    for config, each in zip(wanted, found, strict=True):
        with_channel_block(each.proto, each.cpu.channel_block)
        made[config] = replace(each, findings=(*_cpu_findings(config), *each.findings))
    return made


def _optimized(model: ModelAt, config: SessionConfig) -> OptimizedModel:
    findings: tuple[Finding, ...] = _cpu_findings(config)
    cpu = cpu_named(config.cpu)
    if config.asks_onnxruntime and config.is_of_this_machine():
        found = _optimized_by_onnxruntime(model.file, model.bound, [config])
        if not isinstance(found, Finding):
            (only,) = found
            return replace(only, findings=(*findings, *only.findings))
        findings = (*findings, found)
    elif config.asks_onnxruntime and config.provider == "cpu":
        here = cpu_named("native").name
        text = (
            f"onnxruntime creates another graph on this CPU ({here}) than on {cpu.name}; {_ADVICE}"
        )
        findings = (*findings, Finding("emulated_optimizer", text))
    dims = model.bound.binding.dims if config.fixed_dims else {}
    try:
        made = emulated(model.prepared, config.level, dims, cpu, config.provider)
    except Exception as fault:  # noqa: BLE001 - a pass that fails costs the passes, not the figures
        text = (
            f"the emulated graph optimizer failed ({type(fault).__name__}); "
            "the graph of the file was used"
        )
        made = unoptimized(model.prepared, config.level, cpu)
        findings = (*findings, Finding("optimizer_failed", text))
    return replace(made, findings=findings)


def _cpu_findings(config: SessionConfig) -> tuple[Finding, ...]:
    """Findings on an assumed or unverified CPU."""
    cpu = cpu_named(config.cpu)
    if config.cpu == "native" and native_cpu() is None:
        text = f"this machine's CPU is not one of {', '.join(CPUS)}; assuming {cpu.name}, see --cpu"
        return (Finding("assumed_cpu", text),)
    if not cpu.is_verified:
        text = f"graphs and packed weights on {cpu.name} were not verified on such a machine"
        return (Finding("unverified_cpu", text),)
    return ()


def _optimized_by_onnxruntime(
    file: ModelFile, bound: BoundModel, configs: Sequence[SessionConfig]
) -> list[OptimizedModel] | Finding:
    with temporary_folder() as name:
        folder = Path(name)
        try:
            refuse_data_elsewhere(stored_tensors(file.proto), Path(file.path))
        except RefusedError as refusal:
            return Finding("emulated_optimizer", f"{refusal}; {_ADVICE}")
        return _saved(on_disk(file, folder), bound, configs, folder)


def _saved(
    source: OnDisk, bound: BoundModel, configs: Sequence[SessionConfig], folder: Path
) -> list[OptimizedModel] | Finding:
    limits = ChildLimits(_SECONDS, available_bytes())
    model = runnable(source, bound, folder, limits)
    if isinstance(model, ChildFault):
        return _fault(model)
    if limits.memory_bytes is not None:
        # Mapped weights need addresses but no memory.
        limits = replace(limits, memory_bytes=limits.memory_bytes + model.mapped_bytes)
    folders = [folder / str(index) for index in range(len(configs))]
    sessions: list[JSON] = [
        {
            "folder": str(each),
            "level": config.level,
            "overrides": dict(bound.binding.dims) if config.fixed_dims else {},
        }
        for each, config in zip(folders, configs, strict=True)
    ]
    weight_bytes = sum(map(stored_bytes, stored_tensors(source.file.proto)))
    arguments: dict[str, JSON] = {
        "model": str(model.path.absolute()),
        "sessions": sessions,
        "weight_bytes": weight_bytes,
    }
    reply = run_in_child(_SAVE, arguments, limits)
    if isinstance(reply, ChildFault):
        message = without_noise(reply.message).replace(str(model.path), source.file.path)
        return _fault(replace(reply, message=message))
    replies = cast("list[dict[str, JSON]]", reply["sessions"])
    return [
        _loaded(source, config, each, found)
        for config, each, found in zip(configs, folders, replies, strict=True)
    ]


def _loaded(
    source: OnDisk, config: SessionConfig, folder: Path, reply: Mapping[str, JSON]
) -> OptimizedModel:
    """What the child saved of one session."""
    shapes, contents, indices = (
        json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("shapes", "contents", "indices")
    )
    proto, cpu = load(folder / "optimized.onnx").proto, cpu_named(config.cpu)
    return OptimizedModel(
        proto,
        # Without a file in onnxruntime's own format nobody has its planner's shapes but the
        # emulation.
        _shapes_by_path(shapes) or {"": planner_shapes(proto, cpu=cpu)},
        bool(reply["changed"]),
        config.level,
        f"onnxruntime {reply['version']}",
        cpu,
        () if shapes else (Finding("shapes_at_load", _NO_SHAPES),),
        frozenset(map(str, cast("list[JSON]", reply["in_file_order"]))),
        contents,
        indices,
        external=_external_names(source.file.proto),
    )


def _external_names(model: onnx.ModelProto) -> frozenset[str]:
    return frozenset(
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_location == onnx.TensorProto.EXTERNAL
    )


def _shapes_by_path(
    plain: Mapping[str, Mapping[str, list[int | str | None] | None]],
) -> ShapesByPath:
    return {
        path: {name: None if dims is None else tuple(dims) for name, dims in values.items()}
        for path, values in plain.items()
    }


def _fault(fault: ChildFault) -> Finding:
    if fault.kind == "missing":
        reason = "onnxruntime is not installed"
    else:
        reason = f"onnxruntime did not optimize the model ({fault.kind}: {fault.message})"
    return Finding("emulated_optimizer", f"{reason}; {_ADVICE}")


# --------------------------------------------------------------------------------------------------
# The emulation.


def emulated(
    prepared: Prepared,
    level: str,
    dims: Mapping[str, int],
    cpu: Cpu,
    provider: Provider = "cpu",
) -> OptimizedModel:
    """The model optimized by the emulation of onnxruntime's graph optimizer.

    ``dims`` are numbers for symbols, as set by free-dimension overrides.
    """
    # onnxruntime inlines functions itself, at a point of its own.
    proto = prepared.with_calls or prepared.proto
    made = optimized(proto, level, dims=dims, cpu=cpu, provider=provider)
    return optimized_of(made, level, cpu)


def optimized_of(model: onnx.ModelProto, level: str, cpu: Cpu) -> OptimizedModel:
    """A model optimized by the emulation, with the shapes and indices that its passes recorded."""
    return OptimizedModel(
        proto=model,
        shapes=_stored_shapes(model.graph),
        is_in_running_order=True,
        level=level,
        graph_optimizer="onnxmem",
        cpu=cpu,
        contents=_stored_contents(model.graph),
        indices=_stored_indices(model.graph),
        host=_stored_host(model.graph),
    )


def unoptimized(prepared: Prepared, level: str, cpu: Cpu) -> OptimizedModel:
    """The graph of the file, with the shapes that it declares."""
    shapes = _stored_shapes(prepared.proto.graph)
    proto = onnx.ModelProto()
    proto.CopyFrom(prepared.proto)  # readers remove duplicate constants from it
    return OptimizedModel(proto, shapes, False, level, "nobody", cpu)  # noqa: FBT003 - a field


def _stored_shapes(main: onnx.GraphProto) -> ShapesByPath:
    """The shapes stored in the optimized model, by the path of their graph."""
    return {
        path: {
            value.name: _load_shape(value.type)
            for value in (*graph.value_info, *graph.output, *graph.input)
        }
        for path, graph in graphs_by_path(main)
    }


def _stored_contents(main: onnx.GraphProto) -> ContentsByPath:
    """A value that constants of equal elements share, by the path of their graph."""
    return {
        path: {
            tensor.name: content
            for tensor in graph.initializer
            if (content := content_of(tensor)) is not None
        }
        for path, graph in graphs_by_path(main)
    }


def _stored_indices(main: onnx.GraphProto) -> IndicesByPath:
    """The indices of the nodes, by the path of their graph and their first output."""
    return {
        path: {
            next(filter(None, node.output), ""): int(entry.value)
            for node in graph.node
            for entry in node.metadata_props
            if entry.key == INDEX
        }
        for path, graph in graphs_by_path(main)
    }


def _stored_host(main: onnx.GraphProto) -> HostByPath:
    """The values in the host's memory, by the path of their graph."""
    return {
        path: dict.fromkeys(json.loads(entry.value), True)
        for path, graph in graphs_by_path(main)
        for entry in graph.metadata_props
        if entry.key == HOST
    }


def _load_shape(proto: onnx.TypeProto) -> LoadShape | None:
    if proto.WhichOneof("value") != "tensor_type" or not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
        for dim in proto.tensor_type.shape.dim
    )
