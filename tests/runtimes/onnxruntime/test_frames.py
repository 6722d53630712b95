"""Runs of a plan replayed in the arena: node by node, with the pattern, bodies and scratch."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from graphs import graph_of, model_of

from onnxmem.allocators.bfc_arena import ArenaOptions, BfcArena
from onnxmem.measuring.measurement import Measurement
from onnxmem.measuring.measuring import MeasureSettings, measure
from onnxmem.model.graph import Graph, Node
from onnxmem.program.program import Category
from onnxmem.program.replay import replay
from onnxmem.runtimes.onnxruntime.allocation.control_flow_trace import BranchTrace, ControlFlowTrace
from onnxmem.runtimes.onnxruntime.allocation.frames import ScratchRule, Session, tensor_bytes
from onnxmem.runtimes.onnxruntime.allocation.planning import LoadShape, Plan, Planning, plan
from onnxmem.runtimes.onnxruntime.allocation.recording import Run, Sample
from onnxmem.runtimes.onnxruntime.kernels.kernel import Scratch
from onnxmem.runtimes.onnxruntime.kernels.registry import scratch
from onnxmem.runtimes.onnxruntime.session_graph.loaded import sorted_graph
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

K = 1024
A = 3772
"""Bytes of a float[23,41]."""
ROUNDED = 3840
NO_SCRATCH = Scratch()
APART = ArenaOptions(doubles=False)
"""Every request that no free chunk holds is a region of its own, so regions tell the requests."""


@dataclass
class Replayed:
    """A session whose inferences are simulated and replayed in its arena."""

    session: Session
    arena: BfcArena
    runs: list[Run] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        return self.session.plan

    @property
    def pattern_bytes(self) -> int:
        return self.session.pattern_bytes

    def run(self) -> list[Sample]:
        """A sample at the end of each node of another inference."""
        base_bytes = self.arena.requested_bytes
        run = self.session.run()
        self.runs.append(run)
        assert replay(run.program, run.sizes, self.arena).out_of_memory_at is None
        return list(run.samples(base_bytes))


def session_for(  # the parts of a session
    text: str,
    *,
    pattern: bool = False,
    taken: Mapping[str, Scratch] | None = None,
    options: ArenaOptions | None = None,
    shapes: Mapping[str, LoadShape | None] | None = None,
    in_order: bool = False,
) -> Replayed:
    """A session of a graph in the text's order; scratch by operator, shapes at load by name."""
    graph = graph_of(text)
    graph = sorted_graph(graph) if in_order else graph
    known: dict[str, LoadShape | None] = {n: tensor.shape for n, tensor in graph.tensors.items()}
    for end, shape in (shapes or {}).items():
        known[next(name for name in known if name.endswith(end))] = shape
    made = plan(graph, Planning(known))
    session = Session(made, rule(taken or {}), pattern)
    return Replayed(session, BfcArena(options or ArenaOptions()))


def rule(taken: Mapping[str, Scratch]) -> ScratchRule:
    def found(graph: Graph, node: Node) -> Scratch:
        assert node in graph.nodes
        return taken.get(node.op_type, NO_SCRATCH)

    return found


def requested(session: Replayed) -> list[tuple[str, int]]:
    """Requests of one inference: the operator, and bytes at the end of its node."""
    return [(sample.node.op_type, sample.requested_bytes) for sample in session.run()]


def regions(session: Replayed) -> list[int]:
    """Sizes of the regions after an inference, in the order of allocation."""
    session.run()
    return list(session.arena.regions.values())


# Samples


SIZES = """agraph (float[7] x) => (y) {
    a = Concat <axis = 0> (x, x)  b = Concat <axis = 0> (x, a)  c = Concat <axis = 0> (a, b)
    y = Neg(x) }"""


def test_a_sample_counts_outputs_inputs_and_all_live_tensors() -> None:
    session = session_for(SIZES)
    # a is 14 floats, b 21, c 35 that nobody reads, y 7.
    assert requested(session) == [
        *(("Concat", 56), ("Concat", 56 + 84), ("Concat", 56 + 84 + 140), ("Neg", 140 + 28))
    ]


