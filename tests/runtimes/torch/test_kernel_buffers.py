"""What kernels of CUDA allocate while they run: workspaces of convolutions, buffers of sums."""

import pytest
from runtimes.torch.training_steps import step

from onnxmem.program.replay import Replay
from onnxmem.runtimes.assumed import NO_TERM, Assumed
from onnxmem.runtimes.torch.cuda import ConvolutionWorkspace, SumBuffer, TorchRuntime
from onnxmem.runtimes.torch.memory import TrainingMemory

MIB = 2**20


def buffers(found: TrainingMemory, workspace: Assumed = NO_TERM) -> list[tuple[str, int]]:
    """The buffers of a step's kernels, in order."""
    run = TorchRuntime(recipe=found.recipe, workspace=workspace).program_of(found)
    first = found.replay.program.num_allocations
    made = zip(run.program.labels[first:], run.sizes.fixed_bytes[first:].tolist(), strict=True)
    return list(made)


@pytest.mark.parametrize(
    ("columns", "rows", "size_bytes"),
    [
        # Measured on an H200: gradients of the biases of a vocabulary's and of an MLP's layer.
        (5_000, 2_160, 87_040_000),
        (4_096, 3_152, 104_857_600),
        # By hand: 3 columns are not read four at once; 2 x 256 threads add 1,031 values each.
        (3, 263_936, 4 * 3 * 65 * 2),
        # A block of 32 x 4 threads adds all of 1,020 rows, and 1,024 are split.
        (128, 1_020, 0),
        (128, 1_024, 4 * 128 * 16 * 128),
        # The blocks of 2**19 columns keep the GPU busy.
        (2**19, 2_048, 0),
        (7, 15, 0),
        (1, 1, 0),
    ],
)
def test_the_buffer_of_a_sum_over_rows(columns: int, rows: int, size_bytes: int) -> None:
    assert SumBuffer(columns).size_bytes(rows) == size_bytes


def test_a_gpu_with_fewer_threads_takes_a_smaller_buffer() -> None:
    """By hand, as `setReduceConfig` splits: 128 threads x 4 columns read 1,024 rows in a block.

    5,000 columns are 40 blocks of 32 x 4 threads, of which an H100 runs 2,112 and a V100 1,280.
    """
    assert SumBuffer(5_000).size_bytes(2_160) == 4 * 5_000 * 34 * 32 * 4
    assert SumBuffer(5_000, 80 * 2048).size_bytes(2_160) == 4 * 5_000 * 32 * 32 * 4
    assert SumBuffer(5_000, 40 * 1024).size_bytes(2_160) == 4 * 5_000 * 8 * 32 * 4


LAYER = """
    agraph (float[N,1031,5] x) => (float[N,1031,128] y) <float[5,128] w, float[128] b> {
        m = MatMul(x, w)
        y = Add(m, b)
    }"""


def test_the_gradient_of_a_bias_is_a_sum_over_rows() -> None:
    found = step(LAYER.replace("N", "2"))
    assert buffers(found) == [("sum for the gradient of b", SumBuffer(128).size_bytes(2062))]
    # It is taken beside all gradients of the layer.
    assert [each.count for each in found.kernel_buffers] == [2062]
    program = TorchRuntime(recipe=found.recipe).program_of(found).program
    assert program.node_at(found.kernel_buffers[0].event) == "Add_1"


WEIGHED = """
    agraph (float[2,3,11] x) => (float[2,3,7] y) <float[11,7] w> {
        m = MatMul(x, w)
        y = Softmax <axis = -1> (m)
    }"""


def test_the_backward_kernel_of_a_softmax_has_a_product() -> None:
    """Of the gradient and the result, beside the gradient that it returns."""
    found = step(WEIGHED)
    assert buffers(found) == [("product for the gradient of m", 4 * 2 * 3 * 7)]
    program = TorchRuntime(recipe=found.recipe).program_of(found).program
    assert program.node_at(found.kernel_buffers[0].event) == "Softmax_1"
    half = step(WEIGHED, precision="bf16")
    assert buffers(half) == [("product for the gradient of m", 2 * 2 * 3 * 7)]
    # It reads float16 and writes float32, and its gradients likewise.
    mixed = step(WEIGHED, precision="mixed-fp16")
    assert buffers(mixed) == [("product for the gradient of m", 4 * 2 * 3 * 7)]


def test_a_log_softmax_has_none() -> None:
    assert buffers(step(WEIGHED.replace("Softmax", "LogSoftmax"))) == []


