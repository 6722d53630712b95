"""Element types and tensors as people write them, and their sizes."""

import pytest

from onnxmem.cli import main
from onnxmem.decisions.explain.tensors import read_tensor
from onnxmem.model.graph import DType


@pytest.mark.parametrize(
    ("text", "dtype", "shape", "size_bytes"),
    [
        ("1000x1000 float32", DType.FLOAT32, (1000, 1000), 4_000_000),
        ("2x3x256x256", DType.FLOAT32, (2, 3, 256, 256), 1_572_864),
        ("bf16[3,7,11]", DType.BFLOAT16, (3, 7, 11), 462),
        ("torch.float16 (13, 17)", DType.FLOAT16, (13, 17), 442),
        ("(5, 7) double", DType.FLOAT64, (5, 7), 280),
        ("3 \u00d7 5 i8", DType.INT8, (3, 5), 15),
        ("19 int4", DType.INT4, (19,), 10),
        ("5x5 fp4", DType.FLOAT4E2M1, (5, 5), 13),
        ("0x7 float32", DType.FLOAT32, (0, 7), 0),
        ("(23,) uint8", DType.UINT8, (23,), 23),
        ("3x5 string", DType.STRING, (3, 5), None),
        ("TensorProto.FLOAT", DType.FLOAT32, None, 4),
        ("11x13:int4", DType.INT4, (11, 13), 72),
        ("int4:11x13", DType.INT4, (11, 13), 72),
        ("how large is an 11x13 int4 tensor?", DType.INT4, (11, 13), 72),
        ("size of a matrix with shape [7, 5] and dtype float64", DType.FLOAT64, (7, 5), 280),
        ("how many bytes does bf16 take", DType.BFLOAT16, None, 2),
        ("size of double", DType.FLOAT64, None, 8),
        ("how many bytes is a long?", DType.INT64, None, 8),
        ("float8_e4m3fn", DType.FLOAT8E4M3FN, None, 1),
        ("torch.quint8", DType.UINT8, None, 1),
        ("np.bool_", DType.BOOL, None, 1),
        ("13 by 17 half precision matrix", DType.FLOAT16, (13, 17), 442),
        ("13 x 17 matrix of doubles", DType.FLOAT64, (13, 17), 1768),
        ("torch.zeros(13, 17, dtype=torch.float16)", DType.FLOAT16, (13, 17), 442),
        ("how large is torch.empty((13, 17), dtype=torch.int8)?", DType.INT8, (13, 17), 221),
        ("torch.randn(13, 17, device='cuda')", DType.FLOAT32, (13, 17), 884),
        ("np.zeros((13, 17), np.uint8)", DType.UINT8, (13, 17), 221),
        ("np.ones((13, 17))", DType.FLOAT64, (13, 17), 1768),
        ("tf.random.normal([13, 17], dtype=tf.float64)", DType.FLOAT64, (13, 17), 1768),
        ("what does a 13x17 double matrix cost", DType.FLOAT64, (13, 17), 1768),
        ("bytes per fp8 element", DType.FLOAT8E4M3FN, None, 1),
        ("embedding table of 13 x 17 floats", DType.FLOAT32, (13, 17), 884),
        ("torch.Size([13, 17])", DType.FLOAT32, (13, 17), 884),
        (
            "how large is a 13x17 float16 tensor and one bfloat16",
            DType.FLOAT16,
            (13, 17),
            442,
        ),
    ],
)
def test_sizes_are_parsed_from_common_notations(
    text: str, dtype: DType, shape: tuple[int, ...] | None, size_bytes: int | None
) -> None:
    found = read_tensor(text)
    assert found is not None
    assert (found.dtype, found.shape, found.size_bytes) == (dtype, shape, size_bytes)


@pytest.mark.parametrize("dtype", DType)
def test_every_element_type_of_onnx_is_parsed(dtype: DType) -> None:
    found = read_tensor(f"7x11 {dtype}")
    assert found is not None
    assert not found.is_assumed
    assert found.size_bytes == (None if dtype.bits is None else -(-77 * dtype.bits // 8))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        "peak",
        "7x",
        "how much is half",
        "half the size",
        "reduce the size by half",
        "how long does it take",
        "torch.cuda.empty_cache()",
        "np.load('3x5.npy')",
        "why is 7x9 large",
        "7x9 gigafloat",
        "how large is a 7x9 gigafloat tensor and one bfloat16",
        "a kernel failed on a 7x9 float16 tensor and one bfloat16",
        "x" * 1000,
        "3x" * 64 + "3",
    ],
)
def test_other_texts_are_not_tensors(text: str) -> None:
    assert read_tensor(text) is None


def test_the_command_prints_elements_bytes_and_other_types(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "1000x1000 float32"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Tensor                      1000x1000 float32",
        "  elements                  1,000,000",
        "  size                      3.81 MiB         4,000,000 B   per element: 4 B",
        "  in float16                1.91 MiB         2,000,000 B",
        "  in int8                    977 KiB         1,000,000 B",
        "  in int4                    488 KiB           500,000 B",
    ]
    assert main(["explain", "int4"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Element type                int4",
        "  per element               4 bits, packed",
    ]
    assert main(["explain", "string", "--json"]) == 0
    assert '"element_bits": null' in capsys.readouterr().out
