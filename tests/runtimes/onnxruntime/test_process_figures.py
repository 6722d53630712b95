"""The weights and the memory of a process, from the graph of the file and that of the session."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graphs import graph_of, model_of
from onnx import numpy_helper
from runtimes.onnxruntime.test_process_loading import pages
from session_graphs import session_of

from onnxmem.allocators.bfc_arena import BfcArena
from onnxmem.model.binding import Request
from onnxmem.model.building import build, prepare
from onnxmem.model.files import ModelFile
from onnxmem.model.graph import Graph
from onnxmem.runtimes.onnxruntime.kernels.prepacking import Prepacked, initializers, prepacked
from onnxmem.runtimes.onnxruntime.prediction import PlannedSession
from onnxmem.runtimes.onnxruntime.process.baselines import NEWEST
from onnxmem.runtimes.onnxruntime.process.figures import (
    HostProcess,
    ReadPages,
    Resident,
    StoredModel,
    load_spec,
    mapped_pages,
    read_pages,
)
from onnxmem.runtimes.onnxruntime.process.loading import (
    CreatedWeight,
    Loading,
    LoadSpec,
    Region,
    StoredWeight,
    WeightOrigin,
    arena_regions,
)
from onnxmem.runtimes.onnxruntime.session_options import SessionOptions

MIB = 1 << 20


GEMM = """agraph (float[1, 211] x) => (float[1, 307] y) <float[211, 307] w> {
    [m] y = MatMul(x, w)
}"""


def spec_of(model: str, session: str) -> LoadSpec:
    optimized = graph_of(session)
    return load_spec(graph_of(model), optimized, prepacked(optimized), 1009)


def test_a_matrix_packed_by_a_kernel_is_read_and_freed() -> None:
    spec = spec_of(GEMM, GEMM)
    assert (spec.file_bytes, spec.num_nodes) == (1009, 1)
    assert spec.stored == (StoredWeight("w", 4 * 211 * 307, is_external=True),)
    assert spec.created == ()
    assert spec.remaining == {"w"}
    (packed,) = spec.packed
    assert (packed.weight, packed.weight_bytes) == ("w", 4 * 211 * 307)
    assert packed.is_retained
    assert packed.is_last
    assert packed.packed_bytes >= packed.weight_bytes


def test_a_weight_is_freed_after_its_last_packing_reader_unless_one_does_not_pack() -> None:
    graph = graph_of("""agraph (float[1, 7] x) => (float[1, 7] y, float[1, 7] z) <float[7, 7] w> {
        [a] a = MatMul(x, w)
        [b] y = MatMul(a, w)
        [c] z = Add(x, x)
    }""")
    packs = (
        Prepacked("a", "w", 101, is_reserved=True, drops_original=True),
        Prepacked("b", "w", 0, is_reserved=True, drops_original=True, transient_bytes=101),
    )
    rows = load_spec(graph, graph, packs, 0).packed
    assert [(row.packed_bytes, row.is_retained, row.is_last) for row in rows] == [
        (101, True, False),
        (101, False, True),
    ]
    (row,) = load_spec(graph, graph, packs[:1], 0).packed
    assert not row.is_last


def test_nodes_of_the_file_pack_before_nodes_added_by_the_optimizer() -> None:
    model = """agraph (float[7] x) => (float[7] y) <float[7, 7] v, float[7, 7] w> {
        [one] a = MatMul(x, v)
        [two] y = MatMul(a, w)
    }"""
    session = """agraph (float[7] x) => (float[7] y) <float[7, 7] v, float[7, 7] w> {
        [new] a = MatMul(x, v)
        [two] y = MatMul(a, w)
    }"""
    assert [row.weight for row in spec_of(model, session).packed] == ["w", "v"]


TRANSPOSED = """agraph (float[1, 211] x) => (float[1, 307] y) <float[307, 211] w> {
    [t] v = Transpose(w)
    [m] y = MatMul(x, v)
}"""


def test_a_missing_node_with_constant_inputs_was_folded() -> None:
    spec = spec_of(TRANSPOSED, GEMM.replace("w", "v"))
    size = 4 * 211 * 307
    assert spec.created == ((CreatedWeight("v", size, WeightOrigin.FOLDED, "w", size),),)
    assert spec.remaining == {"v"}


def test_a_chain_is_folded_node_by_node_and_equal_nodes_once() -> None:
    spec = spec_of(
        """agraph (float[5, 3] x) => (float[3, 7] y, float[3, 7] z) <float[7, 5] w> {
            [n] a = Neg(w)
            [m] b = Neg(w)
            [t] c = Transpose(a)
            [y] y = MatMul(x, c)
            [z] z = MatMul(x, b)
        }""",
        """agraph (float[5, 3] x) => (float[3, 7] y, float[3, 7] z) <float[5, 7] c, float[7, 5] a> {
            [y] y = MatMul(x, c)
            [z] z = MatMul(x, a)
        }""",
    )
    assert [row.name for row in spec.created[0]] == ["a", "c"]
    assert [row.source for row in spec.created[0]] == ["w", None]


def test_a_remaining_node_was_not_folded() -> None:
    assert spec_of(TRANSPOSED, TRANSPOSED).created == ()


CONV = """agraph (float[1, 3, 16, 16] x) => (float[1, 29, 14, 14] y)
    <float[29, 3, 3, 3] w, float[29] s, float[29] b, float[29] m, float[29] v> {
        [c] c = Conv(x, w)
        [n] y = BatchNormalization(c, s, b, m, v)
    }"""


FUSED_CONV = """agraph (float[1, 3, 16, 16] x) => (float[1, 29, 14, 14] y)
    <float[29, 3, 3, 3] folded, float[29] bias> { [c] y = Conv(x, folded, bias) }"""


def test_a_normalization_is_fused_into_the_filter_before_it() -> None:
    spec = spec_of(CONV, FUSED_CONV)
    size = 4 * 29 * 27
    fused = [row for row in spec.created[0] if row.origin is WeightOrigin.FUSED]
    assert [(row.source, row.size_bytes) for row in fused] == [("w", size)]
    assert "folded" not in {row.name for row in spec.created[0]}, "it is made once"
    assert fused[0].name in spec.remaining


def test_a_blocked_filter_is_computed_from_the_fused_one() -> None:
    session = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft.nchwc" : 1]>
    agraph (float[1, 3, 16, 16] x) => (float[1, 29, 14, 14] y)
        <float[32, 3, 3, 3] blocked, float[32] bias> {
            [c] y = com.microsoft.nchwc.Conv(x, blocked, bias)
        }"""
    spec = spec_of(CONV, session)
    (fused,) = (row for row in spec.created[0] if row.origin is WeightOrigin.FUSED)
    assert spec.created[-1] == (
        CreatedWeight("blocked", 4 * 32 * 27, WeightOrigin.REORDERED, fused.name, 4 * 29 * 27),
    )
    assert fused.name not in spec.remaining


