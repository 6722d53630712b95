"""The modules that nodes come from, the blocks that a network repeats, and what those keep."""

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from graphs import model_of
from paths import DATA
from runtimes.torch.training_steps import are_equal, happenings, recipe_of

from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile, load
from onnxmem.model.graph import Graph, Node
from onnxmem.model.module_paths import modules_of, paths_of
from onnxmem.ops.registry import lookup
from onnxmem.runtimes.torch.blocks import blocks_named, repeated_blocks
from onnxmem.runtimes.torch.checkpointing import schedules
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.network import network_of
from onnxmem.runtimes.torch.precision import precision_named
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.runtimes.torch.tape import tape_of
from onnxmem.settings import TrainingConfig

SCOPES = "pkg.torch.onnx.name_scopes"


def node(name: str, scopes: str | None = None) -> Node:
    metadata = {} if scopes is None else {SCOPES: scopes}
    return Node(name, "Relu", "", ("x",), ("y",), lookup("Relu"), metadata=metadata)


@pytest.mark.parametrize(
    ("name", "scopes", "modules"),
    [
        ("/encoder/layer.3/attention/MatMul", None, ("encoder", "layer.3", "attention")),
        ("MatMul_7", None, ()),
        ("model/encoder/layer_3/MatMul", None, ("model", "encoder", "layer_3")),
        ("node_relu", "['', 'body', 'body.0', 'relu_3']", ("body", "body.0")),
        ("/body/node", "['relu']", ()),
        ("node", "[", ()),
        ("/".join(["deep"] * 1000), None, ("deep",) * 32),
    ],
)
def test_modules_come_from_metadata_else_from_the_name(
    name: str, scopes: str | None, modules: tuple[str, ...]
) -> None:
    assert modules_of(node(name, scopes)) == modules


def test_an_inserted_node_is_in_the_modules_of_the_next_one() -> None:
    scopes = ("['', 'a', 'relu']", None, "['', 'b', 'relu']", "['', 'relu']", None)
    nodes = [node(f"node_{index}", each) for index, each in enumerate(scopes)]
    assert paths_of(nodes) == [("a",), ("b",), ("b",), (), ()]
    assert paths_of([node("/a/Relu"), node("Relu_7"), node("/b/Relu")]) == [("a",), ("b",), ("b",)]


def graph_named(text: str, names: Mapping[str, str]) -> Graph:
    """A graph in ONNX text, its nodes named by what they write."""
    model = model_of(text)
    for each in model.graph.node:
        each.name = names.get(each.output[0], "")
    return build(prepare(ModelFile("<text>", model, 0)), Request()).graph


ROWS = 3
WIDTH, INNER = 5, 7


def layers(count: int, path: str = "/layers/layers.{}/{}") -> tuple[list[str], dict[str, str]]:
    """Nodes of residual blocks, each of two matmuls with a ReLU, and their names."""
    lines: list[str] = []
    names: dict[str, str] = {}
    for n in range(count):
        before = f"s{n - 1}" if n else "x0"
        lines += [
            f"a{n} = MatMul({before}, v{n})",
            f"r{n} = Relu(a{n})",
            f"b{n} = MatMul(r{n}, w{n})",
            f"s{n} = Add({before}, b{n})",
        ]
        parts = {"a": "up/MatMul", "r": "Relu", "b": "down/MatMul", "s": "Add"}
        names |= {f"{key}{n}": path.format(n, part) for key, part in parts.items()}
    return lines, names


def network_of_layers(lines: list[str], count: int) -> str:
    weights = [f"float[{WIDTH},{INNER}] v{n}, float[{INNER},{WIDTH}] w{n}" for n in range(count)]
    body = "  ".join(lines)
    return f"""
        agraph (float[{ROWS},2] x) => (float[{ROWS},11] y)
        <float[2,{WIDTH}] first, float[{WIDTH},11] last, {", ".join(weights)}> {{
            x0 = MatMul(x, first)  {body}  y = MatMul(s{count - 1}, last)
        }}"""


def chain(count: int = 3, path: str = "/layers/layers.{}/{}") -> Graph:
    lines, names = layers(count, path)
    return graph_named(network_of_layers(lines, count), names)