def test_chunks_are_rounded_and_regions_reserved() -> None:
    session = session_for(SIZES)
    session.run()
    assert (session.arena.in_use_peak_bytes, session.arena.reserved_bytes) == (768, K * K)


def test_earlier_allocations_count() -> None:
    session = session_for(SIZES)
    session.arena.reserve(7919)
    assert requested(session)[0] == ("Concat", 7919 + 56)


def test_everything_is_freed_after_an_inference() -> None:
    session = session_for(SIZES)
    first = session.run()
    assert (session.arena.requested_bytes, session.arena.in_use_bytes) == (0, 0)
    assert [s.requested_bytes for s in session.run()] == [s.requested_bytes for s in first]
    assert session.arena.reserved_bytes == K * K


def test_an_initializer_output_is_copied_when_the_inference_begins() -> None:
    session = session_for("agraph (float[7] x) => (w, y) <float[3] w> { a = Exp(x)  y = Neg(a) }")
    assert requested(session) == [("Exp", 12 + 28), ("Neg", 12 + 28 + 28)]
    assert session.arena.requested_bytes == 0


# Sizes


def test_the_bytes_of_a_tensor() -> None:
    text = """agraph (float[N,5] x, string[7] s, int4[9] i) => (y, e) {
        y = NonZero(x)  t = SequenceConstruct(x, x)  e = Identity(s)  j = Identity(i) }"""
    graph = graph_of(text)
    assert [tensor_bytes(graph, name) for name in "xeyj"] == [20, 7 * 32, None, 5]
    assert tensor_bytes(graph, "t") is None


def test_unknown_sizes_count_as_zero() -> None:
    session = session_for("agraph (float[3,5] x) => (z) { y = NonZero(x)  z = Neg(x) }")
    assert requested(session) == [("NonZero", 0), ("Neg", 60)]


# The memory pattern


CHAIN = "agraph (float[23,41] x) => (y) { a = Exp(x)  b = Neg(a)  c = Abs(b)  y = Neg(c) }"


def test_the_first_run_is_the_same_with_and_without_the_pattern() -> None:
    without, learning = session_for(CHAIN), session_for(CHAIN, pattern=True)
    first = requested(without)
    assert first == requested(learning)
    assert [size for _, size in first] == [A, 2 * A, 2 * A, 2 * A]
    assert (without.pattern_bytes, learning.pattern_bytes) == (0, 2 * ROUNDED)


def test_later_inferences_request_one_block_and_the_outputs() -> None:
    session = session_for(CHAIN, pattern=True)
    assert session.pattern_bytes == 0
    session.run()
    for _ in range(2):
        assert [size for _, size in requested(session)] == [
            *(2 * ROUNDED, 2 * ROUNDED, 2 * ROUNDED, 2 * ROUNDED + A)
        ]
    assert session.arena.requested_bytes == 0


def test_the_block_gets_a_region_beside_those_of_the_first_inference() -> None:
    session = session_for(CHAIN, pattern=True, options=APART)
    # a, b and y; then the block, and the chunks of before are too small for it.
    assert regions(session) == [ROUNDED, ROUNDED]
    assert regions(session) == [ROUNDED, ROUNDED, 2 * ROUNDED]
    assert regions(session) == [ROUNDED, ROUNDED, 2 * ROUNDED]


def test_tensors_alive_at_the_end_are_in_the_block_too() -> None:
    session = session_for(SIZES, pattern=True)
    session.run()
    assert session.pattern_bytes == 3 * 256
    assert requested(session)[0] == ("Concat", 768)


def test_strings_are_outside_the_block() -> None:
    text = """agraph (string[7] s, float[7] x) => (y, z) {
        a = Concat <axis = 0> (s, s)  b = Concat <axis = 0> (a, s)  y = Equal(b, b)
        c = Exp(x)  z = Neg(c) }"""
    session = session_for(text, pattern=True)
    first = requested(session)
    assert session.pattern_bytes == 256
    assert first[:3] == [("Concat", 448), ("Concat", 448 + 672), ("Equal", 672 + 21)]
    assert requested(session)[:2] == [("Concat", 256 + 448), ("Concat", 256 + 448 + 672)]


# Scratch