def test_a_scale_after_the_normalization_is_fused_in_a_separate_round() -> None:
    model = CONV.replace(
        "y = BatchNormalization(c, s, b, m, v)",
        "n = BatchNormalization(c, s, b, m, v)\n [k] y = Mul(n, k)",
    ).replace("float[29] s,", "float[29] s, float[29, 1, 1] k,")
    rounds = spec_of(model, FUSED_CONV).created
    fused = [[r.source for r in made if r.origin is WeightOrigin.FUSED] for made in rounds]
    assert [len(sources) for sources in fused] == [1, 1]
    assert fused[0] == ["w"]


def test_a_filter_with_other_readers_of_its_output_is_unchanged() -> None:
    model = CONV.replace("14, 14] y)", "14, 14] y, float[1, 29, 14, 14] r)").replace(
        "[n]", "[r] r = Relu(c) [n]"
    )
    assert spec_of(model, model).created == ()


TABLE = """agraph (int64[3] i, float[5] x) => (float[3, 5000] y, float[5000] z)
    <float[1000, 5000] w, float[5, 5000] u> {
        [g] y = Gather(w, i)
        [r] z = MatMul(x, u)
    }"""


def mapped_bytes(graph: Graph, packed: Sequence[Prepacked] = ()) -> int:
    return 4096 * sum(mapped_pages(graph, graph, packed).values())


def test_inferences_read_rows_of_a_table_and_other_weights_completely() -> None:
    graph = graph_of(TABLE)
    rows = 3 * pages(4 * 5000)
    assert mapped_bytes(graph) == rows + pages(4 * 5 * 5000)
    packed = (Prepacked("r", "u", 101, is_reserved=True, drops_original=True),)
    assert mapped_bytes(graph, packed) == rows


def test_rows_may_be_equal_and_linux_may_map_more_than_a_row() -> None:
    graph = graph_of(TABLE)
    found = read_pages(graph, graph, ())
    whole = pages(4 * 5 * 5000) // 4096
    assert found["w"] == ReadPages(least=5, pages=15, most=3 * (5 + 512))
    assert found["u"] == ReadPages(whole, whole, whole)


def test_weights_of_the_file_itself_are_not_mapped() -> None:
    proto = model_of(GEMM)
    (weight,) = proto.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(np.ones((211, 307), np.float32), "w"))
    graph = build(prepare(ModelFile("<text>", proto, 0)), Request()).graph
    assert mapped_bytes(graph) == 0
    assert load_spec(graph, graph, (), 0).stored == (
        StoredWeight("w", 4 * 211 * 307, is_external=False),
    )


