"""The graph that a session runs: asked of onnxruntime in a child, emulated, and read."""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import onnx
import pytest
from graphs import model_of
from models_on_disk import MYSTERY, write_model

from onnxmem.children.running import JSON, ChildFault, ChildLimits
from onnxmem.errors import Finding
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.model.observed import GraphRun
from onnxmem.runtimes.onnxruntime.cpu import AVX2, AVX512
from onnxmem.runtimes.onnxruntime.session_graph import optimization
from onnxmem.runtimes.onnxruntime.session_graph.loaded import (
    OptimizedModel,
    drop_doubled_constants,
    session_graph,
)
from onnxmem.runtimes.onnxruntime.session_graph.optimization import (
    ModelAt,
    SessionConfig,
    emulated,
    optimized_model,
    optimized_together,
)

if TYPE_CHECKING:
    from onnxmem.runtimes.onnxruntime.session_graph.saving import Session

EMULATED = SessionConfig(level="off", asks_onnxruntime=False)
BRANCHES = """agraph (float[N,7] x, bool b) => (float[N,7] y) {
    [choose] y = If(b) <
        then_branch = one () => (float[N,7] t) {
            [again] t = If(b) <
                then_branch = two () => (float[N,7] u) { p = Exp(x)  u = Neg(p) },
                else_branch = three () => (float[N,7] v) { v = Exp(x) }
            >
        },
        else_branch = four () => (float[N,7] e) { p = Exp(x)  e = Abs(p) }
    >
}"""


def optimized_of(
    text: str, shapes: Mapping[str, Any], *, is_ordered: bool = True
) -> OptimizedModel:
    return OptimizedModel(model_of(text), shapes, is_ordered, "off", "onnxmem")


# Read as records.


def test_shapes_at_load_have_the_scoped_names() -> None:
    shapes = {
        "": {"x": ("N", 7), "y": ("N", 7)},
        "y/then_branch": {"t": ("N", 7)},
        "y/then_branch/t/then_branch": {"p": ("N", 5), "u": ("N", 7)},
        "y/else_branch": {"p": ("N", 3), "e": None},
    }
    found = session_graph(optimized_of(BRANCHES, shapes), {"x": (2, 7), "b": ()})
    assert found.shapes == {
        "x": ("N", 7),
        "y": ("N", 7),
        "choose/then_branch/t": ("N", 7),
        "choose/then_branch/again/then_branch/p": ("N", 5),
        "choose/then_branch/again/then_branch/u": ("N", 7),
        "choose/else_branch/p": ("N", 3),
        "choose/else_branch/e": None,
    }
    names = {name for node in found.graph.all_nodes() for name in node.outputs}
    assert names - found.shapes.keys() == {"choose/then_branch/again/else_branch/v"}
    assert found.graph.tensors["x"].shape == (2, 7)


def test_a_graph_is_read_again_only_for_other_shapes_values_or_runs() -> None:
    optimized = optimized_of(BRANCHES, {})
    first = session_graph(optimized, {"x": (2, 7), "b": ()})
    assert session_graph(optimized, {"b": (), "x": (2, 7)}) is first
    assert session_graph(optimized, {"x": (2, 7), "b": ()}, {"b": (1,)}) is not first
    seen = GraphRun(bodies={})
    assert session_graph(optimized, {"x": (2, 7), "b": ()}, observed=seen) is not first
    other = session_graph(optimized, {"x": (3, 7), "b": ()})
    assert other.graph.tensors["x"].shape == (3, 7)
    assert len(optimized.last_read) == 1


