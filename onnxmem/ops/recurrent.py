"""Recurrent layers: at every time step, the input and the hidden state are multiplied by a matrix.

T time steps, B samples, D directions, H hidden, I inputs. Sequences shorter than T are counted in
full. An activation is 1 FLOP; the two biases of a gate count as one addition.
"""

from math import prod

from onnxmem.ops.formulas import dims, if_input, multiply_add, times
from onnxmem.ops.spec import Call, Dims, Formula, OpSpec, Saved

_RANK = 3


def recurrent_macs(gates: int) -> Formula:
    """X: [T, B, I], W: [D, gates * H, I], R: [D, gates * H, H]: T * B * D * gates * H * (I + H).

    The layout of X and the transposed W and R of the quantized LSTM change nothing.
    """

    def formula(call: Call) -> int | None:
        x, w, r = (dims(call.input_at(index), _RANK) for index in range(_RANK))
        if x is None or w is None or r is None or _hidden(r, gates) is None:
            return None
        if w[0] != r[0] or x[2] not in w[1:] or max(r[1:]) not in w[1:]:
            return None
        return x[0] * x[1] * (prod(w) + prod(r))

    return formula


def per_state(count: int, gates: int) -> Formula:
    """``count`` for each hidden value of each step: T * B * D * H of them."""
    return lambda call: times(count, _num_states(call, gates))


def _num_states(call: Call, gates: int) -> int | None:
    x, r = dims(call.input_at(0), _RANK), dims(call.input_at(2), _RANK)
    hidden = None if r is None else _hidden(r, gates)
    return None if x is None or r is None or hidden is None else x[0] * x[1] * r[0] * hidden


def _hidden(r: Dims, gates: int) -> int | None:
    """H of R: [D, gates * H, H], or of its transpose."""
    hidden = min(r[1:])
    return hidden if max(r[1:]) == gates * hidden else None


def _reserve_bytes(per_step: int, gates: int) -> Formula:
    """Bytes of ``per_step`` hidden vectors a step, and of the states themselves where Y, which
    else holds them, is left out.
    """

    def formula(call: Call) -> int | None:
        x = call.input_at(0)
        if x is None or x.bits is None:
            return None
        vectors = per_step if call.output_at(0) is not None else per_step + 1
        bits = times(vectors * x.bits, _num_states(call, gates))
        return None if bits is None else -(-bits // 8)

    return formula


def recurrent_flops(gates: int, per_hidden: int) -> Formula:
    """Multiply-adds, then ``per_hidden`` for each hidden value, and a bias for each gate."""
    return multiply_add(
        recurrent_macs(gates),
        per_state(per_hidden, gates),
        if_input(3, per_state(gates, gates)),
    )


def _recurrent(op_type: str, gates: int, per_hidden: int, reserve: int) -> OpSpec:
    lstm = op_type == "LSTM"
    cell = ("initial_c", "P") if lstm else ()
    return OpSpec(
        op_type=op_type,
        inputs=("X", "W", "R", "B", "sequence_lens", "initial_h", *cell),
        outputs=("Y", "Y_h", *(("Y_c",) if lstm else ())),
        parameters=("W", "R", "B", *(("P",) if lstm else ())),
        # With G as of a step's gates: dW = dG' @ X, dR = dG' @ Y of the step before,
        # dX = dG @ W, and the state's gradient goes on as dG @ R
        saved=(
            Saved("X", if_grad="W"),
            Saved("W", if_grad="X"),
            Saved("R"),
            Saved("Y"),
            Saved("initial_h"),
            *(Saved(name) for name in cell),
        ),
        saved_extra_bytes=_reserve_bytes(reserve, gates),
        macs=recurrent_macs(gates),
        flops=recurrent_flops(gates, per_hidden),
        source="torch derivatives.yaml: _cudnn_rnn; reserve as in cuDNN's equations",
    )


LSTM_FLOPS = 9
"""Four gates and tanh(c): 5 activations; c = f * c + i * g, h = o * tanh(c): 4."""

OPS = (
    _recurrent("LSTM", gates=4, per_hidden=LSTM_FLOPS, reserve=6),  # gates, c, tanh(c)
    # 3 activations; r * h, h = (1 - z) * n + z * h: 5. Saved: gates, R @ h, the state before
    _recurrent("GRU", gates=3, per_hidden=8, reserve=5),
    _recurrent("RNN", gates=1, per_hidden=1, reserve=0),  # h is its own activation's output
)
