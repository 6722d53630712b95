"""How long variables of a network's code hold tensors, by the lines that torch.export writes."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from graphs import graph_of
from runtimes.torch.training_steps import happenings, recipe_of

from onnxmem.model.graph import Graph
from onnxmem.runtimes.torch.memory import Phase, TrainingMemory
from onnxmem.runtimes.torch.step import training_memory
from onnxmem.units import format_bytes

TRACE = "pkg.torch.onnx.stack_trace"
SCOPES = "pkg.torch.onnx.name_scopes"
# No formula saves a sum or a difference: what holds them is a variable or nothing.
SUMS = """
    agraph (float[2,3] x) => (float[2,3] y) <float[3,3] w> {
        a = MatMul(x, w)
        b = Neg(a)
        c = Add(b, x)
        d = Neg(c)
        y = Neg(d)
    }"""


def frames(*lines: tuple[int, str]) -> str:
    """A stack trace: each line in a function that the one before calls."""
    return "\n".join(
        f'  File "net.py", line {number}, in forward\n    {text}' for number, text in lines
    )


def traced(graph: Graph, traces: Mapping[str, str], scopes: Mapping[str, str]) -> TrainingMemory:
    """A step of a graph whose nodes came from lines of code, by what they write."""
    nodes = tuple(
        replace(
            node,
            metadata={
                TRACE: traces[node.outputs[0]],
                SCOPES: f"['', {scopes.get(node.outputs[0], '')}'op']",
            },
        )
        for node in graph.nodes
    )
    return training_memory(replace(graph, nodes=nodes), recipe_of())


def freed_after(lines: Mapping[str, tuple[int, str]], name: str) -> str:
    """The last tensor that is written before another one is freed in the forward pass."""
    found = traced(graph_of(SUMS), {each: frames(line) for each, line in lines.items()}, {})
    events = happenings(found, Phase.FORWARD)
    before = events[: events.index(f"-{name}")]
    return next(each[1:] for each in reversed(before) if each.startswith("+"))


RETURN = (9, "return -d")


@pytest.mark.parametrize(
    ("b", "c", "last", "why"),
    [
        ("return x", "return x", "c", "an expression has no name"),
        ("b = -a", "c = b + x", "y", "a variable lives until its function returns"),
        ("b = -a", "b = b + x", "c", "or is assigned anew"),
        ("b = -a", "b += x", "c", "by an augmented assignment too"),
        ("b: Tensor = -a", "c = b + x", "y", "with an annotation"),
        ("b, _ = -a, 0", "c = b + x", "y", "one of several targets"),
        ("self.b[0] = -a", "c = b + x", "c", "an attribute is no variable"),
        ("if b == -a:", "c = b + x", "c", "a comparison assigns nothing"),
        ("rows.append(-a)", "c = b + x", "y", "a list lives as long as its own variable"),
    ],
)
def test_a_variable_holds_what_its_line_computed(b: str, c: str, last: str, why: str) -> None:
    lines = {"a": (1, "a = x @ w"), "b": (2, b), "c": (3, c), "d": (4, "d = -c"), "y": RETURN}
    assert freed_after(lines, "b") == last, why


def test_variables_of_a_called_function_end_with_it() -> None:
    call = (2, "c = self.part(a)")
    traces = {
        "a": frames((1, "a = x @ w")),
        "b": frames(call, (20, "b = -a")),
        "c": frames(call, (21, "return b + x")),
        "d": frames((3, "d = -c")),
        "y": frames(RETURN),
    }
    scopes = dict.fromkeys(("b", "c"), "'part', ")
    events = happenings(traced(graph_of(SUMS), traces, scopes), Phase.FORWARD)
    assert events[events.index("+c") :][:3] == ["+c", "-b", "+d"]


@pytest.mark.parametrize(("module", "freed"), [("{}", "c"), ("part", "y")])
def test_a_loop_over_modules_assigns_in_each_turn(module: str, freed: str) -> None:
    """``x = layer(x)``: the line is the same, the member of the list is the next one."""
    loop, returned = (2, "x = layer(x)"), (20, "return -x")
    names = ("b", "c", "d")
    text = SUMS.replace("Add(b, x)", "Neg(b)")
    traces = {name: frames(loop, returned) for name in names}
    traces |= {"a": frames((1, "x = x @ w")), "y": frames(RETURN)}
    scopes = {name: f"'{module.format(f'layers.{n}')}', " for n, name in enumerate(names)}
    events = happenings(traced(graph_of(text), traces, scopes), Phase.FORWARD)
    last = next(e for e in reversed(events[: events.index("-a")]) if e.startswith("+"))
    assert last == {"c": "+b", "y": "+d"}[freed]


def test_a_comprehension_assigns_once() -> None:
    """``parts = [layer(x) for layer in layers]``: all parts live on, and the line is one."""
    loop, inner = (2, "parts = [layer(a) for layer in layers]"), (20, "return -a")
    text = SUMS.replace("Add(b, x)", "Neg(a)").replace("Neg(c)", "Add(b, c)")
    made = frames(loop, inner)
    traces = {"a": frames((1, "a = x @ w")), "b": made, "c": made}
    traces |= {"d": frames((3, "d = parts[0] + parts[1]")), "y": frames(RETURN)}
    scopes = {"b": "'layers.0', ", "c": "'layers.1', "}
    events = happenings(traced(graph_of(text), traces, scopes), Phase.FORWARD)
    assert {"-b", "-c"} <= set(events[events.index("+y") :])


def test_a_file_without_lines_has_a_warning_with_both_peaks() -> None:
    graph = graph_of(SUMS.replace("[2,3]", "[200,3]"))
    names = {each.name: replace(each, name=f"/part/{each.name}") for each in graph.nodes}
    found = training_memory(replace(graph, nodes=tuple(names.values())), recipe_of())
    (finding,) = found.findings
    assert finding.code == "variables_unknown"
    # In the forward pass x and two results are alive at once, or x and all five of them until the
    # module returns.
    one = 4 * 200 * 3
    assert found.forward_peak_bytes == 3 * one + 4 * 9
    assert f"up to {format_bytes(6 * one + 4 * 9)} if" in finding.message


def test_saved_tensors_leave_no_doubt() -> None:
    """A sigmoid saves its result: no variable holds more."""
    graph = graph_of(SUMS.replace("Neg", "Sigmoid"))
    assert training_memory(graph, recipe_of()).findings == ()
