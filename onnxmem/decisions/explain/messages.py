"""Read out-of-memory messages: who printed them, the requested size, the memory of the device.

There is one extractor for all wordings. ``_PROGRAMS`` recognizes the program by words that only its
messages have. The facts (sizes, shapes, element types, capacities, nodes) are found by patterns
that hold for any program, so that a new wording, a translation or a log around the message costs
none of them. What a size means depends on the program: PyTorch prints the segment of its caching
allocator, onnxruntime a request rounded to a chunk, others the bytes of one tensor. A rounded
number becomes the interval of the sizes that are printed so.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, prod
from typing import Final

from onnxmem.allocators.caching import (
    LARGE_SEGMENT_BYTES,
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)

_ARENA_BYTES: Final = 256
"""A chunk of onnxruntime's arena is a multiple of it (``kMinAllocationSize``, bfc_arena.h)."""
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_WIDTHS: Final = {
    **dict.fromkeys(("complex128",), 16),
    **dict.fromkeys(("double", "float64", "int64", "uint64", "complex64", "long"), 8),
    **dict.fromkeys(("float", "float32", "int32", "uint32", "int"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "int16", "uint16", "short"), 2),
    **dict.fromkeys(("int8", "uint8", "bool"), 1),
}
"""Bytes of an element, by the names that TensorFlow, numpy and PyTorch print."""
_KILLED: Final = re.compile(r"Killed(: 9)?")
_LONGEST: Final = 200_000
"""Characters that are read of a log, from its end: the message is the last thing in it."""


@dataclass(frozen=True, slots=True)
class RequestedBytes:
    """The sizes that a message may mean, both ends included."""

    least_bytes: int
    most_bytes: int

    def includes(self, size_bytes: int) -> bool:
        """Whether a size is one of them."""
        return self.least_bytes <= size_bytes <= self.most_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """A parsed message; ``None`` is not in the message."""

    program: str
    """The program that printed it."""
    meaning: str
    """What it means, in a sentence."""
    sizes: RequestedBytes | None = None
    shape: tuple[int, ...] | None = None
    """The shape of the requested tensor."""
    element_type: str | None = None
    """The type of its elements, as the message names it; without one, float32 is assumed."""
    node: str | None = None
    op_type: str | None = None
    capacity_bytes: int | None = None
    """The memory of the device, or the limit of the allocator."""
    free_bytes: int | None = None
    used_bytes: int | None = None
    """The memory in use: of the process that was killed, else of the allocator or the program."""
    names_gpu: bool = False
    """Whether it names a GPU or a library of one."""


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    pattern: str
    """Words that its out-of-memory messages have."""
    meaning: str


