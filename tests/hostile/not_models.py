"""What is no model, or no longer a whole one."""

import gzip
import io
import json
import pickle
import random
import tarfile
import zipfile
from collections.abc import Callable
from typing import Final

from graphs import model_of

from hostile.hostile_file import EITHER, HostileFile, files_of

SOUND: Final = """agraph (float[N,3,8,8] x) => (y)
    <float[5,3,3,3] w, float[5] b, int64[2] s = {2, -1}> {
    [conv] c = Conv(x, w, b)  [relu] r = Relu(c)  [flat] y = Reshape(r, s) }"""


def whole() -> bytes:
    """Serialize a valid model with inline weights."""
    model = model_of(SOUND)
    for weight in model.graph.initializer[:2]:
        del weight.external_data[:]
        weight.ClearField("data_location")
        weight.raw_data = bytes(4 * 135 if len(weight.dims) > 1 else 20)
    return model.SerializeToString()


def cut(numerator: int) -> Callable[[], bytes]:
    """Cut the sound model at a sixteenth of its bytes."""
    return lambda: whole()[: len(whole()) * numerator // 16]


def flipped(seed: int) -> Callable[[], bytes]:
    """Flip four bits of the sound model."""

    def make() -> bytes:
        draw = random.Random(seed)  # noqa: S311 - any fixed draw will do
        data = bytearray(whole())
        for _ in range(4):
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        return bytes(data)

    return make


def noise(seed: int) -> Callable[[], bytes]:
    """Make random bytes."""
    return lambda: random.Random(seed).randbytes(4096)  # noqa: S311


def tarball() -> bytes:
    """Compress a model."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("model.onnx")
        member.size = len(whole())
        archive.addfile(member, io.BytesIO(whole()))
    return buffer.getvalue()


def zipped() -> bytes:
    """Compress a pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", Runs.pickled())
    return buffer.getvalue()


class Runs:
    """An object whose pickle prints to stdout when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return print, ("unpickled",)

    @staticmethod
    def pickled(protocol: int = 4) -> bytes:
        """Pickle one of these."""
        return pickle.dumps(Runs(), protocol=protocol)


def nested_messages(depth: int) -> bytes:
    """Nest graphs in attributes of nodes, with valid lengths."""
    content = b""
    for _ in range(depth):
        attribute = _field(6, content)
        content = _field(1, _field(5, attribute))
    return _field(7, content)


def _field(number: int, content: bytes) -> bytes:
    length, rest = bytearray(), len(content)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | 2]) + bytes(length) + bytes([rest]) + content


FILES: Final[tuple[HostileFile, ...]] = (
    *files_of("emptiness", {
        "empty": b"",
        "one zero": b"\0",
        "zeros": bytes(4096),
        "unknown fields only": b"\x9a\x3f\x03abc\xa2\x3f\x01x",
        "no graph": b"\x08\x0a\x12\x04test",
        "graph without anything": b"\x08\x0a\x3a\x00",
        "graph of a name alone": b"\x08\x0a\x3a\x03\x12\x01g",
    }, "model_file"),
    *files_of("truncated", {f"{n} sixteenths": cut(n) for n in range(1, 16, 2)}, "model_file"),
    *files_of("random", {str(seed): noise(seed) for seed in range(8)}, "model_file"),
    *files_of("bitflip", {str(seed): flipped(seed) for seed in range(24)}, EITHER),
    *files_of("other format", {
        "html": b"<!DOCTYPE html><html><script>alert(1)</script>",
        "lfs": b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 102\n",
        "zip": zipped,
        "pickle 2": lambda: Runs.pickled(2),
        "pickle 5": lambda: Runs.pickled(5),
        "pickle 0": lambda: Runs.pickled(0),
        "gguf": b"GGUF\x03\0\0\0" + bytes(64),
        "ort": b"\x18\0\0\0ORTM" + bytes(64),
        "tflite": b"\x1c\0\0\0TFL3" + bytes(64),
        "gzip": lambda: gzip.compress(whole()),
        "tar": tarball,
        "text": b"ir_version: 10\ngraph {}\n",
        "json": json.dumps({"irVersion": 10, "graph": {}}).encode(),
        "utf-16": "graph".encode("utf-16"),
        "safetensors": b"\x40\0\0\0\0\0\0\0" + b'{"w": {"dtype": "F32"}}' + bytes(64),
        "png": b"\x89PNG\r\n\x1a\n" + bytes(64),
        "elf": b"\x7fELF\x02\x01" + bytes(64),
    }, "model_file"),
    *files_of("wire", {
        "endless integer": b"\x08" + b"\xff" * 40,
        "length beyond the end": b"\x3a\xff\xff\xff\xff\x07abc",
        "length of 2^63": b"\x3a" + b"\xff" * 8 + b"\x7f" + b"abc",
        "field 0": b"\x02\x01a",
        "group": b"\x3b\x0a\x01a\x3c",
        "wire type 7": b"\x3f",
        "end in a tag": b"\x08\x0a\x3a",
        "101 deep": lambda: nested_messages(101),
        "5000 deep": lambda: nested_messages(5_000),
    }, "model_file"),
)  # fmt: skip
