"""Whether a model fits: the search, what is held, instances, and the command."""

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from golden_text import assert_golden
from graphs import model_of
from hypothesis import example, given
from hypothesis import strategies as st
from models_on_disk import HOSTILE, MYSTERY, write_hostile_model, write_model
from paths import MODELS
from without_children import work_without_children

from onnxmem.analysis.analysis import analyze
from onnxmem.analysis.fitting.assessing import FitRequest, FitResult, fit
from onnxmem.analysis.fitting.footprints import (
    Deployment,
    Footprint,
    footprint_of,
    on_device,
    request_of,
)
from onnxmem.analysis.fitting.searching import Search, crossing, largest_fitting
from onnxmem.analysis.fitting.verdicts import (
    ACCURACIES,
    BASES,
    PARTIAL,
    Accuracy,
    Basis,
    Demand,
    Doubt,
    Verdict,
    basis_for,
    compared_bytes,
)
from onnxmem.analysis.scaling import LARGEST_BATCH
from onnxmem.cli import main
from onnxmem.decisions.devices import catalog
from onnxmem.errors import UsageError
from onnxmem.runtimes.onnxruntime.cpu import cpu_named
from onnxmem.runtimes.onnxruntime.process.figures import Resident
from onnxmem.settings import Settings

Capture = pytest.CaptureFixture[str]
LINEAR = "agraph (float[N,5] x) => (float[N,7] y) <float[5,7] w> { y = MatMul(x, w) }"
"""140 bytes of weights; 20 and 28 a sample."""
ATTENTION = """agraph (float[B,S,8] q) => (float[B,S,S] y) {
    t = Transpose <perm = [0, 2, 1]> (q)  y = MatMul(q, t) }"""


class Counted:
    """Bytes by a rule; records the requested numbers."""

    def __init__(self, rule: Callable[[int], int | None]) -> None:
        self.rule = rule
        self.asked: list[int] = []

    def __call__(self, number: int) -> int | None:
        self.asked.append(number)
        return self.rule(number)


# The search.


def largest_within(rule: Callable[[int], int], limit: int) -> int:
    """The largest number whose bytes, which never fall, are within a limit; 0 if none is."""
    return bisect_right(range(1, LARGEST_BATCH), limit, key=rule)


@given(st.integers(0, 10**6), st.integers(1, 5000), st.integers(0, 9), st.integers(0, 10**9))
def test_the_largest_batch_of_a_polynomial_is_exact(
    fixed: int, slope: int, bend: int, limit: int
) -> None:
    def rule(number: int) -> int:
        return fixed + slope * number + bend * number * number

    bytes_at = Counted(rule)
    reach = crossing(bytes_at, limit)
    number = largest_within(rule, limit)
    num_bytes = rule(number) if number else None
    assert reach is not None
    assert (reach.number, reach.num_bytes, reach.over_bytes) == (
        number,
        num_bytes,
        rule(number + 1),
    )
    if reach.number:
        assert reach.method == "closed form"
        assert len(bytes_at.asked) <= 6


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 5000)), min_size=1, max_size=4),
    st.integers(0, 10**8),
)
def test_the_largest_batch_of_several_lines_is_exact(
    lines: list[tuple[int, int]], limit: int
) -> None:
    def rule(number: int) -> int:
        return max(fixed + slope * number for fixed, slope in lines)

    found = crossing(rule, limit)
    number = largest_within(rule, limit)
    assert found is not None
    assert (found.number, found.over_bytes) == (number, rule(number + 1))