def test_scratch_is_allocated_after_the_outputs_and_freed_at_the_end() -> None:
    session = session_for(CHAIN, taken={"Exp": Scratch((7 * K, 5 * K))}, options=APART)
    samples = session.run()
    assert list(session.arena.regions.values())[:3] == [ROUNDED, 7 * K, 5 * K]
    assert [sample.scratch_bytes for sample in samples] == [12 * K, 0, 0, 0]
    assert samples[0].requested_bytes == A
    assert session.arena.requested_peak_bytes == A + 12 * K


def test_scratch_can_be_allocated_before_the_outputs() -> None:
    taken = {"Exp": Scratch((7 * K, 5 * K), num_before_outputs=2)}
    session = session_for(CHAIN, taken=taken, options=APART)
    assert regions(session)[:3] == [7 * K, 5 * K, ROUNDED]


def test_scratch_can_be_allocated_before_and_after_the_outputs() -> None:
    taken = {"Exp": Scratch((7 * K, 5 * K), num_before_outputs=1)}
    session = session_for(CHAIN, taken=taken, options=APART)
    assert regions(session)[:3] == [7 * K, ROUNDED, 5 * K]


def test_scratch_blocks_can_be_freed_before_others_are_allocated() -> None:
    # The first is freed after two, when the third fits into it.
    taken = {"Exp": Scratch((7 * K, 5 * K, 6 * K), freed_after=(2, 3, 3))}
    session = session_for(CHAIN, taken=taken, options=APART)
    samples = session.run()
    assert list(session.arena.regions.values())[:3] == [ROUNDED, 7 * K, 5 * K]
    assert samples[0].scratch_bytes == 18 * K
    assert session.arena.requested_peak_bytes == A + 12 * K
    assert session.arena.requested_bytes == 0


def test_scratch_blocks_can_be_allocated_per_pass() -> None:
    taken = {"Exp": Scratch((7 * K,), per_pass=(5 * K, 11 * K), passes=9)}
    session = session_for(CHAIN, taken=taken, options=APART)
    samples = session.run()
    assert list(session.arena.regions.values())[:4] == [ROUNDED, 7 * K, 5 * K, 11 * K]
    assert samples[0].scratch_bytes == 7 * K + 9 * 16 * K
    assert session.arena.requested_peak_bytes == A + 23 * K


# If


IF = """agraph (float[23,41] x, bool k) => (y) {
    a = Exp(x)
    b = If (k) <
        then_branch = t () => (float[23,41] o) { p = Add(a, x)  q = Abs(p)  o = Sub(p, q) },
        else_branch = e () => (float[23,41] r) { r = Mul(a, x) }>
    y = Neg(b) }"""


def test_an_if_allocates_its_output_first_and_its_branch_writes_there() -> None:
    assert requested(session_for(IF)) == [
        *(("Exp", A), ("Add", 3 * A), ("Abs", 4 * A), ("Sub", 4 * A), ("If", 2 * A), ("Neg", 2 * A))
    ]


def test_the_known_branch_runs_or_otherwise_the_larger_one() -> None:
    session = session_for(IF)
    name = session.plan.steps[1].node.name
    assert [op for op, _ in requested(session)][1:4] == ["Add", "Abs", "Sub"]
    session.session.trace = ControlFlowTrace(branches={name: BranchTrace(1, ())})
    assert requested(session) == [("Exp", A), ("Mul", 2 * A), ("If", 2 * A), ("Neg", 2 * A)]
    session.session.trace = ControlFlowTrace(branches={name: BranchTrace(0, ())})
    assert [op for op, _ in requested(session)][1:4] == ["Add", "Abs", "Sub"]


def test_the_output_of_an_if_has_the_size_of_its_branchs_output() -> None:
    text = IF.replace("r = Mul(a, x)", "r = Concat <axis = 0> (a, x)").replace(
        "float[23,41] r", "float[46,41] r"
    )
    session = session_for(text)
    name = session.plan.steps[1].node.name
    for place, size in ((1, 2 * A), (0, A)):
        session.session.trace = ControlFlowTrace(branches={name: BranchTrace(place, ())})
        assert ("If", A + size) in requested(session)