def test_a_shape_without_a_constant_is_the_one_at_load() -> None:
    """Symbols are bound; dims unknown at load stay unknown."""
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[N,7] x, bool b) => (float[] y) {
        a = acme.Part(x)  s = acme.Number(x)  o = acme.Riddle(x)  n = acme.Nothing(x)
        [choose] y = If(b) <
            then_branch = one () => (float[] t) { p = acme.Part(x)  t = Exp(x) },
            else_branch = two () => (float[] e) { e = Abs(x) }
        >
    }"""
    shapes = {
        "": {"a": ("N", 3), "s": (), "o": ("N", None), "n": None},
        "y/then_branch": {"p": ("N", 5)},
    }
    found = session_graph(optimized_of(text, shapes), {"x": (2, 7), "b": ()})
    tensors = found.graph.tensors
    assert [tensors[name].shape for name in "ason"] == [(2, 3), (), None, None]
    assert tensors["choose/then_branch/p"].shape == (2, 5)
    branch = next(body for node in found.graph.nodes for _, body in node.subgraphs)
    assert branch.tensors["choose/then_branch/p"].shape == (2, 5)


def test_scopes_in_use_are_numbered() -> None:
    text = """agraph (float[N,7] x, bool b) => (float[N,7] y, float[N,7] z) {
        [same] y = If(b) <
            then_branch = one () => (float[N,7] t) { t = Exp(x) },
            else_branch = two () => (float[N,7] e) { e = Abs(x) }
        >
        [same] z = If(b) <
            then_branch = three () => (float[N,7] t) { t = Neg(x) },
            else_branch = four () => (float[N,7] e) { e = Ceil(x) }
        >
    }"""
    shapes = {"y/then_branch": {"t": (1,)}, "z/then_branch": {"t": (2,)}}
    found = session_graph(optimized_of(text, shapes), {"x": (2, 7), "b": ()})
    names = [name for node in found.graph.all_nodes() for name in node.outputs]
    assert len(set(names)) == len(names)
    by_operator = {
        node.op_type: found.shapes.get(node.outputs[0]) for node in found.graph.all_nodes()
    }
    assert by_operator == {"If": None, "Exp": (1,), "Abs": None, "Neg": (2,), "Ceil": None}


def test_an_input_with_a_dim_of_0_binds_its_symbols() -> None:
    """Like past keys before the first token; such a shape cannot be requested."""
    text = """agraph (float[N,2,0,5] past, float[N,2,1,5] new) => (float[N,2,1,5] y) {
        y = Concat <axis = 2> (past, new)
    }"""
    shapes = {"": {"past": ("N", 2, 0, 5), "new": ("N", 2, 1, 5), "y": ("N", 2, 1, 5)}}
    found = session_graph(optimized_of(text, shapes), {"past": (3, 2, 0, 5), "new": (3, 2, 1, 5)})
    assert found.graph.tensors["past"].shape == (3, 2, 0, 5)
    assert found.graph.tensors["y"].shape == (3, 2, 1, 5)


def test_an_unchanged_graph_and_its_bodies_run_in_execution_order() -> None:
    """From the leaves up, the last leaf first: the file of an unchanged graph has its own order."""
    text = """agraph (float[7] x, bool b) => (float[7] y, float[7] z) {
        a = Exp(x)
        z = Neg(x)
        y = If(b) <
            then_branch = one () => (float[7] t) { p = Exp(a)  q = Neg(a)  t = Add(p, q) },
            else_branch = two () => (float[7] e) { e = Abs(a) }
        >
    }"""
    inputs = {"x": (7,), "b": ()}

    def order(*, is_ordered: bool) -> list[str]:
        found = session_graph(optimized_of(text, {}, is_ordered=is_ordered), inputs)
        return [node.op_type for node in found.graph.all_nodes()]

    assert order(is_ordered=True) == ["Exp", "Neg", "If", "Exp", "Neg", "Add", "Abs"]
    assert order(is_ordered=False) == ["Exp", "If", "Neg", "Exp", "Add", "Abs", "Neg"]


def test_only_unchanged_graphs_are_sorted() -> None:
    """An unchanged body in a changed graph, and the other way round."""
    text = """agraph (float[7] x, bool b) => (float[7] y, float[7] z) {
        a = Exp(x)
        z = Neg(x)
        y = If(b) <
            then_branch = one () => (float[7] t) { p = Exp(a)  q = Neg(a)  t = Add(p, q) },
            else_branch = two () => (float[7] e) { p = Abs(a)  q = Ceil(a)  e = Mul(p, q) }
        >
    }"""

    def order(*places: str) -> list[str]:
        made = replace(optimized_of(text, {}), in_file_order=frozenset(places))
        found = session_graph(made, {"x": (7,), "b": ()})
        return [node.op_type for node in found.graph.all_nodes()]

    then, other = ["Exp", "Neg", "Add"], ["Abs", "Ceil", "Mul"]
    assert order() == ["Exp", "Neg", "If", *then, *other]
    assert order("") == ["Exp", "If", *then, *other, "Neg"]
    assert order("y/then_branch") == ["Exp", "Neg", "If", "Neg", "Exp", "Add", *other]
    assert order("", "y/else_branch") == ["Exp", "If", *then, "Ceil", "Abs", "Mul", "Neg"]


def test_constants_beside_their_own_initializers_are_dropped() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "acme" : 1]>
    agraph (float[1] x, bool b) => (float[1] y) {
        c = Constant <value_float = 2.0> ()
        d = Constant <value_float = 3.0> ()
        k = acme.Constant ()
        h = If(b) <
            then_branch = one () => (float[1] t) {
                i = Constant <value_float = 5.0> ()
                t = Add(x, i)
            },
            else_branch = two () => (float[1] e) { e = Sum(x, c, d, k) }
        >
        y = Neg(h)
    }"""
    model = model_of(text)
    branch = model.graph.node[3].attribute[0].g
    for graph, name in ((model.graph, "c"), (model.graph, "k"), (branch, "i")):
        graph.initializer.add(name=name, data_type=onnx.TensorProto.FLOAT, float_data=[1.0])
    drop_doubled_constants(model)
    assert [node.output[0] for node in model.graph.node] == ["d", "k", "h", "y"]
    assert [node.output[0] for node in branch.node] == ["t"]


