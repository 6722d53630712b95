"""Compares three ways to get the graph of another CPU than this machine's.

Usage: python tools/onnxruntime/extended_graph.py [FOLDER] [--details]

``emulated`` emulates onnxruntime's whole graph optimizer. ``extended`` asks onnxruntime for its
*extended* graph, which is the same on every x86-64, and emulates the rest: the layouts of level 3
for the CPU, and the casts behind them. ``all but layouts`` asks for level ``all`` without the
passes that follow the CPU, and emulates those. Each is compared with the peak that onnxruntime's
kernels requested: the settings at level ``all`` of ``truth.json.gz`` and ``truth_held_out.json.gz``
(AVX-512), and the figures of ``cpus.json`` (every CPU). ``FOLDER`` is that of ``corpus.py``;
without it the models of ``models/`` and the ``light_*`` ones count. Decision 21 has the table.

A graph that onnxruntime saves as ONNX has lost what later passes go by. A file in onnxruntime's own
format has it: the indices of the nodes, from which the order of execution follows, and the shapes.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import onnx
import onnxruntime as ort
from accuracy import DATA, HELD_OUT, TRUTH, located, read_truth, request_of, values_of

from onnxmem.model.building import Request, build, prepare
from onnxmem.model.files import load
from onnxmem.model.shapes.microsoft import with_channel_block
from onnxmem.runtimes.onnxruntime.cpu import CPUS
from onnxmem.runtimes.onnxruntime.optimizer.casts import insert_casts
from onnxmem.runtimes.onnxruntime.optimizer.graph import Graph, TensorType
from onnxmem.runtimes.onnxruntime.optimizer.image_layouts import put_channels_last
from onnxmem.runtimes.onnxruntime.optimizer.pipeline import layouts, run_level
from onnxmem.runtimes.onnxruntime.optimizer.reading import read_model, write_model
from onnxmem.runtimes.onnxruntime.optimizer.shape_inference import resolve
from onnxmem.runtimes.onnxruntime.prediction import arena_figures
from onnxmem.runtimes.onnxruntime.session_graph import optimization as session_opening
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    IndicesByPath,
    OptimizedModel,
    ShapesByPath,
    drop_doubled_constants,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    SessionConfig,
    emulated,
    optimized_model,
    optimized_of,
)
from onnxmem.runtimes.onnxruntime.session_graph.saving import save_optimized
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

WAYS: Final = ("emulated", "extended", "all but layouts")
LAYOUTS: Final = ("NchwcTransformer", "ConvAddActivationFusion")
"""onnxruntime's names of the pass that follows the CPU, and of the one that comes after it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A model at a setting, and the requested peak that was measured."""

    source: str
    name: str
    path: Path
    request: Request
    cpu: str
    fed: Mapping[str, Any]
    measured_bytes: int
    is_fixed: bool = False
    reuse: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one way predicts of a setting."""

    source: str
    way: str
    error_percent: float | None
    """``None``: no prediction."""
    seconds: float
    """Until the graph was made; 0 where another setting had made it."""
    text: str


def main() -> None:
    """Compare and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--details", action="store_true")
    arguments = parser.parse_args()
    made: dict[object, OptimizedModel | Exception] = {}
    outcomes: list[Outcome] = []
    for setting in (*of_corpus(arguments.folder), *of_cpus(arguments.folder)):
        if (setting.path, setting.cpu) not in {key[:2] for key in made if isinstance(key, tuple)}:
            made.clear()  # one model's graphs are enough to hold
        found = [outcome_of(setting, way, made) for way in WAYS]
        if arguments.details and any(outcome.error_percent for outcome in found):
            texts = ", ".join(f"{outcome.way} {outcome.text}" for outcome in found)
            print(f"{setting.source}: {setting.name}: {texts}", flush=True)
        outcomes += found
    print(table(outcomes))


# --------------------------------------------------------------------------------------------------
# The ways.


def made_by(way: str, model: ModelAt, config: SessionConfig) -> OptimizedModel:
    """The graph at level ``all`` for the CPU of ``config``.

    :raises ValueError: onnxruntime did not make the graph that this way begins with.
    """
    cpu = CPUS[config.cpu]
    if way == "emulated":
        dims = model.bound.binding.dims if config.fixed_dims else {}
        return emulated(model.prepared, "all", dims, cpu)
    has_layouts = way == "extended"
    found = asked(model, config) if has_layouts else asked_without_layouts(model, config)
    if found.graph_optimizer == "onnxmem":
        raise ValueError(found.findings[-1].message)
    drop_doubled_constants(found.proto)
    graph = read_model(found.proto)
    for inner in graph.graphs():
        inner.cpu = cpu
    renumber(graph, found.indices, "")
    resolve(graph)
    state_shapes(graph, found.shapes, "")
    passes = (each for each in layouts(cpu) if has_layouts or each.apply != put_channels_last)
    run_level(graph, tuple(passes))
    if insert_casts(graph):
        resolve(graph)
    return optimized_of(write_model(graph, found.proto), "all", cpu)


def asked(model: ModelAt, config: SessionConfig) -> OptimizedModel:
    """The extended graph of this machine's onnxruntime."""
    return optimized_model(model, replace(config, level="extended", cpu="native"))


def asked_without_layouts(model: ModelAt, config: SessionConfig) -> OptimizedModel:
    """Its graph at level ``all`` without the passes of ``LAYOUTS``; in this process."""

    def in_this_process(_: str, arguments: Mapping[str, Any], *__: object) -> Mapping[str, Any]:
        return save_optimized(**arguments)

    session = partial(ort.InferenceSession, disabled_optimizers=set(LAYOUTS))
    with (
        patch.object(session_opening, "run_in_child", in_this_process),
        patch.object(ort, "InferenceSession", session),
    ):
        return optimized_model(model, replace(config, cpu="native"))


