"""Reads a memory snapshot of PyTorch: what a process allocated on a GPU, event by event.

``torch.cuda.memory._dump_snapshot`` pickles a dict of plain values: ``segments`` with the blocks of
the caching allocator when it was written, ``device_traces`` with the allocations and releases that
``_record_memory_history`` saw before, and, since PyTorch 2.3, ``allocator_settings``
(torch/csrc/cuda/Module.cpp and torch/cuda/_memory_viz.py, PyTorch 2.0 to 2.13). What a version does
not write is empty here.

A pickle may name any function of Python, and a few bytes of one can take all memory: the file is
read in a child process with limits, and a class or function in it is refused.
"""

import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from onnxmem.children.running import JSON, ChildFault, ChildLimits, available_bytes, run_in_child
from onnxmem.errors import MissingFileError, UsageError, shortened
from onnxmem.files import missing_file_text, opened, reason_of

MOST_BYTES: Final = 2**30
"""Of a file; 100,000 events with their call stacks are about 100 MiB."""
_SECONDS: Final = 300.0
_LEAST_MEMORY_BYTES: Final = 2**30
_MEMORY_FACTOR: Final = 32
"""Bytes of Python objects for a byte of a pickle, at most: an empty dict is two bytes in it."""
NO_POOL: Final = "0.0"
"""The id of the pools that all tensors share; CUDA graphs have private ones."""
_READ: Final = "onnxmem.measuring.memory_snapshot:read_plain"
_MOST_SIZE: Final = 2**62
_MOST_ADDRESS: Final = 2**64
_MOST_FRAMES: Final = 4096
"""Of a call stack that are looked at."""
_LONGEST_PLACE: Final = 240
_HINT: Final = "write one with torch.cuda.memory._dump_snapshot"
_LIBRARIES: Final = ("/torch/", "<frozen", "/torchvision/", "/contextlib.py", "\\torch\\")
"""Parts of file names of frames that are not of the user's code."""
_SOURCES: Final = (".cpp", ".h", ".cc", ".cu", ".cuh", ".c", ".hpp", "??")
"""Endings of file names of frames that are not of Python."""
_LOADED: Final = (pickle.UnpicklingError, EOFError, LookupError, TypeError, ValueError)
_FAULTS: Final = (*_LOADED, AttributeError, ImportError, OverflowError, RecursionError)
"""What unpickling bytes that are no pickle raises."""


class SnapshotError(UsageError):
    """The file is not a memory snapshot of PyTorch, or one that cannot be read."""

    code: ClassVar[str] = "snapshot"


class RecordedBlock(NamedTuple):
    """A block of a segment when the snapshot was written."""

    address: int
    size_bytes: int
    requested_bytes: int
    is_active: bool
    """Whether a tensor has it, or another stream still uses it."""
    place: str
    """The function that allocated it; empty: not recorded."""


@dataclass(frozen=True, slots=True)
class RecordedSegment:
    """Device memory that the allocator had reserved when the snapshot was written."""

    device: int
    address: int
    size_bytes: int
    stream: int
    pool: str
    """The private pool that it belongs to, or ``NO_POOL``."""
    is_small: bool
    is_expandable: bool
    blocks: tuple[RecordedBlock, ...]


class RecordedEvent(NamedTuple):
    """What the allocator did."""

    action: str
    """``alloc``, ``free_requested``, ``free_completed``, ``segment_alloc``, ``segment_free``,
    ``segment_map``, ``segment_unmap``, ``oom``, ``snapshot``."""
    address: int
    size_bytes: int
    stream: int
    pool: str
    """Empty: not recorded (before PyTorch 2.12)."""
    place: str


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """A snapshot of one device."""

    path: str
    device: int
    num_devices: int
    """Devices that the file has memory or events of."""
    segments: tuple[RecordedSegment, ...] = field(repr=False)
    events: tuple[RecordedEvent, ...] = field(repr=False)
    settings: Mapping[str, object]
    """``allocator_settings``; empty before PyTorch 2.3."""


def read_memory_snapshot(path: str) -> MemorySnapshot:
    """Read the snapshot of the device that has most memory reserved, then most events.

    :raises MissingFileError: the file cannot be opened.
    :raises SnapshotError: it is not a snapshot, or too large.
    """
    size_bytes = _size_bytes(path)
    limit_bytes = _LEAST_MEMORY_BYTES + _MEMORY_FACTOR * size_bytes
    limits = ChildLimits(_SECONDS, min(limit_bytes, available_bytes() or limit_bytes))
    found = run_in_child(_READ, {"path": os.path.abspath(path)}, limits)
    if isinstance(found, ChildFault):
        reason = "needs too much memory to be read" if found.kind == "memory" else found.message
        message = f"{shortened(path)}: {shortened(reason)}; {_HINT}"
        raise SnapshotError(message)
    if "fault" in found:
        message = f"{shortened(path)}: {shortened(str(found['fault']))}; {_HINT}"
        raise SnapshotError(message)
    return _largest_device(path, found)


