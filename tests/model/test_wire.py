"""The scan that leaves payloads behind, held to onnx's own parse and descriptors."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from google.protobuf.message import Message
from hypothesis import example, given, settings
from hypothesis import strategies as st
from model.test_files import refusal
from onnx import TensorProto
from onnx.helper import make_node, make_tensor

from onnxmem.errors import ModelFileError
from onnxmem.measuring.memory import peak_resident_bytes
from onnxmem.model.files import load
from onnxmem.model.wire import without_payloads

PAYLOADS = "float_data int32_data int64_data double_data uint64_data string_data raw_data".split()
TENSOR_HOLDERS = {"TensorProto", "SparseTensorProto", "AttributeProto", "NodeProto", "GraphProto"}
TENSOR_HOLDERS |= {"FunctionProto", "TrainingInfoProto"}
INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (2, 4, 8, 16, 32, 64)] + ["BOOL"]
OTHERS = sorted(set(TensorProto.DataType.keys()) - set(INTEGERS))

TEXT = """<ir_version: 10, opset_import: ["": 21, "own": 1]>
agraph (float[2, 3] x) => (float[2, 3] y) { a = own.f(x)  y = Relu(a) }
<domain: "own", opset_import: ["": 21]> f (x) => (y) { y = Neg(x) }"""


def tensor(name: str, data_type: int, num_bytes: int) -> TensorProto:
    return TensorProto(
        name=name, data_type=data_type, dims=[num_bytes], raw_data=b"\x01" * num_bytes
    )


def model(*initializers: TensorProto, nodes: Sequence[onnx.NodeProto] = ()) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(TEXT)
    proto.graph.initializer.extend(initializers)
    proto.graph.node.extend(nodes)
    return proto


def stripped(proto: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(without_payloads(proto.SerializeToString()))


def all_tensors(message: Message) -> Iterator[TensorProto]:
    """Each tensor of a message, wherever onnx's descriptors allow one."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in [value] if isinstance(value, Message) else value:
                yield from all_tensors(inner)