# Emulated.


def test_without_an_optimizer_the_graph_is_that_of_the_file() -> None:
    prepared = prepare(ModelFile("", model_of(BRANCHES), 0))
    found = emulated(prepared, "off", {}, AVX512)
    assert (found.level, found.graph_optimizer, found.is_in_running_order) == (
        "off",
        "onnxmem",
        True,
    )
    assert found.shapes[""] == {"x": ("N", 7), "b": (), "y": ("N", 7)}
    assert found.shapes["y/then_branch/t/then_branch"] == {"p": ("N", 7), "u": ("N", 7)}
    assert found.findings == ()


def test_numbers_for_symbols_are_known_at_load() -> None:
    prepared = prepare(ModelFile("", model_of(BRANCHES), 0))
    found = emulated(prepared, "off", {"N": 3}, AVX512)
    assert found.shapes[""]["x"] == (3, 7)


def test_shapes_at_load_can_be_unknown_and_types_other_than_tensors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "agraph (float[N,?] x, seq(float[2]) q, float u) => (float[N,?] y) { y = Exp(x) }"
    model = model_of(text)
    model.graph.input[2].type.tensor_type.ClearField("shape")
    requested = []

    def optimized(proto: onnx.ModelProto, level: str, **options: object) -> onnx.ModelProto:
        requested.append((level, options))
        return proto

    monkeypatch.setattr(optimization, "optimized", optimized)
    found = emulated(prepare(ModelFile("", model, 0)), "all", {"N": 3}, AVX2)
    assert requested == [("all", {"dims": {"N": 3}, "cpu": AVX2, "provider": "cpu"})]
    assert found.shapes[""] == {"x": ("N", None), "q": None, "u": None, "y": ("N", None)}
    assert found.is_in_running_order


# Asked, with the child replaced.

Answer = Callable[[str, Mapping[str, Any]], dict[str, JSON] | ChildFault]


def model_at(source: Path | onnx.ModelProto, **dims: int) -> ModelAt:
    file = load(source)
    prepared = prepare(file)
    return ModelAt(file, prepared, build(prepared, Request(dims=dims)))


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary folders."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model whose weights are inline and whose nodes have names."""
    write_model(
        tmp_path / "net.onnx",
        """agraph (float[N,2] x) => (float[N,2] y) <float[2] w = {3.0, 5.0}> {
            [add] h = Add(x, w)  [exp] y = Exp(h)
        }""",
    )
    return tmp_path / "net.onnx"


def answering(monkeypatch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[str, Any]]:
    requested: list[tuple[str, Any]] = []

    def run_in_child(
        function: str, arguments: Mapping[str, Any], limits: ChildLimits
    ) -> dict[str, JSON] | ChildFault:
        assert limits.seconds == 300.0
        requested.append((function.rpartition(":")[2], {**arguments, "limit": limits.memory_bytes}))
        return answer(function, arguments)

    monkeypatch.setattr(optimization, "run_in_child", run_in_child)
    monkeypatch.setattr(optimization, "available_bytes", lambda: 10**9)
    return requested


