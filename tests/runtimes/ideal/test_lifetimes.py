"""Definitions 3 and 4, clause by clause: who lives when, and who shares whose bytes.

Dims are distinct primes, so that a wrong term cannot cancel. ``own.F`` is an operator that nobody
knows: it is neither a view nor in place, and its outputs have the shapes that the text declares.
"""

from graphs import graph_of

from onnxmem.model.graph import Graph
from onnxmem.runtimes.ideal.lifetimes import read_scope, shared_buffers, tensor_buffers


def graph(text: str, opset: int = 21) -> Graph:
    return graph_of(f'<ir_version: 10, opset_import: ["": {opset}, "own": 1]>' + text)


def spans(text: str) -> dict[str, tuple[int, int]]:
    """Tensor to [start, stop), every tensor on its own."""
    program = read_scope(graph(text), tensor_buffers).replay.program
    starts, stops = program.lifetimes
    # No node runs in the program's first step.
    columns = ((starts - 1).tolist(), (stops - 1).tolist())
    return dict(zip(program.labels, zip(*columns, strict=True), strict=True))


def buffers(text: str, opset: int = 21) -> list[tuple[str, int | None, int, int]]:
    """Tensors, size, start and stop of each buffer."""
    replay = read_scope(graph(text, opset), shared_buffers).replay
    program, known = replay.program, replay.sizes.known
    starts, stops = program.lifetimes
    return [
        (
            " ".join(program.tensors_of(number)),
            replay.sizes.bytes_of(number) if known is None or known[number] else None,
            int(starts[number]) - 1,
            int(stops[number]) - 1,
        )
        for number in range(program.num_allocations)
    ]


# Definition 3


def test_a_tensor_lives_from_its_write_to_its_last_read_inclusive() -> None:
    text = """agraph (uint8[2] x) => (uint8[2] z) <uint8[2] a, uint8[2] b>
    { a = own.F(x)  b = own.F(a)  c = own.F(b)  z = own.F(a) }"""
    assert spans(text)["a"] == (0, 4)
    assert spans(text)["b"] == (1, 3)


def test_a_graph_output_lives_to_the_end() -> None:
    text = """agraph (uint8[2] x) => (uint8[2] a, uint8[2] c)
    { a = own.F(x)  b = own.F(a)  c = own.F(b)  d = own.F(x) }"""
    assert spans(text) == {"a": (0, 4), "b": (1, 3), "c": (2, 4), "d": (3, 4)}


def test_an_unread_tensor_lives_in_its_own_step() -> None:
    text = "agraph (uint8[2] x) => (uint8[2] c) { a, b = own.F(x)  c = own.F(a) }"
    assert spans(text) == {"a": (0, 2), "b": (0, 1), "c": (1, 2)}


def test_a_node_reads_what_its_subgraphs_read() -> None:
    text = """agraph (uint8[2] x, bool c) => (uint8[2] z)
    { a = own.F(x)  b = own.F(x)
      z = If (c) <then_branch = t () => (uint8[2] p) { p = own.F(a) },
                  else_branch = e () => (uint8[2] q) { q = own.F(x) }>
      d = own.F(x) }"""
    assert spans(text)["a"] == (0, 3)
    assert spans(text)["b"] == (1, 2)


def test_inputs_and_weights_are_not_activations_but_their_nodes_are_steps() -> None:
    text = """agraph (float[2] x) => (float[2] y) <float[2] w>
    { k = Constant <value_floats = [1.0, 2.0]> ()  a = own.F(x, w)  y = own.F(a, k) }"""
    assert spans(text) == {"a": (1, 3), "y": (2, 3)}


def test_views_are_tensors_of_their_own_in_definition_3() -> None:
    text = "agraph (uint8[2] x) => (uint8[2] y) { a = Identity(x)  y = Relu(a) }"
    assert spans(text) == {"a": (0, 2), "y": (1, 2)}


def test_an_omitted_output_is_not_a_tensor() -> None:
    text = 'agraph (float[2] x) => (float[2] y) { "", a = own.F(x)  y = own.F(a) }'
    assert set(spans(text)) == {"a", "y"}