_GPU: Final = re.compile(r"(?i)cuda|cudnn|cublas|gpu\b|tensorrt|rocm|\bhip|directml|dml")
_SYSTEM_FULL: Final = "the system could not allocate memory"
_DEVICE_FULL: Final = "the device was full"
_PROGRAMS: Final = (
    _Program("numpy", r"(?i)allocate .{0,40}array with (shape|form)", _SYSTEM_FULL),
    _Program("PyTorch on MPS", r"MPS backend out of memory", "the limit of the MPS allocator"),
    _Program(
        "PyTorch on MPS",
        r"Invalid buffer size: \d|\[MPSNDArray .{0,80}> ?2\*\*",
        "Metal does not allow a buffer of this size, however much memory is free",
    ),
    _Program(
        "PyTorch on CPU",
        r"DefaultCPUAllocator|alloc_cpu\.cpp|CPUAllocator\.cpp|Torch: not enough memory",
        "the system could not allocate one tensor",
    ),
    _Program(
        "PyTorch on HIP",
        r"HIP out of memory",
        "the caching allocator could not get another segment from the device",
    ),
    _Program(
        "PyTorch on XPU",
        r"XPU out of memory|Current platform can NOT allocate memory block",
        "the caching allocator could not get another segment from the device",
    ),
    _Program(
        "PyTorch on NPU",
        r"NPU out of memory",
        "the caching allocator could not get another segment from the device",
    ),
    _Program(
        "PyTorch on CUDA (cudaMallocAsync)",
        r"would exceed allowed memory",
        "CUDA's own pool could not get memory from the device, or reached its limit",
    ),
    _Program(
        "PyTorch on CUDA",
        r"Tried to allocate [\d.]+ ?(bytes|[KMG]iB)|torch\.(cuda\.)?OutOfMemoryError",
        "the caching allocator could not get another segment from the device",
    ),
    _Program(
        "PyTorch on DirectML",
        r"allocate tensor with \d+ bytes",
        "the device could not allocate one tensor",
    ),
    _Program(
        "OpenCV",
        r"(?i)(opencv|cv::).{0,200}(insufficient memory|OutOfMemoryError)",
        "the system could not allocate one image or array",
    ),
    _Program("Theano", r"Error allocating \d+ bytes of device memory", _DEVICE_FULL),
    _Program(
        "Ray",
        r"ray\.exceptions\.OutOfMemoryError|node running low on memory",
        "Ray killed a worker, because the node used more than a share of its memory",
    ),
    _Program(
        "TensorFlow",
        r"OOM when allocating tensor",
        "the allocator could not allocate one tensor",
    ),
    _Program(
        "Paddle",
        r"Out of memory error on GPU \d|Cannot allocate [\d.]+ ?[KMG]B memory on GPU",
        "the allocator could not get memory from the device",
    ),
    _Program(
        "CuPy",
        r"cupy\.cuda|\(allocated so far: |out of memory to allocate \d+ bytes",
        "the memory pool could not get memory from the device, or reached its limit",
    ),
    _Program(
        "XLA",
        r"(?i)out of memory (while trying to allocate|allocating)|memory space hbm"
        r"|BufferAssignment|XlaRuntimeError|failed to allocate request for"
        r"|attempting to (allocate|reserve) [\d.]+[KMG]?\b|org_tensorflow|external/xla/",
        "the device could not allocate a buffer of a compiled program (JAX, or TensorFlow's XLA)",
    ),
    _Program(
        "TensorFlow",
        r"bfc_allocator\.cc|ran out of memory trying to allocate|by allocator \w+_bfc"
        r"|exceeds \d+% of (free )?system memory|ResourceExhausted|Resource exhausted"
        r"|failed to alloc \d+ bytes|chunks: .{0,20}tried to allocate"
        r"|tensorflow.{0,80}out.of.memory|allocate [\d.]+[KMG] .{0,40}from device: ",
        "the allocator could not allocate memory",
    ),
    _Program(
        "onnxruntime",
        r"BFCArena::|requested buffer of size",
        "the arena had no free chunk and could not grow",
    ),
    _Program(
        "TensorRT",
        r"\[TRT\]|TensorRT|virtualMemoryBuffer|rtSafe|nvinfer1|Error Code 2: OutOfMemory"
        r"|(?i:requested amount of (GPU )?memory \()",
        "the builder or an engine could not allocate memory on the device",
    ),
    _Program(
        "MindSpore",
        r"mindspore/ccsrc.{0,200}(alloc|memory)",
        "the allocator could not get memory from the device",
    ),
    _Program(
        "TensorFlow Lite",
        r"(?i)tflite.{0,200}alloc|alloc.{0,200}tflite",
        "the arena of tensors, which a program gives its size, was too small",
    ),
    _Program("Paddle", r"(?i)paddle", "the allocator could not get memory from the device"),
    _Program(
        "Java",
        r"java\.lang\.OutOfMemoryError|OpenJDK|Java Runtime Environment|Java heap space"
        r"|byte allocation with \d+ free bytes",
        "the Java virtual machine was out of memory: its heap has a limit of its own (-Xmx)",
    ),
    _Program(
        "JavaScript",
        r"JavaScript heap out of memory|heap limit Allocation failed",
        "V8's heap reached its limit, which node raises with --max-old-space-size",
    ),
    _Program(
        "WebAssembly",
        r"(?i)webassembly|wasm|array buffer allocation failed",
        "the page's memory could not grow: WebAssembly has at most 4 GiB, often 2 GiB",
    ),
    _Program(
        "onnxruntime",
        r"(?i)(onnxruntime\b|Non-zero status code|ERROR_CODE: \d+, ERROR_MESSAGE:).{0,400}"
        r"(out.?of.?memory|bad.?alloc|memory resources|out of GPU resources)",
        "the device or the system was full",
    ),
    _Program(
        "OpenVINO",
        r"(?i)(openvino|intel_gpu).{0,300}(allocate \d|out of GPU resources|CL_OUT_OF)",
        "a plugin could not allocate memory on the device or in the system",
    ),
    _Program(
        "OpenCL",
        r"CL_OUT_OF_(RESOURCES|HOST_MEMORY)|CL_MEM_OBJECT_ALLOCATION_FAILURE",
        "the driver could not allocate memory, or a kernel failed, which has the same code",
    ),
    _Program(
        "Ollama",
        r"requires more (\w+ )?memory \(",
        "it refused to load the model, by its own estimate of what the model takes",
    ),
    _Program(
        "vLLM",
        r"memory for the cache blocks|KV cache is needed|stored in KV cache",
        "weights and activations left too little memory for the key-value cache",
    ),
    _Program(
        "llama.cpp",
        r"\bggml_|\bllama_(init|model|new|kv|context)|alloc_tensor_range",
        "a backend could not allocate a buffer: weights, the key-value cache or scratch memory",
    ),
    _Program(
        "Vulkan", r"vkAllocateMemory|ErrorOutOf(Device|Host)Memory|VK_ERROR_OUT", _DEVICE_FULL
    ),
    _Program(
        "WebGPU",
        r"WebGPU|GPUDevice|max buffer size limit",
        "the device was full, or a buffer is larger than the limit that the page asked for",
    ),
    _Program(
        "MXNet",
        r"pooled_storage_manager|mxnet\.base",
        "the memory pool could not get memory from the device",
    ),
    _Program(
        "cuBLAS",
        r"CUBLAS_STATUS_ALLOC_FAILED",
        "cuBLAS could not allocate its handle or workspace: the device was already full",
    ),
    _Program(
        "cuDNN",
        r"CUDNN_STATUS_(ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)",
        "cuDNN could not allocate its handle or workspace: the device was already full",
    ),
    _Program(
        "CUDA",
        r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|(?i:cuda).{0,40}out of memory",
        _DEVICE_FULL,
    ),
    _Program(
        "Linux",
        r"Killed process \d+|oom-kill:|oom_reaper|invoked oom-killer|Out of memory: Kill"
        r"|memory: usage \d+kB, limit \d+kB",
        "the kernel killed the process: the machine or its cgroup was out of memory; the message "
        "does not name a request",
    ),
    _Program(
        "Linux",
        r"(?i:oom[-_ ]?kill|(exit(ed)?( with)?( status)?( code)?|code)[ :=]+137\b)|\bKilled(: 9)?$"
        r"|\bline \d+: \d+ Killed\b|zsh: killed\b",
        "the process was killed (signal 9), most often because its container or the machine was "
        "out of memory; the message does not name a request",
    ),
    _Program("R", r"cannot allocate vector of size|vector memory (limit|exhausted)", _SYSTEM_FULL),
    _Program("MATLAB", r"array exceeds maximum array size", _SYSTEM_FULL),
    _Program(
        "the system",
        r"out of shared memory|insufficient shared memory",
        "shared memory was full, through which workers of a data loader pass their batches",
    ),
    _Program(
        "the system",
        r"std::bad_alloc|bad allocation|ArrowMemoryError|Cannot allocate memory|\bMemoryError\b"
        r"|\bENOMEM\b|8007000E|E_OUTOFMEMORY|页面文件太小"
        r"|(?i:paging file is too small|not enough memory)",
        _SYSTEM_FULL,
    ),
)
"""In this order, the special before the general: a log may have words of several programs."""
_ABOUT_MEMORY: Final = re.compile(
    r"(?i)out.?of.?memory|\boom\b|alloc|exhausted|memory|メモリ|内存|显存|記憶體|memori\b|memoria"
    r"|mémoire|speicher"
)
_FAILED: Final = re.compile(
    r"(?i)out.?of|\boom|alloc|exhaust|insufficient|not enough|too small|kill|exceed|larger than"
    r"|requires more|no available|limit.{0,40}reached|cannot|could not|\bfail|error|不足|无法|太小"
    r"|\b137\b"
)
"""A question that only names a program is not a message."""
_PLAIN: Final = re.compile(
    r"(?i)\b(?:error|exception|fatal|failed|failure)\s?[:=].{0,60}\b(?:out of|insufficient) memory"
)
"""A program that is not known says that memory ran out, and no size."""
_SIZE: Final = r"(\d[\d,]*(?:\.\d*)?)\s?(bytes?|(?a:(?:[KMGTPkmgtp]i?)?[Bb]\b|[KMGTP]\b))?"
_REFUSED: Final = r"(?i)(?:tried|trying|try|failed|unable|could not|can ?not|can't) (?:to )?"
_REQUESTED: Final = (
    re.compile(_SIZE + r" KV cache is needed"),
    re.compile(r"\(" + _SIZE + r"\) array exceeds"),
    *(
        re.compile(pattern + _SIZE)
        for pattern in (
            r"(?i)rounded to ",
            _REFUSED + r"(?:alloc(?:ate)?|map|reserve) (?:an? )?"
            r"(?:tensor with |memory of size:? |request for )?",
            r"(?i)(?:memory|buffer|allocation|vector|malloc)(?: '[^']*')?(?: of)? size:? \(?",
            r"(?i)\balloc size ?: ",
            r"(?i)attempting to (?:allocate|reserve) ",
            r"(?i)\ballocat(?:e|ing|ion of) ",
            r"(?i)requested (?:buffer of )?size (?:was |of |is )?",
            r"(?i)requested amount of (?:GPU )?memory \(",
            r"smaller than requested bytes of ",
            r"\bRequested\s*: ",
            r"requires more (?:\w+ )?memory \(",
            r"无法.{0,20}分配\s*",
        )
    ),
)
"""Where a message names what it requested; the first pattern that matches wins."""
_SHAPE: Final = re.compile(
    r"(?i)(?:shape|form\b|tensor|张量|形状|テンソル|bentuk)\s*[:=]?\s*[\[(]\s*(\d+(?:\s*,\s*\d+)*),?\s*[\])]"
)
_EXACT: Final = re.compile(r"\s\((\d+) ?(?:bytes|B)\)")
"""The same size without rounding, behind it."""
_TYPE: Final = re.compile(r"(?i).{0,40}?\bd?type\s*[:=]?\s*(?:torch\.|tf\.)?(\w+)")
_CAPACITY: Final = (
    _SIZE + r" total capacity",
    r"total capaci?ty of " + _SIZE,
    r"max allowed: " + _SIZE,
    r"(?i) of " + _SIZE + r" hbm",
    r"growth limit " + _SIZE,
    r"\bLimit:\s*" + _SIZE,
    r"memory_limit_: " + _SIZE,
    r"limit set to: " + _SIZE,
    r"Device limit\s*: " + _SIZE,
    r"memory: usage \d+kB, limit " + _SIZE,
    r"(?:larger than|exceeds) [^\d]{0,40}(?:maximum|limit)(?: of)? \(?" + _SIZE,
    r"free and " + _SIZE + r" total\b",
    r"running was [\d.]+[KMGT]B / " + _SIZE,
    r"total mem(?:ory)? size ?: " + _SIZE,
    r"(?i)\bmemory limit[ :=]+(?:of |is |set to )?" + _SIZE,
)
_FREE: Final = (
    _SIZE + r" free(?:[;,.)]| bytes| and)",
    r"available " + _SIZE + r", missing",
    r"with (\d+)() free bytes",
    r"of which " + _SIZE + r" is free",
    r"available memory is only " + _SIZE,
    r"Available memory of (\d+)() is smaller",
    r"Free \(according to CUDA\)\s*: " + _SIZE,
    r"than is available \(" + _SIZE,
    r"available KV cache memory \(" + _SIZE,
    r"可用(?:内存|显存)\D{0,3}" + _SIZE,
)
_USED: Final = (
    r"this process has " + _SIZE + r" memory in use",
    r"MPS allocated: " + _SIZE,
    r"\bUsed " + _SIZE + r" of ",
    r"\bInUse:\s*" + _SIZE,
    r"allocated so far: " + _SIZE,
    r"Currently allocated\s*: " + _SIZE,
    _SIZE + r" memory has been allocated",
    r"running was " + _SIZE + r" / ",
    r"memory: usage " + _SIZE,
    r"已分配\s*" + _SIZE,
)
_NODES: Final = (
    r"Name: ?\\?['\"]([^'\"\\]*)",
    r"\[\[\{\{node ([^\s}]+)",
    r"\[\[[nN]ode:? ([^\s\]}=]+)",
)
_OPERATORS: Final = (r"while running (\w+) node", r"\[Op:(\w+)\]")


