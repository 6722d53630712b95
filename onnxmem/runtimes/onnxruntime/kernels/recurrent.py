"""Recurrent layers: the gates of all steps, the states, and reversed sequences.

X: [S, B, I], R: [D, gates * H, H]: S steps, B samples, I inputs, D directions, H hidden units. A
reverse direction reverses its input and its output.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernels.kernel import (
    FLOAT_BYTES,
    Kernel,
    KernelCall,
    Packed,
    Scratch,
)
from onnxmem.runtimes.onnxruntime.kernels.mlas import packed_8_bit_bytes, packed_floats_bytes

_INT = 4
"""Bytes of a 32-bit integer."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The sizes of one layer, in elements."""

    directions: int
    num_reverse: int
    steps: int
    """S * B."""
    batch: int
    inputs: int
    hidden: int

    @property
    def state(self) -> int:
        """B * H."""
        return self.batch * self.hidden

    @property
    def states(self) -> int:
        """S * B * H."""
        return self.steps * self.hidden

    def reversed_sizes(self) -> tuple[int, int]:
        """Elements of the reversed input and of the reversed output."""
        return (self.steps * self.inputs, self.states)


def _layer(call: KernelCall, hidden: int) -> _Layer:
    steps, batch, inputs = call.dims(0)
    direction = call.text("direction", "forward").lower()
    return _Layer(
        directions=2 if direction == "bidirectional" else 1,
        num_reverse=int(direction != "forward"),
        steps=steps * batch,
        batch=batch,
        inputs=inputs,
        hidden=hidden,
    )


def _lstm(call: KernelCall) -> tuple[int, ...]:
    """W: [D, 4H, I]: gates of all steps, three states, two zero vectors, and the summed biases."""
    layer = _layer(call, call.dims(2)[2])
    return (*_absent_outputs(call, layer, 1, 2), *_lstm_directions(call, layer))


def _quantized_lstm(call: KernelCall) -> tuple[int, ...]:
    """W: [D, I, 4H] in 8 bits: like the LSTM, and per direction the quantized input of a product
    and the sums of the product.
    """
    layer = _layer(call, call.dims(2)[1])
    # AllocateQuantizeBuffers: X is quantized once for all steps, then H before each of them, in one
    # buffer that fits the larger of both. The sums are needed for H only.
    quantized = max(layer.steps * layer.inputs, layer.state)
    sums = _INT * 4 * layer.state
    return (
        *_absent_outputs(call, layer, 1, 2),
        *_lstm_directions(call, layer, (quantized, sums)),
    )


def _lstm_directions(
    call: KernelCall, layer: _Layer, quantized: tuple[int, ...] = ()
) -> Iterator[int]:
    """The buffers of each direction; at the end those of its computation."""
    for index in range(layer.directions):
        # ``UniDirectionalLstm<T>::AllocateBuffers``, in its sequence: the zero states of one sample
        # (hidden0_, internal_memory_prev_), the states of all samples (hidden, cell, clipped cell),
        # and output_iofc_: one product computes the gates of all steps from X before the first
        # step. The four sums of input and recurrent bias follow.
        sizes = [layer.hidden] * 2 + [layer.state] * 3 + [4 * layer.states]
        sizes += [layer.hidden] * 4 if call.has(3) else []
        sizes += layer.reversed_sizes() if index >= layer.directions - layer.num_reverse else ()
        yield from (FLOAT_BYTES * size for size in sizes)
        yield from (*_lengths(call, layer), *quantized)


def _gru(call: KernelCall) -> Scratch:
    """W: [D, 3H, I]: gates of all steps, two states, and the biases repeated for every sample.

    The second direction allocates when the first one has computed, unlike in an LSTM
    (``DeepCpuGruOp::ComputeImpl``).
    """
    layer = _layer(call, call.dims(2)[2])
    before = [*filter(None, (*_absent_outputs(call, layer, 1), *_gru_direction(call, layer, 0)))]
    if layer.directions == 1:
        return Scratch(tuple(before))
    after = filter(None, _gru_direction(call, layer, 1))
    return Scratch((*before, *after), num_before_half=len(before))