def test_the_if_can_know_a_shape_that_its_branch_does_not() -> None:
    text = IF.replace("o = Sub(p, q)", "o = NonZero(q)").replace("float[23,41] o", "o")
    session = session_for(text.replace("=> (y)", "=> (y) <int64[2,7] b>"))
    name = session.plan.steps[1].node.name
    session.session.trace = ControlFlowTrace(branches={name: BranchTrace(0, ())})
    assert ("If", A + 2 * 7 * 8) in requested(session)


def test_an_output_of_unknown_shape_is_allocated_by_the_branch() -> None:
    session = session_for(IF, shapes={"then_branch/o": ("N", 41)})
    assert requested(session) == [
        *(("Exp", A), ("Add", 2 * A), ("Abs", 3 * A), ("Sub", 4 * A), ("If", 2 * A), ("Neg", 2 * A))
    ]


def test_the_output_of_an_if_is_in_the_block_and_its_branch_has_its_own_block() -> None:
    session = session_for(IF, pattern=True)
    session.run()
    assert session.pattern_bytes == 2 * ROUNDED
    block = 2 * ROUNDED
    assert requested(session) == [
        *(("Exp", block), ("Add", 2 * block), ("Abs", 2 * block), ("Sub", 2 * block)),
        *(("If", block), ("Neg", block + A)),
    ]


def test_the_output_of_an_if_can_reuse_a_buffer() -> None:
    text = IF.replace("a = Exp(x)", "a = Exp(x)  c = Exp(x)  d = Neg(c)").replace(
        "y = Neg(b)", "y = Add(b, d)"
    )
    # c dies, and stays for b.
    assert [size for _, size in requested(session_for(text))] == [
        *(A, 2 * A, 3 * A, 4 * A, 5 * A, 5 * A, 3 * A, 3 * A)
    ]


def test_the_output_of_an_if_can_be_a_graph_output() -> None:
    text = IF.replace("=> (y)", "=> (b)").replace("y = Neg(b)", "")
    session = session_for(text, pattern=True)
    first = requested(session)
    assert first[-1] == ("If", 2 * A)
    assert session.pattern_bytes == ROUNDED
    assert requested(session)[-1] == ("If", ROUNDED + A)
    assert session.arena.requested_bytes == 0


def test_a_nested_if_writes_the_output_of_the_outer_one() -> None:
    inner = """o = If (k) <
        then_branch = u () => (float[23,41] f) { m = Abs(p)  f = Neg(m) },
        else_branch = v () => (float[23,41] g) { g = Neg(p) }>"""
    text = IF.replace("q = Abs(p)  o = Sub(p, q)", inner)
    assert [size for _, size in requested(session_for(text))] == [
        *(A, 3 * A, 4 * A, 4 * A, 3 * A, 2 * A, 2 * A)
    ]


def test_a_branch_can_return_an_initializer() -> None:
    text = """agraph (float[23,41] x, bool k) => (y) {
        b = If (k) <
            then_branch = t () => (float[2] o) { o = Constant <value = float[2] {3.0, 5.0}> () },
            else_branch = e () => (float[2] r) { r = Constant <value = float[2] {7.0, 5.0}> () }>
        y = Neg(b) }"""
    assert requested(session_for(text)) == [("If", 8), ("Neg", 16)]


# Loop


LOOP = """agraph (float[23,41] x) => (y, z) <int64 n = {3}> {
    a = Exp(x)
    b, z = Loop (n, , a) <body = body
        (int64 i, bool go, float[23,41] v) => (bool go_on, float[23,41] w, float[23,41] o) {
            p = Abs(v)  w = Neg(p)  q = Exp(w)  o = Neg(q)  go_on = Identity(go) }>
    y = Neg(b) }"""
HELD = 9
"""Bytes that a Loop holds for its body: a number and a condition."""


def test_a_loop_retains_stacked_and_carried_tensors() -> None:
    turn = [A + HELD + size for size in (A, 2 * A, 2 * A, 3 * A, 2 * A)]
    assert [size for _, size in requested(session_for(LOOP))] == [
        A,
        *turn,
        *(size + 2 * A for size in turn),  # handed on, and one to stack
        *(size + 3 * A for size in turn),
        A + A + 3 * A,  # what it was given, and its outputs
        A + A + 3 * A,
    ]