def renumber(graph: Graph, indices: IndicesByPath, place: str) -> None:
    """Give the nodes the indices that they had in the session: the order of execution follows."""
    known = indices.get(place, {})
    nodes = list(graph.nodes.values())
    numbers = [known.get(next(filter(None, node.outputs), ""), -1) for node in nodes]
    if min(numbers, default=0) < 0:
        return
    for node in nodes:
        graph.remove(node)
    for number, node in sorted(zip(numbers, nodes, strict=True), key=lambda pair: pair[0]):
        graph.insert_at(node, number)
    for inner, here in bodies(graph, place):
        renumber(inner, indices, here)


def state_shapes(graph: Graph, shapes: ShapesByPath, place: str) -> None:
    """Take the dims that the session knew over those that are inferred here."""
    for name, dims in shapes.get(place, {}).items():
        known = graph.types.get(name)
        if dims is not None and isinstance(known, TensorType):
            graph.types[name] = TensorType(known.elem_type, tuple(dims))
    for inner, here in bodies(graph, place):
        state_shapes(inner, shapes, here)


def bodies(graph: Graph, place: str) -> Iterator[tuple[Graph, str]]:
    """The subgraphs of a graph's nodes, and where they are."""
    for node in graph.nodes.values():
        for attribute, body in node.bodies.items():
            here = f"{node.outputs[0]}/{attribute}"
            yield body, f"{place}/{here}" if place else here


# --------------------------------------------------------------------------------------------------
# The settings.


def of_corpus(folder: Path | None) -> Iterator[Setting]:
    """The settings at level ``all`` that were measured with AVX-512."""
    for source, path in (("corpus, avx512", TRUTH), ("held out, avx512", HELD_OUT)):
        truth = read_truth(path)
        for row in truth["rows"]:
            fed = truth["models"][row["model"]]
            file = located(row["model"], fed, folder)
            if row["level"] == "all" and file is not None:
                request, peak = request_of(fed, row["batch"]), row["requested_peak_bytes"]
                given = (source, row["model"], file, request, "avx512", fed, peak)
                yield Setting(*given, row["fixed"], row["reuse"])


def of_cpus(folder: Path | None) -> Iterator[Setting]:
    """Models at their smallest batch, on each CPU."""
    fed_by_name = read_truth(TRUTH)["models"] | read_truth(HELD_OUT)["models"]
    for cpu, models in json.loads((DATA / "cpus.json").read_text()).items():
        for name, taken in models.items():
            fed = fed_by_name.get(name)
            file = None if fed is None else located(name, fed, folder)
            if file is not None:
                request = request_of(fed, 1 if fed.get("batch") else None)
                peak = taken["requested_peak_bytes"]
                yield Setting(f"cpus, {cpu}", name, file, request, cpu, fed, peak)


# --------------------------------------------------------------------------------------------------
# The comparison.


def outcome_of(
    setting: Setting, way: str, made: dict[object, OptimizedModel | Exception]
) -> Outcome:
    """What a way predicts; graphs that several settings share are in ``made``."""
    file = load(setting.path)
    prepared = prepare(file)
    bound = build(prepared, setting.request)
    config = SessionConfig("all", setting.is_fixed, cpu=setting.cpu)
    dims = repr(setting.request) if setting.is_fixed else ""
    key, started = (setting.path, setting.cpu, way, dims), time.perf_counter()
    if key not in made:
        made[key] = _attempt(partial(made_by, way, ModelAt(file, prepared, bound), config))
    seconds, graph = time.perf_counter() - started, made[key]
    if isinstance(graph, Exception):
        return Outcome(setting.source, way, None, seconds, f"{type(graph).__name__}: {graph}")
    with_channel_block(graph.proto, graph.cpu.channel_block)
    session = session_graph(graph, bound.binding.shapes, values_of(setting.fed, bound.graph))
    figures, _ = arena_figures(session, SessionOptions(enable_mem_reuse=setting.reuse))
    error = 100 * (figures.requested_peak_bytes / (setting.measured_bytes or 1) - 1)
    return Outcome(setting.source, way, error, seconds, f"{error:+.2f} %")


def _attempt(make: Callable[[], OptimizedModel]) -> OptimizedModel | Exception:
    try:
        found = make()
        proto = onnx.ModelProto()
        proto.CopyFrom(found.proto)
        return replace(found, proto=proto)
    except Exception as fault:  # noqa: BLE001 - a fault is a result of its own here
        return fault


def table(outcomes: list[Outcome]) -> str:
    """A row for each truth and way."""
    lines = ["| truth | way | settings | exact | within 5 % | none | min | max | seconds |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for source in dict.fromkeys(outcome.source for outcome in outcomes):
        for way in WAYS:
            those = [o for o in outcomes if (o.source, o.way) == (source, way)]
            errors = [o.error_percent for o in those if o.error_percent is not None]
            counts = (
                len(those),
                sum(error == 0 for error in errors),
                sum(abs(error) <= 5 for error in errors),  # noqa: PLR2004 - the column's name
                len(those) - len(errors),
            )
            worst = [f"{e:+.1f} %" for e in (min(errors, default=0), max(errors, default=0))]
            taken = f"{sum(o.seconds for o in those):.0f}"
            lines.append("| " + " | ".join([source, way, *map(str, counts), *worst, taken]) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
