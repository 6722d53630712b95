"""Out-of-memory messages as people posted them, and what is read in them."""

from dataclasses import dataclass

import pytest

from onnxmem.decisions.explain.messages import RequestedBytes, read_message

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class Case:
    """A message and its parsed contents."""

    text: str
    program: str
    sizes: tuple[int, int] | None = None
    shape: tuple[int, ...] | None = None
    node: str | None = None
    op_type: str | None = None
    capacity_bytes: int | None = None
    free_bytes: int | None = None
    used_bytes: int | None = None


def segment(number: float, unit: int) -> tuple[int, int]:
    """Requests from 10 MiB on, rounded up to 2 MiB and to two decimals."""
    least, most = round((number - 0.005) * unit), round((number + 0.005) * unit)
    return least - 2 * MIB + 1, most


CASES = {
    "tensorflow": Case(
        "OOM when allocating tensor with shape[3,3,512,1024] and type float on "
        "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]",
        "TensorFlow",
        (18_874_368, 18_874_368),
        (3, 3, 512, 1024),
        op_type="Mul",
    ),
    "tensorflow, a node": Case(
        "ResourceExhaustedError (see above for traceback): OOM when allocating tensor with "
        "shape[64,2016,9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by "
        "allocator GPU_0_bfc\n     [[Node: SecondStageFeatureExtractor/cell_12/AvgPool_1 = "
        'AvgPool[T=DT_FLOAT, data_format="NCHW"]]]',
        "TensorFlow",
        (41_803_776, 41_803_776),
        (64, 2016, 9, 9),
        node="SecondStageFeatureExtractor/cell_12/AvgPool_1",
    ),
    "tensorflow, no type": Case(
        "always OOM when allocating tensor with shape[2048,436631]",
        "TensorFlow",
        (3_576_881_152, 3_576_881_152),
        (2048, 436631),
    ),
    "tensorflow, another type": Case(
        "OOM when allocating tensor with shape[10] and type resource",
        "TensorFlow",
        shape=(10,),
    ),
    "pytorch, reserved": Case(
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 1.71 GiB (GPU 0; 6.00 GiB total "
        "capacity; 3.49 GiB already allocated; 1.04 GiB free; 3.50 GiB reserved in total by "
        "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb",
        "PyTorch on CUDA",
        segment(1.71, GIB),
        capacity_bytes=6 * GIB,
        free_bytes=round(1.04 * GIB),
        used_bytes=round(3.49 * GIB),
    ),
    "pytorch, MiB": Case(
        '" CUDA out of memory. Tried to allocate 264.00 MiB (GPU 0; 2.00 GiB total capacity; '
        '788.51 MiB already allocated; 145.93 MiB free; 1.02 GiB reserved in total by PyTorch)"',
        "PyTorch on CUDA",
        segment(264, MIB),
        capacity_bytes=2 * GIB,
        free_bytes=round(145.93 * MIB),
        used_bytes=round(788.51 * MIB),
    ),
    "pytorch, of which": Case(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 55.57 GiB. GPU 0 has a "
        "total capacty of 12.00 GiB of which 9.02 GiB is free. Of the allocated memory 984.52 MiB "
        "is allocated by PyTorch, and 463.48 MiB is reserved by PyTorch but unallocated.",
        "PyTorch on CUDA",
        segment(55.57, GIB),
        capacity_bytes=12 * GIB,
        free_bytes=round(9.02 * GIB),
        used_bytes=round(984.52 * MIB),
    ),
    "pytorch, the newest": Case(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 22.78 GiB. GPU 0 has a "
        "total capacity of 31.47 GiB of which 12.73 GiB is free. Including non-PyTorch memory, "
        "this process has 18.73 GiB memory in use.",
        "PyTorch on CUDA",
        segment(22.78, GIB),
        capacity_bytes=round(31.47 * GIB),
        free_bytes=round(12.73 * GIB),
        used_bytes=round(18.73 * GIB),
    ),
    "pytorch, no byte free": Case(
        "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a "
        "total capacty of 6.00 GiB of which 0 bytes is free.",
        "PyTorch on CUDA",
        segment(1.70, GIB),
        capacity_bytes=6 * GIB,
        free_bytes=0,
    ),
    "pytorch, a shared segment": Case(
        "Tried to allocate 20.00 MiB (GPU 0; 1.96 GiB total capacity; 1.24 GiB already allocated; "
        "2.88 MiB free; 1.25 GiB reserved in total by PyTorch)",
        "PyTorch on CUDA",
        (MIB + 1, 20 * MIB),
        capacity_bytes=round(1.96 * GIB),
        free_bytes=round(2.88 * MIB),
        used_bytes=round(1.24 * GIB),
    ),
    "pytorch, a small segment": Case(
        "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 8.00 GiB of "
        "which 1.00 MiB is free.",
        "PyTorch on CUDA",
        (1, MIB),
        capacity_bytes=8 * GIB,
        free_bytes=MIB,
    ),
    "pytorch, cached": Case(
        "RuntimeError: CUDA out of memory. Tried to allocate 12.50 MiB (GPU 0; 10.92 GiB total "
        "capacity; 8.57 MiB already allocated; 9.28 GiB free; 4.68 MiB cached)",
        "PyTorch on CUDA",
        (13_101_958 - 511, 13_112_442),
        capacity_bytes=round(10.92 * GIB),
        free_bytes=round(9.28 * GIB),
        used_bytes=round(8.57 * MIB),
    ),
    "pytorch, KiB": Case(
        "RuntimeError: CUDA out of memory. Tried to allocate 1024.00 KiB (GPU 0; 11.17 GiB total "
        "capacity; 10.90 GiB already allocated; 576.00 KiB free; 30.96 MiB cached)",
        "PyTorch on CUDA",
        (MIB - 5 - 511, MIB + 5),
        capacity_bytes=round(11.17 * GIB),
        free_bytes=576 * 1024,
        used_bytes=round(10.90 * GIB),
    ),
    "onnxruntime": Case(
        "onnx runtime error 6: Non-zero status code returned while running Mul node. "
        "Name:\\'Mul_8702\\' Status Message: /workspace/onnxruntime/onnxruntime/core/framework/"
        "bfc_arena.cc:368 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool, "
        "onnxruntime::Stream*, bool, onnxruntime::WaitNotificationFn) Failed to allocate memory "
        "for requested buffer of size 2830172160",
        "onnxruntime",
        (2_830_171_905, 2_830_172_160),
        node="Mul_8702",
        op_type="Mul",
    ),
    "onnxruntime, on Windows": Case(
        "2024-09-05 15:15:49.9522079 [E:onnxruntime:, sequential_executor.cc:514 "
        "onnxruntime::ExecuteKernel] Non-zero status code returned while running FusedConv node. "
        "Name:'Conv_3' Status Message: D:\\a\\_work\\1\\s\\onnxruntime\\core\\framework\\"
        "bfc_arena.cc:376 onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for "
        "requested buffer of size 643840",
        "onnxruntime",
        (643_585, 643_840),
        node="Conv_3",
        op_type="FusedConv",
    ),
    "onnxruntime, no node": Case(
        "bfc_arena.cc:368 void* onnxruntime::BFCArena::AllocateRawInternal(size_t, bool) Failed to "
        "allocate memory for requested buffer of size 15728896",
        "onnxruntime",
        (15_728_641, 15_728_896),
    ),
    "pytorch on cpu": Case(
        "RuntimeError: [enforce fail at CPUAllocator.cpp:64] . DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 1178729664 bytes. Error code 12 (Cannot allocate memory)",
        "PyTorch on CPU",
        (1_178_729_664, 1_178_729_664),
    ),
    "pytorch on cpu, Windows": Case(
        "RuntimeError: [enforce fail at alloc_cpu.cpp:81] data. DefaultCPUAllocator: not enough "
        "memory: you tried to allocate 1981808640 bytes.",
        "PyTorch on CPU",
        (1_981_808_640, 1_981_808_640),
    ),
    "killed": Case(
        "[2059991.491542] Out of memory: Killed process 25315 (python3) total-vm:53312244kB, "
        "anon-rss:31451456kB, file-rss:74816kB, shmem-rss:12296kB, UID:0 pgtables:69068kB "
        "oom_score_adj:0",
        "Linux",
        used_bytes=(31_451_456 + 74_816 + 12_296) * 1024,
    ),
    "killed, no figures": Case(
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
        "task_memcg=/init.scope,task=python,pid=7899,uid=0",
        "Linux",
    ),
    "cublas": Case(
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuBLAS",
    ),
    "cuda": Case(
        "[ONNXRuntimeError] : 1 : FAIL : D:\\a\\_work\\1\\s\\onnxruntime\\core\\providers\\cuda\\"
        "cuda_call.cc:121 onnxruntime::CudaCall CUDA failure 2: out of memory ; GPU=0 ; "
        "expr=cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);",
        "onnxruntime",
    ),
    "bad_alloc": Case(
        "2021-02-12 22:13:52.008378106 [E:onnxruntime:, inference_session.cc:1290 operator()] "
        "Exception during initialization: std::bad_alloc",
        "onnxruntime",
    ),
    "bad allocation": Case(
        "Non-zero status code returned while running FusedMatMul node. "
        "Name:'MatMul_With_Transpose_token_14_FusedMatMulAndScale' Status Message: bad allocation",
        "onnxruntime",
        node="MatMul_With_Transpose_token_14_FusedMatMulAndScale",
        op_type="FusedMatMul",
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_message_is_parsed(case: Case) -> None:
    message = read_message(case.text)
    assert message is not None
    assert message.program == case.program
    if case.sizes is None:
        assert message.sizes is None
    else:
        assert message.sizes is not None
        assert message.sizes.least_bytes == pytest.approx(case.sizes[0], abs=1)
        assert message.sizes.most_bytes == pytest.approx(case.sizes[1], abs=1)
    assert (message.shape, message.node, message.op_type) == (case.shape, case.node, case.op_type)
    assert message.capacity_bytes == case.capacity_bytes
    assert (message.free_bytes, message.used_bytes) == (case.free_bytes, case.used_bytes)


@pytest.mark.parametrize(
    "text", ["Epoch 3\nKilled\n(env) me@host:~$", "zsh: killed     python train.py", "Killed: 9"]
)
def test_a_killed_command_in_a_shell(text: str) -> None:
    message = read_message(text)
    assert message is not None
    assert message.program == "Linux"


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("failed to allocate 1900,00 MiB", 1900 * MIB),
        ("failed to allocate 1,900 MiB", 1900 * MIB),
        ("failed to allocate 2.00MiB内存", 2 * MIB),
        ("failed to allocate 32.00M (33554433 bytes) from device", 33_554_433),
    ],
)
def test_numbers_of_messages_are_read_in_every_format(text: str, size_bytes: int) -> None:
    message = read_message(text)
    assert message is not None
    assert message.sizes is not None
    assert message.sizes.includes(size_bytes)
    assert message.sizes.most_bytes < size_bytes + MIB


def test_a_log_around_a_message_and_line_breaks_are_ignored() -> None:
    text = CASES["onnxruntime, no node"].text
    message = read_message("INFO: begin\n" + text.replace(" ", "\n  ") + "\nTraceback\n")
    assert message is not None
    assert message.sizes == RequestedBytes(15_728_641, 15_728_896)


@pytest.mark.parametrize(
    ("text", "size_bytes", "free_bytes"),
    [
        ("ResourceExhausted: 分配形状为(1024, 100, 160)的张量时内存不足", 65_536_000, None),
        ("OOM saat mengalokasikan tensor dengan bentuk (1024, 100, 160)", 65_536_000, None),
        ("Foo: cannot get 12 GiB of memory on device 3 (8 GiB free)", 12 * GIB, 8 * GIB),
        ("foo: no space left in accelerator arena (wanted 4096 MB)", 4 * GIB, None),
    ],
)
def test_a_program_that_nobody_knows_is_read(
    text: str, size_bytes: int, free_bytes: int | None
) -> None:
    message = read_message(text)
    assert message is not None
    assert message.sizes == RequestedBytes(size_bytes, size_bytes)
    assert message.free_bytes == free_bytes


@pytest.mark.parametrize(
    "text",
    [
        "",
        "held",
        "all is well",
        "shape mismatch: 3 and 4",
        "does it run on WebGPU",
        "how much memory does TensorRT take",
        "how to avoid out of memory",
        "how was it killed",
        "batch size: 32 is larger than the limit of 16",
    ],
)
def test_other_texts_are_not_messages(text: str) -> None:
    assert read_message(text) is None


@pytest.mark.parametrize(
    ("text", "capacity_bytes"),
    [
        # mm/memcontrol.c of Linux, mem_cgroup_print_oom_meminfo.
        (
            "memory: usage 2097152kB, limit 2097152kB, failcnt 52\nKilled process 3 (python)",
            2**31,
        ),
        ("OOMKilled: memory limit: 512 MiB, exit code 137", 2**29),
        ("OOMKilled, exit code 137", None),
    ],
)
def test_the_limit_of_a_container_is_its_capacity(text: str, capacity_bytes: int | None) -> None:
    message = read_message(text)
    assert message is not None
    assert (message.program, message.capacity_bytes) == ("Linux", capacity_bytes)


@pytest.mark.parametrize(
    "text",
    [
        "Error: 137 items",
        "OOM score 500",
        "ResourceExhausted: 429 quota exceeded for requests per minute",
        "ResourceExhausted: Received message larger than max (5000000 vs. 4194304)",
    ],
)
def test_words_that_messages_share_are_no_message(text: str) -> None:
    assert read_message(text) is None


def test_a_request_of_no_bytes_is_for_no_segment() -> None:
    message = read_message("CUDA out of memory. Tried to allocate 0 bytes")
    assert message is not None
    assert message.sizes == RequestedBytes(0, 0)


def test_what_is_reserved_is_the_sum_of_what_is_allocated_and_what_is_not() -> None:
    message = read_message(
        "CUDA out of memory. Tried to allocate 784.00 MiB. GPU 0 has a total capacity of 8.00 GiB "
        "of which 512.00 MiB is free. Of the allocated memory 6.50 GiB is allocated by PyTorch, "
        "and 256.00 MiB is reserved by PyTorch but unallocated."
    )
    assert message is not None
    assert message.context_bytes == message.outside_bytes == (8192 - 512 - 6656 - 256) * 2**20


@pytest.mark.parametrize(
    ("sizes", "gib"),
    [
        ("23.70 GiB total capacity; 20.11 GiB already allocated; 1.35 GiB free", 1.75),
        ("23.70 GiB total capacity; 20.11 GiB already allocated; 2.96 GiB free", None),  # rounding
        ("23.70 GiB total capacity; 20.11 GiB already allocated", None),
    ],
)
def test_what_is_neither_free_nor_reserved_belongs_to_the_context_or_others(
    sizes: str, gib: float | None
) -> None:
    text = f"CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; {sizes}; 20.60 GiB reserved)"
    message = read_message(text)
    assert message is not None
    assert message.outside_bytes == (None if gib is None else pytest.approx(gib * GIB, rel=0.01))
    assert message.others_bytes is None


def test_a_message_that_says_what_the_process_takes_has_others_alone() -> None:
    message = read_message(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 23.70 GiB of which 1.35 GiB is free. Including non-PyTorch memory, this "
        "process has 21.00 GiB memory in use. Of the allocated memory 20.11 GiB is allocated by "
        "PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated."
    )
    assert message is not None
    assert message.outside_bytes is None
    assert message.others_bytes == pytest.approx(1.35 * GIB, rel=0.01)