def read_message(text: str) -> OutOfMemory | None:
    """Find a message in a text, such as a log; ``None`` if no out-of-memory message is in it.

    A message of an unknown program is read if it names a size or a shape, or is plainly an error.
    """
    lines = [" ".join(line.split()) for line in text[-_LONGEST:].splitlines()]
    plain = " ".join(filter(None, lines))
    # A shell prints a killed command's end on a line of its own, and a prompt may follow.
    searched = "\n".join([plain, *(line for line in lines if _KILLED.fullmatch(line))])
    if not _FAILED.search(plain):
        return None
    known = next(
        (each for each in _PROGRAMS if re.search(each.pattern, searched, re.MULTILINE)), None
    )
    if known is None and not _ABOUT_MEMORY.search(plain):
        return None
    shape = _shape(plain)
    sizes = _requested(plain, shape, "" if known is None else known.name)
    if known is None:
        if sizes is None and not _PLAIN.search(plain):
            return None
        known = _Program("an unknown program", "", "memory could not be allocated")
    return OutOfMemory(
        program=known.name,
        meaning=known.meaning,
        sizes=sizes,
        shape=shape,
        element_type=_element_type(plain),
        node=_first(_NODES, plain),
        op_type=_first(_OPERATORS, plain),
        capacity_bytes=_bytes(_CAPACITY, plain),
        free_bytes=_bytes(_FREE, plain),
        used_bytes=_killed_bytes(plain) or _bytes(_USED, plain),
        names_gpu=_GPU.search(plain) is not None,
    )