# Definition 4: views


def test_every_view_shares_its_inputs_buffer() -> None:
    text = """agraph (float[1,7] x) => (float[3] z) <float[1,7] a, float[3] z>
    { a = own.F(x)
      axes = Constant <value_ints = [0]> ()
      shape = Constant <value_ints = [7, 1]> ()
      b = Squeeze(a, axes)  c = Unsqueeze(b, axes)  d = Reshape(c, shape)
      e = Flatten(d)  f = Identity(e)  z = own.F(f) }"""
    assert buffers(text) == [("a b c d e f", 28, 0, 9), ("z", 12, 8, 9)]


def test_a_buffer_lives_until_the_last_read_of_any_view() -> None:
    text = """agraph (uint8[7] x) => (uint8[3] z) <uint8[7] a, uint8[5] b, uint8[3] z>
    { a = own.F(x)  v = Identity(a)  b = own.F(a)  z = own.F(b, v) }"""
    assert buffers(text) == [("a v", 7, 0, 4), ("b", 5, 2, 4), ("z", 3, 3, 4)]


def test_views_of_a_graph_input_and_their_views_have_no_bytes() -> None:
    text = """agraph (uint8[7] x) => (uint8[3] z) <uint8[3] z>
    { v = Identity(x)  u = Flatten(v)  z = own.F(u) }"""
    assert buffers(text) == [("z", 3, 2, 3)]


def test_a_view_of_a_weight_has_no_bytes() -> None:
    text = """agraph (uint8[2] x) => (uint8[3] z) <uint8[7] w, uint8[3] z>
    { v = Identity(w)  z = own.F(v, x) }"""
    assert buffers(text) == [("z", 3, 1, 2)]


def test_a_view_that_is_a_graph_output_keeps_its_buffer_to_the_end() -> None:
    text = """agraph (uint8[2] x) => (uint8[7] v, uint8[3] z) <uint8[7] a, uint8[3] z>
    { a = own.F(x)  v = Identity(a)  b = own.F(x)  z = own.F(x) }"""
    assert buffers(text)[0] == ("a v", 7, 0, 4)


def test_a_view_of_known_size_gives_its_buffer_that_size() -> None:
    text = """agraph (float[3] x) => (float[3] z) <int64[1] shape = {7}, float[3] z>
    { a = NonZero(x)  v = Reshape(a, shape)  z = own.F(v) }"""
    assert graph(text).tensors["a"].size_bytes is None
    assert buffers(text) == [("a v", 56, 0, 3), ("z", 12, 2, 3)]


# Definition 4: in place


def chain(rest: str, declared: str = "float[7] a, float[3] z", out: str = "float[3] z") -> str:
    return f"agraph (float[7] x) => ({out}) <{declared}> {{ a = own.F(x) {rest} }}"


def test_a_chain_of_in_place_operators_is_one_buffer() -> None:
    text = chain("b = Relu(a)  c = Sigmoid(b)  d = Tanh(c)  z = own.F(d)")
    assert buffers(text) == [("a b c d", 28, 0, 5), ("z", 12, 4, 5)]


def test_an_operator_without_an_in_place_pair_overwrites_nothing() -> None:
    text = chain("b = Add(a, a)  c = Exp(b)  z = own.F(c)")
    assert [name for name, *_ in buffers(text)] == ["a", "b", "c", "z"]


def test_a_buffer_with_a_later_reader_is_not_overwritten() -> None:
    text = chain("b = Relu(a)  c = own.F(a)  z = own.F(b, c)", "float[7] a, float[5] c, float[3] z")
    assert [name for name, *_ in buffers(text)] == ["a", "b", "c", "z"]


def test_a_buffer_whose_view_is_read_later_is_not_overwritten() -> None:
    text = chain("v = Identity(a)  b = Relu(a)  z = own.F(b, v)")
    assert [name for name, *_ in buffers(text)] == ["a v", "b", "z"]


