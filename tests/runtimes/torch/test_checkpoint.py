"""Checkpoints: bytes of a chain computed by hand, what is computed again, and the choice."""

import itertools

import pytest
from graphs import graph_of
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes.torch.training_steps import are_equal, happenings, recipe_of, step

from onnxmem.errors import UsageError
from onnxmem.runtimes.torch.checkpointing import every, schedules, units
from onnxmem.runtimes.torch.memory import Phase
from onnxmem.runtimes.torch.network import network_of
from onnxmem.runtimes.torch.step import PersistentState
from onnxmem.runtimes.torch.tape import Tape, tape_of

WIDTHS = (7, 5, 3, 11, 2, 13)
ROWS = 3


def chain(widths: tuple[int, ...] = WIDTHS, rows: int = ROWS) -> str:
    """Layers with ReLU, of which each is a unit: ``h0``, ``r0``, ``h1``..."""
    pairs = list(itertools.pairwise(widths))
    body = "  ".join(
        f"h{n} = MatMul({f'r{n - 1}' if n else 'x'}, w{n})  r{n} = Relu(h{n})"
        for n in range(len(pairs))
    )
    weights = ", ".join(f"float[{wide},{narrow}] w{n}" for n, (wide, narrow) in enumerate(pairs))
    last = len(pairs) - 1
    return f"""
        agraph (float[{rows},{widths[0]}] x) => (float[{rows},{widths[-1]}] y) <{weights}> {{
            {body}
            y = Exp(r{last})
        }}"""


def tape(text: str) -> Tape:
    network = network_of(graph_of(text), recipe_of())
    state = PersistentState(network.graph, network.parameters, recipe_of())
    return tape_of(network.graph, network.parameters, state.precision, network.graph.outputs)


def ops_of(found: Tape) -> list[list[str]]:
    return [[node.op_type for node in unit] for unit in units(found)]


HELD = 4 * (35 + 15 + 33 + 22 + 26 + ROWS * 7)
"""Weights and the input."""
R0, R1, R2, R3, R4 = (4 * ROWS * wide for wide in WIDTHS[1:])
W0, W1, W2, W3, W4 = (4 * count for count in (35, 15, 33, 22, 26))


def test_checkpoints_after_every_second_unit() -> None:
    """``x``, ``r1`` and ``r3`` are saved; the first two segments are recomputed."""
    found = step(chain(), checkpoint="every=2")
    y = R4
    assert found.saved_activation_bytes == R1 + R3 + R4 + y
    at_layers = (R0 + R0, R0 + R1 + R1, R1 + R2 + R2, R1 + R2 + R3 + R3, R1 + R3 + R4 + R4)
    assert found.forward_peak_bytes == HELD + max(*at_layers, R1 + R3 + R4 + y)
    last_segment = (
        y + R1 + R3 + R4 + 2 * R4,  # through Exp: y's gradient and r4's
        y + R1 + R3 + R4 + 2 * R4,  # through the ReLU
        y + R1 + R3 + R4 + W4 + R3,  # through the product
    )
    second_segment = (
        y + W4 + R3 + R1 + R2 + R2,  # r2 again, of h2
        y + W4 + R3 + R1 + R2 + R3 + R3,  # r3 again
        y + W4 + R1 + R2 + R3 + R3 + R3,  # back through it
        y + W4 + R1 + R2 + R3 + W3 + R2,
        y + W4 + W3 + R1 + R2 + R2 + R2,  # through r2
        y + W4 + W3 + R1 + R2 + W2 + R1,
    )
    first_segment = (
        y + W4 + W3 + W2 + R1 + R0 + R0,
        y + W4 + W3 + W2 + R1 + R0 + R1 + R1,
        y + W4 + W3 + W2 + R0 + 3 * R1,
        y + W4 + W3 + W2 + R0 + R1 + W1 + R0,
        y + W4 + W3 + W2 + W1 + 3 * R0,
        y + W4 + W3 + W2 + W1 + R0 + W0,
    )
    assert found.backward_peak_bytes == HELD + max(*last_segment, *second_segment, *first_segment)
    assert found.peak_bytes < step(chain()).peak_bytes