def _shape(text: str) -> tuple[int, ...] | None:
    match = _SHAPE.search(text)
    return None if match is None else tuple(int(dim) for dim in match[1].split(","))


def _requested(text: str, shape: tuple[int, ...] | None, program: str) -> RequestedBytes | None:
    """A tensor's shape and type give its bytes exactly; a printed size is rounded."""
    if shape is not None:
        size_bytes = _tensor_bytes(text, shape)
        return None if size_bytes is None else RequestedBytes(size_bytes, size_bytes)
    match = next((found for each in _REQUESTED if (found := each.search(text))), None)
    if match is None:
        return None
    exact = _EXACT.match(text, match.end())
    least, most = _printed(match[1], match[2]) if exact is None else _printed(exact[1], None)
    if "Buy new RAM" in text:
        most += _factor(match[2]) - 1
    if program.startswith("PyTorch on ") and program.rpartition(" ")[2] in {
        "CUDA",
        "HIP",
        "NPU",
        "XPU",
    }:
        return _of_segment(least, most, is_block=re.search(r"[KMG]iB cached", text) is not None)
    if program == "onnxruntime":
        return RequestedBytes(max(least - _ARENA_BYTES + 1, 1), most)
    return RequestedBytes(least, most)


def _element_type(text: str) -> str | None:
    shape_at = _SHAPE.search(text)
    named = None if shape_at is None else _TYPE.match(text, shape_at.end())
    return None if named is None else named[1].lower()