def test_the_last_two_carried_tensors_are_alive_at_the_end() -> None:
    session = session_for(LOOP)
    session.run()
    stacked, handed_on, outputs = 3 * A, 2 * A, A + 3 * A
    assert session.arena.requested_peak_bytes == A + HELD + stacked + handed_on + outputs
    assert session.arena.requested_bytes == 0


def test_the_body_of_a_loop_traces_its_pattern_in_its_first_iteration() -> None:
    session = session_for(LOOP, pattern=True)
    sizes = [size for _, size in requested(session)]
    assert sizes[1:6] == [A + HELD + size for size in (A, 2 * A, 2 * A, 3 * A, 2 * A)]
    assert sizes[6] == A + HELD + 2 * A + ROUNDED


def test_a_condition_computed_by_the_body_replaces_the_first() -> None:
    text = LOOP.replace("n = {3}", "n = {3}, int64 m = {2}").replace("Identity(go)", "Less(i, m)")
    session = session_for(text)
    first, *later = [size for op, size in requested(session) if op == "Less"]
    assert first == A + HELD + 2 * A + 1
    # 0 and 1 are less than 2, and the iteration whose number is 2 is the last.
    assert [size - first for size in later] == [2 * A, 3 * A]
    assert session.arena.requested_bytes == 0


SWAP = """agraph (float[23,41] x, float[23,41] u) => (y, c) <int64 n = {4}> {
    a = Exp(x)
    b, c = Loop (n, , a, u) <body = body
        (int64 i, bool go, float[23,41] v, float[23,41] w)
        => (bool go_on, float[23,41] v_on, float[23,41] w_on) {
            go_on = Identity(go)  p = Abs(w)  v_on = Neg(p)  w_on = Identity(v) }>
    y = Neg(b) }"""


def test_a_tensor_carried_unchanged_stays_alive() -> None:
    session = session_for(SWAP)
    ends = [size for op, size in requested(session) if op == "Identity"][1::2]
    assert ends == [A + HELD + size for size in (A, 2 * A, 3 * A, 3 * A)]
    assert session.arena.requested_bytes == 0


def test_a_stacked_tensor_can_be_a_carried_one() -> None:
    text = LOOP.replace("q = Exp(w)  o = Neg(q)", "o = Identity(v)")
    session = session_for(text)
    assert [size for op, size in requested(session) if op == "Loop"] == [A + A + 3 * A]
    assert session.arena.requested_bytes == 0


def test_a_loop_without_iterations_allocates_its_outputs() -> None:
    session = session_for(LOOP.replace("{3}", "{0}"))
    assert requested(session) == [("Exp", A), ("Loop", 2 * A), ("Neg", 2 * A)]


def test_a_loop_of_unknown_length_runs_once() -> None:
    text = LOOP.replace("x) => (y, z) <int64 n = {3}>", "x, int64 n) => (y, z)")
    assert [op for op, _ in requested(session_for(text))].count("Abs") == 1


def test_stacked_tensors_of_a_long_loop_are_counted_together() -> None:
    session = session_for(LOOP.replace("{3}", "{1000}"))
    ops = [op for op, _ in requested(session)]
    assert ops.count("Abs") == 64
    stacked, handed_on, outputs = 1000 * A, 2 * A, A + 1000 * A
    assert session.arena.requested_peak_bytes == A + HELD + stacked + handed_on + outputs


def test_a_loop_without_carried_tensors() -> None:
    text = """agraph (float[7] x) => (z) <int64 n = {2}, bool c = {1}> {
        z = Loop (n, c) <body = body (int64 i, bool go) => (bool go_on, float[7] o) {
            go_on = Identity(go)  o = Exp(x) }> }"""
    assert requested(session_for(text)) == [
        *(("Identity", HELD), ("Exp", HELD + 28), ("Identity", HELD + 28), ("Exp", HELD + 56)),
        ("Loop", 56),
    ]


# Scan


SCAN = """agraph (float[23,41] h, float[3,23,41] x) => (y, z) {
    y, z = Scan <num_scan_inputs = 1, body = body
        (float[23,41] s, float[23,41] v) => (float[23,41] t, float[23,41] o) {
            p = Abs(v)  t = Add(s, p)  o = Neg(t) }> (h, x) }"""


