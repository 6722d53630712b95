"""Which layers had a BatchNormalization: by the names that tools give, and of exported files."""

import gzip
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from graphs import model_of
from paths import DATA, MODELS

import onnxmem
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.folded import folded_layers, has_own_bias

# What distinguishes a layer with a folded BatchNormalization from one with a bias.


NET = """
    agraph (float[2,3,11,11] x) => (float y)
    <float[7,3,3,3] w, float[7] b, float[13,7,3,3] v, float[13] c {more}> {{
        h = {layer}(x, w, b)
        a = Relu(h)
        n = {norm}
        o = Conv(n, v, c)
        y = Relu(o)
    }}"""


PLAIN = {"w": "stem.weight", "b": "stem.bias", "v": "head.weight", "c": "head.bias"}


UNTOLD = {"w": "v1", "b": "v2", "v": "head.weight", "c": "head.bias"}


def graph_of_net(
    names: Mapping[str, str],
    *,
    layer: str = "Conv",
    norm: str = "Identity(a)",
    more: str = "",
    nodes: Mapping[int, str] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> Graph:
    """Two convolutions, the first of them `h`; `pkg.` metadata is that node's."""
    text = NET.format(layer=layer, norm=norm, more=more)
    if layer == "ConvTranspose":
        text = text.replace("float[7,3,3,3] w", "float[3,7,3,3] w")
    model = model_of(text)
    for weight in model.graph.initializer:
        weight.name = names.get(weight.name, weight.name)
    for index, node in enumerate(model.graph.node):
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        node.name = (nodes or {}).get(index, "")
    for key, value in (metadata or {}).items():
        owner = model.graph.node[0] if key.startswith("pkg.") else model
        owner.metadata_props.add(key=key, value=value)
    return build(prepare(ModelFile("<text>", model, 0)), Request()).graph


def found(graph: Graph) -> tuple[list[str], list[str]]:
    """The outputs of the layers that are certain, and of those that are possible."""
    layers = folded_layers(graph)
    return (
        [node.outputs[0] for node in layers.certain],
        [node.outputs[0] for node in layers.possible],
    )


@pytest.mark.parametrize(
    "names",
    [
        {"w": "onnx::Conv_66", "b": "onnx::Conv_67"},
        {"w": "stem/onnx::Conv_66", "b": "stem/onnx::Conv_67"},
        {"h": "65", "w": "66", "b": "67"},
        {"w": "stem.weight", "b": "stem.weight_bias"},
        {"h": "getitem", "w": "stem.weight", "b": "stem.bias"},
        {"h": "stem/getitem_12", "w": "stem.weight", "b": "stem.bias"},
        {"h": "_native_batch_norm_legit_no_training_3"},
        {"h": "batch_norm_1"},
        {"w": "ConvBnFusion_W_stem.weight", "b": "ConvBnFusion_BN_B_bn.bias"},
        {"w": "m/Conv2D_weights_fused_bn:0", "b": "m/Conv2D_bias_fused_bn:0"},
        {"w": "m/kernel", "b": "m/Conv2D_bn_offset"},
        {"w": "conv2d_W_new", "b": "conv2d_B_new"},
        {"h": "/bn1/BatchNormalization_output_0"},
        {"h": "model/bn/FusedBatchNormV3:0"},
        {"h": "resnetv17_batchnorm0_fwd"},
        {"h": "m/re_lu/Relu;m/bn/FusedBatchNormV3;m/conv2d/Conv2D"},
    ],
)
def test_names_of_each_tool_that_folds(names: dict[str, str]) -> None:
    graph = graph_of_net({**PLAIN, **names})
    assert found(graph) == ([names.get("h", "h")], [])


@pytest.mark.parametrize(
    "names",
    [
        PLAIN,
        {"w": "onnx::Conv_66"},
        {"w": "stem.parametrizations.weight.original1"},
        {"h": "getitems"},
        {"a": "getitem"},
        {"w": "427", "b": "stem.bias"},
        {"w": "conv1_w_0", "b": "conv1_b_0"},
        {"w": "conv2d/kernel:0", "b": "conv2d/bias:0"},
        {"w": "const_fold_opt__664", "b": "m/conv2d/BiasAdd/ReadVariableOp"},
        {"h": "/batchnorm_block/conv/Conv_output_0"},
    ],
)
def test_a_bias_with_the_layers_name_is_its_own(names: dict[str, str]) -> None:
    """A weight that is computed (weight_norm) has a tool's name, and its bias has not."""
    assert found(graph_of_net({**PLAIN, **names})) == ([], [])


@pytest.mark.parametrize(
    "names",
    [
        {"w": "v353", "b": "v354"},
        {"w": "427", "b": "428", "h": "785"},
        {"w": "onnx::Conv_66", "b": "onnx::Conv_68"},
        {"w": "66", "b": "onnx::Conv_67"},
        {"w": "_v_81", "b": "_v_82"},
        {"w": "stem.weight", "b": "norm.bias"},
    ],
)
def test_uninformative_names_leave_a_layer_open(names: dict[str, str]) -> None:
    assert found(graph_of_net({**PLAIN, **names})) == ([], ["h" if "h" not in names else "785"])


def test_consecutive_numbers_of_all_weights_are_those_of_a_frozen_module() -> None:
    """The script exporter numbers the output of a fold too: a number is missing before each."""
    names = {"w": "onnx::Conv_5", "b": "onnx::Conv_6", "v": "onnx::Conv_7", "c": "onnx::Conv_8"}
    certain, _ = found(graph_of_net(names))
    assert certain == ["h"]
    certain, _ = found(graph_of_net({**names, "w": "onnx::Conv_4", "b": "onnx::Conv_5"}))
    assert certain == ["h", "o"]


def test_the_script_exporter_folds_only_into_conv() -> None:
    names = {"w": "onnx::Conv_66", "b": "onnx::Conv_67"}
    assert found(graph_of_net({**PLAIN, **names}, layer="ConvTranspose")) == ([], ["h"])


TARGET = (
    "%{0} : [num_users=1] = call_function[target=torch.ops.aten.{1}](args = (%x,), kwargs = {{}})"
)


def test_metadata_names_the_source_of_a_layer() -> None:
    """Whatever its names are."""
    for target, certain in (
        ("_native_batch_norm_legit_no_training.default", ["h"]),
        ("batch_norm.default", ["h"]),
        ("conv2d.default", []),
    ):
        text = TARGET.format("batch_norm", target)
        assert found(graph_of_net(UNTOLD, metadata={"pkg.torch.onnx.fx_node": text})) == (
            certain,
            [],
        )
    rules = {"pkg.onnxscript.rewriter.rule_name": "RemoveOptionalBias, FuseBatchNormIntoConv"}
    assert found(graph_of_net(PLAIN, metadata=rules)) == (["h"], [])


def test_a_folded_linear_layer_is_recognized_by_its_output() -> None:
    text = """
        agraph (float[2,3] x) => (float[2,5] y) <float[3,7] w, float[7,5] v, float[5] c> {
            getitem = Gemm(x, w)
            a = Relu(getitem)
            y = Gemm(a, v, c)
        }"""
    graph = build(prepare(ModelFile("<text>", model_of(text), 0)), Request()).graph
    assert found(graph) == (["getitem"], [])


def test_onnxsim_lists_what_it_removed() -> None:
    names = {**PLAIN, "w": "_v_81", "b": "_v_82"}
    removed = {"onnxsim.removed_nodes": "Identity (i), BatchNormalization (bn1)"}
    assert found(graph_of_net(names, metadata=removed)) == (["h"], [])
    other = {"onnxsim.removed_nodes": "Identity (BatchNormalization)"}
    assert found(graph_of_net(names, metadata=other)) == ([], ["h"])


def test_ultralytics_fuses_its_blocks_before_the_export() -> None:
    names = {**PLAIN, "w": "model.0.conv.weight", "b": "model.0.conv.bias"}
    assert found(graph_of_net(names, metadata={"author": "Ultralytics"})) == (["h"], [])
    assert found(graph_of_net(names)) == ([], [])


def test_a_module_missing_before_the_activation_leaves_it_open() -> None:
    """Fused in Python: names stay, and the Identity that replaces the normalization is no node."""
    for layer, activation in (
        ("/model.0/conv/Conv", "/model.0/act/Relu"),
        ("/features/features.0/Conv", "/features/features.2/Relu"),
    ):
        graph = graph_of_net(PLAIN, nodes={0: layer, 1: activation})
        assert found(graph) == ([], ["h"])
    for activation in ("/features/features.1/Relu", "/features/features.3/Relu", "/other.2/Relu"):
        graph = graph_of_net(PLAIN, nodes={0: "/features/features.0/Conv", 1: activation})
        assert found(graph) == ([], [])


def test_unread_statistics_belong_to_layers_of_their_size() -> None:
    """Where they are as many; else it is open which layers they were of."""
    one = ", float[7] bn.running_mean, float[7] bn.running_var"
    assert found(graph_of_net(PLAIN, more=_quoted(one))) == (["h"], [])
    two = one + ", float[7] other.running_mean"
    assert found(graph_of_net(PLAIN, more=_quoted(two))) == ([], ["h"])
    assert found(graph_of_net(PLAIN, more=", float[5] running_mean")) == ([], [])


def _quoted(text: str) -> str:
    return text.replace("bn.running", "bn_running").replace("other.running", "other_running")


@pytest.mark.parametrize(
    ("norm", "more"),
    [
        ("InstanceNormalization(a, s, t)", ", float[7] s, float[7] t"),
        ("LayerNormalization(a, s, t)", ", float[9] s, float[9] t"),
    ],
)
def test_a_network_with_another_normalization_has_no_second(norm: str, more: str) -> None:
    assert found(graph_of_net(UNTOLD)) == ([], ["h"])
    assert found(graph_of_net(UNTOLD, norm=norm, more=more)) == ([], [])


def test_a_normalization_after_a_convolution_shows_that_nothing_was_folded() -> None:
    text = """
        agraph (float[2,3,11,11] x) => (float y)
        <float[7,3,3,3] v1, float[7] v2, float[7,7,3,3] w, float[7] s> {
            h = Conv(x, v1, v2)
            a = Relu(h)
            o = Conv(a, w)
            y = BatchNormalization(o, s, s, s, s)
        }"""
    graph = build(prepare(ModelFile("<text>", model_of(text), 0)), Request()).graph
    assert found(graph) == ([], [])


def test_layers_with_computed_weights_and_patch_embeddings_had_none() -> None:
    computed = NET.format(layer="Conv", norm="Identity(a)", more="").replace(
        "h = Conv(x, w, b)", "u = Neg(w)  h = Conv(x, u, b)"
    )
    computed = computed.replace("Conv(n, v, c)", "Conv(n, v)")
    graph = build(prepare(ModelFile("<text>", model_of(computed), 0)), Request()).graph
    assert found(graph) == ([], [])
    patches = """
        agraph (float[2,3,4,4] x) => (float y) <float[7,3,2,2] v1, float[7] v2> {
            h = Conv <strides = [2, 2]> (x, v1, v2)
            y = Flatten(h)
        }"""
    graph = build(prepare(ModelFile("<text>", model_of(patches), 0)), Request()).graph
    assert found(graph) == ([], [])


def test_if_some_layers_show_a_fold_the_others_are_plain() -> None:
    """The tool that folds names each layer anew that it folds into."""
    names = {"w": "v1", "b": "v2", "v": "onnx::Conv_66", "c": "onnx::Conv_67"}
    assert found(graph_of_net(names)) == (["o"], [])


def test_a_folded_layer_has_its_own_bias_still() -> None:
    layers = graph_of_net({**PLAIN, "c": "head.weight_bias"}).nodes
    assert has_own_bias(layers[0])
    assert not has_own_bias(layers[3])


# Files as users export them, beside the training files of the same networks.


FOLDED = DATA / "training_folded"


TABLE: dict[str, Any] = json.loads((FOLDED / "table.json").read_text())


ROWS: list[dict[str, Any]] = [row for row in TABLE["rows"] if "file" in row]


MOST_PERCENT = 1


MERGED = {"dla.dynamo.onnx.gz": 1.2}


"""The exporter's CommonSubexpressionEliminationPass merges two equal poolings: no file shows
that training runs both. In percent."""


@cache
def trained(file: str, *, assume_batchnorm: bool | None = None) -> onnxmem.Analysis:
    data = gzip.decompress((FOLDED / file).read_bytes())
    batch, recipe = (
        TABLE["versions"]["batch"],
        onnxmem.TrainingConfig(assume_batchnorm=assume_batchnorm),
    )
    return onnxmem.analyze(data, batch=batch, train=True, recipe=recipe)


def rows(*, has_batchnorm: bool) -> list[Any]:
    found = (row for row in ROWS if row["has_batchnorm"] is has_batchnorm)
    return [pytest.param(row, id=row["file"].removesuffix(".onnx.gz")) for row in found]


@pytest.mark.parametrize("row", rows(has_batchnorm=True))
def test_a_default_export_trains_as_its_training_file(row: dict[str, Any]) -> None:
    """Every normalization is in the file or put back, and nothing is open."""
    found = trained(row["file"])
    assert found.training is not None
    percent = 100 * abs(found.training.peak_bytes / row["training_file_peak_bytes"] - 1)
    assert percent <= MERGED.get(row["file"], MOST_PERCENT)
    retained = [node for node in found.graph.nodes if node.op_type == "BatchNormalization"]
    assert len(found.training.batchnorms.put_back) + len(retained) == row["num_batchnorms"]
    assert found.training_range is None


@pytest.mark.parametrize("row", rows(has_batchnorm=False))
def test_a_network_without_batchnorm_is_not_changed(row: dict[str, Any]) -> None:
    found = trained(row["file"])
    assert found.training is not None
    without = trained(row["file"], assume_batchnorm=False).training
    assert without is not None
    assert found.training.peak_bytes == without.peak_bytes
    assert found.training_range is None
    codes = {finding.code for finding in found.findings}
    assert not codes & {"batchnorm_put_back", "batchnorm_unknown", "folded_batchnorm"}


def test_both_exporters_wrote_networks_of_both_kinds() -> None:
    kinds = [(row["exporter"], row["has_batchnorm"], row["is_held_out"]) for row in ROWS]
    for exporter in ("script", "dynamo"):
        for has_batchnorm in (True, False):
            for is_held_out in (True, False):
                assert kinds.count((exporter, has_batchnorm, is_held_out)) >= 4


@pytest.mark.parametrize("name", ["resnet50", "mobilenet_v2", "densenet121"])
def test_a_shipped_model_trains_as_its_training_file(name: str) -> None:
    default, training = (
        onnxmem.analyze(MODELS / f"{name}{kind}.onnx", batch=16, train=True).training
        for kind in ("", ".train")
    )
    assert default is not None
    assert training is not None
    assert default.peak_bytes == training.peak_bytes