def names_of(graph: Graph) -> list[str]:
    return [block.name for block in repeated_blocks(graph)]


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("/layers/layers.{}/{}", "layers.0"),
        ("/encoder/layer.{}/output/{}", "encoder.layer.0"),
        ("/features/block{}/{}", "features.block0"),
        ("model/layer_{}/{}", "model.layer_0"),
    ],
)
def test_repeated_modules_are_blocks_by_their_path(path: str, first: str) -> None:
    found = repeated_blocks(chain(path=path))
    assert found[0].name == first
    assert [len(block.nodes) for block in found] == [4, 4, 4]


def test_metadata_names_the_same_blocks() -> None:
    lines, _ = layers(3)
    model = model_of(network_of_layers(lines, 3))
    for each in model.graph.node:
        number = each.output[0][-1]
        scopes = f"['', 'layers.{number}', 'n']" if each.output[0][0] in "arbs" else "['', 'n']"
        each.metadata_props.add(key=SCOPES, value=scopes)
    graph = build(prepare(ModelFile("<text>", model, 0)), Request()).graph
    assert names_of(graph) == ["layers.0", "layers.1", "layers.2"]


def test_a_stage_of_blocks_is_no_block() -> None:
    lines, names = layers(4)
    for n in range(4):
        names |= {f"{k}{n}": f"/stage{n // 2}/stage{n // 2}.{n % 2}/{k}/Op" for k in "arbs"}
    graph = graph_named(network_of_layers(lines, 4), names)
    assert names_of(graph) == ["stage0.0", "stage0.1", "stage1.0", "stage1.1"]


@pytest.mark.parametrize(
    ("operator", "others"), [("Relu", ["middle"]), ("Exp", [])], ids=["the same", "others"]
)
def test_a_module_without_siblings_is_a_block_if_it_has_the_operators_of_one(
    operator: str, others: list[str]
) -> None:
    """The outermost of the modules that consist of nothing else."""
    lines, names = layers(4)
    lines = [line.replace("r2 = Relu", f"r2 = {operator}") for line in lines]
    names |= {f"{k}2": f"/middle/middle.0/{k}/Op" for k in "arbs"}
    names |= {f"{k}3": "" for k in "arbs"}
    graph = graph_named(network_of_layers(lines, 4), names)
    assert names_of(graph) == ["layers.0", "layers.1", *others]


def test_experts_side_by_side_are_no_blocks() -> None:
    lines, names = layers(3)
    lines = [line.replace("s0,", "x0,").replace("s1,", "x0,") for line in lines]
    lines.append("t = Sum(s0, s1)  ")
    graph = graph_named(network_of_layers(lines, 3).replace("MatMul(s2", "MatMul(t"), names)
    assert names_of(graph) == []


def test_single_layers_of_a_list_are_no_blocks() -> None:
    assert names_of(chain(path="/layers/layers.0/{}.{}")) == []
    assert names_of(chain(1)) == []


def named_by_weights(path: str, lines: list[str], count: int) -> Graph:
    """Unnamed nodes; the weights of each block have names of a list of modules."""
    model = model_of(network_of_layers(lines, count))
    parts = {"v": "up", "w": "down"}
    names = {f"{key}{n}": path.format(n, parts[key]) for n in range(count) for key in parts}
    for weight in model.graph.initializer:
        weight.name = names.get(weight.name, weight.name)
    for each in model.graph.node:
        each.name = ""
        each.input[:] = [names.get(name, name) for name in each.input]
    return build(prepare(ModelFile("<text>", model, 0)), Request()).graph


@pytest.mark.parametrize(
    ("path", "first"),
    [
        ("h.{}.{}.weight", "h.0"),
        ("model.decoder.layer_{}.{}.weight", "model.decoder.layer_0"),
    ],
)
def test_names_of_weights_show_the_same_blocks(path: str, first: str) -> None:
    """The residual sum reads no weight; it belongs to the block in which it ends."""
    lines, _ = layers(3)
    graph = named_by_weights(path, lines, 3)
    found = repeated_blocks(graph)
    assert found[0].name == first
    assert [[node.outputs[0] for node in block.nodes] for block in found] == [
        [f"{key}{n}" for key in "arbs"] for n in range(3)
    ]
    assert blocks_named(graph, first) == found[:1]
    steps = [trained(each, "blocks") for each in (graph, chain())]
    assert happenings(steps[0], Phase.FORWARD) == happenings(steps[1], Phase.FORWARD)
    assert steps[0].peak_bytes == steps[1].peak_bytes


def test_a_weight_that_blocks_share_shows_none_of_them() -> None:
    """An exporter makes one initializer of equal ones."""
    lines, _ = layers(3)
    graph = named_by_weights("h.{}.{}.weight", [each.replace("v2", "v1") for each in lines], 3)
    assert names_of(graph) == ["h.0", "h.1", "h.2"]
    graph = named_by_weights("h.0.{1}{0}.weight", lines, 3)
    assert names_of(graph) == []