def test_a_scan_allocates_all_outputs_first_and_its_body_writes_there() -> None:
    outputs = A + 3 * A
    turn = [("Abs", outputs + A), ("Add", outputs + A), ("Neg", outputs)]
    assert requested(session_for(SCAN)) == [*turn, *turn, *turn, ("Scan", outputs)]


def test_scratch_of_a_scan_is_allocated_after_its_outputs_and_freed_at_its_end() -> None:
    taken = {"Scan": Scratch((7 * K, 5 * K))}
    session = session_for(SCAN, taken=taken, options=APART)
    samples = session.run()
    assert list(session.arena.regions.values())[:4] == [ROUNDED, 11520, 7 * K, 5 * K]
    assert samples[0].requested_bytes == 4 * A + 12 * K + A
    assert (samples[-1].requested_bytes, samples[-1].scratch_bytes) == (4 * A, 12 * K)


def test_a_stacked_output_of_unknown_shape_is_allocated_in_the_first_iteration() -> None:
    session = session_for(SCAN, shapes={"body/t": ("N", 41), "body/o": ("N", 41)})
    first = [("Abs", 2 * A), ("Add", 2 * A), ("Neg", 4 * A)]
    later = [("Abs", 5 * A), ("Add", 5 * A), ("Neg", 4 * A)]
    assert requested(session) == [*first, *later, *later, ("Scan", 4 * A)]


def test_a_scan_with_an_invalid_num_scan_inputs_is_replayed() -> None:
    session = session_for(SCAN)
    node = session.plan.steps[0].node
    assert isinstance(node.attributes, dict)
    node.attributes["num_scan_inputs"] = "one"
    assert requested(session) == [*requested(session)]


# What is written down


def test_an_inference_is_a_program_with_labeled_allocations() -> None:
    text = """agraph (float[23,41] x) => (y) {
        a = Exp(x)  [n] b = Neg(a)  c = Relu(b)  d = Add(c, a)  [y] y = Neg(d) }"""
    session = session_for(text, pattern=True, taken={"Neg": Scratch((7 * K,), 1)})
    session.run()
    session.run()
    first, later = session.runs
    exp, _, _, add, _ = (node.name for node in first.nodes)
    assert first.program.labels == ("a", "scratch of n", "b", "d", "scratch of y", "y")
    activation, temporary = Category.ACTIVATION, Category.TEMPORARY
    assert first.program.categories == (
        *(activation, temporary, activation, activation, temporary, activation),
    )
    assert first.program.tensors_of(2) == ("b", "c")
    # b and c lie in one buffer; what a node releases comes after its end.
    assert first.program.events.tolist() == [0, 1, 2, ~1, 3, ~0, ~2, 4, 5, ~4, ~3, ~5]
    steps = [first.program.node_at(event) for event in range(12)]
    assert steps == [exp, "n", "n", "n", add, add, add, "y", "y", "y", "y", ""]
    assert first.node_ends.tolist() == [1, 4, 4, 5, 10]
    assert first.traced == (0, 2, 3)
    assert (list(first.program.phase_starts), list(later.program.phase_starts)) == (
        ["run 1"],
        ["run 2"],
    )
    assert later.program.labels == ("memory-pattern buffer", "scratch of n", "scratch of y", "y")
    assert later.program.categories[0] is Category.PATTERN_BUFFER
    assert later.sizes.fixed_bytes.tolist() == [3 * ROUNDED, 7 * K, 7 * K, A]


def test_live_allocations_at_the_peak_are_reported() -> None:
    session = session_for(CHAIN, taken={"Abs": Scratch((5 * K,))})
    session.run()
    (run,) = session.runs
    assert run.requested_peak.size_bytes == 2 * A
    assert run.requested_peak.node == run.nodes[1].name
    assert [(live.label, live.size_bytes) for live in run.replay.live_set(run.requested_peak)] == [
        *(("a", A), ("b", A))
    ]


def test_each_iteration_of_a_body_is_recorded() -> None:
    session = session_for(LOOP)
    session.run()
    (run,) = session.runs
    loop = session.plan.steps[1].node.name
    labels = run.program.labels
    assert labels[1:3] == (f"iteration number of {loop}", f"condition of {loop}")
    assert sum(label.endswith("body/o") for label in labels) == 3
    assert session.arena.requested_bytes == run.replay.live_bytes[-1] == 0