def _tensor_bytes(text: str, shape: tuple[int, ...]) -> int | None:
    """``None``: the message names a type without a fixed size. Without a type it is float32."""
    width = _WIDTHS.get(_element_type(text) or "float32")
    return None if width is None else width * prod(shape)


def _of_segment(least_bytes: int, most_bytes: int, *, is_block: bool) -> RequestedBytes:
    """The requests for which PyTorch's caching allocator asks the device for such a segment.

    ``c10/cuda/CUDACachingAllocator.cpp``: the inverse of ``get_allocation_size``. Until 2019, when
    the message said ``cached`` for ``reserved``, the size was that of the block.
    """
    if is_block:
        return RequestedBytes(max(least_bytes - MIN_BLOCK_BYTES + 1, 1), most_bytes)
    if least_bytes <= SMALL_SEGMENT_BYTES <= most_bytes:
        return RequestedBytes(1, SMALL_BYTES)
    if least_bytes <= LARGE_SEGMENT_BYTES <= most_bytes:
        return RequestedBytes(SMALL_BYTES + 1, LARGE_SEGMENT_BYTES)
    return RequestedBytes(max(least_bytes - LARGE_STEP_BYTES + 1, MIN_LARGE_BYTES), most_bytes)


def _printed(number: str, unit: str | None) -> tuple[int, int]:
    """The least and the most bytes that are printed so, given the number of decimals."""
    factor = _factor(unit)
    digits = _digits(number)
    decimals = len(digits.partition(".")[2])
    half = Fraction(factor, 2 * 10**decimals) if "." in digits else 0
    value = Fraction(digits.rstrip(".")) * factor
    return ceil(value - half), floor(value + half)