def test_a_buffer_is_overwritten_through_its_view() -> None:
    text = chain("v = Identity(a)  b = Relu(v)  z = own.F(b)")
    assert [name for name, *_ in buffers(text)] == ["a v b", "z"]


def test_a_buffer_whose_original_is_a_graph_output_is_not_overwritten() -> None:
    text = chain("v = Identity(a)  b = Relu(v)  z = own.F(b)", out="float[7] a, float[3] z")
    assert [name for name, *_ in buffers(text)] == ["a v", "b", "z"]


def test_a_buffer_that_the_node_reads_twice_is_not_overwritten() -> None:
    text = """agraph (float[1] x) => (float[3] z) <float a, float[3] z>
    { a = own.F(x)  b = Clip(a, a)  z = own.F(b) }"""
    assert [name for name, *_ in buffers(text)] == ["a", "b", "z"]


def test_a_buffer_that_the_node_reads_through_a_view_as_well_is_not_overwritten() -> None:
    text = """agraph (float[1] x) => (float[3] z) <float a, float[3] z>
    { a = own.F(x)  v = Identity(a)  b = Clip(a, v)  z = own.F(b) }"""
    assert [name for name, *_ in buffers(text)] == ["a v", "b", "z"]


def test_only_the_listed_input_is_overwritten() -> None:
    text = """agraph (float[7] x) => (float[3] z) <float[7] a, float low, float[3] z>
    { a = own.F(x)  low = own.F(x)  b = Clip(a, low)  z = own.F(b) }"""
    assert buffers(text) == [("a b", 28, 0, 4), ("low", 4, 1, 3), ("z", 12, 3, 4)]


def test_a_graph_input_and_its_view_are_not_overwritten() -> None:
    text = """agraph (float[7] x, float[7] y) => (float[3] z) <float[3] z>
    { v = Identity(y)  a = Relu(x)  b = Relu(v)  z = own.F(a, b) }"""
    assert [name for name, *_ in buffers(text)] == ["a", "b", "z"]


def test_a_weight_and_its_view_are_not_overwritten() -> None:
    text = """agraph (float[7] x) => (float[3] z) <float[7] w, float[7] u, float[3] z>
    { v = Identity(w)  a = Relu(u)  b = Relu(v)  z = own.F(a, b, x) }"""
    assert [name for name, *_ in buffers(text)] == ["a", "b", "z"]


def test_a_graph_output_does_not_overwrite_its_input() -> None:
    text = chain("z = Relu(a)", "float[7] a", "float[7] z")
    assert buffers(text) == [("a", 28, 0, 2), ("z", 28, 1, 2)]


def test_a_graph_output_is_not_overwritten_by_the_last_node() -> None:
    text = chain("b = Relu(a)", "float[7] a", "float[7] a")
    assert buffers(text) == [("a", 28, 0, 2), ("b", 28, 1, 2)]


def test_element_sizes_must_be_equal_not_types() -> None:
    text = chain("b = Cast <to = 6> (a)  c = Cast <to = 7> (b)  z = own.F(c)")
    assert buffers(text)[:2] == [("a b", 28, 0, 3), ("c", 56, 2, 4)]


def test_shapes_must_be_known_to_be_equal() -> None:
    text = chain("b = Relu(a)  z = own.F(b)", "float[?] a, float[?] b, float[3] z")
    assert [name for name, *_ in buffers(text)] == ["a", "b", "z"]


def test_shapes_must_be_equal() -> None:
    text = """agraph (float[1] x) => (float[3] z) <float[1,7,1] a, float[3] z>
    { a = own.F(x)  b = DFT(a)  z = own.F(b) }"""
    assert buffers(text, opset=17)[:2] == [("a", 28, 0, 2), ("b", 56, 1, 3)]
    assert buffers(text.replace("[1,7,1]", "[1,7,2]"), opset=17)[0] == ("a b", 56, 0, 3)


def test_an_unread_output_still_overwrites_its_input() -> None:
    text = chain("b = Relu(a)  z = own.F(x)")
    assert buffers(text) == [("a b", 28, 0, 2), ("z", 12, 2, 3)]