def saving(path: Path, shapes: str) -> Answer:
    """A child that saves the file as it is for every session."""

    def save(_: str, arguments: Mapping[str, Any]) -> dict[str, JSON]:
        for session in arguments["sessions"]:
            folder = Path(session["folder"])
            folder.mkdir()
            shutil.copy(path, folder / "optimized.onnx")
            (folder / "shapes.json").write_text(shapes)
            for name in ("contents", "indices"):
                (folder / f"{name}.json").write_text("{}")
        reply: dict[str, JSON] = {"version": "1.31.1", "changed": True, "in_file_order": []}
        return {"sessions": [reply for _ in arguments["sessions"]]}

    return save


def test_the_graph_is_the_one_that_onnxruntime_saves(
    path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"": {"x": ["N", 2], "h": None, "y": ["N", None]}}

    requested = answering(monkeypatch, saving(path, json.dumps(shapes)))
    made = optimized_model(model_at(path, N=5), SessionConfig("basic"))
    assert made.shapes == {"": {"x": ("N", 2), "h": None, "y": ("N", None)}}
    assert (made.graph_optimizer, made.level, made.findings) == ("onnxruntime 1.31.1", "basic", ())
    assert made.is_in_running_order
    assert [node.name for node in made.proto.graph.node] == ["add", "exp"]
    ((name, arguments),) = requested
    folder = arguments["sessions"][0].pop("folder")
    assert name == "save_optimized"
    assert arguments == {
        "model": str(path),
        "sessions": [{"level": "basic", "overrides": {}}],
        "weight_bytes": 8,
        "limit": 10**9,
    }
    assert not Path(folder).exists()
    assert os.listdir(temporary) == []
    optimized_model(model_at(path, N=5), SessionConfig(fixed_dims=True))
    assert requested[1][1]["sessions"][0]["overrides"] == {"N": 5}


def test_one_child_serves_several_sessions(
    path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = answering(monkeypatch, saving(path, "{}"))
    model, off, fixed = model_at(path, N=5), SessionConfig("off"), SessionConfig(fixed_dims=True)
    together = optimized_together(model, [off, EMULATED, fixed])
    assert {config: made.level for config, made in together.items()} == {off: "off", fixed: "all"}
    ((_, arguments),) = requested
    assert [each["overrides"] for each in arguments["sessions"]] == [{}, {"N": 5}]
    assert together[off] == optimized_model(model, off)
    answering(monkeypatch, lambda *_: ChildFault("crash", "SIGSEGV"))
    assert optimized_together(model, [off, fixed]) == optimized_together(model, [EMULATED]) == {}
    assert os.listdir(temporary) == []


def test_a_model_too_large_for_its_own_format_gets_computed_shapes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, saving(path, "{}"))
    made = optimized_model(model_at(path, N=5), SessionConfig())
    assert made.graph_optimizer == "onnxruntime 1.31.1"
    assert made.shapes[""]["h"] == ("N", 2)
    assert [finding.code for finding in made.findings] == ["shapes_at_load"]


