"""A model with a subgraph in every block: onnx's whole inference would take the square of it."""

import onnx
import onnx.parser
import pytest

import onnxmem
from onnxmem.model.shapes import inference

BLOCK = """
    m{i} = ReduceMax <keepdims: int = 0> (x{i})
    c{i} = Less (m{i}, one)
    x{j} = If (c{i}) <
        then_branch = then () => (float[N, 7] a{i}) {{ a{i} = Relu (x{i}) }},
        else_branch = other () => (float[N, 7] b{i}) {{ b{i} = Tanh (x{i}) }}
    >"""


def model(num_blocks: int) -> bytes:
    blocks = "".join(BLOCK.format(i=i, j=i + 1) for i in range(num_blocks))
    text = (
        '<ir_version: 9, opset_import: ["" : 20]> '
        f"agraph (float[N, 7] x0) => (float[N, 7] x{num_blocks}) <float one = {{1.0}}> {{{blocks}}}"
    )
    return onnx.parser.parse_model(text).SerializeToString()


def test_the_walk_over_the_nodes_finds_what_onnx_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    source = model(11)
    whole = onnxmem.analyze(source, batch=3).to_dict(layers=True)
    monkeypatch.setattr(inference, "_MOST_COPIED_TYPES", 0)
    calls: list[object] = []
    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", calls.append)
    assert onnxmem.analyze(source, batch=3).to_dict(layers=True) == whole
    assert not calls
    # Each block's result, maximum and condition; the branch writes the result.
    assert onnxmem.analyze(source, batch=3).activations.naive_bytes == 11 * (3 * 7 * 4 + 4 + 1)