def _size_bytes(path: str) -> int:
    try:
        descriptor = opened(path)
    except FileNotFoundError as fault:
        message = f"{shortened(path)}: {missing_file_text(path)}"
        raise MissingFileError(message) from fault
    except OSError as fault:
        message = f"{shortened(path)}: cannot be opened: {reason_of(fault)}; {_HINT}"
        raise MissingFileError(message) from fault
    try:
        size_bytes = os.fstat(descriptor).st_size
    finally:
        os.close(descriptor)
    if size_bytes > MOST_BYTES:
        reason = f"is over {MOST_BYTES:,} bytes; record fewer events (max_entries=100000)"
        message = f"{shortened(path)}: {reason}"
        raise SnapshotError(message)
    return size_bytes


def _largest_device(path: str, plain: Mapping[str, Any]) -> MemorySnapshot:
    places: Sequence[str] = plain["places"]
    segments = [_segment(each, places) for each in plain["segments"]]
    reserved: dict[int, int] = {}
    for each in segments:
        reserved[each.device] = reserved.get(each.device, 0) + each.size_bytes
    traces = plain["traces"]
    devices = {*reserved, *(index for index, trace in enumerate(traces) if trace)} or {0}

    def amount(device: int) -> tuple[int, int, int]:
        num_events = len(traces[device]) if device < len(traces) else 0
        return reserved.get(device, 0), num_events, -device

    # Most reserved; of equals the one with most events, then the first.
    chosen = max(devices, key=amount)
    return MemorySnapshot(
        path=path,
        device=chosen,
        num_devices=len(devices),
        segments=tuple(each for each in segments if each.device == chosen),
        events=tuple(
            RecordedEvent(action, address, size_bytes, stream, pool, places[place])
            for action, address, size_bytes, stream, pool, place in (
                traces[chosen] if chosen < len(traces) else ()
            )
        ),
        settings=plain["settings"],
    )


def _segment(row: Sequence[Any], places: Sequence[str]) -> RecordedSegment:
    device, address, size_bytes, stream, pool, is_small, is_expandable, blocks = row
    return RecordedSegment(
        device=device,
        address=address,
        size_bytes=size_bytes,
        stream=stream,
        pool=pool,
        is_small=is_small,
        is_expandable=is_expandable,
        blocks=tuple(
            RecordedBlock(at, size, requested, is_active, places[place])
            for at, size, requested, is_active, place in blocks
        ),
    )


# Below runs in the child