def test_a_segment_is_recomputed_right_before_its_backward_pass() -> None:
    found = step(chain((7, 5, 3, 2)), checkpoint="every=1")
    assert happenings(found, Phase.FORWARD) == [
        *("+h0", "+r0", "-h0", "+h1", "+r1", "-h1", "+h2", "+r2", "-h2", "+y"),
    ]
    assert (
        happenings(found)
        == [
            *("+gradient of y", "+gradient of r2", "-gradient of y"),
            *("+gradient of h2", "-gradient of r2", "-r2"),
            *("+gradient of w2", "+gradient of r1", "-gradient of h2", "-r1"),
            *("+h1", "+r1", "-h1"),
            *("+gradient of h1", "-gradient of r1", "-r1"),
            *("+gradient of w1", "+gradient of r0", "-gradient of h1", "-r0"),
            *("+h0", "+r0", "-h0"),
            *("+gradient of h0", "-gradient of r0", "-r0"),
            *("+gradient of w0", "-gradient of h0"),
        ]
        or found.backward_peak_bytes == 0
    )


def test_a_saved_copy_is_recomputed() -> None:
    """In the forward pass it is freed after its matmul."""
    text = """
        agraph (float[2,3,5,7] x) => (float[2,3,5,11] y)
        <float[7,7] a, float[7,7] b, float[7,7] c, float[7,7] d, float[7,11] e> {
            h = MatMul(x, a)  i = Relu(h)
            t = Transpose <perm = [0, 2, 1, 3]> (i)
            u = Transpose <perm = [0, 2, 3, 1]> (i)
            s = MatMul(t, u)  m = MatMul(s, t)
            k = Transpose <perm = [0, 2, 1, 3]> (m)
            n = MatMul(k, b)  o = MatMul(n, c)  q = MatMul(o, d)  y = MatMul(q, e)
        }"""
    found = step(text, checkpoint="every=2")
    copies = [each for each in happenings(found, Phase.FORWARD) if "reads it" in each]
    assert {each[0] for each in copies} == {"+", "-"}
    again = [each for each in happenings(found) if "reads it" in each]
    assert len(again) >= len(copies)


@pytest.mark.parametrize(("count", "units_again"), [(1, 4), (2, 4), (3, 3), (4, 4), (5, 0)])
def test_flops_of_recomputed_nodes(count: int, units_again: int) -> None:
    """All segments but the last: two FLOPs per multiply-add, one per element of a ReLU."""
    found = tape(chain())
    per_unit = [
        2 * ROWS * wide * narrow + ROWS * narrow for wide, narrow in itertools.pairwise(WIDTHS)
    ]
    assert every(units(found), count).extra_flops(found) == sum(per_unit[:units_again])
    assert [each.extra_flops(found) for each in schedules(found, "none")] == [0]


def test_saved_matmul_outputs_are_not_recomputed() -> None:
    found = tape(chain())
    relus = sum(ROWS * narrow for narrow in WIDTHS[1:5])
    schedule = every(units(found), 1, selective=True)
    assert schedule.extra_flops(found) == relus
    assert schedule.name == "every=1, matmul and conv outputs saved"
    assert [sorted(segment.stored) for segment in schedule.segments] == [
        *(["h0"], ["h1"], ["h2"], ["h3"]),
        [],
    ]


def test_sqrt_has_as_many_segments_as_the_square_root_of_the_units() -> None:
    found = tape(chain((2,) * 12))
    assert len(units(found)) == 11
    (schedule,) = schedules(found, "sqrt")
    assert (schedule.name, len(schedule.segments)) == ("sqrt", 3)
    one, other = (step(chain((2,) * 12), checkpoint=each) for each in ("sqrt", "every=4"))
    assert are_equal(one, other)


def test_every_unit_has_a_matmul() -> None:
    """What stands before the first belongs to it; what stands behind one, to that one."""
    layer = ["MatMul", "Relu"]
    assert ops_of(tape(chain((2, 3, 5, 7)))) == [layer, layer, [*layer, "Exp"]]
    text = chain().replace("MatMul(x, w0)", "MatMul(e, w0)").replace("h0 =", "e = Exp(x)  h0 =")
    assert ops_of(tape(text))[0] == ["Exp", *layer]