@pytest.mark.parametrize("available_bytes", [1000, None])
def test_mapped_weights_do_not_count_against_the_childs_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_bytes: int | None
) -> None:
    text = "agraph (float[N,2] x) => (float[N,2] y) <float[2] w> { [add] y = Add(x, w) }"
    write_model(tmp_path / "net.onnx", text)
    (tmp_path / "absent.weights").write_bytes(bytes(8))
    requested = answering(monkeypatch, lambda *_: ChildFault("missing", "onnxruntime"))
    monkeypatch.setattr(optimization, "available_bytes", lambda: available_bytes)
    optimized_model(model_at(tmp_path / "net.onnx"), SessionConfig("off"))
    ((_, arguments),) = requested
    assert arguments["model"] == str(tmp_path / "net.onnx")
    assert arguments["limit"] == (None if available_bytes is None else 1008)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (ChildFault("missing", "onnxruntime"), "onnxruntime is not installed"),
        (
            ChildFault("crash", "SIGSEGV"),
            "onnxruntime did not optimize the model (crash: SIGSEGV)",
        ),
        (
            ChildFault("timeout", "not finished within 300 s"),
            "onnxruntime did not optimize the model (timeout: not finished within 300 s)",
        ),
        (
            ChildFault("memory", "bad_alloc"),
            "onnxruntime did not optimize the model (memory: bad_alloc)",
        ),
        (
            ChildFault("error", "Fail: [ONNXRuntimeError] : 1 : FAIL : no kernel"),
            "onnxruntime did not optimize the model (error: no kernel)",
        ),
    ],
)
def test_a_failing_child_is_reported_and_the_optimizer_is_emulated(
    path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, fault: ChildFault, reason: str
) -> None:
    answering(monkeypatch, lambda *_: fault)
    model = model_at(path, N=5)
    made = optimized_model(model, SessionConfig("off"))
    text = f"{reason}; onnxmem's emulation of its graph optimizer was used instead"
    assert made.findings == (Finding("emulated_optimizer", text),)
    assert replace(made, findings=()) == optimized_model(model, EMULATED)
    assert os.listdir(temporary) == []


