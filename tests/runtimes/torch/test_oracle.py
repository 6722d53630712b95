"""Random networks: a step's peaks against a tiny autograd under Python's reference counts."""

from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes.torch.training_oracle import (
    READS_INPUT,
    READS_OUTPUT,
    Line,
    Peaks,
    Program,
    Run,
    Shape,
)
from runtimes.torch.training_steps import step

from onnxmem.runtimes.torch.memory import TrainingMemory

UNARY = (*sorted(READS_OUTPUT | READS_INPUT), "Neg")
WIDTHS = (2, 3, 5, 7, 11)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Operations on earlier results; parameters are new, or an earlier one that fits."""
    x = (draw(st.sampled_from(WIDTHS)), draw(st.sampled_from(WIDTHS)))
    shapes: dict[str, Shape] = {"x": x}
    parameters: dict[str, Shape] = {}
    lines: list[Line] = []

    def parameter(shape: Shape) -> str:
        known = [name for name, other in parameters.items() if other == shape]
        is_shared = draw(st.booleans())
        if known and is_shared:
            return draw(st.sampled_from(known))
        name = f"w{len(parameters)}"
        parameters[name] = shape
        return name

    for index in range(draw(st.integers(1, 9))):
        operand = draw(st.sampled_from(sorted(shapes)))
        rows, columns = shape = shapes[operand]
        kind = draw(st.sampled_from(("unary", "product", "pair", "parameter", "view")))
        if kind == "unary":
            line = Line(f"h{index}", draw(st.sampled_from(UNARY)), (operand,), shape)
        elif kind == "view":
            line = Line(f"h{index}", "Reshape", (operand,), (columns, rows))
        elif kind == "product":
            width = draw(st.sampled_from(WIDTHS))
            weight = parameter((columns, width))
            line = Line(f"h{index}", "MatMul", (operand, weight), (rows, width))
        else:
            alike = [name for name, other in shapes.items() if other == shape]
            other = parameter(shape) if kind == "parameter" else draw(st.sampled_from(alike))
            pair = draw(st.permutations((operand, other)))
            line = Line(f"h{index}", draw(st.sampled_from(("Add", "Mul"))), tuple(pair), shape)
        lines.append(line)
        shapes[line.name] = line.shape
    return Program(x, parameters, tuple(lines))


def declared(name: str, shape: Shape) -> str:
    return f"float[{','.join(map(str, shape))}] {name}"


def text_of(program: Program) -> str:
    """The program as an ONNX graph."""
    shapes = {line.name: line.shape for line in program.lines}
    held = [declared(name, shape) for name, shape in program.parameters.items()]
    body: list[str] = []
    for line in program.lines:
        operands = line.operands
        if line.op == "Reshape":
            rows, columns = line.shape
            held.append(f"int64[2] to_{line.name} = {{{rows}, {columns}}}")
            operands = (*operands, f"to_{line.name}")
        body.append(f"{line.name} = {line.op}({', '.join(operands)})")
    outputs = ", ".join(declared(name, shapes[name]) for name in program.outputs)
    weights = f"<{', '.join(held)}>" if held else ""
    return f"agraph ({declared('x', program.x)}) => ({outputs}) {weights} {{ {'  '.join(body)} }}"


def peaks_of(found: TrainingMemory) -> Peaks:
    assert found.saved_activation_bytes is not None
    return Peaks(
        found.saved_activation_bytes,
        found.forward_peak_bytes,
        found.backward_peak_bytes,
        found.optimizer_peak_bytes,
    )


@settings(max_examples=50)
@given(programs())
def test_peaks_equal_those_of_a_simulated_step(program: Program) -> None:
    assert peaks_of(step(text_of(program))) == Run(program).peaks()


@given(programs())
def test_a_step_ends_with_its_setup_gradients_and_outputs(program: Program) -> None:
    found = step(text_of(program))
    live = found.replay.live_bytes
    assert live.min() >= 0
    assert live.max() == found.peak_bytes
    assert found.replay.live_bytes[-1] == sum(_left(found)) == found.optimizer_peak_bytes


def _left(found: TrainingMemory) -> list[int]:
    """Bytes of what no event releases."""
    gone = {~event for event in found.replay.program.events.tolist() if event < 0}
    allocations = enumerate(found.replay.allocations())
    return [each.size_bytes for number, each in allocations if number not in gone]


def test_the_oracle_on_a_small_program() -> None:
    """A matmul and a ReLU: x 2 x 3, w 3 x 5."""
    lines = (Line("h", "MatMul", ("x", "w"), (2, 5)), Line("y", "Relu", ("h",), (2, 5)))
    program = Program((2, 3), {"w": (3, 5)}, lines)
    held = 4 * (6 + 15)
    assert Run(program).peaks() == Peaks(40, held + 80, held + 40 + 40 + 60, held + 40 + 60)
