"""Recurrent layers: the gates of every step, the state, and the sequence turned round.

X: [S, B, I], R: [D, gates * H, H]: S steps, B samples, I inputs, D directions, H hidden. A
direction that runs backwards turns its input and its output round.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxmem.runtimes.onnxruntime.kernel_use import Use
from onnxmem.runtimes.onnxruntime.scratch.rule import Rule

_FLOAT = 4
_INT = 4


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

    def turned(self) -> tuple[int, int]:
        """Input and output of a direction that runs backwards."""
        return (self.steps * self.inputs, self.states)


def _layer(use: Use, hidden: int) -> _Layer:
    steps, batch, inputs = use.dims(0)
    direction = use.text("direction", "forward").lower()
    return _Layer(
        directions=2 if direction == "bidirectional" else 1,
        num_reverse=int(direction != "forward"),
        steps=steps * batch,
        batch=batch,
        inputs=inputs,
        hidden=hidden,
    )


def _absent_outputs(use: Use, layer: _Layer, *places: int) -> Iterator[int]:
    """The last states that are not outputs are computed all the same."""
    for place in places:
        if not use.has_output(place):
            yield _FLOAT * layer.directions * layer.state


def _lengths(use: Use, layer: _Layer) -> Iterator[int]:
    """The length of each sequence, where the node does not say it."""
    if not use.has(4):
        yield _INT * layer.batch


def _lstm_directions(use: Use, layer: _Layer) -> Iterator[int]:
    """Each direction's buffers."""
    for place in range(layer.directions):
        yield from _lengths(use, layer)
        sizes = [layer.hidden] * 2 + [layer.state] * 3 + [4 * layer.states]
        sizes += [layer.hidden] * 4 if use.has(3) else []
        sizes += layer.turned() if place >= layer.directions - layer.num_reverse else ()
        yield from (_FLOAT * size for size in sizes)


def _lstm(use: Use) -> tuple[int, ...]:
    """W: [D, 4H, I]: gates of all steps; three states, two zero vectors, and a copy of B's sums."""
    layer = _layer(use, use.dims(2)[2])
    return (*_absent_outputs(use, layer, 1, 2), *_lstm_directions(use, layer))


def _quantised_lstm(use: Use) -> tuple[int, ...]:
    """W: [D, I, 4H] in 8 bits: as the LSTM, and what is quantised before each product, a byte
    each, and the product's sums.
    """
    layer = _layer(use, use.dims(2)[1])
    quantised = max(layer.steps * layer.inputs, layer.state)
    sums = _INT * 4 * layer.state
    return (
        *_absent_outputs(use, layer, 1, 2),
        *_lstm_directions(use, layer),
        *(quantised, sums) * layer.directions,
    )


def _gru_direction(use: Use, layer: _Layer) -> Iterator[int]:
    is_split = use.integer("linear_before_reset", 0) != 0
    yield from (layer.state,) * 2
    if use.has(3):
        yield from (layer.state,) * (4 if is_split else 3)
    if is_split:
        yield layer.state
    yield 3 * layer.states


def _gru(use: Use) -> tuple[int, ...]:
    """W: [D, 3H, I]: gates of all steps, two states, and the biases for every sample."""
    layer = _layer(use, use.dims(2)[2])
    blocks = list(_absent_outputs(use, layer, 1))
    for place in range(layer.directions):
        blocks += _lengths(use, layer)
        sizes = list(_gru_direction(use, layer))
        sizes += layer.turned() if place >= layer.directions - layer.num_reverse else ()
        blocks += (_FLOAT * size for size in sizes)
    return tuple(blocks)


def _rnn(use: Use) -> tuple[int, ...]:
    """W: [D, H, I]: the inputs' product of one direction, and Y where it is no output."""
    layer = _layer(use, use.dims(2)[2])
    y = () if use.has_output(0) else (_FLOAT * layer.directions * layer.states,)
    return (*y, _FLOAT * layer.states)


RULES = (
    Rule("LSTM", "", _lstm, "core/providers/cpu/rnn/uni_directional_lstm.cc: AllocateBuffers"),
    Rule("GRU", "", _gru, "core/providers/cpu/rnn/deep_cpu_gru.cc: AllocateBuffers"),
    Rule("RNN", "", _rnn, "core/providers/cpu/rnn/rnn.cc: Compute"),
    Rule(
        "DynamicQuantizeLSTM",
        "com.microsoft",
        _quantised_lstm,
        "core/providers/cpu/rnn/uni_directional_lstm.cc: AllocateQuantizeBuffers",
    ),
)