def test_a_value_returned_twice_by_a_body_is_freed_once() -> None:
    text = SWAP.replace("w_on = Identity(v)", "w_on = Identity(w)").replace(
        "p = Abs(w)  v_on = Neg(p)", "v_on = Identity(w)"
    )
    session = session_for(text)
    requested(session)
    assert session.arena.requested_bytes == session.runs[0].replay.live_bytes[-1] == 0


# In onnxruntime


MIXED = """agraph (float[2,3,31,37] x, float[5,3,3,3] w) => (y, s) <int64[1] d = {-1}> {
    a = Conv(x, w)  b = Relu(a)  c = Exp(b)  e = Mul(b, c)  f = Reshape(e, d)  g = Neg(f)
    y = Abs(g)  u = Sigmoid(c)  v = Tanh(e)  s = ReduceSum <keepdims = 0> (u) }"""
GAP = """agraph (float[23,41] x) => (y) {
    a = Exp(x)  b = ReduceSum <keepdims = 1> (a)  c = Add(x, b)  d = ReduceSum <keepdims = 1> (c)
    e = Mul(x, d)  f = ReduceSum(e)  g = Mul(e, f)  h = Mul(c, g)  y = Neg(h) }"""
STRINGS = """agraph (float[23,41] x, string[23] s) => (y, e) {
    a = Exp(x)  b = Neg(a)  y = Abs(b)  d = Concat <axis = 0> (s, s)  f = Concat <axis = 0> (d, s)
    e = Equal(f, f) }"""
WIDTHS = """agraph (float[22,41] x) => (y, w) <float[3] w> {
    a = Cast <to = 3> (x)  b = Cast <to = 22> (a)  c = Cast <to = 21> (b)  d = Cast <to = 1> (c)
    u = Relu(d)  e = Cast <to = 6> (x)  f = Cast <to = 1> (e)  y = Neg(f) }"""
OPEN = "agraph (float[N,41] x) => (y) { a = Exp(x)  b = Neg(a)  c = Abs(b)  y = Neg(c) }"
MEASURED = {
    "chain": CHAIN,
    "convolution": MIXED,
    "gap": GAP,
    "strings": STRINGS,
    "widths": WIDTHS,
    "symbols": OPEN,
    "if": IF,
    "loop": LOOP,
    "swap": SWAP,
    "scan": SCAN,
}


@pytest.mark.usefixtures("without_children")
@pytest.mark.measure
@pytest.mark.parametrize("name", MEASURED)
def test_figures_equal_those_measured_in_onnxruntime(name: str) -> None:
    pytest.importorskip("onnxruntime")
    text = MEASURED[name]
    settings = MeasureSettings(options=SessionOptions(level="off"), runs=3)
    found = measure(model_of(text), settings=settings)
    assert isinstance(found, Measurement)
    first, steady = (loaded(text, found.base_bytes, pattern=pattern) for pattern in (False, True))
    samples = first.run()
    assert [(sample.node.op_type, sample.requested_bytes) for sample in samples] == [
        (node.op_type, node.requested_bytes) for node in found.nodes
    ]
    assert first.arena.in_use_peak_bytes == found.in_use_peak_bytes
    assert first.arena.reserved_bytes == found.held_bytes
    for _ in range(3):
        steady.run()
    assert steady.pattern_bytes == found.pattern_block_bytes
    assert steady.arena.reserved_bytes == found.held_steady_bytes


def loaded(text: str, base_bytes: int | None, *, pattern: bool) -> Replayed:
    """A session in the state of onnxruntime's when the first node begins."""
    open_dims = dict.fromkeys("xabcy", ("N", 41)) if text == OPEN else {}
    session = session_for(text, pattern=pattern, shapes=open_dims, in_order=True)
    graph = session.plan.graph
    session.session.scratch = lambda graph, node: (
        scratch(node.op_type, node.domain, graph.call(node)) or NO_SCRATCH
    )
    copied = sum(tensor_bytes(graph, name) or 0 for name in session.plan.stored_outputs)
    assert base_bytes is not None
    session.arena.reserve(base_bytes - copied)
    return session
