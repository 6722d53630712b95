"""The statistics of nodes against the file that onnxruntime itself writes."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from export.small_exports import analysis_of, exported
from graphs import model_of
from models_on_disk import MYSTERY
from paths import MODELS

import onnxmem
from onnxmem.children.running import ChildFault, ChildLimits
from onnxmem.export.node_stats import murmur3_x86_128, node_key
from onnxmem.runtimes.onnxruntime.session_files import on_disk, runnable

HEAD = "#name,input_sizes,initializers_sizes,total_dynamic_sizes,total_temp_allocations"
LEVELS = {"ort-basic": 1, "ort-all": 99}
LIMITS = ChildLimits(300.0, None)
Stats = dict[str, tuple[int, ...]]


def parsed(text: str) -> Stats:
    head, *lines = text.splitlines()
    assert head == HEAD
    split = [line.rsplit(",", 4) for line in lines]
    return {key: tuple(map(int, figures)) for key, *figures in split}


def complete(analysis: onnxmem.Analysis, folder: Path) -> Path:
    """The model with random weights if its own are absent."""
    file, bound = on_disk(analysis.request.source, folder), analysis.request.results.bound
    model = runnable(file, bound, folder, LIMITS)
    assert not isinstance(model, ChildFault)
    return model.path


def collected(analysis: onnxmem.Analysis, path: Path, level: int, folder: Path) -> Stats:
    """The statistics that onnxruntime writes after an inference on ones."""
    ort = pytest.importorskip("onnxruntime")
    numpy = pytest.importorskip("numpy")
    target = folder / "stats.csv"
    options = ort.SessionOptions()
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(target))
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    types = {"tensor(float)": "float32", "tensor(int64)": "int64", "tensor(bool)": "bool"}
    feeds = {
        given.name: numpy.ones(analysis.graph.tensors[given.name].shape, types[given.type])
        for given in session.get_inputs()
    }
    session.run(None, feeds)
    del session  # writes the file
    return parsed(target.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("data", "seed", "lanes"),
    [
        # Those that are not trivial are as mmh3 5.3 of PyPI computes them.
        (b"", 0, (0, 0, 0, 0)),
        (b"hello", 0, (0x2B2444A0, 0xDB91DEF7, 0x9ADB31B6, 0x9ADB31B6)),
        (
            b"a name of more than two blocks, and its seed",
            3735928559,
            (0x0DF6388D, 0x79C6E121, 0x2ED265FD, 0x0A0B7EB1),
        ),
    ],
)
def test_the_hash_is_murmur3(data: bytes, seed: int, lanes: tuple[int, ...]) -> None:
    assert murmur3_x86_128(data, seed) == lanes


def test_a_key_is_the_name_and_a_hash_of_the_tensors() -> None:
    # As onnxruntime 1.31.1 wrote it.
    node = onnx.NodeProto(op_type="MatMul", input=["x", "w"], output=["a"])
    assert node_key(node, "") == "MatMul_18309055926384131946"
    assert node_key(node, "product") == "product_18309055926384131946"


TEXTS = {
    "chain": """g (float[1,3] x) => (float[1,3] y)
        <float[3,3] w = {1,2,3,4,5,6,7,8,9}, float[3] b = {1,2,3}> {
        a = MatMul(x, w) c = Relu(a) d = Softmax(c) e = Add(d, b) y = Add(e, x) }""",
    "long names and empty operands": """g (float[1,3] an_input_with_a_name_of_many_blocks) =>
        (float[1,3] y) <float low = {0.5}> {
        [a_node_with_a_name_of_more_than_sixteen_letters]
        a = Clip(an_input_with_a_name_of_many_blocks, "", low)
        y = Exp(a) }""",
    "fork": """g (float[3] x, bool c) => (float[3] y) {
        s = Sqrt(x)
        z = If(c) < then_branch = t () => (float[3] a) { q = Exp(s) a = Add(q, s) },
                    else_branch = e () => (float[3] b) { [other] b = Exp(s) }>
        y = Add(z, s) }""",
}


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("graph", LEVELS)
@pytest.mark.parametrize("name", TEXTS)
def test_a_small_model_has_the_statistics_of_a_session(
    name: str, graph: str, tmp_path: Path
) -> None:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + TEXTS[name])
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    analysis = for_cpu(onnxmem.analyze(path), graph)
    found = parsed(exported(analysis, "ort-node-stats"))
    truth = collected(analysis, path, LEVELS[graph], tmp_path)
    # A branch that did not run is in ours alone.
    assert {key: found.get(key) for key in truth} == truth


def for_cpu(analysis: onnxmem.Analysis, graph: str) -> onnxmem.Analysis:
    """The same analysis for a session on the CPU, without its other figures."""
    question = analysis.request
    settings = replace(question.settings, runtimes=("ort-cpu",), graph=graph)
    return replace(analysis, request=replace(question, settings=settings))


@pytest.mark.measure
def test_onnxruntime_reads_the_file(tmp_path: Path) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]>\n' + TEXTS["chain"])
    onnx.save(model, tmp_path / "m.onnx")
    text = exported(onnxmem.analyze(model, asks_onnxruntime=False), "ort-node-stats")
    (tmp_path / "good.csv").write_text(text, encoding="utf-8")
    (tmp_path / "bad.csv").write_text(f"{HEAD}\nMatMul_1,1,x,3,4\n", encoding="utf-8")

    def session_for(name: str) -> object:
        options = ort.SessionOptions()
        key = "session.resource_cuda_partitioning_settings"
        options.add_session_config_entry(key, f"4000,{name}")
        options.log_severity_level = 4
        return ort.InferenceSession(tmp_path / "m.onnx", options, ["CPUExecutionProvider"])

    assert session_for("good.csv")
    with pytest.raises(Exception, match="initialization"):
        session_for("bad.csv")


@pytest.mark.measure
@pytest.mark.slow
@pytest.mark.parametrize("graph", LEVELS)
@pytest.mark.parametrize(
    "name", ["mlp", "alexnet", "mobilenet_v2", "resnet50", "gpt2", "bert_base", "mobilenet_v2.int8"]
)
def test_a_model_has_the_statistics_of_onnxruntime(name: str, graph: str, tmp_path: Path) -> None:
    analysis = for_cpu(onnxmem.analyze(MODELS / f"{name}.onnx"), graph)
    found = parsed(exported(analysis, "ort-node-stats"))
    path = complete(analysis, tmp_path)
    assert found == collected(analysis, path, LEVELS[graph], tmp_path)


def test_on_cuda_weights_are_inputs_and_kernels_have_no_weights() -> None:
    text = "g (float[1,3] x) => (float[1,5] y) <float[3,5] w> { [product] y = MatMul(x, w) }"
    found = parsed(exported(analysis_of(text, asks_onnxruntime=False), "ort-node-stats"))
    assert list(found.values()) == [((3 + 15) * 4, 0, 256, 0)]
    packed = analysis_of(text, asks_onnxruntime=False, runtimes=("ort-cpu",))
    assert list(parsed(exported(packed, "ort-node-stats")).values()) == [(3 * 4, 0, 256, 0)]


def test_lines_with_an_unknown_size_or_an_unreadable_name_are_omitted() -> None:
    found = parsed(exported(analysis_of(MYSTERY, asks_onnxruntime=False), "ort-node-stats"))
    assert [key.partition("_")[0] for key in found] == ["product"]
    model = model_of("g (float[3] x) => (float[3] y) { [a] h = Exp(x) [b] y = Exp(h) }")
    model.graph.node[0].name = "a,b\nc"
    analysis = onnxmem.analyze(model, asks_onnxruntime=False)
    found = parsed(exported(analysis, "ort-node-stats"))
    assert [key.partition("_")[0] for key in found] == ["b"]