def test_an_arena_lists_its_regions_in_order() -> None:
    arena = BfcArena()
    arena.malloc(0, 1009)
    arena.malloc(1, 3 * MIB)
    assert arena_regions(arena) == (Region(MIB, 1009), Region(4 * MIB, 3 * MIB))


def test_a_region_that_a_shrink_freed_is_listed_where_it_was_added() -> None:
    arena = BfcArena()
    arena.malloc(0, 1009)
    arena.malloc(1, 3 * MIB)
    arena.free(1)
    arena.shrink()
    arena.malloc(2, 5 * MIB)
    assert arena_regions(arena) == (
        Region(MIB, 1009),
        Region(4 * MIB, 3 * MIB, freed_at=2),
        Region(8 * MIB, 5 * MIB),
    )


def test_the_pages_of_a_freed_region_stay_unless_it_was_mapped_or_is_at_the_top() -> None:
    """Regions of 4 MiB are mapped at first; once one was freed, such regions are in the heap."""
    empty = LoadSpec(file_bytes=0, num_nodes=0, num_weights=0, stored=())
    loaded = Loading(empty).run()

    def resident(*regions: Region) -> int:
        return loaded.with_regions(regions).resident_bytes - loaded.resident_bytes

    whole, small = Region(4 * MIB, 4 * MIB), Region(MIB, MIB)
    freed = replace(whole, freed_at=1)
    assert resident(whole) > 4 * MIB
    assert resident(freed) < MIB
    assert resident(freed, whole) > 4 * MIB
    assert resident(freed, replace(whole, freed_at=3), small) > 5 * MIB  # small is above it
    assert resident(freed, replace(whole, freed_at=2), small) < 5 * MIB


def test_unknown_rows_count_as_all_rows() -> None:
    graph = graph_of("""agraph (float[5] x) => (y) <float[1000, 5000] w> {
        [n] i = NonZero(x)
        [g] y = Gather(w, i)
    }""")
    assert mapped_bytes(graph) == pages(4 * 1000 * 5000)


def test_a_bias_after_the_filter_leaves_it_unchanged_and_a_later_scale_does_not() -> None:
    model = CONV.replace(
        "y = BatchNormalization(c, s, b, m, v)", "a = Add(c, k)\n [k] y = Mul(a, k)"
    ).replace("float[29] s,", "float[29, 1, 1] k, float[29] s,")
    ((fused,),) = (
        [r for r in made if r.origin is WeightOrigin.FUSED]
        for made in spec_of(model, FUSED_CONV).created
    )
    assert fused.source == "w"


def test_a_computed_filter_is_not_a_weight() -> None:
    text = """agraph (float[1, 3, 16, 16] x, float[29, 3, 3, 3] w) => (float[1, 29, 14, 14] y) {
        [c] y = Conv(x, w)
    }"""
    assert spec_of(text, text).created == ()


def test_dequantized_weights_stay_if_a_kernel_reads_them_quantized() -> None:
    model = """agraph (float[1, 211] x) => (float[1, 307] y)
        <int8[211, 307] w, float s, int8 z> {
            [d] v = DequantizeLinear(w, s, z)
            [m] y = MatMul(x, v)
        }"""
    taken = """<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>
        agraph (float[1, 211] x) => (float[1, 307] y) <int8[211, 307] w, float s, int8 z> {
            [m] y = com.microsoft.MatMulIntegerToFloat(x, w, s, s, z, z)
        }"""
    assert spec_of(model, taken).created == ()
    ((folded,),) = spec_of(model, GEMM.replace("w", "v")).created
    assert (folded.name, folded.source, folded.source_bytes) == ("v", "w", 211 * 307)


def test_the_shape_of_a_tensor_with_static_dims_is_folded() -> None:
    spec = spec_of(
        """agraph (float[5, 3] x, float[15] t) => (float[5, 3] y) {
            [s] s = Shape(x)
            [r] y = Reshape(t, s)
        }""",
        """agraph (float[5, 3] x, float[15] t) => (float[5, 3] y) <int64[2] s> {
            [r] y = Reshape(t, s)
        }""",
    )
    assert spec.created == ((CreatedWeight("s", 16, WeightOrigin.FOLDED, None, 0),),)


# The two figures