def test_modules_are_chosen_by_a_pattern() -> None:
    graph = chain()
    assert [each.name for each in blocks_named(graph, "layers.[02]")] == ["layers.0", "layers.2"]
    assert [each.name for each in blocks_named(graph, "*")] == ["layers"]
    assert blocks_named(graph, "blocks.*") == ()


def trained(graph: Graph, checkpoint: str) -> TrainingMemory:
    return training_memory(graph, recipe_of(checkpoint=checkpoint))


def test_a_block_keeps_its_input_and_stops_when_all_is_saved() -> None:
    """The matmul at its end saves ``r`` before it runs, so neither it nor the sum runs again."""
    found = trained(chain(2), "blocks")
    kept = 4 * ROWS * WIDTH
    saved = 4 * ROWS * INNER
    assert [(each.names, each.kept_bytes) for each in found.checkpointed] == [
        (("layers.0",), kept),
        (("layers.1",), kept),
    ]
    assert [each.recomputed_bytes for each in found.checkpointed] == [saved, saved]
    assert happenings(found, Phase.FORWARD) == [
        *("+x0", "+a0", "+r0", "-a0", "+b0", "-r0", "+s0", "-b0"),
        *("+a1", "+r1", "-a1", "+b1", "-r1", "+s1", "-b1", "+y"),
    ]
    again = [each for each in happenings(found) if each[1:] in {"a0", "r0", "b0"}]
    assert again == ["+a0", "+r0", "-a0", "-r0"]


def test_what_lies_between_blocks_saves_as_ever() -> None:
    lines, names = layers(2)
    between = [*lines[:4], "m = Exp(s0)", *(each.replace("s0,", "m,") for each in lines[4:])]
    graph = graph_named(network_of_layers(between, 2), names)
    found = trained(graph, "blocks")
    assert "+m" not in happenings(found)
    assert [each.names for each in found.checkpointed] == [("layers.0",), ("layers.1",)]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_node_of_the_network_between_those_of_a_block_runs_before_it(place: int) -> None:
    lines, names = layers(2)
    mask = ["k = Exp(x0)"]
    lines = [*lines[:place], *mask, *lines[place:]]
    lines[-1] = "t = Add(s0, b1)  s1 = Add(t, k)"
    graph = graph_named(network_of_layers(lines, 2), names)
    found = trained(graph, "blocks")
    assert happenings(found, Phase.FORWARD)[:3] == ["+x0", "+k", "+a0"]
    assert "+k" not in happenings(found)


def test_blocks_are_grouped() -> None:
    graph = chain(5)
    assert [each.names for each in trained(graph, "every=2").checkpointed] == [
        ("layers.0", "layers.1"),
        ("layers.2", "layers.3"),
        ("layers.4",),
    ]
    assert [len(each.names) for each in trained(graph, "sqrt").checkpointed] == [3, 2]
    assert are_equal(trained(graph, "every=1"), trained(graph, "blocks"))
    selective = ", matmul and conv outputs saved"
    network = network_of(graph, recipe_of())
    precision = precision_named("fp32")
    tape = tape_of(network.graph, network.parameters, precision, network.graph.outputs)
    named = [each.name for each in schedules(tape, "best")]
    assert [name for name in named if not name.endswith(", of units")] == [
        *("none", "sqrt", "blocks", f"blocks{selective}", "every=2", f"every=2{selective}"),
        *("every=4", f"every=4{selective}"),
    ]


def test_a_file_without_modules_has_a_warning() -> None:
    lines, _ = layers(4)
    graph = graph_named(network_of_layers(lines, 4), {})
    found = trained(graph, "blocks")
    assert found.findings[0].code == "no_repeated_modules"
    assert are_equal(found, trained(graph, "every=1"))
    missed = trained(chain(), "blocks=decoder.*")
    assert missed.findings[0].code == "checkpoint_matches_nothing"
    assert are_equal(missed, trained(chain(), "none"))