def search_of(
    size_at: Callable[[int], int], least_at: Callable[[int], int], limit: int, most: int = 400
) -> Search:
    """A search whose allocator takes more than the live bytes, and runs in a tenth less."""

    def demand(number: int) -> Demand:
        size, least = size_at(number), least_at(number)
        return Demand(
            size_bytes=size,
            more_bytes=3,
            least_bytes=least,
            taken_in=lambda limit: (
                taken if (taken := max(size * 9 // 10, least)) <= limit else None
            ),
        )

    return Search(limit, Accuracy(None, "made up"), demand, lambda _: most)


def verdict_by_hand(size: int, least: int, limit: int) -> Verdict:
    """The expected verdict by the documented rule."""
    if size + 3 <= limit:
        return Verdict.FITS
    if size <= limit or max(size * 9 // 10, least) <= limit:
        return Verdict.TIGHT
    return Verdict.OVER


NOISE = st.lists(st.integers(0, 400), min_size=320, max_size=320)


@given(NOISE, st.integers(0, 3000))
def test_bytes_that_rise_and_fall_are_evaluated_at_every_number(
    noise: list[int], limit: int
) -> None:
    def size(number: int) -> int:
        return 10 * number + (noise[number] if number < 320 else 0)

    def least(number: int) -> int:
        return 10 * number

    found = largest_fitting(search_of(size, least, limit), is_rising=False)
    assert found is not None
    by_hand = [verdict_by_hand(size(n), least(n), limit) for n in range(1, 320)]
    first_over = by_hand.index(Verdict.OVER) + 1
    assert found.number == first_over - 1
    first_tight = next(n for n, each in enumerate(by_hand, 1) if each is not Verdict.FITS)
    assert found.comfortable == first_tight - 1
    again = {n for first, last in found.above for n in range(first, last + 1)}
    assert again == {n for n, each in enumerate(by_hand, 1) if n > first_over and each.is_met}
    assert found.over_bytes == size(first_over)


@given(NOISE, st.integers(20_000, 60_000))
def test_only_numbers_near_the_limit_are_evaluated_if_there_are_too_many(
    noise: list[int], limit: int
) -> None:
    def size(number: int) -> int:
        return 10 * number + noise[number % 320]

    search = search_of(size, lambda number: 10 * number, limit, most=100)
    found = largest_fitting(search, is_rising=False)
    assert found is not None
    assert found.number
    assert found.method == "replays"
    assert search.verdict(found.number).is_met
    assert search.verdict(found.number + 1) is Verdict.OVER


@example(step=343, extra=60, top=1_063)
@given(st.integers(20, 400), st.integers(60, 200), st.integers(600, 3000))
def test_samples_find_the_numbers_that_every_number_finds(step: int, extra: int, top: int) -> None:
    """Segments in multiples of a step: bytes rise and fall in teeth, like those of PyTorch."""

    def size(number: int) -> int:
        return -(-(10 + extra // 20) * number // step) * step + (extra * number) % step

    def least(number: int) -> int:
        return 10 * number

    every, some = (
        largest_fitting(search_of(size, least, 10 * top, most), is_rising=False)
        for most in (10_000, 128)
    )
    assert every is not None
    assert some is not None
    assert some.num_replayed < every.num_replayed == top
    assert (some.number, some.comfortable) == (every.number, every.comfortable)


@given(st.integers(1, 50), st.integers(0, 300), st.integers(17, 50_000))
def test_where_each_number_costs_a_walk_few_are_tried(step: int, extra: int, top: int) -> None:
    """Bytes in steps that never fall, as of an arena that grows by regions."""

    def size(number: int) -> int:
        return -(-(10 * number + extra) // step) * step

    few, every = (
        search_of(size, lambda number: 10 * number, 10 * top, most) for most in (0, 50_000)
    )
    found, exact = (largest_fitting(each, is_rising=False) for each in (few, every))
    assert found is not None
    assert exact is not None
    assert found.num_replayed == len(few.numbers()) <= 60
    assert (found.number or 0) <= (exact.number or 0)
    if found.number:
        assert few.verdict(found.number).is_met
        assert few.verdict(found.number + 1) is Verdict.OVER
        assert (found.number, found.comfortable) == (exact.number, exact.comfortable)


def test_the_largest_batch_of_a_session_with_branches_takes_few_replays() -> None:
    model = model_of(
        """agraph (float[N,1031] x) => (float[N,1031] y) {
            s = ReduceSum <keepdims = 0> (x) z = Constant <value = float {0.0}> ()
            c = Greater(s, z)
            y = If (c) <then_branch = a () => (float[N,1031] t) { e = Exp(x) t = Sin(e) },
                else_branch = b () => (float[N,1031] f) { f = Neg(x) }> }"""
    )
    found = analyze(model, budget_bytes=2**30, runtimes=["ort-cpu"], asks_onnxruntime=False).fit
    assert found is not None
    assert found.max_batch is not None
    assert (found.max_batch.number or 0) > 10_000
    assert found.max_batch.num_replayed < 50


def test_bytes_that_never_fall_have_one_first_tight_number() -> None:
    search = search_of(lambda n: 10 * n, lambda n: 10 * n, 1000)
    found = largest_fitting(search, is_rising=True)
    assert found is not None
    assert (found.number, found.comfortable) == (100, 99)


def test_where_nothing_is_tight_no_place_is_sought_where_tight_begins() -> None:
    tried = []

    def exact(number: int) -> Demand:
        tried.append(number)
        return Demand(size_bytes=10 * number, least_bytes=10 * number)

    found = largest_fitting(Search(10**9, Accuracy(None, "made up"), exact), is_rising=True)
    assert found is not None
    assert found.number == found.comfortable == 10**8
    assert len(tried) <= 6


def test_a_search_of_unknown_bytes_finds_nothing() -> None:
    search = Search(1000, Accuracy(None, "made up"), lambda _: None)
    assert largest_fitting(search, is_rising=True) is None
    assert largest_fitting(search, is_rising=False) is None
    assert search.verdict(1) is Verdict.UNKNOWN


def test_an_allocator_without_a_limit_is_replayed_at_the_largest_number() -> None:
    found = largest_fitting(search_of(lambda _: 5, lambda _: 5, 1000), is_rising=False)
    assert found is not None
    assert (found.number, found.num_bytes) == (None, 5)


def test_a_number_that_cannot_be_computed_stops_the_search() -> None:
    reach = crossing(lambda n: 10 * n if n <= 512 else None, 10**6)
    assert reach is not None
    assert (reach.number, reach.over_bytes, reach.is_stopped) == (512, None, True)
    assert crossing(lambda _: None, 10**6) is None


def test_bytes_that_do_not_grow_have_no_largest_batch() -> None:
    reach = crossing(lambda _: 7, 10)
    assert reach is not None
    assert reach.number is None


# What is held.


@pytest.mark.parametrize(
    ("kind", "train", "runtime", "basis"),
    [
        ("cuda", True, None, Basis.TORCH),
        (None, True, None, Basis.TORCH),
        ("cpu", True, "ort-cpu", Basis.STEP),
        ("cuda", False, None, Basis.TOTAL),
        ("cpu", False, "ort-cpu", Basis.ORT_CPU),
        ("mcu", False, None, Basis.MCU),
        ("gpu", False, None, Basis.TOTAL),
        (None, False, None, Basis.TOTAL),
        ("cuda", False, "none", Basis.TOTAL),
        ("cuda", False, "ort-cpu", Basis.ORT_CPU),
    ],
)
def test_the_compared_figure_depends_on_the_device(
    kind: str | None,
    train: bool,
    runtime: str | None,
    basis: Basis,
) -> None:
    assert basis_for(kind, train=train, runtime=runtime) is basis
    assert set(BASES) == set(Basis)


def compared_footprint(basis: Basis, **asked: object) -> Footprint:
    settings = Settings(batch=3, asks_onnxruntime=False, **asked)  # type: ignore[arg-type]
    return footprint_of(request_of(model_of(LINEAR), settings), basis)


def test_the_total_is_a_sum_in_which_weights_can_be_shared() -> None:
    total = compared_footprint(Basis.TOTAL)
    assert total.total_bytes == 140 + 3 * (20 + 28)
    assert (total.shared_bytes, total.own_bytes) == (140, 144)
    assert compared_footprint(Basis.MCU).total_bytes == 144


def test_training_counts_the_context() -> None:
    step, torch = (
        compared_footprint(Basis.STEP, train=True),
        compared_footprint(Basis.TORCH, train=True),
    )
    assert torch.context.size_bytes == 512 * 2**20
    assert torch.total_bytes > step.total_bytes + torch.context.size_bytes
    assert torch.common_bytes == 0  # every training is a process of its own
    own = compared_footprint(Basis.TORCH, train=True, cuda_context_bytes=1009)
    assert torch.total_bytes - own.total_bytes == 512 * 2**20 - 1009


def test_a_process_or_context_counts_once_per_runtime() -> None:
    cpu, cuda = (
        compared_footprint(Basis.ORT_CPU),
        compared_footprint(Basis.ORT_CUDA, cuda_context_bytes=2**20 + 1),
    )
    assert cpu.common_bytes > 50_000_000
    assert cpu.total_bytes > cpu.common_bytes + cpu.shared_bytes
    assert cuda.common_bytes == cuda.context.size_bytes == 2**20 + 1
    workspace = compared_footprint(
        Basis.ORT_CUDA, cuda_context_bytes=2**20 + 1, cuda_workspace_bytes=997
    )
    assert workspace.total_bytes == cuda.total_bytes + 997


def test_instances_share_a_process_and_optionally_weights() -> None:
    one = Footprint(total_bytes=3 + 5 + 11, common_bytes=3, shared_bytes=5)
    other = Footprint(total_bytes=7 + 13 + 17, common_bytes=7, shared_bytes=13)
    apart, shared = Deployment(instances=2), Deployment(instances=2, shares_weights=True)
    assert apart.bytes_of([one, other]) == 7 + 2 * (5 + 11) + 2 * (13 + 17)
    assert shared.bytes_of([one, other]) == 7 + 5 + 2 * 11 + 13 + 2 * 17
    for deployment in (apart, shared):
        for limit in range(40, 400):
            count = deployment.largest([one, other], limit)
            assert count is not None
            fits = replace(deployment, instances=count).bytes_of([one, other]) if count else 0
            assert fits <= limit < replace(deployment, instances=count + 1).bytes_of([one, other])


@pytest.mark.parametrize("basis", [Basis.ORT_CPU, Basis.ORT_CUDA])
def test_processes_have_a_context_each(basis: Basis) -> None:
    request = request_of(model_of(LINEAR), Settings(asks_onnxruntime=False))
    one = fit([request], FitRequest(memory_bytes=2**32, basis=basis))
    size_bytes = one.requested.num_bytes
    assert size_bytes is not None
    assert one.processes == one.setup.limit_bytes // size_bytes
    assert one.instances is not None
    assert one.instances > one.processes > 0
    several = replace(one, setup=replace(one.setup, deployment=Deployment(instances=2)))
    assert several.processes is None
    assert answer().processes is None


# Answers.


def answer(text: str = LINEAR, memory_bytes: int = 10**6, **asked: object) -> FitResult:
    dim = asked.pop("dim", None)
    settings = Settings(asks_onnxruntime=False, **asked)  # type: ignore[arg-type]
    setup = FitRequest(memory_bytes=memory_bytes, dim=dim)  # type: ignore[arg-type]
    return fit([request_of(model_of(text), settings)], setup)


def test_the_largest_batch_and_its_neighbor() -> None:
    found = answer(batch=3, memory_bytes=140 + 48 * 101 + 47)
    assert found.verdict is Verdict.FITS
    assert found.max_batch is not None
    assert (found.max_batch.number, found.max_batch.method) == (101, "closed form")
    assert found.max_batch.over_bytes == 140 + 48 * 102
    assert found.power_of_two is not None
    assert (found.power_of_two.number, found.is_power_better) == (64, False)
    assert [row.number for row in found.table] == [1, 3, 8, 16, 32, 64, 101, 102, 128]


@pytest.mark.parametrize(
    ("dims", "until", "at"),
    [
        ("float[N,S]", "--dim S=N is given", "S = 1"),
        ("float[N,S,T]", "--dim S=N --dim T=N are given", "S = 1, T = 1"),
    ],
)
def test_the_first_line_of_an_unknown_verdict_names_the_dims_that_settle_it(
    dims: str, until: str, at: str, tmp_path: Path, capsys: Capture
) -> None:
    text = f"agraph ({dims} x) => ({dims} y) {{ y = Relu(x) }}"
    net = str(tmp_path / write_model(tmp_path / "net.onnx", text))
    assert main(["fit", net, "--device", "1MiB", "--batch", "4"]) == 3
    verdict, largest = capsys.readouterr().out.partition("Verdict")[2].split("Largest batch")
    assert " ".join(verdict.split()).startswith(
        f"unknown until {until}: at most 1.00 MiB free, at {at}"
    )
    assert ": recommended" not in largest
    assert main([net, "--budget", "1MiB", "--batch", "4"]) == 3
    title = capsys.readouterr().out.partition("Unknown if it fits")[2]
    assert " ".join(title.split()).startswith(f"1.00 MiB until {until}: takes")
    assert main([net, "--budget", "1MiB", "--batch", "4", "-q"]) == 3
    assert f": unknown until {until}: " in capsys.readouterr().out
    # Where the user accepts it, the verdict is as any other.
    given = ["--device", "1MiB", "--batch", "4", "--accept", "unbound_dims"]
    assert main(["fit", net, *given]) == 0
    assert " until " not in capsys.readouterr().out


def test_a_power_of_two_of_an_unknown_verdict_is_not_recommended(tmp_path: Path) -> None:
    text = "agraph (float[N,S] x) => (float[N,S] y) { y = Relu(x) }"
    write_model(tmp_path / "net.onnx", text)
    request = request_of(str(tmp_path / "net.onnx"), Settings(batch=1))
    for accepted, is_better in ((frozenset({"unbound_dims"}), True), (frozenset[str](), False)):
        found = fit([request], FitRequest(memory_bytes=8 * 66, accepted=accepted))
        assert found.power_of_two is not None
        assert (found.power_of_two.number, found.fits_up_to) == (64, 66)
        assert found.is_power_better is is_better


def test_a_power_of_two_that_costs_little_is_recommended() -> None:
    found = answer(memory_bytes=140 + 48 * 70)
    assert found.is_power_better
    assert not answer(memory_bytes=140 + 48 * 64).is_power_better  # it is one already


def test_reserved_memory_is_not_available() -> None:
    request = request_of(model_of(LINEAR), Settings())
    setup = FitRequest(memory_bytes=1000, reserve_bytes=900)
    assert fit([request], setup).verdict is Verdict.OVER
    assert fit([request], replace(setup, reserve_bytes=1009)).setup.limit_bytes == 0


def test_a_code_that_affects_no_verdict_cannot_be_accepted() -> None:
    with pytest.raises(UsageError) as caught:
        FitRequest(memory_bytes=1, accepted=frozenset({"batch_fixed", "unbound_dim"}))
    assert str(caught.value).startswith(
        "--accept 'unbound_dim': no verdict depends on this code; did you mean 'unbound_dims'? the "
        "codes are batch_fixed, contradictory_types, "
    )


def test_the_largest_value_of_a_quadratic_dim_is_its_root() -> None:
    """The query and its transpose take 32 bytes per sequence element, y takes 4 x S x S."""
    found = answer(ATTENTION, batch=1, dim="S", memory_bytes=10**6)
    assert found.max_batch is not None
    assert found.max_batch.method == "closed form"
    number = found.max_batch.number
    assert number is not None
    assert 64 * number + 4 * number**2 <= 10**6 < 64 * (number + 1) + 4 * (number + 1) ** 2


def test_a_lower_bound_never_passes_and_can_fail() -> None:
    assert answer(MYSTERY).verdict is Verdict.UNKNOWN
    assert answer(MYSTERY).max_batch is None
    assert answer(MYSTERY, memory_bytes=100).verdict is Verdict.OVER


@pytest.mark.parametrize(
    ("ram_bytes", "flash_bytes", "verdict", "limited_by", "margin_bytes", "largest"),
    [
        (48, 140, Verdict.FITS, (), 0, 1),  # both exactly full
        (97, 10**6, Verdict.FITS, (), 10**6 - 140, 2),
        (47, 140, Verdict.OVER, ("ram",), 0, 0),
        (10**6, 139, Verdict.OVER, ("flash",), -1, 0),
        (47, 139, Verdict.OVER, ("ram", "flash"), -1, 0),
        (48, None, Verdict.FITS, None, None, 1),
    ],
)
def test_the_memory_of_a_microcontroller_that_is_too_small_limits(
    ram_bytes: int,
    flash_bytes: int | None,
    verdict: Verdict,
    limited_by: tuple[str, ...] | None,
    margin_bytes: int | None,
    largest: int,
) -> None:
    """Weights: 140 B in flash; inputs and activations: 48 B a sample in RAM."""
    setup = FitRequest(memory_bytes=ram_bytes, flash_bytes=flash_bytes, basis=Basis.MCU)
    found = fit([request_of(model_of(LINEAR), Settings())], setup)
    assert (found.verdict, found.limited_by) == (verdict, limited_by)
    assert found.requested.flash_margin_bytes == margin_bytes
    assert found.max_batch is not None
    assert found.max_batch.number == largest


QUANTIZED = """
<ir_version: 8, opset_import: ["" : 17]>
quantized (float[7,11] x) => (float[7,13] y)
<float sx = {0.5}, float sw = {0.25}, float sy = {0.75},
 int8 zx = {0}, int8 zw = {0}, int8 zy = {0}, int8[11,13] w> {
    qx = QuantizeLinear (x, sx, zx)
    fx = DequantizeLinear (qx, sx, zx)
    fw = DequantizeLinear (w, sw, zw)
    fy = MatMul (fx, fw)
    qy = QuantizeLinear (fy, sy, zy)
    y = DequantizeLinear (qy, sy, zy)
}
"""


def test_a_microcontroller_has_integer_kernels() -> None:
    """Q, QLinearMatMul, DQ: 91 B of qy and 364 B of y at the peak, beside the 308 B of x."""
    request = request_of(model_of(QUANTIZED), Settings(asks_onnxruntime=False))
    there = on_device(request, None, Basis.MCU)
    setup = FitRequest(memory_bytes=10**6, flash_bytes=10**6, basis=Basis.MCU)
    assert fit([there], setup).footprint.total_bytes == 91 + 364 + 308
    in_the_file = 364 + 572 + 308 + 308  # fy, fw, fx, x
    assert fit([request], setup).footprint.total_bytes == in_the_file
    assert on_device(request, None, Basis.TOTAL) is request
    float_request = request_of(model_of(LINEAR), Settings())
    assert on_device(float_request, None, Basis.MCU) is float_request


def test_flash_limits_no_other_device() -> None:
    setup = FitRequest(memory_bytes=10**6, flash_bytes=1, basis=Basis.TOTAL)
    found = fit([request_of(model_of(LINEAR), Settings())], setup)
    assert (found.verdict, found.limited_by) == (Verdict.FITS, None)


# The command.


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    work_without_children(monkeypatch, tmp_path)
    return write_model(tmp_path / "net.onnx")


def test_fit_of_a_training_step_on_a_gpu(net: str, capsys: Capture) -> None:
    assert main(["fit", net, "--device", "rtx 3060", "--train", "--batch", "16"]) == 0
    assert_golden(capsys.readouterr().out, "fit_train.txt")


def test_fit_of_three_instances_on_a_board(net: str, capsys: Capture) -> None:
    flags = [
        "--device",
        "raspberry pi 3",
        "--instances",
        "3",
        "--share-weights",
        "--runtime",
        "ort-cpu",
    ]
    assert main(["fit", net, *flags, "--cpu", "arm64"]) == 0
    assert_golden(capsys.readouterr().out, "fit_instances.txt")


def bytes_on(capsys: Capture, *flags: str) -> int:
    """What a session takes on a Raspberry Pi."""
    assert main(["fit", "net.onnx", *PI, *flags, "--json"]) == 0
    taken: int = json.loads(capsys.readouterr().out)["bytes"]
    return taken


PI = ("--device", "Raspberry Pi 4B 2GB", "--runtime", "ort-cpu")


@pytest.mark.usefixtures("net")
def test_a_session_runs_on_the_cpu_of_the_device_by_default(capsys: Capture) -> None:
    on = {cpu: bytes_on(capsys, "--cpu", cpu) for cpu in ("arm64", "avx2", "avx512")}
    assert len(set(on.values())) > 1
    assert bytes_on(capsys) == on["arm64"]
    here = cpu_named("native").name
    assert bytes_on(capsys, "--cpu", "native") == on[here]
    for flags, told in (((), "CPU arm64 (the device's),"), (("--cpu", "avx2"), "CPU avx2,")):
        assert main(["fit", "net.onnx", *PI, *flags]) == 0
        assert told in capsys.readouterr().out


def test_the_cpu_of_a_device_does_not_matter_on_cuda(net: str, capsys: Capture) -> None:
    assert main(["fit", net, "--device", "Jetson Nano", "--runtime", "ort-cuda"]) == 0
    assert "arm64" not in capsys.readouterr().out


def test_each_device_is_ranked_by_its_own_cpu(net: str, tmp_path: Path, capsys: Capture) -> None:
    own = "\n".join(
        f"[[device]]\nname = 'own {cpu}'\nmemory = '3 GiB'\nkind = 'cpu'\ncpu = '{cpu}'"
        for cpu in ("arm64", "avx2")
    )
    (tmp_path / "own.toml").write_text(own)
    words = ["fit", net, "--which-device", "--devices", "own.toml", "--runtime", "ort-cpu"]

    def ranked(*flags: str) -> dict[str, tuple[int, str | None]]:
        assert main([*words, *flags, "--json"]) == 0
        devices = json.loads(capsys.readouterr().out)["devices"]
        return {each["name"]: (each["bytes"], each["cpu"]) for each in devices}

    found = ranked()
    arm, avx2 = bytes_on(capsys), bytes_on(capsys, "--cpu", "avx2")
    assert found["own arm64"] == found["Jetson Nano"] == (arm, "arm64")
    assert found["own avx2"] == (avx2, "avx2")
    assert found["RTX 3090"][1] is None
    assert set(ranked("--cpu", "avx2").values()) == {(avx2, None)}
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "Compared (ort-cpu, arm64)" in told
    assert "  ort-cpu, avx2  " in told
    assert main(["fit", net, "--which-device", "--devices", "own.toml", "--json"]) == 0
    assert {x["cpu"] for x in json.loads(capsys.readouterr().out)["devices"]} == {None}


def test_fit_on_cuda_and_on_a_microcontroller(net: str, capsys: Capture) -> None:
    flags = ["--runtime", "ort-cuda", "--batch", "5", "--cuda-context", "300MiB"]
    assert main(["fit", net, "--device", "T4", *flags]) == 0
    cuda = capsys.readouterr().out
    assert main(["fit", net, "--device", "STM32F407", "--reserve", "100KiB"]) == 0
    assert_golden(cuda + "\n" + capsys.readouterr().out, "fit_devices.txt")


def test_the_sizes_of_a_microcontroller_are_a_device(net: str, capsys: Capture) -> None:
    """The weights of net.onnx: 216 + 8 + 5,120 + 10 floats."""
    for flash, code, words in (
        ("1MiB", 0, "Verdict                     fits: "),
        ("20KiB", 1, "  limited by                flash\n"),
    ):
        assert main(["fit", net, "--device", f"flash={flash},RAM=20KiB"]) == code
        assert words in capsys.readouterr().out
    assert main(["fit", net, "--device", "ram=1KiB,flash=20KiB", "--json"]) == 1
    row = json.loads(capsys.readouterr().out)
    assert row["limited_by"] == ["ram", "flash"]
    assert (row["flash_bytes"], row["flash_margin_bytes"]) == (20 * 2**10, 20 * 2**10 - 4 * 5354)


def test_the_verdict_names_what_is_compared_with_ram_and_with_flash(
    net: str, capsys: Capture
) -> None:
    """At batch 1 the arena has the image (3 x 16 x 16 floats), conv (8 x 16 x 16) and pool."""
    assert main(["fit", net, "--device", "ram=20KiB,flash=1MiB"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    verdict = text.partition("Verdict ")[2].partition(" takes ")[0]
    assert ": tensor arena 13.0 KiB in 20.0 KiB of RAM" in verdict
    assert "weights 20.9 KiB in 1.00 MiB of flash" in verdict


def test_a_small_size_is_compared_as_the_ram_of_a_microcontroller_too(
    net: str, capsys: Capture
) -> None:
    """The tensors of net.onnx do not fit 20 KiB, but its tensor arena does."""
    assert main(["fit", net, "--device", "20KiB"]) == 1
    lines = capsys.readouterr().out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("Verdict "))
    assert "does not fit" in lines[start]
    text = " ".join(" ".join(lines[start + 1 : start + 4]).split())
    assert text.startswith("as RAM alone 13.0 KiB of a microcontroller, fits: 7.00 KiB free")
    assert "--device ram=20KiB,flash=2MB" in text
    assert main(["fit", net, "--device", "20GiB"]) == 0
    assert "microcontroller" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("ram=512KiB", "'ram=512KiB': give both sizes, as in ram=512KiB,flash=2MiB"),
        ("ram=1KiB,ram=2KiB", "give both sizes, as in ram=512KiB,flash=2MiB"),
        ("ram=1KiB,flash=x", "size 'x': not understood; write GB for 10^9 or GiB for 2^30 bytes"),
        ("ram=1KiB,flash=2", "2 means 2 bytes; write 2GiB, or 2B for bytes"),
    ],
)
def test_wrong_sizes_of_a_microcontroller_are_one_line(
    device: str, message: str, net: str, capsys: Capture
) -> None:
    assert main(["fit", net, "--device", device]) == 2
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert message in told.err


def test_the_smallest_devices_that_fit_are_listed(net: str, capsys: Capture) -> None:
    assert main(["fit", net, "--which-device", "--train", "--batch", "64"]) == 0
    told = capsys.readouterr().out
    sizes = [line.split() for line in told.splitlines() if "GiB " in line and "training" in line]
    assert sizes
    assert main(["fit", net, "--which-device", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["devices"]) == len(catalog().devices)
    fitting = [each["limit_bytes"] for each in document["devices"] if each["fits"]]
    assert fitting == sorted(fitting)
    assert main(["fit", net, "--which-device", "--reserve", "4TiB"]) == 1


def test_the_exit_code_tells_fits_from_over_unknown_and_wrong_usage(
    net: str, tmp_path: Path, capsys: Capture
) -> None:
    write_model(tmp_path / "mystery.onnx", MYSTERY)
    assert main(["fit", net, "--device", "1MiB"]) == 0
    assert main(["fit", net, "--device", "1KiB"]) == 1
    assert main(["fit", "mystery.onnx", "--device", "1MiB"]) == 3
    assert main(["fit", "absent.onnx", "--device", "1MiB"]) == 2
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    assert main(["fit", net, "broken.onnx", "--device", "1MiB", "--json"]) == 3
    assert "broken.onnx" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ([], "name a device or a size"),
        (["--device", "4090"], "unknown device '4090'; did you mean RTX 4090"),
        (["--device", "24G"], "a size such as 24GiB is also accepted"),
        (["--device", "1MiB", "--dim", "Z=?"], "--dim Z=?: the model does not have this dim"),
        (["--device", "1MiB", "--dim", "N=?", "--dim", "M=?"], "one dim at a time can be free"),
        (["--which-device", "--dim", "N=?"], "give the dim a number"),
        (["--device", "1MiB", "--train", "--share-weights"], "trainings share no weights"),
        (["--device", "1MiB", "--dim", "N=x"], "'x' is not a positive integer"),
    ],
)
def test_invalid_arguments_are_rejected(
    net: str, flags: list[str], told: str, capsys: Capture
) -> None:
    assert main(["fit", net, *flags]) == 2
    assert told in capsys.readouterr().err


def test_json_has_the_whole_result(net: str, capsys: Capture) -> None:
    assert main(["fit", net, "--device", "1MiB", "--batch", "2", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["schema"], row["schema_version"]) == ("onnxmem.fit", "1.0")
    assert row["fits"] is True
    assert row["margin_bytes"] == row["limit_bytes"] - row["bytes"]
    largest = row["largest"]
    assert largest["bytes"] <= row["limit_bytes"] < largest["over_bytes"]
    assert largest["limited_by"]["node"] == "pool"
    graph = analyze(net, batch=largest["number"]).graph
    for each in largest["limited_by"]["tensors"]:
        assert each["bytes"] == graph.tensors[each["tensor"]].size_bytes
    assert {entry["fits"] for entry in row["table"]} == {True, False}


def test_several_models_add_up(net: str, tmp_path: Path, capsys: Capture) -> None:
    write_model(tmp_path / "linear.onnx", LINEAR)
    sizes = {}
    for models in ([net], ["linear.onnx"], [net, "linear.onnx"]):
        assert main(["fit", *models, "--device", "1MiB", "--batch", "2", "--json"]) == 0
        sizes[len(models), models[-1]] = json.loads(capsys.readouterr().out)["bytes"]
    assert sizes[2, "linear.onnx"] == sizes[1, net] + sizes[1, "linear.onnx"]


def test_a_folder_or_pattern_names_the_models_in_it(
    net: str, tmp_path: Path, capsys: Capture
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / f"{name}.onnx").write_bytes(Path(net).read_bytes())
    flags = ["--device", "24GiB", "--json"]
    found = []
    paths = [str(folder / "a.onnx"), str(folder / "b.onnx")]
    for named in (paths, [str(folder)], [str(folder / "*.onnx")]):
        assert main(["fit", *named, *flags]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1] == found[2]
    assert found[0]["models"] == paths


def test_hostile_names_stay_names(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / write_hostile_model(tmp_path / "hostile.onnx"))
    assert main(["fit", path, "--device", HOSTILE]) == 2
    assert main(["fit", path, "--device", "1MiB"]) == 0
    captured = capsys.readouterr()
    assert all(line.isprintable() for line in (captured.out + captured.err).splitlines())


# Every model that is shipped.

DEVICES = ("RTX 3060", "Raspberry Pi 4", "Radeon RX 7900 XTX")


PATHS = sorted(MODELS.glob("*.onnx"))
QUICK = ("alexnet", "efficientnet_b0", "lstm_classifier", "mlp", "resnet50.train", "unet", "vgg16")
ONE_EACH = [(MODELS / f"{name}.onnx", DEVICES[place % 3]) for place, name in enumerate(QUICK)]
THE_OTHERS = [(p, device) for p in PATHS for device in DEVICES if (p, device) not in ONE_EACH]


@pytest.mark.parametrize("train", [False, True], ids=["run", "train"])
@pytest.mark.parametrize(
    ("path", "device"),
    [
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in ONE_EACH),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in THE_OTHERS),
    ],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value),
)
def test_every_model_has_its_largest_batch(
    path: Path,
    device: str,
    train: bool,
) -> None:
    """Full replays of all batches and at the limit agree with the result."""
    place = catalog().find(device)
    runtime = {"cuda": "ort-cuda", "cpu": "ort-cpu"}.get(place.kind)
    basis = basis_for(place.kind, train=train, runtime=runtime)
    request = request_of(path, Settings(train=train, asks_onnxruntime=False))
    found = fit([request], FitRequest(memory_bytes=place.limit_bytes, basis=basis))
    reach = found.max_batch
    if reach is None or reach.number is None:
        assert reach or not found.footprint.is_whole
        return
    number = reach.number
    again = {n for first, last in reach.above for n in range(first, last + 1)}
    near = range(max(1, number - 4), number + 6)
    far = {max(1, number * part // 8) for part in range(1, 17)}
    for each in sorted({*near, *far}):
        demand = footprint_of(request.at(each), found.setup.basis).demand
        verdict = demand.compared(place.limit_bytes, ACCURACIES[basis]).verdict
        if reach.method != "replays" or each <= number + 1:
            assert verdict.is_met == (each <= number or each in again), each
        if each <= (reach.comfortable or 0):
            assert verdict is Verdict.FITS, each


def test_tight_devices_are_listed_separately(net: str, tmp_path: Path, capsys: Capture) -> None:
    own = "".join(
        f"[[device]]\nname = '{name}'\nkind = 'cuda'\nmemory = '{size}'\n"
        for name, size in (("small", "300 MiB"), ("narrow", "700 MiB"), ("wide", "4 GiB"))
    )
    (tmp_path / "own.toml").write_text(own)
    words = ["fit", net, "--which-device", "--train", "--batch", "5"]
    assert main([*words, "--devices", str(tmp_path / "own.toml")]) == 0
    lines = capsys.readouterr().out.splitlines()
    tight = lines.index(
        "Tight: runs only by retries of the allocator, or less is free than the error"
    )
    assert lines[tight + 1].startswith("narrow ")
    assert all("narrow" not in line for line in lines[:tight])


@pytest.mark.parametrize(
    ("size_bytes", "is_lower_bound", "verdict"),
    [
        (7, None, Verdict.FITS),
        (11, None, Verdict.FITS),
        (13, None, Verdict.OVER),
        (None, None, Verdict.UNKNOWN),
        (7, True, Verdict.UNKNOWN),
        (13, True, Verdict.OVER),
        (13, False, Verdict.UNKNOWN),
    ],
)
def test_an_exact_figure_is_compared_without_a_margin(
    *, size_bytes: int | None, is_lower_bound: bool | None, verdict: Verdict
) -> None:
    doubts: tuple[Doubt, ...] = ()
    if is_lower_bound is not None:
        doubts = (Doubt(PARTIAL, "a size is unknown", is_lower_bound=is_lower_bound),)
    assert compared_bytes(size_bytes, 11, doubts).verdict is verdict


def test_a_limit_between_the_states_of_the_heap_is_tight(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with weights in the file: whether the places of freed ones serve the next is not known."""
    path = str(MODELS / "mlp.onnx")
    (session,) = analyze(path, runtimes=("ort-cpu",), asks_onnxruntime=False).runtimes
    total_bytes, most_bytes = session.process_bytes or 0, 700 * 2**20
    monkeypatch.setattr(Resident, "range_bytes", lambda *_: (total_bytes, most_bytes))
    for limit_bytes, verdict in ((600 * 2**20, "tight"), (800 * 2**20, "fits")):
        words = ["--runtime", "ort-cpu", "--device", f"{limit_bytes}B"]
        assert main(["fit", path, *words]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert f"Verdict {verdict}: " in out
        assert "or 700 MiB if the heap does not reuse the places of freed weights" in out


def test_a_verdict_by_the_tensors_names_beside_it_what_a_runtime_adds(capsys: Capture) -> None:
    assert main(["fit", str(MODELS / "mlp.onnx"), "--device", "1GiB"]) == 0
    lines = capsys.readouterr().out.splitlines()
    verdict = next(at for at, line in enumerate(lines) if line.startswith("Verdict"))
    assert "onnxruntime takes more: --runtime ort-cpu" in lines[verdict + 1]
