"""Read out-of-memory messages: who printed them, the requested size, the memory of the device.

``quantities`` reads sizes, shapes, element types and devices in any wording. Here it is decided

1. whether a text is such a message: it names an error that means it (``_NAMES``), or a process was
   killed, or an allocation was refused, or memory was used up. A text that only speaks of memory,
   or asks about it, is none;
2. who printed it: ``_PROGRAMS`` has words that only the messages of a program have. It may remain
   unknown, and nothing that is read depends on it but
3. what a size means: PyTorch prints the segment of its caching allocator, onnxruntime a request
   rounded to a chunk, others the bytes of one tensor.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from onnxmem.allocators.caching import (
    LARGE_SEGMENT_BYTES,
    LARGE_STEP_BYTES,
    MIN_BLOCK_BYTES,
    MIN_LARGE_BYTES,
    SMALL_BYTES,
    SMALL_SEGMENT_BYTES,
)
from onnxmem.decisions.explain.quantities import (
    WIDTHS,
    Quantity,
    Role,
    Shape,
    chosen,
    device_of,
    quantities,
    rejoined,
    requested,
    requested_shape,
    words,
)

_ARENA_BYTES: Final = 256
"""A chunk of onnxruntime's arena is a multiple of it (``kMinAllocationSize``, bfc_arena.h)."""
_LONGEST: Final = 100_000
"""Characters that are read of a log, from its end: the message is the last thing in it."""
_ESCAPED: Final = re.compile(r"\\([\[\]_*<>])")
"""Characters that Markdown escapes: ``shape\\[8,80\\]``."""
_COLORS: Final = re.compile(r"(?:\x1b|\\x1b|\\033|\\u001[bB])\[[\d;?]{0,20}[A-Za-z]")
"""What colors a terminal, as a log has it or as text: the 0 of ``ESC[0m`` is no size."""
_HEX: Final = re.compile(r"\b0x([0-9a-fA-F]{1,16})(?: \(-?\d{1,20}\))?(?= bytes\b)")
"""A size of AddressSanitizer, and the same as a signed decimal, which may be negative."""
_GLUED: Final = re.compile(
    r"(?<=\d)([KMG]i?B)?(?=(?:total|used|free|available)\b|[A-Z][a-z]{2,}[A-Z])"
)
"""Where a size is printed without a space before the next word: ``58.3MBtotal 9000GpuMinChunk``."""
_SPACED: Final = re.compile(r"(?<!\S)(?:[^\s] {1,2}){20,}[^\s](?!\S)")
"""Text of two bytes a character that was read as one: ``F a i l e d  t o``."""
_SHORT: Final = 200
_PHRASE: Final = 90
"""As long as a line is that says nothing but that memory ran out."""
_SAME_MESSAGE: Final = 200
_ROUNDED_BYTES: Final = 3 * 2**30 // 200
"""How far the difference of three sizes may be off, each printed with two decimals of a GiB."""
_ALL_WIDTHS: Final = frozenset(WIDTHS.values())
_FRAMED: Final = 160
"""As far as the name of an error may be from what it says."""


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
    """The memory in use: of the process, else of the program or what its allocator handed out."""
    allocated_bytes: int | None = None
    """What an allocator handed out, to tensors and the like."""
    reserved_bytes: int | None = None
    """What an allocator holds in all."""
    unallocated_bytes: int | None = None
    """What of it is handed out to nothing."""
    peak_bytes: int | None = None
    device: str | None = None
    """Such as ``GPU 0``; without a number if the message names none."""
    rivals: tuple[int, ...] = ()
    """Several sizes, if the message does not say which of them was requested."""
    unnamed: tuple[str, ...] = ()
    """Quantities as they are printed, of which no word says what they are."""

    @property
    def is_on_accelerator(self) -> bool:
        """Whether it names a device other than the CPU."""
        return self.device is not None and not self.device.startswith("CPU")

    @property
    def allocator_variable(self) -> str | None:
        """The variable of the environment that configures PyTorch's caching allocator."""
        return _CACHING.get(self.program)

    @property
    def spare_bytes(self) -> int | None:
        """What PyTorch's allocator holds and no tensor uses: as stated, or by difference."""
        if self.program not in _CACHING:
            return None
        if self.unallocated_bytes is not None or self.reserved_bytes is None:
            return self.unallocated_bytes
        if self.allocated_bytes is None:
            return None
        return max(self.reserved_bytes - self.allocated_bytes, 0)

    @property
    def is_fragmented(self) -> bool | None:
        """Whether the request fits what is free or spare; ``None`` where a size is missing.

        PyTorch gives cached segments back before it fails, so what is spare lies in segments that
        tensors still use.
        """
        if self.sizes is None or self.free_bytes is None or self.spare_bytes is None:
            return None
        return self.sizes.most_bytes <= self.free_bytes + self.spare_bytes

    @property
    def others_bytes(self) -> int | None:
        """What other processes hold of the device, if it says what this one does.

        ``None`` below a hundredth of the capacity: the sizes are printed rounded.
        """
        # ``used_bytes`` is what the allocator handed out where a message says nothing of the
        # process.
        if self.program not in _CACHING or self.used_bytes == self.allocated_bytes:
            return None
        known = (self.capacity_bytes, self.free_bytes, self.used_bytes)
        if None in known:
            return None
        capacity_bytes, free_bytes, used_bytes = (each or 0 for each in known)
        rest_bytes = capacity_bytes - free_bytes - used_bytes
        return rest_bytes if rest_bytes * 100 > capacity_bytes else None

    @property
    def _held_bytes(self) -> int | None:
        """What the allocator reserved: as stated, or the sum of what is in tensors and what is
        not.
        """
        if self.allocated_bytes is None or self.unallocated_bytes is None:
            return self.reserved_bytes
        return self.allocated_bytes + self.unallocated_bytes

    @property
    def context_bytes(self) -> int | None:
        """What the context takes: of a process's memory, what its allocator did not reserve.

        Where the message does not say what the process takes, that is ``outside_bytes``, and other
        processes are included. ``None`` where a size is missing, or where the rest is no more than
        the rounding of the three sizes.
        """
        reserved_bytes = self._held_bytes
        if self.program not in _CACHING or reserved_bytes is None:
            return None
        if self.used_bytes is None or self.used_bytes == self.allocated_bytes:
            return self.outside_bytes
        rest_bytes = self.used_bytes - reserved_bytes
        return rest_bytes if rest_bytes > _ROUNDED_BYTES else None

    @property
    def outside_bytes(self) -> int | None:
        """What this process's context and other processes hold of the device, if the message says
        what PyTorch reserved and not what the process takes.

        ``None`` below a hundredth of the capacity, as the sizes are printed rounded.
        """
        is_of_process = self.used_bytes is not None and self.used_bytes != self.allocated_bytes
        known = (self.capacity_bytes, self.free_bytes, self._held_bytes)
        if self.program not in _CACHING or is_of_process or None in known:
            return None
        capacity_bytes, free_bytes, reserved_bytes = (each or 0 for each in known)
        rest_bytes = capacity_bytes - free_bytes - reserved_bytes
        return rest_bytes if rest_bytes * 100 > capacity_bytes else None