def test_the_buffer_is_that_of_the_gpu() -> None:
    found = step(LAYER.replace("N", "2"), gpu_threads=1024)
    small_bytes = SumBuffer(128, 1024).size_bytes(2062)
    assert small_bytes < SumBuffer(128).size_bytes(2062)
    assert buffers(found) == [("sum for the gradient of b", small_bytes)]


def test_the_sum_of_a_bias_that_is_added_apart_comes_first() -> None:
    """`linear` is one addmm only where its input is row-major."""
    text = LAYER.replace("m =", "t = Transpose <perm = [1, 0, 2]> (x)  m =")
    text = text.replace("(x, w)", "(t, w)").replace("float[N,1031,5]", "float[1031,N,5]")
    for each, is_last in ((LAYER, True), (text, False)):
        found = step(each.replace("N", "2"))
        (buffer,) = found.kernel_buffers
        program = found.replay.program
        alive = [program.labels[number] for number in program.alive_after(buffer.event)]
        assert ("gradient of w" in alive) is is_last
        assert buffer.count == 2062


CONVOLUTION = """
    agraph (float[N,3,17,19] x) => (float[N,5,17,19] y) <float[5,3,1,1] w, float[5] b> {
        c = Conv(x, w, b)
        y = Sigmoid(c)
    }"""


def test_a_convolution_takes_a_workspace_in_each_pass() -> None:
    """As large as its operands and its result, and at most 32 MiB, unless one is given."""
    found = step(CONVOLUTION.replace("N", "2"))
    own = 4 * (2 * 3 * 17 * 19 + 5 * 3 + 2 * 5 * 17 * 19)
    usual = Assumed(0, own, own, "")
    assert buffers(found, usual) == [("workspace of Conv_0", own)] * 2
    assert buffers(found, Assumed.exactly(7)) == [("workspace of Conv_0", 7)] * 2
    assert buffers(found, Assumed.exactly(0)) == [("workspace of Conv_0", 0)] * 2
    large = step(CONVOLUTION.replace("N", "4096"))
    assert {size for _, size in buffers(large, usual)} == {32 * MIB}
    run = TorchRuntime(recipe=found.recipe, workspace=Assumed.exactly(7 * MIB)).program_of(found)
    assert Replay(run.program, run.sizes).peak_bytes > found.peak_bytes
    assert found.replay.program.labels == run.program.labels[: found.replay.program.num_allocations]


def test_a_depthwise_convolution_runs_in_a_kernel_of_pytorch() -> None:
    text = CONVOLUTION.replace("float[5,3,1,1] w", "float[3,1,1,1] w").replace("[5]", "[3]")
    text = text.replace("Conv(", "Conv <group = 3> (").replace("[N,5,", "[N,3,").replace("N", "2")
    assert buffers(step(text)) == []


def test_a_convolution_of_another_rank_is_no_fault() -> None:
    """As a broken file may have."""
    text = CONVOLUTION.replace("N", "2").replace("float[2,3,17,19] x", "float[2] x")
    assert [label for label, _ in buffers(step(text), Assumed.exactly(7))] == [
        *("workspace of Conv_0", "workspace of Conv_0")
    ]


def test_every_phase_has_the_buffers_of_its_nodes() -> None:
    found = step(CONVOLUTION.replace("N", "2"))
    run = TorchRuntime(recipe=found.recipe, workspace=Assumed.exactly(7)).program_of(found)
    phases = [
        run.program.phase_at(int(event))
        for event, number in enumerate(run.program.events)
        if number >= found.replay.program.num_allocations
    ]
    assert phases == ["forward", "backward"]


def test_buffers_follow_the_batch_by_their_rules() -> None:
    """So that one program serves every batch, though neither size is a line."""
    usual = Assumed(0, 32 * MIB, 2**40, "")
    for text in (LAYER, CONVOLUTION):
        runs = {
            batch: TorchRuntime(recipe=found.recipe, workspace=usual).program_of(found)
            for batch in (2, 3, 5, 4096)
            for found in (step(text.replace("N", str(batch))),)
        }
        between = runs[2].through([(batch, runs[batch]) for batch in (2, 3, 5)])
        assert between is not None
        assert between(4096) == runs[4096]


def test_rules_of_other_columns_are_others() -> None:
    assert SumBuffer(3) != SumBuffer(5)
    assert ConvolutionWorkspace(3) != ConvolutionWorkspace(None)