@pytest.mark.parametrize(
    ("num_around", "names"),
    [
        (1, ["layers.0.parts.0", "layers.0.parts.1", "layers.1.parts.2", "layers.1.parts.3"]),
        (9, ["layers.0", "layers.1"]),
    ],
)
def test_a_layer_with_more_around_its_parts_than_in_them_is_a_block(
    num_around: int, names: list[str]
) -> None:
    """Each layer has two parts of two matmuls and a ReLU, and maps behind them."""
    lines, scopes = layers(4)
    named = {key: f"/layers.{int(key[1]) // 2}/parts.{key[1]}/{key}" for key in scopes}
    behind: list[str] = []
    for n in (1, 3):
        maps = [f"s{n}", *(f"m{n}{index}" for index in range(num_around))]
        behind.append(maps[-1])
        named |= {name: f"/layers.{n // 2}/{name}" for name in maps[1:]}
        index = lines.index(next(line for line in lines if line.startswith(f"s{n} =")))
        lines[index] += "".join(f"  {now} = Exp({last})" for last, now in pairwise(maps))
    text = network_of_layers(lines, 4).replace("MatMul(s1,", f"MatMul({behind[0]},")
    graph = graph_named(text.replace("MatMul(s3,", f"MatMul({behind[1]},"), named)
    assert names_of(graph) == names


def test_numbered_attributes_of_a_layer_are_parts_of_it() -> None:
    lines, names = layers(4)
    of_list, of_attributes = (
        {key: f"/layers.{int(key[1]) // 2}/{part}{key[1]}/{key}" for key in names}
        for part in ("parts.", "conv")
    )
    text = network_of_layers(lines, 4)
    parts = ["layers.0.parts.0", "layers.0.parts.1", "layers.1.parts.2", "layers.1.parts.3"]
    assert names_of(graph_named(text, of_list)) == parts
    assert names_of(graph_named(text, of_attributes)) == ["layers.0", "layers.1"]


def test_products_of_parameters_make_no_block() -> None:
    """Each layer multiplies two weights, and the input by their product, as a norm of them does."""
    count = 3
    lines: list[str] = []
    names: dict[str, str] = {}
    for n in range(count):
        lines += [
            f"a{n} = MatMul(v{n}, w{n})  ",
            f"s{n} = MatMul({f's{n - 1}' if n else 'x0'}, a{n})  ",
        ]
        names |= {f"{key}{n}": f"/layers.{n}/{key}" for key in "as"}
    text = network_of_layers(lines, count)
    assert names_of(graph_named(text, names)) == []
    of_inputs = text
    for n in range(count):
        before = f"s{n - 1}" if n else "x0"
        of_inputs = of_inputs.replace(f"MatMul(v{n}, w{n})", f"MatMul({before}, v{n})")
        of_inputs = of_inputs.replace(f"MatMul({before}, a{n})", f"MatMul(a{n}, w{n})")
    assert names_of(graph_named(of_inputs, names)) == [f"layers.{n}" for n in range(count)]


TRUTH: list[dict[str, Any]] = json.loads((DATA / "training_blocks" / "truth.json").read_text())[
    "rows"
]
EXPORTERS = ("train", "legacy", "dynamo")
"""Of `training_new` the legacy exporter's files alone name modules; in the others names of weights
show the blocks."""
MERGED = frozenset({"convnext.dynamo.onnx", "llama_like.dynamo.onnx"})
"""Equal weights of untrained blocks are one initializer: few of a block's own are left, or none."""
CASES = [
    pytest.param(row, path, id=path.stem)
    for row in TRUTH
    for exporter in EXPORTERS
    if (path := DATA / row["folder"] / f"{row['model']}.{exporter}.onnx").exists()
    if path.name not in MERGED
]
LARGEST_ERROR = {"dilated.legacy.onnx": 0.06, "swin_like.dynamo.onnx": 0.03}
"""The pieces of a chunk, which variables hold, are slices like any other in the first file. In the
second, what rearranges patches between blocks has no weight, and counts as the end of a block."""


def measured(row: dict[str, Any], path: Path) -> TrainingMemory:
    graph = build(prepare(load(str(path))), Request(batch=row["batch"])).graph
    return training_memory(
        graph, TrainingConfig(optimizer="adam", loss=row["loss"], checkpoint="blocks")
    )


@pytest.mark.parametrize(("row", "path"), CASES)
def test_steps_with_checkpointed_blocks_are_as_measured(row: dict[str, Any], path: Path) -> None:
    found = measured(row, path)
    assert [each.names for each in found.checkpointed] == [(name,) for name in row["blocks"]]
    error = LARGEST_ERROR.get(path.name, 0.02)
    for term in ("saved_activation", "backward_peak", "peak"):
        assert getattr(found, f"{term}_bytes") == pytest.approx(row[f"{term}_bytes"], rel=error)