RESIDUAL = "m{n} = MatMul(h{n}, w{n})  r{n} = Relu(m{n})  h{k} = Add(h{n}, r{n})"


def test_a_residual_block_is_not_cut() -> None:
    """Within it two tensors go on."""
    body = "  ".join(RESIDUAL.format(n=n, k=n + 1) for n in range(5))
    weights = ", ".join(f"float[3,3] w{n}" for n in range(5))
    found = tape(f"""
        agraph (float[2,3] x) => (float[2,3] h5) <{weights}> {{ h0 = Exp(x)  {body} }}""")
    block = ["MatMul", "Relu", "Add"]
    assert ops_of(found) == [["Exp", *block], block, block, block, block]


def test_long_skips_are_cut_where_more_tensors_cross() -> None:
    """``e`` goes on to the end, so nowhere is one alone."""
    body = "  ".join(f"h{n + 1} = MatMul(h{n}, w{n})" for n in range(6))
    weights = ", ".join(f"float[3,3] w{n}" for n in range(6))
    found = tape(f"""
        agraph (float[2,3] x) => (float[2,3] y) <{weights}> {{
            e = Exp(x)  h0 = Relu(e)  {body}  y = Add(h6, e)
        }}""")
    assert len(units(found)) == 6


def test_a_network_of_one_unit_has_nothing_to_recompute() -> None:
    text = "agraph (float[2,3] x) => (float[2,3] y) <float[3,3] w> { y = MatMul(x, w) }"
    found = tape(text)
    assert [len(unit) for unit in units(found)] == [1]
    for checkpoint in ("every=1", "sqrt", "best"):
        assert are_equal(step(text, checkpoint=checkpoint), step(text))
    assert [each.schedule for each in step(text, checkpoint="best").checkpoints] == ["none"]


def test_the_best_is_the_least_of_all_candidates() -> None:
    text = chain((2,) + (31,) * 12, rows=37)
    found = step(text, checkpoint="best", loss="mse")
    options = found.checkpoints
    assert options[0].schedule == "none"
    assert options[0].extra_flops == 0
    assert options[0].peak_bytes == step(text, loss="mse").peak_bytes
    assert found.peak_bytes == options[-1].peak_bytes < options[0].peak_bytes
    names = [each.name for each in schedules(tape(text), "best")]
    assert names[:4] == ["none", "sqrt", "every=1", "every=1, matmul and conv outputs saved"]
    assert {each.schedule for each in options} <= set(names)
    assert step(text, loss="mse").checkpoints == ()


@settings(max_examples=25)
@given(
    st.lists(st.sampled_from((1, 2, 3, 5, 17, 31)), min_size=2, max_size=9).map(tuple),
    st.sampled_from((1, 7, 41)),
)
def test_options_are_a_pareto_front(widths: tuple[int, ...], rows: int) -> None:
    """More FLOPs, fewer bytes, from one to the next; less is saved than without checkpoints."""
    text = chain(widths, rows)
    options = step(text, checkpoint="best").checkpoints
    for cheaper, smaller in itertools.pairwise(options):
        assert cheaper.extra_flops < smaller.extra_flops
        assert cheaper.peak_bytes > smaller.peak_bytes
    whole = step(text)
    for checkpoint in ("every=1", "every=2", "sqrt"):
        found = step(text, checkpoint=checkpoint)
        assert (found.saved_activation_bytes or 0) <= (whole.saved_activation_bytes or 0)
        assert found.forward_peak_bytes <= whole.forward_peak_bytes
        assert found.gradient_bytes == whole.gradient_bytes
        assert options[-1].peak_bytes <= found.peak_bytes or checkpoint == "every=2"


@pytest.mark.parametrize("name", ["every=0", "every=", "every=-1", "every=x", "each=2", "", "all"])
def test_an_unknown_schedule_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="choose none, blocks, blocks=PATTERN, sqrt"):
        recipe_of(checkpoint=name)