@pytest.mark.parametrize("packs", [True, False])
def test_the_figures_are_sums_of_the_load_the_regions_and_the_feeds(*, packs: bool) -> None:
    file = ModelFile("<text>", model_of(GEMM), 1009)
    prepared = prepare(file)
    bound = build(prepared, Request())
    session = session_of(GEMM, {"x": (1, 211), "y": (1, 307)}, {"x": (1, 211)})
    options = SessionOptions(disable_prepacking=not packs)
    planned = PlannedSession.of(session, options)
    arena, _ = planned.figures()
    process = HostProcess(bound.graph, file.file_bytes, planned)
    retained = prepacked(session.graph) if packs else ()
    made = load_spec(bound.graph, session.graph, retained, 1009)
    assert (
        process.load_peak_bytes
        == Loading(replace(made, regions=arena.loaded_regions)).run().peak_bytes
    )
    region_bytes = pages(4 * 307) + pages(8 * MIB // 256)
    weight_bytes = 0 if packs else pages(4 * 211 * 307)
    packed_bytes = sum(pages(each.size_bytes + 64) for each in retained)
    expected = sum(
        (
            *(NEWEST.process_bytes, NEWEST.library_bytes, NEWEST.running_bytes),
            *(NEWEST.registry_bytes, NEWEST.session_bytes, NEWEST.node_bytes),
            *(len(initializers(session.graph)) * NEWEST.weight_bytes, 2 * NEWEST.kernel_bytes),
            *(4 * 211, region_bytes, weight_bytes, packed_bytes),
        )
    )
    assert process.resident.total_bytes(arena.steady_regions) == pytest.approx(
        expected, abs=6 * 4096
    )


# Where the weights are, and how the C library is set

TWO_WEIGHTS = """agraph (float[1, 211] x) => (float[1, 307] y)
    <float[211, 307] w = {%s}, float[2] b = {3, 5}> {
    m = MatMul(x, w)
    k = Constant <value_ints = [7, 11]> ()
    y = Identity(m)
}"""


def test_weights_of_at_least_1_kib_move_between_the_file_and_the_one_beside_it() -> None:
    text = TWO_WEIGHTS % ", ".join(["1"] * (211 * 307))
    stored = StoredModel(
        build(prepare(ModelFile("<text>", model_of(text), 0)), Request()).graph, 300_007
    )
    size = 4 * 211 * 307
    outside = stored.with_weights("external")
    assert [n for n, t in outside.graph.tensors.items() if t.is_external] == ["w"]
    assert outside.file_bytes == 300_007 - size
    inside = outside.with_weights("inline")
    assert not any(tensor.is_external for tensor in inside.graph.tensors.values())
    assert inside.file_bytes == 300_007


def test_a_process_whose_c_library_returns_memory_takes_no_more() -> None:
    file = ModelFile("<text>", model_of(GEMM), 1009)
    bound = build(prepare(file), Request())
    session = session_of(GEMM, {"x": (1, 211), "y": (1, 307)}, {"x": (1, 211)})
    planned = PlannedSession.of(session, SessionOptions(weights="inline"))
    arena, _ = planned.figures()

    def total(**options: Any) -> int:  # noqa: ANN401 - the fields of SessionOptions
        chosen = replace(planned.options, **options)
        process = HostProcess(bound.graph, file.file_bytes, replace(planned, options=chosen))
        return process.resident.total_bytes(arena.steady_regions)

    inline = total()
    # The freed copy of the file, 1009 bytes and a weight, stays in the heap otherwise.
    assert total(trims_heap=True) <= inline - 4 * 211 * 307 // 2
    assert total(malloc_threshold_bytes=128 << 10) <= inline - 4 * 211 * 307 // 2
    assert total(weights="external") < inline


def test_freed_weights_make_a_range_and_fixed_thresholds_settle_it() -> None:
    weights = [f"float[1009, 1511] w{number}" for number in range(3)]
    products = [f"y{number} = MatMul(x, w{number})" for number in range(3)]
    text = f"""agraph (float[1, 1009] x) => (float[1, 1511] y0) <{", ".join(weights)}> {{
        {" ".join(products)}
    }}"""
    file = ModelFile("<text>", model_of(text), 3 * 4 * 1009 * 1511)
    graph = build(prepare(file), Request()).graph
    shapes = {"x": (1, 1009), **{f"y{number}": (1, 1511) for number in range(3)}}
    planned = PlannedSession.of(
        session_of(text, shapes, {"x": (1, 1009)}), SessionOptions(weights="inline")
    )
    arena, _ = planned.figures()

    def resident(**options: Any) -> Resident:  # noqa: ANN401 - the fields of SessionOptions
        chosen = replace(planned.options, **options)
        return HostProcess(graph, file.file_bytes, replace(planned, options=chosen)).resident

    found, point = resident(), resident().total_bytes(arena.steady_regions)
    least, most = found.range_bytes(arena.steady_regions) or (0, 0)
    assert least <= point <= most == point + found.more_bytes(arena.steady_regions)
    assert most - least >= 4 * 1009 * 1511  # at least one freed weight's place is not used again
    fixed = resident(malloc_threshold_bytes=128 << 10)
    assert fixed.range_bytes(arena.steady_regions) is None
    assert fixed.more_bytes(arena.steady_regions) == 0
