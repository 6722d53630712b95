"""The size of an element type, or of a tensor, from how people write it: ``1000x1000 float32``."""

import re
from dataclasses import dataclass
from math import prod
from typing import Final

from onnxmem.model.graph import DType

_ALIASES: Final = {
    "float": DType.FLOAT32,
    "single": DType.FLOAT32,
    "fp32": DType.FLOAT32,
    "f32": DType.FLOAT32,
    "double": DType.FLOAT64,
    "fp64": DType.FLOAT64,
    "f64": DType.FLOAT64,
    "half": DType.FLOAT16,
    "fp16": DType.FLOAT16,
    "f16": DType.FLOAT16,
    "bf16": DType.BFLOAT16,
    "fp8": DType.FLOAT8E4M3FN,
    "e4m3": DType.FLOAT8E4M3FN,
    "e5m2": DType.FLOAT8E5M2,
    "fp4": DType.FLOAT4E2M1,
    "int": DType.INT32,
    "long": DType.INT64,
    "short": DType.INT16,
    "byte": DType.UINT8,
    **{f"i{bits}": DType(f"int{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"s{bits}": DType(f"int{bits}") for bits in (2, 4, 8, 16, 32, 64)},
    **{f"u{bits}": DType(f"uint{bits}") for bits in (2, 4, 8, 16, 32, 64)},
}
"""Names that frameworks and papers use; ONNX's own are those of ``DType``."""
_TYPE: Final = (
    r"(?:(?:torch|tf|np|numpy|jnp|tensorproto|onnx\.tensorproto)\.|dt_)?(?P<type>[a-z][a-z0-9_]*)"
)
_DIMS: Final = r"[\[(]?(?P<dims>\d+(?:\s*[x\u00d7*,]\s*\d+)*,?)[\])]?"
_FORMS: Final = tuple(
    re.compile(form)
    for form in (rf"{_TYPE}", rf"{_DIMS}\s*[:,]?\s*{_TYPE}", rf"{_TYPE}\s*[:,]?\s*{_DIMS}", _DIMS)
)
_CALL: Final = re.compile(
    r"\b(?P<module>torch|tf|np|numpy|jnp|jax\.numpy|cp|cupy)\.[\w.]{1,40}\((?P<inside>[^a-z]*[\w\s.,=()\[\]'-]*)\)"
)
"""A tensor as a program makes it: ``np.zeros((3, 5), dtype=np.int8)``."""
_KEYWORD: Final = re.compile(r"\b(?:dtype|shape|size)\s*=\s*")
_OTHER_KEYWORD: Final = re.compile(
    r",\s*(?:device|requires_grad|name|layout|order|seed)\s*=\s*[^,]*"
)
_OF_MODULE: Final = dict.fromkeys(("np", "numpy", "cp", "cupy"), DType.FLOAT64)
"""The type of a call that names none, where it is not float32."""
_BY: Final = re.compile(r"(?<=\d) (?:by|times) (?=\d)")
_OF_A_TYPE: Final = re.compile(r".*\b(?:size|bytes?|bits?)\b.* (?P<type>[a-z][a-z0-9_.]*)")
"""A question about a type that has no digit: how many bytes is a double?"""
_NOTATION: Final = re.compile(r"\d\s*[x\u00d7*,]\s*\d|[a-z]\d")
"""What a question must have to be one about a tensor or a type: 3x5, int8."""
_ASKED_SIZE: Final = re.compile(
    r"(?:how (?:large|big|many bytes|much)|what(?: is|'s) the size|(?:the )?size of)\b"
)
_IN_QUESTION: Final = re.compile(r"(?<![\w.])\d{1,9}(?:x\d{1,9}){1,8} [a-z][a-z0-9_.]*")
_MOST_DIMS: Final = 64
_ASKING: Final = frozenset(
    "a activation activations an and are array big bytes cost costs do does dtype each element "
    "elements embedding embeddings filter gib has have hold how image in is it kernel kib large "
    "many mask matrix mb memory mib much need needs of per precision quantized shape size space "
    "table take takes tensor the type use uses weight weights what with".split()
)
"""Words of a question that say nothing of the tensor: how large is a 3x5 int8 tensor?"""


@dataclass(frozen=True, slots=True)
class TensorSize:
    """A tensor, or an element type alone."""

    dtype: DType
    is_assumed: bool
    """Whether the text names no type: float32 is the default of frameworks."""
    shape: tuple[int, ...] | None
    """``None``: a type alone."""

    @property
    def num_elements(self) -> int:
        """The product of the dims; 1 of a type alone."""
        return prod(self.shape or ())

    @property
    def size_bytes(self) -> int | None:
        """Elements below a byte are packed: ``ceil(n x bits / 8)``. ``None``: strings."""
        return self.bytes_in(self.dtype)

    def bytes_in(self, dtype: DType) -> int | None:
        """The bytes of as many elements of another type."""
        return None if dtype.bits is None else -(-self.num_elements * dtype.bits // 8)


def read_tensor(text: str) -> TensorSize | None:
    """Read a type, a shape, or both in either order; ``None`` if the text is something else.

    A question about a shape or a type is read as these, and so is the call that makes a tensor.
    """
    plain = _BY.sub("x", " ".join(text.lower().split())).rstrip("?. ")
    call = _CALL.search(plain)
    if call is not None:
        # NumPy and CuPy make float64 where a call names no type, PyTorch and JAX float32.
        inside = _OTHER_KEYWORD.sub("", _KEYWORD.sub("", call["inside"])).strip("\"' ")
        return _read(inside, _OF_MODULE.get(call["module"], DType.FLOAT32))
    # What is left of a question without its words may be a type or a shape.
    asked = " ".join(word for word in plain.split() if word not in _ASKING)
    of_type = _OF_A_TYPE.fullmatch(plain)
    # A question that goes on after the tensor is of the first one that it names.
    within = _IN_QUESTION.findall(plain) if _ASKED_SIZE.match(plain) else ()
    return (
        _read(plain)
        or (_read(asked) if _NOTATION.search(asked) else None)
        or next(filter(None, map(_read, within)), None)
        or (None if of_type is None or of_type["type"] != asked else _read(asked))
    )


def _read(plain: str, default: DType = DType.FLOAT32) -> TensorSize | None:
    for form in _FORMS:
        match = form.fullmatch(plain)
        if match is None:
            continue
        groups = match.groupdict()
        dtype = _dtype(groups["type"]) if groups.get("type") else default
        dims = re.findall(r"\d+", groups.get("dims") or "")
        # A number alone is not a shape: it may be a size, a batch, or a code.
        if dtype is None or len(dims) > _MOST_DIMS or (form is _FORMS[-1] and len(dims) == 1):
            continue
        shape = tuple(int(dim) for dim in dims) if dims else None
        return TensorSize(dtype, is_assumed=not groups.get("type"), shape=shape)
    return None


def _dtype(name: str) -> DType | None:
    # PyTorch and NumPy write float8_e4m3fn and bool_, and quantized integers with a q.
    plain = name.replace("_", "")
    for each in (plain, plain.removeprefix("q"), plain.removesuffix("s")):
        if each in _ALIASES or each in set(DType):
            return _ALIASES.get(each) or DType(each)
    return None