def _digits(number: str) -> str:
    """Commas group thousands, or there is one with other than three digits behind it."""
    return re.sub(r"^(\d+),(\d{1,2})$", r"\1.\2", number).replace(",", "")


def _factor(unit: str | None) -> int:
    """Programs that print GB or G mean 2^30 bytes, as those do that print GiB."""
    if unit is None or unit.lower().startswith("byte"):
        return 1
    return 1 << 10 * _POWERS[unit.upper().rstrip("B").rstrip("I")]


def _bytes(patterns: tuple[str, ...], text: str) -> int | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match is not None:
            return round(Fraction(_digits(match[1]).rstrip(".")) * _factor(match[2]))
    return None


def _killed_bytes(text: str) -> int | None:
    """``mm/oom_kill.c`` of Linux, __oom_kill_process: the resident memory of the process."""
    kinds = ("anon", "file", "shmem")
    sizes = [re.search(rf"{kind}-rss:\s*([\d,]+)\s*k\s?B", text) for kind in kinds]
    known = [1024 * int(match[1].replace(",", "")) for match in sizes if match is not None]
    return sum(known) if known else None


def _first(patterns: tuple[str, ...], text: str) -> str | None:
    for pattern in patterns:
        match = re.search(pattern, text)
        if match is not None:
            return match[1]
    return None