@dataclass(frozen=True, slots=True)
class _Program:
    name: str
    pattern: str
    """Words that its out-of-memory messages have."""
    meaning: str


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
        r"Out of memory error on GPU \d|Cannot allocate [\d.]+ ?[KMG]B (memory on|in) GPU",
        "the allocator could not get memory from the device",
    ),
    _Program(
        "CuPy",
        r"cupy\.cuda|\(allocated so far: |out of memory to allocate \d+ bytes",
        "the memory pool could not get memory from the device, or reached its limit",
    ),
    _Program(
        "XLA",
        r"(?i)out of memory while trying to allocate|exhausted: out of memory allocating"
        r"|memory space hbm|BufferAssignment|XlaRuntimeError|failed to allocate request for"
        r"|attempting to (allocate|reserve) [\d.]+[KMG]?\b|org_tensorflow|external/xla/",
        "the device could not allocate a buffer of a compiled program (JAX, or TensorFlow's XLA)",
    ),
    _Program(
        "TensorFlow",
        r"bfc_allocator\.cc|ran out of memory trying to allocate|by allocator \w+_bfc"
        r"|exceeds \d+% of (free )?system memory|ResourceExhausted|Resource exhausted"
        r"|failed to alloc \d+ bytes|chunks: .{0,20}tried to allocate"
        r"|tensorflow.{0,80}out.of.memory|allocate [\d.]+[KMGT](iB)? .{0,40}from device: "
        r"|tensorflow/\w+/.{0,200}alloc",
        "the allocator could not allocate memory",
    ),
    _Program(
        "onnxruntime",
        r"BFCArena::|requested buffer of size",
        "the arena had no free chunk and could not grow",
    ),
    _Program(
        "TensorRT",
        r"\[TRT\]|TensorRT|virtualMemoryBuffer|rtSafe|nvinfer1|IBuilderConfig"
        r"|Error Code 2: OutOfMemory|(?i:requested amount of (GPU )?memory \()",
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
        "the Java virtual machine was out of memory: its heap has a limit of its own (-Xmx), which "
        "onnxruntime's weights and tensors, native memory, do not count to",
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
        r"(?i)(onnxruntime\b|\bort[.-](wasm|web|webgpu|min|bundle|all)\b|Non-zero status code"
        r"|ERROR_CODE: \d+, ERROR_MESSAGE:).{0,400}"
        r"(out.?of.?memory|bad.?alloc|memory resources|out of GPU resources|allocate a buffer)",
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
        r"cudaErrorMemoryAllocation|CUDA_ERROR_OUT_OF_MEMORY|(?i:cuda.{0,40}out of memory)",
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
        r"|\bline \d+: \d+ Killed\b|zsh: killed\b|\A\W{0,3}(?:137|-9|SIGKILL)\W{0,3}\Z",
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
_CACHING: Final = {
    "PyTorch on CUDA": "PYTORCH_CUDA_ALLOC_CONF",
    "PyTorch on HIP": "PYTORCH_HIP_ALLOC_CONF",
    "PyTorch on NPU": "PYTORCH_NPU_ALLOC_CONF",
    "PyTorch on XPU": "PYTORCH_ALLOC_CONF",
}
"""Programs that print the segment of a caching allocator, with the variable that configures it."""
_UNTIL_2019: Final = re.compile(r"[KMG]iB cached")
"""What PyTorch printed of its reserve then: the part that is not allocated, not all of it."""

# Whether a text is a message of a program that was out of memory.


_EXHAUSTED: Final = re.compile(rf"(?i){words('exhausted')}")
"""A noun of memory with a word that says it was used up, in either order."""


_WITHIN: Final = r"(?:[^.;]|\.(?=\d)){0,60}?"
_NOT_ALLOCATED: Final = re.compile(
    rf"(?i)(?<!GC \()(?:(?:{words('refused')}){_WITHIN}(?:{words('allocation')})"
    rf"|(?:{words('allocation')}){_WITHIN}(?:{words('refused')}))|{words('not_allocated')}"
)
"""An allocation that was refused; it is one of memory if a quantity, a shape or a noun says so."""
_OF_MEMORY: Final = re.compile(rf"(?i){words('of_memory')}")
_NAMES: Final = re.compile(
    rf"(?<!except )(?<!catch \()(?<!import )(?<!class )(?<!raise )(?:{words('names')})"
)
"""Names and codes of errors that mean it, whatever stands around them."""
_KILL: Final = re.compile(words("kills"))
"""The process was ended from outside: by Linux, by a container's or a scheduler's limit."""
_OOM_KILL: Final = re.compile(r"(?i)oom[-_ ]?kill")
_FRAME: Final = re.compile(rf"(?i){words('frames')}")
_QUESTION: Final = re.compile(
    r"(?i)\W*(?:how|why|what(?!\(\))|which|who|where|does|do|is (?:it|there|this)|are there"
    r"|(?:can|should) i)\b"
)
_COMPARISON: Final = re.compile(
    r"(?i)\d\)? is (?:larger|greater|more|bigger) than\b[^.;\n]{0,100}\d"
)
"""One number is larger than another: a finding, and not prose."""
_CONDITION: Final = re.compile(rf"(?i)\b(?:{words('conditions')})\b")
_TALK: Final = re.compile(rf"(?i){words('talk')}")
"""A question about memory, or prose, is not a message."""
_ADVICE: Final = re.compile(rf"(?i){words('advice')}")
_WEAK: Final = re.compile(r"(?i)[-: ]*(?:oom\b|code|exit)")
"""A name of an error that prose has too: ``OOM`` alone, and the code of a process."""
_TIME: Final = re.compile(rf"(?i)[^.;\n]{{0,12}}?\b(?:{words('times')})\b")
_MODAL: Final = re.compile(rf"(?i)\b(?:{words('modal')})\b")
_REPORT: Final = re.compile(rf"(?i){words('reports')}")
_IS_ERROR: Final = re.compile(r"(?i)(?:\w{0,24}error|fatal|panic)\b:? ")
"""A sentence that begins as the messages of programs do."""
_NODES: Final = (
    r"Name: ?\\?['\"]([^'\"\\]*)",
    r"\[\[\{\{node ([^\s}]+)",
    r"\[\[[nN]ode:? ([^\s\]}=]+)",
)
_FIGURES: Final = (
    Role.FREE,
    Role.TOTAL,
    Role.USED,
    Role.ALLOCATED,
    Role.RESERVED,
    Role.UNALLOCATED,
    Role.PEAK,
)
_OWN_NAME: Final = re.compile(r"(?i)\bonnxmem\b")
"""It ends in a word of memory: ``more than onnxmem`` speaks of none."""
_OPERATORS: Final = (r"while running (\w+) node", r"\[Op:(\w+)\]")


@lru_cache(maxsize=4)
def read_message(text: str) -> OutOfMemory | None:
    """Find a message in a text, such as a log; ``None`` if no out-of-memory message is in it."""
    # What a log adds to a message goes before any number of it is read: colors, the escapes of
    # Markdown, blanks in text of two bytes a character. Then hexadecimal sizes become decimal.
    unescaped = _ESCAPED.sub(r"\1", _COLORS.sub("", text[-_LONGEST:]))
    unescaped = _HEX.sub(lambda match: str(int(match[1], 16)), _OWN_NAME.sub("it", unescaped))
    unescaped = _SPACED.sub(_close, unescaped)
    lines = (" ".join(line.split()) for line in unescaped.splitlines())
    plain = rejoined(_GLUED.sub(r"\1 ", "\n".join(filter(None, lines))))
    found = quantities(plain)
    asked = requested(found, plain)
    shape = requested_shape(plain, asked[0] if asked else None)
    evidence = _evidence(plain, found, shape)
    if evidence is None:
        return None
    # Words that a line break parts are found in the flat text, and the ends of lines in the other.
    flat = plain.replace("\n", " ")
    program = next(
        (
            each
            for each in _PROGRAMS
            if re.search(each.pattern, flat) or re.search(each.pattern, plain, re.MULTILINE)
        ),
        None,
    ) or _Program("an unknown program", "", _meaning(plain, evidence))
    # A log may have the figures of several devices and messages: those nearest to the request are
    # of this one.
    near = shape.start if shape else asked[0].start if asked else evidence
    sizes = _requested(asked, shape, plain, program.name)
    picked = {role: chosen(found, role, near) for role in _FIGURES}
    values = {role: _size(quantity) for role, quantity in picked.items()}
    # Then the used bytes are of another message.
    if _is_of_line(plain, near, picked[Role.ALLOCATED], picked[Role.USED]):
        values[Role.USED] = None
    if program.name in _CACHING and _UNTIL_2019.search(plain):
        values[Role.UNALLOCATED] = values.pop(Role.RESERVED)
    return OutOfMemory(
        program=program.name,
        meaning=program.meaning,
        sizes=sizes,
        rivals=tuple(each.size_bytes for each in asked) if len(asked) > 1 and not shape else (),
        shape=None if shape is None else shape.dims,
        element_type=None if shape is None else shape.element_type,
        node=_first(_NODES, plain),
        op_type=_first(_OPERATORS, plain),
        device=None if _is_kill(plain, evidence, found) else device_of(plain, near),
        capacity_bytes=values[Role.TOTAL],
        free_bytes=values[Role.FREE],
        # The kernel's figures of the process that it ended are the surest; then those of the one
        # process of several that can have allocated so much.
        used_bytes=_killed_bytes(plain)
        or _own_process_bytes(found, values[Role.ALLOCATED])
        or _first_known(values, Role.USED, Role.ALLOCATED),
        allocated_bytes=values[Role.ALLOCATED],
        reserved_bytes=values.get(Role.RESERVED),
        unallocated_bytes=values[Role.UNALLOCATED],
        peak_bytes=values[Role.PEAK],
        unnamed=tuple(each.text for each in found if each.role is None and each.has_unit),
    )


def _close(spaced: re.Match[str]) -> str:
    return " ".join(word.replace(" ", "") for word in spaced[0].split("  "))


def _is_of_line(text: str, near: int, one: Quantity | None, other: Quantity | None) -> bool:
    """Whether one quantity stands in the line of a message, and the other in another one."""
    if one is None or other is None:
        return False
    return not text.count("\n", *sorted((near, one.start))) and bool(
        text.count("\n", *sorted((near, other.start)))
    )


def _size(quantity: Quantity | None) -> int | None:
    return None if quantity is None else quantity.size_bytes


def _own_process_bytes(found: Sequence[Quantity], allocated_bytes: int | None) -> int | None:
    """What the process that failed uses, of several on the device: the one that can hold what it
    allocated.
    """
    used = [each.size_bytes for each in found if each.role is Role.USED]
    if allocated_bytes is None or len(used) <= 1:
        return None
    holding = [size for size in used if size >= allocated_bytes]
    return holding[0] if len(holding) == 1 else None


def _first_known(values: Mapping[Role, int | None], *roles: Role) -> int | None:
    return next((values[role] for role in roles if values[role] is not None), None)


def _is_kill(text: str, evidence: int, found: Sequence[Quantity]) -> bool:
    """Whether the kernel ended a process: it was out of the host's memory, not of a device's."""
    is_asked = any(each.role is Role.REQUESTED for each in found)
    is_kill = _KILL.match(text, evidence) or _OOM_KILL.match(text, evidence)
    return is_kill is not None and not is_asked


def _evidence(text: str, found: Sequence[Quantity], shape: Shape | None) -> int | None:
    """Where a text says that memory ran out; ``None``: it does not say it."""
    # From the surest to the weakest: a name of an error needs nothing beside it, a refused
    # allocation needs a size or a noun of memory, and that memory was used up is said in prose too.
    named = _named(text, _NAMES, found) or _named(text, _KILL, found)
    start = named.start() if named is not None else _refused_at(text, found, shape)
    if start is None:
        start = _exhausted_at(text, found)
    if start is None:
        return None
    # A short text that begins as a question is one, unless a request stands in it word for word.
    line = text[text.rfind("\n", 0, start) + 1 :]
    is_plain = any(each.role is Role.REQUESTED and each.rank > 1 for each in found)
    return None if len(text) < _SHORT and _QUESTION.match(line) and not is_plain else start


def _named(text: str, names: re.Pattern[str], found: Sequence[Quantity]) -> re.Match[str] | None:
    """The first name of an error in a text, which advice and questions have too."""
    for match in names.finditer(text):
        if not _WEAK.match(match[0]) or found:
            return match
        sentence = _sentence(text, match.start(), match.end())
        if not _ADVICE.search(sentence) and not sentence.endswith("?"):
            return match
    return None


def _refused_at(text: str, found: Sequence[Quantity], shape: Shape | None) -> int | None:
    """Where a text says that an allocation of memory was refused."""
    asked = [each for each in found if each.role is Role.REQUESTED]
    for match in _NOT_ALLOCATED.finditer(text):
        around = text[max(match.start() - 20, 0) : match.end() + 60]
        if any(abs(each.start - match.start()) < _SAME_MESSAGE for each in asked) or shape:
            return match.start()
        # "cannot allocate memory in static TLS block" is of the loader of libraries: its table is
        # full, not the memory.
        is_memory = _OF_MEMORY.search(around) and "static TLS" not in around
        if is_memory and not _CONDITION.search(_sentence(text, match.start(), match.end())):
            return match.start()
    return None


def _exhausted_at(text: str, found: Sequence[Quantity]) -> int | None:
    """Where a text says that memory was used up, as an error and not in prose."""
    roles = {each.role for each in found} - {None, Role.OTHER}
    for match in _EXHAUSTED.finditer(text):
        sentence = _sentence(text, match.start(), match.end())
        is_conditional = _CONDITION.search(sentence) or _ADVICE.search(sentence)
        is_advice = is_conditional and not _is_past(text, match, sentence)
        if is_advice and not _is_found(text, match, found):
            continue
        # The surest first: beside the request or the memory of a device it is a message; then a
        # sentence that begins as errors do; then one that is short, reports or has the frame of a
        # log, unless it is prose.
        if Role.REQUESTED in roles or (Role.TOTAL in roles and len(found) > 1):
            return match.start()
        is_first = _is_first(text, match)
        around = text[max(match.start() - _FRAMED, 0) : match.end() + _FRAMED]
        is_said = (
            is_first
            or _REPORT.search(sentence)
            or len(sentence) <= _PHRASE
            or _COMPARISON.search(around)
        )
        if _IS_ERROR.match(sentence):
            return match.start()
        if (is_said or _FRAME.search(around)) and not _is_talk(sentence):
            return match.start()
    return None


def _is_talk(sentence: str) -> bool:
    """Whether a sentence is prose or a question, and not the report of an error."""
    if _REPORT.search(sentence) and not sentence.endswith("?"):
        return bool(_MODAL.search(sentence))
    return _TALK.search(sentence) is not None


def _is_past(text: str, match: re.Match[str], sentence: str) -> bool:
    """Whether a sentence tells when it happened: ``out of memory when the session started``."""
    is_first = sentence.startswith(match[0]) or _is_first(text, match)
    is_told = (is_first and _TIME.match(text, match.end())) or _REPORT.search(sentence)
    return bool(is_told) and not _MODAL.search(sentence)


def _is_first(text: str, match: re.Match[str]) -> bool:
    start = text[max(match.start() - 3, 0) : match.start()]
    return not start or start.endswith(
        ("\n", ": ", ":", "\uff1a", "] ", '"', "'", "- ", "`", "(", "**")
    )


def _is_found(text: str, match: re.Match[str], found: Sequence[Quantity]) -> bool:
    """Whether what ran out is said of a plain request: a condition behind it is no advice then."""
    is_plain = any(
        each.role is Role.REQUESTED and each.rank > 1 and match.start() <= each.start <= match.end()
        for each in found
    )
    before = _sentence(text[: match.end()], match.start(), match.end())
    return is_plain and not _CONDITION.search(before)


def _sentence(text: str, start: int, end: int) -> str:
    first = (
        max(text.rfind(stop, max(start - 200, 0), start) for stop in (". ", "! ", "; ", "\n")) + 1
    )
    lasts = [
        at for stop in (". ", "; ", "\n", "。") if (at := text.find(stop, end, end + 200)) >= 0
    ]
    sentence = text[max(first, start - 200) : min(lasts, default=end + 200)]
    # What is in parentheses is an aside: its words make a sentence neither a condition nor advice.
    return re.sub(r"\([^()]{1,80}\)", " ", sentence).strip()


def _meaning(text: str, evidence: int) -> str:
    """What a message of an unknown program says: what ran out."""
    around = text[max(evidence - 80, 0) : evidence + 160]
    if _KILL.search(around):
        return (
            "the process was killed, because its container, its job or the machine was out of "
            "memory"
        )
    device = device_of(around, None)
    if device is not None and not device.startswith("CPU"):
        return _DEVICE_FULL
    if re.search(r"(?i)limit|allowed|maximum|exceed|larger than", around):
        return "a limit of the program, or of its container or job, was reached"
    return "memory could not be allocated"


def _requested(
    asked: Sequence[Quantity], shape: Shape | None, text: str, program: str
) -> RequestedBytes | None:
    """A tensor's shape and type give its bytes exactly; a printed size is rounded."""
    printed = asked[0] if len(asked) == 1 else None
    if shape is not None:
        width = WIDTHS.get(shape.element_type or "float32")
        is_plain = printed is not None and _is_of_shape(text, printed, shape)
        # Without a type, float32 is only assumed: a size that is printed for the same tensor says
        # more.
        if width is not None and not (is_plain and shape.element_type is None):
            size_bytes = width * prod(shape.dims)
            return RequestedBytes(size_bytes, size_bytes)
        if not is_plain:
            return None
    if printed is None:
        return None
    least, most = printed.least_bytes, printed.most_bytes
    if "Buy new RAM" in text:
        most += printed.factor - 1
    if program in _CACHING and most > 0:
        return _of_segment(least, most, is_block=_UNTIL_2019.search(text) is not None)
    if program == "onnxruntime":
        return RequestedBytes(max(least - _ARENA_BYTES + 1, 1), most)
    return RequestedBytes(least, most)


def _is_of_shape(text: str, printed: Quantity, shape: Shape) -> bool:
    """Whether a printed size is that of a shape: of its line, or as large with some type."""
    start, end = sorted((printed.start, shape.start))
    if end - start >= _SAME_MESSAGE:
        return False
    elements = prod(shape.dims)
    return "\n" not in text[start:end] or any(
        printed.least_bytes <= width * elements <= printed.most_bytes for width in _ALL_WIDTHS
    )


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
    if most_bytes < MIN_LARGE_BYTES:  # No segment is so small: it is the size of a block.
        return RequestedBytes(max(least_bytes - MIN_BLOCK_BYTES + 1, 1), most_bytes)
    return RequestedBytes(max(least_bytes - LARGE_STEP_BYTES + 1, MIN_LARGE_BYTES), most_bytes)


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