def test_a_copy_that_cannot_be_written_is_reported(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model without a file is first written to one, also in a child."""
    monkeypatch.setattr(optimization, "runnable", lambda *_: ChildFault("error", "no space"))
    requested = answering(monkeypatch, lambda *_: {})
    made = optimized_model(model_at(model_of(BRANCHES)), SessionConfig("off"))
    assert made.graph_optimizer == "onnxmem"
    assert "(error: no space)" in made.findings[0].message
    assert requested == []
    assert os.listdir(temporary) == []


def test_data_outside_the_models_folder_is_not_opened(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_of("agraph (float[N,2] x) => (float[N,2] y) <float[2] w> { y = Add(x, w) }")
    (tmp_path / "inner").mkdir()
    (tmp_path / "secret").write_bytes(bytes(8))
    model.graph.initializer[0].external_data[0].value = "../secret"
    onnx.save(model, tmp_path / "inner" / "net.onnx")
    requested = answering(monkeypatch, lambda *_: {})
    made = optimized_model(model_at(tmp_path / "inner" / "net.onnx"), SessionConfig("off"))
    assert requested == []
    (finding,) = made.findings
    assert finding.code == "emulated_optimizer"
    assert finding.message == (
        "the data of 'w' is outside the model's folder: '../secret'; the model was not loaded; "
        "onnxmem's emulation of its graph optimizer was used instead"
    )
    assert os.listdir(temporary) == []


def test_an_emulated_graph_has_no_warning_and_can_have_fixed_dims(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = answering(monkeypatch, lambda *_: {})
    model = model_at(path, N=5)
    assert optimized_model(model, EMULATED).findings == ()
    fixed = optimized_model(model, replace(EMULATED, fixed_dims=True))
    assert (fixed.shapes[""]["h"], requested) == ((5, 2), [])


# In onnxruntime.

MIXED = """agraph (float[N,7] x, float[?,7] z, float u, bool b, seq(float[2]) q) => (
        float[N,7] y, o, w, n) {
    [if] y = If(b) <
        then_branch = one () => (float[N,7] t) {
            t = If(b) <
                then_branch = two () => (v) { v = Sqrt(x) },
                else_branch = three () => (s) { s = Exp(x) }
            >
        },
        else_branch = four () => (float[N,7] e) { d = Softmax <axis = 0> (x)  e = Abs(d) }
    >
    o = Exp(z)  p = NonZero(x)  w = Neg(p)  n = SequenceLength(q)
}"""


def sessions_saved(reply: Mapping[str, JSON]) -> list[dict[str, JSON]]:
    return cast("list[dict[str, JSON]]", reply["sessions"])


@pytest.mark.measure
def test_shapes_equal_those_of_onnxruntime(tmp_path: Path) -> None:
    """In this process instead of a child, because only the result matters here."""
    pytest.importorskip("onnxruntime")
    from onnxmem.runtimes.onnxruntime.session_graph.saving import save_optimized

    model = model_of(MIXED)
    model.graph.input[2].type.tensor_type.ClearField("shape")
    onnx.save(model, tmp_path / "net.onnx")
    folder = tmp_path / "saved"
    session: Session = {"folder": str(folder), "level": "off", "overrides": {}}
    (text_of,) = sessions_saved(save_optimized(str(tmp_path / "net.onnx"), [session], 0))
    assert text_of["changed"] is True  # its nodes are saved in another order
    inner = {"y/then_branch/t/then_branch", "y/then_branch/t/else_branch"}
    assert isinstance(text_of["in_file_order"], list)
    assert set(text_of["in_file_order"]) == {"y/then_branch", "y/else_branch", *inner}
    shapes = json.loads((folder / "shapes.json").read_text())
    assert shapes == {
        "": {
            "x": ["N", 7],
            "z": [None, 7],
            "u": None,
            "b": [],
            "q": None,
            "y": ["N", 7],
            "o": [None, 7],
            "p": [2, None],
            "w": [2, None],
            "n": [],
        },
        "y/then_branch": {"b": [], "t": ["N", 7]},
        "y/then_branch/t/then_branch": {"v": ["N", 7], "x": ["N", 7]},
        "y/then_branch/t/else_branch": {"s": ["N", 7], "x": ["N", 7]},
        "y/else_branch": {"d": ["N", 7], "e": ["N", 7], "x": ["N", 7]},
    }
    assert not (folder / "own.ort").exists()


@pytest.mark.measure
def test_a_model_too_large_for_its_own_format_has_no_shapes_at_load(
    path: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    from onnxmem.runtimes.onnxruntime.session_graph.saving import save_optimized

    folder = tmp_path / "saved"
    session: Session = {"folder": str(folder), "level": "all", "overrides": {"N": 3}}
    (text_of,) = sessions_saved(save_optimized(str(path), [session], 2 * 10**9))
    assert (text_of["changed"], text_of["in_file_order"]) == (False, [""])
    assert json.loads((folder / "shapes.json").read_text()) == {}


@pytest.mark.measure
@pytest.mark.parametrize("level", ["off", "basic", "extended", "all"])
def test_onnxruntime_runs_in_a_separate_process(path: Path, temporary: Path, level: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    made = optimized_model(model_at(path, N=5), SessionConfig(level, fixed_dims=True))
    assert made.graph_optimizer == f"onnxruntime {onnxruntime.__version__}"
    assert (made.level, made.findings) == (level, ())
    assert made.shapes[""]["h"] == (5, 2)
    found = session_graph(made, {"x": (5, 2)})
    assert [node.op_type for node in found.graph.nodes] == ["Add", "Exp"]
    assert os.listdir(temporary) == []


@pytest.mark.measure
def test_the_emulation_has_the_shapes_at_load_of_onnxruntime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    model = model_of(MIXED)
    onnx.save(model, tmp_path / "net.onnx")
    at = model_at(tmp_path / "net.onnx")
    requested, own = (optimized_model(at, each) for each in (SessionConfig("off"), EMULATED))
    assert requested.graph_optimizer != own.graph_optimizer
    for place, shapes in own.shapes.items():
        theirs = requested.shapes[place]
        assert {name: theirs[name] for name in shapes if name in theirs} == shapes, place


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
def test_absent_weights_are_random_and_a_rejected_model_is_emulated(
    tmp_path: Path, temporary: Path
) -> None:
    pytest.importorskip("onnxruntime")
    text = "agraph (float[N,2] x) => (float[N,3] y) <float[2,3] w> { [m] y = MatMul(x, w) }"
    write_model(tmp_path / "absent.onnx", text)
    made = optimized_model(model_at(tmp_path / "absent.onnx"), SessionConfig())
    assert made.graph_optimizer.startswith("onnxruntime ")
    assert list(made.proto.graph.initializer[0].dims) == [2, 3]
    write_model(tmp_path / "strange.onnx", MYSTERY)
    strange = optimized_model(model_at(tmp_path / "strange.onnx"), SessionConfig("off"))
    assert strange.graph_optimizer == "onnxmem"
    (finding,) = strange.findings
    assert finding.message.startswith(
        f"onnxruntime did not optimize the model (error: Load model from {tmp_path}/strange.onnx "
    )
    assert os.listdir(temporary) == []