def cleared(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The oracle: onnx's own parse, its large payload fields cleared by name."""
    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    copy.ClearField("training_info")
    for found in all_tensors(copy):
        limit = 8192 if TensorProto.DataType.Name(found.data_type) in INTEGERS else 512
        if found.ByteSize() > limit:
            for name in PAYLOADS:
                found.ClearField(name)
    return copy


def fill(message: Message, depth: int) -> None:
    """Put a large tensor into every field that can have one."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is None or field.message_type.name not in TENSOR_HOLDERS:
            continue
        place = getattr(message, field.name)
        inner = place.add() if hasattr(place, "add") else place
        if isinstance(inner, TensorProto):
            inner.CopyFrom(tensor("w", TensorProto.FLOAT, 1009))
        elif depth:
            fill(inner, depth - 1)


# What is dropped and what stays


def test_a_tensor_is_found_wherever_onnxs_descriptors_allow_one() -> None:
    proto = onnx.ModelProto()
    fill(proto, depth=7)
    found = stripped(proto)
    assert found == cleared(proto)
    assert len(list(all_tensors(found))) > 50
    assert not any(inner.raw_data for inner in all_tensors(found))


LARGE_DATA = {
    "raw_data": TensorProto(raw_data=bytes(9001), data_type=TensorProto.FLOAT),
    "float_data": make_tensor("w", TensorProto.FLOAT, [2503], np.ones(2503)),
    "int32_data": make_tensor("w", TensorProto.INT32, [9001], np.ones(9001, np.int32)),
    "int64_data": make_tensor("w", TensorProto.INT64, [9001], np.ones(9001, np.int64)),
    "double_data": make_tensor("w", TensorProto.DOUBLE, [1201], np.ones(1201)),
    "uint64_data": make_tensor("w", TensorProto.UINT64, [9001], np.ones(9001, np.uint64)),
    "string_data": TensorProto(data_type=TensorProto.STRING, string_data=[b"weight"] * 199),
}


@pytest.mark.parametrize("field", PAYLOADS)
def test_a_large_payload_is_dropped_and_its_description_stays(field: str) -> None:
    large = LARGE_DATA[field]
    large.name = "w"
    large.doc_string = "not read"
    large.external_data.add(key="location", value="w.bin")
    assert large.HasField(field) if field == "raw_data" else len(getattr(large, field)) > 0
    (found,) = stripped(model(large)).graph.initializer
    assert {name.name for name, _ in found.ListFields()} & set(PAYLOADS) == set()
    large_described = TensorProto()
    large_described.CopyFrom(large)
    large_described.ClearField(field)
    large_described.ClearField("doc_string")
    assert found == large_described


def test_the_seven_payload_fields_are_all_that_onnx_has() -> None:
    names = {field.name for field in TensorProto.DESCRIPTOR.fields}
    assert {name for name in names if name.endswith("_data")} == {*PAYLOADS, "external_data"}


@pytest.mark.parametrize(
    ("names", "num_bytes", "stays"),
    [
        (INTEGERS, 8192 - 64, True),
        (INTEGERS, 8193, False),
        (OTHERS, 512 - 64, True),
        (OTHERS, 513, False),
    ],
    ids=["integers", "large integers", "others", "large others"],
)
def test_small_tensors_and_integers_up_to_8_kib_stay_complete(
    names: list[str], num_bytes: int, *, stays: bool
) -> None:
    for name in names:
        given_tensor = tensor(name, TensorProto.DataType.Value(name), num_bytes)
        (found,) = stripped(model(given_tensor)).graph.initializer
        assert bool(found.raw_data) is stays, name
        assert list(found.dims) == [num_bytes]


def test_a_type_after_the_payload_is_read() -> None:
    payload = TensorProto(raw_data=bytes(1009)).SerializeToString()
    kind = TensorProto(data_type=TensorProto.INT8, dims=[1009]).SerializeToString()
    proto = onnx.ModelProto().SerializeToString() + in_graph(in_field(5, payload + kind))
    found = onnx.ModelProto.FromString(without_payloads(proto))
    assert found == onnx.ModelProto.FromString(proto)


def test_other_large_fields_stay() -> None:
    node = make_node("Constant", [], ["c"], value_floats=[0.5] * 1009, doc_string="d" * 1009)
    proto = model(nodes=[node])
    proto.graph.doc_string = "g" * 1009
    proto.metadata_props.add(key="k", value="v" * 1009)
    found = stripped(proto)
    for documented in (proto.graph, proto.graph.node[-1]):
        documented.ClearField("doc_string")
    assert found == proto


def test_training_info_is_dropped_however_small() -> None:
    proto = model()
    expected = model()
    proto.training_info.add().algorithm.name = "step"
    assert stripped(proto) == expected


sizes = st.sampled_from([0, 1, 400, 470, 500, 520, 8100, 8150, 8200, 20011])
numbers = st.sampled_from([n for n in TensorProto.DataType.values() if n])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(numbers, sizes, st.sampled_from("icbfts")), max_size=8))
def test_any_model_equals_onnxs_parse_without_payloads(
    drawn: list[tuple[int, int, str]],
) -> None:
    proto = model()
    proto.training_info.add().algorithm.initializer.add().CopyFrom(tensor("t", 1, 1009))
    for data_type, num_bytes, place in drawn:
        held = tensor("w", data_type, num_bytes)
        graph = proto.graph
        if place == "i":
            graph.initializer.append(held)
        elif place == "c":
            graph.node.append(make_node("Constant", [], ["c"], value=held))
        elif place == "b":
            body = onnx.GraphProto(name="b", initializer=[held])
            graph.node.append(make_node("If", ["x"], ["z"], then_branch=body, else_branch=body))
        elif place == "f":
            proto.functions[0].node.append(make_node("Constant", [], ["c"], value=held))
        elif place == "t":
            graph.node.append(make_node("F", [], ["c"], domain="own", many=[held, held]))
        else:
            graph.sparse_initializer.add(values=held, indices=tensor("", 7, num_bytes))
    assert stripped(proto) == cleared(proto)


# Bytes that are no whole model


def varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
    return bytes(group | 0x80 for group in groups[:-1]) + bytes(groups[-1:])


def head_of(number: int, num_bytes: int) -> bytes:
    """Tag and length of a length-delimited field."""
    return varint(number << 3 | 2) + varint(num_bytes)


def in_field(number: int, content: bytes) -> bytes:
    return head_of(number, len(content)) + content


def in_graph(content: bytes) -> bytes:
    return in_field(onnx.ModelProto.DESCRIPTOR.fields_by_name["graph"].number, content)


UNSOUND = {
    b"\x08\x0a\x0b": "not an ONNX model: byte 2 is not a field of a ModelProto; "
    "export or download it again",
    b"\x08\x0a\x00\x00": "not an ONNX model: byte 2 is field 0 of a ModelProto; "
    "export or download it again",
    b"\x08" + b"\xff" * 11: "not an ONNX model: the integer at byte 1 is too long; "
    "export or download it again",
    b"\x08\x8a": "truncated: the ModelProto field at byte 2 is 1 byte longer "
    "than the file; copy or download the file again",
    b"\x08\x0a\x3a\x90\x4e": "truncated: the ModelProto field at byte 2 is 10,000 bytes longer "
    "than the file; copy or download the file again",
    b"\x08\x0a\x29\x01": "truncated: the ModelProto field at byte 2 is 7 bytes longer "
    "than the file; copy or download the file again",
    b"\x08\x0a\x2d\x01": "truncated: the ModelProto field at byte 2 is 3 bytes longer "
    "than the file; copy or download the file again",
    b"\x08\x0a\x3a\x02\xff\xff": "not an ONNX model: the bytes do not parse; "
    "export or download it again",
}


@pytest.mark.parametrize(("data", "message"), UNSOUND.items())
def test_an_incomplete_model_is_reported_with_its_position(data: bytes, message: str) -> None:
    assert refusal(data) == message


def test_an_error_inside_a_large_tensor_has_its_kind() -> None:
    unsound = in_graph(in_field(5, bytes(1009)))
    assert refusal(b"\x08\x0a" + unsound) == (
        "not an ONNX model: byte 8 is field 0 of a TensorProto; export or download it again"
    )


WHOLE = model(
    tensor("w", TensorProto.FLOAT, 1009),
    tensor("s", TensorProto.INT64, 16),
    nodes=[make_node("Constant", [], ["c"], value=tensor("", TensorProto.FLOAT, 523))],
).SerializeToString()


def loads_or_is_refused(data: bytes) -> None:
    try:
        load(data)
    except ModelFileError as fault:
        text = str(fault)
        assert text.startswith(("not an ONNX model", "truncated: "))
        assert "\n" not in text


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(WHOLE)))
@example(len(WHOLE))
def test_a_truncated_model_is_rejected_or_loads(size: int) -> None:
    loads_or_is_refused(WHOLE[:size])


@settings(deadline=None, max_examples=150)
@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
def test_a_model_with_a_changed_byte_is_rejected_or_loads(place: int, byte: int) -> None:
    loads_or_is_refused(WHOLE[:place] + bytes([byte]) + WHOLE[place + 1 :])


@settings(deadline=None, max_examples=150)
@given(st.binary(max_size=1009))
def test_random_bytes_are_rejected_or_load(data: bytes) -> None:
    loads_or_is_refused(data)


# Nesting


def nested(levels: int, innermost: bytes) -> bytes:
    """Ifs in Ifs: each level is a node, its attribute and the attribute's graph."""
    graph = innermost
    for _ in range(levels):
        graph = in_field(1, in_field(5, in_field(6, graph)))
    return b"\x08\x0a" + in_graph(graph)


def test_twenty_nested_subgraphs_load() -> None:
    assert load(nested(20, in_field(10, b"d" * 1009))).file_bytes > 1009


def test_messages_nested_over_100_deep_are_rejected() -> None:
    assert refusal(nested(40, in_field(10, b"d" * 1009))) == (
        "messages are nested over 100 deep; no runtime reads such a model"
    )


def test_nesting_within_small_messages_is_rejected_by_the_parser() -> None:
    data = nested(40, b"")
    assert len(data) < 512
    assert refusal(data) == (
        "not an ONNX model: the bytes do not parse; export or download it again"
    )


# Files that no memory holds

LOAD_AND_MEASURE = """
import sys, time
from onnxmem.errors import ModelFileError
from onnxmem.measuring.memory import peak_resident_bytes
from onnxmem.model.files import load
before = peak_resident_bytes()
start = time.perf_counter()
try:
    loaded = load(sys.argv[1])
    print(loaded.file_bytes, *loaded.proto.graph.initializer[0].dims, loaded.proto.ir_version)
except ModelFileError as fault:
    print(fault)
print(time.perf_counter() - start)
print(peak_resident_bytes() - before)
"""


def loaded_apart(file: Path) -> tuple[str, float, float]:
    """The message of loading, its seconds, and the growth of the process's peak in MiB."""
    if peak_resident_bytes() is None:
        pytest.skip("the system does not say")
    command = [sys.executable, "-c", LOAD_AND_MEASURE, str(file)]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    output, seconds, growth_bytes = run.stdout.splitlines()
    return output, float(seconds), int(growth_bytes) / 2**20


def write_with_hole(file: Path, head: bytes, hole_bytes: int, tail: bytes) -> int:
    with file.open("wb") as stream:
        stream.write(head)
        stream.seek(hole_bytes, 1)
        stream.write(tail)
        return stream.tell()


def test_a_3_gib_file_of_weights_loads_fast_and_in_little_memory(tmp_path: Path) -> None:
    weight = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[3 << 30])
    described = weight.SerializeToString() + head_of(9, 3 << 30)
    held = head_of(5, len(described) + (3 << 30)) + described
    rest = onnx.ModelProto(ir_version=10).SerializeToString()
    head = head_of(7, len(held) + (3 << 30)) + held
    num_bytes = write_with_hole(tmp_path / "large.onnx", head, 3 << 30, rest)
    output, seconds, growth_mib = loaded_apart(tmp_path / "large.onnx")
    assert output == f"{num_bytes} {3 << 30} 10"
    assert seconds < 1
    assert growth_mib < 40


def test_a_model_with_over_2_gib_besides_its_weights_is_rejected_unread(tmp_path: Path) -> None:
    head = b"\x08\x0a" + head_of(2, 1 << 31)
    write_with_hole(tmp_path / "text.onnx", head, 1 << 31, in_graph(b""))
    output, seconds, growth_mib = loaded_apart(tmp_path / "text.onnx")
    assert output == refusal(tmp_path / "text.onnx")
    assert output == "the model has over 2 GiB without its weights; no runtime reads such a model"
    assert seconds < 1
    assert growth_mib < 40