def read_plain(path: str) -> dict[str, JSON]:
    """The rows of a snapshot, or ``fault``: why it cannot be read."""
    try:
        with open(opened(path), "rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            document = _Plain(file).load()
        return _Reading(size_bytes).document(document)
    except _Malformed as fault:
        return {"fault": str(fault)}
    except OSError as fault:
        return {"fault": f"cannot be read: {reason_of(fault)}"}
    except _FAULTS:
        # What an unpickler says of other bytes, like a memo that lacks a value, helps nobody.
        return {"fault": "is not a memory snapshot of PyTorch: not a pickle, or a cut-off one"}


class _Malformed(Exception):  # noqa: N818 - a reason, which becomes a SnapshotError
    """What a pickle of plain values has that a snapshot has not."""


class _Plain(pickle.Unpickler):
    """Unpickles lists, dicts, tuples, texts and numbers."""

    def find_class(self, module: str, name: str) -> NoReturn:
        message = f"names {module}.{name}: a snapshot has plain values only, and nothing is run"
        raise _Malformed(message)

    def persistent_load(self, pid: object) -> NoReturn:
        message = f"refers to an object outside of the file: {pid!r:.80}"
        raise _Malformed(message)


@dataclass(slots=True)
class _Reading:
    """Mutable: the call stacks so far, and how many rows the file can still have."""

    rows_left: int
    """A row takes at least a byte of the file, unless one list is there many times."""
    places: dict[str, int] = field(default_factory=lambda: {"": 0})
    _by_stack: dict[int, int] = field(default_factory=dict)
    """A place by the identity of its list of frames, which live as long as the document."""

    def document(self, document: object) -> dict[str, JSON]:
        """All rows: a dict of ``segments`` and ``device_traces``, or the list of segments."""
        if isinstance(document, list):  # torch.cuda.memory_snapshot()
            document = {"segments": document}
        if not isinstance(document, dict) or "segments" not in document:
            message = "is a pickle, and not of a memory snapshot: it has no segments"
            raise _Malformed(message)
        traces = _listed(document.get("device_traces", []), "device_traces")
        segments = [self._segment(each) for each in self._rows(document["segments"], "segments")]
        return {
            "segments": segments,
            "traces": [
                [self._event(each) for each in self._rows(trace, "device_traces")]
                for trace in self._rows(traces, "device_traces")
            ],
            "settings": _settings(document.get("allocator_settings", {})),
            "places": list(self.places),
        }

    def _rows(self, value: object, key: str) -> Iterator[Any]:
        rows = _listed(value, key)
        self.rows_left -= len(rows)
        if self.rows_left < 0:
            message = f"has more {key} than bytes"
            raise _Malformed(message)
        return iter(rows)

    def _segment(self, value: object) -> list[JSON]:
        row = _table(value, "segments")
        address = _whole(row, "address", _MOST_ADDRESS)
        # In the order in which `_segment` of the parent unpacks them.
        return [
            _whole(row, "device", default=0),
            address,
            _whole(row, "total_size"),
            _stream(row),
            _pool(row.get("segment_pool_id", (0, 0))),
            row.get("segment_type") == "small",
            bool(row.get("is_expandable", False)),
            list(self._blocks(row.get("blocks", []), address)),
        ]

    def _blocks(self, value: object, address: int) -> Iterator[list[JSON]]:
        for each in self._rows(value, "blocks"):
            row = _table(each, "blocks")
            size = _whole(row, "size")
            state = str(row.get("state"))[:40]
            requested = _whole(row, "requested_size", default=size)
            # The first versions write no address; blocks follow one another.
            yield [
                _whole(row, "address", _MOST_ADDRESS, default=address),
                size,
                requested,
                state.startswith("active"),
                self._place(row.get("frames", ())),
            ]
            address += size

    def _event(self, value: object) -> list[JSON]:
        row = _table(value, "device_traces")
        action = str(row.get("action"))[:40]
        # The action of a release was "free" before PyTorch 2.0.
        return [
            "free_completed" if action == "free" else action,
            _whole(row, "addr", _MOST_ADDRESS, default=0),
            _whole(row, "size"),
            _stream(row),
            _pool(row["pool_id"]) if "pool_id" in row else "",
            self._place(row.get("frames", ())),
        ]

    def _place(self, frames: object) -> int:
        if not isinstance(frames, list):
            return 0
        if id(frames) not in self._by_stack:
            place = _place_of(frames[:_MOST_FRAMES])
            self._by_stack[id(frames)] = self.places.setdefault(place, len(self.places))
        return self._by_stack[id(frames)]


def _place_of(frames: list[Any]) -> str:
    """The innermost function of the user's code, else of Python, else of any."""
    named = [each for each in frames if isinstance(each, dict)]
    python = [each for each in named if not str(each.get("filename", "")).endswith(_SOURCES)]
    own = [each for each in python if not any(x in str(each.get("filename")) for x in _LIBRARIES)]
    for found in (own, python, named):
        if found:
            return _frame(found[0])
    return ""


def _frame(frame: Mapping[str, object]) -> str:
    file, line = str(frame.get("filename", "")), frame.get("line")
    name = os.path.basename(file) if len(file) > _LONGEST_PLACE // 3 else file
    where = f"{name}:{line}" if isinstance(line, int) and line else name
    return shortened(f"{frame.get('name', '')} ({where})", _LONGEST_PLACE)


def _settings(value: object) -> dict[str, JSON]:
    """The settings that are plain; one of the rounding has a number for each power of two."""
    found: dict[str, JSON] = {}
    for key, each in _table(value, "allocator_settings").items():
        if isinstance(each, dict):
            numbers = {number for number in each.values() if isinstance(number, int)}
            found[str(key)[:80]] = sorted(each for each in numbers if abs(each) < _MOST_SIZE)
        elif isinstance(each, bool | str) or (isinstance(each, int) and abs(each) < _MOST_ADDRESS):
            found[str(key)[:80]] = each if not isinstance(each, str) else each[:400]
    return found


def _listed(value: object, key: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        message = f"{key} is not a list"
        raise _Malformed(message)
    return value


def _table(value: object, key: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        message = f"an item of {key} is not a dict"
        raise _Malformed(message)
    return value


def _whole(row: Mapping[Any, Any], key: str, most: int = _MOST_SIZE, default: int = -1) -> int:
    value = row.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < most:
        message = f"{key} is not a number of bytes or an address"
        raise _Malformed(message)
    return value


def _stream(row: Mapping[Any, Any]) -> int:
    value = row.get("stream", 0)
    return value if isinstance(value, int) and abs(value) < _MOST_ADDRESS else 0


def _pool(value: object) -> str:
    """An id of a private pool, two numbers, as text."""
    return ".".join(str(each)[:24] for each in value[:2]) if isinstance(value, tuple) else NO_POOL
