"""Device memory of CUDA and cuDNN beside tensors: ranges with their sources, for no file has it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from onnxmem.model.graph import Graph, Node
from onnxmem.units import sum_known

_MIB: Final = 2**20
_CONVOLUTIONS: Final = frozenset({"Conv", "ConvTranspose", "FusedConv", "NhwcConv", "ConvInteger"})


@dataclass(frozen=True, slots=True)
class Assumed:
    """An assumption in bytes: what figures count, and the range of the sources."""

    low_bytes: int
    size_bytes: int
    """What figures count."""
    high_bytes: int
    source: str

    @classmethod
    def exactly(cls, size_bytes: int) -> "Assumed":
        """A term whose size the user specified."""
        return cls(size_bytes, size_bytes, size_bytes, "as given")

    @classmethod
    def total(cls, terms: Sequence["Assumed"]) -> "Assumed":
        """The sum of several terms; the source is that of the largest."""
        largest = max(terms, key=lambda term: term.size_bytes)
        return cls(
            sum(term.low_bytes for term in terms),
            sum(term.size_bytes for term in terms),
            sum(term.high_bytes for term in terms),
            f"{len(terms):,} of them; each: {largest.source}" if len(terms) > 1 else largest.source,
        )

    @property
    def assumed_bytes(self) -> int:
        """The size that figures count."""
        return self.size_bytes

    def to_dict(self) -> dict[str, object]:
        """The range as a JSON object."""
        return {
            "low_bytes": self.low_bytes,
            "assumed_bytes": self.assumed_bytes,
            "high_bytes": self.high_bytes,
            "source": self.source,
        }

    @property
    def more_bytes(self) -> int:
        """How many bytes more it may take than the figures count."""
        return self.high_bytes - self.size_bytes


TORCH_CONTEXT: Final = Assumed(
    426 * _MIB,
    512 * _MIB,
    922 * _MIB,
    "PyTorch 2.10, CUDA 13.0: 426 MiB; 2.1, CUDA 12.1: 0.47 GiB; 1.13, CUDA 11.7: 0.90 GiB",
)
"""The CUDA context and loaded kernels in a process of PyTorch 1.13 or later."""

OLD_TORCH_CONTEXT: Final = Assumed(
    1085 * _MIB,
    1823 * _MIB,
    1966 * _MIB,
    "PyTorch 1.10 to 1.12, CUDA 11.3: 1.78 GiB; messages of 1.x on cards of 23.70 GiB: 1.06 to "
    "1.92 GiB",
)
"""The same before CUDA_MODULE_LOADING=LAZY, which loads kernels at their first call."""

ORT_CONTEXT: Final = Assumed(
    173 * _MIB,
    500 * _MIB,
    800 * _MIB,
    "onnxruntime 1.14 on a K80: 173 MB, on a T4: 376 MB; users report 300 to 800 MB",
)
"""The same in a process of onnxruntime without PyTorch."""

_WORKSPACE_BYTES: Final = 32 * _MIB
"""onnxruntime's bound on the search up to 1.13, and a request that users report in full."""
_WORKSPACE_SOURCE: Final = (
    "cuDNN decides: 0 (implicit GEMM) up to copies of input, output and filter in another layout"
)
NO_TERM: Final = Assumed(0, 0, 0, "does not apply")


def context(usual: Assumed, specified_bytes: int | None) -> Assumed:
    """The context: as specified, or else the usual one."""
    return usual if specified_bytes is None else Assumed.exactly(specified_bytes)


def workspace(graph: Graph, specified_bytes: int | None) -> Assumed:
    """CuDNN's workspace for the convolutions of a graph; one convolution runs at a time."""
    # An implicit GEMM needs no workspace; an algorithm that transforms all operands to another
    # layout first, for tensor cores, needs a copy of each (cuDNN developer guide, "Tensor
    # Transformations"). cuDNN chooses on the device.
    return workspace_of(max(_operand_bytes(graph), default=0), specified_bytes)


def workspace_of(high_bytes: int, specified_bytes: int | None) -> Assumed:
    """The workspace, where ``high_bytes`` are the operands of the largest convolution; 0: none."""
    if specified_bytes is not None:
        return Assumed.exactly(specified_bytes)
    if not high_bytes:
        return NO_TERM
    return Assumed(0, min(_WORKSPACE_BYTES, high_bytes), high_bytes, _WORKSPACE_SOURCE)


def _operand_bytes(graph: Graph) -> Iterator[int]:
    """Bytes of each convolution's input, filter and output together; 0 where none is known."""
    for node in graph.nodes:
        if node.op_type in _CONVOLUTIONS:
            yield sum_known(_sizes(graph, node)) or 0
        for _, inner in node.subgraphs:
            yield from _operand_bytes(inner)


def _sizes(graph: Graph, node: Node) -> Iterator[int | None]:
    for name in (*node.inputs[:2], *node.outputs[:1]):
        tensor = graph.tensors.get(name)
        yield None if tensor is None else tensor.size_bytes