def _gru_direction(call: KernelCall, layer: _Layer, index: int) -> Iterator[int]:
    is_split = call.integer("linear_before_reset", 0) != 0
    sizes = [layer.state] * 2
    if call.has(3):
        # With ``linear_before_reset`` the reset gate multiplies the recurrent part of the hidden
        # gate with its bias, so that Wbh and Rbh stay apart; else their sum is enough.
        sizes += [layer.state] * (4 if is_split else 3)
    sizes += [layer.state] * is_split
    sizes.append(3 * layer.states)
    sizes += layer.reversed_sizes() if index >= layer.directions - layer.num_reverse else ()
    yield from (FLOAT_BYTES * size for size in sizes)
    yield from _lengths(call, layer)


def _rnn(call: KernelCall) -> tuple[int, ...]:
    """W: [D, H, I]: the product with the inputs of one direction, and Y if it is not an output."""
    layer = _layer(call, call.dims(2)[2])
    y = () if call.has_output(0) else (FLOAT_BYTES * layer.directions * layer.states,)
    return (*y, FLOAT_BYTES * layer.states)


def _absent_outputs(call: KernelCall, layer: _Layer, *indices: int) -> Iterator[int]:
    """The last states that are not outputs, which the kernel computes nevertheless."""
    for index in indices:
        if not call.has_output(index):
            yield FLOAT_BYTES * layer.directions * layer.state


def _lengths(call: KernelCall, layer: _Layer) -> Iterator[int]:
    """The length of each sequence, if they are not an input."""
    if not call.has(4):
        yield _INT * layer.batch


def _packed_floats(call: KernelCall) -> Iterator[Packed]:
    """W: [D, gates * H, I], R: [D, gates * H, H]: a matrix per direction."""
    for index in (1, 2):
        if call.is_constant(index):
            directions, width, depth = call.dims(index)
            yield Packed(index, directions * packed_floats_bytes(depth, width))


def _packed_gates(call: KernelCall) -> Iterator[Packed]:
    """W and R of a GRU; in R, the update and reset gates are separate from the hidden gate."""
    if call.is_constant(1):
        directions, width, depth = call.dims(1)
        yield Packed(1, directions * packed_floats_bytes(depth, width))
    if call.is_constant(2):
        directions, width, depth = call.dims(2)
        # The hidden gate's product waits for the reset gate; update and reset gate need one
        # product. Both parts are padded to panels (pre_packed_recurrent_ZR_,
        # pre_packed_recurrent_H_).
        parts = packed_floats_bytes(depth, 2 * width // 3) + packed_floats_bytes(depth, width // 3)
        yield Packed(2, directions * parts)


def _packed_integers(call: KernelCall) -> Iterator[Packed]:
    """W: [D, I, 4H], R: [D, H, 4H]: a matrix per direction."""
    for index in (1, 2):
        if call.is_constant(index):
            directions, depth, width = call.dims(index)
            is_signed = call.type(index) == "int8"
            matrix_bytes = packed_8_bit_bytes(depth, width, is_signed=is_signed)
            yield Packed(index, directions * matrix_bytes)


KERNELS = (
    Kernel(
        "LSTM",
        "core/providers/cpu/rnn/uni_directional_lstm.cc: AllocateBuffers; "
        "deep_cpu_lstm.cc: PrePack",
        _lstm,
        _packed_floats,
    ),
    Kernel(
        "GRU",
        "core/providers/cpu/rnn/deep_cpu_gru.cc: AllocateBuffers, PrePack",
        _gru,
        _packed_gates,
    ),
    Kernel("RNN", "core/providers/cpu/rnn/rnn.cc: Compute", _rnn),
    Kernel(
        "com.microsoft.DynamicQuantizeLSTM",
        "core/providers/cpu/rnn/uni_directional_lstm.cc: AllocateQuantizeBuffers; "
        "contrib_ops/cpu/quantization/dynamic_quantize_lstm.cc: PrePack",
        _quantized_lstm,
        _packed_integers,
    ),
)
