"""A runtime and an allocator that are made here, outside the package: everything works for them.

Nothing of the package knows them. The report, the page, the JSON report, a comparison, the largest
batch and the verdict read the replay of the program that the runtime makes.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path

import onnx
import pytest
from graphs import model_of
from jsonschema import Draft202012Validator
from pages import data_of

import onnxmem
from onnxmem.analysis.analysis import analyze
from onnxmem.analysis.fitting.verdicts import Verdict
from onnxmem.decisions.diff import diff, snapshot
from onnxmem.errors import Finding, UsageError
from onnxmem.model.graph import Graph
from onnxmem.program.program import Category, ProgramBuilder
from onnxmem.program.replay import OutOfMemoryError, replay
from onnxmem.program.sizes import Sizes
from onnxmem.report.diff import as_json
from onnxmem.report.diff import render as render_diff
from onnxmem.report.page.model_page import render_page
from onnxmem.report.terminal import render
from onnxmem.runtimes.assumed import Assumed
from onnxmem.runtimes.base import Overheads, Runtime, RuntimeProgram

SCHEMA = Path(onnxmem.__file__).parent / "report" / "schema" / "report-1.0.schema.json"
PAGE = 101
"""Bytes: a prime, so that a figure without its rounding can't be right by chance."""
PROCESS = 1_009
TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 7] x) => (float[N, 13] y) <float[7, 11] w, float[11, 13] v> {
  a = MatMul(x, w)
  b = Relu(a)
  y = MatMul(b, v)
}
"""


@dataclass
class ToyAllocator:
    """Allocates pages; a free page is reused before a new one is added, and none is released."""

    capacity_bytes: int | None = None
    reserved_bytes: int = 0
    reserved_peak_bytes: int = 0
    num_retries: int = 0
    _pages: dict[int, int] = field(default_factory=dict)
    """Pages by allocation."""
    _num_free: int = 0

    def malloc(self, number: int, size_bytes: int) -> None:
        """Take as many pages as the bytes need."""
        num_pages = -(-size_bytes // PAGE)
        more_bytes = max(num_pages - self._num_free, 0) * PAGE
        is_limited = self.capacity_bytes is not None
        if is_limited and self.reserved_bytes + more_bytes > (self.capacity_bytes or 0):
            raise OutOfMemoryError
        self.reserved_bytes += more_bytes
        self.reserved_peak_bytes = max(self.reserved_peak_bytes, self.reserved_bytes)
        self._num_free = max(self._num_free - num_pages, 0)
        self._pages[number] = num_pages

    def free(self, number: int) -> None:
        """Keep the pages for later."""
        self._num_free += self._pages.pop(number)

    def rename(self, number: int, new_number: int) -> None:
        """Renumber an allocation."""
        self._pages[new_number] = self._pages.pop(number)

    def layout(self) -> object:
        """Pages have no addresses."""
        return sorted(self._pages.items()), self._num_free


@dataclass(frozen=True)
class ToyRuntime:
    """Allocates weights and inputs, and every tensor from its node to the end."""

    name: str = "toy"

    def program(self, graph: Graph) -> RuntimeProgram:
        """Write the program and its sizes."""
        builder, sizes = ProgramBuilder(), []
        for weight in graph.weights:
            builder.malloc(weight.name, Category.WEIGHT)
            sizes.append(weight.size_bytes)
        for name in graph.inputs:
            builder.malloc(name, Category.INPUT)
            sizes.append(graph.tensors[name].size_bytes)
        builder.end_setup()
        for node in graph.nodes:
            builder.enter_step(node.name)
            for name in node.writes:
                builder.malloc(name, Category.ACTIVATION)
                sizes.append(graph.tensors[name].size_bytes)
        told = Finding("toy", "a toy frees nothing")
        return RuntimeProgram(builder.program(), Sizes.of(sizes), (told,))

    def allocator(self, capacity_bytes: int | None = None) -> ToyAllocator:
        """A new one."""
        return ToyAllocator(capacity_bytes)

    def overheads(self, graph: Graph) -> Overheads:  # noqa: ARG002 - of every graph alike
        """A process."""
        return Overheads(process=Assumed.exactly(PROCESS))


def toy_bytes(batch: int) -> int:
    """The toy's bytes at a batch, added up by hand."""
    sizes = (4 * 7 * 11, 4 * 11 * 13, 4 * 7 * batch, 4 * 11 * batch, 4 * 11 * batch, 4 * 13 * batch)
    return sum(-(-size // PAGE) * PAGE for size in sizes) + PROCESS


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return model_of(TEXT)


def analysis_of(
    model: onnx.ModelProto, batch: int, budget_bytes: int | None = None
) -> onnxmem.Analysis:
    return analyze(model, batch=batch, runtimes=(ToyRuntime(),), budget_bytes=budget_bytes)


def test_the_report_has_a_section_on_the_toy_runtime(model: onnx.ModelProto) -> None:
    text = render(analysis_of(model, 17))
    section = text[text.index("\ntoy\n") :].split("\n\n")[0]
    assert f"{toy_bytes(17):,} B" in section
    assert f"{PROCESS:,} B" in section
    assert "at " in section
    assert "weights" in section
    assert "toy: a toy frees nothing" in text[text.index("\nNotes\n") :]


def test_the_page_has_its_figures_at_every_batch(model: onnx.ModelProto) -> None:
    page = render_page(analysis_of(model, 17))
    assert "Compared: what toy reserves by its allocator" in page
    data = data_of(page)
    moves = data["figures"]["replays.0.total_bytes"]
    found = dict(zip(data["stops"], moves["at"], strict=True))
    assert len(found) > 2
    assert found == {batch: toy_bytes(batch) for batch in found}


def test_only_the_json_report_with_the_toy_runtime_has_its_key(model: onnx.ModelProto) -> None:
    row = analysis_of(model, 17).to_dict()["replays"][0]  # type: ignore[index]
    assert (row["name"], row["total_bytes"]) == ("toy", toy_bytes(17))
    assert sum(each["bytes"] for each in row["live_at_peak"]) == row["peak_bytes"]
    assert "replays" not in analyze(model).to_dict()
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator(schema["$defs"]["row"]["properties"]["replays"]).validate([row])


def test_a_comparison_explains_why_the_peak_changed(model: onnx.ModelProto) -> None:
    sides = [snapshot(analysis_of(model, batch)) for batch in (17, 19)]
    difference = diff(*sides)
    change = difference.runtimes["toy"]
    assert change.change_bytes == 2 * 4 * (7 + 11 + 11 + 13)
    assert "Why the peak changed, toy" in render_diff(difference)
    assert json.loads(as_json(difference))["runtimes"]["toy"]["change_bytes"] == change.change_bytes


@pytest.mark.parametrize("budget_bytes", [2_000, 4_001, 9_001])
def test_the_largest_batch_is_the_last_that_its_allocator_can_serve(
    model: onnx.ModelProto, budget_bytes: int
) -> None:
    fitting = [batch for batch in range(1, 99) if toy_bytes(batch) <= budget_bytes]
    found = analysis_of(model, 5, budget_bytes=budget_bytes).max_batch
    assert found is not None
    assert found.number == max(fitting, default=0)
    assert found.over_bytes == toy_bytes(max(fitting, default=0) + 1)


def test_the_verdict_is_on_its_process(model: onnx.ModelProto) -> None:
    takes = toy_bytes(5)
    for budget_bytes, verdict in ((takes, Verdict.FITS), (takes - 1, Verdict.OVER)):
        found = analysis_of(model, 5, budget_bytes=budget_bytes).fit
        assert found is not None
        assert (found.verdict, found.footprint.total_bytes) == (verdict, takes)
        assert found.to_dict()["basis"] == "toy"


def test_a_runtime_that_fails_does_not_affect_other_figures(model: onnx.ModelProto) -> None:
    class Refusing(ToyRuntime):
        def program(self, graph: Graph) -> RuntimeProgram:
            message = f"{len(graph.nodes)} nodes are too many"
            raise UsageError(message)

    found = analyze(model, runtimes=(Refusing(),), budget_bytes=9_001)
    assert found.replays == ()
    assert found.status == "partial"
    assert found.total_bytes == analyze(model).total_bytes
    codes = [each.code for each in found.findings]
    assert "runtime_failed" in codes
    assert "no_figure" in codes


def test_the_toys_implement_the_protocols(model: onnx.ModelProto) -> None:
    runtime: Runtime = ToyRuntime()
    graph = analyze(model, batch=3).graph
    made = runtime.program(graph)
    alone = replay(made.program, made.sizes, ToyAllocator())
    assert alone.reserved is not None
    assert alone.reserved.peak_bytes + PROCESS == toy_bytes(3)
    numbers = count()
    assert [next(numbers) for _ in alone.allocations()] == [*range(made.program.num_allocations)]


@dataclass(frozen=True)
class Variant(ToyRuntime):
    """The toy with one thing changed."""

    made: Callable[[Graph], RuntimeProgram] | None = None
    limit_bytes: int | None = None

    def program(self, graph: Graph) -> RuntimeProgram:
        """The given program, or the toy's own."""
        return super().program(graph) if self.made is None else self.made(graph)

    def allocator(self, capacity_bytes: int | None = None) -> ToyAllocator:
        """One with a limit of its own."""
        return ToyAllocator(capacity_bytes if self.limit_bytes is None else self.limit_bytes)


def without_last_size(graph: Graph) -> RuntimeProgram:
    made = ToyRuntime().program(graph)
    return replace(made, sizes=Sizes.of([*made.sizes.fixed_bytes.tolist()[:-1], None]))


def too_few_sizes(graph: Graph) -> RuntimeProgram:
    return replace(ToyRuntime().program(graph), sizes=Sizes.of([7]))


def stumbling(graph: Graph) -> RuntimeProgram:
    raise KeyError(graph.nodes[0].name)


def steeper_in_the_middle(graph: Graph) -> RuntimeProgram:
    made, batch = ToyRuntime().program(graph), (graph.tensors["x"].shape or (0,))[0] or 0
    sizes = made.sizes.fixed_bytes.tolist()
    return replace(made, sizes=Sizes.of([sizes[0] + 1_000 * (20 <= batch <= 40), *sizes[1:]]))


def test_an_allocator_that_fails_without_a_limit_has_no_figure(model: onnx.ModelProto) -> None:
    found = analyze(model, batch=5, runtimes=(Variant(limit_bytes=1_001),), budget_bytes=9_001)
    assert (found.replays, found.fit) == ((), None)
    messages = [each.message for each in found.findings if each.code == "runtime_failed"]
    assert messages == [
        "toy: its allocator is out of memory on a device without a limit; see its own limits"
    ]
    assert "TOY" not in render_page(found)


def test_unknown_sizes_make_the_verdict_unknown(model: onnx.ModelProto) -> None:
    runtime = Variant(made=without_last_size)
    found = analyze(model, batch=5, runtimes=(runtime,), budget_bytes=90_001)
    assert found.fit is not None
    assert found.fit.verdict is Verdict.UNKNOWN
    assert [each.code for each in found.fit.doubts] == ["partial"]
    assert found.status == "partial"


@pytest.mark.parametrize("made", [too_few_sizes, stumbling], ids=["sizes", "exception"])
def test_an_error_of_a_runtime_is_reported_and_does_not_affect_other_figures(
    model: onnx.ModelProto, made: Callable[[Graph], RuntimeProgram]
) -> None:
    found = analyze(model, batch=5, runtimes=(Variant(made=made),), budget_bytes=9_001)
    assert found.total_bytes == analyze(model, batch=5).total_bytes
    assert {"runtime_failed", "no_figure"} <= {each.code for each in found.findings}


def test_sizes_that_are_not_affine_are_detected(
    model: onnx.ModelProto,
) -> None:
    runtime = Variant(made=steeper_in_the_middle)
    found = analyze(model, batch=5, runtimes=(runtime,), budget_bytes=9_001).max_batch
    fits = [n for n in range(1, 99) if toy_bytes(n) + 1_010 * (20 <= n <= 40) <= 9_001]
    until = next(n for n in range(1, 99) if n + 1 not in fits)
    assert found is not None
    assert found.number == until


@pytest.mark.parametrize("name", ["ort-cpu", "total", "none", "", " ", 7])
def test_a_runtime_name_that_is_taken_or_empty_is_rejected(
    model: onnx.ModelProto, name: str
) -> None:
    with pytest.raises(UsageError, match="is taken or empty"):
        analyze(model, runtimes=(ToyRuntime(name),))


def test_two_runtimes_of_one_name_are_rejected(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="'toy' is taken"):
        analyze(model, runtimes=(ToyRuntime(), ToyRuntime()))


@pytest.mark.parametrize(
    ("given", "told"),
    [(ToyRuntime(), "give a list"), ("toy", "give a list"), ([ToyRuntime], "is a class")],
    ids=["object", "name", "class"],
)
def test_runtimes_must_be_a_list_of_objects(
    model: onnx.ModelProto, given: object, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        analyze(model, runtimes=given)  # type: ignore[arg-type]


class Stumbling(ToyAllocator):
    """Fails if more than a number of bytes is requested at once."""

    def malloc(self, number: int, size_bytes: int) -> None:
        """Raise the error of a missing key."""
        if size_bytes > 40 * 44:
            raise KeyError(number)
        super().malloc(number, size_bytes)


def test_an_error_of_an_allocator_ends_the_search(model: onnx.ModelProto) -> None:
    class Runs(ToyRuntime):
        def allocator(self, capacity_bytes: int | None = None) -> ToyAllocator:
            return Stumbling(capacity_bytes)

    found = analyze(model, batch=5, runtimes=(Runs(),), budget_bytes=90_001).max_batch
    assert found is not None
    assert found.number is not None
    assert found.number <= 40
